"""``parallelsim plan`` and ``parallelsim fit``."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from parallelsim.cli_inputs import Inputs, fit_task, load_inputs, run_search, shown_path
from parallelsim.cli_options import (
    SearchOptions,
    SpecOptions,
    search_options,
    spec_options,
)
from parallelsim.cli_values import whole_number
from parallelsim.errors import NoFeasiblePlanError

if TYPE_CHECKING:
    from parallelsim.fit import Fit
    from parallelsim.search.result import SearchResult
    from parallelsim.simulate import Simulation

EXIT_INTERRUPTED = 130
NUM_TIGHT_SHOWN = 3


@click.command(
    epilog="Example: parallelsim plan --model llama3-70b --gpus 256 --fix tp=8 --output plans.yaml"
)
@spec_options
@search_options
@click.option(
    "--top",
    "-k",
    type=whole_number(1, 1000),
    metavar="N",
    default=10,
    show_default=True,
    help="Plans to show.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: SI units, full names.")
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    help="Write the plans as YAML, for simulate, compare and export.",
)
@click.option(
    "--export",
    "export",
    metavar="TARGET[:FILE]",
    help="Write plan 1 as a launch script; without FILE it is printed instead of the table.",
)
@click.option("--force", is_flag=True, help="Replace existing files.")
def plan(
    spec: SpecOptions,
    search: SearchOptions,
    top: int,
    as_json: bool,
    output: str | None,
    export: str | None,
    force: bool,
) -> int:
    """Rank the ways to train a model on a cluster: fastest first, within memory."""
    from parallelsim.planfile import check_writable

    if spec.num_gpus is None:
        raise click.UsageError(
            "Missing option '--gpus': the number of GPUs ('parallelsim fit' finds the smallest)."
        )
    target, script = _export_target(export)
    if export and as_json and script is None:
        raise click.UsageError(
            "--export without a file prints a script; with --json give it a file (TARGET:FILE)"
        )
    for path in filter(None, (output, script)):
        check_writable(path, force=force)
    inputs = load_inputs(spec, spec.num_gpus)
    result = run_search(inputs, search, top)
    if not len(result.plans):
        return _no_plan(inputs, search, result, as_json)
    text = _script(inputs, target, result) if target else None
    if as_json:
        _print_json(inputs, search, result)
    elif target and script is None:
        click.echo(text, nl=False)
    else:
        _print_plans(inputs, search, result, output)
    _write_files(inputs, result, output, script, text, force)
    return EXIT_INTERRUPTED if result.partial else 0


def _export_target(export: str | None) -> tuple[str | None, str | None]:
    """``megatron:run.sh`` -> ("megatron", "run.sh")."""
    if export is None:
        return None, None
    from parallelsim.exporters import EXPORTERS

    target, colon, file = export.partition(":")
    if target not in EXPORTERS:
        raise click.UsageError(
            f"--export: unknown target {target[:60]!r}; there are {', '.join(sorted(EXPORTERS))}"
        )
    if colon and not file:
        raise click.UsageError("--export: the file name after ':' is empty")
    return target, file or None


def _script(inputs: Inputs, target: str, result: SearchResult) -> str:
    from parallelsim.exporters import EXPORTERS

    return EXPORTERS[target](
        inputs.model, inputs.cluster, inputs.framework, result.plans.plans.plan(0)
    )


def _print_json(inputs: Inputs, search: SearchOptions, result: SearchResult) -> None:
    from parallelsim.report.documents import json_text, plan_document

    click.echo(json_text(plan_document(inputs.head(), search.memory_limit, result)))


def _print_plans(
    inputs: Inputs, search: SearchOptions, result: SearchResult, output: str | None
) -> None:
    from parallelsim.compare import compare
    from parallelsim.report import plans as report
    from parallelsim.report.tables import paragraph

    best = float(result.plans.step_time_s[0])
    for note in inputs.notes:
        click.echo(f"note: {note}", err=True)
    click.echo(inputs.header(search.memory_limit) + "\n")
    report.print_ranked(result.plans)
    if len(result.faster_but_tight):
        click.echo("\nFaster but tight; run three steps first:")
        report.print_tight(result.faster_but_tight, best, len(result.plans) + 1, NUM_TIGHT_SHOWN)
    click.echo("")
    other = report.first_with_other_degrees(result.plans)
    if other:
        pair = compare(result.plans.take([0, other]), ranks=(1, other + 1))
        click.echo(paragraph(pair.why[0]))
    click.echo(paragraph(report.limits(result.plans)))
    click.echo(paragraph(report.counts(result)))
    if result.partial:
        click.echo("note: interrupted, so the ranking is partial", err=True)
    file = shown_path(output) if output else "plans.yaml"
    first = "" if output else f"the same with --output {file}, then "
    click.echo(f"next: {first}parallelsim compare {file}", err=True)
    click.echo(f"      parallelsim export {file} --rank 1 --to megatron --output run.sh", err=True)


def _write_files(
    inputs: Inputs,
    result: SearchResult,
    output: str | None,
    script: str | None,
    text: str | None,
    force: bool,
) -> None:
    from parallelsim.planfile import write_document, write_text

    sys.stdout.flush()
    if output:
        write_document(inputs.document(result.plans, result.faster_but_tight), output, force=force)
        click.echo(f"wrote {shown_path(output)}", err=True)
    if script and text is not None:
        write_text(script, text, force=force, executable=True)
        click.echo(f"wrote {shown_path(script)}", err=True)


def _no_plan(inputs: Inputs, search: SearchOptions, result: SearchResult, as_json: bool) -> int:
    """Say why there is no safe plan and what would rescue it (exit code 3, or 130)."""
    from parallelsim.report import plans as report

    if as_json:
        _print_json(inputs, search, result)
    if result.partial:
        click.echo("note: interrupted before a safe plan was found", err=True)
        return EXIT_INTERRUPTED
    click.echo(inputs.header(search.memory_limit), err=True)
    if len(result.faster_but_tight) and not as_json:
        click.echo("No plan is safe; these are tight (run three steps first):")
        report.print_tight(result.faster_but_tight, None, 1, NUM_TIGHT_SHOWN)
        sys.stdout.flush()
    if result.reasons:
        click.echo(f"rejected: {report.rejections(result.reasons)}", err=True)
    if len(result.nearest_miss):
        click.echo(f"nearest miss: {report.miss(result.nearest_miss)}", err=True)
    rescues = _rescues(inputs, search, result)
    for rescue in rescues or ["no single change that was tried; try fewer --fix and --limit"]:
        click.echo(f"would help: {rescue}", err=True)
    where = f"{inputs.model.name} on {inputs.cluster.num_gpus} x {inputs.cluster.accelerator.name}"
    raise NoFeasiblePlanError(
        f"no feasible plan for {where}: none of {result.num_candidates:,} candidates obeys "
        f"every rule and needs at most {search.memory_limit:.0%} of memory"
    )


def _rescues(inputs: Inputs, search: SearchOptions, result: SearchResult) -> list[str]:
    """Changes that lead to a safe plan, in words."""
    from parallelsim.fit import fit as smallest_fit

    rescues = []
    task = fit_task(inputs.options, search)
    for what, changed in task.changes():
        if len(changed.search(inputs.cluster.num_gpus).result.plans):
            rescues.append(what)
    num_gpus = inputs.cluster.num_gpus
    most = num_gpus * (64 if len(result.nearest_miss) else 4)
    found = smallest_fit(task, at_least=num_gpus, at_most=most, with_changes=False)
    if found.smallest:
        num_gpus = found.smallest.num_gpus
        rescues.append(f"more GPUs: {num_gpus} have a safe plan (--gpus {num_gpus})")
    return rescues


@click.command(epilog="Example: parallelsim fit --model llama3.1-405b --cluster hgx-h100")
@spec_options
@search_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON: SI units, full names.")
def fit(spec: SpecOptions, search: SearchOptions, as_json: bool) -> int:
    """Find the smallest number of GPUs that trains a model, and what binds there.

    --gpus is the size from which the search starts (default 1).
    """
    from parallelsim.fit import fit as smallest_fit
    from parallelsim.report.documents import fit_document, json_text

    task = fit_task(spec, search)
    if sys.stderr.isatty():
        task = replace(task, progress=_show_progress)
    found = smallest_fit(task, at_least=max(1, spec.num_gpus or 1))
    if task.progress:
        click.echo("\r\x1b[K", nl=False, err=True)
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
        click.echo(json_text(fit_document(head, found)))
    elif found.smallest:
        _print_fit(found)
    if not found.smallest:
        _print_misfit(found)
        raise NoFeasiblePlanError(
            f"no cluster size of {task.cluster.name} that was tried trains {task.model.name}"
        )
    return 0


def _show_progress(num_gpus: int) -> None:
    click.echo(f"\r\x1b[Ktrying {num_gpus} GPUs", nl=False, err=True)


def _print_fit(found: Fit) -> None:
    from parallelsim.report import plans as report
    from parallelsim.report.tables import paragraph

    smallest = found.smallest
    assert smallest is not None
    plans: Simulation = smallest.result.plans
    click.echo(
        f"Smallest: {smallest.num_gpus} GPUs, batch {smallest.global_batch_size} sequences.\n"
    )
    report.print_ranked(plans)
    click.echo("")
    click.echo(paragraph(report.limits(plans)))
    if found.below and len(found.below.result.nearest_miss):
        miss = report.miss(found.below.result.nearest_miss)
        click.echo(paragraph(f"With {found.below.num_gpus} GPUs the nearest plan, {miss}."))
    if not found.exhaustive:
        click.echo("Sizes below were halved, not tried one by one: a smaller odd size may fit too.")
    _print_changes(found)


def _print_changes(found: Fit) -> None:
    from parallelsim.report.tables import paragraph

    for change in found.changes:
        sentence = f"{change.fit.num_gpus} GPUs would do with {change.what}"
        plans: Simulation = change.fit.result.nearest_miss
        if "tight" in change.what:
            sentence += f"; P(fits) is {float(plans.p_fits[0]):.0%} at best"
        click.echo(paragraph(f"{sentence}."))
    if not found.changes:
        click.echo("No single change that was tried needs fewer GPUs.")


def _print_misfit(found: Fit) -> None:
    from parallelsim.report import plans as report

    if found.below:
        click.echo(f"tried up to {found.below.num_gpus} GPUs", err=True)
        click.echo(f"rejected: {report.rejections(found.below.result.reasons)}", err=True)
        if len(found.below.result.nearest_miss):
            click.echo(f"nearest miss: {report.miss(found.below.result.nearest_miss)}", err=True)
    for change in found.changes:
        click.echo(f"would help: {change.what}: {change.fit.num_gpus} GPUs", err=True)
