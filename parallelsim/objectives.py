"""What a plan is chosen for: GPU-hours or money for a number of tokens, the fewest GPUs for a
deadline, the most tokens of a GPU; over cluster sizes.

A token budget D on N GPUs that train R tokens/s takes D / R seconds, N D / R GPU-seconds. Neglects
restarts, checkpoints and evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parallelsim.fit import Task, allowed_sizes
from parallelsim.sweep import FOUND, Point, Row, run

FEWEST_GPUS = "fewest-gpus"
"""The objective for which a smaller cluster is better; for the others more tokens of a GPU are."""
DAY_S, HOUR_S = 86_400.0, 3_600.0
MOST_BETWEEN = 64
"""Sizes between two tried ones that are tried too."""
SPARE_RATE = 1.05
"""Sizes that would need so many times the tokens/s of a GPU of any size tried are passed over."""


@dataclass(frozen=True)
class Budget:
    """What is to be trained, by when, at what price; None: not stated."""

    tokens: float | None = None
    deadline_days: float | None = None
    dollars_per_gpu_hour: float | None = None

    def days(self, tokens_per_s: float) -> float | None:
        """Days for all tokens."""
        return None if self.tokens is None else self.tokens / tokens_per_s / DAY_S

    def gpu_hours(self, tokens_per_s_per_gpu: float) -> float | None:
        """GPU-hours for all tokens."""
        return None if self.tokens is None else self.tokens / tokens_per_s_per_gpu / HOUR_S

    def dollars(self, tokens_per_s_per_gpu: float) -> float | None:
        """Price of all tokens."""
        hours = self.gpu_hours(tokens_per_s_per_gpu)
        price = self.dollars_per_gpu_hour
        return None if hours is None or price is None else hours * price

    def is_met(self, tokens_per_s: float) -> bool:
        """Whether all tokens are trained by the deadline; true without one."""
        days = self.days(tokens_per_s)
        return self.deadline_days is None or days is None or days <= self.deadline_days


@dataclass(frozen=True)
class Choice:
    """The cluster size that is best for an objective."""

    objective: str
    tried: tuple[Row, ...]
    """The best plan at each size that was tried, ascending: rows of a sweep."""
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
    tried = _searched(task, coarse, num_processes)
    best = _best(tried, objective, budget)
    if best is not None:
        between = _between(allowed, coarse, best, objective, budget, tried)
        tried = sorted(
            [*tried, *_searched(task, between, num_processes)], key=lambda row: int(row["num_gpus"])
        )
        best = _best(tried, objective, budget)
    return Choice(objective, tuple(tried), best)


def _is_round(number: int) -> bool:
    """2^k or 3 2^k."""
    while number % 2 == 0:
        number //= 2
    return number in (1, 3)


def _searched(task: Task, sizes: Sequence[int], num_processes: int) -> list[Row]:
    length, batch = task.model.seq_length, task.global_batch_size
    wanted = [Point(length, batch, size) for size in sizes]
    return sorted(run(task, wanted, num_processes), key=lambda row: int(row["num_gpus"]))


def _best(tried: Sequence[Row], objective: str, budget: Budget) -> Row | None:
    """Of the sizes that meet the deadline, the first of the best."""
    meeting = [
        row for row in tried if row["status"] == FOUND and budget.is_met(row["tokens_per_s"])
    ]
    if objective == FEWEST_GPUS:
        return min(meeting, key=lambda row: int(row["num_gpus"]), default=None)
    return max(meeting, key=lambda row: float(row["tokens_per_s_per_gpu"]), default=None)


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
        rates = [row["tokens_per_s_per_gpu"] for row in tried if row["status"] == FOUND]
        needed = budget.tokens / (budget.deadline_days * DAY_S)
        sizes = [n for n in sizes if n * max(rates) * SPARE_RATE >= needed]
    if len(sizes) <= MOST_BETWEEN:
        return sizes
    step = len(sizes) / MOST_BETWEEN
    return [sizes[int(i * step)] for i in range(MOST_BETWEEN)]
