"""One plan in full, and plans side by side."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from parallelsim.report.labels import (
    MEMORY_LABELS,
    TIME_LABELS,
    degrees,
    label,
    step_interval,
    switches,
    verdict,
)
from parallelsim.report.tables import GAP, Column, paragraph, print_table
from parallelsim.simulate import ZONES
from parallelsim.units import GIB, format_bytes, format_count, format_percent, format_seconds

if TYPE_CHECKING:
    from parallelsim.compare import Comparison
    from parallelsim.simulate import Simulation

MAX_STAGES = 16
"""Stages shown one by one; of more, the first, the last and the fullest."""
_SHORT_MEMORY = {
    "parameters_bytes": "params",
    "gradients_bytes": "grads",
    "optimizer_bytes": "optim",
    "activations_bytes": "activ",
    "loss_bytes": "loss",
    "working_bytes": "working",
    "fragmentation_bytes": "fragm",
    "constant_bytes": "const",
}
_SHORT_VERDICTS = {"safe": "fits", "tight": "tight", "out": "too large"}


def print_simulation(simulation: Simulation, broken: Sequence[str]) -> None:
    """Verdict, time by term, memory by stage and term."""
    row = simulation.row(0)
    plan = simulation.plans.plan(0)
    _say("plan:", degrees(plan), switches(plan))
    click.echo("")
    for message in broken:
        click.echo(paragraph(f"cannot run: {message}"))
    _say(
        "memory:",
        f"{verdict(row['zone'], row['p_fits'])}, P(fits) {row['p_fits']:.0%}",
        f"the fullest stage, {row['fullest_stage']}, needs "
        f"{format_bytes(row['peak_memory_bytes'])} of "
        f"{format_bytes(row['memory_capacity_bytes'])} "
        f"({format_percent(row['memory_use_frac'])})",
    )
    step = step_interval(row["step_time_s"], row["step_time_low_s"], row["step_time_high_s"])
    _say("step:", step, row["regime"])
    _say(
        "speed:",
        f"{format_count(row['tokens_per_s'])} tokens/s, "
        f"{row['tokens_per_s_per_gpu']:.0f} tokens/s/GPU",
        f"MFU {format_percent(row['mfu'])}, HFU {format_percent(row['hfu'])} "
        "(of the dense peak; causal attention halved)",
    )
    click.echo("")
    print_table(
        (Column("time", "left"), Column("step"), Column("share", priority=1)),
        [
            *_time_rows(row["time"], row["step_time_s"]),
            ["step", format_seconds(row["step_time_s"]), "100.0 %"],
        ],
    )
    click.echo("\nMemory by stage, GiB")
    _print_stages(row["memory_per_stage"], row["fullest_stage"])


def _say(name: str, *sentences: str) -> None:
    """Sentences, each in lines of its own beside their name."""
    lines = "\n".join(paragraph(sentence, indent=8) for sentence in sentences)
    click.echo(name.ljust(8) + lines[8:])


def _time_rows(time: dict[str, float], step_time_s: float) -> list[list[str]]:
    shares = {name: value / step_time_s if step_time_s else 0.0 for name, value in time.items()}
    return [
        [label(name), format_seconds(time[name]), format_percent(shares[name])]
        for name in time
        if time[name]
    ]


def _print_stages(stages: Sequence[dict[str, Any]], fullest: int) -> None:
    shown = list(range(len(stages)))
    if len(stages) > MAX_STAGES:
        shown = sorted({*range(MAX_STAGES - 4), fullest, len(stages) - 2, len(stages) - 1})
    terms = [name for name in stages[0] if name.endswith("_bytes") and name != "total_bytes"]
    columns = [Column("stage"), Column("layers", priority=1)]
    columns += [Column(_SHORT_MEMORY.get(name, label(name))) for name in terms] + [Column("total")]
    rows = []
    for index in shown:
        stage = stages[index]
        mark = "*" if index == fullest else ""
        cells = [f"{mark}{stage['stage']}", f"{stage['layers']:g}"]
        rows.append([*cells, *(f"{stage[name] / GIB:.2f}" for name in (*terms, "total_bytes"))])
    print_table(columns, rows)
    hidden = len(stages) - len(shown)
    click.echo(f"* the fullest stage{f'; {hidden} stages between are not shown' if hidden else ''}")


def print_comparison(simulation: Simulation, comparison: Comparison) -> None:
    """Time and memory of each plan by term, and one sentence a plan on why the first wins."""
    for rank, plan, broken in zip(
        comparison.ranks, simulation.plans, comparison.cannot_run, strict=True
    ):
        click.echo(paragraph(f"plan {rank}: {degrees(plan)}"))
        for message in broken:
            click.echo(paragraph(f"plan {rank} cannot run: {message}"))
    click.echo("")
    rows = _comparison_rows(simulation, comparison)
    headers = [f"plan {rank}" for rank in comparison.ranks]
    headers.append(f"{comparison.ranks[1]} - {comparison.ranks[0]}")
    width = shutil.get_terminal_size().columns
    for block in _blocks(["", *headers], rows, width):
        columns = [Column("", "left"), *(Column(headers[i - 1]) for i in block)]
        print_table(columns, [[row[0], *(row[i] for i in block)] for row in rows])
        click.echo("")
    for sentence in comparison.why:
        click.echo(paragraph(sentence))


def _comparison_rows(simulation: Simulation, comparison: Comparison) -> list[list[str]]:
    """Verdict, time and memory by term: the name, a cell for each plan, and 2 - 1."""
    verdicts = [
        "cannot run" if broken else _SHORT_VERDICTS[ZONES[int(zone)]]
        for broken, zone in zip(comparison.cannot_run, simulation.zone, strict=True)
    ]
    rows = [["verdict", *verdicts, ""]]
    for name in TIME_LABELS:
        if any(comparison.time.get(name, ())):
            rows.append(_row(label(name), comparison.time[name], format_seconds))
    rows.append(_row("step", comparison.step_time_s, format_seconds))
    rows.append([""] * len(rows[0]))
    for name in MEMORY_LABELS:
        if any(comparison.memory.get(name, ())):
            rows.append(_row(label(name), comparison.memory[name], format_bytes))
    rows.append(_row("peak of the fullest stage", comparison.peak_memory_bytes, format_bytes))
    return rows


def _blocks(
    headers: Sequence[str], rows: Sequence[Sequence[str]], width: int
) -> Iterator[list[int]]:
    """Positions of columns, in order, as many at a time as fit beside the first one."""
    sizes = [max(len(row[i]) for row in (headers, *rows)) + GAP for i in range(len(headers))]
    block: list[int] = []
    used = sizes[0] - GAP
    for i in range(1, len(headers)):
        if block and used + sizes[i] > width:
            yield block
            block, used = [], sizes[0] - GAP
        block.append(i)
        used += sizes[i]
    yield block


def _row(name: str, values: Sequence[float], shown: Any) -> list[str]:
    difference = values[1] - values[0]
    sign = "+" if difference > 0 else "-" if difference < 0 else ""
    return [name, *(shown(value) for value in values), f"{sign}{shown(abs(difference))}"]
