"""Tables of measured training runs: read, checked, and opened as typed facts.

One row is one run; an empty cell was not stated. The columns are those of ``docs/accuracy.md``.
What is wrong with the table as a whole is an error, what is wrong with one row skips that row with
a reason.
"""

from __future__ import annotations

import csv
import difflib
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from parallelsim.errors import OutputError, ParallelSimError, SpecError
from parallelsim.measured_names import FRAMEWORK_NAMES, plain_name

REQUIRED = (
    "id",
    "gpu",
    "num_gpus",
    "num_layers",
    "hidden_size",
    "num_attention_heads",
    "ffn_hidden_size",
    "vocab_size",
    "seq_length",
    "tp",
    "pp",
    "global_batch_size",
)
"""Columns that a table must have; the cells of a row may be empty."""
MEASURED = ("step_time_s", "tokens_per_s_per_gpu", "peak_memory_gb", "oom")
"""Columns of which a table must have one."""
MAX_ROWS = 1_000_000
SANE: Mapping[str, tuple[float, float]] = {
    "step_time_s": (1e-4, 1e6),
    "tokens_per_s_per_gpu": (1e-3, 1e9),
    "peak_memory_gb": (1e-3, 1e6),
}
"""Least and most of each measured quantity; what lies outside is no measurement of a step."""
_TRUE, _FALSE = ("true", "yes", "1", "1.0", "on"), ("false", "no", "0", "0.0", "off")
SWITCH_WORDS = _TRUE + _FALSE
"""Words of a column that holds True or False."""
_OPEN_UNIT = re.compile(r"\bGB or GiB\b", re.I)
_NONE = (*_FALSE, "none", "null", "nan", "n/a", "-")


class RowError(ParallelSimError):
    """One row cannot be scored; the message is the reason."""


@dataclass(frozen=True)
class Facts:
    """The cells of one row, opened by type; None where the source did not state them."""

    cells: Mapping[str, str]

    def text(self, name: str) -> str:
        """The cell as written, without surrounding blanks; empty where it is not stated."""
        return (self.cells.get(name) or "").strip()

    def word(self, name: str) -> str:
        """The cell in lower case, as names of the catalogue and of plans are written."""
        return self.text(name).lower()

    def feature(self, name: str) -> str:
        """The cell in lower case; empty too where it says that the run has none of it."""
        text = self.word(name)
        try:
            return "" if text in _NONE or float(text) == 0 else text
        except ValueError:
            return text

    def number(self, name: str) -> float | None:
        """A finite number.

        Raises:
            RowError: anything else.
        """
        text = self.text(name)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise RowError(f"{name} is no number: {text[:40]!r}")
        return value

    def positive(self, name: str) -> float | None:
        """A number above 0.

        Raises:
            RowError: zero, negative, no number.
        """
        value = self.number(name)
        if value is not None and value <= 0:
            raise RowError(f"{name} must be above 0, got {self.text(name)[:40]}")
        return value

    def within(self, name: str, low: float, high: float) -> float | None:
        """A number of a sane size.

        Raises:
            RowError: no number, or one that no run can have.
        """
        value = self.positive(name)
        if value is not None and not low <= value <= high:
            raise RowError(f"{name}={self.text(name)[:40]} is not within {low:g} to {high:g}")
        return value

    def count(self, name: str, default: int | None = None) -> int | None:
        """A whole number of 1 or more, or the default.

        Raises:
            RowError: anything else.
        """
        value = self.number(name)
        if value is None:
            return default
        if value < 1 or value != int(value) or value > 2**53:
            raise RowError(
                f"{name} must be a whole number of 1 or more, got {self.text(name)[:40]}"
            )
        return int(value)

    def count_or_zero(self, name: str) -> int:
        """A whole number, 0 where none is stated or it says no.

        Raises:
            RowError: anything else.
        """
        return (self.count(name) or 0) if self.feature(name) else 0

    def required(self, name: str) -> int:
        """A whole number that has to be stated.

        Raises:
            RowError: it is not.
        """
        value = self.count(name)
        if value is None:
            raise RowError(f"{name} is not stated")
        return value

    def switch(self, name: str) -> bool | None:
        """True or False.

        Raises:
            RowError: anything else.
        """
        text = self.text(name).lower()
        if not text:
            return None
        if text not in SWITCH_WORDS:
            raise RowError(f"{name} must be True or False, got {self.text(name)[:40]!r}")
        return text in _TRUE


@dataclass(frozen=True)
class Run:
    """One measured run."""

    id: str
    group: str
    """The source: one cluster, one software stack."""
    framework: str
    """Catalogue name of the training software; empty where none is meant."""
    facts: Facts
    flag: str
    """Empty, ``drop: why``, ``apart: why``, or another word, which keeps the run apart."""
    step_time_s: float | None
    peak_memory_bytes: float | None
    oom: bool | None
    """The run failed for lack of memory; None where nothing is known."""

    @property
    def is_dropped(self) -> bool:
        """Never to be scored."""
        return _is_flag(self.flag, "drop")

    @property
    def is_apart(self) -> bool:
        """Scored, but reported in a separate block."""
        return bool(self.flag) and not self.is_dropped

    @property
    def has_unknown_flag(self) -> bool:
        """Kept apart for a word that is neither ``drop`` nor ``apart``."""
        return self.is_apart and not _is_flag(self.flag, "apart")


def _is_flag(flag: str, word: str) -> bool:
    return flag.lower().partition(":")[0].strip() == word


@dataclass(frozen=True)
class BadRow:
    """A row that is no run, and why."""

    id: str
    group: str
    reason: str


def read_tables(paths: Sequence[str | os.PathLike[str]]) -> list[Run | BadRow]:
    """The runs of all tables, in order; rows that are unusable come as :class:`BadRow`.

    Raises:
        OutputError: a file cannot be read.
        SpecError: a file is no table of measurements: what is wrong and what was expected.
    """
    rows: list[Run | BadRow] = []
    seen: set[str] = set()
    for path in paths:
        file = os.fspath(path)
        for number, cells in _rows(file):
            row = _run(cells, number, os.path.basename(file))
            if row.id in seen:
                row = BadRow(row.id, row.group, "duplicate id: scored once, at its first row")
            seen.add(row.id)
            rows.append(row)
    return rows


def _run(cells: Mapping[str, str], number: int, file: str) -> Run | BadRow:
    facts = Facts(cells)
    name = facts.text("id") or f"{file} line {number}"
    group = printable(facts.text("group") or file)
    if None in cells or any(value is None for value in cells.values()):
        return BadRow(name, group, "the row has more or fewer cells than the header")
    try:
        return Run(
            id=name,
            group=group,
            framework=plain_name(facts.text("framework"), FRAMEWORK_NAMES),
            facts=facts,
            flag=printable(facts.text("flag")) if facts.feature("flag") else "",
            step_time_s=measured_step_time(facts),
            peak_memory_bytes=measured_peak_memory(facts),
            oom=facts.switch("oom"),
        )
    except RowError as error:
        return BadRow(name, group, str(error))


def printable(text: str, most: int = 200) -> str:
    """Text of a cell as it can stand in a line of a report."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:most])


def measured_step_time(facts: Facts) -> float | None:
    """Seconds of a step: as stated, or global batch x sequence / (tokens/s/GPU x GPUs).

    Raises:
        RowError: one is no step's, or both contradict each other by a factor above 2.
    """
    stated, rate = (
        facts.within(name, *SANE[name]) for name in ("step_time_s", "tokens_per_s_per_gpu")
    )
    needed = [facts.count(name) for name in ("global_batch_size", "seq_length", "num_gpus")]
    if rate is None or None in needed:
        return stated
    batch, seq_length, num_gpus = (float(value or 0) for value in needed)
    computed = batch * seq_length / (rate * num_gpus)
    if stated is not None and not 0.5 < stated / computed < 2:
        hint = _unit_hint(stated / computed, num_gpus)
        raise RowError(
            f"step_time_s={stated:g} contradicts tokens_per_s_per_gpu, which gives {computed:.4g} "
            f"s{hint}"
        )
    low, high = SANE["step_time_s"]
    if stated is None and not low <= computed <= high:
        raise RowError(
            f"tokens_per_s_per_gpu={facts.text('tokens_per_s_per_gpu')[:40]} gives a step of "
            f"{computed:.4g} s, not within {low:g} to {high:g}"
        )
    return computed if stated is None else stated


def _unit_hint(ratio: float, num_gpus: float) -> str:
    """What explains a stated step time of ``ratio`` times the one that the throughput gives."""
    explained = (
        ("; is that the tokens/s of all GPUs?", num_gpus, 1.25),
        ("; milliseconds?", 1000.0, 2.0),
        ("; minutes?", 1 / 60, 1.25),
        ("; are these minutes, and the tokens/s of all GPUs?", num_gpus / 60, 1.25),
    )
    for hint, expected, factor in explained:
        if 1 / factor < ratio / expected < factor:
            return hint
    return ""


def measured_peak_memory(facts: Facts) -> float | None:
    """Bytes of ``peak_memory_gb``: 10^9 each, or 2^30 where ``memory_kind`` says that the source
    prints GB or GiB.

    PyTorch counts bytes, and training software prints them over 1024^3, often under the name of GB:
    sail-sg/zero-bubble-pipeline-parallelism core/pipeline_parallel/schedules.py, InternEvo
    utils/gputest.py; Megatron-LM and torchtitan likewise under MB and GiB. The one table that can
    decide, arXiv:2411.05288 table 5, grows by exactly 16 bytes a parameter of the vocabulary
    where its GB are 2^30 bytes (14.9 otherwise).
    """
    printed = facts.within("peak_memory_gb", *SANE["peak_memory_gb"])
    unit = 2.0**30 if has_open_unit(facts) else 1e9
    return None if printed is None else printed * unit


def has_open_unit(facts: Facts) -> bool:
    """The source prints GB or GiB, and does not say which."""
    return _OPEN_UNIT.search(facts.text("memory_kind")) is not None


def _rows(file: str) -> Iterator[tuple[int, Mapping[str, str]]]:
    """(line number, cells by column) of every row."""
    try:
        with open(file, encoding="utf-8-sig", newline="") as stream:
            if "\0" in stream.read(4096):
                raise SpecError("not a text file; expected a CSV table", file=file)
            stream.seek(0)
            with _cells_of_any_length():
                reader = csv.DictReader(stream, strict=True)
                _check_header(reader.fieldnames, file)
                for count, cells in enumerate(reader):
                    if count >= MAX_ROWS:
                        raise SpecError(f"more than {MAX_ROWS} rows", file=file)
                    yield reader.line_num, cells
    except UnicodeDecodeError:
        raise SpecError("not UTF-8 text; expected a CSV table", file=file) from None
    except csv.Error as error:
        raise SpecError(f"not a CSV table: {error}", file=file) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise OutputError(f"{file}: cannot read the table: {reason}") from None


@contextmanager
def _cells_of_any_length() -> Iterator[None]:
    """Without the module's limit of 131,072 characters: notes may hold a whole log."""
    before = csv.field_size_limit(2**31 - 1)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _check_header(header: Sequence[str] | None, file: str) -> None:
    if not header or not any(name.strip() for name in header):
        raise SpecError("the file is empty; expected a CSV table with a header", file=file)
    repeated = sorted({name for name in header if name and header.count(name) > 1})
    if repeated:
        raise SpecError(f"the column {repeated[0][:60]!r} stands there twice", file=file)
    if len(header) == 1:
        for other, shown in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
            if header[0].count(other) > 1:
                raise SpecError(
                    f"its columns are separated by {shown}; save it with commas", file=file
                )
    missing = [name for name in REQUIRED if name not in header]
    if missing:
        raise SpecError(
            f"missing column{'s' if len(missing) > 1 else ''} {', '.join(missing)}"
            f"{_nearest(missing, header)}",
            file=file,
        )
    if not any(name in header for name in MEASURED):
        wanted = ", ".join(MEASURED)
        raise SpecError(
            f"nothing measured: expected one of the columns {wanted}{_nearest(MEASURED, header)}",
            file=file,
        )


def _nearest(missing: Sequence[str], header: Sequence[str]) -> str:
    """A hint where the header has a name close to a missing one, as another unit would be."""
    for name in missing:
        stem = name.removesuffix("_s").removesuffix("_gb")
        for other in header:
            if other not in REQUIRED and other.startswith(stem + "_") and stem != name:
                return f"; {other!r} is in another unit: convert it to {name!r}"
        close = difflib.get_close_matches(
            name, [h for h in header if h not in REQUIRED], n=1, cutoff=0.8
        )
        if close:
            return f"; is {close[0][:60]!r} meant as {name!r}?"
    return ""
