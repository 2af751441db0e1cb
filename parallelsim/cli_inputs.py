"""From options to specifications: loads what is named, fills in the defaults and says which."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from parallelsim.cli_options import SearchOptions, SpecOptions
from parallelsim.cli_values import Value
from parallelsim.cluster import ClusterSpec
from parallelsim.errors import PlanError, SpecError
from parallelsim.framework import FrameworkSpec
from parallelsim.model import ModelSpec

if TYPE_CHECKING:
    from parallelsim.fit import Task
    from parallelsim.planfile import PlanDocument, RankedPlan
    from parallelsim.search.space import SearchSpace
    from parallelsim.simulate import Simulation


@dataclass(frozen=True)
class Inputs:
    """What is trained where, with every default filled in."""

    model: ModelSpec
    cluster: ClusterSpec
    framework: FrameworkSpec
    global_batch_size: int
    precision: str
    options: SpecOptions
    """As given, names and paths with their defaults."""
    notes: tuple[str, ...] = ()
    """What was filled in by a rule rather than given."""

    @property
    def seq_length(self) -> int:
        """Tokens of a sequence."""
        return self.model.seq_length

    def head(self) -> dict[str, Any]:
        """The inputs as JSON documents state them."""
        return {
            "model": self.model.name,
            "overrides": dict(self.options.overrides),
            "cluster": self.cluster.name,
            "framework": self.framework.name,
            "num_gpus": self.cluster.num_gpus,
            "global_batch_size": self.global_batch_size,
            "seq_length": self.seq_length,
            "precision": self.precision,
        }

    def header(self, memory_limit: float) -> str:
        """The inputs in a few lines for people, as wide as the terminal."""
        from parallelsim.report.tables import paragraph

        return "\n".join(paragraph(line) for line in self.header_lines(memory_limit))

    def header_lines(self, memory_limit: float) -> list[str]:
        """The inputs in a few lines for people."""
        from parallelsim.report.plans import header

        return header(
            self.model,
            self.cluster,
            self.framework,
            global_batch_size=self.global_batch_size,
            precision=self.precision,
            memory_limit=memory_limit,
            overrides=self.options.overrides,
        )

    def document(self, *ranked: Simulation) -> PlanDocument:
        """A document of all plans, ranked through: safe ones first, then tight ones."""
        from parallelsim import planfile
        from parallelsim.report.documents import PLAN_FILE_RESULTS

        entries: list[RankedPlan] = []
        for simulation in ranked:
            for index, plan in enumerate(simulation.plans):
                row = simulation.row(index)
                results = {name: row[name] for name in PLAN_FILE_RESULTS}
                entries.append(planfile.RankedPlan(len(entries) + 1, plan, row["zone"], results))
        options = self.options
        return planfile.PlanDocument(
            plans=tuple(entries),
            model=options.model,
            overrides=options.overrides,
            cluster=options.cluster,
            num_gpus=self.cluster.num_gpus,
            nic_gbit_per_s=options.nic_gbit_per_s,
            framework=options.framework,
            global_batch_size=self.global_batch_size,
            seq_length=self.seq_length,
            precision=self.precision,
        )


def load_inputs(options: SpecOptions, num_gpus: int, *, any_precision: bool = False) -> Inputs:
    """Load the specifications and settle batch, sequence and precision.

    With ``any_precision`` one that cannot run is let through: the rules answer it.

    Raises:
        ParallelSimError: whatever is wrong with them.
    """
    from parallelsim.default_batch import default_batch_note, default_global_batch_size

    model, cluster, framework, precision = load_specs(
        options, num_gpus, any_precision=any_precision
    )
    notes = []
    batch = options.global_batch_size
    if batch is None:
        batch = default_global_batch_size(model, num_gpus)
        notes.append(f"{default_batch_note(model, num_gpus, batch)} (--global-batch-size)")
    if options.seq_length is None:
        notes.append(f"sequences of {model.seq_length} tokens, the model's own (--seq-length)")
    if any(layer.experts and not layer.experts.load_cv for layer, _ in model.layer_kinds):
        notes.append("experts are taken as evenly loaded (load_cv in the model's file is a spread)")
    notes += _calibration_notes(options, cluster, framework)
    return Inputs(model, cluster, framework, batch, precision, with_defaults(options), tuple(notes))


def _calibration_notes(
    options: SpecOptions, cluster: ClusterSpec, framework: FrameworkSpec
) -> list[str]:
    """What a calibrated cluster brings beside its efficiencies."""
    from parallelsim.catalog import load_framework, names_overlay

    if options.cluster is None or not names_overlay(options.cluster):
        return []
    notes, name = [], shown_path(options.cluster)
    fitted = load_framework(options.cluster)
    if options.framework is None:
        notes.append(f"{framework.name}, which the runs of {name} used (--framework)")
    elif framework.name != fitted.name:
        other = f"its factors may not hold for {framework.name}"
        notes.append(f"{name} is from runs of {fitted.name}; {other}")
    elif framework != fitted:
        notes.append(f"without the software's factors of {name} (--framework {name})")
    if cluster.unexplained:
        notes.append(f"80 % intervals hold what {name} leaves: {cluster.unexplained.words}")
    return notes


def with_defaults(options: SpecOptions) -> SpecOptions:
    """The options with the default cluster and framework named."""
    from parallelsim.setting import DEFAULT_CLUSTER, default_framework

    return replace(
        options,
        cluster=options.cluster or DEFAULT_CLUSTER,
        framework=options.framework or str(default_framework(options.cluster)),
    )


def load_specs(
    options: SpecOptions, num_gpus: int | None, *, any_precision: bool = False
) -> tuple[ModelSpec, ClusterSpec, FrameworkSpec, str]:
    """Model at its sequence length, cluster, framework and precision."""
    from parallelsim.setting import load_setting

    if not options.model:
        raise click.UsageError("Missing option '--model'; 'parallelsim models' lists the names.")
    return load_setting(
        options.model,
        num_gpus,
        cluster=options.cluster,
        framework=options.framework,
        nic_gbit_per_s=options.nic_gbit_per_s,
        seq_length=options.seq_length,
        precision=options.precision,
        overrides=options.overrides,
        any_precision=any_precision,
    )


def search_values(
    search: SearchOptions, num_gpus: int, global_batch_size: int, num_layers: int
) -> tuple[dict[str, Value], dict[str, tuple[Value, ...]]]:
    """``fixed`` and ``limits`` for a search space: ranges cut to what the problem can use.

    Raises:
        PlanError: fixed degrees that do not divide the GPUs or the batch.
    """
    from parallelsim.setting import check_fixed

    try:
        check_fixed(search.fixed, num_gpus, global_batch_size)
    except PlanError as error:
        raise PlanError(f"--{error}") from None
    largest = max(num_gpus, global_batch_size, num_layers)
    limits: dict[str, tuple[Value, ...]] = {}
    for name, values in search.limits.items():
        if isinstance(values, range):
            cut = range(values.start, min(values.stop, largest + 1))
            if name == "micro_batch_size":
                values = tuple(n for n in cut if global_batch_size % n == 0)
            else:
                values = tuple(cut)
            if not values:
                raise PlanError(f"--limit {name}: no value from {cut.start} on is possible here")
        limits[name] = values
    return dict(search.fixed), limits


def search_space(inputs: Inputs, search: SearchOptions) -> SearchSpace:
    """The plans that the options leave."""
    from parallelsim.search.space import SearchSpace

    fixed, limits = search_values(
        search, inputs.cluster.num_gpus, inputs.global_batch_size, inputs.model.num_layers
    )
    return SearchSpace(
        inputs.model,
        inputs.cluster,
        inputs.framework,
        inputs.global_batch_size,
        precision=inputs.precision,
        fixed=fixed,
        limits=limits,
        all_schedules=search.all_schedules,
    )


def merged_with(spec: SpecOptions, document: PlanDocument) -> SpecOptions:
    """The options, and where one is not given what the file states."""
    return SpecOptions(
        model=spec.model or document.model,
        num_gpus=document.num_gpus if spec.num_gpus is None else spec.num_gpus,
        cluster=spec.cluster or document.cluster,
        nic_gbit_per_s=spec.nic_gbit_per_s or document.nic_gbit_per_s,
        framework=spec.framework or document.framework,
        global_batch_size=spec.global_batch_size,
        seq_length=spec.seq_length or document.seq_length,
        precision=spec.precision,
        overrides={**document.overrides, **spec.overrides},
    )


def document_inputs(document: PlanDocument, file: str) -> Inputs:
    """The inputs that a document names for all its plans.

    Raises:
        ParallelSimError: it names none, or one cannot be loaded.
    """
    if document.model is None:
        raise SpecError(
            "a bare plan; this command needs a file that 'parallelsim plan --output' wrote",
            file=file,
        )
    empty = SpecOptions(*(None,) * 8, overrides={})
    options = with_defaults(
        replace(
            merged_with(empty, document),
            global_batch_size=document.global_batch_size,
            precision=document.precision,
        )
    )
    with size_stated_in(file, options.num_gpus is not None):
        model, cluster, framework, precision = load_specs(
            options, document.num_gpus, any_precision=True
        )
    return Inputs(model, cluster, framework, document.global_batch_size or 1, precision, options)


def fit_task(options: SpecOptions, search: SearchOptions) -> Task:
    """What ``fit`` varies, from the same options; fixed values are not checked against a size."""
    from parallelsim.fit import MAX_GPUS, Task

    model, cluster, framework, precision = load_specs(options, None)
    largest = max(MAX_GPUS, model.num_layers)
    limits = {
        name: tuple(range(v.start, min(v.stop, largest + 1))) if isinstance(v, range) else v
        for name, v in search.limits.items()
    }
    return Task(
        model,
        cluster,
        framework,
        options.global_batch_size,
        precision,
        dict(search.fixed),
        limits,
        search.memory_limit,
        all_schedules=search.all_schedules,
    )


@contextmanager
def size_stated_in(file: str | None, stated: bool) -> Iterator[None]:
    """Errors about the number of GPUs name the file's key where the file states it."""
    try:
        yield
    except SpecError as error:
        if not stated or error.key != "--gpus":
            raise
        message = str(error).removeprefix("--gpus: ")
        raise SpecError(message, file=file, key="num_gpus") from None


def shown_path(path: str | os.PathLike[str]) -> str:
    """A path as it can be typed again in a shell."""
    import shlex

    return shlex.quote(os.fspath(path))
