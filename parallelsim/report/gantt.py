"""A replay as a picture. matplotlib is imported when asked for."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from parallelsim.timeline.engine import Replay
from parallelsim.timeline.gantt import INK, RIM, Box, gantt_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 144
POINTS = 72
LEAST_RIMMED = 4.0
"""Pixels of the median operation: rims would hide narrower ones."""
ALIGNMENTS = {"start": "left", "middle": "center", "end": "right"}


def gantt_image(replay: Replay, kind: str, width: int | None = None) -> bytes:
    """The picture of :func:`~parallelsim.timeline.gantt.gantt_picture` as a file.

    Args:
        replay: its first plan is drawn.
        kind: ``png``, twice as large; ``svg``; or ``html``, a page with the picture inside.
        width: in pixels; by default wide enough for the numbers.

    Raises:
        PlanError: more operations than a picture shows.
    """
    import matplotlib as mpl

    figure, stream = gantt_figure(replay, width), io.BytesIO()
    if kind == "png":
        about = {"Software": None}
        figure.savefig(stream, format="png", dpi=DPI, facecolor="white", metadata=about)
        return stream.getvalue()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "parallelsim"}):
        figure.savefig(stream, format="svg", facecolor="white", metadata={"Date": None})
    picture = stream.getvalue()
    return picture if kind == "svg" else _page(picture.decode())


def _page(svg: str) -> bytes:
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8">'
        "<title>Pipeline timeline</title></head>\n"
        f"<body>\n{svg[svg.index('<svg') :]}</body>\n</html>\n"
    ).encode()


def gantt_figure(replay: Replay, width: int | None = None) -> Figure:
    """One point of the figure is one pixel of the picture.

    Raises:
        ImportError, PlanError: as :func:`gantt_image`.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    picture = gantt_picture(replay, width=width)
    figure = Figure(figsize=(picture.width / POINTS, picture.height / POINTS), dpi=POINTS)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, picture.width)
    axes.set_ylim(picture.height, 0)
    # One path for all boxes of a colour: a tenth of the size of one for each.
    kinds = dict.fromkeys((box.fill, box.is_operation) for box in picture.boxes)
    widths = sorted(box.width for box in picture.boxes if box.is_operation)
    rim_width = 0.4 if widths[len(widths) // 2] >= LEAST_RIMMED else 0.0
    for fill, is_operation in kinds:
        boxes = [
            box for box in picture.boxes if (box.fill, box.is_operation) == (fill, is_operation)
        ]
        rim: dict[str, Any] = {"edgecolor": RIM, "linewidth": rim_width}
        style = rim if is_operation else {"edgecolor": "none"}
        axes.add_patch(_patch(boxes, facecolor=fill, zorder=len(axes.patches) + 1, **style))
    for label in picture.labels:
        axes.text(
            *(label.x, label.y, label.text),
            color="black" if label.is_inside else INK,
            fontsize=0.9 * label.size,
            ha=ALIGNMENTS[label.anchor],
            va="baseline",
            zorder=len(kinds) + 1,
        )
    return figure


def _patch(boxes: Sequence[Box], **style: Any) -> Any:
    """The rectangles as one path; tenths of a pixel are enough."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    corners: list[tuple[float, float]] = []
    for box in boxes:
        left, right = round(box.x, 1), round(box.x + box.width, 1)
        top, low = round(box.y, 1), round(box.y + box.height, 1)
        corners += [(left, top), (right, top), (right, low), (left, low), (left, top)]
    codes = [Path.MOVETO, *[Path.LINETO] * 3, Path.CLOSEPOLY] * len(boxes)
    return PathPatch(Path(corners, codes), **style)
