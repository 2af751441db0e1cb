"""Bounds of a partition's time that cost no dynamic programme, and the cuts that they come with.

B is the slowest stage and S the sum of all stages, T >= max over ``bound_weights`` (a, b) of
a B + b S. Stages that take as many layers as they can, one after the other, show whether any cut
keeps to a bound on B; a few such bounds at a time close in on the least B. Those cuts are close to
the best for 1F1B, where the stages before the slowest one hide none of its time.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from parallelsim.search.partition_dp import Edges, Row, band_edges, furthest, least_extra, minimax
from parallelsim.search.partition_problem import FloatArray, IntArray, PartitionProblem
from parallelsim.search.partition_stages import TOLERANCE

ROUNDS = 3
"""Times that the sum and the limit on the slowest stage improve each other."""


def least_time(problem: PartitionProblem, slowest: float, total: float) -> float:
    """A lower bound on T where B and S are no less than these."""
    return max(a * slowest + b * total for a, b in problem.bound_weights)


def slowest_allowed(problem: PartitionProblem, known_s: float, total: float) -> float:
    """The largest B of a cut no slower than ``known_s`` where S is no less than ``total``."""
    limits = [(known_s - b * total) / a for a, b in problem.bound_weights if a > 0]
    return min(limits, default=float("inf"))


def sum_and_limit(row: Row, problem: PartitionProblem, known_s: float) -> tuple[float, float]:
    """(least S, largest B) of cuts no slower than ``known_s``.

    Of a stage's time without recompute a share comes on top: all of its layers' or, if it has more
    than ``fewest``, no less than the least that these can take to the most that goes with them.
    """
    layers_s = np.diff(row.prefix_s)
    again = row.prefix_recompute_s
    some = layers_s > 0
    shares = np.diff(again)[some] / layers_s[some]
    least_share = float(shares.min()) if shares.size else 0.0
    fewest = int(row.fewest)
    lo = np.arange(max(row.num_layers - fewest, 0) + 1)
    of_fewest = again[np.minimum(lo + fewest, row.num_layers)] - again[lo]
    base = float(row.prefix_s[-1] + row.base_s.sum())
    total, limit = base, float("inf")
    for _ in range(ROUNDS):
        limit = slowest_allowed(problem, known_s * (1 + TOLERANCE), total)
        room = row.prefix_s[lo] + limit * (1 + TOLERANCE) - of_fewest
        end = np.searchsorted(row.prefix_s, room, side="right") - 1
        longest = row.prefix_s[end] - row.prefix_s[lo]
        held = longest > 0
        share = float((of_fewest[held] / longest[held]).min(initial=least_share))
        total = base + share * float(row.prefix_s[-1])
    return total * (1 - TOLERANCE), limit


def edges_up_to(problem: PartitionProblem, row: Row, known_s: float) -> list[Edges] | None:
    """Every cut of a stage that a partition no slower than ``known_s`` can have, and a few more.

    None where there is no such partition.
    """
    _, limit = sum_and_limit(row, problem, known_s)
    base = float(row.prefix_s[-1] + row.base_s.sum()) * (1 - TOLERANCE)
    edges = band_edges(row, limit)
    if edges is None:
        return None
    slowest = minimax(edges)
    if slowest == float("inf"):
        return None
    for _ in range(ROUNDS):
        total = base + least_extra(edges, limit)
        if least_time(problem, slowest, total) > known_s * (1 + TOLERANCE):
            return None
        limit = slowest_allowed(problem, known_s * (1 + TOLERANCE), total)
    within = limit * (1 + TOLERANCE)
    return [e._replace(seconds=np.where(e.seconds <= within, e.seconds, np.inf)) for e in edges]


def greedy_cuts(row: Row, limit: FloatArray) -> IntArray:
    """Cuts [Q, p + 1] whose stages take all they can within each limit on B, shape [Q].

    Where the last one ends before the last layer, no cut keeps to the limit. Those that are found
    may leave a stage with less than it must take.
    """
    at = np.zeros(len(limit), np.int64)
    cuts, later = [at], int(row.least.sum())
    for s in range(len(row.base_s)):
        later -= int(row.least[s])
        last = furthest(row, s, at, limit)
        at = np.maximum(at, np.minimum(last, row.num_layers - later))
        cuts.append(at)
    return np.stack(cuts, axis=1)


def with_recomputed(row: Row, numbers: IntArray) -> Row:
    """The row where every stage recomputes these numbers of layers, one of each start."""
    return replace(row, fewest=numbers, most=numbers)
