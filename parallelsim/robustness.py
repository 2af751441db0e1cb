"""How ranked plans fare where the network, the GPUs, the memory or the experts are otherwise, and
what a step along each axis costs.

Loss of plan i in case c: t_ic over the least t_c of the rivals, minus one; infinite where the plan
is no longer safe in memory or breaks a rule. Rivals are the ranked plans and, of the ``NUM_WAYS``
ways to deal the work with the least bounds as it is, the best variants: a plan that is slower as it
is than all of these is not looked at in any case.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from parallelsim.calibration_overlay import Factors, apply_factors
from parallelsim.costs import CostTable
from parallelsim.errors import PlanError
from parallelsim.layers import Block
from parallelsim.model import ModelSpec
from parallelsim.operators import FloatArray, IntArray
from parallelsim.plan import Plan
from parallelsim.plan_batch import PlanBatch
from parallelsim.rules import obeys_rules
from parallelsim.search.bounds import least_step_time
from parallelsim.search.grid import grid_search
from parallelsim.search.refine import Replays
from parallelsim.search.scan import Found, Scan
from parallelsim.search.searcher import Meter, Request
from parallelsim.search.space import SearchSpace
from parallelsim.simulate import Simulation, by_block, screen_memory

CHANGE = 0.20
LOAD_CV, LOAD_QUANTILE = 0.20, 0.95
"""Spread of the experts' loads, at least, and where in it the case is."""
NUM_WAYS, NUM_VARIANTS = 128, 16
"""Ways to deal the work whose plans are rivals, by their bounds, and plans of each."""
AXES = ("tp", "cp", "pp", "dp", "ep", "micro_batch_size")


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """The plans where something is otherwise."""

    name: str
    best: Plan
    """Of the ranked plans and their rivals there."""
    best_step_time_s: float
    loss_frac: FloatArray
    """Of each ranked plan, shape [P]."""


@dataclass(frozen=True, slots=True)
class Step:
    """The best plan with one degree of plan 1 doubled or halved."""

    axis: str
    value: int
    loss_frac: float
    """Over plan 1; infinite where nothing of it fits."""


@dataclass(frozen=True)
class Robustness:
    """What is known of the ranked plans in all cases."""

    cases: tuple[Case, ...]
    steps: tuple[Step, ...]

    @property
    def num_failed(self) -> IntArray:
        """Cases in which each plan is no longer safe or does not run, shape [P]."""
        return np.asarray(np.isinf([case.loss_frac for case in self.cases]).sum(axis=0))

    @property
    def worst_frac(self) -> FloatArray:
        """Largest loss of each plan over the cases in which it is safe, shape [P]."""
        losses = np.array([case.loss_frac for case in self.cases])
        return np.asarray(np.where(np.isinf(losses), 0.0, losses).max(axis=0))

    @property
    def most_robust(self) -> int:
        """Position of the plan that fails in the fewest cases and then loses least in its worst;
        the first of equals.
        """
        return int(np.lexsort([self.worst_frac, self.num_failed])[0])


def robustness(space: SearchSpace, plans: Simulation) -> Robustness:
    """How ranked plans fare against the rivals in every case, and one step away from the first."""
    rivals = _rivals(space, plans.memory_limit)
    cases = []
    for name, other in _cases(space):
        # Where experts are loaded otherwise, so is the memory, by no factor that is known before.
        same = other.model is space.model
        near = rivals.plans if same else _scanned(other, plans.memory_limit).found.safe.plans
        if case := _case(name, other, plans, near):
            cases.append(case)
    return Robustness(tuple(cases), tuple(_steps(space, plans, rivals)))


@dataclass(frozen=True, slots=True)
class _Rivals:
    """The best variants of the fastest ways to deal the work."""

    plans: PlanBatch
    """Of the safe plans, of those that are so with activations that need more, and of the tight."""
    limit_s: float
    """No safe plan of another way has a bound below it."""


def _rivals(space: SearchSpace, memory_limit: float) -> _Rivals:
    safe, roomy = (_scanned(space, limit) for limit in (memory_limit, memory_limit / (1 + CHANGE)))
    bands = [safe.found.safe.plans, roomy.found.safe.plans, safe.found.tight.plans]
    return _Rivals(PlanBatch.concatenate(bands), safe.last_s)


def _scanned(space: SearchSpace, memory_limit: float) -> Scan:
    scan = Scan(space, Found(NUM_WAYS, NUM_VARIANTS), memory_limit, Meter(Request()))
    scan.run()
    return scan


def _cases(space: SearchSpace) -> Iterator[tuple[str, SearchSpace]]:
    """(name, the space there)."""

    def scaled(factors: Factors) -> SearchSpace:
        cluster, framework = apply_factors(space.cluster, space.framework, factors)
        return replace(space, cluster=cluster, framework=framework)

    for sign, word in ((-1, "-"), (1, "+")):
        ratio, amount = 1 + sign * CHANGE, f"{word}{CHANGE:.0%}"
        accelerator = space.cluster.accelerator
        sustained = accelerator.sustained_efficiency * ratio
        gpu = replace(accelerator, sustained_efficiency=sustained)
        yield f"network {amount}", scaled(Factors(intra_node=ratio, inter_node=ratio))
        yield (
            f"GEMM efficiency {amount}",
            replace(space, cluster=replace(space.cluster, accelerator=gpu)),
        )
        yield f"activation memory {amount}", scaled(Factors(memory_scale=ratio))
    if space.model.has_experts:
        yield "experts loaded unevenly", replace(space, model=_skewed(space.model))


def _skewed(model: ModelSpec) -> ModelSpec:
    """With the busiest experts at the 95th percentile of a spread of 20 % or the model's own."""
    blocks = []
    for block in model.blocks:
        layers = [
            layer
            if (experts := layer.experts) is None
            else replace(layer, experts=replace(experts, load_cv=max(experts.load_cv, LOAD_CV)))
            for layer in block.layers
        ]
        blocks.append(Block(block.repeat, tuple(layers)))
    return replace(model, blocks=tuple(blocks)).with_load_quantile(LOAD_QUANTILE)


def _case(name: str, space: SearchSpace, plans: Simulation, rivals: PlanBatch) -> Case | None:
    """The ranked plans in one case; None where no plan at all is safe."""
    inputs = (space.model, space.cluster, space.framework)
    table = CostTable(*inputs, PlanBatch.concatenate([plans.plans, rivals]))
    replays = Replays(space, table, plans.memory_limit)
    there = replays.run(plans.plans)
    runs = there.obeys_rules & (there.zone == 0)
    times = np.where(runs, there.step_time_s, np.inf)
    best = _fastest(replays, rivals, float(times.min()))
    if not len(best) and not runs.any():
        return None
    first = best if len(best) else there.take([int(times.argmin())])
    least = float(first.step_time_s[0])
    return Case(name, first.plans.plan(0), least, times / least - 1)


def _fastest(replays: Replays, plans: PlanBatch, below_s: float) -> Simulation:
    """The fastest safe one of the plans; empty where none is faster than ``below_s``."""
    space = replays.space
    plans = plans.take(obeys_rules(space.model, space.cluster, space.framework, plans))
    limit = replays.memory_limit * float(space.cluster.accelerator.memory_bytes)
    plans = plans.take(screen_memory(replays.table, plans) <= limit)
    least = by_block(replays.table, plans, least_step_time)[0]
    ranked = np.argsort(least, kind="stable")
    return replays.rank(plans.take(ranked), least[ranked], 1, below_s).plans


def _steps(space: SearchSpace, plans: Simulation, rivals: _Rivals) -> Iterator[Step]:
    """One doubling or halving of each degree of plan 1 that the caller left free, the rest chosen
    anew; layers are cut freely in ranked plans alone.
    """
    first, best_s = plans.plans.plan(0), float(plans.step_time_s[0])
    table = CostTable(space.model, space.cluster, space.framework, rivals.plans)
    replays = Replays(space, table, plans.memory_limit)
    for axis in AXES:
        now = int(getattr(first, axis))
        if axis in space.fixed or axis in space.limits:
            continue
        for value in (now // 2 if now % 2 == 0 else 0, now * 2):
            if value < 1 or (axis == "ep" and not space.model.has_experts):
                continue
            try:
                step_s = _step_s(replays, axis, value, plans, rivals)
            except PlanError:
                continue  # the GPUs, the batch or the experts cannot have it
            yield Step(axis, value, step_s / best_s - 1)


def _step_s(replays: Replays, axis: str, value: int, plans: Simulation, rivals: _Rivals) -> float:
    """Seconds of the fastest safe plan with one degree given; infinite where none is safe."""
    space = replace(replays.space, fixed={**replays.space.fixed, axis: value})
    known = plans.step_time_s[getattr(plans.plans, axis) == value]
    least = float(known.min(initial=np.inf))
    near = rivals.plans.take(getattr(rivals.plans, axis) == value)
    found = _fastest(replays, near, least)
    least = float(found.step_time_s[0]) if len(found) else least
    if least <= rivals.limit_s:
        return least
    found = grid_search(space, 1, plans.memory_limit).plans
    return float(found.step_time_s[0]) if len(found) else np.inf
