"""Plans that no other plan beats in step time and in memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from parallelsim.search.objective import Objective
from parallelsim.search.refine import Replays
from parallelsim.search.result import SearchResult

MOST = 200
"""Plans of the front that are replayed."""


def pareto_front(objective: Objective, result: SearchResult) -> SearchResult:
    """The result with the front of the safe plans that were seen, fastest first."""
    kept = objective.safe_in_order()
    least = np.minimum.accumulate(np.concatenate([[np.inf], kept.peak_bytes]))[:-1]
    front = kept.plans.take(np.flatnonzero(kept.peak_bytes < least)[:MOST])
    replays = Replays(objective.space, objective.table, objective.memory_limit)
    found = replays.run(front)
    found = found.take(np.lexsort([found.peak_memory_bytes, found.step_time_s]))
    # The replay may put two plans of the front into another order than the bound.
    least = np.minimum.accumulate(np.concatenate([[np.inf], found.peak_memory_bytes]))[:-1]
    return replace(result, front=found.take(found.peak_memory_bytes < least))
