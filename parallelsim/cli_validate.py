"""``parallelsim validate``: predictions against a table of measured runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from parallelsim.cli_progress import shown_progress

NUM_GROUPS_SHOWN = 10

if TYPE_CHECKING:
    from parallelsim.scored_row import ScoredRow
    from parallelsim.validation import Validation


@click.command()
@click.argument("tables", nargs=-1, required=True, metavar="TABLE.csv...")
@click.option(
    "--framework", help="Predict for this software (name or YAML file) instead of the rows' own."
)
@click.option("--rows", "rows_file", metavar="OUT.csv", help="Write every row with its prediction.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON: shares and counts under full names."
)
@click.option(
    "--plot",
    "plot_file",
    metavar="OUT.html|png",
    help="Plot predictions against measurements.",
)
@click.option("--groups", "all_groups", is_flag=True, help="List every ranked group of plans.")
@click.option("--force", is_flag=True, help="Overwrite the output files.")
def validate(
    tables: tuple[str, ...],
    framework: str | None,
    rows_file: str | None,
    as_json: bool,
    plot_file: str | None,
    all_groups: bool,
    force: bool,
) -> None:
    """Compare predictions with measured runs: step time, peak memory, failures, rankings.

    Columns that a row leaves empty take the documented default of its framework; rows that cannot
    be predicted are skipped and counted by reason.
    """
    from parallelsim.errors import SpecError
    from parallelsim.output_files import write_text
    from parallelsim.report import accuracy
    from parallelsim.validation import validate as run_validation

    _check_outputs(tables, framework, rows_file, plot_file, force)
    with shown_progress(quiet=as_json):
        validation = run_validation(tables, framework)
    if not validation.rows:
        raise SpecError(
            "a header without rows; expected a row for each run", file=", ".join(tables)
        )
    if rows_file:
        write_text(rows_file, accuracy.rows_csv(validation), force=force)
    is_scored = any(row.is_scored for row in validation.rows)
    if plot_file and is_scored:
        from parallelsim.report.scatter import scatter

        picture = scatter(validation, plot_file.rpartition(".")[2].lower())
        write_text(plot_file, picture, force=force)
    if as_json:
        from parallelsim.report.documents import json_text

        click.echo(json_text("validate", accuracy.document(validation)))
    else:
        _print(validation, all_groups)
    if not is_scored:
        first = validation.rows[0]
        raise SpecError(f"no row could be scored; the first, {first.id}: {first.reason}")


def _check_outputs(
    tables: tuple[str, ...],
    framework: str | None,
    rows_file: str | None,
    plot_file: str | None,
    force: bool,
) -> None:
    """Refuse, before the work, outputs that cannot be made.

    Raises:
        OutputError: a file that may not be written, or another kind of picture.
    """
    import os

    from parallelsim.errors import OutputError
    from parallelsim.input_files import input_files
    from parallelsim.output_files import check_writable

    if plot_file and not plot_file.lower().endswith((".html", ".png")):
        raise OutputError(f"--plot {plot_file}: expected a name that ends in .html or .png")
    for path in (rows_file, plot_file):
        if path:
            check_writable(path, force=force, inputs=input_files(*tables, framework))
    if rows_file and plot_file and os.path.realpath(rows_file) == os.path.realpath(plot_file):
        raise click.UsageError(f"--rows and --plot name the same file, {rows_file}")


def _print(validation: Validation, all_groups: bool) -> None:
    from parallelsim.report.tables import paragraph

    scored, apart = validation.scored, validation.apart
    skipped = sum(validation.skipped.values())
    click.echo(
        f"{len(validation.rows)} rows: {len(scored)} scored, {len(apart)} apart, {skipped} skipped"
    )
    if scored:
        _print_block(validation, scored)
        _print_groups(scored, all_groups)
        families, mape, median = validation.family_mean(scored)
        if families > 1:
            click.echo(
                f"\nMean over {families} groups, unweighted: step time MAPE {100 * mape:.1f} %, "
                f"median {100 * median:.1f} %"
            )
    if apart:
        click.echo("\nApart (flagged in the table, not part of the scores above)")
        for text in _unknown_flags(apart):
            click.echo(paragraph(text))
        _print_block(validation, apart)
    for text in _unmeasured(scored + apart):
        click.echo("\n" + paragraph(text))
    if validation.skipped:
        click.echo("\nSkipped")
        for reason, count in _summary(validation.skipped):
            click.echo(f"{count:6d}  {reason}")


def _print_block(validation: Validation, rows: tuple[ScoredRow, ...]) -> None:
    from parallelsim.report import accuracy
    from parallelsim.report.tables import paragraph, print_table
    from parallelsim.validation import part

    parts = [*validation.by_group(rows), part("overall", rows)]
    errors = accuracy.error_rows(parts)
    if errors:
        click.echo("\nErrors in percent")
        print_table(accuracy.ERROR_COLUMNS, errors)
    verdicts = accuracy.verdict_rows(parts)
    if verdicts:
        click.echo("\n" + paragraph(f"Out of memory. {accuracy.VERDICT_NOTE}."))
        print_table(accuracy.VERDICT_COLUMNS, verdicts)
    ranking = accuracy.ranking_rows(parts)
    if ranking:
        click.echo("\n" + paragraph(f"Ranking. {accuracy.RANKING_NOTE}."))
        print_table(accuracy.RANKING_COLUMNS, ranking)


def _print_groups(rows: tuple[ScoredRow, ...], all_groups: bool) -> None:
    """Regret by task, and P(best) as it was said against what happened."""
    from parallelsim.ranked_groups import p_best_reliability, ranked_groups
    from parallelsim.report import accuracy
    from parallelsim.report.tables import paragraph, print_table

    groups = ranked_groups(rows)
    if not groups:
        return
    click.echo("\n" + paragraph(f"Tasks. {accuracy.GROUP_NOTE}."))
    lines = accuracy.group_rows(groups)
    print_table(accuracy.GROUP_COLUMNS, lines if all_groups else lines[:NUM_GROUPS_SHOWN])
    hidden = 0 if all_groups else len(lines[NUM_GROUPS_SHOWN:])
    if hidden:
        click.echo(f"{hidden} with less regret not shown (--groups or --json has them)")
    click.echo("\n" + paragraph(f"Reliability. {accuracy.RELIABILITY_NOTE}."))
    print_table(accuracy.RELIABILITY_COLUMNS, accuracy.reliability_rows(p_best_reliability(groups)))


def _unknown_flags(rows: tuple[ScoredRow, ...]) -> list[str]:
    """A line about flags that mean nothing, where there are any."""
    flags = [row.run.flag for row in rows if row.run.has_unknown_flag]
    if not flags:
        return []
    names = ", ".join(repr(flag[:40]) for flag in dict.fromkeys(flags[:5]))
    return [
        f"{len(flags)} of them have an unknown flag ({names}); expected 'drop: why' for rows that "
        "are never to be scored, 'apart: why' for these"
    ]


def _unmeasured(rows: tuple[ScoredRow, ...]) -> list[str]:
    """A line about accelerators whose efficiencies are their family's, where there are any."""
    from collections import Counter

    gpus = [row.case.cluster.accelerator for row in rows if row.case is not None]
    names = Counter(gpu.name for gpu in gpus if not gpu.measured)
    if not names:
        return []
    listed = ", ".join(f"{name} ({count} rows)" for name, count in names.most_common())
    return [f"Predicted with their family's efficiencies, without measured tables: {listed}"]


def _summary(skipped: Mapping[str, int]) -> list[tuple[str, int]]:
    """Reasons with their counts, those that differ in numbers alone merged."""
    import re

    number = re.compile(r"(?<![\w.-])\d+(?:[.,]\d+)*(?:e[+-]?\d+)?(?![\w-])")
    merged: dict[str, tuple[str, int]] = {}
    for reason, count in skipped.items():
        key = number.sub("#", reason)
        shown, so_far = merged.get(key, (reason, 0))
        merged[key] = (reason if shown == reason else key, so_far + count)
    return sorted(merged.values(), key=lambda pair: -pair[1])
