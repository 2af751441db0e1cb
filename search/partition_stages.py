"""Seconds, recompute and bytes of a stage that holds given runs of layers, over arrays."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from parallelsim.search.partition_problem import (
    EdgeItem,
    FloatArray,
    IntArray,
    PartitionProblem,
)

TOLERANCE = 1e-9
"""Relative: sums of the same layers differ by rounding, and must compare as equal."""
Runs = list[tuple[IntArray, IntArray]]
"""Layers of a stage as runs [lo, hi), in the order of its chunks; arrays of one shape."""


class StageFigures(NamedTuple):
    """Of each stage asked about; arrays of one shape."""

    seconds: FloatArray
    """tau: forward, backward and recompute of one micro-batch."""
    forward_s: FloatArray
    """The forward pass's share of it."""
    extra_s: FloatArray
    """Recompute's share of it."""
    recomputed: IntArray
    """Layers; all of them where even that does not fit."""
    memory_bytes: FloatArray
    over_bytes: FloatArray
    """Beyond the capacity, 0 where it fits."""


class StageCosts:
    """Prefix sums of a problem's columns; :meth:`figures` reads any stage off them.

    The least number of recomputed layers is closed-form: a search for the bytes that are missing
    in the prefix sum of what recompute saves.
    """

    def __init__(self, problem: PartitionProblem) -> None:
        self.problem, layers, pp = problem, problem.layers, problem.pp
        self.base_s = prefix_sum(layers.forward_s + layers.backward_s)
        self.forward_s = prefix_sum(layers.forward_s)
        self.recompute_s = prefix_sum(layers.recompute_s)
        self.state_bytes = prefix_sum(layers.state_bytes)
        self.saved_bytes = prefix_sum(layers.saved_bytes)
        self.gain_bytes = prefix_sum(layers.saved_bytes - layers.checkpoint_bytes)
        self.step_bytes = prefix_sum(layers.step_bytes)
        self.edge_forward_s = self._of_edges("forward_s")
        self.edge_s = self.edge_forward_s + self._of_edges("backward_s")
        self.edge_state = self._of_edges("state_bytes")
        self.edge_saved = self._of_edges("saved_bytes")
        self.edge_step = self._of_edges("step_bytes")
        self.edge_transient = np.zeros(pp)
        self.edge_transient[0] = problem.first.transient_bytes
        self.edge_transient[-1] = max(self.edge_transient[-1], problem.last.transient_bytes)

    def _of_edges(self, name: str) -> FloatArray:
        values = np.zeros(self.problem.pp)
        first: EdgeItem = self.problem.first
        values[0] += getattr(first, name)
        values[-1] += getattr(self.problem.last, name)
        return values

    def figures(self, stage: IntArray, runs: Runs) -> StageFigures:
        """Figures of stages that hold these runs, with the recompute that the problem asks for."""
        problem = self.problem
        count = sum((hi - lo for lo, hi in runs), np.int64(0)) + np.zeros_like(stage)
        in_flight = problem.in_flight[stage]
        seconds = self.edge_s[stage] + _within(self.base_s, runs)
        resident = self.edge_state[stage] + _within(self.state_bytes, runs)
        resident = resident + problem.constant_bytes
        kept = in_flight * (self.edge_saved[stage] + _within(self.saved_bytes, runs))
        step = self.edge_step[stage] + _within(self.step_bytes, runs)
        edge = self.edge_transient[stage]
        plain = kept + np.maximum(edge, np.where(count > 0, problem.transient_bytes, 0.0))
        again = kept + np.maximum(
            edge, max(problem.transient_bytes, problem.recompute_transient_bytes)
        )
        limit = problem.capacity_bytes * (1 + TOLERANCE)
        recomputed = np.zeros_like(count)
        if isinstance(problem.recompute, int):
            recomputed = np.minimum(problem.recompute * problem.vpp, count)
        elif np.isfinite(limit):
            short = (resident + np.maximum(plain, step) > limit) & (count > 0)
            if short.any():
                recomputed[short] = count[short]
                if problem.recompute == "least":
                    missing = (resident + again - limit)[short] / in_flight[short]
                    part = [(lo[short], hi[short]) for lo, hi in runs]
                    recomputed[short] = self._least(missing, part)
        memory = resident + np.maximum(plain, step)
        extra = np.zeros_like(seconds)
        some = recomputed > 0
        if some.any():
            part = _first(recomputed[some], [(lo[some], hi[some]) for lo, hi in runs])
            extra[some] = _within(self.recompute_s, part)
            held = again[some] - in_flight[some] * _within(self.gain_bytes, part)
            memory[some] = resident[some] + np.maximum(held, step[some])
        over = np.where(memory > limit, memory - problem.capacity_bytes, 0.0)
        forward = self.edge_forward_s[stage] + _within(self.forward_s, runs)
        return StageFigures(seconds + extra, forward, extra, recomputed, memory, over)

    def _least(self, missing: FloatArray, runs: Runs) -> IntArray:
        """The least r of at least 1 whose first r layers save ``missing`` bytes, or all layers."""
        total = np.zeros(missing.shape, np.int64)
        for lo, hi in runs:
            target = self.gain_bytes[lo] + np.maximum(missing, 0.0)
            reach = np.searchsorted(self.gain_bytes, target, side="left")
            end = np.where(missing > 0, np.clip(reach, lo, hi), lo)
            total += end - lo
            missing = missing - (self.gain_bytes[end] - self.gain_bytes[lo])
        return np.maximum(total, 1)


def prefix_sum(values: FloatArray) -> FloatArray:
    """0, then the running sum: shape [L + 1]."""
    return np.concatenate([np.zeros(1), np.cumsum(values)])


def _within(prefix: FloatArray, runs: Runs) -> FloatArray:
    """Sum over the layers of the runs."""
    total = np.zeros(runs[0][0].shape)
    for lo, hi in runs:
        total = total + (prefix[hi] - prefix[lo])
    return total


def _first(count: IntArray, runs: Runs) -> Runs:
    """The first ``count`` layers of the runs."""
    part = []
    for lo, hi in runs:
        taken = np.minimum(count, hi - lo)
        part.append((lo, lo + taken))
        count = count - taken
    return part


def chunk_runs(problem: PartitionProblem, bounds: IntArray) -> Runs:
    """Runs of every stage, arrays [..., pp], of chunks cut at ``bounds`` [..., chunks + 1]."""
    shape = (*bounds.shape[:-1], problem.vpp, problem.pp)
    lo, hi = bounds[..., :-1].reshape(shape), bounds[..., 1:].reshape(shape)
    return [(lo[..., k, :], hi[..., k, :]) for k in range(problem.vpp)]


def bounds_figures(costs: StageCosts, bounds: IntArray) -> StageFigures:
    """Figures of all stages, arrays [..., pp], of layers cut at ``bounds`` [..., chunks + 1]."""
    runs = chunk_runs(costs.problem, bounds)
    return costs.figures(np.broadcast_to(np.arange(costs.problem.pp), runs[0][0].shape), runs)


def schedule_seconds(problem: PartitionProblem, figures: StageFigures) -> FloatArray:
    """Seconds of the schedule over stages [..., pp], without transfers; shape [...].

    For stages of any cost:
    GPipe, interleaved: T = m max(tau) + (sum(tau) - max(tau)) / v
    1F1B: T = max over stages s of  sum_{i<s} tau_i + m tau_s + idle_s,
    as :func:`parallelsim.pipeline.pipeline_time`. Neglects where the forwards' slowest stage is not
    the backwards' (GPipe), and how a stage's chunks differ (interleaved).
    """
    tau, m = figures.seconds, problem.num_micro_batches
    total = tau.sum(-1)
    if problem.schedule != "1f1b":
        slowest = tau.max(-1)
        return np.asarray(m * slowest + (total - slowest) / problem.vpp)
    before = np.cumsum(tau, axis=-1) - tau
    after = np.maximum(total[..., None] - before - tau, 0.0)
    warmup = np.arange(problem.pp - 1.0, -1.0, -1.0)
    busy = busy_and_idle(tau, figures.forward_s, after, warmup, m)
    return np.asarray((before + busy).max(-1))


def busy_and_idle(
    tau: FloatArray,
    forward: FloatArray,
    after: FloatArray,
    warmup: FloatArray | float,
    m: int,
) -> FloatArray:
    """Seconds from a 1F1B stage's first forward to the step's end, if it waits for later ones only.

    m tau + (R - w f)+ + (R - w b)+ if m > w = p - s - 1, else m tau + (R - (m - 1) min(f, b))+,
    with R = ``after`` the seconds of all later stages (parallelsim.pipeline).
    """
    backward = tau - forward
    idle = np.maximum(after - warmup * forward, 0.0) + np.maximum(after - warmup * backward, 0.0)
    short = np.maximum(after - (m - 1) * np.minimum(forward, backward), 0.0)
    return np.asarray(m * tau + np.where(m > warmup, idle, short))
