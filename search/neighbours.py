"""Plans one change away from a given one.

A change moves a factor from one degree to another (tp 8 -> 4, dp 16 -> 32), or gives one other
field, or fields that only go together, another value of the space. What a new degree rules out
follows: of the space's plans with the new degrees those that differ least in the rest. A switch
that the given plan has in a position that the space leaves out (an overlap that is off) stays as it
is while another one changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from parallelsim.search.cuts import cuts
from parallelsim.search.space import SearchSpace

from parallelsim.operators import IntArray
from parallelsim.plan import PLAN_FIELDS, Plan
from parallelsim.plan_batch import PlanBatch
from parallelsim.rules import obeys_rules

DEGREES = ("tp", "cp", "pp", "dp")
STAGED_GROUPS: tuple[tuple[str, ...], ...] = (
    ("vpp", "schedule"),
    ("layout", "first_stage_layers", "last_stage_layers", "chunk_layers"),
    ("recompute", "recompute_num_layers", "recompute_modules"),
)
"""Fields that change together; these depend on how layers are cut into stages."""
_TOGETHER: tuple[tuple[str, ...], ...] = (
    ("zero", "dp_replicate", "reshard_after_forward"),
    ("cp_comm_type", "cp_a2a"),
    ("overlap_grad_reduce", "overlap_param_gather"),
)
_OTHERS = {*DEGREES, "global_batch_size", "precision"}.union(*STAGED_GROUPS, *_TOGETHER)
SHARED_GROUPS: tuple[tuple[str, ...], ...] = (
    *_TOGETHER,
    *((name,) for name in PLAN_FIELDS if name not in _OTHERS),
)
"""Those that do not."""
GROUPS = (*SHARED_GROUPS, *STAGED_GROUPS)


@dataclass(frozen=True, slots=True)
class Change:
    """One change and the plans that it leads to."""

    fields: tuple[str, ...]
    """What changes; other fields only follow."""
    plans: PlanBatch
    """Plans that obey the rules, without the given one."""


def neighbours(space: SearchSpace, plan: Plan, memory_limit: float) -> list[Change]:
    """Every change of the plan that the rules allow.

    Args:
        space: whose values fields may take.
        plan: of the space's GPUs; it need not be of the space.
        memory_limit: share of the reported memory for which layers are cut (layout ``free``).
    """
    base = PlanBatch.from_plans([plan])
    own = _rows(space, plan.pp, {name: getattr(plan, name) for name in DEGREES})
    found = list(_single_changes(space, plan, base, own, memory_limit))
    kept = _left_out(own, base)
    found += _moves(space, plan, base, kept)
    allowed = []
    for change in found:
        inputs = (space.model, space.cluster, space.framework)
        other = _distance(change.plans, base, (*GROUPS, DEGREES)) > 0
        plans = change.plans.take(other & obeys_rules(*inputs, change.plans))
        if len(plans):
            allowed.append(Change(change.fields, plans))
    return allowed


def _single_changes(
    space: SearchSpace, plan: Plan, base: PlanBatch, own: PlanBatch, memory_limit: float
) -> Iterator[Change]:
    """One group of fields with each other value that the plan's degrees allow."""
    for group in SHARED_GROUPS:
        yield Change(group, _with_values(base, own, group))
    staged = _stagings(space, plan.pp)
    free = plan.layout == "free"
    groups = STAGED_GROUPS
    if free:  # a list of layers goes with its number of chunks
        groups = ((*STAGED_GROUPS[0], *STAGED_GROUPS[1]), STAGED_GROUPS[2])
    for group in groups:
        yield Change(group, _with_values(base, staged, group))
    chunks = {vpp for vpp, _ in space.free_stagings(plan.pp)}
    if not free and plan.vpp in chunks:
        cut = PlanBatch.from_plans(cuts(space, plan, memory_limit))
        yield Change(STAGED_GROUPS[1], cut)


def _moves(
    space: SearchSpace, plan: Plan, base: PlanBatch, kept: list[tuple[str, ...]]
) -> Iterator[Change]:
    """A prime factor of one degree given to another."""
    for giver in DEGREES:
        for prime in _primes(getattr(plan, giver)):
            for taker in DEGREES:
                if taker == giver:
                    continue
                degrees = {name: int(getattr(plan, name)) for name in DEGREES}
                degrees[giver] //= prime
                degrees[taker] *= prime
                plans = _nearest(space, base, degrees, kept)
                if len(plans):
                    yield Change((giver, taker), _copied(plans, base, kept))


def _nearest(
    space: SearchSpace, base: PlanBatch, degrees: dict[str, int], kept: list[tuple[str, ...]]
) -> PlanBatch:
    """Of the space's plans of these degrees that obey the rules, those that differ least; the kept
    groups do not count.
    """
    pp = degrees["pp"]
    rows = _rows(space, pp, degrees)
    shared = tuple(group for group in SHARED_GROUPS if group not in kept)
    distance = _distance(rows, base, shared)
    if not len(rows):
        return rows
    rows = rows.take(distance == distance.min())
    found = _crossed(rows, _stagings(space, pp))
    inputs = (space.model, space.cluster, space.framework)
    found = found.take(obeys_rules(*inputs, found))
    distance = _distance(found, base, (*shared, *STAGED_GROUPS))
    return found.take(distance == distance.min()) if len(found) else found


def _rows(space: SearchSpace, pp: int, degrees: dict[str, int]) -> PlanBatch:
    """Unstaged plans of the space with these degrees."""
    if pp not in space.pipeline_degrees:
        return PlanBatch.from_plans([])
    rows = space.unstaged(pp)
    chosen = np.ones(len(rows), bool)
    for name in DEGREES:
        chosen &= getattr(rows, name) == degrees[name]
    return rows.take(chosen)


def _stagings(space: SearchSpace, pp: int) -> PlanBatch:
    """The space's stagings of so many stages, with any other fields."""
    if pp not in space.pipeline_degrees:
        return PlanBatch.from_plans([])
    rows = np.zeros(len(space.unstaged(pp)), bool)
    rows[int(space.num_stagings(pp).argmax()) : int(space.num_stagings(pp).argmax()) + 1] = True
    blocks = list(space.expand(pp, rows)) if rows.any() else []
    return PlanBatch.concatenate([PlanBatch.from_plans([]), *blocks])


def _crossed(rows: PlanBatch, stagings: PlanBatch) -> PlanBatch:
    """Every row with every staging."""
    staged = {name for group in STAGED_GROUPS for name in group}
    columns = {}
    for name in PLAN_FIELDS:
        of_staging = name in staged
        values = getattr(stagings if of_staging else rows, name)
        columns[name] = (
            np.tile(values, len(rows)) if of_staging else np.repeat(values, len(stagings))
        )
    return PlanBatch.from_columns(len(rows) * len(stagings), columns)


def _with_values(base: PlanBatch, source: PlanBatch, group: tuple[str, ...]) -> PlanBatch:
    """The plan with each combination of the group's values that the source has."""
    values = np.unique(np.stack([getattr(source, name) for name in group], axis=1), axis=0)
    columns = {name: np.repeat(getattr(base, name), len(values)) for name in PLAN_FIELDS}
    columns |= {name: values[:, i] for i, name in enumerate(group)}
    found = PlanBatch.from_columns(len(values), columns)
    return PlanBatch(**{name: getattr(found, name) for name in PLAN_FIELDS}, cuts=base.cuts)


def _copied(plans: PlanBatch, base: PlanBatch, groups: list[tuple[str, ...]]) -> PlanBatch:
    """The plans with some fields as the base has them."""
    columns = {name: getattr(plans, name) for name in PLAN_FIELDS}
    for group in groups:
        columns |= {name: np.repeat(getattr(base, name), len(plans)) for name in group}
    return PlanBatch(**columns, cuts=plans.cuts)


def _distance(plans: PlanBatch, base: PlanBatch, groups: tuple[tuple[str, ...], ...]) -> IntArray:
    """Groups of fields in which each plan differs from the base, shape [P]."""
    total = np.zeros(len(plans), np.int64)
    for group in groups:
        differs = np.zeros(len(plans), bool)
        for name in group:
            if name == "chunk_layers":
                own = base.cuts[int(base.chunk_layers[0])]
                same = np.array([cut == own for cut in plans.cuts])[plans.chunk_layers]
                differs |= ~same
            else:
                differs |= getattr(plans, name) != getattr(base, name)[0]
        total += differs
    return total


def _left_out(own: PlanBatch, base: PlanBatch) -> list[tuple[str, ...]]:
    """Groups in which the base differs from the plan of its own degrees that is nearest to it; of
    several the one that agrees in the first groups: others depend on those.
    """
    if not len(own):
        return []
    differs = np.stack([_distance(own, base, (group,)) for group in SHARED_GROUPS], axis=1)
    nearest = np.lexsort([*differs.T[::-1], differs.sum(axis=1)])[0]
    return [g for g, other in zip(SHARED_GROUPS, differs[nearest], strict=True) if other]


def _primes(number: int) -> list[int]:
    """The distinct prime factors."""
    found, rest, prime = [], number, 2
    while rest > 1:
        if prime * prime > rest:
            prime = rest
        if rest % prime == 0:
            found.append(prime)
            while rest % prime == 0:
                rest //= prime
        prime += 1
    return found
