"""The objective of searchers that ask for single plans: the step time, with an account.

Plans that break a rule or need more than the safe share of memory score infinity. What is asked is
remembered, so that a search ends with the rankings, the counts and the nearest miss of what it saw.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from parallelsim.search.bounds import least_step_time
from parallelsim.search.cuts import FREE, least_cut_step_time
from parallelsim.search.refine import Replays, order
from parallelsim.search.result import OUT_OF_MEMORY, SearchResult
from parallelsim.search.searcher import Meter
from parallelsim.search.space import SearchSpace

from parallelsim.costs import CostTable
from parallelsim.memory import peak_memory
from parallelsim.operators import FloatArray, IntArray
from parallelsim.plan_batch import PlanBatch
from parallelsim.progress import tell
from parallelsim.replay import replayed
from parallelsim.rules import each_rule
from parallelsim.simulate import TIGHT_LIMIT, by_block, screen_memory, simulate
from parallelsim.step import step_time


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """What the objective says of a batch of plans; arrays of shape [P]."""

    step_time_s: FloatArray
    """By the closed forms; infinite where a rule is broken."""
    memory_use_frac: FloatArray
    """Of the fullest stage; infinite where a rule is broken."""
    num_broken: IntArray
    """Rules that the plan breaks."""


class Objective:
    """Scores plans of one space for one request; the meter counts them."""

    def __init__(self, space: SearchSpace, meter: Meter) -> None:
        self.space, self.meter = space, meter
        self.memory_limit = meter.request.memory_limit
        self.capacity = float(space.cluster.accelerator.memory_bytes)
        self.table = CostTable(space.model, space.cluster, space.framework, space.shapes())
        self.reasons: Counter[str] = Counter()
        self.num_safe = self.num_tight = 0
        none = PlanBatch.from_plans([])
        self._safe = Kept(none, np.empty(0), np.empty(0))
        self._tight, self._nearest = self._safe, self._safe

    def __call__(self, plans: PlanBatch) -> FloatArray:
        """Seconds of a step, shape [P]: infinite for a plan that is not safe."""
        scores = self.scores(plans)
        safe = scores.memory_use_frac <= self.memory_limit
        return np.where(safe, scores.step_time_s, np.inf)

    def scores(self, plans: PlanBatch) -> Scores:
        """Step time and memory of distinct plans, which are counted.

        Raises:
            Stopped: the time is up.
        """
        self.meter.check_time()
        self.meter.spend(len(plans))
        tell(self.meter.num_evaluated, self.meter.request.budget or 0, "searching")
        size = len(plans)
        num_broken = self._num_broken(plans)
        time_s, use = np.full(size, np.inf), np.full(size, np.inf)
        valid = np.flatnonzero(num_broken == 0)
        obeying = plans.take(valid)
        peak = screen_memory(self.table, obeying)
        use[valid] = peak / self.capacity
        self._nearest = self._nearest.with_best(1, obeying, peak, peak)
        fits = use[valid] <= max(self.memory_limit, TIGHT_LIMIT)
        self.reasons[OUT_OF_MEMORY] += int((~fits).sum())
        (time_s[valid],) = by_block(self.table, obeying, step_time)
        least = self._least_s(obeying)
        valid, obeying, peak, least = valid[fits], obeying.take(fits), peak[fits], least[fits]
        safe = use[valid] <= self.memory_limit
        self.num_safe += int(safe.sum())
        self.num_tight += int((~safe).sum())
        self._safe = self._safe.with_all(obeying.take(safe), least[safe], peak[safe])
        self._tight = self._tight.with_all(obeying.take(~safe), least[~safe], peak[~safe])
        return Scores(time_s, use, num_broken)

    def safe_in_order(self) -> Kept:
        """Safe plans seen, by bound, memory and fields."""
        return self._safe.in_order()

    def adopt(self, plans: PlanBatch) -> None:
        """Let safe plans that another process asked for into the ranking."""
        (peak,) = by_block(self.table, plans, peak_memory)
        self._safe = self._safe.with_all(plans, self._least_s(plans), peak)

    def result(self, searcher: str, stopped: str = "", *, exhaustive: bool = False) -> SearchResult:
        """What the search found, ranked by the replay."""
        space, request = self.space, self.meter.request
        replays = Replays(space, self.table, self.memory_limit, request.all_variants)
        safe, tight = self.safe_in_order(), self._tight.in_order()
        found = replays.rank(safe.plans, safe.least_s, request.top_k).plans
        best = float(found.step_time_s[0]) if len(found) else np.inf
        inputs = (space.model, space.cluster, space.framework)
        return SearchResult(
            plans=found,
            faster_but_tight=replays.rank(tight.plans, tight.least_s, request.top_k, best).plans,
            nearest_miss=replayed(simulate(*inputs, self._nearest.plans, self.memory_limit)),
            num_candidates=space.num_candidates,
            num_evaluated=self.meter.num_evaluated,
            num_feasible=self.num_safe,
            num_tight=self.num_tight,
            reasons={name: n for name, n in self.reasons.most_common() if n},
            proven=False,
            stopped=stopped,
            exhaustive=exhaustive,
            elapsed_s=self.meter.elapsed_s,
            searcher=searcher,
            num_replayed=replays.num_replayed,
            cut_gain_frac=(None,) * len(found),
            all_variants=request.all_variants,
        )

    def _least_s(self, plans: PlanBatch) -> FloatArray:
        """Seconds that no replay of these plans is below, shape [P]."""
        (least,) = by_block(self.table, plans, least_step_time)
        free = np.flatnonzero(plans.layout == FREE)
        least[free] = least_cut_step_time(self.table, plans.take(free))
        return least

    def _num_broken(self, plans: PlanBatch) -> IntArray:
        """Rules that each plan breaks, shape [P]; they are counted by name too."""
        space, number = self.space, np.zeros(len(plans), np.int64)
        for rule, broken in each_rule(space.model, space.cluster, space.framework, plans):
            self.reasons[rule.name] += int(np.count_nonzero(broken))
            number += broken
        return number


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """Plans with the bounds of their step times and their peak bytes."""

    plans: PlanBatch
    least_s: FloatArray
    peak_bytes: FloatArray

    def with_all(self, plans: PlanBatch, least_s: FloatArray, peak: FloatArray) -> Kept:
        """These and more."""
        return Kept(
            PlanBatch.concatenate([self.plans, plans]),
            np.concatenate([self.least_s, least_s]),
            np.concatenate([self.peak_bytes, peak]),
        )

    def with_best(self, keep: int, plans: PlanBatch, least_s: FloatArray, peak: FloatArray) -> Kept:
        """The first ``keep`` of these and more."""
        return self.with_all(plans, least_s, peak).in_order(keep)

    def in_order(self, keep: int | None = None) -> Kept:
        """The first of them by bound, memory and fields."""
        first = order(self.least_s, self.peak_bytes, self.plans)[:keep]
        return Kept(self.plans.take(first), self.least_s[first], self.peak_bytes[first])
