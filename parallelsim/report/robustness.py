"""Robustness of ranked plans: a table, sentences, and the document."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from parallelsim.report.labels import degrees
from parallelsim.report.tables import Column, print_line, print_table

if TYPE_CHECKING:
    from parallelsim.robustness import Robustness

ROBUSTNESS_MEANS = "what plans lose against the best plan of each case"


def print_robustness(found: Robustness) -> None:
    """The cases, the most robust plan, and what a step along each axis costs."""
    print_line(f"Robustness: {ROBUSTNESS_MEANS}")
    header, rows = robustness_table(found)
    columns = [Column(name, "left" if i == 0 else "right") for i, name in enumerate(header[:-1])]
    print_table([*columns, Column(header[-1], "left", priority=1)], rows)
    for line in robustness_words(found):
        print_line(line)


def robustness_table(found: Robustness) -> tuple[list[str], list[list[str]]]:
    """(header, rows): what plan 1 and the most robust plan lose in each case."""
    shown = sorted({0, found.most_robust})
    header = ["case", *(f"plan {i + 1}" for i in shown), "best there"]
    rows = [
        [case.name, *(_loss(float(case.loss_frac[i])) for i in shown), degrees(case.best)]
        for case in found.cases
    ]
    return header, rows


def robustness_words(found: Robustness) -> list[str]:
    """Which plan is the most robust, and what a step away from plan 1 costs."""
    words = f"Plan {found.most_robust + 1} is the most robust: it {_fate(found, found.most_robust)}"
    words += "" if found.most_robust == 0 else f"; plan 1 {_fate(found, 0)}"
    steps = ", ".join(f"{s.axis} {s.value} {_loss(s.loss_frac)}" for s in found.steps)
    one_step = [f"One step from plan 1, the rest chosen anew: {steps}."] if steps else []
    return [f"{words}.", *one_step]


def _fate(found: Robustness, i: int) -> str:
    """How one plan fares over all cases."""
    safe, total = len(found.cases) - int(found.num_failed[i]), len(found.cases)
    stays = "stays safe in all cases" if safe == total else f"stays safe in {safe} of {total} cases"
    return f"{stays} and loses at most {_loss(float(found.worst_frac[i]))}"


def _loss(value: float) -> str:
    return f"{value:+.1%}" if math.isfinite(value) else "does not fit"


def robustness_document(found: Robustness) -> dict[str, Any]:
    """``plan --robustness --json``; null where a plan does not fit."""
    return {
        "most_robust_rank": found.most_robust + 1,
        "num_cases_not_safe": found.num_failed.tolist(),
        "worst_loss_frac": found.worst_frac.tolist(),
        "cases": [
            {
                "name": case.name,
                "best_step_time_s": case.best_step_time_s,
                "best_plan": case.best.to_dict(),
                "loss_frac": case.loss_frac.tolist(),
            }
            for case in found.cases
        ],
        "steps": [
            {"axis": step.axis, "value": step.value, "loss_frac": step.loss_frac}
            for step in found.steps
        ],
    }
