"""accelerate's YAML says what the plan says in keys that accelerate reads, or is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml
from random_exports import some_plans
from tools_targets import accepted

from parallelsim.catalog import load_cluster, load_framework, load_model
from parallelsim.errors import ExportError
from parallelsim.exporters.accelerate import export_accelerate
from parallelsim.plan import Plan

LLAMA = load_model("llama3-8b").with_seq_length(8192)
H100 = load_cluster("hgx-h100", 64)
TITAN = load_framework("torchtitan")
PLAN = Plan(
    tp=2,
    cp=2,
    dp=16,
    micro_batch_size=2,
    global_batch_size=512,
    zero=3,
    grad_dtype="bf16",
    dp_replicate=2,
    reshard_after_forward=False,
    recompute="full",
    compile=True,
    cp_comm_type="all-gather",
    overlap_grad_reduce=True,
    overlap_param_gather=True,
)

KEYS = {
    "": "compute_environment distributed_type mixed_precision use_cpu debug num_processes "
    "machine_rank num_machines gpu_ids main_process_ip main_process_port rdzv_backend same_network "
    "main_training_function enable_cpu_affinity fp8_config deepspeed_config fsdp_config "
    "parallelism_config megatron_lm_config mpirun_config downcast_bf16 dynamo_config",
    "fsdp_config": "fsdp_version fsdp_offload_params fsdp_min_num_params fsdp_sharding_strategy "
    "fsdp_reshard_after_forward fsdp_auto_wrap_policy fsdp_transformer_layer_cls_to_wrap "
    "fsdp_backward_prefetch fsdp_state_dict_type fsdp_forward_prefetch fsdp_use_orig_params "
    "fsdp_cpu_ram_efficient_loading fsdp_sync_module_states fsdp_activation_checkpointing "
    "fsdp_activation_checkpointing_offload fsdp_ignored_modules",
    "parallelism_config": "parallelism_config_dp_replicate_size parallelism_config_dp_shard_size "
    "parallelism_config_tp_size parallelism_config_cp_size parallelism_config_cp_backend "
    "parallelism_config_cp_comm_strategy",
    "dynamo_config": "dynamo_backend dynamo_mode dynamo_use_fullgraph dynamo_use_dynamic "
    "dynamo_use_regional_compilation",
}
"""accelerate 1.15.0: ClusterConfig (commands/config/config_args.py), which refuses other fields,
and options of commands/launch.py, which take the inner mappings."""


def export(plan: Plan = PLAN) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load(export_accelerate(LLAMA, H100, TITAN, plan))
    return read


def test_the_yaml_says_the_plan():
    said = export()
    assert (said["distributed_type"], said["mixed_precision"]) == ("FSDP", "bf16")
    assert (said["num_machines"], said["num_processes"]) == (8, 64)
    assert said["fsdp_config"]["fsdp_reshard_after_forward"] is False
    assert said["fsdp_config"]["fsdp_activation_checkpointing"] is True
    assert list(said["parallelism_config"].values()) == [2, 8, 2, 2, "allgather"]
    assert said["dynamo_config"]["dynamo_backend"] == "INDUCTOR"
    head = export_accelerate(LLAMA, H100, TITAN, PLAN)
    assert "per_device_train_batch_size=2," in head
    assert "gradient_accumulation_steps=16 with sync_each_batch=True" in head
    plain = export(replace(PLAN, cp=1, dp=32, compile=False, recompute="none"))
    assert "dynamo_config" not in plain
    assert len(plain["parallelism_config"]) == 4


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"pp": 2, "dp": 8, "schedule": "1f1b"}, r"it has no pipeline \(pp=2\)"),
        ({"grad_dtype": "fp32"}, "reduces gradients in bf16, not fp32; plan again with --fix"),
        (
            {"sequence_parallel": True},
            "it has no sequence_parallel .*--fix sequence_parallel=false",
        ),
        ({"recompute": "selective"}, "it recomputes all layers or none, not selective"),
        ({"overlap_param_gather": False}, "overlap_param_gather is always true"),
        ({"precision": "fp8-current"}, "no precision fp8-current"),
    ],
)
def test_what_accelerate_cannot_run_is_refused(changes, reason):
    with pytest.raises(ExportError, match=reason):
        export(replace(PLAN, **changes))


def test_every_key_is_one_of_accelerates():
    fixed = {"grad_dtype": "bf16", "pp": 1, "zero": 3, "recompute": "full"}
    off = {"sequence_parallel": False, "cross_entropy_fusion": False}
    options = {"fixed": fixed | off}
    for plan, text in some_plans(
        export_accelerate, (LLAMA, H100, TITAN), 256, count=6, seed="accelerate", **options
    ):
        data = yaml.safe_load(text)
        for at, inner in {"": data, **data}.items():
            assert not isinstance(inner, dict) or set(inner) <= set(KEYS[at].split()), plan


WITHOUT_TP = replace(PLAN, tp=1, dp=32)
"""accelerate reads tensor parallelism only where transformers is installed too."""


@pytest.mark.parametrize(
    "plan", [WITHOUT_TP, replace(WITHOUT_TP, cp=1, dp=64, dp_replicate=1, compile=False)]
)
def test_accelerate_itself_reads_the_file(plan, tmp_path):
    text = export_accelerate(LLAMA, H100, TITAN, plan)
    assert accepted("accelerate", text, tmp_path, plan.dp) == {
        "processes": [8, 64, 8],
        "precision": "bf16",
        "compiles": plan.compile,
        "version": 2,
        "reshard": False,
        "checkpoints": True,
        "wraps": "TRANSFORMER_BASED_WRAP",
        "degrees": [plan.dp_replicate, plan.dp // plan.dp_replicate, plan.tp, plan.cp],
        "rotation": "allgather" if plan.cp > 1 else None,
    }
