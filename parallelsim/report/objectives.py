"""Token budgets and cluster sizes, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from parallelsim.report.labels import degrees
from parallelsim.report.tables import Column, print_line, print_table
from parallelsim.units import format_bytes, format_count, format_percent, format_seconds

if TYPE_CHECKING:
    from parallelsim.objectives import Budget, Choice
    from parallelsim.simulate import Simulation

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


def budget_words(budget: Budget, simulation: Simulation) -> str:
    """Days, GPU-hours and price of all tokens with the first plan; empty without tokens."""
    if budget.tokens is None:
        return ""
    rate = float(simulation.tokens_per_s[0])
    each = float(simulation.tokens_per_s_per_gpu[0])
    words = f"{format_count(budget.tokens)} tokens with plan 1: {_number(budget.days(rate))} days, "
    words += f"{_number(budget.gpu_hours(each))} GPU-hours"
    if (dollars := budget.dollars(each)) is not None:
        price = f"{budget.dollars_per_gpu_hour:g} $ a GPU-hour"
        cluster = simulation.cluster
        if cluster.price_date and budget.dollars_per_gpu_hour == cluster.dollars_per_gpu_hour:
            price += f", {cluster.name} as of {cluster.price_date}"
        words += f", {_number(dollars)} $ ({price})"
    if budget.deadline_days is not None:
        met = "meets" if budget.is_met(rate) else "misses"
        words += f"; that {met} the deadline of {budget.deadline_days:g} days"
    return f"{words}. Restarts, checkpoints and evaluation are not counted."


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


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
    each = float(row["tokens_per_s_per_gpu"])
    cells = [
        "*" if row is choice.best else "",
        str(row["num_gpus"]),
        str(row["global_batch_size"]),
        format_seconds(float(row["step_time_s"])),
        f"{each:.0f}",
        f"{float(row['mfu']):.1%}",
        f"{float(row['memory_use_frac']):.0%}",
    ]
    if budget.tokens is not None:
        cells += [_number(budget.days(float(row["tokens_per_s"]))), _number(budget.gpu_hours(each))]
        cells += [_number(budget.dollars(each))] if budget.dollars_per_gpu_hour is not None else []
    return cells


def memory_words(simulation: Simulation, fastest: Simulation) -> str:
    """What the least memory is, and what it costs against the fastest safe plan."""
    peak, step = float(simulation.peak_memory_bytes[0]), float(simulation.step_time_s[0])
    first = float(fastest.step_time_s[0])
    return (
        f"Plan 1 needs the least memory of all plans, {format_bytes(peak)} of "
        f"{format_bytes(simulation.memory_capacity_bytes)}. The fastest safe plan "
        f"({degrees(fastest.plans.plan(0))}) takes {format_seconds(first)} and "
        f"{format_bytes(float(fastest.peak_memory_bytes[0]))}: plan 1 takes "
        f"{format_percent(step / first - 1)} longer."
    )


def objective_document(
    objective: str, budget: Budget, simulation: Simulation, choice: Choice | None
) -> dict[str, Any]:
    """What ``plan --json`` says of objective and budget."""
    rate = float(simulation.tokens_per_s[0])
    each = float(simulation.tokens_per_s_per_gpu[0])
    document: dict[str, Any] = {
        "objective": objective,
        "tokens": budget.tokens,
        "deadline_days": budget.deadline_days,
        "dollars_per_gpu_hour": budget.dollars_per_gpu_hour,
        "days": budget.days(rate),
        "gpu_hours": budget.gpu_hours(each),
        "dollars": budget.dollars(each),
        "meets_deadline": budget.is_met(rate),
    }
    if choice:
        sizes = []
        for row in choice.tried:
            known = row["step_time_s"] is not None
            names = ("num_gpus", "global_batch_size", "status", "step_time_s", "tokens_per_s")
            size = {name: row[name] for name in names}
            size["days"] = budget.days(float(row["tokens_per_s"])) if known else None
            of_gpu = row["tokens_per_s_per_gpu"]
            size["tokens_per_s_per_gpu"] = of_gpu
            size["gpu_hours"] = budget.gpu_hours(float(of_gpu)) if known else None
            sizes.append(size)
        document["sizes"] = sizes
    return document
