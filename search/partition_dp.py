"""The dynamic programme of a partition: how many layers each of p stages takes from a row of them.

Minimise T = a max tau + b sum tau over cuts 0 = c_0 <= ... <= c_p = N, where stage s holds layers
[c_s, c_{s+1}) and tau is infinite where they do not fit in memory. Three passes over the same
edges, each exact up to rounding:

1. minimax: the least possible slowest stage,   g_s(j) = min_i max(g_{s-1}(i), tau_s(i, j));
2. least extra under a bound B on tau,          f_s(j) = min_i f_{s-1}(i) + extra_s(i, j);
   sum tau changes only by the recompute "extra", so T(B) = a B + b (f(B) + constant), and the
   best B lies within b f / a above the minimax: a bisection of the taus between, pruned by f(B);
3. among the optimal cuts the most even one (least sum of squares), later stages the lighter ones.

Edges are kept only where a bound on tau and the memory allow a cut at all: a band of a few widths
around the even cut, widened until it provably holds the optimum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from parallelsim.search.partition_problem import FloatArray, IntArray
from parallelsim.search.partition_stages import TOLERANCE

SLACKS = (1 / 16, 1 / 4, 1.0, 4.0, float("inf"))
"""Bounds on tau that are tried in turn, relative to the mean stage and beyond it."""
MAX_CELLS = 16_000
"""Cuts whose costs are taken together: what stays in the cache counts more than fewer calls."""
STEPS = 4_000
"""Bounds evaluated by the second pass at most; beyond, the best so far is not proven."""


@dataclass(frozen=True, eq=False)
class Row:
    """A row of N layers for p stages, with what the bounds of the band need."""

    prefix_s: FloatArray
    """Seconds of the first j layers without recompute, shape [N + 1]."""
    base_s: FloatArray
    """Seconds that stage s has anyway, shape [p]."""
    prefix_forward_s: FloatArray
    """The forward pass's share of both."""
    base_forward_s: FloatArray
    prefix_recompute_s: FloatArray
    """Recompute of the first j layers, shape [N + 1]; of a layer at most the forward, backward and
    recompute of any other, so that no stage is shorter for starting earlier."""
    state_bytes: FloatArray
    """Prefix sums, shape [N + 1]."""
    saved_bytes: FloatArray
    """Prefix sums of what every micro-batch in flight keeps, shape [N + 1]."""
    gain_bytes: FloatArray
    """Prefix sums of what recompute saves of it, shape [N + 1]."""
    step_bytes: FloatArray
    """Prefix sums of what the optimizer step holds, state included, shape [N + 1]."""
    in_flight: FloatArray
    room_bytes: FloatArray
    """Left for the layers' state and activations, at most; shape [p]."""
    again_bytes: FloatArray
    """What recompute takes of this room by its larger transient, shape [p]."""
    step_room_bytes: FloatArray
    """Left for the optimizer step, shape [p]."""
    fewest: IntArray
    """Layers that a stage recomputes at least, if it has as many; for one start or each."""
    most: IntArray
    """At most."""
    least: IntArray
    """Layers that stage s must take, shape [p]."""
    unevenness: list[FloatArray]
    """For every stage: by the number of layers it takes, shape [N + 1]; infinite forbids it."""
    seconds: Callable[[IntArray, IntArray, IntArray], tuple[FloatArray, FloatArray]]
    """(tau, extra) of stages s with layers [lo, hi); tau infinite where it does not fit."""
    slowest_weight: float
    sum_weight: float

    @property
    def num_layers(self) -> int:
        """N."""
        return len(self.prefix_s) - 1


class Edges(NamedTuple):
    """Cuts of one stage: row j ends at layer ``end[j]``, column k takes ``width[k]`` layers."""

    end: IntArray

    seconds: FloatArray
    """Infinite where the cut is none."""
    extra_s: FloatArray
    before: IntArray
    """Row of the previous stage's edges."""
    width: IntArray


def widths(row: Row, edges: list[Edges] | None = None) -> tuple[IntArray, bool] | None:
    """(layers of each stage, proven) of the best cut; None where none fits in memory.

    ``edges``: some that hold the best cuts, where they are known.
    """
    total = float(row.prefix_s[-1] + row.base_s.sum())
    if edges is None:
        found = _first_band(row, total)
        if found is None:
            return None
        edges, limit, slowest = found
    else:
        limit, slowest = float("inf"), minimax(edges)
        if slowest == float("inf"):
            return None
    reach, extra = slowest, least_extra(edges, slowest)
    if extra > TOLERANCE * total:
        weight = row.slowest_weight
        reach = slowest + row.sum_weight * extra / weight if weight > 0 else float("inf")
        if reach > limit:
            edges = band_edges(row, reach) or edges
    bound, proven = _best_bound(row, edges, slowest, extra, reach, total)
    layers = most_even(row, edges, bound)
    return None if layers is None else (layers, proven)


def _first_band(row: Row, total: float) -> tuple[list[Edges], float, float] | None:
    """(edges, their bound on tau, the least slowest stage) of the narrowest band that is sure to
    hold the latter; None where no cut fits in memory.
    """
    mean = max(total / len(row.base_s), float(row.base_s.max()))
    edges, limit, slowest = None, 0.0, float("inf")
    for slack in SLACKS:
        limit = mean + slack * mean if mean > 0 else float("inf")
        edges = band_edges(row, limit)
        slowest = float("inf") if edges is None else minimax(edges)
        if slowest < float("inf") or (slack == SLACKS[0] and not fits(row)):
            break
    if edges is None or slowest == float("inf"):
        return None
    if slowest > limit:  # recompute took it beyond: a cut outside the band may be faster
        limit = slowest
        edges = band_edges(row, limit) or edges
        slowest = minimax(edges)
    return edges, limit, slowest


def band_edges(row: Row, limit: float) -> list[Edges] | None:
    """Every cut whose stages take at most ``limit`` seconds without recompute; None if none can."""
    stages, limit = len(row.base_s), limit * (1 + TOLERANCE)
    low, high = _band(row, limit)
    if (low > high).any():
        return None
    found = []
    for s in range(stages):
        starts = np.arange(low[s], high[s] + 1)
        ends = np.arange(low[s + 1], high[s + 1] + 1)
        last = furthest(row, s, starts, limit)
        most = min(int((last - starts).max()), int(ends[-1] - starts[0]))
        if most < row.least[s]:
            return None
        width = np.arange(row.least[s], most + 1)
        lo = ends[:, None] - width[None, :]
        exists = (lo >= low[s]) & (lo <= high[s]) & np.isfinite(row.unevenness[s][width])
        before = np.where(exists, lo - low[s], 0)
        exists &= ends[:, None] <= last[before]
        seconds = np.where(exists, 0.0, np.inf)
        found.append(Edges(ends, seconds, np.zeros(lo.shape), before, width))
    _cost(row, found)
    assert found[-1].seconds.shape[0] == 1, row.num_layers
    return found


def _cost(row: Row, edges: list[Edges]) -> None:
    """Put the seconds into the cuts that exist, of many stages at a time."""
    at = 0
    while at < len(edges):
        end, cells = at, 0
        while end < len(edges) and (end == at or cells + edges[end].seconds.size <= MAX_CELLS):
            cells += edges[end].seconds.size
            end += 1
        exists = [np.isfinite(stage.seconds) for stage in edges[at:end]]
        counts = [np.count_nonzero(is_cut) for is_cut in exists]
        hi = [
            np.broadcast_to(stage.end[:, None], is_cut.shape)[is_cut]
            for stage, is_cut in zip(edges[at:end], exists, strict=True)
        ]
        width = [
            np.broadcast_to(stage.width, is_cut.shape)[is_cut]
            for stage, is_cut in zip(edges[at:end], exists, strict=True)
        ]
        hi_all = np.concatenate(hi)
        number = np.repeat(np.arange(at, end), counts)
        seconds, extra = row.seconds(number, hi_all - np.concatenate(width), hi_all)
        bounds = np.cumsum(counts)[:-1]
        parts = zip(np.split(seconds, bounds), np.split(extra, bounds), strict=True)
        for stage, is_cut, (tau, again) in zip(edges[at:end], exists, parts, strict=True):
            stage.seconds[is_cut], stage.extra_s[is_cut] = tau, again
        at = end


def fits(row: Row) -> bool:
    """Whether any cut fits in memory: each stage in turn takes as many layers as it can.

    Exact: what a stage needs grows with its end and shrinks with its start.
    """
    at, later = 0, int(row.least.sum())
    for s in range(len(row.base_s)):
        later -= int(row.least[s])
        last = min(int(furthest(row, s, np.array([at]), np.inf)[0]), row.num_layers - later)
        width = np.arange(row.least[s], last - at + 1)
        width = width[np.isfinite(row.unevenness[s][width])]
        tau, _ = row.seconds(np.full_like(width, s), np.full_like(width, at), at + width)
        width = width[np.isfinite(tau)]
        if not len(width):
            return False
        at += int(width[-1])
    return at == row.num_layers


def furthest(row: Row, s: int, lo: IntArray, limit: FloatArray | float) -> IntArray:
    """The last layer at which a stage that starts at ``lo`` could end; never falls with ``lo``.

    With base, again, saved, gain sums over the stage's layers (again and gain also over its first
    ``fewest`` and ``most`` ones) and F micro-batches in flight:

    base + min(again, again of fewest) <= limit
    state + F (saved - min(gain, gain of most)) <= room
    state + step <= step_room
    """
    again, gain, num = row.prefix_recompute_s, row.gain_bytes, row.num_layers
    seconds = row.prefix_s[lo] + (limit - row.base_s[s])
    of_fewest = again[np.minimum(lo + row.fewest, num)] - again[lo]
    by_time = np.maximum(
        np.searchsorted(row.prefix_s, seconds - of_fewest, side="right"),
        np.searchsorted(row.prefix_s + again, seconds + again[lo], side="right"),
    )
    in_flight = row.in_flight[s]
    room = row.room_bytes[s] - np.where(row.fewest > 0, row.again_bytes[s], 0.0)
    plain = row.state_bytes + in_flight * row.saved_bytes
    held = plain - in_flight * gain
    of_most = in_flight * (gain[np.minimum(lo + row.most, num)] - gain[lo])
    by_memory = np.minimum(
        np.searchsorted(plain, plain[lo] + of_most + room, side="right"),
        np.searchsorted(held, held[lo] + room, side="right"),
    )
    step = row.step_bytes
    by_step = np.searchsorted(step, step[lo] + row.step_room_bytes[s], side="right")
    last: IntArray = np.minimum(np.minimum(by_time, by_memory), by_step) - 1
    return last


def _band(row: Row, limit: float) -> tuple[IntArray, IntArray]:
    """First and last layer where each cut c_0 ... c_p can lie, shape [p + 1] each."""
    num, stages = row.num_layers, len(row.base_s)
    taken = np.concatenate([np.zeros(1, np.int64), np.cumsum(row.least)])
    low, high = taken.copy(), num - (taken[-1] - taken)
    high[0], low[-1] = 0, num
    for s in range(stages):
        high[s + 1] = min(high[s + 1], furthest(row, s, high[s : s + 1], limit)[0])
    for s in reversed(range(stages)):
        if low[s + 1] <= high[s + 1]:
            low[s] = max(low[s], _nearest(row, s, int(low[s + 1]), limit))
    return low, high


def _nearest(row: Row, s: int, hi: int, limit: float) -> int:
    """The first layer at which a stage that ends at ``hi`` could start; beyond it if none."""
    least = row.prefix_s[hi] - (limit - row.base_s[s])
    lo = np.arange(np.searchsorted(row.prefix_s, least, side="left"), hi + 1)
    return hi + 1 - int((furthest(row, s, lo, limit) >= hi).sum())


def minimax(edges: list[Edges]) -> float:
    """The least slowest stage of any cut, seconds."""
    best = np.zeros(1)
    for stage in edges:
        best = np.maximum(best[stage.before], stage.seconds).min(1)
    return float(best[0])


def least_extra(edges: list[Edges], bound: float) -> float:
    """The least recompute of all stages where none takes more than ``bound`` seconds."""
    best = np.zeros(1)
    for stage in edges:
        allowed = np.isfinite(stage.seconds) & (stage.seconds <= bound * (1 + TOLERANCE))
        best = np.where(allowed, best[stage.before] + stage.extra_s, np.inf).min(1)
    return float(best[0])


def _best_bound(
    row: Row, edges: list[Edges], slowest: float, extra: float, reach: float, total: float
) -> tuple[float, bool]:
    """(the bound on tau with the least T, proven): bisection over the taus up to ``reach``."""
    if reach <= slowest:
        return slowest, True
    taus = np.concatenate([e.seconds[(e.seconds > slowest) & (e.seconds <= reach)] for e in edges])
    bounds = np.concatenate([[slowest], np.unique(taus)])
    bounds = bounds[np.concatenate([bounds[1:] > bounds[:-1] * (1 + TOLERANCE), [True]])]
    bounds[0] = max(bounds[0], slowest)
    extras = {0: extra}

    def extra_of(k: int) -> float:
        if k not in extras:
            extras[k] = least_extra(edges, float(bounds[k]))
        return extras[k]

    def time_of(k: int, least: float) -> float:
        return row.slowest_weight * float(bounds[k]) + row.sum_weight * least

    last = len(bounds) - 1
    tolerance = TOLERANCE * (time_of(0, extra) + row.sum_weight * total)
    best = min(time_of(0, extra), time_of(last, extra_of(last)))
    open_intervals = [(0, last)]
    while open_intervals and len(extras) < STEPS:
        low, high = open_intervals.pop()
        equal = extra_of(low) - extra_of(high) <= TOLERANCE * total
        if high - low < 2 or equal or time_of(low + 1, extra_of(high)) > best + tolerance:
            continue
        middle = (low + high) // 2
        best = min(best, time_of(middle, extra_of(middle)))
        open_intervals += [(low, middle), (middle, high)]
    good = [k for k, least in extras.items() if time_of(k, least) <= best + tolerance]
    return float(bounds[min(good)]), not open_intervals


def most_even(row: Row, edges: list[Edges], bound: float) -> IntArray | None:
    """Layers of each stage: of the cuts with the least recompute under the bound, the most even.

    (extra, unevenness) is minimised as a pair: both are sums over stages. Of equals, the cut whose
    last stages take least: they wait for fewer micro-batches, so the slow ones come first. None
    where no cut keeps to the bound.
    """
    extra, uneven = np.zeros(1), np.zeros(1)
    scale = TOLERANCE * float(row.prefix_s[-1] + row.base_s.sum())
    chosen = []
    for s, stage in enumerate(edges):
        allowed = stage.seconds <= bound * (1 + TOLERANCE)
        sums = np.where(allowed, extra[stage.before] + stage.extra_s, np.inf)
        extra = sums.min(1)
        equal = sums <= extra[:, None] + scale
        squares = uneven[stage.before] + row.unevenness[s][stage.width][None, :]
        squares = np.where(equal & np.isfinite(sums), squares, np.inf)
        pick = squares.argmin(1)
        uneven = squares[np.arange(len(pick)), pick]
        chosen.append(pick)
    if extra[0] == float("inf"):
        return None
    result = np.zeros(len(edges), np.int64)
    at = 0
    for s in reversed(range(len(edges))):
        stage, pick = edges[s], chosen[s][at]
        result[s] = stage.width[pick]
        at = stage.before[at, pick]
    return result
