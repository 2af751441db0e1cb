"""Which pipeline schedules a search considers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from parallelsim.errors import PlanError
from parallelsim.framework import FrameworkSpec
from parallelsim.plan import ASYNCHRONOUS, SCHEDULES, code
from parallelsim.rule_schedules import FEWEST, IS_TWO_WAY, MOST


def with_all_schedules(framework: FrameworkSpec) -> FrameworkSpec:
    """The software as if it ran every pipeline schedule."""
    return replace(framework, capabilities=replace(framework.capabilities, schedules=SCHEDULES))


def check_schedules(framework: FrameworkSpec, given: Sequence[str]) -> None:
    """Refuse schedules that cannot be ranked together, or that the framework has not.

    Raises:
        PlanError: with what to do.
    """
    if len(given) > 1 and set(given) & set(ASYNCHRONOUS):
        raise PlanError(
            f"schedule {ASYNCHRONOUS[0]} updates the weights a step late and is not ranked "
            "beside synchronous schedules; search it alone"
        )
    known = [name for name in framework.capabilities.schedules if name != "none"]
    if given and not set(given) & {"none", *known}:
        raise PlanError(
            f"{framework.name} does not run the schedule {given[0]}, it has "
            f"{', '.join(known) or 'none'}; search it all the same with --schedules all"
        )


def schedule_names(framework: FrameworkSpec, pp: int, vpp: int) -> list[str]:
    """Schedules of the framework for so many stages; of two names for the same order, one."""
    known = framework.capabilities.schedules
    return [name for name in SCHEDULES if name in known and _is_canonical(name, pp, vpp)]


def _is_canonical(schedule: str, pp: int, vpp: int) -> bool:
    if schedule == "none" or pp == 1:
        return schedule == "none" and pp == 1
    number = code("schedule", schedule)
    if schedule == "breadth-first" and vpp == 1:  # GPipe
        return False
    if (schedule == "hanayo" and vpp % 2) or (IS_TWO_WAY[number] and pp % 2):
        return False
    return bool(FEWEST[number] <= vpp <= MOST[number])
