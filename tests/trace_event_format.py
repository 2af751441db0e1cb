"""A checker of Chrome traces, apart from the writer: what a viewer would refuse, drop or misname.

Rules of Google's "Trace Event Format" (the JSON object format) and of Perfetto's importer
(github.com/google/perfetto, src/trace_processor/importers/json/): an X without ``dur`` is skipped;
counters need an object of numbers; pids and tids are 32-bit; a complete event that overlaps another
of its thread without nesting is dropped; process 0 and thread 0 are the kernel's idle task; a
thread is named by its tid alone, so that two processes must not share one.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from typing import Any

TIMED = {"X", "B", "E", "C", "i"}
METADATA = {
    "process_name": ("name", str),
    "thread_name": ("name", str),
    "process_sort_index": ("sort_index", int),
    "thread_sort_index": ("sort_index", int),
}


def problems(text: str) -> list[str]:
    """What is wrong with a trace, a line each; nothing for a good one."""
    try:
        content = json.loads(text, parse_constant=_refuse)
    except ValueError as error:
        return [f"not JSON: {error}"]
    if not isinstance(content, dict) or not isinstance(content.get("traceEvents"), list):
        return ["no object with a list traceEvents"]
    found = []
    if content.get("displayTimeUnit", "ms") not in ("ms", "ns"):
        found.append("displayTimeUnit is neither ms nor ns")
    events = content["traceEvents"]
    for number, event in enumerate(events):
        found += [f"event {number}: {problem}" for problem in _event(event)]
    if not found:
        found += _order(events) + _names(events) + _nesting(events)
    return found


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _event(event: Any) -> list[str]:
    """Fields by phase type."""
    if not isinstance(event, dict):
        return ["is no object"]
    phase, found = event.get("ph"), []
    if phase not in TIMED | {"M"}:
        return [f"unknown phase {phase!r}"]
    for key in ("pid", "tid"):
        value = event.get(key)
        if type(value) is not int or not 0 < value < 2**32:
            found.append(f"{key} {value!r} is no positive 32-bit integer")
    if not isinstance(event.get("name"), str) or not (event["name"] or phase == "E"):
        found.append("no name")
    if phase in TIMED and not (_is_number(event.get("ts")) and event["ts"] >= 0):
        found.append(f"ts {event.get('ts')!r} is no time")
    if phase == "X" and not (_is_number(event.get("dur")) and event["dur"] >= 0):
        found.append(f"dur {event.get('dur')!r} is no duration")
    if "cat" in event and not isinstance(event["cat"], str):
        found.append("cat is no string")
    if "args" in event and not isinstance(event["args"], dict):
        return [*found, "args is no object"]
    args = event.get("args", {})
    if phase == "C" and not (args and all(_is_number(value) for value in args.values())):
        found.append("a counter needs numbers in args")
    if phase == "M":
        key, kind = METADATA.get(str(event.get("name")), ("", object))
        if not key or not isinstance(args.get(key), kind) or args[key] == "":
            found.append("metadata of unknown name or without its argument")
    return found


def _order(events: list[dict[str, Any]]) -> list[str]:
    times = [event["ts"] for event in events if event["ph"] in TIMED]
    return [] if times == sorted(times) else ["timestamps go back"]


def _names(events: list[dict[str, Any]]) -> list[str]:
    """Every process and thread with events is named, once; no tid belongs to two processes."""
    named: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    owner: dict[int, int] = {}
    found = []
    for event in events:
        pid, tid = event["pid"], event["tid"]
        if event["ph"] == "M":
            key = (pid, tid) if event["name"].startswith("thread") else (pid,)
            named[event["name"]].append(key)
        if event["ph"] != "M" or event["name"].startswith("thread"):
            if owner.setdefault(tid, pid) != pid:
                found.append(f"thread {tid} is in two processes")
            if tid == pid and event["ph"] == "M":
                found.append(f"thread {tid} would be shown as the main thread")
    for name, keys in named.items():
        if len(keys) != len(set(keys)):
            found.append(f"{name} is given twice")
    timed = [event for event in events if event["ph"] in TIMED]
    if {(event["pid"],) for event in timed} - set(named["process_name"]):
        found.append("a process has no name")
    threads = {(event["pid"], event["tid"]) for event in timed if event["ph"] != "C"}
    if threads - set(named["thread_name"]):
        found.append("a thread has no name")
    return sorted(set(found))


def _nesting(events: list[dict[str, Any]]) -> list[str]:
    """Slices of a thread nest, in the viewers' nanoseconds; begins have ends."""
    tracks: dict[tuple[int, int], list[tuple[int, str, int]]] = defaultdict(list)
    open_: dict[tuple[int, int], list[tuple[str, int]]] = defaultdict(list)
    found = []
    for event in events:
        track = event["pid"], event["tid"]
        if event["ph"] == "X":
            start = round(1e3 * event["ts"])
            tracks[track].append((start, event["name"], start + round(1e3 * event["dur"])))
        elif event["ph"] == "B":
            open_[track].append((event["name"], round(1e3 * event["ts"])))
        elif event["ph"] == "E":
            if not open_[track]:
                found.append(f"an end without a begin on {track}")
                continue
            name, start = open_[track].pop()
            tracks[track].append((start, name, round(1e3 * event["ts"])))
    found += [
        f"{len(left)} begins without an end on {track}" for track, left in open_.items() if left
    ]
    for track, slices in tracks.items():
        stack: list[int] = []
        for start, name, end in sorted(slices, key=lambda slice_: (slice_[0], -slice_[2])):
            while stack and stack[-1] <= start:
                stack.pop()
            if stack and end > stack[-1]:
                found.append(f"{name} overlaps another slice of {track} without nesting")
            stack.append(end)
    return found
