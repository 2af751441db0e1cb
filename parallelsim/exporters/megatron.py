"""A plan as a bash script that launches Megatron-LM.

The flags are in ``megatron_flags``; here are the refusals, the environment and the script around
them. Megatron-LM's own ``parse_args`` and ``validate_args`` accepted scripts of every kind
(``tests/tools_megatron.py`` repeats that with a checkout).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from parallelsim.cluster import ClusterSpec
from parallelsim.exporters import megatron_flags as flags_of
from parallelsim.exporters import megatron_states as states
from parallelsim.exporters.megatron_experts import (
    balance,
    expert_plan_refusals,
    experts,
    mixture,
)
from parallelsim.exporters.megatron_flags import (
    DEFAULT_VERSION,
    VERSIONS,
    FlagGroup,
    MegatronVersion,
)
from parallelsim.exporters.megatron_hybrid import hybrid, hybrid_plan_refusals, mixer_of
from parallelsim.exporters.megatron_model import architecture, model_refusals
from parallelsim.exporters.target import Inputs, check_expressible, check_version, heading
from parallelsim.framework import FrameworkSpec
from parallelsim.model import ModelSpec
from parallelsim.plan import Plan


def export_megatron(*inputs: *Inputs, version: str = DEFAULT_VERSION) -> str:
    """A complete bash script that trains ``model`` with Megatron-LM as the plan says.

    Args:
        inputs: the model at the sequence length to train with; the cluster, which sets nodes, GPUs
            of a node, and the environment that the accelerator needs; a framework that Megatron-LM
            launches; a plan that breaks no rule.
        version: one of ``megatron_flags.VERSIONS``; flags differ between versions.

    Raises:
        ExportError: the version is unknown, or Megatron-LM cannot run the plan; says why.
    """
    model, cluster, _, plan = inputs
    check_version("megatron", version, VERSIONS)
    chosen = VERSIONS[version]
    of_model, of_plan = model_refusals(model, chosen), refusals(model, plan, chosen)
    check_expressible("megatron", "Megatron-LM", inputs, of_model, of_plan)
    present = flag_groups(*inputs, chosen)
    parts = [
        _header(inputs, chosen),
        _settings(model, cluster),
        _environment(cluster, plan),
        *(_array(group) for group in present),
        _run_arguments(model, chosen),
        _launch(cluster, _program(model, chosen), [group.array for group in present]),
    ]
    return "\n".join(parts)


def flag_groups(
    model: ModelSpec,
    cluster: ClusterSpec,
    framework: FrameworkSpec,
    plan: Plan,
    chosen: MegatronVersion = VERSIONS[DEFAULT_VERSION],
) -> list[FlagGroup]:
    """The flags that say model and plan, in the order of a script; nothing is refused."""
    groups = [
        architecture(model),
        hybrid(model, plan, chosen),
        mixture(model),
        flags_of.batch(plan),
        flags_of.parallelism(
            _without_stages(plan) if mixer_of(model) else plan, model.num_mtp_layers
        ),
        experts(model, plan, chosen),
        flags_of.memory(plan),
        states.data_parallel(plan),
        states.activation_offload(model, plan),
        flags_of.precision(plan),
        flags_of.kernels(model, cluster, framework, plan, chosen),
        balance(model),
        _hyper_parameters(plan),
    ]
    return [group for group in groups if group is not None]


def _program(model: ModelSpec, version: MegatronVersion) -> str:
    return version.hybrid_script if mixer_of(model) else "pretrain_gpt.py"


def _without_stages(plan: Plan) -> Plan:
    """The plan as a hybrid's flags say it: its pattern cuts the layers into virtual stages."""
    plan = replace(plan, vpp=1, layout="even", chunk_layers=())
    return replace(plan, first_stage_layers=0, last_stage_layers=0)


def refusals(model: ModelSpec, plan: Plan, version: MegatronVersion) -> list[str]:
    """What of a valid plan Megatron-LM cannot run, one line each."""
    return [
        *flags_of.plan_refusals(model, plan, version),
        *states.state_refusals(model, plan, version),
        *expert_plan_refusals(model, plan, version),
        *hybrid_plan_refusals(model, plan, version),
    ]


def _header(inputs: Inputs, version: MegatronVersion) -> str:
    software = f"Megatron-LM {version.name} ({version.title})"
    lines = heading(*inputs, software)
    lines[-1] += " Start it once on every node."
    return "\n".join(["#!/usr/bin/env bash", *lines, "set -euo pipefail", ""])


def _settings(model: ModelSpec, cluster: ClusterSpec) -> str:
    if cluster.num_nodes > 1:
        rank = "${NODE_RANK:-${SLURM_NODEID:?set NODE_RANK, 0 on the first node}}"
        address = "${MASTER_ADDR:?set MASTER_ADDR to the address of the first node}"
    else:
        rank, address = "${NODE_RANK:-0}", "${MASTER_ADDR:-localhost}"
    lines = [
        "# Where things are; each can be set in the environment.",
        'MEGATRON_PATH="${MEGATRON_PATH:-.}"  # the checkout of Megatron-LM',
        f'NODE_RANK="{rank}"',
        f'MASTER_ADDR="{address}"',
        'MASTER_PORT="${MASTER_PORT:-29500}"',
        'DATA_PATH="${DATA_PATH:-}"  # prefix of the tokenized data; empty: mock data',
        'TOKENIZER_MODEL="${TOKENIZER_MODEL:-}"  # Hugging Face tokenizer; empty: none is needed',
        'CHECKPOINT_PATH="${CHECKPOINT_PATH:-}"  # empty: nothing is saved',
        "",
        "# PLACEHOLDERS: edit them. None of them changes the speed or the memory of a step.",
        'TRAIN_ITERS="${TRAIN_ITERS:-50}"',
        'LR="${LR:-1.0e-4}"',
        'MIN_LR="${MIN_LR:-1.0e-5}"',
        'LR_WARMUP_ITERS="${LR_WARMUP_ITERS:-10}"',
        'SEED="${SEED:-1234}"',
    ]
    return "\n".join([*lines, ""])


def _environment(cluster: ClusterSpec, plan: Plan) -> str:
    return "\n".join(["# Environment", *states.environment(cluster, plan), ""])


def _hyper_parameters(plan: Plan) -> FlagGroup:
    flags = (
        '--train-iters "${TRAIN_ITERS}"',
        '--lr "${LR}"',
        '--min-lr "${MIN_LR}"',
        "--lr-decay-style cosine",
        '--lr-warmup-iters "${LR_WARMUP_ITERS}"',
        *states.optimizer(plan),
        "--adam-beta1 0.9",
        "--adam-beta2 0.95",
        "--weight-decay 0.1",
        "--clip-grad 1.0",
        "--init-method-std 0.02",
        '--seed "${SEED}"',
    )
    return FlagGroup("TRAINING_ARGS", "Training: PLACEHOLDERS, edit them", flags)


def _array(group: FlagGroup) -> str:
    body = "\n".join(f"  {flag}" for flag in group.flags)
    return f"# {group.comment}\n{group.array}=(\n{body}\n)\n"


def _run_arguments(model: ModelSpec, version: MegatronVersion) -> str:
    vocab_size = model.vocab_size - version.null_tokenizer_adds_token
    return f"""\
# Logging, evaluation, data, tokenizer, checkpoints
RUN_ARGS=(
  --log-interval 1
  --log-throughput
  --eval-interval 1000
  --eval-iters 0
  --manual-gc
  --manual-gc-interval 100
  --distributed-timeout-minutes 60
)
if [[ -n "${{DATA_PATH}}" ]]; then
  RUN_ARGS+=(--data-path "${{DATA_PATH}}" --split "99,1,0")
else
  RUN_ARGS+=(--mock-data)
fi
if [[ -n "${{TOKENIZER_MODEL}}" ]]; then
  RUN_ARGS+=(--tokenizer-type HuggingFaceTokenizer --tokenizer-model "${{TOKENIZER_MODEL}}")
else
  RUN_ARGS+=(--tokenizer-type NullTokenizer --vocab-size {vocab_size})
fi
if [[ -n "${{CHECKPOINT_PATH}}" ]]; then
  RUN_ARGS+=(--save "${{CHECKPOINT_PATH}}" --load "${{CHECKPOINT_PATH}}" --save-interval 1000)
fi
"""


def _launch(cluster: ClusterSpec, program: str, arrays: Sequence[str]) -> str:
    processes = min(cluster.gpus_per_node, cluster.num_gpus)
    uses = " \\\n".join(f'  "${{{name}[@]}}"' for name in (*arrays, "RUN_ARGS"))
    return f"""\
exec torchrun \\
  --nnodes {cluster.num_nodes} --nproc_per_node {processes} --node_rank "${{NODE_RANK}}" \\
  --master_addr "${{MASTER_ADDR}}" --master_port "${{MASTER_PORT}}" \\
  "${{MEGATRON_PATH}}/{program}" \\
{uses} \\
  "$@"
"""
