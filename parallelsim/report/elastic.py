"""Runs that lose nodes, for people and for programs."""

from __future__ import annotations

from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Any

from parallelsim.report.swept import PLAN_COLUMNS, mark_words, plan_cells
from parallelsim.report.tables import Column, print_line, print_table
from parallelsim.units import format_duration, format_seconds

if TYPE_CHECKING:
    from parallelsim.elastic import Elastic, Shrunk
    from parallelsim.fit import Task
    from parallelsim.sweep import Row
    from parallelsim.whole_run import Budget

_COLUMNS = (
    Column("GPUs left"),
    Column("used"),
    *PLAN_COLUMNS,
    Column("step"),
    Column("speed"),
    Column("mem", priority=5),
    Column("switch"),
    Column("pays after"),
)


def print_elastic(task: Task, found: Elastic) -> None:
    """The plans, and when to switch to them."""
    full = found.full
    print_line(
        f"{task.model.name} on {full['num_gpus']} x {task.cluster.accelerator.name}, "
        f"{task.framework.name}, {task.precision}, batch {full['global_batch_size']} at all sizes"
    )
    print_line("")
    rows = [_cells(str(full["num_gpus"]), full, full, None)]
    for _, alike in groupby(found.sizes, key=lambda size: size.used and size.used["num_gpus"]):
        sizes = list(alike)
        left = str(sizes[0].num_gpus)
        left += f"-{sizes[-1].num_gpus}" if len(sizes) > 1 else ""
        rows.append(_cells(left, sizes[0].used, full, sizes[0]))
    experts = any(row[6] not in ("1", "-") for row in rows)
    keep = [i for i, column in enumerate(_COLUMNS) if experts or column.header != "EP"]
    left_out = print_table([_COLUMNS[i] for i in keep], [[row[i] for i in keep] for row in rows])
    if left_out:
        print_line(f"left out for width: {', '.join(left_out)}")
    if words := mark_words(row for row in found.rows if row["step_time_s"] is not None):
        print_line(words)
    print_line("")
    print_line(_meaning(found))


def _meaning(found: Elastic) -> str:
    tried = len(found.rows)
    without = sum(row["step_time_s"] is None for row in found.rows)
    lost, restart = format_duration(found.lost_s), format_duration(found.restart_s)
    words = (
        "pays after: switch where the repair is expected to take longer, else wait. A failure "
        f"undoes {lost} of training on average, either way; a restart on all GPUs takes {restart}. "
        "speed: tokens/s over that of all GPUs, with checkpoints and failures. "
        f"{tried} sizes were tried"
    )
    words += f", {without} without a safe plan at this batch" if without else ""
    return f"{words}; each number of GPUs uses the fastest size up to it."


def _cells(left: str, row: Row | None, full: Row, size: Shrunk | None) -> list[str]:
    if row is None:
        return [left, "none", *["-"] * (len(_COLUMNS) - 2)]
    return [
        left,
        str(row["num_gpus"]),
        *plan_cells(row),
        format_seconds(row["step_time_s"]),
        f"{row['kept_tokens_per_s'] / full['kept_tokens_per_s']:.1%}",
        f"{row['memory_use_frac']:.0%}",
        format_duration(size.switch_s) if size else "",
        format_duration(size.pays_after_s) if size else "",
    ]


def elastic_document(task: Task, found: Elastic, budget: Budget) -> dict[str, Any]:
    """``elastic --json``: all that :class:`parallelsim.elastic.Elastic` holds."""
    assert budget.faults
    return {
        "model": task.model.name,
        "cluster": task.cluster.name,
        "framework": task.framework.name,
        "num_gpus": found.full["num_gpus"],
        "global_batch_size": found.full["global_batch_size"],
        "seq_length": task.model.seq_length,
        "precision": task.precision,
        **asdict(budget.faults),
        **asdict(found),
    }
