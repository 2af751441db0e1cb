"""Tables for people: plain columns that fit the terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

GAP = 1
"""Blanks between columns."""
HELD = "\N{NO-BREAK SPACE}"


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
    natural = _widths(columns, rows)
    keep = list(range(len(columns)))
    for i in sorted(keep, key=lambda i: (-columns[i].priority, -i)):
        if _line_width([natural[j] for j in keep]) <= width or not columns[i].priority:
            break
        keep.remove(i)
    return keep


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[int]:
    headers = [column.header for column in columns]
    return [max(len(cells[i]) for cells in (headers, *rows)) for i in range(len(columns))]


def _line_width(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def line_width() -> int:
    """Characters of a line of text: as wide as the terminal, but 40 to 100."""
    return min(100, max(40, shutil.get_terminal_size().columns))


def paragraph(text: str, indent: int = 0, hanging: int | None = None) -> str:
    """The text in lines of :func:`line_width`.

    Args:
        text: words.
        indent: blanks before the lines.
        hanging: blanks before those after the first; None: as many.
    """
    import textwrap

    return textwrap.fill(
        text,
        line_width(),
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent if hanging is None else hanging),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _aligned(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[str]:
    """The header and the rows in columns."""
    widths, lines = _widths(columns, rows), []
    for cells in ([column.header for column in columns], *rows):
        parts = [
            cell.ljust(size) if column.justify == "left" else cell.rjust(size)
            for column, cell, size in zip(columns, cells, widths, strict=True)
        ]
        lines.append((" " * GAP).join(parts).rstrip())
    return lines


def _stacked(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[str]:
    """``GPUs 16, TP 4, step 27.5 s`` for each row, in as many lines as it takes."""
    lines = []
    for row in rows:
        cells = []
        for column, cell in zip(columns, row, strict=True):
            words = f"{column.header} {cell}".strip() if cell else ""
            # Figures stay with their units and names.
            cells.append(words.replace(" ", HELD) if column.justify == "right" else words)
        text = paragraph(", ".join(filter(None, cells)), hanging=2)
        lines += text.replace(HELD, " ").split("\n")
    return lines


def print_line(text: str) -> None:
    """Print a sentence in lines as wide as the terminal."""
    sys.stdout.write(paragraph(text) + "\n")


def print_table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], *, bold_rows: int = 0
) -> list[str]:
    """Print rows of text under headers; the first ``bold_rows`` stand out on a terminal.

    Returns the headers of columns that the terminal is too narrow for. Where those that always stay
    are too wide for it, each row is a paragraph that names its cells.

    Only a terminal gets colours, and only then is rich imported: it takes a tenth of a cold start.
    """
    width = shutil.get_terminal_size().columns
    kept = shown_columns(columns, rows, width)
    left_out = [column.header for i, column in enumerate(columns) if i not in kept]
    columns, rows = [columns[i] for i in kept], [[row[i] for i in kept] for row in rows]
    is_table = _line_width(_widths(columns, rows)) <= width
    lines = _aligned(columns, rows) if is_table else _stacked(columns, rows)
    if not (is_table and sys.stdout.isatty()):
        sys.stdout.write("\n".join(lines) + "\n")
        return left_out
    from rich.console import Console
    from rich.text import Text

    console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
    for index, line in enumerate(lines):
        style = "bold" if index == 0 else "bold green" if index <= bold_rows else ""
        console.print(Text(line, style=style), no_wrap=True, overflow="ignore", crop=False)
    return left_out
