"""A plan as the YAML that ``accelerate launch --config_file`` takes: FSDP2 of Hugging Face models.

Keys: accelerate 1.15.0 commands/config/config_args.py (ClusterConfig) and commands/launch.py.
Batch, accumulation and sequence length are arguments of the program, which the file's head states.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from parallelsim.cluster import ClusterSpec
from parallelsim.exporters.target import Inputs, checked_heading, overlap_refusals, unsaid
from parallelsim.exporters.torchtitan import ROTATIONS
from parallelsim.model import ModelSpec
from parallelsim.plan import Plan
from parallelsim.yaml_io import dump_yaml

RELEASE = "1.15.0"
PRECISIONS = {"bf16": "bf16", "fp32": "no"}
SAID = (
    *(
        "zero",
        "recompute",
        "recompute_num_layers",
        "precision",
        "grad_dtype",
        "cp_comm_type",
        "dp_replicate",
        "compile",
    ),
    *("reshard_after_forward", "overlap_grad_reduce", "overlap_param_gather"),
)


def export_accelerate(*inputs: *Inputs, version: str = RELEASE) -> str:
    """The configuration that ``accelerate launch`` runs a program with as the plan says.

    Raises:
        ExportError: the version is unknown, or accelerate cannot run the plan; says why.
    """
    model, cluster, _, plan = inputs
    of_plan = refusals(model, plan)
    head = [
        *checked_heading("accelerate", version, (RELEASE,), inputs, (), of_plan),
        "# Start it on every node: accelerate launch --config_file FILE",
        "#   --main_process_ip FIRST_NODE --main_process_port PORT PROGRAM",
        f"# The program: per_device_train_batch_size={plan.micro_batch_size},",
        f"#   gradient_accumulation_steps={plan.num_micro_batches} with sync_each_batch=True,",
        f"#   sequences of {model.seq_length} tokens.",
    ]
    return "\n".join(head) + "\n" + dump_yaml(configuration(cluster, plan))


def refusals(model: ModelSpec, plan: Plan) -> Iterator[str]:
    """What of a valid plan accelerate's FSDP2 cannot run precisely."""
    if plan.pp > 1:
        yield f"it has no pipeline (pp={plan.pp})"
    if plan.zero != 3:
        yield f"FSDP2 shards parameters (zero=3), not zero={plan.zero}"
    if plan.precision not in PRECISIONS:
        yield f"its file has no precision {plan.precision} as planned"
    elif plan.grad_dtype != plan.precision:
        yield (
            f"its mixed_precision {plan.precision} reduces gradients in {plan.precision}, "
            f"not {plan.grad_dtype}; plan again with --fix grad_dtype={plan.precision}"
        )
    if plan.recompute_label not in ("none", "full"):
        yield f"it recomputes all layers or none, not {plan.recompute_label}"
    if model.seq_length % (2 * plan.cp) and plan.cp > 1:
        yield f"sequences of {model.seq_length} tokens are no multiple of {2 * plan.cp} (2 cp)"
    if plan.dp % plan.dp_replicate:
        yield f"dp={plan.dp} is no multiple of dp_replicate={plan.dp_replicate}"
    elif plan.dp * plan.cp == plan.dp_replicate:
        yield f"it has groups of one rank alone to shard over (dp_replicate={plan.dp_replicate})"
    yield from overlap_refusals(plan, gathers=True)
    yield from unsaid(plan, SAID)


def configuration(cluster: ClusterSpec, plan: Plan) -> dict[str, Any]:
    """The file as a mapping; :func:`refusals` must have found nothing."""
    data: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP",
        "mixed_precision": PRECISIONS[plan.precision],
        "num_machines": cluster.num_nodes,
        "num_processes": plan.num_gpus,
        "rdzv_backend": "c10d" if cluster.num_nodes > 1 else "static",
        "same_network": True,
        "main_training_function": "main",
        "use_cpu": False,
        "debug": False,
        "fsdp_config": {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": plan.reshard_after_forward,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_activation_checkpointing": plan.recompute == "full",
            "fsdp_offload_params": False,
            "fsdp_cpu_ram_efficient_loading": False,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        },
        "parallelism_config": {
            "parallelism_config_dp_replicate_size": plan.dp_replicate,
            "parallelism_config_dp_shard_size": plan.dp // plan.dp_replicate,
            "parallelism_config_tp_size": plan.tp,
            "parallelism_config_cp_size": plan.cp,
        },
    }
    if plan.cp > 1:
        rotation = ROTATIONS[plan.cp_comm_type]
        data["parallelism_config"]["parallelism_config_cp_comm_strategy"] = rotation
    if plan.compile:
        data["dynamo_config"] = {
            "dynamo_backend": "INDUCTOR",
            "dynamo_use_regional_compilation": True,
        }
    return data
