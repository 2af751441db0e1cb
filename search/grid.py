"""Exhaustive search: every plan of the space, in blocks, with a running list of the best.

Rules first, memory second, a bound on the time last, each on what is left. What the bound lets into
the ranking is replayed (:mod:`parallelsim.search.refine`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from parallelsim.search.bounds import IS_BOUNDED, least_step_time
from parallelsim.search.cuts import (
    FREE,
    Family,
    best_of_families,
    family,
    fastest_cuts,
    find_cuts,
    least_balanced_step_time,
)
from parallelsim.search.refine import Replays, order, ranking
from parallelsim.search.result import OUT_OF_MEMORY, SearchResult
from parallelsim.search.searcher import BUDGET, INTERRUPTED, Meter, Request, Searcher, Stopped
from parallelsim.search.space import SearchSpace

from parallelsim.costs import CostTable
from parallelsim.memory import lowest_memory
from parallelsim.operators import FloatArray, IntArray
from parallelsim.plan_batch import PlanBatch
from parallelsim.replay import ROUNDING, replayed
from parallelsim.rule_context import Rule
from parallelsim.rules import RULES, each_rule
from parallelsim.simulate import (
    DEFAULT_MEMORY_LIMIT,
    TIGHT_LIMIT,
    Simulation,
    by_block,
    screen_memory,
    simulate,
)

BoolArray = NDArray[np.bool_]

STAGING_RULES = tuple(rule for rule in RULES if rule.reads_staging)
UNSTAGED_RULES = tuple(rule for rule in RULES if not rule.reads_staging)
"""Those that do not depend on layout, virtual stages, schedule and recompute."""
SPARE = 8
"""Plans kept for each wanted one: equivalent plans become one row only after the full
simulation.
"""
MOST_KEPT = 20_000
"""Plans kept at most for one ranking; where more have bounds that could enter it, it is not
proven."""


class GridSearcher(Searcher):
    """Screens every plan with a bound below its replay; those whose bound could enter the ranking
    are replayed, and ranked by that. Plans that may gain by it have their layers cut into stages by
    dynamic programming (:mod:`parallelsim.search.cuts`). The seed has no effect.
    """

    name: ClassVar[str] = "grid"

    def search(self, space: SearchSpace, request: Request) -> SearchResult:
        """The fastest safe plans of the space, and the tight ones that beat them."""
        meter, memory_limit = Meter(request), request.memory_limit
        keep = SPARE * request.top_k + 64
        while True:
            scan = _Scan(space, keep, memory_limit, meter)
            scan.run()
            refined = _refined(scan, request.top_k)
            if refined.proven or scan.stopped or keep >= MOST_KEPT or not scan.truncated:
                break
            keep *= SPARE
        nearest = scan.nearest.plans
        if len(nearest) == 0 and not scan.stopped:
            # The lower bound on memory spared every plan's own figure: look again without a limit.
            unlimited = _Scan(space, 1, math.inf, meter)
            unlimited.run()
            nearest = unlimited.nearest.plans
        return SearchResult(
            plans=refined.safe,
            faster_but_tight=refined.tight,
            nearest_miss=replayed(
                simulate(space.model, space.cluster, space.framework, nearest, memory_limit)
            ),
            num_candidates=scan.num_candidates,
            num_feasible=scan.num_safe,
            num_tight=scan.num_tight,
            reasons={name: n for name, n in scan.reasons.most_common() if n},
            proven=refined.proven and not scan.stopped and scan.num_candidates > 0,
            stopped=scan.stopped,
            exhaustive=not scan.stopped,
            num_evaluated=meter.num_evaluated,
            elapsed_s=meter.elapsed_s,
            searcher=self.name,
            num_replayed=refined.num_replayed,
            num_cut=refined.num_cut,
            num_uncut=refined.num_uncut,
            cut_gain_frac=refined.gains,
        )


def grid_search(
    space: SearchSpace, top_k: int = 10, memory_limit: float = DEFAULT_MEMORY_LIMIT
) -> SearchResult:
    """The ``top_k`` fastest safe plans of the space, proved where it can be, and the tight ones
    that beat them: :class:`GridSearcher` without budget or time-out.

    Ctrl-C ends the search early: the result is then ``partial`` and holds the best so far.
    """
    return GridSearcher().search(space, Request(top_k, memory_limit))


@dataclass(frozen=True, slots=True)
class _Refined:
    """The rankings by the replay."""

    safe: Simulation
    tight: Simulation
    proven: bool
    """The safe ranking lacks no plan of the space."""
    num_replayed: int = 0
    num_cut: int = 0
    num_uncut: int = 0
    gains: tuple[float | None, ...] = ()


def _refined(scan: _Scan, top_k: int) -> _Refined:
    """Replay what the scan kept, and cut layers where that may gain."""
    try:
        return _replay_and_cut(scan, top_k)
    except KeyboardInterrupt:
        scan.stopped = INTERRUPTED
        space = scan.space
        inputs = (space.model, space.cluster, space.framework)
        kept = simulate(*inputs, scan.safe.plans, scan.memory_limit)
        return _Refined(ranking(kept, top_k), kept.take(slice(0)), proven=False)


def _replay_and_cut(scan: _Scan, top_k: int) -> _Refined:
    space, table = scan.space, scan.table
    replays = Replays(space, table, scan.memory_limit)
    ranked = replays.rank(scan.safe.plans, scan.safe.score, top_k)
    safe, found = ranked.plans, None
    last = float(safe.step_time_s[-1]) if len(safe) == top_k else math.inf
    # What the scan dropped has bounds above those of what it kept.
    reached = not scan.truncated or float(scan.safe.score[-1]) >= last
    gains: tuple[float | None, ...] = (None,) * len(safe)
    if (reached or scan.keep >= MOST_KEPT) and not scan.stopped:
        known = best_of_families(ranked.replayed)
        found = find_cuts(space, table, scan.unstaged, known, last, scan.memory_limit)
        cut = fastest_cuts(replays, found.plans, last)
        safe = ranking(Simulation.concatenate([safe, cut]), top_k)
        gains = tuple(_gain(safe, i, known, last) for i in range(len(safe)))
    best = float(safe.step_time_s[0]) if len(safe) else math.inf
    tight = replays.rank(scan.tight.plans, scan.tight.score, top_k, best).plans
    exact = scan.only_bounded and bool(safe.replayed.all())
    return _Refined(
        safe=safe,
        tight=tight,
        proven=ranked.complete and reached and exact,
        num_replayed=replays.num_replayed,
        num_cut=found.num_cut if found else 0,
        num_uncut=found.num_left if found else 0,
        gains=gains,
    )


def _gain(
    safe: Simulation, index: int, known: Mapping[Family, float], last_s: float
) -> float | None:
    """Share of the step that the cut of one plan saves over its best other layout, at least.

    Layouts that were not replayed are not below ``last_s``.
    """
    if safe.plans.layout[index] != FREE:
        return None
    other = known.get(family(safe.plans, index))
    return None if other is None else 1 - float(safe.step_time_s[index]) / min(other, last_s)


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
        best = order(score, tie, merged)[: self.keep]
        self.plans, self.score, self.tie = merged.take(best), score[best], tie[best]


class _Scan:
    """One pass over the space and its account."""

    def __init__(self, space: SearchSpace, keep: int, memory_limit: float, meter: Meter) -> None:
        self.space, self.memory_limit = space, memory_limit
        self.safe, self.tight, self.nearest = _Best(keep), _Best(keep), _Best(1)
        self.keep, self.meter = keep, meter
        self.table = CostTable(space.model, space.cluster, space.framework, space.shapes())
        self.unstaged: dict[int, PlanBatch] = {}
        """By pp: plans without staging that obey the rules and may fit."""
        self.only_bounded = True
        """Every plan kept out by its bound has a schedule whose bound holds for any costs."""
        self.num_candidates = self.num_safe = self.num_tight = 0
        self.reasons: Counter[str] = Counter()
        self.stopped = ""
        self.capacity = float(space.cluster.accelerator.memory_bytes)
        self.byte_limit = max(memory_limit, TIGHT_LIMIT) * self.capacity

    def run(self) -> None:
        """Examine every block, or as many as the request lets."""
        space = self.space
        try:
            for pp in space.pipeline_degrees:
                fits = self._worth_expanding(self.table, pp)
                slow = fits.copy()
                slow[fits] = self._too_slow(self.unstaged[pp])
                for chosen, timed in ((fits & ~slow, True), (slow, False)):
                    for block in space.expand(pp, chosen):
                        self.meter.check_time()
                        self._examine(self.table, block, timed)
        except KeyboardInterrupt:
            self.stopped = INTERRUPTED
        except Stopped as event:
            self.stopped = str(event)

    @property
    def truncated(self) -> bool:
        """There were more safe plans than are kept."""
        return self.num_safe > len(self.safe.plans)

    def _worth_expanding(self, table: CostTable, pp: int) -> BoolArray:
        """Rows of ``unstaged(pp)`` of which some staging may obey the rules and fit.

        The others are counted as rejected with all their stagings: exact, since the rules asked
        here do not read the staging, and since no staging needs less memory than the bound.
        """
        space = self.space
        rows, stagings = space.unstaged(pp), space.num_stagings(pp)
        valid = self._valid(rows, UNSTAGED_RULES, stagings)
        fits = np.zeros(len(rows), bool)
        fits[valid] = lowest_memory(table, rows.take(valid)) <= self.byte_limit
        self.reasons[OUT_OF_MEMORY] += int(stagings[valid & ~fits].sum())
        self.num_candidates += int(stagings[~fits].sum())
        self.unstaged[pp] = rows.take(fits)
        return fits

    def _too_slow(self, rows: PlanBatch) -> BoolArray:
        """Rows of which no staging can be among the plans kept: some rank has no less than the
        balanced share of the work.
        """
        if len(self.safe.score) < self.keep or len(rows) == 0:
            return np.zeros(len(rows), bool)
        least = by_block(self.table, rows, least_balanced_step_time)[0]
        return np.asarray(least * (1 - ROUNDING) > self.safe.score[-1])

    def _valid(
        self, plans: PlanBatch, rules: Sequence[Rule], times: IntArray | None = None
    ) -> BoolArray:
        """Which obey the rules; those that do not are accounted for, each ``times`` (once where
        None).
        """
        space, valid = self.space, np.ones(len(plans), np.bool_)
        for rule, broken in each_rule(space.model, space.cluster, space.framework, plans, rules):
            if broken.any():
                count = np.count_nonzero(broken) if times is None else times[broken].sum()
                self.reasons[rule.name] += int(count)
                valid &= ~broken
        return valid

    def _examine(self, table: CostTable, block: PlanBatch, timed: bool) -> None:
        """Account for a block; ``timed``: its plans may be among those kept."""
        self.num_candidates += len(block)
        plans = block.take(self._valid(block, STAGING_RULES))
        if len(plans) == 0:
            return
        peak = screen_memory(table, plans)
        lowest = peak == peak.min()
        self.nearest.offer(plans.take(lowest), peak[lowest], peak[lowest])
        fits = peak <= self.byte_limit
        self.reasons[OUT_OF_MEMORY] += int(len(peak) - fits.sum())
        plans, peak = plans.take(fits), peak[fits]
        safe = peak / self.capacity <= self.memory_limit
        self.only_bounded &= bool(IS_BOUNDED[plans.schedule].all())
        self.num_safe += int(safe.sum())
        self.num_tight += int(len(safe) - safe.sum())
        if not timed:
            return
        wanted = len(plans)
        allowed = slice(self.meter.allowed(wanted))
        plans, peak, safe = plans.take(allowed), peak[allowed], safe[allowed]
        self.meter.spend(len(plans))
        least = by_block(table, plans, least_step_time)[0]
        self.safe.offer(plans.take(safe), least[safe], peak[safe])
        # A tight plan is of interest only where it may beat the best safe one.
        full = len(self.safe.score) >= self.keep
        beats = ~safe & (least < (self.safe.score[-1] if full else np.inf))
        self.tight.offer(plans.take(beats), least[beats], peak[beats])
        if len(plans) < wanted:
            raise Stopped(BUDGET)
