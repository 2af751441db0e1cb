"""The plans of a space that need the least memory."""

from __future__ import annotations

import numpy as np
from parallelsim.search.refine import Replays, order, rounded
from parallelsim.search.scan import UNSTAGED_RULES
from parallelsim.search.space import SearchSpace

from parallelsim.costs import CostTable
from parallelsim.memory import lowest_memory
from parallelsim.plan_batch import PlanBatch
from parallelsim.rules import obeys_rules
from parallelsim.simulate import Simulation, by_block, screen_memory
from parallelsim.step import step_time

SPARE, ROWS = 8, 512
"""Plans kept for each wanted one; rows of the space that are expanded before its last place is
looked at again."""


def least_memory(space: SearchSpace, top_k: int, memory_limit: float) -> Simulation:
    """The ``top_k`` plans that need the least memory, replayed; of those that need as much the
    faster ones first.

    Exact: what is left out has a lower bound on memory above the last place.
    """
    table = CostTable(space.model, space.cluster, space.framework, space.shapes())
    inputs, keep = (space.model, space.cluster, space.framework), SPARE * top_k
    best, peak, step = PlanBatch.from_plans([]), np.empty(0), np.empty(0)
    limit = memory_limit * float(space.cluster.accelerator.memory_bytes)
    for pp in space.pipeline_degrees:
        rows = space.unstaged(pp)
        bound = np.full(len(rows), np.inf)
        obeying = obeys_rules(*inputs, rows, UNSTAGED_RULES)
        bound[obeying] = lowest_memory(table, rows.take(obeying))
        ranked = np.argsort(bound, kind="stable")
        for start in range(0, len(rows), ROWS):
            index = ranked[start : start + ROWS]
            worst = min(limit, float(peak[-1]) if len(peak) == keep else np.inf)
            chosen = np.zeros(len(rows), bool)
            chosen[index] = bound[index] <= worst
            if not chosen.any():
                break
            for block in space.expand(pp, chosen):
                plans = block.take(obeys_rules(*inputs, block))
                needs = screen_memory(table, plans)
                plans, needs = plans.take(needs <= worst), needs[needs <= worst]
                best = PlanBatch.concatenate([best, plans])
                peak = np.concatenate([peak, needs])
                step = np.concatenate([step, by_block(table, plans, step_time)[0]])
                first = order(peak, step, best)[:keep]
                best, peak, step = best.take(first), peak[first], step[first]
    found = Replays(space, table, memory_limit).run(best)
    numbers = (rounded(found.peak_memory_bytes), rounded(found.step_time_s))
    found = found.take(order(*numbers, found.plans))
    pairs = np.stack([rounded(found.peak_memory_bytes), rounded(found.step_time_s)], axis=1)
    _, first = np.unique(pairs, axis=0, return_index=True)
    return found.take(np.sort(first)[:top_k])
