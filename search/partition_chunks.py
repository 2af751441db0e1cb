"""Free partitions: one chunk a stage, and several (stage s holds chunks s, s + p, s + 2 p, ...).

With several, all chunks of a stage share its time and memory. Identical layers make that a row
again: only how many each stage takes matters. A few other layers before them (dense layers before
MoE layers) are enumerated: each way to lay them into the first chunks leaves a row of identical
ones. That is exact. Other models are improved from the even cut layer by layer, which is not.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import fields, replace

import numpy as np
from parallelsim.search.partition_1f1b import one_f_one_b_widths
from parallelsim.search.partition_dp import (
    Edges,
    Row,
    band_edges,
    least_extra,
    minimax,
    widths,
)
from parallelsim.search.partition_problem import (
    FloatArray,
    IntArray,
    LayerItems,
    PartitionProblem,
)
from parallelsim.search.partition_stages import (
    TOLERANCE,
    Runs,
    StageCosts,
    StageFigures,
    bounds_figures,
    schedule_seconds,
)

MAX_ODD_LAYERS = 6
"""Leading layers that differ from the rest, up to which several chunks a stage are exact."""
MAX_MOVES = 1_000
ALL_PAIRS = 64
"""Up to this many chunks a layer is moved between any two, beyond it between near ones."""
Candidate = tuple[IntArray, bool]
"""(layers of each chunk, proven the best of its kind)."""


def free_candidates(costs: StageCosts, known_s: float) -> Iterator[Candidate]:
    """Chunks of the best free partition, or of a few that hold it; none where nothing fits.

    Perhaps none where no cut is faster than ``known_s``.
    """
    problem = costs.problem
    if problem.vpp == 1:
        row = _whole_row(costs)
        if known_s < float("inf"):
            edges = band_edges(row, known_s / problem.num_micro_batches)
            if edges is None or _bound_of(costs, edges) >= known_s:
                return
            if problem.schedule == "1f1b":
                layers, proven = one_f_one_b_widths(row, problem.num_micro_batches, known_s, edges)
                if layers is not None:
                    yield layers, proven
                return
        found = widths(row)
        if found is not None and problem.schedule == "1f1b":
            bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(found[0])])
            time = float(schedule_seconds(problem, bounds_figures(costs, bounds)))
            faster, proven = one_f_one_b_widths(row, problem.num_micro_batches, time)
            yield found[0], proven
            found = None if faster is None else (faster, proven)
        if found is not None:
            yield found
        return
    odd = _odd_layers(problem.layers)
    if odd <= MAX_ODD_LAYERS:
        for placed in _placements(odd, problem.num_chunks):
            found_chunks = _identical(costs, placed)
            if found_chunks is not None:
                yield found_chunks
        return
    start = even_counts(len(problem.layers), problem.num_chunks)
    yield _improved(costs, start), False


def least_seconds(costs: StageCosts, known_s: float) -> float:
    """A lower bound on the schedule's time of cuts, one chunk a stage, below ``known_s``.

    Infinite where none of them can be.
    """
    problem, row = costs.problem, _whole_row(costs)
    edges = band_edges(row, known_s / problem.num_micro_batches)
    return float("inf") if edges is None else _bound_of(costs, edges)


def _bound_of(costs: StageCosts, edges: list[Edges]) -> float:
    """A bound on T from the least slowest stage B, and S, the least sum of all stages.

    1F1B: T >= max(m B, S), and with m > p  T >= 2 S + (m - 1 - p) B, for the stage of tau = B ends
    no sooner than  P + m B + 2 R - w B,  with P + R = sum(tau) - B, and w B - R is at most the gap
    p B - sum(tau).
    """
    problem, slowest = costs.problem, minimax(edges)
    if slowest == float("inf"):
        return slowest
    total = float(costs.base_s[-1] + costs.edge_s.sum()) + least_extra(edges, float("inf"))
    if problem.schedule != "1f1b":
        return problem.slowest_weight * slowest + total / problem.vpp
    weight = problem.num_micro_batches - 1 - problem.pp
    filled = 2 * total + weight * slowest if weight >= 0 else total
    return max(problem.num_micro_batches * slowest, filled)


def _whole_row(costs: StageCosts) -> Row:
    """All layers, for one chunk a stage."""
    problem = costs.problem
    return _row(costs, [()] * problem.pp, 0, [problem.min_layers] * problem.pp)


def even_counts(num_layers: int, parts: int) -> IntArray:
    """Layers of equal parts; what is left over goes to the first ones, one each."""
    each, left = divmod(num_layers, parts)
    return each + (np.arange(parts) < left).astype(np.int64)


def _odd_layers(layers: LayerItems) -> int:
    """Leading layers before all are identical."""
    columns = np.array([getattr(layers, f.name) for f in fields(LayerItems)])
    other = np.flatnonzero((columns != columns[:, -1:]).any(0))
    return int(other[-1]) + 1 if other.size else 0


def _placements(odd: int, num_chunks: int) -> Iterator[tuple[int, ...]]:
    """Ways to lay the odd layers into the first chunks; none of these is empty, and the last may
    take identical layers too.
    """
    if odd == 0:
        yield ()
    for parts in range(1, min(odd, num_chunks) + 1):
        for cuts in itertools.combinations(range(1, odd), parts - 1):
            bounds = (0, *cuts, odd)
            yield tuple(b - a for a, b in itertools.pairwise(bounds))


def _identical(costs: StageCosts, placed: tuple[int, ...]) -> Candidate | None:
    """The best chunks where the odd layers lie as ``placed`` and the rest are identical."""
    problem = costs.problem
    pp, odd = problem.pp, sum(placed)
    fixed: list[tuple[tuple[int, int], ...]] = [()] * pp
    at = 0
    for chunk, count in enumerate(placed):
        fixed[chunk % pp] = (*fixed[chunk % pp], (at, at + count))
        at += count
    closed = max(len(placed) - 1, 0)  # chunks before the last odd one take nothing more
    held = [*placed, *([0] * (problem.num_chunks - len(placed)))]
    is_open = [[c for c in range(s, problem.num_chunks, pp) if c >= closed] for s in range(pp)]
    least = [sum(held[c] == 0 for c in chunks) * problem.min_layers for chunks in is_open]
    if sum(least) > len(problem.layers) - odd:
        return None
    row = _row(costs, fixed, odd, least)
    squares = [_spread_squares(held, c, row.num_layers) for c in is_open]
    found = widths(replace(row, unevenness=squares))
    if found is None:
        return None
    counts = np.array(held)
    for s, number in enumerate(found[0]):
        lightest_first = s == 0
        for _ in range(int(number)):
            chunks = is_open[s] if not lightest_first else is_open[s][::-1]
            counts[min(chunks, key=lambda c: counts[c])] += 1
    return counts, found[1]


def _spread_squares(held: list[int], chunks: list[int], most: int) -> FloatArray:
    """Sum of squared chunk sizes, by the number of layers spread most evenly over the chunks.

    Infinite where there is no chunk to take a layer.
    """
    squares = np.full(most + 1, np.inf)
    squares[0] = sum(held[c] ** 2 for c in chunks)
    heap = [held[c] for c in chunks]
    heapq.heapify(heap)
    for number in range(1, most + 1 if heap else 0):
        smallest = heapq.heappop(heap)
        squares[number] = squares[number - 1] + 2 * smallest + 1
        heapq.heappush(heap, smallest + 1)
    return squares


def _row(
    costs: StageCosts, fixed: list[tuple[tuple[int, int], ...]], odd: int, least: list[int]
) -> Row:
    """Layers from ``odd`` on as a row, beside the runs that each stage holds already."""
    problem = costs.problem
    pp, number = problem.pp, len(problem.layers) - odd

    most = max(map(len, fixed))
    held_runs = np.array([[*runs, *[(0, 0)] * (most - len(runs))] for runs in fixed], np.int64)
    held_runs = held_runs.reshape(pp, most, 2)

    def seconds(s: IntArray, lo: IntArray, hi: IntArray) -> tuple[FloatArray, FloatArray]:
        runs: Runs = [(held_runs[s, k, 0], held_runs[s, k, 1]) for k in range(most)]
        figures = costs.figures(s, [*runs, (lo + odd, hi + odd)])
        return np.where(figures.over_bytes > 0, np.inf, figures.seconds), figures.extra_s

    def held(prefix: FloatArray) -> FloatArray:
        return np.array([sum(prefix[b] - prefix[a] for a, b in runs) for runs in fixed]) * 1.0

    lowest = costs.saved_bytes - costs.gain_bytes
    taken = problem.constant_bytes + costs.edge_state + held(costs.state_bytes)
    taken = taken + problem.in_flight * (costs.edge_saved + held(lowest))
    return Row(
        prefix_s=costs.base_s[odd:] - costs.base_s[odd],
        base_s=costs.edge_s + held(costs.base_s),
        prefix_forward_s=costs.forward_s[odd:] - costs.forward_s[odd],
        base_forward_s=costs.edge_forward_s + held(costs.forward_s),
        state_bytes=costs.state_bytes[odd:] - costs.state_bytes[odd],
        lowest_bytes=lowest[odd:] - lowest[odd],
        in_flight=problem.in_flight,
        room_bytes=problem.capacity_bytes * (1 + 2 * TOLERANCE) - taken,
        least=np.array(least),
        unevenness=[np.arange(number + 1, dtype=np.float64) ** 2] * pp,
        seconds=seconds,
        slowest_weight=problem.slowest_weight,
        sum_weight=1 / problem.vpp,
    )


def _improved(costs: StageCosts, counts: IntArray) -> IntArray:
    """The chunks after moving single layers between chunks as long as that helps.

    Fewer bytes too many come first, then less time, then a smaller sum of squared stage times.
    """
    problem, pairs = costs.problem, np.array(_pairs(len(counts)))
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    # A layer moved from chunk a to b shifts the bounds between them, and so the chunks a to b.
    low, high, step = pairs.min(1), pairs.max(1), np.where(pairs[:, 0] < pairs[:, 1], -1, 1)
    bound = np.arange(len(counts) + 1)
    shift = ((bound > low[:, None]) & (bound <= high[:, None])) * step[:, None]
    touched = np.zeros((len(pairs), problem.pp), bool)
    trial, chunk = np.nonzero((bound[:-1] >= low[:, None]) & (bound[:-1] <= high[:, None]))
    touched[trial, chunk % problem.pp] = True
    now = bounds_figures(costs, bounds)
    best = _value(problem, now, None)[0]
    for _ in range(MAX_MOVES):
        possible = np.flatnonzero(counts[pairs[:, 0]] > problem.min_layers)
        index, stage = np.nonzero(touched[possible])
        runs: Runs = []
        for first in range(0, problem.num_chunks, problem.pp):
            at, row = first + stage, possible[index]
            runs.append((bounds[at] + shift[row, at], bounds[at + 1] + shift[row, at + 1]))
        values, keys = _value(problem, now, (index, stage, costs.figures(stage, runs)))
        if not len(keys) or values >= best:
            break
        best, chosen = values, possible[keys[0]]
        bounds = bounds + shift[chosen]
        counts, now = np.diff(bounds), bounds_figures(costs, bounds)
    return counts


Moved = tuple[IntArray, IntArray, StageFigures]
"""(trial, stage, figures) of every stage that a trial changes."""


def _value(
    problem: PartitionProblem, now: StageFigures, moved: Moved | None
) -> tuple[tuple[float, float, float], IntArray]:
    """(bytes too many, seconds, sum of squares) of the best trial, and the trials in that order."""
    trials = 1 if moved is None else int(moved[0].max(initial=-1)) + 1
    columns = []
    for name in ("over_bytes", "seconds", "forward_s"):
        column = np.tile(getattr(now, name), (trials, 1))
        if moved is not None:
            column[moved[0], moved[1]] = getattr(moved[2], name)
        columns.append(column)
    over, seconds, forward = columns
    if not trials:
        return (np.inf, np.inf, np.inf), np.arange(0)
    figures = now._replace(seconds=seconds, forward_s=forward)
    keys = over.sum(-1), schedule_seconds(problem, figures), (seconds**2).sum(-1)
    order = np.lexsort(keys[::-1])
    return tuple(float(key[order[0]]) for key in keys), order  # type: ignore[return-value]


def _pairs(num_chunks: int) -> list[tuple[int, int]]:
    reach = num_chunks if num_chunks <= ALL_PAIRS else 2
    return [
        (a, b)
        for a in range(num_chunks)
        for b in range(max(a - reach, 0), min(a + reach + 1, num_chunks))
        if a != b
    ]
