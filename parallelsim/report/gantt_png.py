"""The Gantt picture in pixels. matplotlib is optional and imported when asked for."""

from __future__ import annotations

import io

from parallelsim.timeline.engine import Replay
from parallelsim.timeline.gantt import gantt_picture

DPI = 144
POINTS = 72
ALIGNMENTS = {"start": "left", "middle": "center", "end": "right"}


def gantt_png(replay: Replay, plan: int = 0, width: int | None = None) -> bytes:
    """The picture of :func:`~parallelsim.timeline.gantt.gantt_svg` in a PNG file, twice as large.

    Raises:
        ImportError: matplotlib is not installed.
        PlanError: more operations than a picture shows.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.collections import PolyCollection
    from matplotlib.figure import Figure

    picture = gantt_picture(replay, plan, width)
    figure = Figure(figsize=(picture.width / POINTS, picture.height / POINTS), dpi=DPI)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, picture.width)
    axes.set_ylim(picture.height, 0)
    corners = [
        ((b.x, b.y), (b.x + b.width, b.y), (b.x + b.width, b.y + b.height), (b.x, b.y + b.height))
        for b in picture.boxes
    ]
    axes.add_collection(
        PolyCollection(
            corners,
            facecolors=[box.fill for box in picture.boxes],
            edgecolors="white",
            linewidths=[0.4 * box.is_operation for box in picture.boxes],
        )
    )
    for label in picture.labels:
        where = ALIGNMENTS[label.anchor]
        axes.text(label.x, label.y, label.text, fontsize=0.9 * label.size, ha=where, va="baseline")
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=DPI, facecolor="white", metadata={"Software": None})
    return stream.getvalue()
