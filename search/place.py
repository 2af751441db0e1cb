"""The place of one plan among all of a space."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from parallelsim.search.bounds import least_step_time
from parallelsim.search.cuts import least_balanced_step_time
from parallelsim.search.refine import MOST_WORK, Replays, rounded
from parallelsim.search.result import SearchResult
from parallelsim.search.scan import UNSTAGED_RULES
from parallelsim.search.space import SearchSpace

from parallelsim.costs import CostTable
from parallelsim.memory import lowest_memory
from parallelsim.plan_batch import PlanBatch
from parallelsim.replay import ROUNDING, num_operations
from parallelsim.rules import obeys_rules
from parallelsim.simulate import Simulation, by_block, screen_memory
from parallelsim.step import step_time

MOST_KEPT = 20_000
"""Plans that may be faster, of which more are only counted."""


@dataclass(frozen=True, slots=True)
class Place:
    """How many safe plans of a space come before one plan."""

    rank: int
    """1: none is faster, nor as fast with less memory. Plans that agree in every number count
    once; layouts ``free`` that the search found count too."""
    num_safe: int
    """Safe plans of the space."""
    exact: bool
    """Every plan that could be faster was replayed; else it was compared by the closed forms."""


def place(
    space: SearchSpace, found: SearchResult, simulation: Simulation, memory_limit: float
) -> Place:
    """The place of the one plan of a simulation, which is replayed.

    Args:
        space: what was searched.
        found: by the search, with its ranking.
        simulation: the one plan.
        memory_limit: share of the reported memory up to which a plan is safe.
    """
    table = CostTable(space.model, space.cluster, space.framework, space.shapes())
    step_s = float(simulation.step_time_s[0])
    kept: list[PlanBatch] = [PlanBatch.from_plans([])]
    num_kept = num_faster = 0
    for plans in _may_be_faster(space, table, step_s, memory_limit):
        num_faster += int((by_block(table, plans, step_time)[0] < step_s).sum())
        num_kept += len(plans)
        if num_kept <= MOST_KEPT:
            kept.append(plans)
    plans = PlanBatch.concatenate(kept)
    exact = num_kept <= MOST_KEPT and float(num_operations(plans).sum()) <= MOST_WORK
    if not exact:
        return Place(1 + num_faster, found.num_feasible, exact=False)
    replays = Replays(space, table, memory_limit)
    better = Simulation.concatenate([replays.run(plans), found.plans])
    numbers = {(step, peak) for step, peak in _numbers(better) if (step, peak) < _own(simulation)}
    return Place(1 + len(numbers), found.num_feasible, exact=True)


def _own(simulation: Simulation) -> tuple[float, float]:
    return _numbers(simulation)[0]


def _numbers(simulation: Simulation) -> list[tuple[float, float]]:
    """(step, peak) as rankings compare them."""
    columns = (rounded(simulation.step_time_s), rounded(simulation.peak_memory_bytes))
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _may_be_faster(
    space: SearchSpace, table: CostTable, step_s: float, memory_limit: float
) -> Iterator[PlanBatch]:
    """Safe plans whose bound is not above ``step_s``, in blocks.

    What no staging makes obey the rules, fit or fast enough is left out at once.
    """
    inputs = (space.model, space.cluster, space.framework)
    limit = memory_limit * float(space.cluster.accelerator.memory_bytes)
    for pp in space.pipeline_degrees:
        rows = space.unstaged(pp)
        chosen = obeys_rules(*inputs, rows, UNSTAGED_RULES)
        chosen[chosen] = lowest_memory(table, rows.take(chosen)) <= limit
        least = by_block(table, rows.take(chosen), least_balanced_step_time)[0]
        chosen[chosen] = least * (1 - ROUNDING) <= step_s
        for block in space.expand(pp, chosen):
            plans = block.take(obeys_rules(*inputs, block))
            plans = plans.take(screen_memory(table, plans) <= limit)
            yield plans.take(by_block(table, plans, least_step_time)[0] <= step_s)
