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
from parallelsim.search.partition_bounds import edges_up_to
from parallelsim.search.partition_dp import (
    Row,
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
    prefix_sum,
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
        row, edges = whole_row(costs), None
        if known_s < float("inf"):
            edges = edges_up_to(problem, row, known_s)
            if edges is None:
                return
            if problem.schedule == "1f1b":
                layers, proven = one_f_one_b_widths(row, problem.num_micro_batches, known_s, edges)
                if layers is not None:
                    yield layers, proven
                return
        found = widths(row, edges)
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
            found_chunks = _identical(costs, placed, known_s)
            if found_chunks is not None:
                yield found_chunks
        return
    start = even_counts(len(problem.layers), problem.num_chunks)
    yield _improved(costs, start), False


def is_one_row(problem: PartitionProblem) -> bool:
    """Whether free cuts are those of one row: one chunk a stage, or identical layers."""
    return problem.layout == "free" and (problem.vpp == 1 or _odd_layers(problem.layers) == 0)


def whole_row(costs: StageCosts) -> Row:
    """All layers, for one chunk a stage or, of identical ones, for all chunks of a stage."""
    problem = costs.problem
    return _row(costs, [()] * problem.pp, 0, [problem.min_layers * problem.vpp] * problem.pp)


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


def _identical(costs: StageCosts, placed: tuple[int, ...], known_s: float) -> Candidate | None:
    """The best chunks where the odd layers lie as ``placed`` and the rest are identical.

    Perhaps none where no cut is faster than ``known_s``.
    """
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
    row = replace(row, unevenness=squares)
    edges = edges_up_to(problem, row, known_s) if known_s < float("inf") else None
    found = widths(row, edges) if edges or known_s == float("inf") else None
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

    base, again = problem.layers.forward_s + problem.layers.backward_s, problem.layers.recompute_s
    again = np.minimum(again, (base + again).min())
    depth = problem.recompute * problem.vpp if isinstance(problem.recompute, int) else None
    most_held = max(sum(b - a for a, b in runs) for runs in fixed)
    lowest = costs.saved_bytes - costs.gain_bytes
    limit = problem.capacity_bytes * (1 + 2 * TOLERANCE) - problem.constant_bytes
    state_room = limit - costs.edge_state - held(costs.state_bytes)
    kept = problem.in_flight * (costs.edge_saved + held(lowest))
    state_and_step = costs.state_bytes + costs.step_bytes
    layers_transient = np.where(np.array(least) > 0, problem.transient_bytes, 0.0)
    transient = np.maximum(costs.edge_transient, layers_transient)
    again_transient = np.maximum(transient, problem.recompute_transient_bytes) - transient
    return Row(
        prefix_s=costs.base_s[odd:] - costs.base_s[odd],
        base_s=costs.edge_s + held(costs.base_s),
        prefix_forward_s=costs.forward_s[odd:] - costs.forward_s[odd],
        base_forward_s=costs.edge_forward_s + held(costs.forward_s),
        prefix_recompute_s=prefix_sum(again[odd:]),
        state_bytes=costs.state_bytes[odd:] - costs.state_bytes[odd],
        saved_bytes=costs.saved_bytes[odd:] - costs.saved_bytes[odd],
        gain_bytes=costs.gain_bytes[odd:] - costs.gain_bytes[odd],
        step_bytes=state_and_step[odd:] - state_and_step[odd],
        in_flight=problem.in_flight,
        room_bytes=state_room - kept - transient,
        again_bytes=np.where(np.array(least) > 0, again_transient, 0.0),
        step_room_bytes=state_room - costs.edge_step - held(costs.step_bytes),
        fewest=np.array(0 if depth is None else max(depth - most_held, 0)),
        most=np.array(number if depth is None else depth),
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
    stage, shifts, which = _distinct_stages(problem, shift)
    best = _best_trial(problem, bounds_figures(costs, bounds[None]))[0]
    for _ in range(MAX_MOVES):
        possible = np.flatnonzero(counts[pairs[:, 0]] > problem.min_layers)
        runs: Runs = []
        for k in range(problem.vpp):
            at = stage + k * problem.pp
            lo, hi = bounds[at] + shifts[:, k, 0], bounds[at + 1] + shifts[:, k, 1]
            runs.append((np.maximum(lo, 0), np.minimum(hi, bounds[-1])))  # impossible trials
        if not len(possible):
            break
        distinct, each = costs.figures(stage, runs), which[possible]
        figures = distinct._replace(
            seconds=distinct.seconds[each],
            forward_s=distinct.forward_s[each],
            over_bytes=distinct.over_bytes[each],
        )
        value, chosen = _best_trial(problem, figures)
        if value >= best:
            break
        best = value
        bounds = bounds + shift[possible[chosen]]
        counts = np.diff(bounds)
    return counts


def _distinct_stages(
    problem: PartitionProblem, shift: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """(stage [D], shifts of its chunks' first and last bounds [D, vpp, 2], number [trials, pp]) of
    the stages that differ among trials which shift the bounds of chunks, [trials, chunks + 1].
    """
    ends = np.stack([shift[:, :-1], shift[:, 1:]], axis=-1)
    ends = ends.reshape(len(shift), problem.vpp, problem.pp, 2)
    key = np.tile(np.arange(problem.pp), len(shift))
    for k in range(problem.vpp):
        code = 3 * ends[:, k, :, 0] + ends[:, k, :, 1] + 4
        _, first, key = np.unique(9 * key + code.ravel(), return_index=True, return_inverse=True)
    trial, stage = np.divmod(first, problem.pp)
    return stage, ends[trial, :, stage], key.reshape(len(shift), problem.pp)


def _best_trial(
    problem: PartitionProblem, figures: StageFigures
) -> tuple[tuple[float, float, float], int]:
    """((bytes too many, seconds, sum of squares), number) of the best trial, of [trials, pp]."""
    keys = (
        figures.over_bytes.sum(-1),
        schedule_seconds(problem, figures),
        (figures.seconds**2).sum(-1),
    )
    best = int(np.lexsort(keys[::-1])[0])
    return (float(keys[0][best]), float(keys[1][best]), float(keys[2][best])), best


def _pairs(num_chunks: int) -> list[tuple[int, int]]:
    reach = num_chunks if num_chunks <= ALL_PAIRS else 2
    return [
        (a, b)
        for a in range(num_chunks)
        for b in range(max(a - reach, 0), min(a + reach + 1, num_chunks))
        if a != b
    ]
