"""``parallelsim sweep``: the best plan at many sizes, lengths and batches."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from parallelsim.cli_inputs import fit_task, shown_path, with_defaults
from parallelsim.cli_options import (
    SearchOptions,
    SpecOptions,
    json_option,
    only_grid,
    search_options,
    spec_options,
)
from parallelsim.cli_progress import shown_progress
from parallelsim.cli_values import axis, sequence_length, whole_number
from parallelsim.cli_whole_run import RunOptions, run_options
from parallelsim.errors import EXIT_INTERRUPTED, NoFeasiblePlanError, OutputError, SpecError
from parallelsim.planfile import MAX_BATCH, MAX_GPUS
from parallelsim.processes import num_cores

if TYPE_CHECKING:
    from parallelsim.fit import Task
    from parallelsim.sweep import Point, Row

MAX_POINTS = 2000
PICTURES = ("png", "svg", "html")


@click.command()
@partial(spec_options, without=("num_gpus", "seq_length", "global_batch_size"))
@click.option(
    "--gpus",
    "-n",
    "sizes",
    type=axis(whole_number(1, MAX_GPUS)),
    required=True,
    metavar="N..N|N,...",
    help="Numbers of GPUs: 64..4096 doubles from 64 to 4096.",
)
@click.option(
    "--seq-length",
    "-s",
    "lengths",
    type=axis(sequence_length),
    metavar="TOKENS,...",
    help="Tokens of a sequence, as 4k,32k,128k.  [default: the model's own]",
)
@click.option(
    "--global-batch-size",
    "-b",
    "batches",
    type=axis(whole_number(1, MAX_BATCH)),
    metavar="N,...",
    help="Sequences of one optimizer step.  [default: the model's own tokens at every length]",
)
@search_options
@run_options
@click.option(
    "--pareto",
    is_flag=True,
    help="Mark the sizes that no other one beats both in time and in GPU-hours, as --tokens does.",
)
@click.option(
    "--output",
    "-o",
    "outputs",
    multiple=True,
    metavar="FILE.csv|png|svg|html",
    help="Table or picture. A table that this sweep began is taken up. Repeatable.",
)
@click.option(
    "--processes",
    type=whole_number(1, 1024),
    metavar="N",
    help="Searches at once.  [default: one for each CPU core]",
)
@json_option
@click.option("--force", is_flag=True, help="Replace existing files.")
def sweep(
    spec: SpecOptions,
    sizes: tuple[int, ...],
    lengths: tuple[int, ...] | None,
    batches: tuple[int, ...] | None,
    search: SearchOptions,
    run: RunOptions,
    pareto: bool,
    outputs: tuple[str, ...],
    processes: int | None,
    as_json: bool,
    force: bool,
) -> int:
    """Find the best plan for every combination of GPUs, sequence length and batch.

    Scaling efficiency is tokens/s of a GPU over that of the smallest cluster of the same sequence
    length and batch.
    """
    from parallelsim import sweep as sweeps

    only_grid(search, "sweep")
    if run.deadline_days is not None:
        raise click.UsageError("--deadline-days needs plan --objective fewest-gpus")
    table, pictures = _outputs(spec, outputs, force)
    spec = with_defaults(spec)
    task = fit_task(spec, search)
    wanted = _points(task, sizes, lengths, batches)
    budget = run.budget(task.cluster)
    inputs = _inputs(task, spec, search)
    rows: dict[Any, Row] = {}
    if table and os.path.exists(table) and not force:
        rows = {tuple(row[n] for n in sweeps.AXES): row for row in sweeps.read_table(table, inputs)}
        done = sum(point.key in rows for point in wanted)
        click.echo(f"note: {done} of {len(wanted)} points are in {shown_path(table)}", err=True)
    missing = [point for point in wanted if point.key not in rows]
    cores = processes or num_cores()
    try:
        with shown_progress(quiet=as_json):
            for row in sweeps.run(task, missing, cores):
                rows[tuple(row[name] for name in sweeps.AXES)] = row
                _write_table(table, sweeps.with_scaling(rows.values()), inputs)
    except KeyboardInterrupt:
        _say_interrupted(table, sum(point.key in rows for point in wanted), len(wanted))
        return EXIT_INTERRUPTED
    own = sweeps.with_scaling(rows[point.key] | inputs for point in wanted)
    whole = sweeps.with_scaling(rows.values())
    if pareto or budget.tokens is not None:
        from parallelsim.objectives import with_costs

        own, whole = (with_costs(task, budget, part) for part in (own, whole))
    _write_table(table, whole, inputs)
    _report(task, spec, own, table, pictures, as_json=as_json, force=force)
    if not any(row["status"] == sweeps.FOUND for row in own):
        raise NoFeasiblePlanError(f"no point has a safe plan; the first: {own[0]['status']}")
    return 0


def _outputs(
    spec: SpecOptions, outputs: Sequence[str], force: bool
) -> tuple[str | None, list[str]]:
    """(the table, the pictures), all of which can be written.

    Raises:
        OutputError, click.UsageError: what is wrong with them.
    """
    from parallelsim.input_files import input_files
    from parallelsim.output_files import check_writable

    read = input_files(spec.model, spec.cluster, spec.framework)
    tables = [path for path in outputs if path.lower().endswith(".csv")]
    pictures = [path for path in outputs if path.lower().endswith(PICTURES)]
    for path in outputs:
        if path not in (*tables, *pictures):
            raise OutputError(f"{path[:200]}: expected a name that ends in .csv, .png, .svg, .html")
        # A table that exists is taken up, not replaced: reading it decides.
        check_writable(path, force=force or path in tables, inputs=read)
    if len(tables) > 1:
        raise click.UsageError("--output: one table, please")
    if len({os.path.realpath(path) for path in outputs}) < len(outputs):
        raise click.UsageError("--output: the same file twice")
    return (tables[0] if tables else None), pictures


def _points(
    task: Task,
    sizes: Sequence[int],
    lengths: Sequence[int] | None,
    batches: Sequence[int] | None,
) -> list[Point]:
    """All points of the sweep.

    Raises:
        SpecError: a size that the cluster cannot have, a length that the model cannot, too many.
    """
    from parallelsim.sweep import points

    for size in sizes:
        task.cluster.with_num_gpus(size)
    for length in lengths or ():
        task.model.with_seq_length(length)
    if batches is None and task.model.default_global_batch_tokens < 1:
        raise SpecError(f"{task.model.name} states no batch; give --global-batch-size (sequences)")
    found = points(sizes, lengths or (task.model.seq_length,), batches or (None,))
    if len(found) > MAX_POINTS:
        raise SpecError(f"{len(found)} points are too many for one sweep, at most {MAX_POINTS}")
    return found


def _inputs(task: Task, spec: SpecOptions, search: SearchOptions) -> dict[str, str]:
    """What all rows of a table share."""
    import hashlib
    from importlib.metadata import version

    limits = {name: list(values) for name, values in search.limits.items()}
    options = asdict(replace(search, limits={})) | {"limits": limits}
    options |= {"set": dict(spec.overrides), "nic_gbit_per_s": spec.nic_gbit_per_s}
    facts = repr((task.model, task.cluster, task.framework, version("parallelsim")))
    return {
        "model": task.model.name,
        "cluster": task.cluster.name,
        "framework": task.framework.name,
        "precision": task.precision,
        "options": json.dumps(options, sort_keys=True),
        "digest": hashlib.sha256(facts.encode()).hexdigest()[:16],
    }


def _write_table(table: str | None, rows: list[Row], inputs: dict[str, str]) -> None:
    """The whole table at once: an interrupt, or a kill, leaves the last whole one."""
    from parallelsim.output_files import write_text
    from parallelsim.sweep import table_text

    if table and rows:
        write_text(table, table_text(rows, inputs), force=True)


def _say_interrupted(table: str | None, done: int, number: int) -> None:
    kept = "no point is done" if table else "nothing is kept; give --output FILE.csv"
    if table and done:
        kept = f"{done} of {number} points are in {shown_path(table)}: the same command goes on"
    click.echo(f"note: interrupted; {kept}", err=True)


def _report(
    task: Task,
    spec: SpecOptions,
    rows: list[Row],
    table: str | None,
    pictures: Sequence[str],
    *,
    as_json: bool,
    force: bool,
) -> None:
    from parallelsim.output_files import write_text

    changed = "".join(f", {name}={value}" for name, value in spec.overrides.items())
    title = f"{task.model.name}{changed} on {task.cluster.name} ({task.cluster.accelerator.name}), "
    title += f"{task.framework.name}, {task.precision}"
    for path in pictures:
        from parallelsim.report.sweep_plot import sweep_picture

        kind = path.rpartition(".")[2].lower()
        write_text(path, sweep_picture(rows, title, kind), force=force)
    for path in (*([table] if table else []), *pictures):
        click.echo(f"wrote {shown_path(path)}", err=True)
    if as_json:
        from parallelsim.report.documents import json_text

        click.echo(json_text("sweep", {"title": title, "points": rows}))
        return
    from parallelsim.report.swept import print_sweep
    from parallelsim.report.tables import paragraph

    click.echo(f"{paragraph(title)}\n")
    print_sweep(rows)
