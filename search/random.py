"""Plans drawn evenly from the space: what every other searcher has to beat."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from parallelsim.search.objective import Objective
from parallelsim.search.result import SearchResult
from parallelsim.search.searcher import INTERRUPTED, Meter, Request, Searcher, Stopped
from parallelsim.search.space import SearchSpace

from parallelsim.operators import IntArray
from parallelsim.plan_batch import PlanBatch

DEFAULT_BUDGET = 2000
BATCH = 500


class RandomSearcher(Searcher):
    """Draws plans without replacement, all with the same probability."""

    name: ClassVar[str] = "random"

    def search(self, space: SearchSpace, request: Request) -> SearchResult:
        """The best of ``request.budget`` plans (2,000 by default), or of all if there are fewer."""
        meter = Meter(request)
        objective = Objective(space, meter)
        rng = np.random.default_rng(request.seed)
        size = min(request.budget or DEFAULT_BUDGET, space.num_candidates)
        drawn = rng.choice(space.num_candidates, size, replace=False)
        stopped = ""
        try:
            for start in range(0, size, BATCH):
                objective.scores(plans_at(space, drawn[start : start + BATCH]))
        except KeyboardInterrupt:
            stopped = INTERRUPTED
        except Stopped as event:
            stopped = str(event)
        return objective.result(self.name, stopped)


def plans_at(space: SearchSpace, positions: IntArray) -> PlanBatch:
    """The plans at these positions, where each row of the space's first table is followed by its
    stagings: 0 up to ``num_candidates``.
    """
    parts, start = [PlanBatch.from_plans([])], 0
    for pp in space.pipeline_degrees:
        kinds, stagings = space.stagings_by_kind(pp)
        ends = np.cumsum(space.num_stagings(pp))
        size = int(ends[-1]) if len(ends) else 0
        inside = positions[(positions >= start) & (positions < start + size)] - start
        rows = np.searchsorted(ends, inside, side="right")
        within = inside - np.concatenate([[0], ends])[rows]
        staged = np.array([stagings[kinds[r]][i] for r, i in zip(rows, within, strict=True)], int)
        tables = space.shared_rows(pp)[rows], space.staged_rows(pp)[staged]
        parts.append(space.joined(pp, tables[0].T, tables[1].T))
        start += size
    return PlanBatch.concatenate(parts)
