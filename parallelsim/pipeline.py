"""Closed forms of the pipeline schedules: step time, bubble, and micro-batches in flight.

Stages come in three classes, first, middle and last; transfers are free. GPipe, 1F1B and
interleaved 1F1B are here; the others in :mod:`parallelsim.pipeline_forms`. Each form says where it
is exact, and how far it is from the replay on the random plans of ``benchmarks/closed_forms.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from parallelsim.operators import FloatArray, IntArray
from parallelsim.pipeline_forms import FORMS
from parallelsim.pipeline_paths import ChunkSeconds
from parallelsim.plan import code
from parallelsim.plan_batch import largest

GPIPE = code("schedule", "gpipe")
ONE_F_ONE_B = code("schedule", "1f1b")
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
    chunk: FloatArray | None = None
    """A chunk of layers alone, where two interleaved ranks hold some beside the ends; else 0."""
    forward_chunk: FloatArray | None = None


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

    PipeDream-2BW: T = m max(tau), tau = f + b of a stage: exact in the long run, there is no drain.
    GPipe, 1F1B, interleaved 1F1B: :func:`_gpipe_time`, :func:`_one_f_one_b_time`,
    :func:`_interleaved_time`. The others: :data:`parallelsim.pipeline_forms.FORMS`.
    """
    slowest = np.maximum(np.maximum(stages.first, stages.middle), stages.last)
    m, steady = num_micro_batches, num_micro_batches * slowest
    bubble = np.zeros_like(steady)
    for number, form in (
        (ONE_F_ONE_B, _one_f_one_b_time),
        (INTERLEAVED, _interleaved_time),
        (GPIPE, _gpipe_time),
    ):
        chosen = schedule == number
        count = np.count_nonzero(chosen)
        if count == len(steady):
            bubble = form(stages, pp, vpp, m) - steady
        elif count:
            # On the plans that need it alone: the forms cost more than all the rest here.
            index = np.flatnonzero(chosen)
            some = _taken(stages, index, with_chunk=number == INTERLEAVED)
            time = form(some, pp.take(index), vpp.take(index), m.take(index))
            bubble[index] = time - steady.take(index)
    if stages.chunks is not None:
        bubble = _other_bubbles(stages.chunks, schedule, pp, vpp, m, slowest, bubble)
    return PipelineTime(steady, bubble)


def _taken(stages: StageSeconds, index: IntArray, *, with_chunk: bool) -> StageSeconds:
    """The seconds of some plans."""
    first, middle, last, *forward = (np.asarray(column).take(index) for column in stages[:6])
    some = StageSeconds(first, middle, last, forward[0], forward[1], forward[2])
    if stages.chunk is None or stages.forward_chunk is None or not with_chunk:
        return some
    return some._replace(
        chunk=stages.chunk.take(index), forward_chunk=stages.forward_chunk.take(index)
    )


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


def _gpipe_time(stages: StageSeconds, pp: FloatArray, vpp: FloatArray, m: FloatArray) -> FloatArray:
    """T = sum(tau) + (m - 1) (max f + max b): two passes, each at the slowest stage's pace.

    Exact.
    """
    forwards = np.maximum(stages.forward_first, stages.forward_middle)
    backwards = np.maximum(
        stages.first - stages.forward_first, stages.middle - stages.forward_middle
    )
    pace = np.maximum(forwards, stages.forward_last)
    pace += np.maximum(backwards, stages.last - stages.forward_last)
    return _all_stages(stages, pp) + (m - 1) * pace


def _all_stages(stages: StageSeconds, pp: FloatArray) -> FloatArray:
    """sum(tau)."""
    return stages.first + _after_first(stages, pp)


def _after_first(stages: StageSeconds, pp: FloatArray) -> FloatArray:
    """The same of all stages but the first."""
    return stages.last + np.maximum(pp - 2, 0.0) * stages.middle


def _interleaved_time(
    stages: StageSeconds, pp: FloatArray, vpp: FloatArray, m: FloatArray
) -> FloatArray:
    """The longest of the paths below, each along the work of one rank; groups of p micro-batches.

    e, c, h: the first chunk of the model, each middle one, the last one; without index f + b.

    late  = (p - 1) ( (e_f - c_f)+ + (e_b - c_b)+ )
    last rank         e + (p - 2) c + late + m ((v - 1) c + h)
    the one before    e + (p - 3) c + late + m v c + (h - 2 c_f)+ + (h - 2 c_b)+
    first rank        m (e + (v - 1) c) + (R - w c_f)+ + (R - w c_b)+,  R = (p - 2) c + h,
                      w = 2 (p - 1)
    with one group    m (e + (v - 1) c) + (R - (p - 1) min(c_f, c_b))+

    A rank waits for the fill of those before it, which a slow first chunk holds back by as many
    micro-batches as a group has (``late``); in the fill for its first gradient, R later, in which
    time it runs w more forwards, or the p - 1 that are left where m = p; and likewise in the drain.
    Equal chunks: bubble (p - 1)(t_F + t_B) / v, a share (p - 1)/(v m) of the work
    (arXiv:2104.04473 section 2.2.2). Error: median 0, worst 0.7 %; none with one group.
    """
    c, c_f = stages.middle / vpp, stages.forward_middle / vpp
    if stages.chunk is not None and stages.forward_chunk is not None:
        c, c_f = c + stages.chunk, c_f + stages.forward_chunk
    elif (pp == 2).any():  # what is not told: as if the first rank's chunks were equal
        c = np.where(pp > 2, c, stages.first / vpp)
        c_f = np.where(pp > 2, c_f, stages.forward_first / vpp)
    c_b, others = c - c_f, vpp - 1
    e = np.maximum(stages.first - others * c, 0.0)
    e_f = np.maximum(stages.forward_first - others * c_f, 0.0)
    h, w = np.maximum(stages.last - others * c, 0.0), 2 * (pp - 1)
    late = np.maximum(e_f - c_f, 0.0) + np.maximum(e - e_f - c_b, 0.0)
    before_last = e + (pp - 2) * c
    later = before_last - e + h
    fill = before_last + (pp - 1) * late
    time = fill + m * stages.last
    waits = np.maximum(h - 2 * c_f, 0.0) + np.maximum(h - 2 * c_b, 0.0)
    time = np.maximum(time, fill - c + m * stages.middle + waits)
    waits = np.maximum(later - w * c_f, 0.0) + np.maximum(later - w * c_b, 0.0)
    time = np.asarray(np.maximum(time, m * stages.first + waits))
    single = np.flatnonzero(m <= pp)
    if len(single):
        hidden = (pp[single] - 1) * np.minimum(c_f[single], c_b[single])
        waits = np.maximum(later[single] - hidden, 0.0)
        time[single] = np.maximum(time[single], m[single] * stages.first[single] + waits)
    return time


def _one_f_one_b_time(
    stages: StageSeconds, pp: FloatArray, vpp: FloatArray, m: FloatArray
) -> FloatArray:
    """The longest of the paths along one stage's work.

    T = max over stages s of  sum_{i<s} tau_i + m tau_s + idle_s, with
    idle_s = (R - w f_s)+ + (R - w b_s)+           if m > w = p - s - 1, with R = sum_{i>s} tau_i
             (R - (m - 1) min(f_s, b_s))+          else

    Stage s waits (R - w f)+ for its first backward while w more forwards run, and (R - w b)+ in the
    drain. The maximum is over the first, second, last but one, and last stage: along equal middle
    stages the expression is convex in s, so that its largest value is at an end. Equal stages:
    bubble (p - 1) tau (arXiv:2104.04473 section 2.2.1). Exact for one slower stage at either end.
    Error: median 0, worst 1 % of plans as they occur; with a last stage half as long as the middle
    ones and a longer first one up to 5 %, and 10 % with fewer than 2 p micro-batches.
    """
    after_first = _after_first(stages, pp)
    before_last = stages.first + after_first - stages.last
    time = m * stages.first + _idle(stages.first, stages.forward_first, after_first, pp - 1, m)
    time = np.maximum(time, before_last + m * stages.last)
    if largest(pp) > 2:
        middle, forward = stages.middle, stages.forward_middle
        second = stages.first + _idle(middle, forward, after_first - middle, pp - 2, m)
        last_but_one = before_last - middle + _idle(middle, forward, stages.last, 1.0, m)
        between = np.maximum(second, last_but_one) + m * middle
        time = np.maximum(time, (pp > 2) * between)
    return time


def _idle(
    tau: FloatArray,
    forward: FloatArray,
    after: FloatArray,
    warmup: FloatArray | float,
    m: FloatArray,
) -> FloatArray:
    """Seconds that a stage waits with R = ``after`` seconds of stages behind it, w = ``warmup``."""
    backward = tau - forward
    idle = np.maximum(after - warmup * forward, 0.0) + np.maximum(after - warmup * backward, 0.0)
    few = np.flatnonzero(m <= warmup)
    if len(few):
        shorter = np.minimum(forward.take(few), backward.take(few))
        idle[few] = np.maximum(after.take(few) - (m.take(few) - 1) * shorter, 0.0)
    return idle


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
    :data:`IN_FLIGHT`; exact with m >= 2 p, else not too low (but V-Min). Several stages of each
    plan: ``stage`` and the result are of shape [S, P].
    """
    passes = (schedule == INTERLEAVED) + 1.0
    on_first = passes * (pp - 1) + ((vpp - 1) * pp + 1)
    held = (on_first - passes * stage) / vpp
    if largest(schedule) >= PLAIN:
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
        "chimera": lambda p, v, i, m: p / 2 + 1 + _two_way_depth(p, i),
        "hanayo": lambda p, v, i, m: p - (p - 1 - i) / v,
        "zb-h1": lambda p, v, i, m: p,  # 2401.10241 table 2
        "zb-h2": lambda p, v, i, m: 2 * p - 1,
        "zb-v": lambda p, v, i, m: p,
        "v-half": lambda p, v, i, m: (p + 2) // 2,  # as its authors' repository says
        "v-min": lambda p, v, i, m: (p + 4) // 3,
        "dualpipe": lambda p, v, i, m: p + 1,  # 2412.19437 table 2
        "dualpipe-v": lambda p, v, i, m: p + 0.5,
    }.items()
}
"""(p, v, rank, m) -> micro-batches in flight, by code; never more than m."""
