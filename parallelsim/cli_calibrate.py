"""``parallelsim calibrate``: own measured runs into a cluster file of corrected efficiencies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from parallelsim.cli_options import rank_option

if TYPE_CHECKING:
    from parallelsim.calibration import Calibration, ErrorChange, FactorFit
    from parallelsim.calibration_runs import OwnRuns


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUNS.csv|training.log...")
@click.option(
    "--cluster", "-c", required=True, metavar="C", help="Where they ran: name or YAML file."
)
@click.option(
    "--framework",
    "-f",
    metavar="F",
    help="Training software: name or YAML file.  [default: what the rows or the plan name]",
)
@click.option(
    "--plan",
    "plan_file",
    metavar="FILE",
    help="The plan that the logs' runs used, as 'plan --output' writes it.",
)
@rank_option
@click.option("--output", "-o", metavar="FILE", help="Where to write the corrected cluster.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: shares and SI units.")
def calibrate(
    runs: tuple[str, ...],
    cluster: str,
    framework: str | None,
    plan_file: str | None,
    rank: int,
    output: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Correct a cluster's efficiencies with your own measured runs.

    RUNS are tables with the columns of 'validate', or logs of Megatron, torchtitan or nanotron. One
    run helps, a few different ones help more. Factors that the runs do not show stay as they are,
    and what no factor explains widens the intervals of plans on the corrected cluster.
    """
    from parallelsim.calibration import calibrate as fitted
    from parallelsim.calibration_runs import own_runs
    from parallelsim.catalog import load_cluster
    from parallelsim.input_files import input_files
    from parallelsim.output_files import check_writable

    if output:
        read = input_files(*runs, cluster, framework, plan_file)
        check_writable(output, force=force, inputs=read)
    _refuse_overlay(cluster, "--cluster")
    _refuse_overlay(framework, "--framework")
    base = load_cluster(cluster)
    found = own_runs(runs, base, framework, plan_file, rank)
    result = fitted(found.runs)
    if as_json:
        from parallelsim.report.documents import json_text

        click.echo(json_text("calibrate", _document(result, found, cluster)))
    else:
        _print(result, found)
    if output:
        _write(result, found, cluster, output, force)


def _refuse_overlay(name: str | None, option: str) -> None:
    """Factors are of what a file of the catalogue predicts; those of other factors have no file.

    Raises:
        SpecError: it is a calibrated one.
    """
    from parallelsim.catalog import names_overlay
    from parallelsim.errors import SpecError

    if name is not None and names_overlay(name):
        raise SpecError(
            f"{option} {name} is calibrated already; give what it is based on, and all runs at once"
        )


def _write(result: Calibration, found: OwnRuns, cluster: str, output: str, force: bool) -> None:
    """Write the overlay.

    Raises:
        SpecError: there is nothing to write.
    """
    from pathlib import Path

    from parallelsim.calibration_overlay import SOFTWARE_FACTORS, overlay_document
    from parallelsim.cli_inputs import shown_path
    from parallelsim.errors import SpecError
    from parallelsim.output_files import write_text
    from parallelsim.yaml_io import dump_yaml

    is_corrected = any(fit.is_identified for fit in result.fits)
    if not is_corrected and result.unexplained is None:
        raise SpecError("nothing written: these runs identify no factor, the defaults stand")
    source = f"parallelsim calibrate on {len(found.runs)} own runs, {_summary(result.time)}"
    name = Path(output).stem
    document = overlay_document(
        name, cluster, found.framework, result.factors, source, output, result.unexplained
    )
    write_text(output, dump_yaml(document), force=force)
    software = any(fit.is_identified and fit.name in SOFTWARE_FACTORS for fit in result.fits)
    shown = shown_path(output)
    words = f"; it brings {found.framework} with factors of its own" if software else ""
    if not is_corrected:
        words = ": the defaults, and how far the runs are from them"
    click.echo(f"wrote {shown}; use it as --cluster {shown}{words}", err=True)


def _summary(change: ErrorChange) -> str:
    if not change.n:
        return "no step times"
    after = change.mape_left_out if change.n > 1 else change.mape_after
    how = "left out" if change.n > 1 else "the run itself"
    before = 100 * change.mape_before
    return f"step time error {before:.1f} % before, {100 * after:.1f} % after ({how})"


def _print(result: Calibration, found: OwnRuns) -> None:
    from parallelsim.report.tables import Column, paragraph, print_table

    for note in found.notes:
        click.echo(f"note: {note}", err=True)
    click.echo(f"{len(found.runs)} runs of {found.framework}")
    for reason, count in found.skipped.items():
        click.echo(f"{count:6d} skipped: {reason}")
    meaning = "1 is the default; a host factor above 1 is slower, others faster"
    click.echo("\n" + paragraph(f"Factors ({meaning})"))
    columns = (Column("factor", "left"), Column("value"), Column("+-"), Column("", "left"))
    print_table(columns, [_factor_row(fit) for fit in result.fits])
    click.echo("\nErrors in percent")
    names = ("", "runs", "before", "bias", "after", "left out", "bias")
    errors = [
        _error_row(label, change)
        for label, change in (("step time", result.time), ("peak memory", result.memory))
        if change.n
    ]
    print_table([Column(name, "right" if name else "left") for name in names], errors)
    if max(result.time.n, result.memory.n) > 1:
        click.echo(paragraph("Left out: each run predicted with the factors fitted on the others."))
    for kind in result.kept:
        click.echo(
            paragraph(f"{kind}: the others' factors predict left-out runs worse; defaults kept.")
        )


def _factor_row(fit: FactorFit) -> list[str]:
    if fit.name == "memory_constant_bytes":
        from parallelsim.units import GIB

        value, sd, name = f"{fit.value / GIB:+.2f}", fit.posterior_sd / GIB, "memory_constant_gib"
    else:
        value, sd, name = f"{fit.value:.3f}", fit.posterior_sd, fit.name
    if not fit.is_identified:
        return [name, value, "", "left alone: the runs do not show it"]
    return [name, value, f"{sd:.3f}", ""]


def _error_row(label: str, change: ErrorChange) -> list[str]:
    before = [f"{100 * change.mape_before:.1f}", f"{100 * change.bias_before:+.1f}"]
    left_out = (
        [f"{100 * change.mape_left_out:.1f}", f"{100 * change.bias_left_out:+.1f}"]
        if change.n > 1
        else ["-", "-"]
    )
    return [label, str(change.n), *before, f"{100 * change.mape_after:.1f}", *left_out]


def _document(result: Calibration, found: OwnRuns, cluster: str) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "cluster": cluster,
        "framework": found.framework,
        "num_runs": len(found.runs),
        "skipped": dict(found.skipped),
        "factors": {
            fit.name: {k: v for k, v in asdict(fit).items() if k != "name"} for fit in result.fits
        },
        "step_time": _change(result.time),
        "peak_memory": _change(result.memory),
        "kept": list(result.kept),
        "unexplained": asdict(result.unexplained) if result.unexplained else None,
    }


def _change(change: ErrorChange) -> dict[str, Any]:
    from dataclasses import asdict
    from math import isfinite

    return {k: v if isfinite(v) else None for k, v in asdict(change).items()}
