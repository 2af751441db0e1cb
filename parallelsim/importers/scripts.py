"""A script that starts Megatron-LM, or that writes another software's configuration and starts it.

Public launch scripts, and batch scripts for Slurm, often hold the configuration as a here-document.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from parallelsim.importers.bash import commands
from parallelsim.importers.launchers import launched_gpus, slurm_variables
from parallelsim.importers.megatron import import_megatron, is_megatron_run
from parallelsim.importers.readers import is_configuration, reader_of
from parallelsim.importers.run import ImportedRun
from parallelsim.model import ModelSpec

_LAUNCHERS = re.compile(
    r"torchrun|torch\.distributed\.\w+|deepspeed|accelerate|mpirun|mpiexec|srun"
)


def import_script(
    text: str,
    file: str = "the script",
    environment: Mapping[str, str] | None = None,
    model: ModelSpec | None = None,
) -> ImportedRun:
    """The run that a script starts, or whose configuration it writes.

    Args:
        text: bash, or bare arguments of Megatron-LM.
        file: its name in messages.
        environment: variables that the script finds when it starts.
        model: what is trained, in place of what is said there.

    Raises:
        SpecError: it starts no run or several, or what it says cannot be read.
    """
    if not text.startswith("#!") and "<<" not in text:
        return import_megatron(text, file, environment, model)
    variables = slurm_variables(text) | dict(environment or {})
    script = commands(text, file, variables, is_megatron_run)
    if not script.found:
        for body in script.documents:
            if is_configuration(body) or body.startswith("#!"):
                run = reader_of(body).read(body, file, variables, model)
                launches = commands(text, file, variables, _is_launch).found
                said = [launched_gpus(launch.words, text) for launch in launches]
                return replace(run, num_gpus=run.num_gpus or next(filter(None, said), None))
    return import_megatron(text, file, environment, model)


def _is_launch(words: Sequence[str]) -> bool:
    names = {word.rsplit("/", 1)[-1] for word in words}
    return any(_LAUNCHERS.fullmatch(name) for name in names)
