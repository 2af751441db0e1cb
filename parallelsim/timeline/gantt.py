"""A replay as a picture: boxes and labels for documents, letters for the terminal."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from parallelsim.errors import PlanError
from parallelsim.timeline.analysis import bubbles
from parallelsim.timeline.engine import Replay
from parallelsim.timeline.operations import BACKWARD, FORWARD, INPUT, KINDS, WEIGHT
from parallelsim.units import format_percent, format_seconds

MAX_DRAWN = 20_000
"""Operations in a picture."""
MAX_RANKS_IN_TEXT = 16
SHADES: Final = {
    FORWARD: ("#7ba6d4", "#c0daf0"),
    BACKWARD: ("#f6a353", "#ffd3a1"),
    INPUT: ("#e97b7d", "#ffb8b6"),
    WEIGHT: ("#7abb72", "#b9e2ad"),
}
"""Of even and odd chunks; black numbers are legible on all."""
REDUCE_SHADE: Final = "#79706e"
IDLE_SHADE: Final = "#ececec"
INK: Final = "#16181b"
"""Of the letters outside boxes."""
RIM: Final = "#fefefe"
"""Around operations."""
LEFT, TOP, BAR, PAIRED_BAR, GAP, HOOK = 62, 36, 20, 30, 8, 4
"""Pixels: margin for the labels and the title; height of a bar, of one that may hold two operations
at a time, between bars, and of the communication below."""
WIDTHS, NUMBER = (1200, 2600), 15
"""Pixels: least and most by default; of an operation, for a number of two digits."""


class Box(NamedTuple):
    """A filled rectangle; pixels from the upper left corner."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    is_operation: bool = False
    """Drawn with a rim."""


class Label(NamedTuple):
    """A text; ``x`` is its start, middle or end."""

    x: float
    y: float
    """Of the letters' feet."""
    text: str
    anchor: str = "start"
    size: float = 10.0
    is_inside: bool = False
    """Of a box."""


class Picture(NamedTuple):
    """What is drawn, whatever the format."""

    width: float
    height: float
    title: str
    boxes: list[Box]
    labels: list[Label]


def gantt_picture(replay: Replay, plan: int = 0, width: int | None = None) -> Picture:
    """One row a rank, a box an operation (with its micro-batch where it fits).

    ``width`` in pixels; by default wide enough for the numbers, within :data:`WIDTHS`.

    Raises:
        PlanError: more operations than a picture shows.
    """
    schedule, size = replay.graph.schedule, replay.graph.schedule.size
    check_drawable(len(schedule))
    step = float(replay.step_s[plan])
    if width is None:
        spent = replay.finish_s[:, plan] - replay.start_s[:, plan]
        kinds = [np.median(spent[schedule.kind == kind]) for kind in np.unique(schedule.kind)]
        shortest = float(min(kinds))
        wanted = LEFT + 12 + NUMBER * step / shortest if shortest > 0 else 0.0
        width = int(min(max(wanted, WIDTHS[0]), WIDTHS[1]))
    scale = (width - LEFT - 12) / step if step > 0 else 0.0
    bar = PAIRED_BAR if replay.graph.pairs else BAR
    height = TOP + (bar + GAP) * schedule.num_ranks + 38
    idle = float(bubbles(replay).idle_s[:, plan].max()) / step if step > 0 else 0.0
    title = (
        f"{schedule.name}, pp {size.pp}, vpp {size.vpp}, {size.num_micro_batches} micro-batches: "
        f"{format_seconds(step)}, largest bubble {format_percent(idle)}"
    )
    picture = Picture(width, height, title, [], [Label(LEFT, 22, title, size=13)])
    for rank in range(schedule.num_ranks):
        y = TOP + (bar + GAP) * rank
        picture.labels.append(Label(LEFT - 8, y + bar / 2 + 4, f"rank {rank}", "end"))
        picture.boxes.append(Box(LEFT, y, width - LEFT - 12, bar, IDLE_SHADE))
        _add_operations(picture, replay, plan, rank, scale, y, bar)
        _add_reductions(picture, replay, plan, rank, scale, y + bar + 1)
    _add_axis_and_legend(picture, replay, step, scale)
    return picture


def _add_operations(
    picture: Picture, replay: Replay, plan: int, rank: int, scale: float, y: float, bar: float
) -> None:
    schedule, paired = replay.graph.schedule, replay.graph.pairs
    for i in range(int(schedule.first[rank]), int(schedule.first[rank + 1])):
        start, finish = float(replay.start_s[i, plan]), float(replay.finish_s[i, plan])
        kind, chunk = int(schedule.kind[i]), int(schedule.chunk[i])
        # Of two operations that run together, the forward takes the upper half.
        forward = paired and i + 1 < len(schedule) and bool(schedule.paired[i + 1])
        backward = paired and bool(schedule.paired[i])
        height = bar / 2 if forward or backward else bar
        top = y + bar / 2 if backward else y
        x, w = LEFT + scale * start, scale * (finish - start)
        picture.boxes.append(Box(x, top, w, height, SHADES[kind][chunk % 2], True))
        label = str(schedule.micro_batch[i])
        if w >= 6 * len(label) + 2:
            middle = (x + w / 2, top + height / 2 + 3.5)
            picture.labels.append(Label(*middle, label, "middle", is_inside=True))


def _add_reductions(
    picture: Picture, replay: Replay, plan: int, rank: int, scale: float, y: float
) -> None:
    hooks, schedule = replay.hooks, replay.graph.schedule
    for chunk in range(schedule.stage.shape[1]):
        start = float(hooks.reduce_start_s[rank, chunk, plan])
        end = float(hooks.reduce_end_s[rank, chunk, plan])
        if replay.costs.reduce_s[plan, schedule.stage[rank, chunk]] > 0:
            span = LEFT + scale * start, scale * (end - start)
            picture.boxes.append(Box(span[0], y, span[1], HOOK, REDUCE_SHADE))


def _add_axis_and_legend(picture: Picture, replay: Replay, step: float, scale: float) -> None:
    schedule, y = replay.graph.schedule, picture.height - 28
    for part in range(5):
        anchor = "start" if part == 0 else "end" if part == 4 else "middle"
        label = format_seconds(step * part / 4) if part else "0"
        picture.labels.append(Label(LEFT + scale * step * part / 4, y, label, anchor))
    names = {
        FORWARD: "forward",
        BACKWARD: "backward",
        INPUT: "input gradient",
        WEIGHT: "weight gradient",
    }
    x, shades = float(LEFT), 2 if schedule.stage.shape[1] > 1 else 1
    for kind in np.unique(schedule.kind).tolist():
        for shade in range(shades):
            picture.boxes.append(Box(x + 12 * shade, y + 10, 10, 10, SHADES[kind][shade]))
        text = f"{names[kind]} ({KINDS[kind]})" + (", even and odd chunks" if shades > 1 else "")
        picture.labels.append(Label(x + 12 * shades + 4, y + 19, text))
        x += 26 + 12 * shades + 5.6 * len(text)
    picture.boxes.append(Box(x, y + 10, 10, 10, IDLE_SHADE))
    picture.labels.append(Label(x + 16, y + 19, "waits"))
    if (replay.costs.reduce_s > 0).any():
        picture.boxes.append(Box(x + 66, y + 13, 10, HOOK, REDUCE_SHADE))
        picture.labels.append(Label(x + 82, y + 19, "gradient reduction"))


def check_drawable(num_operations: int) -> None:
    """Refuse pictures that nobody could read.

    Raises:
        PlanError: more operations than a picture shows.
    """
    if num_operations > MAX_DRAWN:
        raise PlanError(
            f"{num_operations} operations are more than the {MAX_DRAWN} of a picture: write a "
            "trace (.json), or use fewer micro-batches"
        )


def gantt_text(replay: Replay, plan: int = 0, width: int = 80) -> str:
    """A line a rank: what it does at the middle of each column, and the share of its time that it
    waits.

    Raises:
        PlanError: more ranks than lines, or too few columns.
    """
    schedule, step = replay.graph.schedule, float(replay.step_s[plan])
    if schedule.num_ranks > MAX_RANKS_IN_TEXT:
        raise PlanError(
            f"{schedule.num_ranks} ranks are more than the {MAX_RANKS_IN_TEXT} that the terminal "
            "shows: write a picture (.svg) or a trace (.json)"
        )
    columns = width - 14
    if columns < 10:
        raise PlanError(f"the terminal's picture needs at least 24 columns, got {width}")
    idle = bubbles(replay).idle_s[:, plan]
    middles = step * (np.arange(columns) + 0.5) / columns
    letters = np.array([list("FBIW"), list("fbiw")])
    lines = []
    for rank in range(schedule.num_ranks):
        low, high = int(schedule.first[rank]), int(schedule.first[rank + 1])
        start, finish = replay.start_s[low:high, plan], replay.finish_s[low:high, plan]
        at = np.maximum(np.searchsorted(start, middles, side="right") - 1, 0)
        letter = letters[schedule.chunk[low:high][at] % 2, schedule.kind[low:high][at]]
        shown = np.where((start[at] <= middles) & (middles < finish[at]), letter, ".")
        share = format_percent(float(idle[rank]) / step if step > 0 else 0.0)
        lines.append(f"{rank:>2} |{''.join(shown.tolist())}| {share:>7}")
    kinds = {
        FORWARD: "F forward",
        BACKWARD: "B backward",
        INPUT: "I input grad",
        WEIGHT: "W weight grad",
    }
    legend = ", ".join(kinds[kind] for kind in np.unique(schedule.kind).tolist())
    lower = ", odd chunks lower case" if schedule.stage.shape[1] > 1 else ""
    axis = f"    0{format_seconds(step):>{columns - 1}}   waits"
    return "\n".join([*lines, axis, f"    {legend}{lower}"]) + "\n"
