"""Traces against the trace-event format, and the pictures of a timeline."""

import itertools
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from typing import Any

import numpy as np
import oracle_timeline as oracle
import pytest
from trace_event_format import problems

from parallelsim.errors import PlanError
from parallelsim.timeline.activations import memory_over_time, peak_activations
from parallelsim.timeline.analysis import bubbles
from parallelsim.timeline.chrome import trace, trace_json
from parallelsim.timeline.costs import stage_costs, transfer_time
from parallelsim.timeline.engine import Replay, replay
from parallelsim.timeline.gantt import gantt_picture, gantt_text
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


@pytest.mark.parametrize("name", GENERATORS)
def test_trace_follows_the_trace_event_format(name: str) -> None:
    done = played(name, *oracle.random_size(name, np.random.default_rng(4)))
    assert problems(trace_json(done, 0, 2e9, 1e9)) == []


def test_trace_of_8_ranks_and_64_micro_batches_has_every_operation_transfer_and_counter() -> None:
    done = played("interleaved-1f1b", 8, 2, 64)
    schedule = done.graph.schedule
    content = trace(done, 0, 3e9)
    assert problems(trace_json(done, 0, 3e9)) == []
    events = content["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    computed = [event for event in slices if event["tid"] % 1000 == 0]
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
        counted = [e["args"]["bytes"] for e in events if e["ph"] == "C" and e["pid"] == rank + 1]
        assert max(counted) == peak[rank]
        assert counted[-1] == 0


def changed(**values: object) -> Callable[[list[dict[str, Any]]], None]:
    """A change of the first slice."""

    def change(events: list[dict[str, Any]]) -> None:
        next(event for event in events if event["ph"] == "X").update(values)

    return change


def _overlap(events: list[dict[str, Any]]) -> None:
    """The first slice of a thread ends within the second."""
    first, second = [event for event in events if event["ph"] == "X" and event["cat"] == "forward"][
        :2
    ]
    first.update(dur=second["ts"] - first["ts"] + second["dur"] / 2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (changed(dur=-1.0), "no duration"),
        (changed(dur=float("nan")), "no JSON number"),
        (lambda events: _overlap(events), "without nesting"),
        (changed(pid=0), "no positive 32-bit"),
        (changed(tid="1"), "no positive 32-bit"),
        (changed(tid=7), "no name"),
        (changed(ph="Q"), "unknown phase"),
        (changed(ph="B"), "without an end"),
        (changed(args=[]), "args is no object"),
        (lambda events: events.append(dict(events[-1], ts=0.0)), "go back"),
        (lambda events: events[-1].update(ph="C", args={"bytes": "1"}), "needs numbers"),
        (lambda events: events.append(events[0]), "given twice"),
        (lambda events: events.pop(0), "process has no name"),
        (
            lambda events: [event.update(tid=5) for event in events if event["ph"] != "M"],
            "two processes",
        ),
    ],
)
def test_the_checker_finds_what_viewers_would_drop(
    change: Callable[[list[dict[str, Any]]], None], words: str
) -> None:
    content = trace(played("1f1b", 2, 1, 4), 0, 1e9)
    change(content["traceEvents"])
    assert words in "\n".join(problems(json.dumps(content)))


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
def test_every_operation_is_drawn_inside_the_picture(name: str) -> None:
    done = played(name, *oracle.random_size(name, np.random.default_rng(9)))
    picture = gantt_picture(done, width=900)
    boxes = [box for box in picture.boxes if box.is_operation]
    assert len(boxes) == len(done.graph.schedule)
    for box in boxes:
        assert box.x >= 56
        assert box.x + box.width <= 900 - 12 + 0.1
    assert re.match(rf"{name}, pp \d+", picture.title)


def test_pixels_and_svg_show_the_boxes_and_labels_of_the_picture() -> None:
    from parallelsim.report.gantt import gantt_image

    done = played("zb-v", 4, 2, 8)
    picture = gantt_picture(done)
    content = gantt_image(done, "png")
    pixels = [int.from_bytes(content[at : at + 4], "big") for at in (16, 20)]
    assert pixels == [2 * picture.width, 2 * picture.height]
    svg = ET.fromstring(gantt_image(done, "svg"))
    name = "{http://www.w3.org/2000/svg}"
    drawn = "".join(path.get("d", "") for path in svg.iter(f"{name}path"))
    assert drawn.count("M ") == len(picture.boxes) + 1  # and the background
    assert [e.text for e in svg.iter(f"{name}text")] == [label.text for label in picture.labels]
    assert svg.get("viewBox") == f"0 0 {picture.width} {picture.height}"


@pytest.mark.parametrize("name", ["1f1b", "interleaved-1f1b", "zb-v", "dualpipe-v"])
def test_the_picture_of_16_micro_batches_shows_every_number(name: str) -> None:
    v = 1 if name == "1f1b" else 2
    done = played(name, 8, v, 16)
    picture = gantt_picture(done)
    numbers = [label.text for label in picture.labels if label.text.isdigit()]
    assert len(numbers) >= 0.9 * len(done.graph.schedule)
    # No letter touches the next: about 5.6 pixels each at size 10.
    rows: dict[float, list[tuple[float, float]]] = {}
    for label in picture.labels:
        if label.text.isdigit():
            half = 2.8 * len(label.text)
            rows.setdefault(label.y, []).append((label.x - half, label.x + half))
    for spans in rows.values():
        spans.sort()
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


def test_pictures_that_nobody_could_read_are_refused() -> None:
    schedule = make_schedule("1f1b", 32, 1, 400)
    done = replay(compile_graph(schedule), stage_costs(schedule, 1.0, backward_s=2.0))
    with pytest.raises(PlanError, match="32 ranks are more than the 16"):
        gantt_text(done)
    with pytest.raises(PlanError, match="25600 operations are more than the 20000"):
        gantt_picture(done)
