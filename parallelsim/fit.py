"""The smallest number of GPUs that trains a model, what binds, and what one change would allow."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any

from parallelsim.cluster import ClusterSpec
from parallelsim.default_batch import default_global_batch_size
from parallelsim.errors import PlanError
from parallelsim.framework import FrameworkSpec
from parallelsim.model import ModelSpec
from parallelsim.progress import part
from parallelsim.simulate import TIGHT_LIMIT

if TYPE_CHECKING:
    from parallelsim.search.result import SearchResult

MAX_GPUS = 65_536
"""Clusters of unstated size are tried up to here."""
SPARE = 1.5
"""A size is tried where a smaller one's memory, shared out, is within this factor of the limit."""
MAX_MISSES = 2
"""The walk down to smaller sizes ends after so many in a row that do not fit."""
MAX_SCAN = 32
"""Sizes between two powers of two are tried one by one up to this many, and halved above."""

DEGREES = ("tp", "cp", "pp", "dp")


class TimeIsUpError(Exception):
    """A search was not begun: it would not end before the task's deadline."""


@dataclass(frozen=True)
class Deadline:
    """When searches have to be over, and how fast they are."""

    end_s: float
    """On the clock of ``time.perf_counter``."""
    candidates_per_s: float


@dataclass(frozen=True)
class SizedResult:
    """The search at one cluster size."""

    num_gpus: int
    global_batch_size: int
    result: SearchResult


@dataclass(frozen=True)
class Change:
    """One change and the smallest cluster that trains the model with it."""

    what: str
    """In words, with the option that makes it."""
    fit: SizedResult


@dataclass(frozen=True)
class Fit:
    """Answer of :func:`fit`."""

    smallest: SizedResult | None
    """None: no size up to the cluster's largest trains it."""
    below: SizedResult | None
    """The next smaller size that was tried and did not, or without a smallest the one that missed
    by least: its nearest miss says what binds.
    """
    exhaustive: bool
    """Every size below the smallest one that whole nodes allow, down to half of it, was tried."""
    changes: tuple[Change, ...]
    """What would train it on fewer GPUs."""
    tried: tuple[int, ...] = ()
    """Sizes that were searched, ascending."""
    ruled_out: tuple[int, ...] = ()
    """Sizes passed over: a smaller one missed by more than sharing its memory out would mend."""
    nearest: SizedResult | None = None
    """The size that misses by least; odd sizes just below the smallest may have no good plan."""
    refused: str = ""
    """Why no size was searched at all: no size holds the fixed values."""
    tried_changes: tuple[str, ...] = ()
    """All changes that were tried, in words."""


@dataclass(frozen=True)
class Task:
    """What :func:`fit` varies: everything that a search needs but the number of GPUs."""

    model: ModelSpec
    cluster: ClusterSpec
    framework: FrameworkSpec
    global_batch_size: int | None = None
    """Sequences; None takes the model's default, rounded for each size."""
    precision: str = "bf16"
    fixed: Mapping[str, Any] | None = None
    limits: Mapping[str, Any] | None = None
    memory_limit: float = 0.80
    all_schedules: bool = False
    """Also the pipeline schedules that the framework does not run."""
    deadline: Deadline | None = None
    """No search is begun that would last beyond it."""

    def holds(self, num_gpus: int) -> bool:
        """Whether the fixed degrees, and some of the limited ones, divide this many GPUs."""
        fixed = self.fixed or {}
        if num_gpus % prod(int(fixed[name]) for name in DEGREES if name in fixed):
            return False
        limits = [values for name, values in (self.limits or {}).items() if name in DEGREES]
        return all(any(num_gpus % int(value) == 0 for value in values) for values in limits)

    def search(self, num_gpus: int) -> SizedResult:
        """The best plan for one size.

        Raises:
            PlanError: this size cannot hold the fixed values.
            TimeIsUpError: the search would last beyond the deadline.
        """
        from parallelsim.search.grid import grid_search
        from parallelsim.search.space import SearchSpace

        batch = self.global_batch_size or default_global_batch_size(self.model, num_gpus)
        space = SearchSpace(
            self.model,
            self.cluster.with_num_gpus(num_gpus),
            self.framework,
            batch,
            precision=self.precision,
            fixed=dict(self.fixed or {}),
            limits=dict(self.limits or {}),
            all_schedules=self.all_schedules,
        )
        if self.deadline:
            needed = space.num_candidates / self.deadline.candidates_per_s
            if time.perf_counter() + needed > self.deadline.end_s:
                raise TimeIsUpError
        with part(f"{num_gpus} GPUs"):
            result = grid_search(space, 1, self.memory_limit)
        if result.partial:
            raise KeyboardInterrupt
        return SizedResult(num_gpus, batch, result)

    def changes(self) -> list[tuple[str, Task]]:
        """What is worth trying, each alone, in words; recompute and cp are searched anyway."""
        fixed = dict(self.fixed or {})
        tries = []
        if "bf16" in self.framework.capabilities.grad_dtypes and "grad_dtype" not in fixed:
            changed = replace(self, fixed={**fixed, "grad_dtype": "bf16"})
            tries.append(("16-bit gradients (--fix grad_dtype=bf16)", changed))
        can = self.framework.capabilities.optimizer_offload and self.cluster.host_memory_bytes
        if can and "optimizer_offload_pct" not in fixed:
            changed = replace(self, fixed={**fixed, "optimizer_offload_pct": 100})
            tries.append(("the optimizer on the host (--fix optimizer_offload_pct=100)", changed))
        half = self.model.seq_length // 2
        if half >= 512:
            batch = self.global_batch_size * 2 if self.global_batch_size else None
            changed = replace(self, model=self.model.with_seq_length(half), global_batch_size=batch)
            tries.append(
                (f"sequences of half the length, as many tokens (--seq-length {half})", changed)
            )
        if self.memory_limit < TIGHT_LIMIT:
            words = f"a tight plan, after a trial run (--memory-limit {TIGHT_LIMIT})"
            tries.append((words, replace(self, memory_limit=TIGHT_LIMIT)))
        if fixed or self.limits:
            tries.append(
                (
                    "all of the space (without --fix and --limit)",
                    replace(self, fixed=None, limits=None),
                )
            )
        return tries


def fit(
    task: Task, *, at_least: int = 1, at_most: int = MAX_GPUS, with_changes: bool = True
) -> Fit:
    """The smallest cluster that has a safe plan.

    Sizes double from ``at_least`` until one fits; then those between it and the last that did not
    are tried in ascending order (or halved, where they are more than ``MAX_SCAN``). A size is
    passed over where the fixed values do not divide it, and where a smaller one missed by more
    than perfect sharding could make up for.
    """
    walk = _Walk(task)
    smallest = walk.up(at_least, at_most)
    exhaustive = True
    if smallest:
        low = walk.nearest.num_gpus if walk.nearest else at_least - 1
        sizes = _sizes(task, low + 1, smallest.num_gpus - 1)
        between = [n for n in sizes if not walk.hopeless(n)]
        exhaustive = len(between) <= MAX_SCAN
        smallest = (_first_fit if exhaustive else _bisection)(between, walk, smallest)
        if with_changes:
            smallest = walk.down(smallest, at_least)
    below = walk.largest_below(smallest.num_gpus) if smallest else walk.nearest
    changes: tuple[Change, ...] = ()
    if with_changes:
        changes = _changes_that_help(task, smallest, walk.nearest, at_least, at_most)
    return Fit(
        smallest,
        below,
        exhaustive,
        changes,
        tried=tuple(sorted(walk.results)),
        nearest=walk.nearest,
        ruled_out=tuple(sorted(walk.ruled_out - walk.results.keys())),
        refused=walk.refused if not walk.results else "",
        tried_changes=tuple(what for what, _ in task.changes()) if with_changes else (),
    )


@dataclass
class _Walk:
    """The searches of one task so far."""

    task: Task
    results: dict[int, SizedResult] = field(default_factory=dict)
    """By size."""
    ruled_out: set[int] = field(default_factory=set)
    refused: str = ""
    """What the last size said that could not hold the fixed values."""
    nearest: SizedResult | None = None
    """The miss that needs the smallest share of memory."""

    def search(self, num_gpus: int) -> SizedResult | None:
        """The result at one size, if it has a safe plan."""
        if num_gpus not in self.results:
            try:
                sized = self.task.search(num_gpus)
            except PlanError as error:
                self.refused = str(error)
                return None
            self.results[num_gpus] = sized
            if not len(sized.result.plans):
                self.nearest = _nearer(self.nearest, sized)
        sized = self.results[num_gpus]
        return sized if len(sized.result.plans) else None

    def hopeless(self, num_gpus: int) -> bool:
        """Whether memory shared out over ``num_gpus`` stays ``SPARE`` times above the limit."""
        if self.nearest is None or not len(self.nearest.result.nearest_miss):
            return False
        use = float(self.nearest.result.nearest_miss.memory_use_frac[0])
        hopeless = use * self.nearest.num_gpus / num_gpus > SPARE * self.task.memory_limit
        if hopeless:
            self.ruled_out.add(num_gpus)
        return hopeless

    def up(self, low: int, high: int) -> SizedResult | None:
        """The first of the doubling sizes that fits; the largest is searched in any case."""
        size = None
        for size in _doubling_sizes(self.task, low, high):
            if not self.hopeless(size) and (found := self.search(size)):
                return found
        return self.search(size) if size else None

    def down(self, smallest: SizedResult, low: int) -> SizedResult:
        """The next smaller size is searched in any case: it says what binds (or fits after all)."""
        while True:
            smaller = list(_sizes(self.task, low, smallest.num_gpus - 1))
            found = self.search(smaller[-1]) if smaller else None
            if not found:
                return smallest
            smallest = found

    def largest_below(self, num_gpus: int) -> SizedResult | None:
        """Of the sizes searched."""
        smaller = [n for n in self.results if n < num_gpus]
        return self.results[max(smaller)] if smaller else None


def allowed_sizes(cluster: ClusterSpec, low: int, high: int) -> list[int]:
    """Every size within [low, high] that the cluster can have, ascending."""
    return list(_cluster_sizes(cluster, low, high))


def _cluster_sizes(cluster: ClusterSpec, low: int, high: int) -> Iterator[int]:
    node = cluster.gpus_per_node
    high = min(high, cluster.max_gpus or high)
    if len(cluster.tiers) < 2:
        high = min(high, cluster.domain_size)  # nothing is known of a network beyond
    yield from (n for n in range(low, min(node, high + 1)) if node % n == 0)
    yield from range(max(1, -(-low // node)) * node, high + 1, node)


def _sizes(task: Task, low: int, high: int) -> Iterator[int]:
    """Sizes within [low, high] that the cluster can have and that the fixed degrees divide."""
    return (n for n in _cluster_sizes(task.cluster, max(low, 1), high) if task.holds(n))


def _doubling_sizes(task: Task, low: int, high: int) -> Iterator[int]:
    """The first size from ``low`` on, then each time the first that is twice as large or more."""
    while size := next(_sizes(task, low, high), 0):
        yield size
        low = 2 * size


def _first_fit(between: list[int], walk: _Walk, found: SizedResult) -> SizedResult:
    return next(filter(None, map(walk.search, between)), found)


def _bisection(between: list[int], walk: _Walk, found: SizedResult) -> SizedResult:
    while between:
        middle = len(between) // 2
        sized = walk.search(between[middle])
        if sized:
            found, between = sized, between[:middle]
        else:
            between = between[middle + 1 :]
    return found


def _changes_that_help(
    task: Task, smallest: SizedResult | None, nearest: SizedResult | None, low: int, high: int
) -> tuple[Change, ...]:
    """Each change with the smallest size that it allows, from the nearest miss downwards."""
    helping = []
    for what, changed in task.changes():
        if smallest is None:
            sizes = list(_doubling_sizes(changed, low, high))[-1:]
        else:
            highest = smallest.num_gpus - 1
            highest = min(highest, nearest.num_gpus) if nearest else highest
            sizes = list(_sizes(changed, max(low, smallest.num_gpus // 4), highest))
        found: SizedResult | None = None
        num_misses = 0
        for num_gpus in reversed(sizes):
            try:
                sized = changed.search(num_gpus)
            except PlanError:
                continue
            if len(sized.result.plans):
                found, num_misses = sized, 0
            else:
                num_misses += 1
            if num_misses == MAX_MISSES:
                break
        if found and smallest is None:  # the largest size: look for the smallest
            found = fit(changed, at_least=low, at_most=high, with_changes=False).smallest
        if found:
            helping.append(Change(what, found))
    return tuple(helping)


def _nearer(first: SizedResult | None, second: SizedResult) -> SizedResult:
    """The one whose nearest miss needs less memory: odd sizes may have no legal plan at all."""
    if first is None or not len(first.result.nearest_miss):
        return second
    if not len(second.result.nearest_miss):
        return first
    needs = [float(sized.result.nearest_miss.memory_use_frac[0]) for sized in (first, second)]
    return second if needs[1] <= needs[0] else first
