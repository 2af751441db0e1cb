"""Tables for people: plain columns that fit the terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

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


def table_lines(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """The header and the rows as lines of at most ``width`` characters, where columns may go."""
    keep = shown_columns(columns, rows, width)
    table = [[columns[i].header for i in keep], *([row[i] for i in keep] for row in rows)]
    widths = [max(len(cells[j]) for cells in table) for j in range(len(keep))]
    lines = []
    for cells in table:
        parts = [
            cell.ljust(size) if columns[i].justify == "left" else cell.rjust(size)
            for i, cell, size in zip(keep, cells, widths, strict=True)
        ]
        lines.append((" " * GAP).join(parts).rstrip())
    return lines


def print_line(text: str) -> None:
    """Print a sentence in lines as wide as the terminal."""
    sys.stdout.write(paragraph(text) + "\n")


def print_table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], *, bold_rows: int = 0
) -> list[str]:
    """Print rows of text under headers; the first ``bold_rows`` stand out on a terminal.

    Returns the headers of columns that the terminal is too narrow for.

    Only a terminal gets colours, and only then is rich imported: it takes a tenth of a cold start.
    """
    width = shutil.get_terminal_size().columns
    lines = table_lines(columns, rows, width)
    kept = shown_columns(columns, rows, width)
    left_out = [column.header for i, column in enumerate(columns) if i not in kept]
    if not sys.stdout.isatty():
        sys.stdout.write("\n".join(lines) + "\n")
        return left_out
    from rich.console import Console
    from rich.text import Text

    console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
    for index, line in enumerate(lines):
        style = "bold" if index == 0 else "bold green" if index <= bold_rows else ""
        console.print(Text(line, style=style), no_wrap=True, overflow="ignore", crop=False)
    return left_out
