"""How many processes a launcher starts, one on each GPU: torchrun, DeepSpeed, Slurm, MPI."""

from __future__ import annotations

import re
from collections.abc import Sequence

_NODES = ("--nnodes", "--nodes", "-N", "--num-nodes", "--num-machines")
_PROCESSES = ("--nproc-per-node", "--num-gpus", "--ntasks-per-node", "--gpus-per-node", "--gres")
"""Of a node: the first one given counts."""
_ALL_PROCESSES = ("--ntasks", "-n", "-np", "--np", "--num-processes")
_STARTS_ON_EVERY_GPU = ("mpirun", "mpiexec", "srun", "accelerate")
_ONE_NODE = ("torchrun", "torch.distributed", "deepspeed")
"""Launchers that start on one node where they are not told otherwise."""


def launched_gpus(launcher: Sequence[str], text: str) -> int | None:
    """Processes of the words before the program, and of ``#SBATCH`` lines; None: not said."""
    directives = _directives(text)
    nodes = _number(_NODES, launcher) or _number(_NODES, directives)
    processes = _number(_PROCESSES, launcher) or _number(_PROCESSES, directives)
    names = {word.rsplit("/", 1)[-1] for word in launcher}
    starts_itself = any(name.startswith(_ONE_NODE) for name in names)
    if not starts_itself and names & set(_STARTS_ON_EVERY_GPU):
        total = _number(_ALL_PROCESSES, launcher) or _number(_ALL_PROCESSES, directives)
        if total and total.isdigit():
            return int(total)
    if not nodes and starts_itself and not _number(("--hostfile",), launcher):
        nodes = "1"
    both = nodes.isdigit() and processes.isdigit()  # not auto, gpu, a range, or what is not set
    return int(nodes) * int(processes) if both else None


def slurm_variables(text: str) -> dict[str, str]:
    """What Slurm sets in the environment of a job with these ``#SBATCH`` lines."""
    directives = _directives(text)
    nodes = _number(_NODES, directives)
    tasks = _number(("--ntasks-per-node",), directives)
    gpus = _number(("--gpus-per-node", "--gres"), directives)
    total = _number(("--ntasks", "-n"), directives)
    if nodes.isdigit() and tasks.isdigit():
        total = str(int(nodes) * int(tasks))
    values = {
        "SLURM_NNODES": nodes,
        "SLURM_JOB_NUM_NODES": nodes,
        "SLURM_NTASKS_PER_NODE": tasks,
        "SLURM_NTASKS": total,
        "SLURM_NPROCS": total,
        "SLURM_GPUS_PER_NODE": gpus,
        "SLURM_GPUS_ON_NODE": gpus,
    }
    return {name: value for name, value in values.items() if value.isdigit()}


def _directives(text: str) -> list[str]:
    lines = re.findall(r"^#SBATCH\s+([^#\n]*)", text, re.M)
    return [word for line in lines for word in line.split()]


def _number(names: Sequence[str], words: Sequence[str]) -> str:
    """The value of the first of some options that is given, ``--name value`` or ``--name=value``;
    of ``gpu:h100:8`` the number.
    """
    values: dict[str, str] = {}
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        following = words[index + 1] if index + 1 < len(words) else ""
        values.setdefault(name.replace("_", "-"), value if equals else following)
    given = next((values[name] for name in names if name in values), "")
    return given.rpartition(":")[2]
