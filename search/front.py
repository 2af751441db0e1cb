"""Plans that no other plan beats in step time and in memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from parallelsim.search.objective import Objective
from parallelsim.search.refine import Replays
from parallelsim.search.result import SearchResult

from parallelsim.operators import FloatArray
from parallelsim.rule_context import BoolArray
from parallelsim.simulate import Simulation

MOST = 400
"""Plans that are replayed at most."""


def pareto_front(objective: Objective, result: SearchResult) -> SearchResult:
    """The result with the front of the safe plans that were seen, fastest first, by the replay.

    The plans that no other one beats by its bound are replayed, then those of the rest that none of
    the replayed ones beats, until none is left.
    """
    kept = objective.safe_in_order()
    replays = Replays(objective.space, objective.table, objective.memory_limit)
    found = replays.run(kept.plans.take(slice(0)))
    left = np.arange(len(kept.least_s))
    while len(left) and replays.num_replayed < MOST:
        on_front = _least_so_far(kept.peak_bytes[left])
        found = Simulation.concatenate([found, replays.run(kept.plans.take(left[on_front]))])
        left = left[~on_front]
        faster = found.step_time_s[:, None] <= kept.least_s[left]
        smaller = found.peak_memory_bytes[:, None] <= kept.peak_bytes[left]
        left = left[~(faster & smaller).any(axis=0)]
    found = found.take(np.lexsort([found.peak_memory_bytes, found.step_time_s]))
    return replace(result, front=found.take(_least_so_far(found.peak_memory_bytes)))


def _least_so_far(values: FloatArray) -> BoolArray:
    """Which values are below all before them."""
    before = np.minimum.accumulate(np.concatenate([[np.inf], values]))[:-1]
    return np.asarray(values < before)
