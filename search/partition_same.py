"""One number of recomputed layers for all stages: which numbers a partition is worth cutting for.

Without a memory limit T grows with the number, and fewer cuts fit where it is smaller. Greedy cuts
(:func:`~parallelsim.search.partition_bounds.greedy_cuts`) of many numbers and limits at a time give
each number a lower bound, and a cut near it; few numbers have a bound below the best of these cuts.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from parallelsim.search.partition_bounds import (
    greedy_cuts,
    least_time,
    sum_and_limit,
    with_recomputed,
)
from parallelsim.search.partition_chunks import whole_row
from parallelsim.search.partition_dp import Row
from parallelsim.search.partition_problem import IntArray, PartitionProblem
from parallelsim.search.partition_stages import (
    TOLERANCE,
    StageCosts,
    schedule_seconds,
)

BATCH = 16
"""Numbers looked at together."""
LIMITS = 16
"""Limits on the slowest stage tried together for each."""
ROUNDS = 3
"""Each divides the interval of the least slowest stage by ``LIMITS``."""
TRIALS = 2
"""Greedy cuts of the least limits that are evaluated, of a number and round."""


def promising_numbers(problem: PartitionProblem) -> tuple[list[int], float]:
    """(numbers that may have the best cut, by their lower bounds; T that a cut is known to reach).

    Free cuts of one row. No number where nothing fits in memory; an infinite T where no
    greedy cut fits.
    """
    row = whole_row(StageCosts(problem))
    widest = len(problem.layers) - int(row.least[1:].sum())
    numbers = np.arange(-(-widest // problem.vpp) + 1)
    unlimited = np.full(len(numbers), np.inf)
    cuts = greedy_cuts(with_recomputed(row, problem.vpp * numbers), unlimited)
    numbers = numbers[cuts[:, -1] == row.num_layers]
    bounds, known_s = dict[int, float](), float("inf")
    for first in range(0, len(numbers), BATCH):
        batch = numbers[first : first + BATCH]
        if first and _ample_bound(problem, row, int(batch[0]), known_s) > known_s * (1 + TOLERANCE):
            break
        found, known_s = _bounds(problem, row, batch, known_s)
        bounds |= found
    known_s *= 1 + 2 * TOLERANCE  # so that it is found, too
    return sorted((n for n in bounds if bounds[n] <= known_s), key=bounds.__getitem__), known_s


def _ample_bound(problem: PartitionProblem, row: Row, number: int, known_s: float) -> float:
    """A lower bound without a memory limit, so for all larger numbers too; infinite beyond
    ``known_s``.
    """
    ample = replace(
        with_recomputed(row, np.array(problem.vpp * number)),
        room_bytes=np.full(problem.pp, np.inf),
        step_room_bytes=np.full(problem.pp, np.inf),
    )
    total, limit = sum_and_limit(ample, problem, known_s)
    if limit < float("inf") and greedy_cuts(ample, np.array([limit]))[0, -1] < row.num_layers:
        return float("inf")
    return least_time(problem, 0.0, total)


def _bounds(
    problem: PartitionProblem, row: Row, numbers: IntArray, known_s: float
) -> tuple[dict[int, float], float]:
    """(a lower bound of every number that may be worth it, the best T known)."""
    total = float(row.prefix_s[-1] + row.base_s.sum())
    tiny = np.finfo(np.float64).tiny
    low = np.full(len(numbers), max(total / problem.pp, float(row.base_s.max()), tiny))
    high = np.full(len(numbers), max(total + float(row.prefix_recompute_s[-1]), tiny))
    bounds = np.zeros(len(numbers))
    for _ in range(ROUNDS):
        if not len(numbers):
            break
        steps = np.arange(1, LIMITS + 1) / LIMITS
        limits = low[:, None] * (high / low)[:, None] ** steps
        limits[:, -1] = high
        each = with_recomputed(row, np.repeat(problem.vpp * numbers, LIMITS))
        cuts = greedy_cuts(each, limits.ravel()).reshape(len(numbers), LIMITS, -1)
        count = (cuts[:, :, -1] == row.num_layers).sum(1)  # the larger limits
        first = np.minimum(LIMITS - count, LIMITS - 1)
        at = np.arange(len(numbers))
        low = np.where(first > 0, limits[at, np.maximum(first - 1, 0)], low)
        high = limits[at, first]
        for k in np.argsort(low, kind="stable"):
            number = int(numbers[k])
            if bounds[k] <= known_s:
                some = cuts[k, first[k] : first[k] + TRIALS]
                known_s = min(known_s, _least_time(problem, row, number, some))
                bounds[k] = _bound(problem, row, number, float(low[k]), known_s)
        left = bounds <= known_s * (1 + TOLERANCE)
        numbers, low, high, bounds = numbers[left], low[left], high[left], bounds[left]
    return dict(zip(numbers.tolist(), bounds.tolist(), strict=True)), known_s


def _bound(
    problem: PartitionProblem, row: Row, number: int, slowest: float, known_s: float
) -> float:
    """A lower bound where no stage can be faster than ``slowest``; infinite beyond ``known_s``."""
    total, limit = sum_and_limit(
        with_recomputed(row, np.array(problem.vpp * number)), problem, known_s
    )
    if slowest > limit:
        return float("inf")
    return least_time(problem, slowest, total)


def _least_time(problem: PartitionProblem, row: Row, number: int, cuts: IntArray) -> float:
    """The least T of the cuts that exist and fit in memory; infinite if there is none."""
    cuts = cuts[(np.diff(cuts, axis=1) >= row.least).all(1) & (cuts[:, -1] == row.num_layers)]
    costs = StageCosts(replace(problem, recompute=number))
    stage = np.broadcast_to(np.arange(problem.pp), cuts[:, 1:].shape)
    figures = costs.figures(stage, [(cuts[:, :-1], cuts[:, 1:])])
    fits = ~(figures.over_bytes > 0).any(-1)
    return float(schedule_seconds(problem, figures)[fits].min(initial=np.inf))
