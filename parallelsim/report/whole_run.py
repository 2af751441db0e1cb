"""Whole trainings, for people and for programs: days, GPU-hours, dollars, energy, failures."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from parallelsim.units import (
    format_bytes,
    format_count,
    format_duration,
    format_percent,
)

if TYPE_CHECKING:
    from parallelsim.cluster import ClusterSpec
    from parallelsim.simulate import Simulation
    from parallelsim.whole_run import Budget, Faults

_NUMBERS = (
    "num_steps",
    "uninterrupted_days",
    "days",
    "days_low",
    "days_high",
    "p_meets_deadline",
    "num_failures",
    "gpu_hours",
    "dollars",
    "energy_kwh",
)
_RECOVERY = ("goodput", "checkpoint_bytes", "write_s", "stall_s", "restart_s", "steps_between")


def whole_run_rows(simulation: Simulation, budget: Budget) -> list[dict[str, Any]]:
    """One row a plan, plain numbers: the fields of ``WholeRun`` and of its ``Recovery``; None where
    the cluster's file states no price or no power, or the run never ends.
    """
    from parallelsim.whole_run import whole_run

    run = whole_run(simulation, budget)
    rows = []
    for index in range(len(simulation)):
        row = {name: _number(getattr(run, name), index) for name in _NUMBERS}
        row |= {name: _number(getattr(run.recovery, name), index) for name in _RECOVERY}
        row["between_failures_s"] = run.recovery.between_failures_s
        steps, step_s = run.recovery.steps_between[index], simulation.step_time_s[index]
        row["checkpoint_interval_s"] = float(steps * step_s)
        rows.append(row)
    return rows


def _number(values: Any, index: int) -> float | None:
    value = None if values is None else float(np.asarray(values)[index])
    return value if value is None or math.isfinite(value) else None


def whole_run_document(simulation: Simulation, budget: Budget) -> dict[str, Any]:
    """``whole_run`` of ``plan --json`` and ``simulate --json``: what was assumed, and the rows."""
    from dataclasses import asdict

    faults, cluster = _faults(budget, simulation.cluster), simulation.cluster
    return {
        "tokens": budget.tokens,
        "deadline_days": budget.deadline_days,
        "dollars_per_gpu_hour": budget.dollars_per_gpu_hour,
        "price_date": cluster.price_date if _is_listed(budget, cluster) else None,
        "pue": budget.pue,
        **asdict(faults),
        "plans": whole_run_rows(simulation, budget),
    }


def _faults(budget: Budget, cluster: ClusterSpec) -> Faults:
    from parallelsim.whole_run import default_faults

    return budget.faults or default_faults(cluster)


def _is_listed(budget: Budget, cluster: ClusterSpec) -> bool:
    """The price is that of the cluster's file."""
    price = cluster.dollars_per_gpu_hour
    return price is not None and price == budget.dollars_per_gpu_hour


def whole_run_words(simulation: Simulation, budget: Budget, plan: str) -> list[str]:
    """What the first plan takes and why it takes longer than its steps; empty without tokens."""
    if budget.tokens is None:
        return []
    row = whole_run_rows(simulation, budget)[0]
    tokens = f"{format_count(budget.tokens)} tokens with {plan}"
    faults, cluster = _faults(budget, simulation.cluster), simulation.cluster
    failing = f"A failure every {format_count(faults.gpu_hours_between_failures)} GPU-hours"
    if row["days"] is None:
        every = format_duration(row["between_failures_s"])
        return [f"{tokens}: never. {failing} is one every {every} here, which leaves no progress."]
    words = f"{tokens}: {number_words(row['days'])} days (80 % between "
    words += f"{number_words(row['days_low'])} and {number_words(row['days_high'])}), "
    words += f"{number_words(row['gpu_hours'])} GPU-hours"
    words += f", {_price_words(row, budget, cluster)}, {_energy_words(row, budget, cluster)}"
    if budget.deadline_days is not None:
        met = "meets" if row["days"] <= budget.deadline_days else "misses"
        words += f"; that {met} the deadline of {budget.deadline_days:g} days"
        words += f" (probability of meeting it {row['p_meets_deadline']:.0%})"
    return [f"{words}.", f"{failing}, {_failure_words(row, faults)}"]


def _price_words(row: dict[str, Any], budget: Budget, cluster: ClusterSpec) -> str:
    if row["dollars"] is None:
        return "no price in the cluster's file (--price-per-gpu-hour)"
    price = f"{budget.dollars_per_gpu_hour:g} $ a GPU-hour"
    if _is_listed(budget, cluster):
        price += f", {cluster.name} as of {cluster.price_date}"
    return f"{number_words(row['dollars'])} $ ({price})"


def _energy_words(row: dict[str, Any], budget: Budget, cluster: ClusterSpec) -> str:
    if row["energy_kwh"] is None:
        return "no power in the cluster's file"
    from parallelsim.whole_run import node_power_w

    kilowatts = (node_power_w(cluster) or 0.0) / 1e3
    size = f"{number_words(row['energy_kwh'])} kWh"
    return f"{size} ({kilowatts:.3g} kW a node of {cluster.gpus_per_node}, PUE {budget.pue:g})"


def _failure_words(row: dict[str, Any], faults: Faults) -> str:
    kind = "asynchronous" if faults.asynchronous else "blocking"
    steps = round(row["steps_between"])
    every = (
        f"{steps} step{'s' if steps > 1 else ''} ({format_duration(row['checkpoint_interval_s'])})"
    )
    number, restart = number_words(row["num_failures"]), format_duration(row["restart_s"])
    size, write = format_bytes(row["checkpoint_bytes"]), format_duration(row["write_s"])
    between = format_duration(row["between_failures_s"])
    return (
        f"here every {between}: about {number} in all, {restart} each until "
        f"training goes on; {kind} checkpoints of {size} every {every}, written in "
        f"{write}. {format_percent(row['goodput'])} of the time is progress; without failures and "
        f"checkpoints it takes {number_words(row['uninterrupted_days'])} days."
    )


def number_words(value: float | None) -> str:
    """Three significant digits from a million on and below 1000, whole between; a dash for None."""
    if value is None:
        return "-"
    if value >= 1e6:
        return format_count(value)
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
