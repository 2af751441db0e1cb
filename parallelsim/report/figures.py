"""Figures of the report page, and how a figure becomes part of a page. matplotlib is imported
when asked for.
"""

from __future__ import annotations

import html
import io
import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from parallelsim.operators import FloatArray
from parallelsim.simulate import Simulation
from parallelsim.timeline.gantt import IDLE_SHADE, INK, RIM
from parallelsim.units import GIB

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MUTED, ACCENT, WARNING = "#5a6068", "#1f3f87", "#b95a00"
"""Colours of figures; a page puts those of its theme in their place."""
THEME: Final = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    ACCENT: "var(--c1)",
    WARNING: "var(--c5)",
    RIM: "var(--surface)",
    IDLE_SHADE: "var(--track)",
}


def themed_svg(figure: Figure, name: str, alternative: str) -> str:
    """The figure as an SVG element whose colours and fonts are those of the page around it.

    Args:
        figure: drawn with the colours of ``THEME`` where these are to follow the page's.
        name: of the element; no other element of the page has an id that begins with it.
        alternative: what the figure shows, for those who do not see it.
    """
    import matplotlib as mpl

    stream = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "parallelsim"}):
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r'\b(id="|url\(#)', rf"\1{name}-", text)
    text = text.replace('xlink:href="#', f'href="#{name}-')
    box = re.search(r'viewBox="[^"]+"', text)
    assert box
    start = f'<svg {box[0]} role="img" aria-label="{html.escape(alternative)}">'
    text = re.sub(r"<svg[^>]*>", lambda _: start, text, count=1)
    for colour, variable in THEME.items():
        text = text.replace(colour, variable)
    text = re.sub(r"font: ([0-9.]+)px [^;\"]*", r"font-size: \1px", text)
    return re.sub(r"\s*\n\s*", "\n", _RECTANGLE.sub(_rectangle, text))


_RECTANGLE = re.compile(r"M ([\d.]+) ([\d.]+) \nL ([\d.]+) \2 \nL \3 ([\d.]+) \nL \1 \4 \nz\s*")


def _rectangle(path: re.Match[str]) -> str:
    """The same path in a third of the characters."""
    left, top, right, low = (float(number) for number in path.groups())
    return f"M{left:g} {top:g}h{right - left:.4g}v{low - top:.4g}h{left - right:.4g}z"


def front_figure(safe: Simulation, tight: Simulation, front: Simulation) -> Figure:
    """Step time over memory: the safe plans, the faster tight ones, and the front's line."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.set_facecolor("none")
    order = np.argsort(front.peak_memory_bytes)
    steps = _gib(front)[order], front.step_time_s[order]
    axes.step(*steps, where="post", color=ACCENT, linewidth=1.2)
    axes.plot(*steps, "o", color=ACCENT, markersize=3)
    axes.plot(_gib(safe), safe.step_time_s, "o", color=ACCENT, markersize=5)
    axes.plot(
        *(_gib(tight), tight.step_time_s, "D"),
        color=WARNING,
        markerfacecolor=RIM,
        markersize=5,
    )
    capacity = safe.memory_capacity_bytes / GIB
    lines = ((capacity * safe.memory_limit, "safe limit", "--"), (capacity, "the GPU", "-"))
    for place, words, style in lines:
        axes.axvline(place, color=MUTED, linewidth=0.9, linestyle=style)
        axes.annotate(
            words,
            (place, 1.01),
            xycoords=("data", "axes fraction"),
            color=MUTED,
            fontsize=10.5,
            ha="center",
        )
    for i in _apart(safe, tight, axes):
        axes.annotate(
            str(i + 1),
            (_gib(safe)[i], safe.step_time_s[i]),
            *((5, 4), "data", "offset points"),
            fontsize=10.5,
            color=INK,
        )
    axes.set_xlabel("peak memory of the fullest stage, GiB", color=INK, fontsize=11)
    axes.set_ylabel("step time, s", color=INK, fontsize=11)
    axes.tick_params(colors=MUTED, labelcolor=INK, labelsize=10.5)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(MUTED)
    return figure


def _gib(simulation: Simulation) -> FloatArray:
    return np.asarray(simulation.peak_memory_bytes / GIB)


def _apart(safe: Simulation, tight: Simulation, axes: Any) -> list[int]:
    """Positions of safe plans: a number beside them covers neither another number nor a mark;
    the first has one in any case.
    """
    both = Simulation.concatenate([safe, tight])
    places = axes.transData.transform(np.column_stack([_gib(both), both.step_time_s]))
    shown: list[int] = []
    for i, place in enumerate(places[: len(safe)]):
        ahead, above = (places - place).T
        width = 12 + 10 * len(str(i + 1))
        marks = (ahead > 3) & (ahead < width) & (above > -2) & (above < 24)
        numbers = np.abs((places[shown] - place) / (28, 20)).max(axis=1) < 1
        if i == 0 or not (marks.any() or numbers.any()):
            shown.append(i)
    return shown
