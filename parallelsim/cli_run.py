"""A plan that a file states: one that ``plan`` wrote, or a launch script of today."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from parallelsim.cli_inputs import Inputs, load_specs, with_defaults
from parallelsim.cli_options import SpecOptions
from parallelsim.errors import OutputError, SpecError
from parallelsim.plan import Plan
from parallelsim.planfile import with_sane_size

if TYPE_CHECKING:
    from parallelsim.importers.run import ImportedRun

PLAN_FILES = (".yaml", ".yml", ".json")
MAX_SCRIPT_BYTES = 1 << 20
MAX_LOG_BYTES = 1 << 26
"""Of a log, whose beginning says how it was started."""
MAX_FLAGS_SHOWN = 12


@dataclass(frozen=True)
class PlannedRun:
    """A plan with its inputs."""

    inputs: Inputs
    plan: Plan
    notes: tuple[str, ...] = ()
    """What was taken otherwise than it is written, or passed over."""
    run: ImportedRun | None = None
    """Where it was a script."""

    def check_named(self) -> None:
        """Refuse a model that a plan file could not name.

        Raises:
            SpecError: the catalogue has no such model.
        """
        if self.run and not self.run.is_known:
            raise SpecError(
                "--output: the catalogue has no model like the script's, so a plan file cannot "
                "name it; write a model file and give it with --model"
            )

    def document(self) -> dict[str, Any] | None:
        """What an import passed over, for programs; None for a plan file."""
        if self.run is None:
            return None
        names = ("ignored", "not_modelled", "unknown", "notes")
        return {name: list(getattr(self.run, name)) for name in names}


def planned(spec: SpecOptions, file: str, rank: int = 1) -> PlannedRun:
    """The plan that a file states.

    Raises:
        ParallelSimError: it cannot be read.
    """
    if file.lower().endswith(PLAN_FILES) and not _is_configuration(file):
        from parallelsim.cli_simulate import one_plan

        inputs, plan, _ = one_plan(spec, file, rank, {})
        return PlannedRun(inputs, plan)
    return imported(spec, file)


def _is_configuration(file: str) -> bool:
    """A YAML or JSON file is a configuration of some software, not a plan file."""
    from parallelsim.importers.readers import is_configuration

    try:
        with open(file, encoding="utf-8", errors="replace") as stream:
            return is_configuration(stream.read(MAX_SCRIPT_BYTES))
    except (OSError, ValueError):
        return False  # read as a plan file, which says what is wrong


def imported(spec: SpecOptions, file: str) -> PlannedRun:
    """The run that a launch script starts; its numbers of GPUs and its model give way to options.

    Raises:
        ParallelSimError: it cannot be read, or does not say how many GPUs it runs on.
    """
    from parallelsim.importers.readers import reader_of

    file, arguments = script_and_arguments(file)
    text = read_text(file)
    reader = reader_of(text)
    if len(text) > MAX_SCRIPT_BYTES and not reader.is_log:
        words = f"longer than a script ({MAX_SCRIPT_BYTES} bytes), and no log that begins with the"
        raise OutputError(f"{file[:200]!r}: {words} arguments or the configuration of its run")
    for name in ("global_batch_size", "seq_length", "precision"):
        if getattr(spec, name) is not None and name not in reader.leaves_open:
            option = "--" + name.replace("_", "-")
            raise click.UsageError(f"{option}: the file {file[:60]!r} states it; change it there")
    own = None
    if spec.model:
        own = load_specs(spec, spec.num_gpus, any_precision=True)[0]
    environment = {**os.environ, **{str(n): word for n, word in enumerate(arguments, 1)}}
    run = reader.read(text, file, environment, own)
    num_gpus = spec.num_gpus or run.num_gpus
    if not num_gpus:
        raise SpecError("does not say on how many GPUs it runs; give --gpus", file=file)
    plan = with_sane_size(run.plan(num_gpus))
    spec = replace(
        spec,
        model=spec.model or run.model.name,
        num_gpus=num_gpus,
        framework=spec.framework or run.framework,
    )
    return PlannedRun(_inputs(spec, run, plan), plan, _notes(run), run)


def _inputs(spec: SpecOptions, run: ImportedRun, plan: Plan) -> Inputs:
    from parallelsim.catalog import load_cluster, load_framework

    options = with_defaults(spec)
    assert options.cluster is not None
    assert options.framework is not None
    cluster = load_cluster(options.cluster, spec.num_gpus, options.nic_gbit_per_s)
    framework = load_framework(options.framework)
    batch, precision = plan.global_batch_size, plan.precision
    return Inputs(run.model, cluster, framework, batch, precision, options)


def script_and_arguments(file: str) -> tuple[str, list[str]]:
    """A script and what it is called with, as ``run.sh 8B --tp 4``, unless a file is called so."""
    try:
        words = shlex.split(file)
        if words[1:] and not os.path.exists(file) and os.path.isfile(words[0]):
            return words[0], words[1:]
    except ValueError:  # a quote without its end, a NUL
        pass
    return file, []


def read_text(file: str) -> str:
    """The text of a script, or of the beginning of a log.

    Raises:
        OutputError: it cannot be read, or is no text.
    """
    try:
        with open(file, "rb") as stream:
            content = stream.read(MAX_LOG_BYTES)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise OutputError(f"{file[:200]!r}: cannot read: {reason}") from None
    if b"\0" in content:
        raise OutputError(f"{file[:200]!r}: is no text (it has NUL bytes)")
    if not content.strip():
        raise OutputError(f"{file[:200]!r}: the file is empty")
    return content.decode(errors="replace")


def _notes(run: ImportedRun) -> tuple[str, ...]:
    """What the import passed over, in words that a terminal shows as they are."""
    notes = list(run.notes)
    if run.not_modelled:
        notes.append(f"not modelled, may change time or memory: {_listed(run.not_modelled)}")
    if run.unknown:
        notes.append(f"unknown flags, passed over: {_listed(run.unknown)}")
    if run.ignored:
        notes.append(f"no effect on a step: {_listed(run.ignored)}")
    return tuple("".join(c if c.isprintable() else "?" for c in note) for note in notes)


def _listed(flags: Sequence[str]) -> str:
    more = len(flags) - MAX_FLAGS_SHOWN
    words = ", ".join(flags[:MAX_FLAGS_SHOWN])
    return f"{words} and {more} more (explain --json lists them)" if more > 0 else words
