"""A sweep as a picture. matplotlib is imported when asked for."""

from __future__ import annotations

import html
import io
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from parallelsim.units import format_count

KINDS = ("png", "svg", "html")
MAX_NAMES = 20
"""Series that the legend has room for."""


def sweep_picture(rows: Sequence[Mapping[str, Any]], title: str, kind: str) -> bytes:
    """Tokens/s of a GPU and scaling efficiency over the number of GPUs; where all points have one
    size, tokens/s of a GPU and MFU over the length of the sequence.

    Args:
        rows: of :func:`parallelsim.sweep.with_scaling`.
        title: what was swept.
        kind: ``png``, ``svg``, or ``html``: one page with the picture as SVG inside.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 2)
    found = [row for row in rows if row["step_time_s"] is not None]
    over = "num_gpus" if len({row["num_gpus"] for row in found}) > 1 else "seq_length"
    words = {
        "num_gpus": ("GPUs", "scaling_efficiency", "tokens/s/GPU over the smallest"),
        "seq_length": ("tokens of a sequence", "mfu", "MFU"),
    }
    across, second, second_label = words[over]
    for name, series in _series(found, over):
        for panel, column in zip(axes, ("tokens_per_s_per_gpu", second), strict=True):
            xs, ys = [row[over] for row in series], [row[column] for row in series]
            panel.plot(xs, ys, marker="o", markersize=4, label=name)
    for panel, label in zip(axes, ("tokens/s/GPU", second_label), strict=True):
        ticks = sorted({row[over] for row in found})
        panel.set_xscale("log", base=2)
        panel.set_xticks(ticks, [format_count(t) if t >= 10_000 else str(t) for t in ticks])
        panel.minorticks_off()
        panel.set_xlabel(across)
        panel.set_ylabel(label)
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
    if 1 < len(axes[0].lines) <= MAX_NAMES:
        axes[0].legend(fontsize=8, frameon=False)
    figure.suptitle(title.replace("$", r"\$"), fontsize=10)
    stream = io.BytesIO()
    if kind == "png":
        figure.savefig(stream, format="png", dpi=110, metadata={"Software": None})
        return stream.getvalue()
    with mpl.rc_context({"svg.hashsalt": "parallelsim"}):  # the same picture every time
        figure.savefig(stream, format="svg", metadata={"Date": None})
    picture = stream.getvalue()
    return picture if kind == "svg" else _page(title, picture.decode())


def _series(
    rows: Sequence[Mapping[str, Any]], over: str
) -> list[tuple[str, list[Mapping[str, Any]]]]:
    """Points of one line of the picture, under what they share."""

    def key(row: Mapping[str, Any]) -> tuple[int, int]:
        return (row["batch"] or 0, 0 if over == "seq_length" else row["seq_length"])

    found = []
    for (batch, length), group in itertools.groupby(sorted(rows, key=key), key):
        words = [f"{length} tokens"] if length else []
        words += [f"batch {batch}"] if batch else []
        found.append((", ".join(words) or "best plan", list(group)))
    return found


def _page(title: str, picture: str) -> bytes:
    shown = html.escape(title)
    page = (
        f'<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{shown}</title>'
        "</head>\n"
        '<body style="font-family: sans-serif; max-width: 1100px; margin: 2em auto">\n'
        f"<h1>{shown}</h1>\n{picture[picture.index('<svg') :]}\n</body>\n</html>\n"
    )
    return page.encode()
