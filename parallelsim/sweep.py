"""The best plan at each of many cluster sizes, sequence lengths and batches.

Points are independent searches, run in processes. A table of points keeps its inputs in its first
columns, so that a later run of the same sweep takes up what is there.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from parallelsim.errors import OutputError, ParallelSimError
from parallelsim.fit import SizedResult, Task
from parallelsim.plan import FIELD_TYPES, PLAN_FIELDS
from parallelsim.processes import as_done
from parallelsim.progress import part, tell
from parallelsim.report.plans import rejections

INPUTS = ("model", "cluster", "framework", "precision", "options", "digest")
"""Of the table; ``digest`` is of what the files behind the names hold, and of the version."""
AXES = ("num_gpus", "seq_length", "batch")
"""``batch``: the global batch that was asked for; empty: the model's own."""
FIGURES = (
    "step_time_s",
    "step_time_low_s",
    "step_time_high_s",
    "tokens_per_s",
    "tokens_per_s_per_gpu",
    "mfu",
    "memory_use_frac",
)
COSTS = ("goodput", "days", "gpu_hours", "dollars")
"""Of the whole training: :func:`parallelsim.objectives.with_costs`."""
SWITCHES = ("proven", "on_front")
PLAN_COLUMNS = tuple(
    name
    for name in PLAN_FIELDS
    if name not in ("precision", "global_batch_size", "recompute_num_layers")
)
COLUMNS = (
    *INPUTS,
    *AXES,
    "status",
    "global_batch_size",
    *FIGURES,
    "scaling_efficiency",
    *COSTS,
    *SWITCHES,
    *PLAN_COLUMNS,
)
"""Of the table, in order."""
FOUND = "ok"

Row = dict[str, Any]
Key = tuple[int, int, int | None]
"""(GPUs, tokens of a sequence, batch asked for)."""


@dataclass(frozen=True, order=True)
class Point:
    """One search of a sweep."""

    seq_length: int
    batch: int | None
    """Sequences of one step; None: the model's own number of tokens."""
    num_gpus: int

    @property
    def words(self) -> str:
        """For people."""
        return f"{self.num_gpus} GPUs, {self.seq_length} tokens"

    @property
    def key(self) -> Key:
        """As rows are known by."""
        return self.num_gpus, self.seq_length, self.batch


def points(
    num_gpus: Sequence[int], seq_lengths: Sequence[int], batches: Sequence[int | None]
) -> list[Point]:
    """Every combination, cluster sizes innermost."""
    product = itertools.product(seq_lengths, batches, sorted(num_gpus))
    return [Point(length, batch, size) for length, batch, size in product]


def search_point(task: Task, point: Point) -> Row:
    """The row of one point; ``status`` says why where it has no safe plan."""
    row: Row = {name: None for name in COLUMNS}
    row |= dict(zip(AXES, point.key, strict=True))
    try:
        model = task.model.with_seq_length(point.seq_length)
        sized = replace(task, model=model, global_batch_size=point.batch).search(point.num_gpus)
    except ParallelSimError as error:
        return row | {"status": str(error)}
    return row | _found(sized)


def _found(sized: SizedResult) -> Row:
    result = sized.result
    row: Row = {"global_batch_size": sized.global_batch_size, "proven": result.proven}
    if not len(result.plans):
        reasons = rejections(result.reasons, at_most=3)
        return row | {"status": f"no safe plan: rejected by {reasons}"}
    plan = result.plans.plans.plan(0).to_dict()
    plan["chunk_layers"] = " ".join(str(n) for n in result.plans.plans.plan(0).chunk_layers)
    figures = {name: float(getattr(result.plans, name)[0]) for name in FIGURES}
    return row | figures | {"status": FOUND} | {n: plan[n] for n in PLAN_COLUMNS if n in plan}


def run(task: Task, wanted: Sequence[Point], num_processes: int) -> Iterator[Row]:
    """The rows of the points as their searches end, in several processes where asked for.

    The caller may stop early: searches that have not begun are then not begun.
    """
    if num_processes < 2 or len(wanted) < 2:
        for index, point in enumerate(wanted):
            with part(point.words, index, len(wanted)):
                row = search_point(task, point)
            yield row
        return
    # Large points first: the last ones to end are then short.
    ordered = sorted(wanted, key=lambda point: -point.num_gpus)
    for done, row in enumerate(as_done(partial(search_point, task), ordered, num_processes), 1):
        tell(done, len(wanted), f"{done} of {len(wanted)} sizes")
        yield row


def with_scaling(rows: Iterable[Row]) -> list[Row]:
    """The rows in order, each with its tokens/s/GPU over that of the smallest cluster of its
    series: the same sequence length and batch.
    """
    ordered = sorted(rows, key=lambda r: (r["seq_length"], r["batch"] or 0, r["num_gpus"]))
    done = []
    for _, series in itertools.groupby(ordered, key=lambda r: (r["seq_length"], r["batch"])):
        first = math.nan
        for row in series:
            rate = row["tokens_per_s_per_gpu"]
            if rate is not None and math.isnan(first):
                first = rate
            done.append(row | {"scaling_efficiency": None if rate is None else rate / first})
    return done


def table_text(rows: Iterable[Row], inputs: Mapping[str, str]) -> str:
    """The rows as CSV: numbers in SI units, switches as true and false."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(value) for name, value in {**row, **inputs}.items()})
    return stream.getvalue()


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else repr(value) if isinstance(value, float) else str(value)


def read_table(path: str, inputs: Mapping[str, str]) -> list[Row]:
    """The rows that a sweep of the same inputs wrote.

    Raises:
        OutputError: no such table, or one of other inputs.
    """
    advice = "use another name, or --force to start anew"
    try:
        with open(path, encoding="utf-8", newline="") as stream:
            lines = list(itertools.islice(stream, 10**6))
        reader = csv.DictReader(lines, strict=True)
        cells = list(reader)
        header = tuple(reader.fieldnames or ())
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or "no CSV"
        raise OutputError(f"{path}: cannot be read: {reason}; {advice}") from None
    if header != COLUMNS:
        raise OutputError(f"{path}: is no table of this version's sweep; {advice}")
    if not lines[-1].endswith("\n"):
        raise OutputError(f"{path}: line {len(lines)} is cut off; {advice}")
    rows = []
    for number, cell in enumerate(cells, 2):
        if None in cell or None in cell.values():
            raise OutputError(f"{path}: line {number} has not the header's cells; {advice}")
        for name, value in inputs.items():
            if cell[name] != value:
                was = f"{name} {cell[name][:60]!r}, not {value[:60]!r}"
                if name == "digest":
                    was = "the model, the cluster, the software or this program has changed"
                raise OutputError(f"{path}: line {number} is of another sweep ({was}); {advice}")
        try:
            rows.append(_row(cell))
        except (ValueError, TypeError, KeyError):
            raise OutputError(f"{path}: line {number} is damaged; {advice}") from None
    return rows


def _row(cell: Mapping[str, str]) -> Row:
    row: Row = {name: _typed(name, text) for name, text in cell.items()}
    if (row["status"] == FOUND) != (row["step_time_s"] is not None):
        raise ValueError
    return row


def _typed(name: str, text: str) -> Any:
    """The value of a cell as :func:`search_point` gives it."""
    if not text and name not in ("status", "chunk_layers"):
        return None
    if name in (*FIGURES, *COSTS, "scaling_efficiency"):
        return float(text)
    kind = bool if name in SWITCHES else FIELD_TYPES.get(name, str)
    if kind is bool:
        return {"true": True, "false": False}[text]
    return int(text) if kind is int or name in AXES else text
