"""What a step's seconds go to, by cause."""

from __future__ import annotations

import numpy as np

from parallelsim.operators import FloatArray
from parallelsim.step import StepBreakdown

CAUSES = ("gemm", "attention", "memory_bound", "launch", "tp", "cp", "ep", "pp", "dp")
"""What a step's seconds go to, each with one factor for a whole cluster and software."""


def cause_seconds(time: StepBreakdown) -> FloatArray:
    """Seconds of the step by cause, shape [P, causes]; their sum is the step.

    Recomputation repeats GEMMs, attention and memory-bound work in their proportion, a bubble waits
    for all that a stage does, and stragglers stretch everything.
    """
    work = np.stack([time.gemm_s + time.head_s, time.attention_s, time.memory_bound_s], axis=1)
    work = work + _in_proportion(time.recompute_s, work)
    tokens = [time.host_s, time.tp_exposed_s, time.cp_exposed_s, time.ep_exposed_s]
    stage = np.column_stack([work, *tokens])
    stage = stage + _in_proportion(time.bubble_s, stage)
    seconds = np.column_stack([stage, time.p2p_exposed_s, time.dp_exposed_s])
    seconds[:, CAUSES.index("memory_bound")] += time.optimizer_s
    seconds[:, CAUSES.index("launch")] += time.overhead_s
    return np.asarray(seconds + _in_proportion(time.straggler_s, seconds))


def _in_proportion(seconds: FloatArray, parts: FloatArray) -> FloatArray:
    """The seconds dealt to the parts, [P] to [P, parts]; NaN of a step that is not known."""
    with np.errstate(invalid="ignore"):
        return np.asarray(seconds[:, None] * parts / parts.sum(axis=1, keepdims=True))


def cause_shares(time: StepBreakdown) -> FloatArray:
    """Share of each cause in the step, shape [P, causes]."""
    return _in_proportion(np.ones(len(time.gemm_s)), cause_seconds(time))


def other_frac(shares: FloatArray) -> FloatArray:
    """Share of the step that is neither GEMM nor attention; 1 where it is not known; shape [P].

    Args:
        shares: by cause, shape [P, causes].
    """
    known = shares[:, CAUSES.index("gemm")] + shares[:, CAUSES.index("attention")]
    return np.nan_to_num(1 - known, nan=1.0)
