"""From screened plans to a ranking by the replay.

Plans come with a bound below their replay. They are replayed in the order of their bounds, but for
those whose bound exceeds the last place of the ranking or the fastest of their variants: these
cannot enter it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np
from parallelsim.search.space import SearchSpace
from parallelsim.search.variants import first_of_groups, variant_groups

from parallelsim.costs import CostTable
from parallelsim.operators import FloatArray
from parallelsim.plan import PLAN_FIELDS
from parallelsim.plan_batch import PlanBatch
from parallelsim.replay import MOST_OPERATIONS, num_operations, replayed
from parallelsim.simulate import Simulation, simulate
from parallelsim.timeline import Graph

AT_ONCE = 24
"""Plans replayed before the last place of the ranking is looked at again."""
SIMILAR_AT_ONCE = 1
"""Variants of one another among them."""
MOST_WORK = 6_000_000
"""Operations replayed beyond the first places of a ranking: about three seconds."""
DIGITS = 10
"""Numbers that agree in so many digits are equal: what is left is rounding."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """Replayed plans in order, the first of each set of equivalent ones."""

    plans: Simulation
    replayed: Simulation
    """All that were replayed, in no order."""
    complete: bool
    """No plan that was left out has a bound below the last place and below the fastest of its
    variants."""
    lacking: bool
    """Variants that were not among the plans may be faster."""


@dataclass
class Replays:
    """Replays plans of one space and keeps the schedules that it compiled."""

    space: SearchSpace
    table: CostTable
    memory_limit: float
    all_variants: bool = False
    graphs: dict[tuple[int, ...], Graph] = field(default_factory=dict)
    num_replayed: int = 0

    def run(self, plans: PlanBatch) -> Simulation:
        """The plans' predictions by the replay."""
        return self.replayed(self.simulated(plans))

    def simulated(self, plans: PlanBatch) -> Simulation:
        """The plans' predictions by the closed forms."""
        space = self.space
        inputs = (space.model, space.cluster, space.framework)
        return simulate(*inputs, plans, self.memory_limit, self.table)

    def replayed(self, simulation: Simulation) -> Simulation:
        """The same plans' predictions by the replay."""
        self.num_replayed += len(simulation)
        return replayed(simulation, self.table, self.graphs)

    def rank(
        self,
        plans: PlanBatch,
        least_s: FloatArray,
        top_k: int,
        below_s: float = np.inf,
        complete_below_s: FloatArray | None = None,
    ) -> Ranking:
        """The ``top_k`` fastest of the plans, which come in the order of ``least_s``, their bounds.

        Args:
            plans: to rank.
            least_s: no replay is below it.
            top_k: rows wanted; of plans that are variants of one another the fastest is one.
            below_s: only plans faster are of interest.
            complete_below_s: variants of a plan that are missing have bounds from there on.
        """
        groups = variant_groups(plans, self.all_variants)
        best = np.full(len(plans), np.inf)  # by group
        work = np.minimum(num_operations(plans), MOST_OPERATIONS)
        waiting = np.ones(len(plans), bool)
        spent, first = 0.0, None
        ranked = found = self.run(plans.take(slice(0)))
        last = below_s
        while len(open_ := np.flatnonzero(waiting & (least_s < np.minimum(best[groups], last)))):
            if first is not None and spent > first + MOST_WORK:
                return Ranking(ranked, found, complete=False, lacking=False)
            chosen = open_[first_of_groups(groups[open_], SIMILAR_AT_ONCE)]
            chosen = chosen[: max(AT_ONCE, top_k)]
            waiting[chosen] = False
            run = self.run(plans.take(chosen))
            np.minimum.at(best, groups[chosen], run.step_time_s)
            found = Simulation.concatenate([found, run])
            ranked = ranking(found, top_k, self.all_variants)
            spent += float(work[chosen].sum())
            first = spent if first is None else first
            if len(ranked) == top_k:
                last = min(below_s, float(ranked.step_time_s[-1]))
        lacking = complete_below_s is not None and bool(
            (complete_below_s < np.minimum(best[groups], last)).any()
        )
        return Ranking(ranked.take(ranked.step_time_s < below_s), found, not lacking, lacking)


def ranking(simulation: Simulation, top_k: int, all_variants: bool = False) -> Simulation:
    """The plans in order, at most ``top_k``: the first of each set of equivalent ones, and unless
    ``all_variants`` of those that are variants of one another.
    """
    step, peak = rounded(simulation.step_time_s), rounded(simulation.peak_memory_bytes)
    simulation = simulation.take(order(step, peak, simulation.plans))
    groups = variant_groups(simulation.plans, all_variants)
    simulation = simulation.take(first_of_groups(groups, 1))
    seen: set[tuple[float, ...]] = set()
    kept = []
    for i in range(len(simulation)):
        numbers = _predictions(simulation, i)
        if numbers not in seen:
            seen.add(numbers)
            kept.append(i)
        if len(kept) == top_k:
            break
    return simulation.take(np.array(kept, np.int64))


def _predictions(simulation: Simulation, i: int) -> tuple[float, ...]:
    """Every predicted number of one plan: plans that agree in all of them are equivalent."""
    numbers: list[float] = []
    for part, whole in (
        (simulation.time, float(simulation.step_time_s[i])),
        (simulation.memory, float(simulation.peak_memory_bytes[i])),
    ):
        # A term may be what is left of large ones: it is rounded against the whole.
        terms = [float(getattr(part, f.name)[i]) for f in fields(part)]
        numbers += [round(term / whole, DIGITS) for term in terms]
        numbers += rounded(np.array([whole])).tolist()
    return tuple(numbers)


def rounded(values: FloatArray) -> FloatArray:
    """The values to ``DIGITS`` significant digits."""
    return np.array([float(f"{value:.{DIGITS}g}") for value in values.tolist()])


def order(time_s: FloatArray, peak_bytes: FloatArray, plans: PlanBatch) -> np.ndarray:
    """Positions by time, then memory, then the plan's fields."""
    keys = [getattr(plans, name) for name in reversed(PLAN_FIELDS)]
    return np.lexsort([*keys, peak_bytes, time_s])
