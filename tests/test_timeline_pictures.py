"""Traces against the trace-event format, and the pictures of a timeline."""

import json
import re
import xml.etree.ElementTree as ET
from collections import defaultdict
from typing import Any

import numpy as np
import oracle_timeline as oracle
import pytest

from parallelsim.errors import PlanError
from parallelsim.timeline.activations import memory_over_time, peak_activations
from parallelsim.timeline.analysis import bubbles
from parallelsim.timeline.chrome import trace, trace_json
from parallelsim.timeline.costs import stage_costs, transfer_time
from parallelsim.timeline.engine import Replay, replay
from parallelsim.timeline.gantt import gantt_svg, gantt_text
from parallelsim.timeline.graph import compile_graph
from parallelsim.timeline.schedules import GENERATORS, make_schedule


def played(name: str, p: int, v: int, m: int) -> Replay:
    schedule = make_schedule(name, p, v, m)
    rng = np.random.default_rng(2)
    costs = stage_costs(
        schedule,
        rng.uniform(0.010, 0.012, schedule.num_stages),
        input_s=0.011,
        weight_s=0.009,
        transfer_s=transfer_time(5e-6, rng.uniform(1e8, 1e9, p), 50e9),
        gather_s=0.004,
        reduce_s=0.006,
        num_buckets=4,
        pair_frac=0.8,
    )
    return replay(compile_graph(schedule, gathers=True, pairs=True), costs)


def check_trace_event_format(content: dict[str, Any]) -> None:
    """The JSON object format of Google's "Trace Event Format": required keys by phase, order,
    nesting."""
    assert set(content) <= {"traceEvents", "displayTimeUnit", "otherData"}
    assert content["displayTimeUnit"] in ("ms", "ns")
    last, open_until = 0.0, defaultdict(list)
    for event in content["traceEvents"]:
        assert event["ph"] in ("X", "C", "M")
        assert isinstance(event["name"], str)
        assert event["name"]
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert event["ts"] >= 0
        assert isinstance(event["args"], dict)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "process_sort_index", "thread_name")
            continue
        assert event["ts"] >= last, "not sorted"
        last = event["ts"]
        if event["ph"] == "C":
            assert all(isinstance(value, float | int) for value in event["args"].values())
            continue
        assert event["dur"] >= 0
        assert isinstance(event["cat"], str)
        start, end = round(1e3 * event["ts"]), round(1e3 * (event["ts"] + event["dur"]))
        stack = open_until[event["pid"], event["tid"]]
        while stack and stack[-1] <= start:
            stack.pop()
        assert not stack or end <= stack[-1], "slices of a track overlap without nesting"
        stack.append(end)


@pytest.mark.parametrize("name", GENERATORS)
def test_trace_follows_the_trace_event_format(name: str) -> None:
    done = played(name, *oracle.random_size(name, np.random.default_rng(4)))
    check_trace_event_format(json.loads(trace_json(done, 0, 2e9, 1e9)))


def test_trace_of_8_ranks_and_64_micro_batches_has_every_operation_transfer_and_counter() -> None:
    done = played("interleaved-1f1b", 8, 2, 64)
    schedule = done.graph.schedule
    content = trace(done, 0, 3e9)
    check_trace_event_format(content)
    events = content["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    computed = [event for event in slices if event["tid"] == 0]
    assert len(computed) == len(schedule)
    assert sum(event["cat"] == "transfer" for event in slices) == 2 * 64 * 15
    assert sum(event["cat"] == "data parallel" for event in slices) == 2 * 16
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {
        f"rank {rank}" for rank in range(8)
    }
    end = max(event["ts"] + event["dur"] for event in slices)
    assert end == pytest.approx(1e6 * done.step_s[0], abs=0.01)
    peak = peak_activations(schedule, 3e9).num_bytes[:, 0]
    for rank in range(8):
        counted = [e["args"]["bytes"] for e in events if e["ph"] == "C" and e["pid"] == rank]
        assert max(counted) == peak[rank]
        assert counted[-1] == 0


@pytest.mark.parametrize("name", GENERATORS)
def test_memory_over_time_peaks_where_the_peak_says(name: str) -> None:
    done = played(name, *oracle.random_size(name, np.random.default_rng(6)))
    schedule = done.graph.schedule
    peak = peak_activations(schedule, 2.0, 1.0)
    for rank in range(schedule.num_ranks):
        curve = memory_over_time(done, rank, 2.0, 1.0)
        assert curve.num_bytes.max() == peak.num_bytes[rank, 0]
        assert curve.num_bytes[-1] == 0
        when = done.start_s[peak.operation[rank, 0], 0]
        assert when in curve.time_s[curve.num_bytes == peak.num_bytes[rank, 0]]


def test_text_gantt_shows_what_the_ranks_do() -> None:
    schedule = make_schedule("1f1b", 2, 1, 2)
    done = replay(compile_graph(schedule), stage_costs(schedule, 1.0, backward_s=2.0))
    lines = gantt_text(done, width=14 + 18).splitlines()
    # Forward 1 s, backward 2 s, step 9 s: two columns a second.
    assert lines[0] == " 0 |FFFF....BBBB..BBBB|  33.3 %"
    assert lines[1] == " 1 |..FFBBBBFFBBBB....|  33.3 %"


@pytest.mark.parametrize("name", GENERATORS)
def test_text_gantt_fits_80_columns(name: str) -> None:
    done = played(name, *oracle.random_size(name, np.random.default_rng(8)))
    text = gantt_text(done)
    assert max(map(len, text.splitlines())) <= 80
    busy = (1 - bubbles(done).idle_s[:, 0] / done.step_s[0]) * 66
    for rank, line in enumerate(text.splitlines()[: done.graph.schedule.num_ranks]):
        shown = sum(letter != "." for letter in line.split("|")[1])
        assert shown == pytest.approx(busy[rank], abs=7)


@pytest.mark.parametrize("name", GENERATORS)
def test_svg_draws_every_operation_inside_the_picture(name: str) -> None:
    done = played(name, *oracle.random_size(name, np.random.default_rng(9)))
    picture = ET.fromstring(gantt_svg(done, width=900))
    boxes = [e for e in picture.iter("{http://www.w3.org/2000/svg}rect") if e.get("stroke")]
    assert len(boxes) == len(done.graph.schedule)
    for box in boxes:
        assert float(box.get("x", "")) >= 56
        assert float(box.get("x", "")) + float(box.get("width", "")) <= 900 - 12 + 0.1
    assert re.search(rf"{name}, pp \d+", gantt_svg(done))


def test_pictures_that_nobody_could_read_are_refused() -> None:
    schedule = make_schedule("1f1b", 32, 1, 400)
    done = replay(compile_graph(schedule), stage_costs(schedule, 1.0, backward_s=2.0))
    with pytest.raises(PlanError, match="32 ranks are more than the 16"):
        gantt_text(done)
    with pytest.raises(PlanError, match="25600 operations are more than the 20000"):
        gantt_svg(done)
