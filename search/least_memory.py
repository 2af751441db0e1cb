"""The plans of a space that need the least memory and are nearly as fast as the fastest."""

from __future__ import annotations

import math

import numpy as np
from parallelsim.search.bounds import least_step_time
from parallelsim.search.cuts import least_balanced_step_time
from parallelsim.search.refine import Replays, order, rounded
from parallelsim.search.scan import UNSTAGED_RULES, Best
from parallelsim.search.space import SearchSpace
from parallelsim.search.variants import first_of_groups, variant_groups

from parallelsim.costs import CostTable
from parallelsim.memory import lowest_memory
from parallelsim.replay import ROUNDING
from parallelsim.rules import obeys_rules
from parallelsim.simulate import Simulation, by_block, screen_memory
from parallelsim.step import step_time

SPARE, ROWS = 8, 512
"""Plans kept for each wanted one and of each way to deal the work; rows of the space that are
expanded before the last place is looked at again."""
MOST_KEPT = 20_000
"""Plans kept at most."""


def least_memory(
    space: SearchSpace,
    top_k: int,
    fastest: Simulation,
    max_slowdown: float = math.inf,
    *,
    all_variants: bool = False,
) -> Simulation:
    """The ``top_k`` plans that need the least memory of those whose step is at most
    ``1 + max_slowdown`` times the fastest, replayed; of those that need as much the faster first.

    Exact: what is left out has a lower bound on memory above the last place, or one on its step
    above the limit; up to ``MOST_KEPT`` plans that pass both bounds and not the replay.

    Args:
        space: what is searched.
        top_k: rows wanted; of variants the one with the least memory is a row, unless
            ``all_variants`` are asked for.
        fastest: ranked safe plans of the space, the fastest first: their memory limit holds.
        max_slowdown: share of the fastest step.
        all_variants: every plan is a row.
    """
    table = CostTable(space.model, space.cluster, space.framework, space.shapes())
    replays = Replays(space, table, fastest.memory_limit)
    below_s = float(fastest.step_time_s[0]) * (1 + max_slowdown)
    best = Best(SPARE * top_k, SPARE, all_variants)
    while True:
        _offer_all(best, space, table, below_s, fastest.memory_limit)
        found = replays.run(best.plans)
        passing = found.step_time_s <= below_s
        known = fastest.take(fastest.step_time_s <= below_s)
        ranked = _ranking(Simulation.concatenate([found.take(passing), known]), top_k, all_variants)
        last = float(ranked.peak_memory_bytes[-1]) if len(ranked) == top_k else math.inf
        groups = variant_groups(best.plans, all_variants)
        least = np.full(len(groups), last)  # by group, of the variants that are fast enough
        np.minimum.at(least, groups[passing], found.peak_memory_bytes[passing])
        is_complete = best.limit >= last and (best.complete_below() >= least[groups]).all()
        if is_complete or best.keep * best.each >= MOST_KEPT:
            return ranked
        best = Best(SPARE * best.keep, SPARE * best.each, all_variants)


def _offer_all(
    best: Best, space: SearchSpace, table: CostTable, below_s: float, memory_limit: float
) -> None:
    """Offer every safe plan whose bound is not above ``below_s``, by its memory."""
    inputs = (space.model, space.cluster, space.framework)
    limit = memory_limit * float(space.cluster.accelerator.memory_bytes)
    for pp in space.pipeline_degrees:
        rows = space.unstaged(pp)
        bound = np.full(len(rows), np.inf)
        obeying = np.flatnonzero(obeys_rules(*inputs, rows, UNSTAGED_RULES))
        least = by_block(table, rows.take(obeying), least_balanced_step_time)[0]
        obeying = obeying[least * (1 - ROUNDING) <= below_s]
        bound[obeying] = lowest_memory(table, rows.take(obeying))
        ranked = np.argsort(bound, kind="stable")
        for start in range(0, len(rows), ROWS):
            index = ranked[start : start + ROWS]
            worst = min(limit, best.limit)
            chosen = np.zeros(len(rows), bool)
            chosen[index] = bound[index] <= worst
            if not chosen.any():
                break
            for block in space.expand(pp, chosen):
                plans = block.take(obeys_rules(*inputs, block))
                needs = screen_memory(table, plans)
                plans, needs = plans.take(needs <= worst), needs[needs <= worst]
                step, least = by_block(table, plans, step_time, least_step_time)
                may = least <= below_s
                best.offer(plans.take(may), needs[may], step[may])


def _ranking(found: Simulation, top_k: int, all_variants: bool) -> Simulation:
    """By memory, then by step; plans that agree in both once."""
    numbers = (rounded(found.peak_memory_bytes), rounded(found.step_time_s))
    found = found.take(order(*numbers, found.plans))
    found = found.take(first_of_groups(variant_groups(found.plans, all_variants), 1))
    pairs = np.stack([rounded(found.peak_memory_bytes), rounded(found.step_time_s)], axis=1)
    _, first = np.unique(pairs, axis=0, return_index=True)
    return found.take(np.sort(first)[:top_k])
