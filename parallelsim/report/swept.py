"""The points of a sweep as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from parallelsim.report.plans import CP_MARKS, EP_MARKS, LAYOUT_MARKS
from parallelsim.report.tables import Column, print_line, print_table
from parallelsim.report.whole_run import number_words
from parallelsim.sweep import COSTS
from parallelsim.units import format_seconds

PLAN_COLUMNS = (
    Column("TP"),
    Column("CP"),
    Column("PP"),
    Column("VP", priority=4),
    Column("EP", priority=1),
    Column("DP"),
    Column("MB"),
    Column("Z", priority=6),
    Column("recomp.", "left", priority=3),
)
"""Headers of :func:`plan_cells`."""
_COLUMNS = (
    Column("", "left"),
    Column("GPUs"),
    Column("tokens"),
    Column("batch"),
    *PLAN_COLUMNS,
    Column("step"),
    Column("tok/s/GPU"),
    Column("MFU", priority=2),
    Column("mem", priority=5),
    Column("scaling", priority=1),
    Column("days"),
    Column("GPU-hours"),
    Column("dollars"),
)
_OPTIONAL = ("", "EP", "days", "GPU-hours", "dollars")
FRONT_MEANS = "* no other size trains as many tokens both sooner and with fewer GPU-hours"
"""Below a table with such marks."""


def print_sweep(rows: Sequence[Mapping[str, Any]]) -> None:
    """The best plan of each point, and why some have none."""
    found = [row for row in rows if row["step_time_s"] is not None]
    cells = [_cells(row) for row in found]
    empty = ("", "1")  # marks, costs and ep where there are none
    keep = [
        i
        for i, column in enumerate(_COLUMNS)
        if column.header not in _OPTIONAL or any(row[i] not in empty for row in cells)
    ]
    left_out = print_table([_COLUMNS[i] for i in keep], [[row[i] for i in keep] for row in cells])
    if left_out:
        print_line(f"left out for width: {', '.join(left_out)}")
    if words := mark_words(found):
        print_line(words)
    if any(row["on_front"] for row in found):
        print_line(FRONT_MEANS)
    for row in rows:
        if row["step_time_s"] is None:
            batch = f", batch {row['batch']}" if row["batch"] else ""
            place = f"{row['num_gpus']} GPUs, {row['seq_length']} tokens{batch}"
            print_line(f"{place}: {row['status']}")


def _cells(row: Mapping[str, Any]) -> list[str]:
    return [
        "*" if row["on_front"] else "",
        *(str(row[name]) for name in ("num_gpus", "seq_length", "global_batch_size")),
        *plan_cells(row),
        format_seconds(row["step_time_s"]),
        f"{row['tokens_per_s_per_gpu']:.0f}",
        f"{row['mfu']:.1%}",
        f"{row['memory_use_frac']:.0%}",
        f"{row['scaling_efficiency']:.1%}",
        *(number_words(row[name]) if row[name] is not None else "" for name in COSTS[1:]),
    ]


def plan_cells(row: Mapping[str, Any]) -> list[str]:
    """TP, CP, PP, VP, EP, DP, MB, Z and recompute of a row of a sweep, as tables show them."""
    return [
        str(row["tp"]),
        f"{row['cp']}{CP_MARKS.get(str(row['cp_comm_type']), '')}",
        f"{row['pp']}{LAYOUT_MARKS.get(str(row['layout']), '')}",
        str(row["vpp"]),
        f"{row['ep']}{EP_MARKS.get(str(row['moe_dispatcher']), '')}" if int(row["ep"]) > 1 else "1",
        *(str(row[name]) for name in ("dp", "micro_batch_size", "zero", "recompute")),
    ]


def mark_words(rows: Iterable[Mapping[str, Any]]) -> str:
    """What the marks of :func:`plan_cells` mean, as far as any row has them; else empty."""
    shown = {}
    for row in rows:
        shown[f"CP {CP_MARKS.get(str(row['cp_comm_type']), '')}"] = str(row["cp_comm_type"])
        shown[f"PP {LAYOUT_MARKS.get(str(row['layout']), '')}"] = f"layout {row['layout']}"
        if int(row["ep"]) > 1:
            shown[f"EP {EP_MARKS.get(str(row['moe_dispatcher']), '')}"] = str(row["moe_dispatcher"])
    marks = sorted(f"{mark} = {name}" for mark, name in shown.items() if not mark.endswith(" "))
    return ", ".join(marks)
