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
from parallelsim.search.partition_dp import Row, widths
from parallelsim.search.partition_problem import FloatArray, IntArray, LayerItems
from parallelsim.search.partition_stages import (
    TOLERANCE,
    Runs,
    StageCosts,
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


def free_candidates(costs: StageCosts) -> Iterator[Candidate]:
    """Chunks of the best free partition, or of a few that hold it; none where nothing fits."""
    problem = costs.problem
    if problem.vpp == 1:
        row = _row(costs, [()] * problem.pp, 0, [problem.min_layers] * problem.pp)
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

    def seconds(s: int, lo: IntArray, hi: IntArray) -> tuple[FloatArray, FloatArray]:
        runs: Runs = [(np.full_like(lo, a), np.full_like(lo, b)) for a, b in fixed[s]]
        figures = costs.figures(np.full_like(lo, s), [*runs, (lo + odd, hi + odd)])
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
    pairs = np.array(_pairs(len(counts)))
    best: tuple[float, float, float] | None = None
    for _ in range(MAX_MOVES):
        trial = np.broadcast_to(counts, (len(pairs) + 1, len(counts))).copy()
        index = np.arange(len(pairs))
        trial[index, pairs[:, 0]] -= 1
        trial[index, pairs[:, 1]] += 1
        trial = trial[(trial >= costs.problem.min_layers).all(1)]
        bounds = np.concatenate(
            [np.zeros((len(trial), 1), np.int64), np.cumsum(trial, axis=1)], axis=1
        )
        figures = bounds_figures(costs, bounds)
        over = figures.over_bytes.sum(-1)
        time = schedule_seconds(costs.problem, figures)
        squares = (figures.seconds**2).sum(-1)
        k = int(np.lexsort((squares, time, over))[0])
        value = (float(over[k]), float(time[k]), float(squares[k]))
        if best is not None and value >= best:
            break
        best, counts = value, trial[k]
    return counts


def _pairs(num_chunks: int) -> list[tuple[int, int]]:
    reach = num_chunks if num_chunks <= ALL_PAIRS else 2
    return [
        (a, b)
        for a in range(num_chunks)
        for b in range(max(a - reach, 0), min(a + reach + 1, num_chunks))
        if a != b
    ]
