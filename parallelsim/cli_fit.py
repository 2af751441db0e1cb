"""``parallelsim fit``: the smallest cluster that trains a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from parallelsim.cli_inputs import fit_task
from parallelsim.cli_options import (
    SearchOptions,
    SpecOptions,
    json_option,
    only_grid,
    search_options,
    spec_options,
)
from parallelsim.cli_progress import shown_progress
from parallelsim.errors import NoFeasiblePlanError

if TYPE_CHECKING:
    from parallelsim.fit import Fit, SizedResult, Task
    from parallelsim.simulate import Simulation


@click.command()
@spec_options
@search_options
@json_option
def fit(spec: SpecOptions, search: SearchOptions, as_json: bool) -> int:
    """Find the smallest number of GPUs that trains a model, and what binds there.

    --gpus is the size from which the search starts (default 1).
    """
    from parallelsim.fit import fit as smallest_fit
    from parallelsim.report.documents import fit_document, json_text

    only_grid(search, "fit")
    task = fit_task(spec, search)
    with shown_progress(quiet=as_json):
        found = smallest_fit(task, at_least=max(1, spec.num_gpus or 1))
    if as_json:
        head = {
            "model": task.model.name,
            "overrides": dict(spec.overrides),
            "cluster": task.cluster.name,
            "framework": task.framework.name,
            "seq_length": task.model.seq_length,
            "precision": task.precision,
            "memory_limit": task.memory_limit,
        }
        click.echo(json_text("fit", fit_document(head, found)))
    elif found.smallest:
        _print_fit(task, spec, found, found.smallest)
    if not found.smallest:
        _print_misfit(task, found)
        raise NoFeasiblePlanError(
            f"no cluster size of {task.cluster.name} that was tried trains {task.model.name}"
        )
    return 0


def _gpus(count: int) -> str:
    return f"{count} GPU" if count == 1 else f"{count} GPUs"


def _print_fit(task: Task, spec: SpecOptions, found: Fit, smallest: SizedResult) -> None:
    from parallelsim.default_batch import default_batch_note
    from parallelsim.report import plans as report
    from parallelsim.report.tables import paragraph

    plans: Simulation = smallest.result.plans
    batch = smallest.global_batch_size
    if task.global_batch_size is None:
        note = default_batch_note(task.model, smallest.num_gpus, batch)
        click.echo(f"note: {note} (--global-batch-size)", err=True)
    lines = report.header(
        task.model,
        task.cluster.with_num_gpus(smallest.num_gpus),
        task.framework,
        global_batch_size=batch,
        precision=task.precision,
        memory_limit=task.memory_limit,
        overrides=spec.overrides,
    )
    click.echo("\n".join(paragraph(line) for line in lines))
    click.echo(f"\nSmallest: {_gpus(smallest.num_gpus)}, batch {batch} sequences.\n")
    report.print_ranked(plans)
    click.echo("")
    click.echo(paragraph(report.limits(plans)))
    if found.below:
        click.echo(paragraph(_why_not_fewer(found.below)))
    if found.nearest and found.below and found.nearest.num_gpus < found.below.num_gpus:
        click.echo(paragraph(_why_not_fewer(found.nearest)))
    if not found.exhaustive:
        click.echo("Sizes below were halved, not tried one by one: a smaller odd size may fit too.")
    _print_changes(found)


def _why_not_fewer(below: SizedResult) -> str:
    from parallelsim.report import plans as report

    if len(below.result.nearest_miss):
        miss = report.miss(below.result.nearest_miss)
        return f"With {_gpus(below.num_gpus)} the nearest plan, {miss}."
    reasons = report.rejections(below.result.reasons) or "there is no candidate"
    return f"With {_gpus(below.num_gpus)} no plan obeys every rule: {reasons}."


def _print_changes(found: Fit) -> None:
    from parallelsim.report.tables import paragraph

    for change in found.changes:
        sentence = f"{_gpus(change.fit.num_gpus)} would do with {change.what}"
        plans: Simulation = change.fit.result.nearest_miss
        if "tight" in change.what:
            sentence += f"; P(fits) is {float(plans.p_fits[0]):.0%} at best"
        click.echo(paragraph(f"{sentence}."))
    if not found.changes and found.below and found.tried_changes:
        tried = "; ".join(found.tried_changes)
        click.echo(paragraph(f"No single change needs fewer GPUs; tried: {tried}."))


def _print_misfit(task: Task, found: Fit) -> None:
    from parallelsim.report import plans as report

    if found.refused:
        click.echo(
            f"no size can hold what --fix and --limit ask for, as the last: {found.refused}",
            err=True,
        )
    elif not found.tried:
        click.echo("--fix and --limit divide no size that the cluster can have", err=True)
    else:
        click.echo(
            f"tried {_listed(found.tried)} {'GPU' if found.tried == (1,) else 'GPUs'}", err=True
        )
        if found.ruled_out:
            click.echo(
                f"ruled out {_listed(found.ruled_out)}: what a smaller size lacks is more than "
                "sharing its memory out would mend",
                err=True,
            )
    if found.below:
        click.echo(f"rejected: {report.rejections(found.below.result.reasons)}", err=True)
        if len(found.below.result.nearest_miss):
            click.echo(
                f"nearest miss, {_gpus(found.below.num_gpus)}: "
                f"{report.miss(found.below.result.nearest_miss)}",
                err=True,
            )
    for change in found.changes:
        click.echo(f"would help: {change.what}: {_gpus(change.fit.num_gpus)}", err=True)
    if not found.changes and found.tried_changes:
        click.echo(f"no single change helps; tried: {'; '.join(found.tried_changes)}", err=True)
    if len(task.cluster.tiers) < 2:
        click.echo(
            f"{task.cluster.name} states no network between nodes: for more than "
            f"{task.cluster.domain_size} GPUs give --nic-gbit-per-s",
            err=True,
        )


def _listed(sizes: tuple[int, ...]) -> str:
    return ", ".join(str(size) for size in sizes)
