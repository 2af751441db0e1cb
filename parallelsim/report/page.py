"""The report page: one HTML file with everything that is known of ranked plans.

It needs nothing else: no network, no other file. Text of any origin is escaped by the template.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parallelsim.report import page_tables as tables
from parallelsim.report.labels import switches
from parallelsim.report.origins import origins
from parallelsim.report.plans import counts, cuts, first_with_other_degrees, limits, miss
from parallelsim.report.trust import order_words
from parallelsim.units import format_bytes, format_percent, format_seconds

if TYPE_CHECKING:
    from parallelsim.plan import Plan
    from parallelsim.robustness import Robustness
    from parallelsim.search.result import SearchResult
    from parallelsim.simulate import Simulation

GANTT_WIDTH = 1040
MOST_BARS, MOST_TIGHT_BARS = 10, 5
FRONT_MEANS = (
    "The line joins the safe plans that no other one beats in both step time and memory; dots are "
    "the plans of the ranking, diamonds those that may run out of memory."
)
SHOWN_FRONT_MEANS = (
    "Dots are the safe plans of the ranking, diamonds those that may run out of memory; the line "
    "joins those of them that no other one beats in both step time and memory."
)
GANTT_MEANS = "Optimizer, overhead and stragglers, which the step adds, are not drawn."
NOT_MODELLED = (
    "clusters of mixed GPUs, and GPUs or links slower than their kind",
    "contention with other jobs on the network",
    "the input pipeline, checkpoints, evaluation and restarts",
    "the skew of a router, unless the model's file states it (load_cv)",
    "convergence: plans are compared at the same global batch",
)


@dataclass(frozen=True)
class Report:
    """What the page is made of."""

    header: Sequence[str]
    """What is planned, in lines for people; the first names the model."""
    result: SearchResult
    is_search: bool
    """The result is of a search; else its plans were given, and nothing is known of others."""
    by_memory: bool = False
    """The ranking is by memory, not by time."""
    notes: Sequence[str] = ()
    """What was filled in by a rule rather than given."""
    command: str = ""
    """How the page was made."""
    version: str = ""
    date: str = ""
    script: str = ""
    """The launch script of plan 1."""
    no_script: str = ""
    """Why there is none."""
    robustness: Robustness | None = None
    beside: Sequence[str] = ()
    """What was asked beside the ranking, in paragraphs."""
    misfit: Sequence[str] = ()
    """Where there is no safe plan: why, and what would help."""
    facts: Sequence[tuple[str, Sequence[str]]] = ()
    """(model, cluster or framework, what is taken of it)."""
    sources: Sequence[tuple[str, Sequence[str]]] = ()
    """(model, cluster or framework, where its numbers come from)."""


def page_html(report: Report) -> str:
    """The page."""
    from importlib.resources import files

    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    folder = files("parallelsim.report")
    environment = Environment(
        loader=PackageLoader("parallelsim.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    own = {
        name: Markup(folder.joinpath(f"page.{name}").read_text(encoding="utf-8"))  # noqa: S704
        for name in ("css", "js")
    }
    context = _context(report)
    for name in ("front", "gantt"):
        context[name] = Markup(context[name]) if context[name] else None  # noqa: S704
    text = environment.get_template("page.html.j2").render(**context, **own)
    return text.encode(errors="replace").decode()


def _context(report: Report) -> dict[str, Any]:
    """What the template shows, section by section."""
    from parallelsim.correlation import trust

    result = report.result
    plans, cluster = result.plans, result.plans.cluster
    sure = trust(plans) if len(plans) and not report.by_memory else None
    rows = tables.rows_of(result, sure)
    context: dict[str, Any] = {
        "report": report,
        "rows": rows,
        "first": rows[0] if len(plans) else None,
        "model": plans.model.name,
        "gpus": f"{cluster.num_gpus} \N{MULTIPLICATION SIGN} {cluster.accelerator.name}",
        "num_safe": len(plans),
        "num_near": sum(row.is_near for row in rows),
        "table": tables.ranked_table(rows),
        "regret": sure.regret_frac if sure else 0.0,
        "order": order_words(sure) if sure else "",
        "reasons": tables.reason_rows(result.reasons, result.num_candidates),
        "counts": counts(result) if report.is_search else "",
        "miss": miss(result.nearest_miss) if len(result.nearest_miss) else "",
        "not_modelled": NOT_MODELLED,
        "seconds": format_seconds,
        "percent": format_percent,
        "size": format_bytes,
    }
    context |= _first_plan(report, rows) if len(plans) else {}
    return context | _pictures(report, rows)


def _first_plan(report: Report, rows: Sequence[tables.Row]) -> dict[str, Any]:
    """Why it wins, what it loses, and its terms."""
    from parallelsim.compare import compare

    plans = report.result.plans
    other = first_with_other_degrees(plans)
    why = compare(plans.take([0, other]), ranks=(1, other + 1)).why[0] if other else ""
    against = rows[other] if other else None
    return {
        "why": why,
        "limits": limits(plans),
        "cuts": cuts(report.result),
        "switches": switches(rows[0].plan),
        "other": against,
        "terms": tables.term_rows(rows[0], against, origins(plans, 0)),
        "peak": tables.peak_words(rows[0]),
        "robust": _robust(report.robustness) if report.robustness else None,
    }


def _robust(found: Robustness) -> Mapping[str, Any]:
    from parallelsim.report.robustness import (
        ROBUSTNESS_MEANS,
        robustness_table,
        robustness_words,
    )

    header, rows = robustness_table(found)
    words = robustness_words(found)
    return {"means": ROBUSTNESS_MEANS, "header": header, "rows": rows, "words": words}


def _pictures(report: Report, rows: Sequence[tables.Row]) -> dict[str, Any]:
    """Bars and figures; where no plan fits, those of the nearest miss."""
    from parallelsim.report.figures import front_figure, themed_svg

    result = report.result
    shown = rows or [
        tables.Row(0, result.nearest_miss, i, None, None, False, False)
        for i in range(len(result.nearest_miss))
    ]
    if not shown:
        return {"bars": [], "memory": None, "front": None, "gantt": None, "gantt_note": ""}
    longest = max(row.figure("step_time_s") for row in shown)
    memory = tables.memory_view(shown[0])
    bars = [(row, tables.time_bar(row, longest)) for row in rows]
    first = _shown_first(rows)
    pictures: dict[str, Any] = {
        "bars": [bar for bar in bars if bar[0] in first],
        "more_bars": [bar for bar in bars if bar[0] not in first],
        "time_groups": [(name, colour) for colour, name in enumerate(tables.TIME_GROUPS, 1)],
        "memory": memory,
        "memory_numbers": [[s.name, *s.cells, s.total, s.use] for s in memory.stages],
        "front": None,
    }
    if rows:
        front = result.front if result.front is not None else _front_of(rows)
        words = f"Step time over peak memory of {len(rows)} plans; the table above has the numbers"
        figure = front_figure(result.plans, result.faster_but_tight, front)
        pictures["front"] = themed_svg(figure, "front", words)
        pictures["front_means"] = FRONT_MEANS if result.front is not None else SHOWN_FRONT_MEANS
        pictures["front_rows"] = tables.front_rows(front)
    return pictures | _gantt(shown[0])


def _shown_first(rows: Sequence[tables.Row]) -> list[tables.Row]:
    """The best few of the safe plans and of those that may run out of memory."""
    distinct = [row for row in rows if not row.is_near]
    safe = [row for row in distinct if row.zone == "safe"]
    risky = [row for row in distinct if row.zone != "safe"]
    return safe[:MOST_BARS] + risky[:MOST_TIGHT_BARS]


def _front_of(rows: Sequence[tables.Row]) -> Simulation:
    """The plans that no other of them beats in step time and memory, the fastest first."""
    from parallelsim.simulate import Simulation

    every = Simulation.concatenate([row.simulation.take([row.index]) for row in rows])
    order = sorted(
        range(len(every)), key=lambda i: (every.step_time_s[i], every.peak_memory_bytes[i])
    )
    kept: list[int] = []
    for i in order:
        if not kept or every.peak_memory_bytes[i] < every.peak_memory_bytes[kept[-1]]:
            kept.append(i)
    return every.take(kept)


def _gantt(row: tables.Row) -> dict[str, Any]:
    """The pipeline of one plan, or why it is not drawn."""
    from parallelsim.errors import PlanError
    from parallelsim.replay import plan_replay
    from parallelsim.report.figures import themed_svg
    from parallelsim.report.gantt import gantt_figure

    simulation, plan = row.simulation, row.plan
    if plan.pp == 1:
        return {"gantt": None, "gantt_note": "One stage: no pipeline, and no bubble."}
    inputs = (simulation.model, simulation.cluster, simulation.framework)
    left_out = _not_drawn(plan)
    try:
        planned = plan_replay(*inputs, plan, left_out)
        figure = gantt_figure(planned.run(), GANTT_WIDTH)
    except PlanError as error:
        return {"gantt": None, "gantt_note": f"Not drawn: {error}."}
    words = f"Forwards and backwards of the {plan.pp} pipeline ranks over one step"
    drawn = plan.num_micro_batches - left_out
    note = GANTT_MEANS + (
        f" Drawn with {drawn} of the {plan.num_micro_batches} micro-batches: in the whole step "
        "the steady middle is longer, the share of the bubble smaller."
        if left_out
        else ""
    )
    return {"gantt": themed_svg(figure, "gantt", words), "gantt_note": note}


def _not_drawn(plan: Plan) -> int:
    """Micro-batches of the steady middle without which operations are wide enough to be seen."""
    from parallelsim.replay import FEWEST_TURNS

    if 2 * plan.vpp * plan.num_micro_batches <= GANTT_WIDTH:
        return 0
    return max(plan.num_micro_batches // plan.pp - FEWEST_TURNS, 0) * plan.pp
