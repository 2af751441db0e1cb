"""What is to be said of one plan: its place, the rules that it breaks, the change that helps most.

Every neighbouring plan is simulated and replayed; nothing is inferred from the breakdown.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parallelsim.plan import Plan
from parallelsim.plan_batch import PlanBatch
from parallelsim.replay import replayed
from parallelsim.rules import explain as broken_messages
from parallelsim.search.grid import grid_search
from parallelsim.search.neighbours import neighbours
from parallelsim.search.place import Place, place
from parallelsim.search.result import SearchResult
from parallelsim.search.space import SearchSpace
from parallelsim.simulate import Simulation, simulate


@dataclass(frozen=True)
class Tried:
    """The best plan that one change leads to."""

    fields: tuple[str, ...]
    """What changes."""
    simulation: Simulation
    """The plan after the change, replayed; one plan."""
    gain_frac: float
    """Share of the step that it saves; negative where it is slower."""


@dataclass(frozen=True)
class Explanation:
    """What is known of one plan in a space."""

    simulation: Simulation
    """The plan, replayed where it can be; one plan."""
    broken: tuple[str, ...]
    """What the rules say that it breaks."""
    found: SearchResult
    """The search of the space."""
    place: Place | None
    """None for a plan that breaks a rule."""
    tried: tuple[Tried, ...]
    """Changes to plans that obey the rules and are no nearer to running out of memory: those that
    fit better first where the plan does not fit, then the fastest."""
    num_neighbours: int
    """Plans that were simulated for them."""


def explain_plan(space: SearchSpace, plan: Plan, memory_limit: float) -> Explanation:
    """Explain a plan of a space's model, cluster and framework; it need not be of the space."""
    inputs = (space.model, space.cluster, space.framework)
    simulation = replayed(simulate(*inputs, plan, memory_limit))
    broken = tuple(broken_messages(*inputs, plan))
    found = grid_search(space, memory_limit=memory_limit)
    tried, number = best_changes(space, simulation, memory_limit)
    where = None if broken else place(space, found, simulation, memory_limit)
    return Explanation(simulation, broken, found, where, tried, number)


def best_changes(
    space: SearchSpace, simulation: Simulation, memory_limit: float
) -> tuple[tuple[Tried, ...], int]:
    """(the best plan of every change, how many plans were simulated)."""
    plan = simulation.plans.plan(0)
    changes = neighbours(space, plan, memory_limit)
    if not changes:
        return (), 0
    inputs = (space.model, space.cluster, space.framework)
    plans = PlanBatch.concatenate([change.plans for change in changes])
    of_change = np.repeat(np.arange(len(changes)), [len(change.plans) for change in changes])
    after = simulate(*inputs, plans, memory_limit)
    fits = after.zone <= simulation.zone[0]
    after, of_change = replayed(after.take(fits)), of_change[fits]
    step = float(simulation.step_time_s[0])
    tried = []
    for index, change in enumerate(changes):
        own = np.flatnonzero(of_change == index)
        if len(own):
            best = own[np.lexsort([after.step_time_s[own], after.zone[own]])[0]]
            gain = 1 - float(after.step_time_s[best]) / step
            tried.append(Tried(change.fields, after.take([best]), gain))
    tried.sort(key=lambda one: (int(one.simulation.zone[0]), -one.gain_frac))
    return tuple(tried), len(plans)
