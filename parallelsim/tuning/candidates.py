"""The plans of a space that may turn out the fastest, whatever the simulator gets wrong.

Factors of all causes of a step, and the share of the memory that can be used, are drawn from their
priors; a candidate is the fastest plan that fits in one of the draws. Each draw is a reality in
which the simulator's constants are wrong; the plans that no draw prefers are not worth a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from parallelsim.causes import cause_seconds
from parallelsim.correlation import CAUSE_SD
from parallelsim.costs import CostTable
from parallelsim.memory import lowest_memory
from parallelsim.operators import FloatArray
from parallelsim.plan_batch import PlanBatch
from parallelsim.replay import replayed
from parallelsim.rules import obeys_rules
from parallelsim.search.refine import ranking
from parallelsim.search.result import SearchResult
from parallelsim.search.scan import UNSTAGED_RULES
from parallelsim.search.space import SearchSpace
from parallelsim.simulate import BoolArray, Simulation, screen_memory, simulate
from parallelsim.tuning.memory import LARGEST_USE, threshold_draws

REALITIES = 256
NUM_RANKED, NUM_TIGHT = 10, 5
"""Safe and tight plans of the search's own ranking that are candidates in any case."""
SLOWEST = 2.0
"""Predicted time over the slowest best of any reality beyond which a plan is none of them."""
AT_ONCE = 8192
"""Plans priced in all realities together: the temporaries stay small."""


@dataclass(frozen=True, slots=True, eq=False)
class Realities:
    """Draws of what the simulator may have wrong."""

    factors: FloatArray
    """Of the seconds of each cause, shape [realities, causes]."""
    memory: FloatArray
    """Predicted use up to which a plan fits, shape [realities]."""


def realities(number: int = REALITIES, seed: int = 0) -> Realities:
    """Draws from the priors; in the first sixteenth, times are as predicted."""
    rng = np.random.default_rng(seed)
    logs = rng.standard_normal((number, len(CAUSE_SD))) * CAUSE_SD
    logs[: number // 16] = 0.0
    return Realities(np.exp(logs), threshold_draws(number, rng))


def candidates(space: SearchSpace, found: SearchResult) -> Simulation:
    """The plans of a study, replayed: the best safe plan of a search first, the others by predicted
    step time, equivalent ones once.

    Args:
        space: what was searched.
        found: with one safe plan at least.
    """
    first = found.plans.take([0])
    batch = PlanBatch.concatenate(
        [
            found.plans.plans.take(slice(NUM_RANKED)),
            found.faster_but_tight.plans.take(slice(NUM_TIGHT)),
            could_be_best(space, realities()),
        ]
    )
    inputs = (space.model, space.cluster, space.framework)
    others = replayed(simulate(*inputs, batch, first.memory_limit))
    known = Simulation.concatenate([first, others])
    ordered = ranking(known, len(known), all_variants=True)
    is_first = [plan == first.plans.plan(0) for plan in ordered.plans]
    return ordered.take(np.argsort(~np.array(is_first), kind="stable"))


def could_be_best(space: SearchSpace, draws: Realities) -> PlanBatch:
    """The distinct plans that are the fastest of those that fit in some reality."""
    size = len(draws.memory)
    best, winners = np.full(size, np.inf), PlanBatch.from_plans([])
    position = np.full(size, -1)
    for part in runnable(space):
        part = part.take(part.step_time_s <= SLOWEST * best.max())
        if not len(part):
            continue
        seconds = draws.factors @ cause_seconds(part.time).T
        seconds[part.memory_use_frac > draws.memory[:, None]] = np.inf
        fastest = seconds.argmin(axis=1)
        reached = seconds[np.arange(size), fastest]
        better = np.flatnonzero(reached < best)
        best[better] = reached[better]
        position[better] = len(winners) + np.arange(len(better))
        winners = PlanBatch.concatenate([winners, part.plans.take(fastest[better])])
    chosen = dict.fromkeys(winners.plan(int(i)) for i in position if i >= 0)
    return PlanBatch.from_plans(list(chosen))


def runnable(space: SearchSpace) -> Iterator[Simulation]:
    """Every plan of the space that obeys the rules and may fit, with what is predicted of it by the
    closed forms, a block at a time.
    """
    inputs = (space.model, space.cluster, space.framework)
    table = CostTable(*inputs, space.shapes())
    most = LARGEST_USE * float(space.cluster.accelerator.memory_bytes)
    for pp in space.pipeline_degrees:
        for block in space.expand(pp, _may_run(space, table, pp, most)):
            plans = block.take(obeys_rules(*inputs, block))
            plans = plans.take(screen_memory(table, plans) <= most)
            for start in range(0, len(plans), AT_ONCE):
                yield simulate(*inputs, plans.take(slice(start, start + AT_ONCE)), table=table)


def _may_run(space: SearchSpace, table: CostTable, pp: int, most_bytes: float) -> BoolArray:
    """Rows of ``space.unstaged(pp)`` of which some staging may obey the rules and fit."""
    rows = space.unstaged(pp)
    may = obeys_rules(space.model, space.cluster, space.framework, rows, UNSTAGED_RULES)
    may[may] = lowest_memory(table, rows.take(may)) <= most_bytes
    return may
