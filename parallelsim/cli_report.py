"""``parallelsim report``: the ranked plans and all that is known of them as one HTML file."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from parallelsim.cli_answer import Answer, Asked, answer, asked_options
from parallelsim.cli_inputs import Inputs, document_inputs, shown_path
from parallelsim.cli_misfit import misfit_words
from parallelsim.cli_progress import shown_progress
from parallelsim.errors import EXIT_INTERRUPTED, ExportError, NoFeasiblePlanError, PlanError

if TYPE_CHECKING:
    from parallelsim.report.page import Report
    from parallelsim.search.result import SearchResult

WITH_FILE = frozenset({"file", "output", "force", "top", "memory_limit", "quick"})
"""Parameters that may be given beside a file of plans."""


@click.command()
@click.argument("file", required=False, metavar="[PLANS]")
@asked_options(num_plans=40)
@click.option("--output", "-o", metavar="FILE", required=True, help="The page, as report.html.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.option(
    "--quick",
    is_flag=True,
    help="Search once: without the cases in which network, GEMMs, memory and experts are "
    "otherwise.",
)
@click.pass_context
def report(
    context: click.Context,
    file: str | None,
    asked: Asked,
    output: str,
    force: bool,
    quick: bool,
) -> int:
    """Write a page that shows the plans, why the first wins, how sure that is, and its script.

    One HTML file that opens anywhere, without a network. It plans as 'parallelsim plan' does, or
    shows the plans of PLANS, which 'plan --output PLANS' wrote.
    """
    from parallelsim.input_files import input_files
    from parallelsim.output_files import check_writable

    if file is not None:
        _check_alone(context)
    else:
        asked.check()
    check_writable(output, force=force, inputs=[*asked.input_files(), *input_files(file)])
    command = shlex.join(["parallelsim", *(context.obj or ())])
    if file is not None:
        inputs, result = _saved(file, asked, output, force)
        page = _report(inputs, asked.search.memory_limit, result, command)
        _write(replace(page, is_search=False), output, force)
        return 0
    with shown_progress():
        found = answer(asked)
    if found.result.stopped == "interrupted" and not len(found.result.plans):
        click.echo("note: interrupted before a safe plan was found", err=True)
        return EXIT_INTERRUPTED
    page, why = _searched(found, command, quick)
    _write(page, output, force)
    if why:
        raise NoFeasiblePlanError(why)
    return EXIT_INTERRUPTED if found.result.stopped == "interrupted" else 0


def _check_alone(context: click.Context) -> None:
    """Refuse options that a file of plans answers already."""
    for parameter in context.command.params:
        given = context.get_parameter_source(parameter.name or "")
        if given is ParameterSource.COMMANDLINE and parameter.name not in WITH_FILE:
            raise click.UsageError(
                f"{parameter.opts[0]}: the plans of a file are shown as they are; leave it out, or "
                "leave out the file to plan anew"
            )


def _searched(found: Answer, command: str, quick: bool) -> tuple[Report, str]:
    """(the page of a search, why it has no safe plan)."""
    inputs, search, result, more = found.inputs, found.search, found.result, found.more
    page = _report(inputs, search.memory_limit, result, command)
    page = replace(page, by_memory=more.least_memory, beside=more.paragraphs(result.plans))
    if not len(result.plans):
        why, rescues = misfit_words(inputs, search, result)
        lines = [f"{line[0].upper()}{line[1:]}." for line in (why, *rescues)]
        return replace(page, misfit=lines), why
    varied = not quick and search.searcher == "grid" and not more.least_memory
    return replace(page, robustness=found.robustness() if varied else None), ""


def _saved(file: str, asked: Asked, output: str, force: bool) -> tuple[Inputs, SearchResult]:
    """The plans of a file, simulated and replayed again: safe ones, then tight ones.

    Raises:
        ParallelSimError: they cannot be read, or none of them can run.
    """
    import numpy as np

    from parallelsim.input_files import input_files
    from parallelsim.output_files import check_writable
    from parallelsim.planfile import read_document
    from parallelsim.replay import replayed
    from parallelsim.search.result import SearchResult
    from parallelsim.simulate import ZONES, simulate

    document = read_document(file)
    read = input_files(document.model, document.cluster, document.framework)
    check_writable(output, force=force, inputs=read)
    inputs = document_inputs(document, file)
    plans = [entry.plan for entry in document.plans][: asked.top]
    specs = (inputs.model, inputs.cluster, inputs.framework)
    simulation = replayed(simulate(*specs, plans, asked.search.memory_limit))
    runs = simulation.obeys_rules
    if not runs.any():
        raise PlanError(f"{file}: none of its plans can run; 'parallelsim simulate' says why")
    if not runs.all():
        click.echo(f"note: {file}: left out what cannot run: {(~runs).sum()} plans", err=True)
    order = np.argsort(simulation.step_time_s, kind="stable")
    zones = {
        name: simulation.take([i for i in order if runs[i] and ZONES[simulation.zone[i]] == name])
        for name in ZONES
    }
    result = SearchResult(
        plans=zones["safe"],
        faster_but_tight=zones["tight"],
        nearest_miss=zones["out"].take(slice(1)),
        num_candidates=len(plans),
        num_feasible=len(zones["safe"]),
        num_tight=len(zones["tight"]),
        reasons={},
        proven=False,
        elapsed_s=0.0,
        searcher="",
        cut_gain_frac=(None,) * len(zones["safe"]),
    )
    return inputs, result


def _report(inputs: Inputs, memory_limit: float, result: SearchResult, command: str) -> Report:
    """What every page has."""
    from datetime import date
    from importlib.metadata import version

    from parallelsim.report.page import Report
    from parallelsim.report.specs import CLUSTER_VIEW, FRAMEWORK_VIEW, MODEL_VIEW, sources

    options = inputs.options
    named = (
        (MODEL_VIEW, inputs.model, options.model),
        (CLUSTER_VIEW, inputs.cluster, options.cluster),
        (FRAMEWORK_VIEW, inputs.framework, options.framework),
    )
    script, no_script = _script(inputs, result)
    return Report(
        header=inputs.header_lines(memory_limit),
        result=result,
        is_search=True,
        notes=inputs.notes,
        command=command,
        version=version("parallelsim"),
        date=date.today().isoformat(),
        script=script,
        no_script=no_script,
        facts=[(view.kind.capitalize(), view.summary(spec)) for view, spec, _ in named],
        sources=[(f"the {view.kind}", sources(view.kind, name or "")) for view, _, name in named],
    )


def _script(inputs: Inputs, result: SearchResult) -> tuple[str, str]:
    """(the launch script of plan 1, why there is none)."""
    from parallelsim.exporters import EXPORTERS

    targets = [target for target in inputs.framework.launches if target in EXPORTERS]
    if not len(result.plans):
        return "", ""
    if not targets:
        return "", f"No exporter writes a script for {inputs.framework.name}."
    plan = result.plans.plans.plan(0)
    try:
        return EXPORTERS[targets[0]](inputs.model, inputs.cluster, inputs.framework, plan), ""
    except ExportError as error:
        return "", f"It cannot be written: {error}."


def _write(page: Report, output: str, force: bool) -> None:
    from parallelsim.output_files import write_text
    from parallelsim.report.page import page_html

    write_text(output, page_html(page), force=force)
    click.echo(f"wrote {shown_path(output)}", err=True)
