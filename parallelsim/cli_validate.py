"""``parallelsim validate``: predictions against a table of measured runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from parallelsim.validation import ScoredRow, Validation


@click.command(epilog="Example: parallelsim validate my_runs.csv --rows predicted.csv")
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
    help="Plot predictions against measurements (needs matplotlib).",
)
@click.option("--force", is_flag=True, help="Overwrite the output files.")
def validate(
    tables: tuple[str, ...],
    framework: str | None,
    rows_file: str | None,
    as_json: bool,
    plot_file: str | None,
    force: bool,
) -> None:
    """Compare predictions with measured runs: step time, peak memory, failures, rankings.

    Columns that a row leaves empty take the documented default of its framework; rows that cannot
    be predicted are skipped and counted by reason.
    """
    from parallelsim.planfile import check_not_input
    from parallelsim.report import accuracy
    from parallelsim.validation import validate as run_validation

    for output in (rows_file, plot_file):
        if output:
            check_not_input(output, tables)
    if plot_file:
        _check_plot(plot_file, force)
    validation = run_validation(tables, framework)
    if rows_file:
        _write(rows_file, accuracy.rows_csv(validation).encode(), force)
    if plot_file:
        from parallelsim.report.scatter import scatter

        _write(plot_file, scatter(validation, plot_file.rpartition(".")[2].lower()), force)
    if as_json:
        from parallelsim.report.documents import json_text

        click.echo(json_text(accuracy.document(validation)))
        return
    _print(validation)


def _check_plot(path: str, force: bool) -> None:
    """Refuse, before the work, a plot that cannot be made.

    Raises:
        OutputError: another kind of file, no matplotlib, or a file that may not be written.
    """
    from importlib.util import find_spec

    from parallelsim.errors import OutputError
    from parallelsim.planfile import check_writable

    if not path.lower().endswith((".html", ".png")):
        raise OutputError(f"--plot {path}: expected a name that ends in .html or .png")
    check_writable(path, force=force)
    if find_spec("matplotlib") is None:
        raise OutputError("--plot needs matplotlib: pip install 'parallelsim[plot]'")


def _write(path: str, content: bytes, force: bool) -> None:
    """Write a file, without overwriting unasked.

    Raises:
        OutputError: it exists, or cannot be written.
    """
    from parallelsim.errors import OutputError

    try:
        with open(path, "wb" if force else "xb") as stream:
            stream.write(content)
    except FileExistsError:
        raise OutputError(f"{path} exists; use --force to overwrite it") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise OutputError(f"{path}: cannot write: {reason}") from None


def _print(validation: Validation) -> None:
    from parallelsim.report.tables import paragraph

    scored, apart = validation.scored, validation.apart
    skipped = sum(validation.skipped.values())
    click.echo(
        f"{len(validation.rows)} rows: {len(scored)} scored, {len(apart)} apart, {skipped} skipped"
    )
    if scored:
        _print_block(validation, scored)
        families, mape, median = validation.family_mean(scored)
        if families:
            click.echo(
                f"\nMean over {families} groups, unweighted: step time MAPE {100 * mape:.1f} %, "
                f"median {100 * median:.1f} %"
            )
    if apart:
        click.echo("\nApart (flagged in the table, not part of the scores above)")
        _print_block(validation, apart)
    if validation.skipped:
        click.echo("\nSkipped")
        for reason, count in _summary(validation.skipped):
            click.echo(f"{count:6d}  {reason}")
    if not scored and not apart:
        click.echo(paragraph("No row could be scored: see the reasons above."), err=True)


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


def _summary(skipped: Mapping[str, int]) -> list[tuple[str, int]]:
    """Reasons with their counts, those that differ in numbers alone merged."""
    import re
    from collections import Counter

    merged: Counter[str] = Counter()
    for reason, count in skipped.items():
        merged[re.sub(r"\d[\d,.]*", "#", reason)] += count
    return merged.most_common()
