"""What a replay says: every rank's bubble, and the chain that fixes the step's time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from parallelsim.timeline.engine import Replay
from parallelsim.timeline.operations import FloatArray


class Bubbles(NamedTuple):
    """Of each rank, seconds, [p, P]."""

    busy_s: FloatArray
    """Computing."""
    idle_s: FloatArray
    """Of the whole step, not computing."""
    inner_idle_s: FloatArray
    """Between the rank's first and last operation: what counts where steps have no barrier."""


def bubbles(replay: Replay) -> Bubbles:
    """Busy and idle seconds of every rank; operations that run together count once."""
    schedule = replay.graph.schedule
    busy = np.empty((schedule.num_ranks, len(replay.costs)))
    inner = np.empty_like(busy)
    spent = replay.finish_s - replay.start_s
    if replay.graph.pairs:
        spent[schedule.paired] = 0.0
    for rank in range(schedule.num_ranks):
        low, high = schedule.first[rank], schedule.first[rank + 1]
        # A running sum: np.sum would depend on how many plans are replayed together.
        busy[rank] = np.cumsum(spent[low:high], axis=0)[-1]
        span = replay.finish_s[low:high].max(axis=0) - replay.start_s[low]
        inner[rank] = span - busy[rank]
    return Bubbles(busy, replay.step_s - busy, inner)


class Segment(NamedTuple):
    """A piece of the critical path; the pieces follow each other from 0 to the end of the step."""

    cause: str
    """``compute``, ``transfer``, ``gather`` or ``reduce``."""
    operation: int
    """List position of the operation that computes, sends, waits for parameters, or is reduced."""
    start_s: float
    end_s: float


def critical_path(replay: Replay, plan: int = 0) -> list[Segment]:
    """The chain of operations and communication without a gap that ends with the step.

    Where several chains are as long, the one that stays on a rank.
    """
    hooks, graph, schedule = replay.hooks, replay.graph, replay.graph.schedule
    start, finish, sent = (a[:, plan] for a in (replay.start_s, replay.finish_s, replay.sent_s))
    blocking = bool(replay.costs.blocking[plan])
    path: list[Segment] = []
    at = int(schedule.first[1:][finish[schedule.first[1:] - 1].argmax()] - 1)
    if finish[at] < replay.step_s[plan]:
        at = _reductions(replay, plan, path)
    firsts = {int(k): slot for slot, k in np.ndenumerate(graph.endings.first_forward)}
    partner = -1
    while True:
        begin = start[at]
        # A reduction may start before the backward that feeds it has ended.
        end = min(float(finish[at]), path[-1].start_s) if path else float(finish[at])
        path.append(Segment("compute", at, float(begin), end))
        if begin <= 0:
            break
        if graph.pairs and schedule.paired[at]:
            partner, at = at, at - 1
        elif graph.pairs and at + 1 < len(schedule) and schedule.paired[at + 1]:
            partner = at + 1
        before = at - 1 if at not in schedule.first else -1
        free = -1.0 if before < 0 else sent[before] if blocking else finish[before]
        if free == begin:
            if blocking and sent[before] > finish[before]:
                path.append(Segment("transfer", before, float(finish[before]), float(free)))
            at, partner = before, -1
            continue
        for waits in (at, partner):
            sender = int(graph.sender[waits]) if waits >= 0 else -1
            if sender >= 0 and sent[sender] == begin:
                break
        else:
            slot = firsts[at]
            path.append(Segment("gather", at, 0.0, float(hooks.gather_end_s[slot][plan])))
            break
        if sent[sender] > finish[sender]:
            path.append(Segment("transfer", sender, float(finish[sender]), float(begin)))
        at, partner = sender, -1
    return path[::-1]


def _reductions(replay: Replay, plan: int, path: list[Segment]) -> int:
    """Add the reductions that end the step, last first; return the backward they wait for."""
    hooks, last = replay.hooks, replay.graph.endings.last_backward
    begin, end = hooks.reduce_start_s[:, :, plan], hooks.reduce_end_s[:, :, plan]
    rank = int(end.max(axis=1).argmax())
    turn = np.argsort(last[rank])
    for position in range(len(turn) - 1, -1, -1):
        chunk = turn[position]
        at = int(last[rank, chunk])
        finish = float(replay.finish_s[at, plan])
        chained = position > 0 and begin[rank, chunk] == end[rank, turn[position - 1]]
        share = 1.0 / float(replay.costs.num_buckets[plan])
        seconds = float(replay.costs.reduce_s[plan, replay.graph.schedule.stage[rank, chunk]])
        waited = float(begin[rank, chunk]) + seconds < float(end[rank, chunk])
        if not chained or waited:
            start = finish if waited or share == 1.0 else float(begin[rank, chunk])
            path.append(Segment("reduce", at, start, float(end[rank, chunk])))
            return at
        path.append(Segment("reduce", at, float(begin[rank, chunk]), float(end[rank, chunk])))
    raise AssertionError("the first reduction waits for its backward")
