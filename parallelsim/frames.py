"""Predictions as a pandas data frame and as a table for notebooks."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from itertools import islice
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from parallelsim.cluster import ClusterSpec
from parallelsim.model import ModelSpec
from parallelsim.plan import Plan
from parallelsim.plan_batch import PlanBatch
from parallelsim.rules import reasons
from parallelsim.units import GIB, format_percent, format_seconds

FIGURES = (
    "step_time_s",
    "step_time_low_s",
    "step_time_high_s",
    "tokens_per_s",
    "tokens_per_s_per_gpu",
    "mfu",
    "hfu",
    "peak_memory_bytes",
    "memory_use_frac",
    "p_fits",
    "fullest_stage",
    "replayed",
    "feasible",
)
"""Columns of one number a plan, as ``--json`` names them."""
MOST_SHOWN = 100
"""Plans of a table in notebooks and consoles."""
DEGREES = ("tp", "cp", "pp", "vpp", "ep", "dp")


class Predictions(Protocol):
    """What is shown of a :class:`~parallelsim.simulate.Simulation`."""

    @property
    def model(self) -> ModelSpec:
        """What is trained."""

    @property
    def cluster(self) -> ClusterSpec:
        """Where."""

    @property
    def plans(self) -> PlanBatch:
        """The plans, of shape [P]."""

    @property
    def time(self) -> Any:
        """A breakdown of arrays of shape [P]."""

    @property
    def memory(self) -> Any:
        """As ``time``."""

    @property
    def reasons(self) -> NDArray[np.uint8]:
        """Masks of broken rules."""

    @property
    def zones(self) -> list[str]:
        """Of each plan, in words."""


def data_frame(predictions: Predictions) -> Any:
    """A ``pandas.DataFrame`` of one row a plan, in SI units.

    Columns: the fields of :class:`~parallelsim.plan.Plan`, ``zone``, ``reasons`` (the broken rules,
    joined by "; "), those of ``FIGURES``, the terms of the step as ``time.gemm_s`` and of the
    fullest stage as ``memory.parameters_bytes``.

    Raises:
        ImportError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise ImportError("to_frame() needs pandas: pip install pandas") from None
    plans = [plan.to_dict() for plan in predictions.plans]
    columns: dict[str, Any] = {}
    for name in Plan().to_dict():
        columns[name] = [plan[name] for plan in plans]
    columns["zone"] = predictions.zones
    columns["reasons"] = ["; ".join(reasons(mask)) for mask in predictions.reasons]
    columns |= {name: getattr(predictions, name) for name in FIGURES}
    for part, breakdown in (("time", predictions.time), ("memory", predictions.memory)):
        names = [field.name for field in fields(breakdown)]
        columns |= {f"{part}.{name}": getattr(breakdown, name) for name in names}
    return pandas.DataFrame(columns)


def plans_html(predictions: Predictions, words: Sequence[str] = ()) -> str:
    """The plans in order as an HTML table under a caption, then paragraphs of ``words``; of a
    single plan the terms of its step too. Names are escaped.
    """
    text = _table(*_plans(predictions))
    if len(predictions.plans) == 1:
        text += _table("The step, term by term", ["term", "time", "share"], _terms(predictions))
    return text + "".join(f"<p>{html.escape(line)}</p>" for line in words)


def plans_text(predictions: Predictions, words: Sequence[str] = ()) -> str:
    """The plans in order as lines of text, for consoles; then ``words``."""
    caption, header, rows = _plans(predictions)
    lines = [header, *([str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = [" ".join(map(str.rjust, line, widths)) for line in lines]
    return "\n".join([caption, *table, *words])


def _plans(predictions: Predictions) -> tuple[str, list[str], list[list[object]]]:
    """Caption, header and rows."""
    where = f"{predictions.cluster.num_gpus} x {predictions.cluster.accelerator.name}"
    header = ["#", *DEGREES, "micro-batch", "zero", "recompute", "schedule", "layout"]
    header += ["step", "80 % between", "tokens/s/GPU", "MFU", "GiB", "memory", "zone"]
    columns = (getattr(predictions, name) for name in _SHOWN)
    each = zip(islice(predictions.plans, MOST_SHOWN), predictions.zones, *columns, strict=False)
    rows = [
        [*_plan_cells(rank, plan), *_number_cells(*numbers), zone]
        for rank, (plan, zone, *numbers) in enumerate(each, 1)
    ]
    number = len(predictions.plans)
    more = f", the first {len(rows)} of {number:,} plans" if number > len(rows) else ""
    return f"{predictions.model.name} on {where}{more}", header, rows


_SHOWN = (
    "step_time_s",
    "step_time_low_s",
    "step_time_high_s",
    "tokens_per_s_per_gpu",
    "mfu",
    "peak_memory_bytes",
    "memory_use_frac",
)


def _plan_cells(rank: int, plan: Plan) -> Iterator[object]:
    yield rank
    yield from (getattr(plan, name) for name in DEGREES)
    yield from (plan.micro_batch_size, plan.zero, plan.recompute_label, plan.schedule, plan.layout)


def _number_cells(
    step: float, low: float, high: float, rate: float, mfu: float, peak: float, use: float
) -> Iterator[str]:
    yield format_seconds(step)
    yield f"{format_seconds(low)} \N{EN DASH} {format_seconds(high)}"
    yield f"{rate:,.0f}"
    yield format_percent(mfu)
    yield f"{peak / GIB:.1f}"
    yield f"{use:.0%}"


def _terms(predictions: Predictions) -> Iterator[list[object]]:
    total = float(predictions.time.total_s[0])
    for field in fields(predictions.time):
        value = float(getattr(predictions.time, field.name)[0])
        if value > 0:
            name = field.name.removesuffix("_s").replace("_", " ")
            yield [name, format_seconds(value), format_percent(value / total)]


def _table(caption: str, header: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    head = "".join(f'<th scope="col">{html.escape(str(name))}</th>' for name in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in cells) + "</tr>"
        for cells in rows
    )
    return (
        f"<table><caption>{html.escape(caption)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>"
    )
