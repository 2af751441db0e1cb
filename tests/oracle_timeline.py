"""The timeline by longest paths in a networkx graph, from the operation lists and the definitions
alone.

An operation is (kind, micro-batch, stage). An edge u -> v of weight w says: v starts w after u
starts.
"""

import networkx as nx
import numpy as np

from parallelsim.timeline.operations import Schedule, Size
from parallelsim.timeline.schedules import GENERATORS

Operation = tuple[str, int, int]
START = ("start", 0, 0)
LETTERS = "F", "B", "I", "W"


def operation_lists(schedule: Schedule) -> list[list[Operation]]:
    """What each rank runs, in order."""
    lists = []
    for rank in range(schedule.num_ranks):
        span = range(schedule.first[rank], schedule.first[rank + 1])
        lists.append(
            [
                (
                    LETTERS[schedule.kind[i]],
                    int(schedule.micro_batch[i]),
                    int(schedule.stage[rank, schedule.chunk[i]]),
                )
                for i in span
            ]
        )
    return lists


def longest_paths(
    schedule: Schedule,
    seconds: dict[str, np.ndarray],
    transfer: np.ndarray,
    *,
    blocking: bool = False,
    gather: np.ndarray | None = None,
    pair_frac: float | None = None,
) -> dict[Operation, tuple[float, float]]:
    """Start and finish of each operation. ``seconds[letter][stage]``, ``transfer[rank]`` to the
    next."""
    lists, graph = operation_lists(schedule), nx.DiGraph()
    rank_of = {operation: rank for rank, run in enumerate(lists) for operation in run}
    assert len(rank_of) == len(schedule), "an operation is listed twice"
    spent = {operation: float(seconds[operation[0]][operation[2]]) for operation in rank_of}
    together = pairs(schedule, lists) if pair_frac is not None else {}
    for forward, backward in together.items():
        spent[forward] = pair_frac * (spent[forward] + spent[backward])
        spent[backward] = spent[forward]
    last_stage = max(stage for _, _, stage in rank_of)

    def sending(operation: Operation) -> float:
        """Seconds until the result is with whoever needs it next, after the operation's end."""
        kind, j, s = operation
        to = {"F": s + 1, "B": s - 1, "I": s - 1, "W": s}[kind]
        if kind == "W" or not 0 <= to <= last_stage:
            return 0.0
        here, there = (
            rank_of[operation],
            next(
                rank_of[k, j, to] for k in ("F" if kind == "F" else "BI") if (k, j, to) in rank_of
            ),
        )
        if here == there:
            return 0.0
        neighbours = abs(here - there) == 1
        assert neighbours or {here, there} == {0, schedule.num_ranks - 1}
        return float(transfer[min(here, there)] if neighbours else transfer[-1])

    sends = {operation: sending(operation) for operation in rank_of}
    for operation in rank_of:
        kind, j, s = operation
        graph.add_edge(START, operation, weight=0.0)
        sources = {"F": [("F", j, s - 1)], "W": [("I", j, s)]}.get(
            kind, [("B", j, s + 1), ("I", j, s + 1), ("F", j, s)]
        )
        for source in sources:
            if source in rank_of:
                wait = 0.0 if source[2] == s else sends[source]
                graph.add_edge(source, operation, weight=spent[source] + wait)
    for run in lists:
        for one, two in zip(run, run[1:], strict=False):
            if together.get(one) == two:
                continue
            wait = spent[one] + (sends[one] if blocking else 0.0)
            weight = max(wait, graph.edges.get((one, two), {"weight": 0.0})["weight"])
            graph.add_edge(one, two, weight=weight)
        if gather is not None:
            arrived, seen = 0.0, set()
            for operation in run:
                if operation[0] == "F" and operation[2] not in seen:
                    seen.add(operation[2])
                    arrived += float(gather[operation[2]])
                    graph.edges[START, operation]["weight"] = arrived
    for forward, backward in together.items():
        # Both start when both can: what one waits for, the other waits for.
        for one, other in ((forward, backward), (backward, forward)):
            for source, _, data in list(graph.in_edges(one, data=True)):
                weight = max(data["weight"], graph.edges.get((source, other), data)["weight"])
                graph.add_edge(source, other, weight=weight)
    start = {START: 0.0}
    for operation in nx.topological_sort(graph):
        if operation != START:
            start[operation] = max(
                start[source] + data["weight"]
                for source, _, data in graph.in_edges(operation, data=True)
            )
    return {
        operation: (start[operation], start[operation] + spent[operation]) for operation in rank_of
    }


def pairs(schedule: Schedule, lists: list[list[Operation]]) -> dict[Operation, Operation]:
    """Forward to the backward that runs with it."""
    flat = [operation for run in lists for operation in run]
    return {flat[i - 1]: flat[i] for i in np.flatnonzero(schedule.paired)}


def step_end(
    schedule: Schedule,
    times: dict[Operation, tuple[float, float]],
    reduce: np.ndarray,
    num_buckets: int,
) -> float:
    """The end of the step with one reduction a bucket, each a serial queue per rank."""
    end = max(finish for _, finish in times.values())
    for run in operation_lists(schedule):
        last = {}
        for operation in run:
            if operation[0] in "BW":
                last[operation[2]] = operation
        queue = 0.0
        for operation in sorted(last.values(), key=run.index):
            start, finish = times[operation]
            for bucket in range(num_buckets):
                ready = start + (finish - start) * (bucket + 1) / num_buckets
                queue = max(queue, ready) + reduce[operation[2]] / num_buckets
        end = max(end, queue)
    return end


def peak_activations(schedule: Schedule, whole: np.ndarray, weight_only: np.ndarray) -> list[float]:
    """Of each rank, by adding and removing micro-batch after micro-batch."""
    peaks = []
    for run in operation_lists(schedule):
        held, peak = 0.0, 0.0
        for kind, _, s in run:
            held += {
                "F": whole[s],
                "B": -whole[s],
                "I": weight_only[s] - whole[s],
                "W": -weight_only[s],
            }[kind]
            peak = max(peak, held)
        assert abs(held) < 1e-6 * max(whole)
        peaks.append(peak)
    return peaks


def random_size(name: str, rng: np.random.Generator) -> Size:
    """A small size that the schedule allows."""
    generator = GENERATORS[name]
    while True:
        size = Size(int(rng.integers(1, 8)), int(rng.integers(1, 5)), int(rng.integers(1, 19)))
        if generator.broken_rule(size) is None:
            return size
