"""What every export shares: its heading, and what it refuses before anything is written."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import fields

from parallelsim.catalog import framework_names, load_framework
from parallelsim.cluster import ClusterSpec
from parallelsim.errors import ExportError
from parallelsim.framework import FrameworkSpec
from parallelsim.model import ModelSpec
from parallelsim.plan import Plan
from parallelsim.rules import explain
from parallelsim.targets import TARGETS

DEGREES = ("tp", "cp", "pp", "dp", "micro_batch_size", "global_batch_size", "schedule")
"""Fields that every target says or refuses by name."""


Inputs = tuple[ModelSpec, ClusterSpec, FrameworkSpec, Plan]
"""What an exporter writes, after which comes the target's version."""


def checked_heading(
    target: str,
    version: str,
    known: Collection[str],
    inputs: Inputs,
    of_model: Iterable[str],
    of_plan: Iterable[str],
) -> list[str]:
    """The heading of a file, once a known version of the target can run the plan as planned.

    Raises:
        ExportError: as :func:`check_version` and :func:`check_expressible`.
    """
    check_version(target, version, known)
    software = f"{TARGETS[target].title} {version}"
    check_expressible(target, software, inputs, of_model, of_plan)
    return heading(*inputs, software)


def check_version(target: str, version: str, known: Collection[str]) -> None:
    """Refuse a version that the target does not know.

    Raises:
        ExportError: it is unknown.
    """
    if version not in known:
        software, names = TARGETS[target].title, ", ".join(known)
        raise ExportError(f"unknown {software} version {version[:40]!r}; choose from {names}")


def check_expressible(
    target: str,
    software: str,
    inputs: Inputs,
    of_model: Iterable[str],
    of_plan: Iterable[str],
) -> None:
    """Refuse what the target cannot run precisely as planned.

    Args:
        target: its name.
        software: its title and version, for messages.
        inputs: what the plan was made for.
        of_model: what of the model it cannot build, read first.
        of_plan: what of a plan that breaks no rule it cannot run.

    Raises:
        ExportError: the software of the plan is another one, the model, a rule, or the plan.
    """
    model, cluster, framework, plan = inputs
    if target not in framework.launches:
        raise ExportError(
            f"a plan for {printable(framework.name)} is not launched by {TARGETS[target].title}; "
            f"plan again with --framework {' or '.join(_launching(target))}"
        )
    if reasons := list(of_model):
        raise ExportError(f"{software} cannot build {printable(model.name)}: {'; '.join(reasons)}")
    if messages := explain(model, cluster, framework, plan):
        raise ExportError(f"the plan cannot run: {'; '.join(messages)}")
    if reasons := list(of_plan):
        raise ExportError(f"{software} cannot run the plan: {'; '.join(reasons)}")


def _launching(target: str) -> list[str]:
    return [name for name in framework_names() if target in load_framework(name).launches]


def unsaid(plan: Plan, said: Collection[str]) -> Iterator[str]:
    """Fields that a target has no word for, where they are not what it does anyway."""
    for field in fields(Plan):
        value = getattr(plan, field.name)
        if field.name not in said and field.name not in DEGREES and value != field.default:
            advice = f"; --fix {field.name}=false" if value is True else ""
            yield f"it has no {field.name} (the plan has {value}{advice})"


def overlap_refusals(plan: Plan, *, gathers: bool) -> Iterator[str]:
    """Of software that always overlaps data-parallel communication, and has no switch for it."""
    many = plan.dp * plan.cp > 1
    for name, always in (
        ("overlap_grad_reduce", many),
        ("overlap_param_gather", many and gathers),
    ):
        if getattr(plan, name) != always:
            yield f"{name} is always {str(always).lower()} there"


def printable(text: str) -> str:
    """A name that is safe in a comment and on one line."""
    return re.sub(r"[^A-Za-z0-9 ._+-]", "_", text)[:80]


def heading(
    model: ModelSpec, cluster: ClusterSpec, framework: FrameworkSpec, plan: Plan, software: str
) -> list[str]:
    """Comment lines that say what a file trains, where, and what it was planned for."""
    place = f"{cluster.num_gpus} GPUs of {printable(cluster.name)}"
    names = ("tp", "cp", "pp", "vpp", "dp") + (("ep", "etp") if model.has_experts else ())
    degrees = " ".join(f"{name}={getattr(plan, name)}" for name in names)
    return [
        f"# Trains {printable(model.name)} on {place}: {degrees}.",
        f"# Written by parallelsim for {software}, planned for {printable(framework.name)}.",
    ]
