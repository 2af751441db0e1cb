"""Tables for people: plain columns that fit the terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.console import Console

GAP = 1
"""Blanks between columns."""


@dataclass(frozen=True)
class Column:
    """One column; where the terminal is too narrow, the highest ``priority`` numbers go first."""

    header: str
    justify: Literal["left", "right"] = "right"
    priority: int = 0


def shown_columns(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int
) -> list[int]:
    """Positions of the columns that fit into ``width``; those of priority 0 always stay."""
    natural = [
        max(len(column.header), *(len(row[i]) for row in rows)) if rows else len(column.header)
        for i, column in enumerate(columns)
    ]
    keep = list(range(len(columns)))
    for i in sorted(keep, key=lambda i: (-columns[i].priority, -i)):
        if sum(natural[j] + GAP for j in keep) - GAP <= width or not columns[i].priority:
            break
        keep.remove(i)
    return keep


def paragraph(text: str, indent: int = 0) -> str:
    """The text in lines as wide as the terminal, but at most 100 characters."""
    import shutil
    import textwrap

    width = min(100, max(40, shutil.get_terminal_size().columns))
    return textwrap.fill(
        text,
        width,
        initial_indent=" " * indent,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def console() -> Console:
    """A console on the present stdout: colour on a terminal alone, none with NO_COLOR."""
    from rich.console import Console

    return Console(file=sys.stdout, highlight=False, markup=False, emoji=False)


def print_table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], *, bold_rows: int = 0
) -> None:
    """Print rows of text under headers; the first ``bold_rows`` stand out on a terminal."""
    from rich.table import Table

    output = console()
    keep = shown_columns(columns, rows, output.width)
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for i in keep:
        column = columns[i]
        table.add_column(column.header, justify=column.justify, no_wrap=True, overflow="ellipsis")
    for index, row in enumerate(rows):
        table.add_row(*(row[i] for i in keep), style="bold green" if index < bold_rows else None)
    with output.capture() as captured:
        output.print(table)
    for line in captured.get().splitlines():
        sys.stdout.write(line.rstrip() + "\n")
