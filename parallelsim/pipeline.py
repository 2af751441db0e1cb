"""Closed forms of the pipeline schedules: step time, bubble, and micro-batches in flight.

Stages come in three classes, first, middle and last. Exact where all stages take equal time and
transfers are free; :func:`pipeline_time` says how far off it can be elsewhere.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from parallelsim.operators import FloatArray, IntArray
from parallelsim.plan import code

GPIPE = code("schedule", "gpipe")
INTERLEAVED = code("schedule", "interleaved-1f1b")


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
    """Seconds of GPipe, 1F1B and interleaved 1F1B, without transfers; shape [P].

    GPipe, interleaved: T = m max(tau) + (sum(tau) - max(tau)) / v
    1F1B: T = max over stages s of  sum_{i<s} tau_i + m tau_s + idle_s, with
    idle_s = (R - w f_s)+ + (R - w b_s)+           if m > w = p - s - 1, with R = sum_{i>s} tau_i
             (R - (m - 1) min(f_s, b_s))+          else

    tau_i = f_i + b_i: forward and backward of one micro-batch on stage i; m micro-batches, v
    chunks. Stage s waits (R - w f)+ for its first backward while w more forwards run, and (R - w
    b)+ in the drain. Equal stages: bubble (p - 1) tau / v, the (p - 1)/(v m) of arXiv:2104.04473.
    Exact for one slower stage at either end; within 4 % for three unequal classes. Neglects for v
    > 1 the unevenness of the chunks of one stage, and how a slow first stage hides the fill.
    """
    slowest = np.maximum(np.maximum(stages.first, stages.middle), stages.last)
    total = stages.first + stages.last + np.maximum(pp - 2, 0.0) * stages.middle
    bubble = (total - slowest) / vpp
    plain = (vpp == 1) & (schedule != GPIPE)
    if plain.any():
        time = _one_f_one_b_time(stages, total, pp, num_micro_batches)
        bubble = np.where(plain, time - num_micro_batches * slowest, bubble)
    return PipelineTime(num_micro_batches * slowest, bubble)


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
    """Micro-batches whose activations stage ``stage`` (from 0) holds at its peak.

    GPipe m; 1F1B min(p - i, m); interleaved min((2 (p - i - 1) + (v - 1) p + 1)/v, m), in units of
    a whole stage (arXiv:2104.04473, 2205.05198 section 4.2.3).
    """
    after = pp - stage - 1
    held = np.where(schedule == INTERLEAVED, (2 * after + (vpp - 1) * pp + 1) / vpp, after + 1)
    held = np.minimum(held, num_micro_batches)
    is_gpipe = schedule == GPIPE
    return np.where(is_gpipe, num_micro_batches, held) if is_gpipe.any() else held
