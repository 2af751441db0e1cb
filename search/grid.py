"""Exhaustive search: every plan of the space, in blocks, with a running list of the best.

Rules first, memory second, time last, each on what is left. Breakdowns are computed for the
survivors of the ranking alone.
"""

from __future__ import annotations

import math
import time
from collections import Counter

import numpy as np
from numpy.typing import NDArray
from parallelsim.search.result import OUT_OF_MEMORY, SearchResult
from parallelsim.search.space import SearchSpace

from parallelsim.costs import CostTable
from parallelsim.memory import lowest_memory
from parallelsim.operators import FloatArray, IntArray
from parallelsim.plan import PLAN_FIELDS, PlanBatch
from parallelsim.rules import RULES, broken_rules
from parallelsim.simulate import (
    DEFAULT_MEMORY_LIMIT,
    TIGHT_LIMIT,
    Simulation,
    screen_memory,
    screen_time,
    simulate,
)

BoolArray = NDArray[np.bool_]

UNSTAGED_RULES = sum(1 << bit for bit, rule in enumerate(RULES) if not rule.reads_staging)
"""Bits of the rules that do not depend on layout, virtual stages, schedule and recompute."""
SPARE = 8
"""Plans kept for each wanted one: equivalent plans become one row only after the full
simulation.
"""


def grid_search(
    space: SearchSpace, top_k: int = 10, memory_limit: float = DEFAULT_MEMORY_LIMIT
) -> SearchResult:
    """The ``top_k`` fastest safe plans of the space, and the tight ones that beat them.

    Ctrl-C ends the search early: the result is then ``partial`` and holds the best so far.
    """
    started = time.perf_counter()
    keep = SPARE * top_k + 64
    while True:
        scan = _Scan(space, keep, memory_limit)
        scan.run()
        plans = _ranked(space, scan.safe.plans, top_k, memory_limit)
        if len(plans) >= top_k or len(scan.safe.plans) < keep or scan.interrupted:
            break
        keep *= SPARE
    nearest = scan.nearest.plans
    if len(nearest) == 0 and not scan.interrupted:
        # The lower bound on memory spared every plan's own figure: look again without a limit.
        unlimited = _Scan(space, 1, math.inf)
        unlimited.run()
        nearest = unlimited.nearest.plans
    tight = _ranked(space, scan.tight.plans, top_k, memory_limit)
    if len(plans):
        tight = tight.take(tight.step_time_s < plans.step_time_s[0])
    return SearchResult(
        plans=plans,
        faster_but_tight=tight,
        nearest_miss=simulate(
            space.model, space.cluster, space.framework, nearest, memory_limit
        ),
        num_candidates=scan.num_candidates,
        num_feasible=scan.num_safe,
        num_tight=scan.num_tight,
        reasons={name: n for name, n in scan.reasons.most_common() if n},
        proven=not scan.interrupted,
        partial=scan.interrupted,
        elapsed_s=time.perf_counter() - started,
        searcher="grid",
    )


def _ranked(space: SearchSpace, plans: PlanBatch, top_k: int, memory_limit: float) -> Simulation:
    """Simulated plans in order, the first of each set of equivalent ones, at most ``top_k``."""
    result = simulate(space.model, space.cluster, space.framework, plans, memory_limit)
    result = result.take(_order(result.step_time_s, result.peak_memory_bytes, plans))
    seen: set[tuple[float, ...]] = set()
    kept = []
    for i in range(len(result)):
        numbers = _predictions(result, i)
        if numbers not in seen:
            seen.add(numbers)
            kept.append(i)
        if len(kept) == top_k:
            break
    return result.take(np.array(kept, np.int64))


def _predictions(result: Simulation, i: int) -> tuple[float, ...]:
    """Every predicted number of one plan: plans that agree in all of them are equivalent."""
    parts = (result.time, result.memory)
    return tuple(
        float(getattr(part, name)[i]) for part in parts for name in part.__dataclass_fields__
    )


def _order(time_s: FloatArray, peak_bytes: FloatArray, plans: PlanBatch) -> np.ndarray:
    """Positions by time, then memory, then the plan's fields."""
    fields = [getattr(plans, name) for name in reversed(PLAN_FIELDS)]
    return np.lexsort([*fields, peak_bytes, time_s])


class _Best:
    """The ``keep`` plans with the least score so far; ties by the second score, then by fields."""

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self.plans = PlanBatch.from_plans([])
        self.score, self.tie = np.empty(0), np.empty(0)

    def offer(self, plans: PlanBatch, score: FloatArray, tie: FloatArray) -> None:
        """Consider a block of plans."""
        if len(self.score) >= self.keep:
            better = score <= self.score[-1]
            plans, score, tie = plans.take(better), score[better], tie[better]
        if len(score) > self.keep:
            # Ties with the last one kept are all carried over, to be settled by the full order.
            bound = np.partition(score, self.keep - 1)[self.keep - 1]
            better = score <= bound
            plans, score, tie = plans.take(better), score[better], tie[better]
        if len(score) == 0:
            return
        merged = PlanBatch.concatenate([self.plans, plans])
        score, tie = np.concatenate([self.score, score]), np.concatenate([self.tie, tie])
        order = _order(score, tie, merged)[: self.keep]
        self.plans, self.score, self.tie = merged.take(order), score[order], tie[order]


class _Scan:
    """One pass over the space and its account."""

    def __init__(self, space: SearchSpace, keep: int, memory_limit: float) -> None:
        self.space, self.memory_limit = space, memory_limit
        self.safe, self.tight, self.nearest = _Best(keep), _Best(keep), _Best(1)
        self.num_candidates = self.num_safe = self.num_tight = 0
        self.reasons: Counter[str] = Counter()
        self.interrupted = False
        self.capacity = float(space.cluster.accelerator.memory_bytes)
        self.byte_limit = max(memory_limit, TIGHT_LIMIT) * self.capacity

    def run(self) -> None:
        """Examine every block, or as many as Ctrl-C lets."""
        space = self.space
        try:
            table = CostTable(space.model, space.cluster, space.framework, space.shapes())
            for pp in space.pipeline_degrees:
                for block in space.expand(pp, self._worth_expanding(table, pp)):
                    self._examine(table, block)
        except KeyboardInterrupt:
            self.interrupted = True

    def _worth_expanding(self, table: CostTable, pp: int) -> BoolArray:
        """Rows of ``unstaged(pp)`` of which some staging may obey the rules and fit.

        The others are counted as rejected with all their stagings: exact, since the rules asked
        here do not read the staging, and since no staging needs less memory than the bound.
        """
        space = self.space
        rows, stagings = space.unstaged(pp), space.num_stagings(pp)
        broken = broken_rules(space.model, space.cluster, space.framework, rows) & UNSTAGED_RULES
        self._count_broken(broken, stagings)
        valid = broken == 0
        fits = np.zeros(len(rows), bool)
        fits[valid] = lowest_memory(table, rows.take(valid)) <= self.byte_limit
        self.reasons[OUT_OF_MEMORY] += int(stagings[valid & ~fits].sum())
        self.num_candidates += int(stagings[~fits].sum())
        return fits

    def _count_broken(self, broken: IntArray, times: IntArray) -> None:
        """Account for broken rules; each mask stands for so many plans (or ``times`` is one
        number).
        """
        rejected = broken != 0
        masks, each = broken[rejected], np.broadcast_to(times, broken.shape)[rejected]
        for bit, rule in enumerate(RULES):
            count = int(each[masks >> bit & 1 != 0].sum())
            if count:
                self.reasons[rule.name] += count

    def _examine(self, table: CostTable, block: PlanBatch) -> None:
        space = self.space
        self.num_candidates += len(block)
        broken = broken_rules(space.model, space.cluster, space.framework, block)
        self._count_broken(broken, np.ones(1, np.int64))
        plans = block.take(broken == 0)
        if len(plans) == 0:
            return
        peak = screen_memory(table, plans)
        lowest = peak == peak.min()
        self.nearest.offer(plans.take(lowest), peak[lowest], peak[lowest])
        fits = peak <= self.byte_limit
        self.reasons[OUT_OF_MEMORY] += int(len(peak) - fits.sum())
        plans, peak = plans.take(fits), peak[fits]
        safe = peak / self.capacity <= self.memory_limit
        step = screen_time(table, plans)
        self.num_safe += int(safe.sum())
        self.num_tight += int(len(safe) - safe.sum())
        self.safe.offer(plans.take(safe), step[safe], peak[safe])
        # A tight plan is of interest only where it beats the best safe one.
        beats = ~safe & (step < (self.safe.score[0] if len(self.safe.score) else np.inf))
        self.tight.offer(plans.take(beats), step[beats], peak[beats])
