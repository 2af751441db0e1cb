"""What a plan is chosen for: GPU-hours or money for a number of tokens, the fewest GPUs for a
deadline, the most tokens of a GPU; over cluster sizes.

Days and GPU-hours are those of :mod:`parallelsim.whole_run`: with its checkpoints and failures, so
that a size that fails more often has to be faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parallelsim.fit import Task, allowed_sizes
from parallelsim.plan import Plan
from parallelsim.plan_batch import PlanBatch
from parallelsim.sweep import FOUND, Point, Row, run
from parallelsim.whole_run import (
    DAY_S,
    Budget,
    Recovery,
    checkpoint_bytes,
    default_faults,
    recovery,
)

FEWEST_GPUS = "fewest-gpus"
"""The objective for which a smaller cluster is better; for the others more tokens of a GPU are."""
MOST_BETWEEN = 64
"""Sizes between two tried ones that are tried too."""
SPARE_RATE = 1.05
"""Sizes that would need so many times the tokens/s of a GPU of any size tried are passed over."""


@dataclass(frozen=True)
class Choice:
    """The cluster size that is best for an objective."""

    objective: str
    tried: tuple[Row, ...]
    """The best plan at each size that was tried, ascending: rows of a sweep, with the ``goodput``
    and the rates ``kept_tokens_per_s`` and ``kept_tokens_per_s_per_gpu`` that it leaves."""
    best: Row | None
    """None: no size meets the deadline, or none has a safe plan."""


def choose_size(
    task: Task, objective: str, budget: Budget, at_most: int, num_processes: int
) -> Choice:
    """The size up to ``at_most`` that is best for the objective.

    Sizes of the form 2^k and 3 2^k are tried, then those next to the best: for the fewest GPUs all
    between the largest that misses the deadline and the smallest that meets it, at most
    ``MOST_BETWEEN`` of them.
    """
    allowed = allowed_sizes(task.cluster, 1, at_most)
    coarse = [n for n in allowed if _is_round(n) or n == allowed[-1]]
    tried = _searched(task, budget, coarse, num_processes)
    best = _best(tried, objective, budget)
    if best is not None:
        between = _between(allowed, coarse, best, objective, budget, tried)
        more = _searched(task, budget, between, num_processes)
        tried = sorted([*tried, *more], key=lambda row: int(row["num_gpus"]))
        best = _best(tried, objective, budget)
    return Choice(objective, tuple(tried), best)


def _is_round(number: int) -> bool:
    """2^k or 3 2^k."""
    while number % 2 == 0:
        number //= 2
    return number in (1, 3)


def _searched(task: Task, budget: Budget, sizes: Sequence[int], num_processes: int) -> list[Row]:
    length, batch = task.model.seq_length, task.global_batch_size
    wanted = [Point(length, batch, size) for size in sizes]
    rows = [with_goodput(task, budget, row) for row in run(task, wanted, num_processes)]
    return sorted(rows, key=lambda row: int(row["num_gpus"]))


def with_goodput(task: Task, budget: Budget, row: Row) -> Row:
    """The row of a sweep and the rates that checkpoints and failures leave; None without a plan."""
    if row["status"] != FOUND:
        return row | {"goodput": None, "kept_tokens_per_s": None, "kept_tokens_per_s_per_gpu": None}
    kept = float(row_recovery(task, budget, row).goodput[0])
    rates = {f"kept_{name}": row[name] * kept for name in ("tokens_per_s", "tokens_per_s_per_gpu")}
    return row | {"goodput": kept} | rates


def row_recovery(task: Task, budget: Budget, row: Row) -> Recovery:
    """Checkpoints and failures of a row with a plan, arrays of shape [1]."""
    plan = PlanBatch.from_plans([Plan(optimizer=row["optimizer"], precision=task.precision)])
    size = checkpoint_bytes(task.model, task.framework, plan)
    step_s, rate = np.array([row["step_time_s"]]), float(row["tokens_per_s"])
    num_steps = np.inf if budget.tokens is None else budget.tokens / (rate * step_s)
    cluster = task.cluster.with_num_gpus(int(row["num_gpus"]))
    return recovery(cluster, budget.faults or default_faults(cluster), size, step_s, num_steps)


def with_costs(task: Task, budget: Budget, rows: Sequence[Row]) -> list[Row]:
    """Rows of a sweep, each with the goodput, days, GPU-hours and dollars of all tokens (None
    without tokens, a price or a plan), and whether it is on the front of its sequence length and
    batch: no other size trains the tokens sooner with no more GPU-hours, or as soon with fewer.
    """
    priced = [with_goodput(task, budget, row) for row in rows]
    done = []
    for row in priced:
        rate, of_gpu = row["kept_tokens_per_s"], row["kept_tokens_per_s_per_gpu"]
        row = {name: value for name, value in row.items() if not name.startswith("kept_")}
        if rate is not None:
            row["on_front"] = not any(_beats(other, rate, of_gpu, row) for other in priced)
            row["days"], row["gpu_hours"] = budget.days(rate), budget.gpu_hours(of_gpu)
            row["dollars"] = budget.dollars(of_gpu)
        done.append(row)
    return done


def _beats(row: Row, rate: float, of_gpu: float, other: Row) -> bool:
    """Whether the row has the other's sequence length and batch, and is better in one of tokens/s
    and tokens/s of a GPU and not worse in the other one.
    """
    if row["kept_tokens_per_s"] is None or any(row[n] != other[n] for n in ("seq_length", "batch")):
        return False
    mine, theirs = (row["kept_tokens_per_s"], row["kept_tokens_per_s_per_gpu"]), (rate, of_gpu)
    return mine != theirs and all(a >= b for a, b in zip(mine, theirs, strict=True))


def _best(tried: Sequence[Row], objective: str, budget: Budget) -> Row | None:
    """Of the sizes that meet the deadline, the first of the best."""
    found = [row for row in tried if row["status"] == FOUND]
    meeting = [row for row in found if budget.is_met(row["kept_tokens_per_s"])]
    if objective == FEWEST_GPUS:
        return min(meeting, key=lambda row: int(row["num_gpus"]), default=None)
    return max(meeting, key=lambda row: float(row["kept_tokens_per_s_per_gpu"]), default=None)


def _between(
    allowed: Sequence[int],
    coarse: Sequence[int],
    best: Row,
    objective: str,
    budget: Budget,
    tried: Sequence[Row],
) -> list[int]:
    """Sizes next to the best one that are worth a search."""
    size = int(best["num_gpus"])
    at = coarse.index(size)
    low = coarse[at - 1] if at else 0
    high = size if objective == FEWEST_GPUS or at + 1 == len(coarse) else coarse[at + 1]
    sizes = [n for n in allowed if low < n < high and n != size]
    if budget.tokens is not None and budget.deadline_days is not None:
        rates = [row["kept_tokens_per_s_per_gpu"] for row in tried if row["status"] == FOUND]
        needed = budget.tokens / (budget.deadline_days * DAY_S)
        sizes = [n for n in sizes if n * max(rates) * SPARE_RATE >= needed]
    if len(sizes) <= MOST_BETWEEN:
        return sizes
    step = len(sizes) / MOST_BETWEEN
    return [sizes[int(i * step)] for i in range(MOST_BETWEEN)]
