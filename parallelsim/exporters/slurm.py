"""A Slurm batch script around what any other exporter writes, in one file.

The script writes the inner file into the job's folder, which every node must see, and starts it on
every node with srun. Facts of the cluster give nodes and GPUs; partition, account and time limit
are options of sbatch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from parallelsim.exporters.target import Inputs, heading
from parallelsim.exporters.torchtitan_models import MAIN as TITAN_MAIN
from parallelsim.targets import TARGETS

Exporter = Callable[..., str]
END = "END_OF_PARALLELSIM_FILE"
TORCHRUN = (
    "torchrun",
    "--nnodes {nodes} --nproc-per-node {gpus}",
    '--rdzv-id "${{SLURM_JOB_ID}}" --rdzv-backend c10d',
    '--rdzv-endpoint "${{MASTER_ADDR}}:${{MASTER_PORT}}"',
)
PROGRAM = '"${{TRAIN_SCRIPT:?set TRAIN_SCRIPT to the program that trains}}"'
SYNC = '{{"gradient_accumulation_kwargs": {{"sync_each_batch": true}}}}'
"""Of transformers' TrainingArguments: gradients stay sharded between micro-batches, as planned."""


@dataclass(frozen=True)
class Launch:
    """What runs on every node."""

    command: tuple[str, ...]
    """Lines, where nodes, gpus of a node, and the plan's micro_batch and accumulation go in."""
    file: str = ""
    """Name of the inner file; empty: run with the target's own suffix."""


LAUNCHES = {
    "megatron": Launch(('bash "${{FILE}}"',)),
    "megatron-bridge": Launch((*TORCHRUN, '"${{FILE}}"')),
    "torchtitan": Launch((*TORCHRUN, '-m torchtitan.train --job.config_file "${{FILE}}"')),
    f"torchtitan {TITAN_MAIN}": Launch(
        (
            'env PYTHONPATH="${{RUN_DIR}}"',
            *TORCHRUN,
            "-m torchtitan.train --module run --config train",
        ),
        "run.py",
    ),
    "deepspeed": Launch((*TORCHRUN, PROGRAM, '--deepspeed --deepspeed_config "${{FILE}}"')),
    "accelerate": Launch(
        (
            'accelerate launch --config_file "${{FILE}}"',
            '--main_process_ip "${{MASTER_ADDR}}" --main_process_port "${{MASTER_PORT}}"',
            PROGRAM,
            "--per_device_train_batch_size {micro_batch}",
            "--gradient_accumulation_steps {accumulation}",
            f"--accelerator_config '{SYNC}'",
        )
    ),
    "nanotron": Launch(
        (
            "env CUDA_DEVICE_MAX_CONNECTIONS=1",
            *TORCHRUN,
            '"${{NANOTRON_PATH:-.}}/run_train.py" --config-file "${{FILE}}"',
        )
    ),
}
"""By target, or by target and version where that differs."""


def under_slurm(target: str, write: Exporter) -> Exporter:
    """The exporter of ``slurm-TARGET``: what ``write`` exports, with the script that submits it."""

    def export(*inputs: *Inputs, **options: str) -> str:
        model, cluster, _, plan = inputs
        inner = write(*inputs, **options)
        launch = LAUNCHES.get(f"{target} {options.get('version')}", LAUNCHES[target])
        head = heading(*inputs, f"{TARGETS[target].title} under Slurm")
        facts = {
            "nodes": cluster.num_nodes,
            "gpus": min(cluster.gpus_per_node, cluster.num_gpus),
            "micro_batch": plan.micro_batch_size,
            "accumulation": plan.num_micro_batches,
        }
        file = launch.file or f"run{TARGETS[target].suffix}"
        command = " \\\n    ".join(launch.command).format(**facts)
        return batch_script([*_directives(model.name, facts), *head], file, inner, command)

    return export


def job_name(text: str) -> str:
    """A name that sbatch, a file system and a shell take as it is."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-.")[:40] or "train"


def _directives(name: str, facts: Mapping[str, int]) -> list[str]:
    return [
        "#!/usr/bin/env bash",
        f"#SBATCH --job-name={job_name(name)}",
        f"#SBATCH --nodes={facts['nodes']}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --gpus-per-node={facts['gpus']}",
        "#SBATCH --exclusive",
        "#SBATCH --mem=0",
        "#SBATCH --output=%x-%j.log",
    ]


def batch_script(head: list[str], file: str, inner: str, command: str) -> str:
    """The script: ``inner`` is written to ``file``, then every node runs ``command``."""
    lines = [
        *head,
        "# Submit it from a folder that all nodes share: sbatch --partition=P --account=A FILE",
        "set -euo pipefail",
        "",
        'RUN_DIR="${RUN_DIR:-${SLURM_SUBMIT_DIR:-${PWD}}/run-${SLURM_JOB_ID:?submit it with '
        'sbatch}}"',
        f'FILE="${{RUN_DIR}}/{file}"',
        'mkdir -p "${RUN_DIR}"',
        f"cat > \"${{FILE}}\" <<'{END}'",
        inner.rstrip("\n"),
        END,
        "",
        "# The first node is where the processes meet.",
        'mapfile -t NODES < <(scontrol show hostnames "${SLURM_JOB_NODELIST}")',
        'export MASTER_ADDR="${NODES[0]}"',
        'export MASTER_PORT="${MASTER_PORT:-$((20000 + SLURM_JOB_ID % 20000))}"',
        "",
        "# One task a node starts the processes of its GPUs; srun gives it all cores.",
        'srun --label --kill-on-bad-exit=1 --cpus-per-task="${SLURM_CPUS_ON_NODE}" \\',
        f"    {command}",
    ]
    return "\n".join(lines) + "\n"
