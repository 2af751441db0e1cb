"""``parallelsim timeline``: what every rank does when."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from parallelsim.cli_inputs import Inputs, shown_path
from parallelsim.cli_options import SpecOptions, plan_options, rank_option, spec_options
from parallelsim.cli_simulate import one_plan
from parallelsim.cli_values import Value

if TYPE_CHECKING:
    from parallelsim.plan import Plan
    from parallelsim.replay import PlanReplay

SUFFIXES = (".json", ".svg", ".html", ".png")


@click.command()
@click.argument("file", required=False, metavar="[PLANS]")
@rank_option
@spec_options
@plan_options
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    help="trace.json (opens in ui.perfetto.dev); gantt.svg, gantt.html or gantt.png.  "
    "[default: letters in the terminal]",
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
def timeline(
    file: str | None,
    rank: int,
    spec: SpecOptions,
    plan_fields: dict[str, Value],
    output: str | None,
    force: bool,
) -> None:
    """Show the forwards and backwards of every pipeline rank over one step.

    PLANS is what 'parallelsim plan --output PLANS' wrote; or give the plan as for 'simulate'. The
    schedule is replayed operation by operation with the simulator's costs.
    """
    from parallelsim.input_files import input_files
    from parallelsim.output_files import check_writable
    from parallelsim.replay import plan_replay

    kind = _kind(output)
    if output is not None:
        check_writable(output, force=force, inputs=input_files(file))
    inputs, plan, _ = one_plan(spec, file, rank, plan_fields)
    if output is not None:
        used = inputs.options
        read = input_files(file, used.model, used.cluster, used.framework)
        check_writable(output, force=force, inputs=read)
        _check_size(plan, kind)
    planned = plan_replay(inputs.model, inputs.cluster, inputs.framework, plan)
    for note in _notes(inputs, plan):
        click.echo(f"note: {note}", err=True)
    if output is None:
        _print(planned)
        return
    _write(planned, output, kind, force)
    sys.stdout.flush()
    click.echo(f"wrote {shown_path(output)}", err=True)


def _kind(output: str | None) -> str:
    if output is None:
        return ""
    kind = os.path.splitext(output)[1].lower()
    if kind not in SUFFIXES:
        raise click.UsageError(f"--output: the name must end with {', '.join(SUFFIXES)}")
    return kind


def _check_size(plan: Plan, kind: str) -> None:
    """Refuse what is too large to be shown before it is replayed, which takes seconds."""
    from parallelsim.plan_batch import PlanBatch
    from parallelsim.replay import num_operations
    from parallelsim.timeline.chrome import check_traceable
    from parallelsim.timeline.gantt import check_drawable

    check = check_traceable if kind == ".json" else check_drawable
    check(int(num_operations(PlanBatch.from_plans([plan]))[0]))


def _notes(inputs: Inputs, plan: Plan) -> list[str]:
    """What the plan's software does not run: its schedules are shown all the same.

    Raises:
        PlanError: the plan breaks another rule.
    """
    from parallelsim.errors import PlanError
    from parallelsim.rules import RULES, explain

    of_software = {rule.name for rule in RULES if rule.name.startswith("framework-")}
    others = {rule.name for rule in RULES} - of_software
    spec = (inputs.model, inputs.cluster, inputs.framework, plan)
    if broken := explain(*spec, ignored=of_software):
        raise PlanError(f"the plan cannot run: {'; '.join(broken)}")
    return [f"the plan cannot run: {message}" for message in explain(*spec, ignored=others)]


def _print(planned: PlanReplay) -> None:
    """The Gantt in letters, as wide as the terminal."""
    import shutil

    from parallelsim.report.tables import paragraph
    from parallelsim.timeline import gantt_text
    from parallelsim.units import format_seconds

    done = planned.run()
    width = max(shutil.get_terminal_size().columns, 40)
    picture = gantt_text(done, width=min(width, 200))
    pp, vpp, m = planned.schedule.size
    words = (
        f"{planned.schedule.name}, pp {pp}, vpp {vpp}, {m} micro-batches: replayed "
        f"{format_seconds(float(done.step_s[0]))} of a step of "
        f"{format_seconds(planned.step_time_s())} (the rest: optimizer, launches, stragglers)"
    )
    click.echo(paragraph(words) + "\n")
    click.echo(picture, nl=False)


def _write(planned: PlanReplay, output: str, kind: str, force: bool) -> None:
    from parallelsim.output_files import write_text
    from parallelsim.report.gantt import gantt_image
    from parallelsim.timeline import trace_json

    if kind == ".json":
        kept = planned.activation_bytes
        # A micro-batch counts until its weight gradient, as in the memory of the plan.
        text = trace_json(planned.run(), activation_bytes=kept, weight_only_bytes=kept)
        write_text(output, text, force=force)
    else:
        write_text(output, gantt_image(planned.run(), kind[1:]), force=force)
