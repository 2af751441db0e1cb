"""One pass over a space: every plan is examined, the best are kept.

Rules first, memory second, a bound on the time last, each on what is left. Where the space is large
its rows are dealt to processes, which tell each other how good a plan must be to be kept.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from ctypes import c_double
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from parallelsim.search.bounds import IS_BOUNDED, least_step_time
from parallelsim.search.cuts import least_balanced_step_time
from parallelsim.search.refine import order
from parallelsim.search.result import OUT_OF_MEMORY
from parallelsim.search.searcher import BUDGET, INTERRUPTED, Meter, Request, Stopped
from parallelsim.search.space import SearchSpace
from parallelsim.search.variants import first_of_groups, variant_groups

from parallelsim.costs import CostTable
from parallelsim.memory import lowest_memory
from parallelsim.operators import FloatArray, IntArray
from parallelsim.plan_batch import PlanBatch
from parallelsim.processes import as_done, can_fork, num_cores
from parallelsim.progress import tell
from parallelsim.replay import ROUNDING
from parallelsim.rule_context import Rule
from parallelsim.rules import RULES, each_rule
from parallelsim.simulate import TIGHT_LIMIT, by_block, screen_memory

BoolArray = NDArray[np.bool_]

STAGING_RULES = tuple(rule for rule in RULES if rule.reads_staging)
UNSTAGED_RULES = tuple(rule for rule in RULES if not rule.reads_staging)
"""Those that do not depend on layout, virtual stages, schedule and recompute."""
WORTH_PLANS = 1_000_000
"""Plans that may fit from which on processes save more than they cost."""
PART_PLANS = 200_000
"""Of one task of a process, at least; in one process, all of equal pp at once take a sixth less."""
PARTS_EACH = 4
"""Tasks of a process at most, but for the last part of each pp: they end at about the same time.
Of 1 to 16 in two processes, deepseek-v3 on 2,048 GPUs takes the fewest evaluations with 4 to 16 (a
sixth less than with 1 or 2) and the same seconds with 1 to 8; smaller spaces show no difference."""
PROMISING_FRAC = 0.25
"""Share of a part's rows, those with the least bounds, that is examined before the others. Of 0.05
to 1, in the five spaces of ``benchmarks/bayesian.py``, it evaluates at most 8 % more plans than the
best of them (with 1, deepseek-v3 seven times as many); seconds differ no more than they scatter."""
Part = tuple[int, IntArray]
"""pp and some of its fitting rows, as positions."""


class Best:
    """Of the ``keep`` groups of variants that hold the least scores so far, the ``each`` plans with
    the least; ties by the second score, then by fields.
    """

    def __init__(self, keep: int, each: int, all_variants: bool = False) -> None:
        self.keep, self.each, self.all_variants = keep, each, all_variants
        self.plans = PlanBatch.from_plans([])
        self.score, self.tie = np.empty(0), np.empty(0)
        self.limit = math.inf
        """The least score of the last of the ``keep`` groups: no plan above it is kept."""

    def offer(self, plans: PlanBatch, score: FloatArray, tie: FloatArray) -> None:
        """Consider a block of plans."""
        if math.isfinite(self.limit):
            better = score <= self.limit
            plans, score, tie = plans.take(better), score[better], tie[better]
        if len(score) == 0:
            return
        plans = PlanBatch.concatenate([self.plans, plans])
        score, tie = np.concatenate([self.score, score]), np.concatenate([self.tie, tie])
        groups = variant_groups(plans, self.all_variants)
        kept = self._may_stay(groups, score)
        plans, score, tie, groups = plans.take(kept), score[kept], tie[kept], groups[kept]
        best = order(score, tie, plans)
        best = best[first_of_groups(groups[best], self.each)]
        if self.all_variants:
            best = best[: self.keep]
        self.plans, self.score, self.tie = plans.take(best), score[best], tie[best]

    def _may_stay(self, groups: IntArray, score: FloatArray) -> IntArray:
        """Positions of the plans to keep, with those that tie with the last of their group; the
        limit is set.
        """
        ranked = np.lexsort([score, groups])
        starts = np.flatnonzero(np.diff(groups[ranked], prepend=-1))
        ends = np.append(starts[1:], len(ranked))
        if len(starts) >= self.keep:
            least = score[ranked[starts]]
            self.limit = float(np.partition(least, self.keep - 1)[self.keep - 1])
        last = score[ranked[np.minimum(starts + self.each, ends) - 1]]
        most = np.minimum(np.repeat(last, ends - starts), self.limit)
        return np.sort(ranked[score[ranked] <= most])

    def complete_below(self) -> FloatArray:
        """Score below which no variant of each plan was dropped, infinite where all are kept or
        above the limit; shape [P].
        """
        groups = variant_groups(self.plans, self.all_variants)
        number = np.bincount(groups)
        last = np.full(len(number), -math.inf)
        np.maximum.at(last, groups, self.score)
        is_full = (number >= self.each) & (not self.all_variants)
        return np.asarray(np.where(is_full, last, math.inf)[groups])

    def drop_from(self, limit: float) -> None:
        """Forget plans whose score is not below the limit."""
        end = slice(int(np.searchsorted(self.score, limit)))
        self.plans, self.score, self.tie = self.plans.take(end), self.score[end], self.tie[end]


@dataclass(eq=False)
class Found:
    """What was found in a space, or in a part of it."""

    keep: int
    """Groups of variants that are kept at most."""
    each: int
    """Plans of each of them."""
    all_variants: bool = False
    safe: Best = field(init=False)
    tight: Best = field(init=False)
    nearest: Best = field(init=False)
    only_bounded: bool = True
    """Every plan kept out by its bound has a schedule whose bound holds for any costs."""
    num_candidates: int = 0
    num_safe: int = 0
    num_tight: int = 0
    num_evaluated: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        of = (self.keep, self.each, self.all_variants)
        self.safe, self.tight = Best(*of), Best(*of)
        self.nearest = Best(1, 1, all_variants=True)

    @property
    def reasons_in_order(self) -> dict[str, int]:
        """Plans that each reason rejects, most first."""
        counts = sorted(self.reasons.items(), key=lambda item: (-item[1], item[0]))
        return {name: number for name, number in counts if number}

    def empty(self) -> Found:
        """The account of another part, before it is examined."""
        return Found(self.keep, self.each, self.all_variants)

    def add(self, part: Found) -> None:
        """Take in what was found in another part of the space."""
        for mine, other in (
            (self.safe, part.safe),
            (self.tight, part.tight),
            (self.nearest, part.nearest),
        ):
            mine.offer(other.plans, other.score, other.tie)
        self.only_bounded &= part.only_bounded
        self.num_candidates += part.num_candidates
        self.num_safe += part.num_safe
        self.num_tight += part.num_tight
        self.num_evaluated += part.num_evaluated
        self.reasons.update(part.reasons)


class Scan:
    """One pass over the space and its account.

    What it ends with does not depend on the order in which the space is examined, nor on the
    processes that share it, but for the number of plans evaluated.
    """

    def __init__(self, space: SearchSpace, found: Found, memory_limit: float, meter: Meter) -> None:
        self.space, self.memory_limit = space, memory_limit
        self.found, self.meter = found, meter
        self.table = CostTable(space.model, space.cluster, space.framework, space.shapes())
        self.fitting: dict[int, IntArray] = {}
        """By pp: rows of the space's ``unstaged`` that obey the rules and may fit."""
        self.unstaged: dict[int, PlanBatch] = {}
        """By pp: those rows as plans without staging."""
        self.least_s: dict[int, FloatArray] = {}
        """By pp: a bound on the step time of all stagings of those rows: some rank has no less than
        the balanced share of the work."""
        self.num_rejected = 0
        """Plans that are accounted for before any is looked at alone."""
        self.stopped = ""
        self.capacity = float(space.cluster.accelerator.memory_bytes)
        self.byte_limit = max(memory_limit, TIGHT_LIMIT) * self.capacity

    def run(self) -> None:
        """Examine every plan, or as many as the request lets."""
        try:
            for pp in self.space.pipeline_degrees:
                self._find_fitting(pp)
            self.num_rejected = self.found.num_candidates
            if (workers := num_workers(self)) > 1:
                for part in found_in_processes(self, workers):
                    self.found.add(part)
                    self.meter.spend(part.num_evaluated)
                    self._tick()
            else:
                for pp, index in self.parts(math.inf):
                    self.examine(pp, index)
        except KeyboardInterrupt:
            self.stopped = INTERRUPTED
        except Stopped as event:
            self.stopped = str(event)
        self.found.tight.drop_from(self.last_s)

    def _tick(self) -> None:
        """Say how far the pass is; raise :class:`Stopped` once the time is up."""
        before = self.num_rejected
        tell(self.found.num_candidates - before, self.space.num_candidates - before, "searching")
        self.meter.check_time()

    @property
    def last_s(self) -> float:
        """No safe plan with a bound above it is kept; infinite while there is room."""
        return self.found.safe.limit

    @property
    def num_fitting(self) -> int:
        """Plans of the fitting rows."""
        stagings = (self.space.num_stagings(pp)[rows].sum() for pp, rows in self.fitting.items())
        return int(sum(stagings))

    def _find_fitting(self, pp: int) -> None:
        """Rows of ``unstaged(pp)`` of which some staging may obey the rules and fit.

        The others are counted as rejected with all their stagings: exact, since the rules asked
        here do not read the staging, and since no staging needs less memory than the bound.
        """
        space, found = self.space, self.found
        rows, stagings = space.unstaged(pp), space.num_stagings(pp)
        valid = self._valid(rows, UNSTAGED_RULES, stagings)
        fits = np.zeros(len(rows), bool)
        fits[valid] = lowest_memory(self.table, rows.take(valid)) <= self.byte_limit
        found.reasons[OUT_OF_MEMORY] += int(stagings[valid & ~fits].sum())
        found.num_candidates += int(stagings[~fits].sum())
        self.fitting[pp], self.unstaged[pp] = np.flatnonzero(fits), rows.take(fits)
        least = by_block(self.table, self.unstaged[pp], least_balanced_step_time)[0]
        self.least_s[pp] = least * (1 - ROUNDING)

    def rows_below(self, limit_s: float) -> dict[int, PlanBatch]:
        """By pp: the fitting rows, without staging, of which some staging may be faster."""
        return {pp: rows.take(self.least_s[pp] < limit_s) for pp, rows in self.unstaged.items()}

    def parts(self, num_plans: float) -> Iterator[Part]:
        """The fitting rows in parts of equal pp with about so many plans each, beginning with the
        pp that promises most.
        """
        for pp in sorted(self.fitting, key=lambda pp: self.least_s[pp].min(initial=math.inf)):
            rows = self.fitting[pp]
            of_part = np.cumsum(self.space.num_stagings(pp)[rows]) // num_plans
            edges = np.flatnonzero(np.diff(of_part)) + 1
            for index in np.split(np.arange(len(rows)), edges):
                if len(index):
                    yield pp, index

    def examine(self, pp: int, index: IntArray) -> None:
        """Account for every staging of these of the fitting rows, the promising ones first: what
        they reach rules out many of the others.

        Raises:
            Stopped: the budget is spent or the time is up.
        """
        rows, least = self.fitting[pp][index], self.least_s[pp][index]
        promising = least <= np.quantile(least, PROMISING_FRAC)
        for part in (promising, ~promising):
            slow = least > self.last_s
            for chosen, timed in ((part & ~slow, True), (part & slow, False)):
                for block in self.space.expand(pp, rows[chosen]):
                    self._tick()
                    self._examine(block, timed)

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
                self.found.reasons[rule.name] += int(count)
                valid &= ~broken
        return valid

    def _examine(self, block: PlanBatch, timed: bool) -> None:
        """Account for a block; ``timed``: its plans may be among those kept."""
        found, table = self.found, self.table
        found.num_candidates += len(block)
        plans = block.take(self._valid(block, STAGING_RULES))
        if len(plans) == 0:
            return
        peak = screen_memory(table, plans)
        lowest = peak == peak.min()
        found.nearest.offer(plans.take(lowest), peak[lowest], peak[lowest])
        fits = peak <= self.byte_limit
        found.reasons[OUT_OF_MEMORY] += int(len(peak) - fits.sum())
        plans, peak = plans.take(fits), peak[fits]
        safe = peak / self.capacity <= self.memory_limit
        found.only_bounded &= bool(IS_BOUNDED[plans.schedule].all())
        found.num_safe += int(safe.sum())
        found.num_tight += int(len(safe) - safe.sum())
        if not timed:
            return
        wanted = len(plans)
        allowed = slice(self.meter.allowed(wanted))
        plans, peak, safe = plans.take(allowed), peak[allowed], safe[allowed]
        self.meter.spend(len(plans))
        found.num_evaluated += len(plans)
        least = by_block(table, plans, least_step_time)[0]
        found.safe.offer(plans.take(safe), least[safe], peak[safe])
        # A tight plan is of interest only where it may beat the best safe one.
        beats = ~safe & (least < self.last_s)
        found.tight.offer(plans.take(beats), least[beats], peak[beats])
        if len(plans) < wanted:
            raise Stopped(BUDGET)


def num_workers(scan: Scan) -> int:
    """Processes for the pass: as asked for, else all cores where that pays; one spends a budget."""
    request = scan.meter.request
    if request.budget is not None:
        return 1
    if request.workers is not None:
        return request.workers
    return num_cores() if scan.num_fitting >= WORTH_PLANS and can_fork() else 1


def found_in_processes(scan: Scan, num_processes: int) -> Iterator[Found]:
    """What is found in each part of the fitting rows, as the parts are done."""
    from multiprocessing import RawValue

    method = "fork" if can_fork() else "spawn"
    shared = (scan, RawValue(c_double, math.inf))
    parts = list(scan.parts(max(PART_PLANS, scan.num_fitting / (PARTS_EACH * num_processes))))
    if parts:
        yield from as_done(
            _Process.found, parts, num_processes, method=method, start=_Process.begin, shared=shared
        )


class _Process:
    """What one process works on, set when it begins."""

    scan: ClassVar[Scan]
    last_s: ClassVar[c_double]
    """Shared by all: no plan with a bound above it is among those kept. One that was overwritten by
    a larger one prunes less and is as true."""

    @classmethod
    def begin(cls, scan: Scan, last_s: c_double) -> None:
        """Take over the scan."""
        scan.meter = Meter(Request())
        cls.scan, cls.last_s = scan, last_s

    @classmethod
    def found(cls, part: Part) -> Found:
        """What is found in one part."""
        scan = cls.scan
        scan.found = scan.found.empty()
        scan.found.safe.limit = cls.last_s.value
        scan.examine(*part)
        cls.last_s.value = min(cls.last_s.value, scan.last_s)
        return scan.found
