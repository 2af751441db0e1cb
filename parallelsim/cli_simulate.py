"""``parallelsim simulate``, ``compare`` and ``export``: what is known of given plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import click

from parallelsim.cli_defaults import assumed_words, with_searched_defaults
from parallelsim.cli_inputs import (
    Inputs,
    document_inputs,
    load_inputs,
    merged_with,
    shown_path,
    size_stated_in,
)
from parallelsim.cli_options import (
    SpecOptions,
    json_option,
    memory_limit_option,
    plan_options,
    rank_option,
    spec_options,
)
from parallelsim.cli_values import Value, whole_number
from parallelsim.cli_whole_run import RunOptions, run_options
from parallelsim.errors import PlanError
from parallelsim.plan import Plan
from parallelsim.planfile import with_sane_size
from parallelsim.targets import TARGETS, WORDS

_DEGREES = ("tp", "cp", "pp")


@click.command()
@spec_options
@click.option(
    "--plan",
    "plan_file",
    metavar="FILE",
    help="A plan, or plans that 'plan --output' wrote; other options change what it states.",
)
@rank_option
@plan_options
@memory_limit_option
@run_options
@json_option
def simulate(
    spec: SpecOptions,
    plan_file: str | None,
    rank: int,
    plan_fields: dict[str, Value],
    memory_limit: float,
    run: RunOptions,
    as_json: bool,
) -> None:
    """Predict the step time and the memory of one plan, term by term.

    Degrees that are left out are 1, and dp what is left of the GPUs; other fields are what 'plan'
    would search first, and a note names them. A plan that breaks a rule or does not fit is answered
    too.
    """
    from parallelsim.replay import replayed
    from parallelsim.simulate import simulate as simulated

    inputs, one, assumed = one_plan(spec, plan_file, rank, plan_fields)
    simulation = replayed(
        simulated(inputs.model, inputs.cluster, inputs.framework, one, memory_limit)
    )
    budget = run.budget(inputs.cluster)
    if as_json:
        from parallelsim.report.documents import json_text, simulate_document

        document = simulate_document(inputs.head() | {"assumed": assumed}, simulation)
        if budget.tokens is not None:
            from parallelsim.report.whole_run import whole_run_document

            document["whole_run"] = whole_run_document(simulation, budget)
        click.echo(json_text("simulate", document))
        return
    from parallelsim.report import single
    from parallelsim.report.tables import print_line
    from parallelsim.report.whole_run import whole_run_words
    from parallelsim.rules import explain

    for note in inputs.notes:
        click.echo(f"note: {note}", err=True)
    if assumed:
        click.echo(f"note: not given, so as in 'plan': {assumed_words(assumed)}", err=True)
    click.echo(inputs.header(memory_limit))
    single.print_simulation(
        simulation, explain(inputs.model, inputs.cluster, inputs.framework, one)
    )
    if budget.tokens is not None:
        click.echo("")
    for words in whole_run_words(simulation, budget, "this plan"):
        print_line(words)


def one_plan(
    spec: SpecOptions, plan_file: str | None, rank: int, changes: Mapping[str, Value]
) -> tuple[Inputs, Plan, dict[str, Any]]:
    """The plan that file and options describe together, its inputs, and what was filled in."""
    stated: dict[str, Any] = {}
    resized = spec.num_gpus is not None or bool(changes.keys() & set(_DEGREES))
    if plan_file is not None:
        from parallelsim.planfile import read_document

        document = read_document(plan_file)
        entry = document.with_rank(rank, plan_file)
        spec = merged_with(spec, document)
        stated = {
            name: value for name, value in entry.plan.to_dict().items() if name in entry.stated
        }
    fields = {**stated, **changes}
    if changes.keys() & {"pp", "vpp"} and "schedule" not in changes:
        fields.pop("schedule", None)  # follows from pp and vpp again
    if resized and "dp" not in changes:
        fields.pop("dp", None)  # is what is left of the GPUs again
    num_gpus = _num_gpus(spec, fields)
    spec = replace(
        spec,
        global_batch_size=spec.global_batch_size or fields.get("global_batch_size"),
        precision=spec.precision or fields.get("precision"),
    )
    with size_stated_in(plan_file, plan_file is not None and not resized):
        inputs = load_inputs(spec, num_gpus, any_precision=True)
    fields |= {"global_batch_size": inputs.global_batch_size, "precision": inputs.precision}
    Plan.from_dict(fields)  # names what is malformed before anything is filled in
    fields, assumed = with_searched_defaults(fields, inputs.model, inputs.framework)
    return inputs, with_sane_size(Plan.from_dict(fields)), assumed


def _num_gpus(spec: SpecOptions, fields: dict[str, Any]) -> int:
    """The size of the cluster; fills in ``dp`` where it is left out."""
    used = 1
    for name in _DEGREES:
        Plan.from_dict({name: fields.get(name, 1)})
        used *= int(fields.get(name, 1))
    if "dp" not in fields:
        num_gpus = spec.num_gpus or used
        if num_gpus % used:
            raise PlanError(
                f"tp x cp x pp = {used} does not divide {num_gpus} GPUs; change one or give --dp"
            )
        fields["dp"] = num_gpus // used
    with_sane_size(Plan.from_dict({name: fields.get(name, 1) for name in (*_DEGREES, "dp")}))
    return used * int(fields["dp"]) if spec.num_gpus is None else spec.num_gpus


@click.command()
@click.argument("file")
@click.option(
    "--top",
    "-k",
    type=whole_number(2, 1000),
    metavar="N",
    default=2,
    show_default=True,
    help="Plans to compare.",
)
@json_option
def compare(file: str, top: int, as_json: bool) -> None:
    """Show plans side by side, term by term, and why the first wins.

    FILE is what 'parallelsim plan --output FILE' wrote.
    """
    from parallelsim.compare import compare as compared
    from parallelsim.planfile import read_document
    from parallelsim.replay import replayed
    from parallelsim.rules import explain
    from parallelsim.simulate import simulate as simulated

    document = read_document(file)
    inputs = document_inputs(document, file)
    entries = document.plans[:top]
    if len(entries) < 2:
        raise PlanError(
            f"{file}: needs two plans to compare, has {len(entries)}; plan with --top 2 or more"
        )
    simulation = replayed(
        simulated(inputs.model, inputs.cluster, inputs.framework, [entry.plan for entry in entries])
    )
    cannot_run = [
        explain(inputs.model, inputs.cluster, inputs.framework, entry.plan) for entry in entries
    ]
    comparison = compared(simulation, [entry.rank for entry in entries], cannot_run)
    if as_json:
        from parallelsim.report.documents import compare_document, json_text

        click.echo(json_text("compare", compare_document(inputs.head(), simulation, comparison)))
        return
    from parallelsim.report import single

    click.echo(inputs.header(simulation.memory_limit) + "\n")
    single.print_comparison(simulation, comparison)


@click.command()
@click.argument("file")
@rank_option
@click.option(
    "--to",
    "target",
    required=True,
    metavar="TARGET",
    help=f"What will run it: {WORDS}.",
)
@click.option(
    "--target-version",
    metavar="V",
    help="Its version.  [default: the first one that docs/export.md lists]",
)
@click.option("--output", "-o", metavar="PATH", help="Where to write it.  [default: stdout]")
@click.option("--force", is_flag=True, help="Replace an existing file.")
def export(
    file: str, rank: int, target: str, target_version: str | None, output: str | None, force: bool
) -> None:
    """Write a plan as what launches it: a script or the configuration that the software reads.

    FILE is what 'parallelsim plan --output FILE' wrote.
    """
    from parallelsim.exporters import EXPORTERS, export_rank
    from parallelsim.input_files import input_files
    from parallelsim.output_files import check_writable, write_text
    from parallelsim.planfile import read_document
    from parallelsim.simulate import ZONES
    from parallelsim.simulate import simulate as simulated

    if target not in EXPORTERS:
        raise click.UsageError(
            f"--to: unknown target {target[:60]!r}; there are {', '.join(sorted(EXPORTERS))}"
        )
    if output not in (None, "-"):
        check_writable(str(output), force=force, inputs=input_files(file))
    document = read_document(file)
    if output not in (None, "-"):
        read = input_files(document.model, document.cluster, document.framework)
        check_writable(str(output), force=force, inputs=read)
    inputs = document_inputs(document, file)
    plan = document.with_rank(rank, file).plan
    options = {} if target_version is None else {"version": target_version}
    ranked = {entry.rank: entry.plan for entry in document.plans}
    three = (inputs.model, inputs.cluster, inputs.framework)
    script = export_rank(target, three, ranked, rank, **options)
    simulation = simulated(inputs.model, inputs.cluster, inputs.framework, plan)
    zone = ZONES[int(simulation.zone[0])]
    if zone != "safe":
        use = float(simulation.memory_use_frac[0])
        click.echo(
            f"note: this plan is {zone}: it needs {use:.0%} of memory as predicted", err=True
        )
    if output in (None, "-"):
        click.echo(script, nl=False)
        return
    executable = TARGETS[target].is_script
    write_text(str(output), script, force=force, executable=executable)
    click.echo(f"wrote {shown_path(str(output))}", err=True)
