"""How ranked plans fare where the network, the GPUs, the memory or the experts are otherwise, and
what a step along each axis costs.

In each case the whole space is searched again, so that a loss is against the plan that is the best
there. Loss of plan i in case c: t_ic over the least t_c of all plans, minus one; infinite where the
plan is no longer safe in memory or breaks a rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from parallelsim.calibration_overlay import Factors, apply_factors
from parallelsim.errors import PlanError
from parallelsim.layers import Block
from parallelsim.model import ModelSpec
from parallelsim.operators import FloatArray, IntArray
from parallelsim.plan import Plan
from parallelsim.replay import replayed
from parallelsim.search.grid import grid_search
from parallelsim.search.space import SearchSpace
from parallelsim.simulate import Simulation, simulate

CHANGE = 0.20
LOAD_CV, LOAD_QUANTILE = 0.20, 0.95
"""Spread of the experts' loads, at least, and where in it the case is."""
AXES = ("tp", "cp", "pp", "dp", "ep", "micro_batch_size")


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """The plans where something is otherwise."""

    name: str
    best: Plan
    """Of the whole space there."""
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
    """Search the space in every case, and one step away from the first of the ranked plans."""
    cases = [case for name, other in _cases(space) if (case := _case(name, other, plans))]
    return Robustness(tuple(cases), tuple(_steps(space, plans)))


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


def _case(name: str, space: SearchSpace, plans: Simulation) -> Case | None:
    """The ranked plans in one case; None where no plan at all is safe."""
    found = grid_search(space, 1, plans.memory_limit).plans
    inputs = (space.model, space.cluster, space.framework)
    there = replayed(simulate(*inputs, plans.plans, plans.memory_limit))
    runs = there.obeys_rules & (there.zone == 0)
    if not len(found) and not runs.any():
        return None
    times = np.where(runs, there.step_time_s, np.inf)
    here = there if not len(found) or times.min() < found.step_time_s[0] else found
    index = int(times.argmin()) if here is there else 0
    least = float(here.step_time_s[index])
    return Case(name, here.plans.plan(index), least, times / least - 1)


def _steps(space: SearchSpace, plans: Simulation) -> Iterator[Step]:
    """One doubling or halving of each degree of plan 1 that the caller left free, the rest chosen
    anew.
    """
    first, best_s = plans.plans.plan(0), float(plans.step_time_s[0])
    for axis in AXES:
        now = int(getattr(first, axis))
        if axis in space.fixed or axis in space.limits:
            continue
        for value in (now // 2 if now % 2 == 0 else 0, now * 2):
            if value < 1 or (axis == "ep" and not space.model.has_experts):
                continue
            try:
                near = replace(space, fixed={**space.fixed, axis: value})
                found = grid_search(near, 1, plans.memory_limit).plans
            except PlanError:
                continue  # the GPUs, the batch or the experts cannot have it
            loss = float(found.step_time_s[0]) / best_s - 1 if len(found) else float("inf")
            yield Step(axis, value, loss)
