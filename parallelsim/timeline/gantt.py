"""A replay as a picture: SVG for documents, letters for the terminal."""

from __future__ import annotations

import html
from typing import Final

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
    FORWARD: ("#4e79a7", "#a0cbe8"),
    BACKWARD: ("#f28e2b", "#ffbe7d"),
    INPUT: ("#e15759", "#ff9d9a"),
    WEIGHT: ("#59a14f", "#8cd17d"),
}
"""Of even and odd chunks."""
REDUCE_SHADE: Final = "#79706e"
LEFT, TOP, ROW, BAR, HOOK = 56, 40, 26, 18, 4
"""Pixels: margin for the labels and the title, height of a row, of its bars, of the communication
below."""


def gantt_svg(replay: Replay, plan: int = 0, width: int = 1200) -> str:
    """One row a rank, a box an operation (with its micro-batch where it fits), as SVG text.

    Raises:
        PlanError: more operations than a picture shows.
    """
    schedule = replay.graph.schedule
    if len(schedule) > MAX_DRAWN:
        raise PlanError(
            f"{len(schedule)} operations are more than the {MAX_DRAWN} of a picture: write a trace "
            "(.json), or use fewer micro-batches"
        )
    step = float(replay.step_s[plan])
    scale = (width - LEFT - 12) / step if step > 0 else 0.0
    height = TOP + ROW * schedule.num_ranks + 34
    size = schedule.size
    idle = float(bubbles(replay).idle_s[:, plan].max()) / step if step > 0 else 0.0
    title = (
        f"{schedule.name}, pp {size.pp}, vpp {size.vpp}, {size.num_micro_batches} micro-batches: "
        f"{format_seconds(step)}, largest bubble {format_percent(idle)}"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="10">',
            f"<title>{html.escape(title)}</title>",
            '<rect width="100%" height="100%" fill="white"/>',
            f'<text x="{LEFT}" y="20" font-size="13">{html.escape(title)}</text>',
            *_rows(replay, plan, scale, width),
            *_axis_and_legend(replay, step, scale, height),
            "</svg>\n",
        ]
    )


def _rows(replay: Replay, plan: int, scale: float, width: int) -> list[str]:
    schedule, hooks, drawn = replay.graph.schedule, replay.hooks, []
    for rank in range(schedule.num_ranks):
        y = TOP + ROW * rank
        drawn.append(f'<text x="6" y="{y + 13}">rank {rank}</text>')
        right = width - LEFT - 12
        drawn.append(f'<rect x="{LEFT}" y="{y}" width="{right}" height="{BAR}" fill="#f3f3f3"/>')
        for i in range(int(schedule.first[rank]), int(schedule.first[rank + 1])):
            start, finish = float(replay.start_s[i, plan]), float(replay.finish_s[i, plan])
            kind, chunk = int(schedule.kind[i]), int(schedule.chunk[i])
            # Of two operations that run together, the forward takes the upper half.
            forward = i + 1 < len(schedule) and replay.graph.pairs and schedule.paired[i + 1]
            backward = replay.graph.pairs and schedule.paired[i]
            top, bar = (y + BAR / 2, BAR / 2) if backward else (y, BAR / 2 if forward else BAR)
            x, w = LEFT + scale * start, scale * (finish - start)
            drawn.append(
                f'<rect x="{x:.2f}" y="{top:g}" width="{w:.2f}" height="{bar:g}" '
                f'fill="{SHADES[kind][chunk % 2]}" stroke="white" stroke-width="0.4"/>'
            )
            label = str(schedule.micro_batch[i])
            if w >= 6.5 * len(label) + 2 and bar == BAR:
                drawn.append(
                    f'<text x="{x + w / 2:.2f}" y="{y + 13}" text-anchor="middle">{label}</text>'
                )
        for chunk in range(schedule.stage.shape[1]):
            start, end = (
                float(a[rank, chunk, plan]) for a in (hooks.reduce_start_s, hooks.reduce_end_s)
            )
            if replay.costs.reduce_s[plan, schedule.stage[rank, chunk]] > 0:
                drawn.append(
                    f'<rect x="{LEFT + scale * start:.2f}" y="{y + BAR + 1}" height="{HOOK}" '
                    f'width="{scale * (end - start):.2f}" fill="{REDUCE_SHADE}"/>'
                )
    return drawn


def _axis_and_legend(replay: Replay, step: float, scale: float, height: int) -> list[str]:
    drawn, y = [], height - 26
    for part in range(5):
        x = LEFT + scale * step * part / 4
        anchor = "start" if part == 0 else "end" if part == 4 else "middle"
        label = format_seconds(step * part / 4)
        drawn.append(f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}">{label}</text>')
    names = {
        FORWARD: "forward",
        BACKWARD: "backward",
        INPUT: "input gradient",
        WEIGHT: "weight gradient",
    }
    x = LEFT
    for kind in np.unique(replay.graph.schedule.kind).tolist():
        drawn.append(f'<rect x="{x}" y="{y + 8}" width="10" height="10" fill="{SHADES[kind][0]}"/>')
        drawn.append(f'<text x="{x + 14}" y="{y + 17}">{names[kind]} ({KINDS[kind]})</text>')
        x += 130
    if (replay.costs.reduce_s > 0).any():
        drawn.append(f'<rect x="{x}" y="{y + 11}" width="10" height="4" fill="{REDUCE_SHADE}"/>')
        drawn.append(f'<text x="{x + 14}" y="{y + 17}">gradient reduction</text>')
    return drawn


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
