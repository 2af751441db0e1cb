"""Training logs: step time, throughput and peak memory from the lines that the software prints.

Megatron prints ``iteration 20/ 100 | ... elapsed time per iteration (ms): 10612.1 | ...`` and once
``memory (MB) | ... max reserved: 61234.0`` (of 2^20 bytes); torchtitan ``step: 20 ... memory:
47.34GiB(59.85%)  tps: 6,210`` (tokens/s of a GPU); nanotron ``iteration: 20 / 100 | ...
time_per_iteration_ms: 1.23K | tokens_per_sec_per_gpu: 10.6K`` and ``Peak reserved: 13000.00MiB``.
A log is read as a stream; colour codes, prefixes of launchers and lines of several ranks are fine.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median

from parallelsim.errors import OutputError, SpecError
from parallelsim.units import GIB, MIB, MILLI

MAX_LINE_BYTES = 1 << 16
"""Longer lines are read in pieces."""
WARM_UP = 0.1
"""Share of the first steps, at least one, that is not counted where there are several."""

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_NUMBER = r"([^\s|/(]+)"
_SUFFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}


@dataclass(frozen=True, slots=True)
class _Format:
    """What one software prints for a step."""

    name: str
    words: str
    """Stand in each of its lines: looking for them is far faster than the patterns."""
    step: re.Pattern[str]
    value: re.Pattern[str]
    is_time: bool
    """Milliseconds of a step; else tokens/s of a GPU."""
    frameworks: tuple[str, ...]
    """Catalogue names of the software that prints it."""


_FORMATS = (
    _Format(
        "megatron",
        "lapsed time per iteration",
        re.compile(r"\biteration\s+(\d+)\s*/\s*(?:\d+|infinity)\s*\|", re.I),
        re.compile(rf"elapsed time per iteration \(ms\):\s*{_NUMBER}", re.I),
        True,
        ("megatron-core", "megatron-lm-2021", "megatron-lm-2022", "megatron-deepspeed"),
    ),
    _Format(
        "nanotron",
        "time_per_iteration_ms",
        re.compile(r"\biteration:\s*([\d.]+[KMB]?)\s*/"),
        re.compile(rf"\b(?:elapsed_)?time_per_iteration_ms:\s*{_NUMBER}"),
        True,
        ("nanotron",),
    ),
    _Format(
        "torchtitan",
        "ps:",
        re.compile(r"\bstep:\s*(\d+)\b"),
        re.compile(rf"\b[tw]ps:\s*{_NUMBER}"),
        False,
        ("torchtitan",),
    ),
)
_RESERVED = (
    ("max reserved:", re.compile(r"\bmax reserved:\s*([\d.]+)"), MIB),
    ("Peak reserved:", re.compile(r"\bPeak reserved:\s*([\d.]+)MiB"), MIB),
    ("memory:", re.compile(r"\bmemory:\s*([\d.]+)GiB\("), GIB),
    ("max_memory_reserved:", re.compile(r"\bcuda_max_memory_reserved:\s*([\d.]+)G\b"), 1e9),
)
_ALLOCATED = (
    ("max allocated:", re.compile(r"\bmax allocated:\s*([\d.]+)"), MIB),
    ("Peak allocated", re.compile(r"\bPeak allocated:?\s*([\d.]+)MiB"), MIB),
)
"""(words, pattern of the number, its unit)."""
_WORDS = (b"iteration", b"step:", b"reserved", b"allocated", b"NVIDIA ")
"""One of them stands in every line that matters."""
_GPU = re.compile(r"\bNVIDIA ([A-Z]{1,2}\d{2,4}S?)\b")
"""As drivers name them: ``NVIDIA H100 80GB HBM3``, ``NVIDIA A100-SXM4-80GB``."""
_NO_NUMBER = "a time or throughput that is no number above 0"
_GLOBAL_BATCH = re.compile(r"\bglobal batch size:\s*(\d+)")


@dataclass(frozen=True)
class RunLog:
    """What one log says; None where it does not."""

    file: str
    software: str
    """megatron, nanotron or torchtitan."""
    step_time_s: float | None
    """Median after the warm-up."""
    tokens_per_s_per_gpu: float | None
    peak_memory_bytes: float | None
    """Highest of all ranks: reserved, or allocated where that alone is printed."""
    global_batch_size: int | None
    num_steps: int
    """Steps that the median is over."""
    gpu: str | None
    """The GPU that its lines name most often, as ``H100``."""
    skipped: Mapping[str, int]
    """Lines about steps that could not be used, by reason."""


def read_log(path: str | os.PathLike[str]) -> RunLog:
    """The figures of one run's log.

    Raises:
        OutputError: the file cannot be read.
        SpecError: it is no text, or has no usable line.
    """
    file = os.fspath(path)
    reader = _Reader()
    count = 0
    for line in _lines(file):
        count += 1
        if line:
            reader.read(line)
    return reader.result(file, count)


def _lines(file: str) -> Iterator[str]:
    """Lines without colours, empty those that cannot matter; carriage returns end lines too."""
    try:
        with open(file, "rb") as stream:
            if b"\0" in stream.read(4096):
                raise SpecError("not a text file; expected a training log", file=file)
            stream.seek(0)
            while piece := stream.readline(MAX_LINE_BYTES):
                if any(word in piece for word in _WORDS):
                    text = piece.decode("utf-8", errors="replace")
                    text = _COLOURS.sub("", text) if "\x1b" in text else text
                    yield from text.split("\r")
                else:
                    yield ""
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise OutputError(f"{file}: cannot read the log: {reason}") from None


class _Reader:
    """Collects the figures line by line; steps that several ranks print are averaged."""

    def __init__(self) -> None:
        self.steps: dict[str, dict[int, tuple[float, int]]] = {f.name: {} for f in _FORMATS}
        self.skipped: Counter[str] = Counter()
        self.reserved = self.allocated = 0.0
        self.batches: Counter[int] = Counter()
        self.gpus: Counter[str] = Counter()

    def read(self, line: str) -> None:
        """One line."""
        self.reserved = max(self.reserved, _largest(line, _RESERVED))
        self.allocated = max(self.allocated, _largest(line, _ALLOCATED))
        if "NVIDIA " in line:
            self.gpus.update(_GPU.findall(line))
        for software in _FORMATS:
            if software.words not in line:
                continue
            values, steps = software.value.findall(line), software.step.findall(line)
            if not values and not steps:
                continue
            if not values:
                self.skipped[_NO_NUMBER] += 1
            elif len(values) > 1 or len(steps) > 1:
                self.skipped["lines of two ranks run into each other"] += 1
            elif not steps:
                self.skipped["a step time without its step"] += 1
            else:
                self._add(software, int(_number(steps[0]) or 0), _number(values[0]), line)
            return

    def _add(self, software: _Format, step: int, value: float, line: str) -> None:
        if not (math.isfinite(value) and value > 0):
            self.skipped[_NO_NUMBER] += 1
            return
        total, count = self.steps[software.name].get(step, (0.0, 0))
        self.steps[software.name][step] = (total + value, count + 1)
        batch = _GLOBAL_BATCH.search(line)
        if batch and len(batch[1]) < 12:
            self.batches[int(batch[1])] += 1

    def result(self, file: str, num_lines: int) -> RunLog:
        """The figures of the software with most steps."""
        software = max(_FORMATS, key=lambda f: len(self.steps[f.name]))
        steps = self.steps[software.name]
        if not steps:
            why = "; ".join(f"{n} x {reason}" for reason, n in self.skipped.most_common())
            raise SpecError(
                f"no usable line ({why or f'{num_lines} lines looked at'}); expected a log of "
                "Megatron ('elapsed time per iteration (ms):'), nanotron "
                "('time_per_iteration_ms:') or torchtitan ('step: ... tps:')",
                file=file,
            )
        for other in _FORMATS:
            if other is not software and self.steps[other.name]:
                self.skipped[f"lines of {other.name}"] += len(self.steps[other.name])
        ordered = [total / count for _, (total, count) in sorted(steps.items())]
        cut = max(1, int(WARM_UP * len(ordered))) if len(ordered) > 1 else 0
        value = median(ordered[cut:])
        peak = self.reserved or self.allocated
        return RunLog(
            file=file,
            software=software.name,
            step_time_s=value * MILLI if software.is_time else None,
            tokens_per_s_per_gpu=None if software.is_time else value,
            peak_memory_bytes=peak or None,
            global_batch_size=self.batches.most_common(1)[0][0] if self.batches else None,
            num_steps=len(ordered) - cut,
            gpu=self.gpus.most_common(1)[0][0] if self.gpus else None,
            skipped=dict(self.skipped),
        )


def contradicts(log: RunLog, framework: str) -> bool:
    """The log's lines are those of other software than the framework of this catalogue name.

    Software whose own lines are not known contradicts nothing.
    """
    known = {name: form.name for form in _FORMATS for name in form.frameworks}
    return known.get(framework, log.software) != log.software


def _largest(line: str, patterns: tuple[tuple[str, re.Pattern[str], float], ...]) -> float:
    """The largest number of the patterns, in bytes; 0 where there is none."""
    largest = 0.0
    for words, pattern, unit in patterns:
        if words in line:
            for text in pattern.findall(line):
                value = _number(text) * unit
                largest = max(largest, value) if math.isfinite(value) else largest
    return largest


def _number(text: str) -> float:
    """A number as the software writes it: 1,234.5 or 1.23K; NaN for anything else."""
    text = text.replace(",", "").rstrip("|;")
    suffix = text[-1:] if text[-1:] in _SUFFIXES else ""
    try:
        return float(text.removesuffix(suffix)) * _SUFFIXES[suffix]
    except ValueError:
        return math.nan
