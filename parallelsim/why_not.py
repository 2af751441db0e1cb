"""Why a part of a search space does not win: its rules, its memory, or the terms of its step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from parallelsim import progress
from parallelsim.compare import time_differences
from parallelsim.errors import PlanError
from parallelsim.plan import IntArray, Plan
from parallelsim.plan_batch import PlanBatch
from parallelsim.report.labels import degrees, differences
from parallelsim.report.plans import miss, rejections
from parallelsim.rules import each_rule, explain
from parallelsim.search.grid import grid_search
from parallelsim.search.result import SearchResult
from parallelsim.search.space import SearchSpace
from parallelsim.simulate import Simulation
from parallelsim.units import format_bytes, format_percent, format_seconds

Parts = Mapping[str, tuple[int | bool | str, ...]]
MOST_BLOCKS = 16
"""Blocks of plans that are asked for the one that breaks the fewest rules."""
EQUAL = 1e-9
"""Share of the step below which two plans are equally fast."""


@dataclass(frozen=True)
class WhyNot:
    """The answer for one part of a space."""

    part: str
    """As it was asked for: ``tp=4, pp=8``."""
    verdict: str
    """``first`` (it holds the winner), ``slower``, ``tight`` or ``out of memory`` (none of its
    plans is safe), ``rejected`` (none obeys the rules), or ``no plan``.
    """
    sentences: tuple[str, ...]
    """What was found, with the numbers."""
    best: Simulation | None = None
    """The part's best plan: the fastest safe, else the fastest tight one, else the one that needs
    the least memory, else the one that breaks the fewest rules. One plan."""
    result: SearchResult | None = None
    """Of the search of this part; None where it cannot be searched."""


def why_not(space: SearchSpace, part: str, winner: Simulation, memory_limit: float) -> WhyNot:
    """Why no plan of a space wins against the one plan of ``winner``.

    Args:
        space: the part that is asked for: a space with these values fixed.
        part: what to call it.
        winner: the best plan of all, replayed; empty where there is none.
        memory_limit: share of the reported memory up to which a plan is safe.
    """
    with progress.part(f"why not {part}"):
        result = grid_search(space, 1, memory_limit)
    counted = _counts(part, result)
    if not result.num_candidates and not len(result.plans):
        return WhyNot(part, "no plan", (f"{part}: the space has no such plan.",), None, result)
    if len(result.plans):
        best = result.plans
        verdict, sentence = _against(winner, best)
        return WhyNot(part, verdict, (counted, sentence), best, result)
    if len(result.faster_but_tight):
        best = result.faster_but_tight.take([0])
        over = float(best.peak_memory_bytes[0]) - memory_limit * best.memory_capacity_bytes
        _, sentence = _against(winner, best)
        tight = (
            f"None is safe: its fastest needs {_memory(best)}, {format_bytes(over)} above the "
            f"limit of {memory_limit:.0%}; P(fits) {float(best.p_fits[0]):.0%}."
        )
        return WhyNot(part, "tight", (counted, tight, sentence), best, result)
    if len(result.nearest_miss):
        best = result.nearest_miss
        over = float(best.peak_memory_bytes[0]) - best.memory_capacity_bytes
        words = f"Nearest to fitting is {miss(best)}"
        words += f": {format_bytes(over)} too much." if over > 0 else "."
        return WhyNot(part, "out of memory", (counted, words), best, result)
    nearest = fewest_broken(space)
    inputs = (space.model, space.cluster, space.framework)
    messages = explain(*inputs, nearest)
    words = f"Nearest to the rules is {degrees(nearest)}: {'; '.join(messages)}."
    return WhyNot(part, "rejected", (counted, words), None, result)


def no_such_plan(part: str, error: PlanError | str) -> WhyNot:
    """The answer for a part that no space has: what contradicts it."""
    return WhyNot(part, "no plan", (f"{part}: {error}.",))


def _counts(part: str, result: SearchResult) -> str:
    """How many plans the part has, and what became of them."""
    if not result.num_candidates:
        return f"{part}: plans whose layers the search cuts as it goes, beside its candidates."
    left = f"{result.num_feasible:,} safe, {result.num_tight:,} tight"
    rejected = rejections(result.reasons)
    words = f"{part}: {result.num_candidates:,} plans, {left}"
    return f"{words}; rejected by {rejected}." if rejected else f"{words}."


def _against(winner: Simulation, best: Simulation) -> tuple[str, str]:
    """(verdict, the part's best plan against the best of all)."""
    plan, step = best.plans.plan(0), float(best.step_time_s[0])
    name = f"Its best ({degrees(plan)}) takes {format_seconds(step)}"
    if not len(winner):
        return "first", f"{name}; no plan outside this part is safe."
    first, ahead = winner.plans.plan(0), float(winner.step_time_s[0])
    if plan == first:
        return "first", f"It holds plan 1: {degrees(plan)}, {format_seconds(step)}."
    how = differences(plan, first)
    if abs(step - ahead) <= EQUAL * ahead:
        return "first", f"{name}, as long as plan 1. It has {how}."
    saved, paid = time_differences(best, winner)
    share = format_percent(abs(step / ahead - 1))
    more = "more" if step > ahead else "less"
    words = f"{name}, {share} {more} than plan 1 ({format_seconds(ahead)})"
    words += f": it pays {paid} more" if paid else ""
    words += f"{', and' if paid else ': it'} saves {saved}" if saved else ""
    return "slower" if step > ahead else "first", f"{words}. It has {how}."


def _memory(best: Simulation) -> str:
    peak, use = float(best.peak_memory_bytes[0]), float(best.memory_use_frac[0])
    return f"{format_bytes(peak)} ({use:.0%} of {format_bytes(best.memory_capacity_bytes)})"


def fewest_broken(space: SearchSpace) -> Plan:
    """The first plan of the space that breaks the fewest rules."""
    nearest, fewest = Plan(), np.inf
    for number, block in enumerate(space.blocks()):
        if number == MOST_BLOCKS or fewest <= 1:
            break
        broken = _num_broken(space, block)
        index = int(broken.argmin())
        if broken[index] < fewest:
            nearest, fewest = block.plan(index), int(broken[index])
    return nearest


def _num_broken(space: SearchSpace, plans: PlanBatch) -> IntArray:
    count = np.zeros(len(plans), np.int64)
    for _, broken in each_rule(space.model, space.cluster, space.framework, plans):
        count += broken
    return count
