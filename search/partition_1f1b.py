"""The partition for 1F1B, whose bubble depends on where the slow stages stand.

T = max over stages s of  P_s + X_s, with P_s the seconds of all earlier stages and X_s(R_{s+1}) the
time from a stage's first forward to the end, which grows with R_{s+1}, the seconds of later ones
(:func:`~parallelsim.search.partition_stages.busy_and_idle`). From the last stage backwards

V_s = max( X_s(R_{s+1}), tau_s + V_{s+1} ),   R_s = tau_s + R_{s+1},   T = V_0,

so of the ways to cut the layers from i on, only those matter that are best in (R, V): a label for
each. Without recompute R follows from i and there is one label; with it there are few. A label
whose V, after the least that earlier stages can take, exceeds the T of a known cut is dropped.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from parallelsim.search.partition_dp import Edges, Row, band_edges, most_even
from parallelsim.search.partition_problem import FloatArray, IntArray
from parallelsim.search.partition_stages import TOLERANCE, busy_and_idle

BEAMS = (2, 8, 256)
"""Labels kept of one (stage, layer), in turn: few first, whose T prunes the rest. Where there are
more, some are dropped and the result is not proven."""
MAX_CELLS = 2_000_000
"""Cuts times labels of one stage: a limit on memory, to the same effect."""


class Labels(NamedTuple):
    """Of every first layer of a stage, arrays [layers, labels]."""

    after_s: FloatArray
    """R: seconds of this stage and all later ones."""
    until_end_s: FloatArray
    """V; infinite where there is no label."""
    unevenness: FloatArray
    column: IntArray
    """Column of the stage's edges that was taken."""
    label: IntArray
    """Label of the next stage that was continued."""


def one_f_one_b_widths(
    row: Row, m: int, known_s: float, edges: list[Edges] | None = None
) -> tuple[IntArray | None, bool]:
    """(layers of each stage, proven) with the least T; ``known_s`` is a T to reach.

    ``edges``: those of the band up to ``known_s / m``, where they are at hand.

    No layers where no cut is that fast, or where the search was cut short and found none.

    Exact. Of cuts with equal T that recompute nothing it takes the most even one; of others the
    evenness decides only between equal (R, V).
    """
    edges = edges or band_edges(row, known_s * (1 + TOLERANCE) / m)
    if edges is None:
        raise AssertionError("the known cut lies within the band")
    time, proven = known_s, False
    layers: IntArray | None = None
    for most in BEAMS:
        pruned = _pruned(row, edges, m, time)
        if pruned is None:
            return None, True
        edges, floors, bounds = pruned
        layers, time, proven = _best_labels(row, edges, floors, m, time, most)
        if proven:
            break
    plain = [
        e._replace(seconds=np.where(e.extra_s > 0, np.inf, b), extra_s=np.zeros_like(b))
        for e, b in zip(edges, bounds, strict=True)
    ]
    even = most_even(row, plain, time)
    return (layers if even is None else even), proven


def _pruned(
    row: Row, edges: list[Edges], m: int, time: float
) -> tuple[list[Edges], list[FloatArray], list[FloatArray]] | None:
    """(edges, their :func:`_lower_bounds`) without the cuts that those show to be slower than
    ``time``; None where a stage has no cut left.

    Fewer cuts have higher bounds: again, as long as that leaves less than half of them.
    """
    left = sum(np.count_nonzero(np.isfinite(e.seconds)) for e in edges)
    while True:
        floors, bounds = _lower_bounds(row, edges, m)
        kept = [
            e._replace(seconds=np.where(b <= time * (1 + TOLERANCE), e.seconds, np.inf))
            for e, b in zip(edges, bounds, strict=True)
        ]
        counts = [np.count_nonzero(np.isfinite(e.seconds)) for e in kept]
        if not all(counts):
            return None
        edges, bounds = _trimmed(kept, bounds)
        if sum(counts) > left / 2:
            return edges, floors, bounds
        left = sum(counts)


def _trimmed(edges: list[Edges], bounds: list[FloatArray]) -> tuple[list[Edges], list[FloatArray]]:
    """Both without the rows at either end and the columns of a stage that have no cut left."""
    first, last = 0, 1  # rows that are left of the stage before
    trimmed, their_bounds = [], []
    for stage, bound in zip(edges, bounds, strict=True):
        is_cut = np.isfinite(stage.seconds)
        rows, columns = np.flatnonzero(is_cut.any(1)), np.flatnonzero(is_cut.any(0))
        part = slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
        before = stage.before[part]
        follows = (before >= first) & (before < last)
        trimmed.append(
            Edges(
                end=stage.end[part[0]],
                seconds=np.where(follows, stage.seconds[part], np.inf),
                extra_s=stage.extra_s[part],
                before=np.where(follows, before - first, 0),
                width=stage.width[part[1]],
            )
        )
        their_bounds.append(np.where(follows, bound[part], np.inf))
        first, last = int(rows[0]), int(rows[-1]) + 1
    return trimmed, their_bounds


def _lower_bounds(
    row: Row, edges: list[Edges], m: int
) -> tuple[list[FloatArray], list[FloatArray]]:
    """(P_s by first layer, P_s + X_s by cut) of every stage, if all others recompute the least.

    The least of all earlier stages together, and of all later ones: T is no less, and is the
    largest of these where no stage recomputes.
    """
    before = np.concatenate([np.zeros(1), np.cumsum(row.base_s)])
    total = row.prefix_s[-1] + before[-1]
    extra_before, extra_after = _least_extras(edges)
    floors, result = [], []
    for s, stage in enumerate(edges):
        starts = edges[s - 1].end if s else np.zeros(1, np.int64)
        floor = np.full(row.num_layers + 1, np.inf)
        floor[starts] = row.prefix_s[starts] + before[s] + extra_before[s]
        floors.append(floor)
        bound = np.full(stage.seconds.shape, np.inf)
        is_cut = np.isfinite(stage.seconds)
        is_cut &= np.isfinite(extra_before[s][stage.before])
        is_cut &= np.isfinite(extra_after[s])[:, None]
        lo = (stage.end[:, None] - stage.width[None, :])[is_cut]
        hi = np.broadcast_to(stage.end[:, None], is_cut.shape)[is_cut]
        tau = stage.seconds[is_cut]
        forward = row.prefix_forward_s[hi] - row.prefix_forward_s[lo] + row.base_forward_s[s]
        after = np.maximum(total - row.prefix_s[hi] - before[s + 1], 0.0)
        after = after + extra_after[s][np.nonzero(is_cut)[0]]
        busy = busy_and_idle(tau, forward, after, len(edges) - 1.0 - s, m)
        bound[is_cut] = floor[lo] + busy
        result.append(bound)
    return floors, result


def _least_extras(edges: list[Edges]) -> tuple[list[FloatArray], list[FloatArray]]:
    """For every stage the least recompute of all stages before, by row of the previous stage, and
    of all behind, by its own row.
    """
    extra = [np.where(np.isfinite(e.seconds), e.extra_s, np.inf) for e in edges]
    before, after = [np.zeros(1)], [np.zeros(1)]
    for s, stage in enumerate(edges[:-1]):
        before.append((before[-1][stage.before] + extra[s]).min(1))
    for s in range(len(edges) - 1, 0, -1):
        least = np.full(len(edges[s - 1].end), np.inf)
        np.minimum.at(least, edges[s].before, after[-1][:, None] + extra[s])
        after.append(least)
    return before, after[::-1]


def _best_labels(
    row: Row, edges: list[Edges], floors: list[FloatArray], m: int, known_s: float, most: int
) -> tuple[IntArray | None, float, bool]:
    """(layers of each stage, T, proven): labels from the last stage to the first, at most ``most``
    of each; no layers and the known T where nothing is left.
    """
    proven, stages, limit = True, len(edges), known_s * (1 + TOLERANCE)
    one = np.zeros((1, 1))
    labels = Labels(one, one, one, np.zeros((1, 1), np.int64), np.zeros((1, 1), np.int64))
    kept: list[Labels] = []
    for s in reversed(range(stages)):
        starts = edges[s - 1].end if s else np.zeros(1, np.int64)
        labels = _extended(row, edges[s], labels, s, starts, stages, m)
        late = labels.until_end_s + floors[s][starts][:, None] > limit
        labels = labels._replace(until_end_s=np.where(late, np.inf, labels.until_end_s))
        if not np.isfinite(labels.until_end_s).any():
            return None, known_s, proven
        cuts = len(starts) * len(edges[s - 1].width) if s else 1
        kept_labels = min(most, max(MAX_CELLS // cuts, 2))
        unit = max(TOLERANCE * limit / m, np.finfo(np.float64).tiny)
        labels, complete = _undominated(labels, unit, kept_labels)
        proven &= complete
        kept.append(labels)
    layers = np.zeros(stages, np.int64)
    at, label = 0, int(labels.until_end_s[0].argmin())
    time = float(labels.until_end_s[0, label])
    for s, stage_labels in enumerate(reversed(kept)):
        column = stage_labels.column[at, label]
        label = int(stage_labels.label[at, label])
        layers[s] = edges[s].width[column]
        at += int(layers[s]) + int(edges[s - 1].end[0] if s else 0) - int(edges[s].end[0])
    return layers, time, proven


def _extended(
    row: Row, stage: Edges, after: Labels, s: int, starts: IntArray, stages: int, m: int
) -> Labels:
    """All labels of stage s: every cut with every label of the stage behind."""
    end = starts[:, None] + stage.width[None, :]
    at = end - stage.end[0]
    inside = (at >= 0) & (at < len(stage.end))
    column = np.broadcast_to(np.arange(len(stage.width)), end.shape)
    at = np.where(inside, at, 0)
    index = np.nonzero(inside & np.isfinite(stage.seconds[at, column]))
    at, column, lo, hi = at[index], column[index], starts[index[0]], end[index]
    tau = stage.seconds[at, column][:, None]
    forward = row.prefix_forward_s[hi] - row.prefix_forward_s[lo] + row.base_forward_s[s]
    later = after.after_s[at]
    busy = busy_and_idle(tau, forward[:, None], later, stages - 1.0 - s, m)
    shape = (*end.shape, later.shape[1])

    def dense(values: FloatArray, missing: float) -> FloatArray:
        full = np.full(shape, missing)
        full[index] = values
        return full.reshape(shape[0], -1)

    columns = np.broadcast_to(np.arange(shape[1])[None, :, None], shape)
    numbers = np.broadcast_to(np.arange(shape[2])[None, None, :], shape)
    squares = row.unevenness[s][stage.width][column][:, None]
    return Labels(
        dense(later + tau, 0.0),
        dense(np.maximum(busy, tau + after.until_end_s[at]), np.inf),
        dense(after.unevenness[at] + squares, 0.0),
        columns.reshape(shape[0], -1),
        numbers.reshape(shape[0], -1),
    )


def _undominated(labels: Labels, unit: float, most: int) -> tuple[Labels, bool]:
    """(labels that no other beats in both R and V, whether all of them were kept)."""
    rounded_r = np.rint(labels.after_s / unit)
    some = np.isfinite(labels.until_end_s)
    rounded_v = np.rint(np.where(some, labels.until_end_s, 0.0) / unit)
    rounded_v = np.where(some, rounded_v, np.inf)
    order = np.lexsort((labels.unevenness, rounded_v, rounded_r), axis=-1)
    value = np.take_along_axis(rounded_v, order, -1)
    least = np.minimum.accumulate(value, axis=-1)
    before = np.concatenate([np.full((len(value), 1), np.inf), least[:, :-1]], axis=-1)
    keep = value < before
    size = max(int(keep.sum(-1).max()), 1)
    pick = np.argsort(~keep, axis=-1, kind="stable")[:, :size]
    exists = np.take_along_axis(keep, pick, -1)
    order = np.take_along_axis(order, pick, -1)
    found = _at(labels, order)
    found = found._replace(until_end_s=np.where(exists, found.until_end_s, np.inf))
    if size <= most:
        return found, True
    count = np.maximum(exists.sum(-1), 1)[:, None]
    chosen = np.arange(most)[None, :] * np.maximum(count - 1, most - 1) // (most - 1)
    return _at(found, chosen), False


def _at(labels: Labels, index: IntArray) -> Labels:
    """The labels at these positions of every row."""
    return Labels(
        after_s=np.take_along_axis(labels.after_s, index, -1),
        until_end_s=np.take_along_axis(labels.until_end_s, index, -1),
        unevenness=np.take_along_axis(labels.unevenness, index, -1),
        column=np.take_along_axis(labels.column, index, -1),
        label=np.take_along_axis(labels.label, index, -1),
    )
