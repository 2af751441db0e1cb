"""``parallelsim plan``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from parallelsim.cli_answer import Answer, Asked, answer, asked_options
from parallelsim.cli_inputs import Inputs, shown_path
from parallelsim.cli_misfit import NUM_TIGHT_SHOWN, explain_misfit
from parallelsim.cli_options import json_option, only_grid
from parallelsim.cli_progress import shown_progress
from parallelsim.errors import EXIT_INTERRUPTED

if TYPE_CHECKING:
    from parallelsim.robustness import Robustness
    from parallelsim.search.result import SearchResult


@click.command()
@asked_options(num_plans=10)
@json_option
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    help="Write the plans as YAML, for simulate, compare, export and report.",
)
@click.option(
    "--export",
    "export",
    metavar="TARGET[:FILE]",
    help="Write plan 1 for the software that will run it (TARGET as of export --to); without FILE "
    "it is printed instead of the table.",
)
@click.option(
    "--robustness",
    "robust",
    is_flag=True,
    help="How the plans fare with network, GEMMs, memory and experts otherwise, and one step away.",
)
@click.option("--force", is_flag=True, help="Replace existing files.")
def plan(
    asked: Asked,
    as_json: bool,
    output: str | None,
    export: str | None,
    robust: bool,
    force: bool,
) -> int:
    """Rank the ways to train a model on a cluster: fastest first, within memory."""
    target, script = _export_target(export)
    asked.check()
    if robust:
        only_grid(asked.search, "--robustness")
    _check_files(asked, output, script, export, as_json, force)
    with shown_progress(quiet=as_json):
        found = answer(asked, plan_file=output is not None)
    inputs, search, result, more = found.inputs, found.search, found.result, found.more
    if not len(result.plans):
        if as_json:
            _print_json(found)
        else:
            more.print_after(result.plans)
        return explain_misfit(inputs, search, result, as_json)
    text = _script(inputs, target, result) if target else None
    _write_files(inputs, result, output, (target, script), text, force)
    with shown_progress(quiet=as_json):
        fared = found.robustness() if robust else None
    if as_json:
        _print_json(found, fared)
    elif target and script is None:
        click.echo(text, nl=False)
    else:
        more.print_before()
        _print_plans(found)
        more.print_after(result.plans)
        if fared:
            from parallelsim.report.robustness import print_robustness

            print_robustness(fared)
        _print_next_steps(inputs, output)
    return EXIT_INTERRUPTED if result.stopped == "interrupted" else 0


def _check_files(
    asked: Asked,
    output: str | None,
    script: str | None,
    export: str | None,
    as_json: bool,
    force: bool,
) -> None:
    """Files that cannot be written, or would replace one that is read, before the search."""
    from parallelsim.output_files import check_writable

    if export and as_json and script is None:
        raise click.UsageError(
            "--export without a file prints a script; with --json give it a file (TARGET:FILE)"
        )
    for path in (output, script):
        if path is not None:
            check_writable(path, force=force, inputs=asked.input_files())
    if output is not None and script and os.path.realpath(output) == os.path.realpath(script):
        raise click.UsageError(f"--output and --export name the same file, {shown_path(output)}")


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
    from parallelsim.exporters import export_rank

    plans = result.plans.plans
    ranked = {rank: plans.plan(rank - 1) for rank in range(1, len(plans) + 1)}
    return export_rank(target, (inputs.model, inputs.cluster, inputs.framework), ranked)


def _print_json(found: Answer, fared: Robustness | None = None) -> None:
    from parallelsim.report.documents import json_text, plan_document

    document = plan_document(found.inputs.head(), found.search.memory_limit, found.result)
    document |= found.more.document(found.result.plans)
    if fared:
        from parallelsim.report.robustness import robustness_document

        document["robustness"] = robustness_document(fared)
    click.echo(json_text("plan", document))


def _print_plans(found: Answer) -> None:
    from parallelsim.compare import compare
    from parallelsim.correlation import trust
    from parallelsim.report import plans as report
    from parallelsim.report.tables import paragraph
    from parallelsim.report.trust import order_words

    inputs, result = found.inputs, found.result
    best = float(result.plans.step_time_s[0])
    for note in inputs.notes:
        click.echo(f"note: {note}", err=True)
    click.echo(inputs.header(found.search.memory_limit) + "\n")
    if found.more.least_memory:
        report.print_ranked(result.plans)
        for line in report.legend(result.plans, result.faster_but_tight):
            click.echo(paragraph(line))
        click.echo("")
        return
    sure = trust(result.plans)
    report.print_ranked(result.plans, sure)
    tight = result.faster_but_tight.take(slice(NUM_TIGHT_SHOWN))
    if len(tight):
        click.echo("")
        click.echo(paragraph(f"Faster but {report.tight_means(tight)}"))
        report.print_tight(result.faster_but_tight, best, len(result.plans) + 1, NUM_TIGHT_SHOWN)
    front = result.front if result.front is not None else result.plans.take(slice(0))
    if len(front):
        click.echo("\nNo safe plan that was tried beats these in both step time and memory:")
        report.print_ranked(front)
    for line in report.legend(result.plans, tight, front):
        click.echo(paragraph(line))
    click.echo("")
    other = report.first_with_other_degrees(result.plans)
    if other:
        pair = compare(result.plans.take([0, other]), ranks=(1, other + 1))
        click.echo(paragraph(pair.why[0]))
    if words := order_words(sure):
        click.echo(paragraph(words))
    click.echo(paragraph(report.limits(result.plans)))
    if words := report.variants(result):
        click.echo(paragraph(words))
    for line in report.cuts(result):
        click.echo(paragraph(line))
    click.echo(paragraph(report.counts(result)))
    if result.partial:
        click.echo(f"note: {result.stopped}, so the ranking is partial", err=True)


def _print_next_steps(inputs: Inputs, output: str | None) -> None:
    file = shown_path(output) if output else "plans.yaml"
    first = "" if output else f"the same with --output {file}, then "
    click.echo(f"next: {first}parallelsim compare {file}", err=True)
    for target in inputs.framework.launches[:1]:
        from parallelsim.targets import TARGETS

        run = "run" + TARGETS[target].suffix
        export = f"parallelsim export {file} --rank 1 --to {target} --output {run}"
        click.echo(f"      {export}", err=True)


def _write_files(
    inputs: Inputs,
    result: SearchResult,
    output: str | None,
    export: tuple[str | None, str | None],
    text: str | None,
    force: bool,
) -> None:
    """Before anything is printed: a reader that closes the pipe must not cost the files."""
    from parallelsim.output_files import write_text
    from parallelsim.planfile import write_document
    from parallelsim.targets import TARGETS

    if output:
        write_document(inputs.document(result.plans, result.faster_but_tight), output, force=force)
        click.echo(f"wrote {shown_path(output)}", err=True)
    target, script = export
    if target and script and text is not None:
        write_text(script, text, force=force, executable=TARGETS[target].is_script)
        click.echo(f"wrote {shown_path(script)}", err=True)
