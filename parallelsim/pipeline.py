"""Closed forms of the pipeline schedules: step time, bubble, and micro-batches in flight.

Stages come in three classes, first, middle and last. Exact where all stages take equal time and
transfers are free; :func:`pipeline_time` says how far off it can be elsewhere. GPipe, 1F1B and
interleaved 1F1B are here; the others in :mod:`parallelsim.pipeline_forms`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from parallelsim.operators import FloatArray, IntArray
from parallelsim.pipeline_forms import FORMS
from parallelsim.pipeline_paths import ChunkSeconds
from parallelsim.plan import code

GPIPE = code("schedule", "gpipe")
INTERLEAVED = code("schedule", "interleaved-1f1b")
PIPEDREAM_2BW = code("schedule", "pipedream-2bw")
PLAIN = 4
"""Schedules below this code need no :class:`~parallelsim.pipeline_paths.ChunkSeconds`."""
FORM_CODES = {code("schedule", name): form for name, form in FORMS.items()}


class StageSeconds(NamedTuple):
    """Seconds of one micro-batch on each stage class; float64 of shape [P].

    ``middle`` is 0 with pp <= 2, ``last`` with pp = 1: such stages do not exist.
    """

    first: FloatArray
    middle: FloatArray
    last: FloatArray
    forward_first: FloatArray
    """The forward pass alone; what is left of ``first`` is the backward pass with its recompute."""
    forward_middle: FloatArray
    forward_last: FloatArray
    chunks: ChunkSeconds | None = None
    """The same work by stage of the model, where the block has a schedule that needs it."""


class PipelineTime(NamedTuple):
    """Seconds of the pipelined part of a step; the time is the sum of the two."""

    steady_s: FloatArray
    """All micro-batches on the slowest stage."""
    bubble_s: FloatArray
    """Fill and drain: the time in which the slowest stage waits."""


def pipeline_time(
    stages: StageSeconds,
    schedule: IntArray,
    pp: FloatArray,
    vpp: FloatArray,
    num_micro_batches: FloatArray,
) -> PipelineTime:
    """Seconds of every schedule, without transfers; shape [P].

    GPipe, interleaved: T = m max(tau) + (sum(tau) - max(tau)) / v
    1F1B: T = max over stages s of  sum_{i<s} tau_i + m tau_s + idle_s, with
    idle_s = (R - w f_s)+ + (R - w b_s)+           if m > w = p - s - 1, with R = sum_{i>s} tau_i
             (R - (m - 1) min(f_s, b_s))+          else

    tau_i = f_i + b_i: forward and backward of one micro-batch on stage i; m micro-batches, v
    chunks. Stage s waits (R - w f)+ for its first backward while w more forwards run, and (R - w
    b)+ in the drain. Equal stages: bubble (p - 1) tau / v, the (p - 1)/(v m) of arXiv:2104.04473.
    Exact for one slower stage at either end; within 4 % for three unequal classes. Neglects for v
    > 1 the unevenness of the chunks of one stage, and how a slow first stage hides the fill.
    PipeDream-2BW: T = m max(tau), exact in the long run: there is no drain. The others:
    :data:`parallelsim.pipeline_forms.FORMS`.
    """
    slowest = np.maximum(np.maximum(stages.first, stages.middle), stages.last)
    total = stages.first + stages.last + np.maximum(pp - 2, 0.0) * stages.middle
    bubble = (total - slowest) / vpp
    plain = (vpp == 1) & (schedule != GPIPE)
    if plain.any():
        # On the plans that need it alone: the bounds cost more than all the rest here.
        index = np.flatnonzero(plain)
        first, middle, last, *forwards = (np.asarray(x)[index] for x in stages[:-1])
        some = StageSeconds(first, middle, last, forwards[0], forwards[1], forwards[2])
        m = num_micro_batches[index]
        time = _one_f_one_b_time(some, total[index], pp[index], m)
        bubble[index] = time - m * slowest[index]
    if stages.chunks is not None:
        shape = (schedule, pp, vpp, num_micro_batches)
        bubble = _other_bubbles(stages.chunks, *shape, slowest, bubble)
    return PipelineTime(num_micro_batches * slowest, bubble)


def _other_bubbles(
    chunks: ChunkSeconds,
    schedule: IntArray,
    pp: FloatArray,
    vpp: FloatArray,
    m: FloatArray,
    slowest: FloatArray,
    bubble: FloatArray,
) -> FloatArray:
    """The bubbles with those of the schedules beyond 1F1B and its kin put in."""
    bubble = np.where(schedule == PIPEDREAM_2BW, 0.0, bubble)
    for number, form in FORM_CODES.items():
        index = np.flatnonzero(schedule == number)
        if len(index):
            some = ChunkSeconds(*(type(stage)(*(a[index] for a in stage)) for stage in chunks))
            time = form(some, pp[index], vpp[index], m[index])
            bubble[index] = np.maximum(time - m[index] * slowest[index], 0.0)
    return bubble


def _one_f_one_b_time(
    stages: StageSeconds, total: FloatArray, pp: FloatArray, m: FloatArray
) -> FloatArray:
    """The maximum over the first, second, last but one, and last stage.

    Along equal middle stages the expression is convex in s, so its largest value is at an end.
    """
    time = _bound(stages.first, stages.forward_first, 0.0, total, pp - 1, m)
    time = np.maximum(time, total - stages.last + m * stages.last)
    if (pp > 2).any():
        middle, forward = stages.middle, stages.forward_middle
        at_last_but_one = total - stages.last - middle
        for before, after in ((stages.first, pp - 2), (at_last_but_one, 1.0)):
            bound = _bound(middle, forward, before, total, after, m)
            time = np.where(pp > 2, np.maximum(time, bound), time)
    return time


def _bound(
    tau: FloatArray,
    forward: FloatArray,
    before: FloatArray | float,
    total: FloatArray,
    warmup: FloatArray | float,
    m: FloatArray,
) -> FloatArray:
    """Seconds if this stage never waits for anything but the fill and the drain."""
    after = total - before - tau
    backward = tau - forward
    idle = np.maximum(after - warmup * forward, 0.0) + np.maximum(after - warmup * backward, 0.0)
    short = np.maximum(after - (m - 1) * np.minimum(forward, backward), 0.0)
    return before + m * tau + np.where(m > warmup, idle, short)


def in_flight_micro_batches(
    schedule: IntArray,
    pp: FloatArray,
    vpp: FloatArray,
    stage: FloatArray,
    num_micro_batches: FloatArray,
) -> FloatArray:
    """Micro-batches whose activations rank ``stage`` (from 0) holds at its peak.

    GPipe m; 1F1B min(p - i, m); interleaved min((2 (p - i - 1) + (v - 1) p + 1)/v, m), in units of
    a whole stage (arXiv:2104.04473, 2205.05198 section 4.2.3). A micro-batch counts until its
    weight gradient; of two copies of the model, half a rank's layers are a whole stage. The rest:
    :data:`IN_FLIGHT`; exact with m >= 2 p, else not too low (but V-Min).
    """
    after = pp - stage - 1
    held = np.where(schedule == INTERLEAVED, (2 * after + (vpp - 1) * pp + 1) / vpp, after + 1)
    if (schedule >= PLAIN).any():
        for number, count in IN_FLIGHT.items():
            chosen = schedule == number
            if chosen.any():
                held = np.where(chosen, count(pp, vpp, stage, num_micro_batches), held)
    held = np.minimum(held, num_micro_batches)
    is_gpipe = schedule == GPIPE
    return np.where(is_gpipe, num_micro_batches, held) if is_gpipe.any() else held


def _two_way_depth(pp: FloatArray, stage: FloatArray) -> FloatArray:
    """Ranks between this one and the nearer end."""
    return np.minimum(stage, pp - 1 - stage)


Count = Callable[[FloatArray, FloatArray, FloatArray, FloatArray], FloatArray]
IN_FLIGHT: Mapping[int, Count] = {
    code("schedule", name): count
    for name, count in {
        "breadth-first": lambda p, v, i, m: m,  # arXiv:2211.05953 section 4.1
        "chimera": lambda p, v, i, m: p / 2 + 1 + _two_way_depth(p, i),  # 2107.06925 table 2
        "hanayo": lambda p, v, i, m: p - (p - 1 - i) / v,  # 2308.15762
        "zb-h1": lambda p, v, i, m: p,  # 2401.10241 table 2
        "zb-h2": lambda p, v, i, m: 2 * p - 1,
        "zb-v": lambda p, v, i, m: p,
        "v-half": lambda p, v, i, m: (p + 2) // 2,  # 2405.15362 table 1
        "v-min": lambda p, v, i, m: (p + 4) // 3,
        "dualpipe": lambda p, v, i, m: p + 1,  # 2412.19437 table 2
        "dualpipe-v": lambda p, v, i, m: p + 0.5,
    }.items()
}
"""(p, v, rank, m) -> micro-batches in flight, by code; never more than m."""
