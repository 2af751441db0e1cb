"""Activation memory of every rank: over time, its peak, and what it is made of.

A forward takes a chunk's activations a of one micro-batch when it starts; a whole backward gives
them back when it ends. Of a split backward, the input gradient leaves w (inputs of the matrices and
their output gradients), and the weight gradient gives w back. What a rank holds after so many
operations depends on its list alone, not on the times: the peak is taken over the few largest
holdings.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parallelsim.errors import PlanError
from parallelsim.timeline.engine import Replay
from parallelsim.timeline.operations import (
    BACKWARD,
    FORWARD,
    INPUT,
    WEIGHT,
    FloatArray,
    IntArray,
    Schedule,
)

MOST_COMPARED = 256
"""Holdings that are compared with each other; of more, all are kept."""


class Holdings(NamedTuple):
    """Candidates for a rank's peak, in list order."""

    operation: IntArray
    """[H]: position of the forward that completes it."""
    whole: IntArray
    """[H, chunks]: micro-batches whose activations are held."""
    weight_only: IntArray
    """[H, chunks]: micro-batches of which only the weight gradient is to come."""


class Peak(NamedTuple):
    """The fullest moment of each rank."""

    num_bytes: FloatArray
    """[p, P]."""
    operation: IntArray
    """[p, P]: position of the forward that reaches it first."""
    whole: IntArray
    """[p, chunks, P]: micro-batches held then."""
    weight_only: IntArray
    """[p, chunks, P]."""


def largest_holdings(schedule: Schedule) -> tuple[Holdings, ...]:
    """Of each rank, the holdings that no other one exceeds in every chunk."""
    found = []
    for rank in range(schedule.num_ranks):
        low, high = int(schedule.first[rank]), int(schedule.first[rank + 1])
        whole, weight_only = _held(schedule, low, high)
        at = np.flatnonzero(schedule.kind[low:high] == FORWARD)
        both = np.concatenate([whole[at], weight_only[at]], axis=1)
        rows, first = np.unique(both, axis=0, return_index=True)
        keep = np.sort(first[_undominated(rows)])
        found.append(Holdings(low + at[keep], whole[at[keep]], weight_only[at[keep]]))
    return tuple(found)


def _held(schedule: Schedule, low: int, high: int) -> tuple[IntArray, IntArray]:
    """After each operation of a rank, [n, chunks]: micro-batches held whole, and for W alone."""
    kind, chunk = schedule.kind[low:high], schedule.chunk[low:high]
    of_chunk = chunk[:, None] == np.arange(schedule.stage.shape[1])
    whole = np.select([kind == FORWARD, kind != WEIGHT], [1, -1], 0)
    weight_only = np.select([kind == INPUT, kind == WEIGHT], [1, -1], 0)
    return (
        np.cumsum(of_chunk * whole[:, None], axis=0),
        np.cumsum(of_chunk * weight_only[:, None], axis=0),
    )


def _undominated(rows: IntArray) -> NDArray[np.bool_]:
    """Rows that no other row reaches or exceeds in every column."""
    if len(rows) > MOST_COMPARED:
        return np.ones(len(rows), np.bool_)
    keep = np.ones(len(rows), np.bool_)
    for number, row in enumerate(rows):
        keep[number] = (rows >= row).all(axis=1).sum() == 1
    return keep


def peak_activations(
    schedule: Schedule, activation_bytes: ArrayLike, weight_only_bytes: ArrayLike = 0.0
) -> Peak:
    """The fullest moment of each rank, for P plans.

    ``activation_bytes``, ``weight_only_bytes``: of one micro-batch and stage, [P, S], [S] or a
    scalar.

    Raises:
        PlanError: shapes that don't fit the schedule.
    """
    whole_bytes, less_bytes = _bytes(schedule, activation_bytes, weight_only_bytes)
    num_plans, shape = len(whole_bytes), schedule.stage.shape
    peak = Peak(
        np.empty((shape[0], num_plans)),
        np.empty((shape[0], num_plans), np.int64),
        np.empty((*shape, num_plans), np.int64),
        np.empty((*shape, num_plans), np.int64),
    )
    plans = np.arange(num_plans)
    for rank, holdings in enumerate(largest_holdings(schedule)):
        total = np.zeros((len(holdings.operation), num_plans))
        for chunk, stage in enumerate(schedule.stage[rank]):
            total += holdings.whole[:, chunk, None] * whole_bytes[:, stage]
            total += holdings.weight_only[:, chunk, None] * less_bytes[:, stage]
        best = total.argmax(axis=0)
        peak.num_bytes[rank] = total[best, plans]
        peak.operation[rank] = holdings.operation[best]
        peak.whole[rank] = holdings.whole[best].T
        peak.weight_only[rank] = holdings.weight_only[best].T
    return peak


class MemoryCurve(NamedTuple):
    """Activation memory of one rank of one plan: bytes from each time on."""

    time_s: FloatArray
    num_bytes: FloatArray


def memory_over_time(
    replay: Replay,
    rank: int,
    activation_bytes: ArrayLike,
    weight_only_bytes: ArrayLike = 0.0,
    plan: int = 0,
) -> MemoryCurve:
    """The steps of a rank's activation memory, in order of time.

    Operations of a rank follow each other, so that the list order is the order of time; only
    operations that run together overlap, and there the forward takes before the backward gives
    back.
    """
    schedule = replay.graph.schedule
    whole_bytes, less_bytes = _bytes(schedule, activation_bytes, weight_only_bytes)
    row = plan if len(whole_bytes) > 1 else 0
    low, high = int(schedule.first[rank]), int(schedule.first[rank + 1])
    kind, stage = schedule.kind[low:high], schedule.stages[low:high]
    whole, less = whole_bytes[row][stage], less_bytes[row][stage]
    change = np.select(
        [kind == FORWARD, kind == BACKWARD, kind == INPUT], [whole, -whole, less - whole], -less
    )
    starts = kind == FORWARD
    time = np.where(starts, replay.start_s[low:high, plan], replay.finish_s[low:high, plan])
    held = np.cumsum(change)
    return MemoryCurve(np.concatenate([[0.0], time]), np.concatenate([[0.0], held]))


def _bytes(
    schedule: Schedule, activation_bytes: ArrayLike, weight_only_bytes: ArrayLike
) -> tuple[FloatArray, FloatArray]:
    whole = np.atleast_2d(np.asarray(activation_bytes, np.float64))
    less = np.atleast_2d(np.asarray(weight_only_bytes, np.float64))
    shape = (max(len(whole), len(less)), schedule.num_stages)
    try:
        return np.broadcast_to(whole, shape), np.broadcast_to(less, shape)
    except ValueError:
        raise PlanError(
            f"{schedule.name}: bytes of shape {whole.shape} and {less.shape}, expected {shape}"
        ) from None
