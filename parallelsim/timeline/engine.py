"""Start and finish of every operation, for many plans of one schedule at once.

start = max( rank free, result of the sender there );  finish = start + t;
result there = finish + transfer;  rank free = finish (+ transfer, where sending blocks)

Neglects: transfers that share a link (each has its full bandwidth), jitter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from parallelsim.timeline.costs import StageCosts, cost_table
from parallelsim.timeline.graph import Graph
from parallelsim.timeline.operations import FloatArray, IntArray

BLOCK, LEAST = 2**17, 16
"""Nodes times plans replayed at a time, about what stays in a core's cache; and plans at least."""
NARROW = 25
"""Nodes of a level, times plans, from which an array operation beats a loop over them."""


class Hooks(NamedTuple):
    """Data-parallel communication of each rank's chunks, seconds, [p, chunks, P]."""

    gather_start_s: FloatArray
    gather_end_s: FloatArray
    reduce_start_s: FloatArray
    reduce_end_s: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """Times of all operations, in list order, for P plans."""

    graph: Graph
    costs: StageCosts
    start_s: FloatArray
    """[N, P]."""
    finish_s: FloatArray
    """[N, P]: the end of the computation, without the transfer."""
    sent_s: FloatArray
    """[N, P]: when the result is on the next rank; the finish where it stays."""
    hooks: Hooks
    step_s: FloatArray
    """[P]: until the last operation, or gradient reduction, has ended."""


def replay(graph: Graph, costs: StageCosts) -> Replay:
    """Replay all plans and keep every operation.

    Takes 3 N P numbers; for the step times alone, :func:`step_time` needs a block's.
    """
    num_operations = len(graph.schedule)
    start, finish, sent = (np.empty((num_operations, len(costs))) for _ in range(3))
    step = np.empty(len(costs))
    hooks = Hooks(*(np.empty((*graph.schedule.stage.shape, len(costs))) for _ in Hooks._fields))
    for block in _blocks(graph, len(costs)):
        some = costs.take(block)
        seconds, transfer = cost_table(graph, some)
        started = _run(graph, some, seconds, transfer)
        of_class = graph.cost_class[graph.node]
        start[:, block] = started[graph.node]
        np.add(start[:, block], seconds[of_class], out=finish[:, block])
        np.add(start[:, block], (seconds + transfer)[of_class], out=sent[:, block])
        if graph.pairs:
            paired = np.flatnonzero(graph.schedule.paired)
            start[paired, block] = start[paired - 1, block]
        ends = _ends(graph, some, started, seconds)
        step[block] = ends.step_s
        for whole, part in zip(hooks, ends.hooks, strict=True):
            whole[:, :, block] = part
    return Replay(graph, costs, start, finish, sent, hooks, step)


def step_time(graph: Graph, costs: StageCosts) -> FloatArray:
    """Seconds until everything has ended, [P]: the same numbers as :func:`replay`'s."""
    step = np.empty(len(costs))
    for block in _blocks(graph, len(costs)):
        some = costs.take(block)
        seconds, transfer = cost_table(graph, some)
        started = _run(graph, some, seconds, transfer)
        step[block] = _ends(graph, some, started, seconds).step_s
    return step


def steady_step_time(once: Graph, twice: Graph, costs: StageCosts) -> FloatArray:
    """Seconds of a step that no drain separates from the next, [P].

    The replay of 2 m micro-batches less that of m.
    """
    return step_time(twice, costs) - step_time(once, costs)


def _blocks(graph: Graph, num_plans: int) -> Iterator[slice]:
    size = max(BLOCK // graph.num_nodes, LEAST)
    return (slice(at, min(at + size, num_plans)) for at in range(0, num_plans, size))


def _run(graph: Graph, costs: StageCosts, seconds: FloatArray, transfer: FloatArray) -> FloatArray:
    """Start of every node, [M, P]."""
    num_nodes, heads, num_plans = graph.num_nodes, graph.num_heads, len(costs)
    per_class = np.empty((len(seconds), 2, num_plans))
    np.add(seconds, np.where(costs.blocking, transfer, 0.0), out=per_class[:, 0])
    np.add(seconds, transfer, out=per_class[:, 1])
    spent = per_class[graph.cost_class]
    state = np.empty((heads + num_nodes, 2, num_plans))
    state[0] = 0.0
    state[1:heads] = _gathers(graph, costs)[1].reshape(-1, 1, num_plans)
    rows = state.reshape(-1, num_plans)
    start = np.empty((num_nodes, num_plans))
    if num_nodes * num_plans < NARROW * len(graph.levels):
        for plan in range(num_plans):
            _run_one(graph, spent[:, :, plan], state[:, :, plan], start[:, plan])
        return start
    waits = graph.waits
    for low, high in graph.levels:
        both = rows.take(waits[2 * low : 2 * high], axis=0, mode="clip")
        size = high - low
        np.maximum(both[:size], both[size:], out=start[low:high])
        np.add(start[low:high, None], spent[low:high], out=state[heads + low : heads + high])
    return start


def _run_one(graph: Graph, spent: FloatArray, state: FloatArray, start: FloatArray) -> None:
    """The same sums and maxima for one plan, node by node: faster where levels are narrow.

    A node begins when the rank is free of what it did before, and what it waits for has arrived.
    """
    heads = graph.num_heads
    none = np.zeros(heads)
    occupied = np.concatenate([none, spent[:, 0]]).take(graph.own).tolist()
    until_sent = np.concatenate([none, spent[:, 1]]).take(graph.sent).tolist()
    begun: list[float] = state[:heads, 0].tolist()
    nodes = zip(graph.own.tolist(), graph.sent.tolist(), occupied, until_sent, strict=True)
    for own, sent, computing, sending in nodes:
        at, arrived = begun[own] + computing, begun[sent] + sending
        begun.append(arrived if arrived > at else at)
    start[:] = begun[heads:]


def _gathers(graph: Graph, costs: StageCosts) -> tuple[FloatArray, FloatArray]:
    """Start and end of the gathers, [p, chunks, P]: one after the other, in order of need."""
    stage = graph.schedule.stage
    seconds = costs.gather_s.T[stage] if graph.gathers else np.zeros((*stage.shape, len(costs)))
    order = np.argsort(graph.endings.first_forward, axis=1)[:, :, None]
    end = np.cumsum(np.take_along_axis(seconds, order, axis=1), axis=1)
    end = np.take_along_axis(end, np.argsort(order, axis=1), axis=1)
    return end - seconds, end


class _Ends(NamedTuple):
    step_s: FloatArray
    hooks: Hooks


def _ends(graph: Graph, costs: StageCosts, started: FloatArray, seconds: FloatArray) -> _Ends:
    """The end of the step, and of the gradient reductions: of the chunks in the order they finish.

    With K equal buckets, the first is ready when the last backward is a K-th done, the last at its
    end: end = max( previous end + R, finish - t (K - 1)/K + R, finish + R/K )
    """
    last = graph.endings.last_backward
    last_of_rank = graph.schedule.first[1:] - 1
    step = _finish(graph, last_of_rank, started, seconds).max(axis=0)
    finish = _finish(graph, last, started, seconds)
    spent = seconds[graph.cost_class[graph.node[last]]]
    share = 1.0 / costs.num_buckets
    reduce = costs.reduce_s.T[graph.schedule.stage]
    begin, end = np.empty_like(finish), np.empty_like(finish)
    order, previous = np.argsort(last, axis=1), np.zeros_like(finish[:, 0])
    ranks = np.arange(len(last))
    for turn in range(last.shape[1]):
        at = (ranks, order[:, turn])
        begin[at] = np.maximum(previous, finish[at] - spent[at] * (1.0 - share))
        previous = np.maximum(begin[at] + reduce[at], finish[at] + reduce[at] * share)
        end[at] = previous
    return _Ends(np.maximum(step, previous.max(axis=0)), Hooks(*_gathers(graph, costs), begin, end))


def _finish(
    graph: Graph, operations: IntArray, started: FloatArray, seconds: FloatArray
) -> FloatArray:
    node = graph.node[operations]
    return started[node] + seconds[graph.cost_class[node]]
