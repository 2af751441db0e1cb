"""Token budgets and cluster sizes, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from parallelsim.report.labels import degrees
from parallelsim.report.tables import Column, print_line, print_table
from parallelsim.report.whole_run import number_words
from parallelsim.units import format_bytes, format_percent, format_seconds

if TYPE_CHECKING:
    from parallelsim.objectives import Choice
    from parallelsim.simulate import Simulation
    from parallelsim.whole_run import Budget

_COLUMNS = (
    Column("", "left"),
    Column("GPUs"),
    Column("batch", priority=3),
    Column("step"),
    Column("tok/s/GPU"),
    Column("MFU", priority=2),
    Column("mem", priority=4),
    Column("days"),
    Column("GPU-hours"),
    Column("dollars"),
)
MAX_ROWS = 16


def print_sizes(choice: Choice, budget: Budget) -> None:
    """Each size that was tried, and the chosen one."""
    found = [row for row in choice.tried if row["step_time_s"] is not None]
    shown = _around(found, choice)
    print_table(_used(budget), [_cells(row, choice, budget) for row in shown])
    left = len(found) - len(shown)
    words = f"* best for {choice.objective} of the {len(choice.tried)} sizes tried"
    words += f"; {left} not shown" if left else ""
    without = [str(row["num_gpus"]) for row in choice.tried if row["step_time_s"] is None]
    words += f"; no safe plan with {', '.join(without)} GPUs" if without else ""
    print_line(words)


def _around(found: list[Any], choice: Choice) -> list[Any]:
    """At most ``MAX_ROWS`` sizes, those next to the chosen one."""
    at = next((i for i, row in enumerate(found) if row is choice.best), 0)
    first = max(0, min(at - MAX_ROWS // 2, len(found) - MAX_ROWS))
    return found[first : first + MAX_ROWS]


def _used(budget: Budget) -> list[Column]:
    columns = list(_COLUMNS)
    if budget.tokens is None:
        return columns[:7]
    return columns if budget.dollars_per_gpu_hour is not None else columns[:9]


def _cells(row: Mapping[str, Any], choice: Choice, budget: Budget) -> list[str]:
    kept = row["kept_tokens_per_s_per_gpu"]
    cells = [
        "*" if row is choice.best else "",
        str(row["num_gpus"]),
        str(row["global_batch_size"]),
        format_seconds(float(row["step_time_s"])),
        f"{float(row['tokens_per_s_per_gpu']):.0f}",
        f"{float(row['mfu']):.1%}",
        f"{float(row['memory_use_frac']):.0%}",
    ]
    if budget.tokens is not None:
        cells += [number_words(budget.days(row["kept_tokens_per_s"]))]
        cells += [number_words(budget.gpu_hours(kept))]
    if budget.dollars_per_gpu_hour is not None:
        cells += [number_words(budget.dollars(kept))]
    return cells


def memory_words(simulation: Simulation, fastest: Simulation, max_slowdown: float) -> str:
    """What the least memory is, and what it costs against the fastest safe plan."""
    peak, step = float(simulation.peak_memory_bytes[0]), float(simulation.step_time_s[0])
    first = float(fastest.step_time_s[0])
    return (
        f"Plan 1 needs the least memory of all plans at most {100 * max_slowdown:g}% slower than "
        f"the fastest (--max-slowdown), {format_bytes(peak)} of "
        f"{format_bytes(simulation.memory_capacity_bytes)}. The fastest safe plan "
        f"({degrees(fastest.plans.plan(0))}) takes {format_seconds(first)} and "
        f"{format_bytes(float(fastest.peak_memory_bytes[0]))}: plan 1 takes "
        f"{format_percent(step / first - 1)} longer."
    )


def objective_document(
    objective: str, budget: Budget, simulation: Simulation, choice: Choice | None
) -> dict[str, Any]:
    """What ``plan --json`` says of objective and budget: of plan 1, with checkpoints and failures.

    Numbers are null without tokens, or without a price.
    """
    from parallelsim.report.whole_run import whole_run_rows

    stated = budget.tokens is not None
    row = whole_run_rows(simulation.take(slice(1)), budget)[0] if stated else {}
    document: dict[str, Any] = {
        "objective": objective,
        "tokens": budget.tokens,
        "deadline_days": budget.deadline_days,
        "dollars_per_gpu_hour": budget.dollars_per_gpu_hour,
        "days": row.get("days"),
        "gpu_hours": row.get("gpu_hours"),
        "dollars": row.get("dollars"),
        "meets_deadline": _meets(row.get("days"), budget),
    }
    if choice:
        document["sizes"] = [_size_document(row, budget) for row in choice.tried]
    return document


def _meets(days: float | None, budget: Budget) -> bool:
    if budget.tokens is None or budget.deadline_days is None:
        return True
    return days is not None and days <= budget.deadline_days


def _size_document(row: Mapping[str, Any], budget: Budget) -> dict[str, Any]:
    rates = ("tokens_per_s", "tokens_per_s_per_gpu", "goodput")
    names = ("num_gpus", "global_batch_size", "status", "step_time_s", *rates)
    size = {name: row[name] for name in names}
    known, kept = row["step_time_s"] is not None, row["kept_tokens_per_s_per_gpu"]
    size["days"] = budget.days(row["kept_tokens_per_s"]) if known else None
    size["gpu_hours"] = budget.gpu_hours(kept) if known else None
    return size
