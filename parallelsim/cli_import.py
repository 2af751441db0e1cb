"""``parallelsim import``: a launch script of today as a plan file."""

from __future__ import annotations

import click

from parallelsim.cli_inputs import Inputs, shown_path
from parallelsim.cli_options import SpecOptions, spec_options
from parallelsim.cli_run import imported, script_and_arguments


@click.command("import")
@click.argument("file")
@spec_options
@click.option("--output", "-o", metavar="FILE", help="Write the plan as YAML.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
def import_run(file: str, spec: SpecOptions, output: str | None, force: bool) -> None:
    """Read a launch script or a configuration of today as a model and a plan.

    FILE may be a script with its arguments, in quotes: 'run.sh 8B 4'. The plan file is for
    simulate, explain, compare, export and timeline.
    """
    from parallelsim.input_files import input_files
    from parallelsim.output_files import check_writable
    from parallelsim.planfile import write_document
    from parallelsim.replay import replayed
    from parallelsim.report.labels import degrees, switches
    from parallelsim.report.tables import paragraph
    from parallelsim.rules import explain
    from parallelsim.simulate import DEFAULT_MEMORY_LIMIT, simulate

    if output is not None:
        read = input_files(script_and_arguments(file)[0], spec.model, spec.cluster, spec.framework)
        check_writable(output, force=force, inputs=read)
    run = imported(spec, file)
    inputs = run.inputs
    if output is not None:
        run.check_named()
        simulation = replayed(simulate(inputs.model, inputs.cluster, inputs.framework, run.plan))
        write_document(inputs.document(simulation), output, force=force)
        _say_dropout(inputs)
    for note in run.notes:
        click.echo(f"note: {note}", err=True)
    click.echo(inputs.header(DEFAULT_MEMORY_LIMIT) + "\n")
    click.echo(paragraph(f"plan: {degrees(run.plan)}"))
    click.echo(paragraph(switches(run.plan), indent=6))
    for message in explain(inputs.model, inputs.cluster, inputs.framework, run.plan):
        click.echo(paragraph(f"cannot run: {message}"))
    if output is not None:
        click.echo(f"wrote {shown_path(output)}", err=True)


def _say_dropout(inputs: Inputs) -> None:
    """A plan file names the model, whose dropout is the catalogue's."""
    from parallelsim.catalog import load_model

    known = load_model(inputs.options.model or "")
    own = (inputs.model.hidden_dropout, inputs.model.attention_dropout)
    if own != (known.hidden_dropout, known.attention_dropout):
        words = f"dropout {own[0]:g} and {own[1]:g} (attention) of the script"
        named = f"{known.hidden_dropout:g} and {known.attention_dropout:g} of {known.name}"
        click.echo(f"note: the plan file has not {words} but {named}", err=True)
