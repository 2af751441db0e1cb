"""From the facts of a measured run to model, cluster, framework and plan.

Everything comes from the row alone: never from the name of its group. What it does not state takes
the framework's default (:mod:`parallelsim.run_defaults`), and :attr:`Case.assumed` names it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from parallelsim.catalog import (
    cluster_names,
    framework_names,
    load_cluster,
    load_framework,
)
from parallelsim.cluster import ClusterSpec
from parallelsim.errors import PlanError, SpecError
from parallelsim.framework import FrameworkSpec
from parallelsim.measured_clusters import CLUSTER_FACTS, cluster_of
from parallelsim.measured_models import fine_tuned, measured_model
from parallelsim.measured_plans import OF_FORKS, measured_plan, stated_schedule
from parallelsim.measured_text import (
    KERNEL_COLUMNS,
    follows_recipe,
    framework_variant,
    stated_release,
)
from parallelsim.measurements import Facts, RowError, Run, has_open_unit
from parallelsim.model import ModelSpec
from parallelsim.plan import SCHEDULES, Plan
from parallelsim.run_defaults import run_defaults

FRAMEWORK_FACTS = ("flash_attention", "notes", "schedule", *KERNEL_COLUMNS)

_T = TypeVar("_T")


@dataclass(frozen=True)
class Case:
    """A run that can be predicted."""

    run: Run
    model: ModelSpec
    cluster: ClusterSpec
    framework: FrameworkSpec
    plan: Plan
    assumed: tuple[str, ...]
    """Settings that the row does not state, as ``name=value``."""
    recomputes: tuple[str, ...]
    """Heavier kinds of recompute to fall back on, where the row states none and the plan would not
    fit."""
    recompute_is_free: bool = False
    """The row states no recompute and its software has several: the lightest that is predicted to
    fit stands in, so that whether it fits proves nothing."""


class CaseBuilder:
    """Builds cases; equal models, clusters and frameworks are one object, so that runs batch."""

    def __init__(self, framework: str | None = None) -> None:
        """With ``framework`` (name or path) every run is predicted for that software."""
        self._given = load_framework(framework) if framework else None
        self._cache: dict[Hashable, Any] = {}

    def build(self, run: Run) -> Case:
        """The case of one run.

        Raises:
            RowError: it cannot be predicted; the message is the reason.
        """
        facts = run.facts
        _refuse_unsupported(facts)
        base = self._framework(run)
        release = stated_release(facts)
        defaults = run_defaults(base.name, follows_recipe=follows_recipe(facts), release=release)
        framework: FrameworkSpec = self._once(
            ("framework", base.name, *(facts.text(k) for k in FRAMEWORK_FACTS)),
            lambda: self._interned("framework", _as_forked(framework_variant(base, facts), facts)),
        )
        assumed: list[str] = []
        if run.peak_memory_bytes is not None and has_open_unit(facts):
            assumed.append("memory in GiB")
        try:
            trained = fine_tuned(measured_model(facts, defaults, assumed), facts, assumed)
            model = self._interned("model", trained)
            key = ("cluster", *(facts.text(name) for name in CLUSTER_FACTS))
            cluster: ClusterSpec = self._once(key, lambda: cluster_of(facts, self._clusters()))
            plan, recomputes = measured_plan(facts, model, cluster, framework, defaults, assumed)
        except (SpecError, PlanError) as error:
            raise RowError(str(error)) from None
        free = bool(recomputes)
        return Case(run, model, cluster, framework, plan, tuple(assumed), recomputes, free)

    def _framework(self, run: Run) -> FrameworkSpec:
        if self._given is not None:
            return self._given
        name = run.framework
        if not name:
            raise RowError("the row names no framework; give one with --framework")
        if name not in framework_names():
            raise RowError(f"no framework file for {name[:40]!r}")
        loaded: FrameworkSpec = self._once(("base", name), lambda: load_framework(name))
        return loaded

    def _clusters(self) -> tuple[ClusterSpec, ...]:
        """The whole catalogue, read once."""
        return self._once("clusters", lambda: tuple(load_cluster(name) for name in cluster_names()))

    def _once(self, key: Hashable, make: Callable[[], _T]) -> _T:
        if key not in self._cache:
            self._cache[key] = make()
        value: _T = self._cache[key]
        return value

    def _interned(self, kind: str, value: _T) -> _T:
        """The first object equal to ``value``."""
        return self._once((kind, repr(value)), lambda: value)


def _refuse_unsupported(facts: Facts) -> None:
    """Refuse what no formula covers yet.

    Raises:
        RowError: with the reason.
    """
    task = facts.word("task")
    if task not in ("", "pretrain", "sft", "lora"):
        raise RowError(f"not supported yet: task {task[:20]}")
    zero = facts.number("zero_stage")
    if zero is not None and zero not in (0, 1, 2, 3):
        raise RowError(f"zero_stage={facts.text('zero_stage')[:40]}: expected 0, 1, 2 or 3")
    schedule = stated_schedule(facts)
    if schedule and schedule not in SCHEDULES:
        raise RowError(f"not supported yet: schedule {schedule[:30]}")
    if facts.text("sequence_parallel").lower().startswith("deepspeed-ulysses"):
        raise RowError("not supported yet: sequence parallelism by all-to-all")


def _as_forked(framework: FrameworkSpec, facts: Facts) -> FrameworkSpec:
    """The framework with the schedule that the row's own version of it added."""
    stated = stated_schedule(facts)
    if stated not in OF_FORKS:
        return framework
    can = framework.capabilities
    schedules = tuple(dict.fromkeys((*can.schedules, stated)))
    return replace(framework, capabilities=replace(can, schedules=schedules))
