"""Closed forms of the pipeline schedules: step time, bubble, and micro-batches in flight.

Exact where all stages take equal time and transfers are free. With uneven stages the fill and drain are
bounded by the sum of the stages, which the exact replay can undercut or exceed by the amount stated in
:func:`pipeline_time`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from parallelsim.operators import FloatArray, IntArray
from parallelsim.plan import code

GPIPE = code("schedule", "gpipe")
INTERLEAVED = code("schedule", "interleaved-1f1b")


class PipelineTime(NamedTuple):
    """Seconds of the pipelined part of a step; the time is the sum of the two."""

    steady_s: FloatArray
    """All micro-batches on the slowest stage."""
    bubble_s: FloatArray
    """Fill and drain: the time in which the slowest stage waits."""


def pipeline_time(
    slowest_s: FloatArray, sum_s: FloatArray, num_micro_batches: FloatArray, vpp: FloatArray
) -> PipelineTime:
    """Seconds of GPipe, 1F1B and interleaved 1F1B, without transfers.

    T = m max(tau) + (sum(tau) - max(tau)) / v

    tau_i: forward and backward of one micro-batch on stage i, shape [P]; v chunks a stage.
    Equal stages: bubble (p - 1) tau / v, the (p - 1)/(v m) of arXiv:2104.04473. Uneven stages: exact for
    GPipe and 1F1B when only the last or only the first stage is slower; neglects the forward/backward
    split of the stages, and for v > 1 the unevenness of the chunks of one stage.
    """
    return PipelineTime(num_micro_batches * slowest_s, (sum_s - slowest_s) / vpp)


def in_flight_micro_batches(
    schedule: IntArray, pp: FloatArray, vpp: FloatArray, stage: FloatArray, num_micro_batches: FloatArray
) -> FloatArray:
    """Micro-batches whose activations stage ``stage`` (from 0) holds at its peak.

    GPipe m; 1F1B min(p - i, m); interleaved min((2 (p - i - 1) + (v - 1) p + 1)/v, m), in units of a
    whole stage (arXiv:2104.04473, 2205.05198 section 4.2.3).
    """
    after = pp - stage - 1
    one_f_one_b = after + 1
    interleaved = (2 * after + (vpp - 1) * pp + 1) / vpp
    held = np.where(schedule == INTERLEAVED, interleaved, one_f_one_b)
    return np.where(schedule == GPIPE, num_micro_batches, np.minimum(held, num_micro_batches))
