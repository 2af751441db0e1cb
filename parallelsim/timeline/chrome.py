"""A replay as a Chrome trace: opens in Perfetto (ui.perfetto.dev) and chrome://tracing.

The trace-event format's JSON object: one process a rank; tracks for computation, transfers to other
ranks, and data-parallel communication; a counter of activation memory. Times in microseconds,
rounded to nanoseconds as the viewers do, so that slices of a track never overlap by rounding.

Rank r is process r + 1, its track k thread 1000 (r + 1) + k: Perfetto takes process and thread 0
for the kernel's idle task, and names a thread by its number alone, whatever its process.
"""

from __future__ import annotations

import heapq
import json
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike

from parallelsim.errors import PlanError
from parallelsim.timeline.activations import memory_over_time
from parallelsim.timeline.engine import Replay
from parallelsim.timeline.operations import BACKWARD, INPUT, KINDS

Event = dict[str, Any]

MAX_TRACED = 500_000
"""Operations in a trace; a viewer is of no use beyond."""
COMPUTE, COLLECTIVES, TRANSFERS = 0, 1, 2
"""Tracks of a rank; transfers that overlap each other take further tracks."""
THREADS = 1000
"""Numbers of threads that are kept for a rank."""
NAMES: Final = ("forward", "backward", "backward: input gradient", "backward: weight gradient")


def check_traceable(num_operations: int) -> None:
    """Refuse traces that no viewer opens.

    Raises:
        PlanError: more operations than a viewer shows.
    """
    if num_operations > MAX_TRACED:
        raise PlanError(
            f"{num_operations} operations are more than the {MAX_TRACED} of a trace: use fewer "
            "micro-batches"
        )


def trace(
    replay: Replay,
    plan: int = 0,
    activation_bytes: ArrayLike | None = None,
    weight_only_bytes: ArrayLike = 0.0,
) -> dict[str, Any]:
    """The trace of one plan; with ``activation_bytes`` ([P, S]), memory counters as well.

    Raises:
        PlanError: more operations than a viewer shows.
    """
    schedule = replay.graph.schedule
    check_traceable(len(schedule))
    events: list[Event] = []
    for rank in range(schedule.num_ranks):
        events += _computation(replay, rank, plan)
        sends = _transfers(replay, rank, plan)
        hooks = _collectives(replay, rank, plan)
        events += sends + hooks
        if activation_bytes is not None:
            curve = memory_over_time(replay, rank, activation_bytes, weight_only_bytes, plan)
            for time, num_bytes in zip(
                curve.time_s.tolist(), curve.num_bytes.tolist(), strict=True
            ):
                args = {"bytes": num_bytes}
                events.append(
                    {
                        "name": "activations",
                        "ph": "C",
                        "ts": _us(time),
                        **_place(rank, COMPUTE),
                        "args": args,
                    }
                )
    events.sort(key=lambda event: (event["ts"], -event.get("dur", 0.0)))
    tracks = sorted({(event["pid"], event["tid"]) for event in events})
    return {
        # First: importers that read in pieces look for it there.
        "displayTimeUnit": "ms",
        "traceEvents": _names(replay, tracks) + events,
        "otherData": {
            "schedule": schedule.name,
            "pp": schedule.size.pp,
            "vpp": schedule.size.vpp,
            "num_micro_batches": schedule.size.num_micro_batches,
            "step_s": float(replay.step_s[plan]),
        },
    }


def trace_json(
    replay: Replay,
    plan: int = 0,
    activation_bytes: ArrayLike | None = None,
    weight_only_bytes: ArrayLike = 0.0,
) -> str:
    """:func:`trace` as the text of a file."""
    content = trace(replay, plan, activation_bytes, weight_only_bytes)
    return json.dumps(content, separators=(",", ":"), allow_nan=False)


def _us(seconds: float) -> float:
    return round(1e6 * seconds, 3)


def _slice(
    name: str, category: str, rank: int, track: int, span: tuple[float, float], args: Event
) -> Event:
    start, end = _us(span[0]), _us(span[1])
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "ts": start,
        "dur": round(max(end - start, 0.0), 3),
        **_place(rank, track),
        "args": args,
    }


def _place(rank: int, track: int) -> Event:
    """The process and thread of a rank's track."""
    return {"pid": rank + 1, "tid": THREADS * (rank + 1) + track}


def _computation(replay: Replay, rank: int, plan: int) -> list[Event]:
    schedule = replay.graph.schedule
    events = []
    for i in range(int(schedule.first[rank]), int(schedule.first[rank + 1])):
        kind, chunk = int(schedule.kind[i]), int(schedule.chunk[i])
        args = {
            "micro_batch": int(schedule.micro_batch[i]),
            "chunk": chunk,
            "stage": int(schedule.stage[rank, chunk]),
        }
        span = float(replay.start_s[i, plan]), float(replay.finish_s[i, plan])
        name = f"{KINDS[kind]} {args['micro_batch']}"
        events.append(_slice(name, NAMES[kind], rank, COMPUTE, span, args))
    return events


def _transfers(replay: Replay, rank: int, plan: int) -> list[Event]:
    """What the rank sends, on as few tracks as keep transfers apart."""
    schedule = replay.graph.schedule
    low, high = int(schedule.first[rank]), int(schedule.first[rank + 1])
    finish, sent = replay.finish_s[low:high, plan], replay.sent_s[low:high, plan]
    events: list[Event] = []
    tracks: list[tuple[float, int]] = []
    for at in np.argsort(finish, kind="stable").tolist():
        start, end = float(finish[at]), float(sent[at])
        if end <= start:
            continue
        is_gradient = schedule.kind[low + at] in (BACKWARD, INPUT)
        if tracks and tracks[0][0] <= start:
            track = heapq.heappop(tracks)[1]
        else:
            track = TRANSFERS + len(tracks)
        heapq.heappush(tracks, (end, track))
        args = {"micro_batch": int(schedule.micro_batch[low + at])}
        name = f"send {'gradient' if is_gradient else 'activation'} {args['micro_batch']}"
        events.append(_slice(name, "transfer", rank, track, (start, end), args))
    return events


def _collectives(replay: Replay, rank: int, plan: int) -> list[Event]:
    hooks, events = replay.hooks, []
    for chunk in range(replay.graph.schedule.stage.shape[1]):
        for name, start, end in (
            ("gather parameters", hooks.gather_start_s, hooks.gather_end_s),
            ("reduce gradients", hooks.reduce_start_s, hooks.reduce_end_s),
        ):
            span = float(start[rank, chunk, plan]), float(end[rank, chunk, plan])
            seconds = replay.costs.reduce_s if name.startswith("reduce") else replay.costs.gather_s
            if span[1] > span[0] and seconds[plan, replay.graph.schedule.stage[rank, chunk]] > 0:
                events.append(
                    _slice(name, "data parallel", rank, COLLECTIVES, span, {"chunk": chunk})
                )
    return events


def _names(replay: Replay, tracks: list[tuple[int, int]]) -> list[Event]:
    """Metadata: what the viewer calls ranks and tracks."""
    events: list[Event] = []
    for rank in range(replay.graph.schedule.num_ranks):
        base = {"ph": "M", "ts": 0, **_place(rank, COMPUTE)}
        events.append({"name": "process_name", "args": {"name": f"rank {rank}"}, **base})
        events.append({"name": "process_sort_index", "args": {"sort_index": rank}, **base})
    titles = {COMPUTE: "computation", COLLECTIVES: "data-parallel communication"}
    for pid, tid in tracks:
        track = tid % THREADS
        args = {"name": titles.get(track, f"transfers {track - TRANSFERS + 1}")}
        base = {"ph": "M", "ts": 0, "pid": pid, "tid": tid}
        events.append({"name": "thread_name", "args": args, **base})
        events.append({"name": "thread_sort_index", "args": {"sort_index": track}, **base})
    return events
