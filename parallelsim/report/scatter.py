"""Predicted against measured, as a picture. matplotlib is imported when asked for."""

from __future__ import annotations

import html
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from parallelsim.scored_row import ScoredRow
from parallelsim.scores import FloatArray, error_score, grouped
from parallelsim.units import GIB
from parallelsim.validation import Validation

BAND = 0.10
"""Relative error of the dashed lines."""
MAX_NAMES = 36
"""Sources that the legend has room for; further ones are drawn without a name."""
NAME_LENGTH = 30


def scatter(validation: Validation, kind: str) -> bytes:
    """The plot of the main report's rows as a file.

    Args:
        validation: scored rows.
        kind: ``png``, or ``html``: one page with the picture as SVG inside.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    rows = validation.scored
    timed = [row for row in rows if row.run.step_time_s]
    weighed = [row for row in rows if row.run.peak_memory_bytes and not row.run.oom]
    order = {str(name): position for position, name in enumerate(grouped([r.group for r in rows]))}
    _panel(
        left,
        "step time, s",
        order,
        timed,
        np.array([row.run.step_time_s or np.nan for row in timed]),
        np.array([row.step_time_s for row in timed]),
    )
    _panel(
        right,
        "peak memory, GiB",
        order,
        weighed,
        np.array([row.run.peak_memory_bytes or np.nan for row in weighed]) / GIB,
        np.array([row.peak_memory_bytes for row in weighed]) / GIB,
    )
    figure.legend(
        *_legend((left, right)), loc="outside right upper", fontsize=7, frameon=False, markerscale=2
    )
    stream = io.BytesIO()
    if kind == "png":
        figure.savefig(stream, format="png", dpi=110, metadata={"Software": None})
        return stream.getvalue()
    figure.savefig(stream, format="svg", metadata={"Date": None})
    picture = stream.getvalue().decode()
    return _page(validation, picture[picture.index("<svg") :]).encode()


def _panel(
    axes: Any,
    title: str,
    order: Mapping[str, int],
    rows: Sequence[ScoredRow],
    measured: FloatArray,
    predicted: FloatArray,
) -> None:
    """One quantity: a point a run, coloured by the order of its source, the diagonal, and the band
    of 10 %.
    """
    score = error_score(predicted, measured)
    axes.set_title(title if not score.n else f"{title}: n {score.n}, MAPE {100 * score.mape:.1f} %")
    axes.set_xlabel("measured")
    axes.set_ylabel("predicted")
    if not score.n:
        return
    axes.set_xscale("log")
    axes.set_yscale("log")
    ends = np.array([min(measured.min(), predicted.min()), max(measured.max(), predicted.max())])
    ends = ends * [0.8, 1.25]
    axes.plot(ends, ends, color="0.3", linewidth=0.8)
    for factor in (1 - BAND, 1 + BAND):
        axes.plot(ends, ends * factor, color="0.6", linewidth=0.6, linestyle="--")
    for name, index in grouped([row.group for row in rows]).items():
        position = order[str(name)]
        axes.plot(
            measured[index],
            predicted[index],
            linestyle="",
            marker="osD^v"[position // 10 % 5],
            markersize=2.5,
            alpha=0.6,
            color=f"C{position % 10}",
            label=_legend_name(str(name)) if position < MAX_NAMES else None,
        )
    axes.set_xlim(*ends)
    axes.set_ylim(*ends)


def _legend_name(group: str) -> str:
    """A source as the legend has room for it, and as text, not as a formula."""
    shown = group if len(group) <= NAME_LENGTH else group[: NAME_LENGTH - 3] + "..."
    return (shown.lstrip("_") or "runs").replace("$", r"\$")


def _legend(panels: Sequence[Any]) -> tuple[list[Any], list[str]]:
    """Handles and names of all sources, each once."""
    found: dict[str, Any] = {}
    for axes in panels:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(name, handle)
    return list(found.values()), list(found)


def _page(validation: Validation, picture: str) -> str:
    tables = html.escape(", ".join(validation.tables))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8">'
        f"<title>Predicted against measured: {tables}</title></head>\n"
        '<body style="font-family: sans-serif; max-width: 1100px; margin: 2em auto">\n'
        f"<h1>Predicted against measured</h1>\n<p>{len(validation.scored)} rows of {tables}; "
        f"dashed: {BAND:.0%} off.</p>\n{picture}\n</body>\n</html>\n"
    )
