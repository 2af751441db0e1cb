"""What every export target shares: how it is described, and what it refuses before it writes."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, fields

from parallelsim.catalog import framework_names, load_framework
from parallelsim.cluster import ClusterSpec
from parallelsim.errors import ExportError
from parallelsim.framework import FrameworkSpec
from parallelsim.model import ModelSpec
from parallelsim.plan import Plan
from parallelsim.rules import explain

DEGREES = ("tp", "cp", "pp", "dp", "micro_batch_size", "global_batch_size", "schedule")
"""Fields that every target says or refuses by name."""


@dataclass(frozen=True)
class Target:
    """Software that a plan can be written for."""

    name: str
    title: str
    export: Callable[..., str]
    """(model, cluster, framework, plan, version=...) -> the text of the file."""
    suffix: str
    """Of the file's name."""
    start: str = 'bash "${FILE}"'
    """What starts the file on every node, in bash; FILE, NODES, NODE_RANK, GPUS, MASTER_ADDR and
    MASTER_PORT are set."""

    @property
    def is_script(self) -> bool:
        """The file is run, not read by the software."""
        return self.suffix == ".sh"


def check_expressible(
    target: tuple[str, str],
    inputs: tuple[ModelSpec, ClusterSpec, FrameworkSpec, Plan],
    of_model: Iterable[str],
    of_plan: Iterable[str],
) -> None:
    """Refuse what the target cannot run precisely as planned.

    Args:
        target: its name and title.
        inputs: what the plan was made for.
        of_model: what of the model it cannot build, read first.
        of_plan: what of a plan that breaks no rule it cannot run.

    Raises:
        ExportError: the software of the plan is another one, the model, a rule, or the plan.
    """
    (name, title), (model, cluster, framework, plan) = target, inputs
    if name not in framework.launches:
        raise ExportError(
            f"a plan for {printable(framework.name)} is not launched by {title}; plan again with "
            f"--framework {' or '.join(_launching(name))}"
        )
    if reasons := list(of_model):
        raise ExportError(f"{title} cannot build {printable(model.name)}: {'; '.join(reasons)}")
    if messages := explain(model, cluster, framework, plan):
        raise ExportError(f"the plan cannot run: {'; '.join(messages)}")
    if reasons := list(of_plan):
        raise ExportError(f"{title} cannot run the plan: {'; '.join(reasons)}")


def _launching(target: str) -> list[str]:
    return [name for name in framework_names() if target in load_framework(name).launches]


def unsaid(plan: Plan, said: Collection[str]) -> Iterator[str]:
    """Fields that a target has no word for, where they are not what it does anyway."""
    for field in fields(Plan):
        value = getattr(plan, field.name)
        if field.name not in said and field.name not in DEGREES and value != field.default:
            yield f"it has no {field.name} (the plan has {value})"


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
