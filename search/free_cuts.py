"""Plans with layout ``free``, found when they are asked for.

A family (a plan without its cut into stages and its depth of recompute) has a plan for the cut of
least time within memory and one for each cut next to it, as the exhaustive search has them
(:mod:`parallelsim.search.cuts`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np
from parallelsim.search.cuts import (
    cuts,
    estimated,
    least_balanced_step_time,
    stagings_to_cut,
)
from parallelsim.search.partition_inputs import layer_tables
from parallelsim.search.space import SearchSpace

from parallelsim.costs import CostTable
from parallelsim.layers import Layer
from parallelsim.operators import FloatArray
from parallelsim.plan import Plan
from parallelsim.plan_batch import PlanBatch
from parallelsim.rules import obeys_rules
from parallelsim.simulate import by_block

SPARE_TIME = 1.005
"""A cut may be so much faster than the estimate of its family."""


class FreeCuts:
    """The cuts of one space within one memory limit."""

    def __init__(self, space: SearchSpace, table: CostTable, memory_limit: float) -> None:
        self.space, self.table, self.memory_limit = space, table, memory_limit
        self._known: dict[Plan, tuple[Plan, ...]] = {}

    def stagings(self, pp: int) -> list[tuple[int, int]]:
        """(vpp, schedule code) of the families of one pp."""
        return stagings_to_cut(self.space, pp)

    def least_s(self, rows: PlanBatch) -> FloatArray:
        """Seconds that no family of these rows of the space's first table is below, shape [P]."""
        return by_block(self.table, rows, least_balanced_step_time)[0]

    def estimates(self, families: PlanBatch, below_s: float) -> FloatArray:
        """Seconds that the best cut of each family may take, shape [P]; infinite where it does not
        fit, or does not promise to be faster than ``below_s``.
        """
        found = np.full(len(families), np.inf)
        inputs = (self.space, self.table, families, below_s * SPARE_TIME, self.memory_limit)
        index, _, estimate = estimated(*inputs)
        found[index] = estimate / SPARE_TIME
        return found

    def of(self, family: Plan) -> tuple[Plan, ...]:
        """The plans of a family, that of the best cut first; empty where no cut fits.

        ``family`` has layout ``free``, no chunks, and recomputes nothing.
        """
        if family not in self._known:
            space = self.space
            found = cuts(space, family, self.memory_limit, self._tables)
            found = [plan for plan in found if space.allows(plan)]
            inputs = (space.model, space.cluster, space.framework)
            obeys = obeys_rules(*inputs, PlanBatch.from_plans(found))
            self._known[family] = tuple(found[i] for i in np.flatnonzero(obeys))
        return self._known[family]

    def position(self, plan: Plan) -> int:
        """Position of a plan among those of its family, 0 where it is none of them."""
        family = replace(plan, chunk_layers=(), recompute="none", recompute_num_layers=0)
        known = self.of(family)
        return known.index(plan) if plan in known else 0

    @cached_property
    def _tables(self) -> dict[Layer, CostTable]:
        space = self.space
        return layer_tables(space.model, space.cluster, space.framework, space.shapes())
