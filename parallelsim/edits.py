"""From one plan to another in single edits, in the order in which they help most.

Each step takes, of the fields in which the plan still differs from the goal, the one whose change
saves most, the plan after it simulated and replayed; fields that only go together (two degrees, a
cut and its number of chunks) are one edit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import comb

import numpy as np

from parallelsim.plan import Plan
from parallelsim.replay import replayed
from parallelsim.search.neighbours import DEGREES, GROUPS, STAGED_GROUPS
from parallelsim.simulate import Simulation, simulate

LEAST_GAIN = 5e-4
"""Share of the step below which an edit is no help."""
MOST_TRIED = 3000
"""Sets of fields of one size that are tried; where there are more, all fields at once."""

Group = tuple[str, ...]


@dataclass(frozen=True)
class Edit:
    """One edit and the plan after it."""

    fields: Group
    """Fields that take the goal's values."""
    simulation: Simulation
    """The plan after this and all edits before it, replayed; one plan."""
    gain_frac: float
    """Share of the step before it that it saves."""


def greedy_edits(start: Simulation, goal: Simulation, memory_limit: float) -> list[Edit]:
    """Edits that lead from the one plan of ``start`` to that of ``goal``, or to a plan as fast.

    No edit brings a plan nearer to running out of memory than it is, or breaks a rule.
    """
    current, target = start, goal.plans.plan(0)
    remaining = _differing(start.plans.plan(0), target)
    edits: list[Edit] = []
    while remaining:
        left = 1 - float(goal.step_time_s[0]) / float(current.step_time_s[0])
        if left < LEAST_GAIN and current.zone[0] <= goal.zone[0]:
            break
        edit, taken = _next_edit(current, target, remaining, memory_limit)
        edits.append(edit)
        current = edit.simulation
        remaining = [group for group in remaining if group not in taken]
    return edits


def _differing(start: Plan, goal: Plan) -> list[Group]:
    """Fields in which the plans differ, those together that only change together."""
    groups = [group for group in GROUPS if group not in STAGED_GROUPS[:2]]
    staged = list(STAGED_GROUPS[:2])
    if "free" in (start.layout, goal.layout):
        staged = [(*STAGED_GROUPS[0], *STAGED_GROUPS[1])]
    groups += [*staged, *((name,) for name in DEGREES)]
    return [g for g in groups if any(getattr(start, n) != getattr(goal, n) for n in g)]


def _next_edit(
    current: Simulation, goal: Plan, remaining: list[Group], memory_limit: float
) -> tuple[Edit, Sequence[Group]]:
    """The smallest set of fields that helps, and of those of its size the one that helps most; all
    of them where no smaller set does.
    """
    plan, step = current.plans.plan(0), float(current.step_time_s[0])
    inputs = (current.model, current.cluster, current.framework)
    for sets in _sets_by_size(remaining):
        is_all = len(sets[-1]) == len(remaining)
        plans = [_edited(plan, goal, groups) for groups in sets]
        after = simulate(*inputs, plans, memory_limit)
        allowed = after.obeys_rules & (after.zone <= current.zone[0])
        allowed[-1] |= is_all
        index = np.flatnonzero(allowed)
        if not len(index):
            continue
        after = replayed(after.take(index))
        best = int(np.lexsort([after.step_time_s, after.zone])[0])
        gain = 1 - float(after.step_time_s[best]) / step
        if is_all or gain > LEAST_GAIN or after.zone[best] < current.zone[0]:
            taken = sets[int(index[best])]
            fields = tuple(name for group in taken for name in group)
            changed = tuple(n for n in fields if getattr(plan, n) != getattr(goal, n))
            return Edit(changed, after.take([best]), gain), taken
    raise AssertionError  # the last size is taken whatever it gives


def _sets_by_size(groups: list[Group]) -> Iterator[list[tuple[Group, ...]]]:
    """Sets of groups, the smaller ones first, and at last all; any degrees together count once."""
    degrees = [group for group in groups if group[0] in DEGREES]
    others = [group for group in groups if group[0] not in DEGREES]
    moves = [some for n in range(2, len(degrees) + 1) for some in combinations(degrees, n)]
    for size in range(1, len(others) + 1):
        if comb(len(others), size) * (1 + len(moves)) > MOST_TRIED:
            break
        alone = list(combinations(others, size))
        moved = [(*some, *m) for some in combinations(others, size - 1) for m in moves]
        yield [*alone, *moved]
    yield [tuple(groups)]


def _edited(plan: Plan, goal: Plan, groups: Sequence[Group]) -> Plan:
    values = {name: getattr(goal, name) for group in groups for name in group}
    return replace(plan, **values)
