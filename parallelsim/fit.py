"""The smallest number of GPUs that trains a model, what binds, and what one change would allow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from parallelsim.cluster import ClusterSpec
from parallelsim.errors import SpecError
from parallelsim.framework import FrameworkSpec
from parallelsim.model import ModelSpec
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
BATCH_TOLERANCE = 1 / 16
"""A default batch may move by this share to a number that the GPUs divide better."""


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
    """The next smaller size that was tried and did not: its nearest miss says what binds."""
    exhaustive: bool
    """Every size below the smallest one that whole nodes allow, down to half of it, was tried."""
    changes: tuple[Change, ...]
    """What would train it on fewer GPUs."""


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
    progress: Callable[[int], None] | None = None
    """Told the number of GPUs before each search."""

    def search(self, num_gpus: int) -> SizedResult:
        """The best plan for one size."""
        from parallelsim.search.grid import grid_search
        from parallelsim.search.space import SearchSpace

        if self.progress:
            self.progress(num_gpus)
        batch = self.global_batch_size or default_global_batch_size(self.model, num_gpus)
        space = SearchSpace(
            self.model,
            self.cluster.with_num_gpus(num_gpus),
            self.framework,
            batch,
            precision=self.precision,
            fixed=dict(self.fixed or {}),
            limits=dict(self.limits or {}),
        )
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


def default_global_batch_size(model: ModelSpec, num_gpus: int) -> int:
    """The model's own batch in sequences, moved by at most 1/16 so that the GPUs divide it well.

    The batch is a multiple of dp times the micro-batch: 4.0 M tokens of 8192 are 488 sequences,
    which few dp divide; 512 is near and all powers of two divide it.

    Raises:
        SpecError: the model's file states no batch.
    """
    if model.default_global_batch_tokens < 1:
        raise SpecError(f"{model.name} states no batch; give --global-batch-size (sequences)")
    wanted = model.default_global_batch_tokens / model.seq_length
    for divisor in (d for d in range(num_gpus, 0, -1) if num_gpus % d == 0):
        batch = round(wanted / divisor) * divisor
        if batch and abs(batch - wanted) <= BATCH_TOLERANCE * wanted:
            return batch
    return max(1, round(wanted))


def fit(
    task: Task, *, at_least: int = 1, at_most: int = MAX_GPUS, with_changes: bool = True
) -> Fit:
    """The smallest cluster that has a safe plan.

    Sizes double from ``at_least`` until one fits; then those between it and the last that did not
    are tried in ascending order (or halved, where they are more than ``MAX_SCAN``). A size is
    passed over where a smaller one missed by more than perfect sharding could make up for.
    """
    smallest: SizedResult | None = None
    below: SizedResult | None = None
    exhaustive = True
    for num_gpus in _doubling_sizes(task.cluster, at_least, at_most):
        if not _hopeless(below, num_gpus, task.memory_limit):
            sized = task.search(num_gpus)
            if len(sized.result.plans):
                smallest = sized
                break
            below = _nearer(below, sized)
    if smallest:
        low = below.num_gpus if below else at_least - 1
        between = [
            n
            for n in allowed_sizes(task.cluster, low + 1, smallest.num_gpus - 1)
            if not _hopeless(below, n, task.memory_limit)
        ]
        exhaustive = len(between) <= MAX_SCAN
        refine = _first_fit if exhaustive else _bisection
        smallest, below = refine(between, task.search, smallest, below)
    changes: tuple[Change, ...] = ()
    if with_changes:
        changes = _changes_that_help(task, smallest, below, at_least, at_most)
    return Fit(smallest, below, exhaustive, changes)


def allowed_sizes(cluster: ClusterSpec, low: int, high: int) -> list[int]:
    """Every size within [low, high] that the cluster can have, ascending."""
    node = cluster.gpus_per_node
    inside = [n for n in range(1, node) if node % n == 0]
    first = max(1, -(-low // node)) * node
    candidates = [*inside, *range(first, high + 1, node)]
    return [n for n in candidates if low <= n <= high and _possible(cluster, n)]


def _doubling_sizes(cluster: ClusterSpec, low: int, high: int) -> list[int]:
    """The divisors of a node, then node times powers of two."""
    node = cluster.gpus_per_node
    inside = [n for n in range(1, node) if node % n == 0]
    beyond = [node * 2**k for k in range(40) if node * 2**k <= high]
    sizes = [n for n in (*inside, *beyond) if low <= n <= high and _possible(cluster, n)]
    return sizes or allowed_sizes(cluster, low, min(high, low + node))[:1]


def _possible(cluster: ClusterSpec, num_gpus: int) -> bool:
    try:
        cluster.with_num_gpus(num_gpus)
    except SpecError:
        return False
    return True


def _hopeless(below: SizedResult | None, num_gpus: int, memory_limit: float) -> bool:
    """Whether memory shared out over ``num_gpus`` stays ``SPARE`` times above the limit."""
    if below is None or not len(below.result.nearest_miss):
        return False
    use = float(below.result.nearest_miss.memory_use_frac[0])
    return use * below.num_gpus / num_gpus > SPARE * memory_limit


Search = Callable[[int], SizedResult]


def _first_fit(
    between: list[int], search: Search, found: SizedResult, below: SizedResult | None
) -> tuple[SizedResult, SizedResult | None]:
    for num_gpus in between:
        sized = search(num_gpus)
        if len(sized.result.plans):
            return sized, below
        below = _nearer(below, sized)
    return found, below


def _bisection(
    between: list[int], search: Search, found: SizedResult, below: SizedResult | None
) -> tuple[SizedResult, SizedResult | None]:
    while between:
        middle = len(between) // 2
        sized = search(between[middle])
        if len(sized.result.plans):
            found, between = sized, between[:middle]
        else:
            below, between = _nearer(below, sized), between[middle + 1 :]
    return found, below


def _changes_that_help(
    task: Task, smallest: SizedResult | None, below: SizedResult | None, low: int, high: int
) -> tuple[Change, ...]:
    """Each change with the smallest size that it allows, from the nearest miss downwards."""
    if smallest is None:
        sizes = _doubling_sizes(task.cluster, low, high)[-1:]
    else:
        highest = below.num_gpus if below else smallest.num_gpus - 1
        sizes = allowed_sizes(task.cluster, max(low, smallest.num_gpus // 4), highest)
    helping = []
    for what, changed in task.changes():
        found: SizedResult | None = None
        num_misses = 0
        for num_gpus in reversed(sizes):
            sized = changed.search(num_gpus)
            if len(sized.result.plans):
                found, num_misses = sized, 0
            else:
                num_misses += 1
            if num_misses == MAX_MISSES:
                break
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
