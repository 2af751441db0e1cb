"""DeepSpeed's JSON says what the plan says in keys that DeepSpeed documents, or is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from random_exports import some_plans
from tools_targets import accepted

from parallelsim.catalog import load_cluster, load_framework, load_model
from parallelsim.errors import ExportError
from parallelsim.exporters.deepspeed import export_deepspeed
from parallelsim.plan import Plan

LLAMA = load_model("llama3-8b").with_seq_length(8192)
H100 = load_cluster("hgx-h100", 64)
DEEPSPEED = load_framework("deepspeed")
SHARDED = Plan(
    dp=64,
    micro_batch_size=2,
    global_batch_size=512,
    zero=3,
    recompute="full",
    overlap_grad_reduce=True,
    overlap_param_gather=True,
)
STAGES = replace(SHARDED, pp=4, dp=16, schedule="1f1b", zero=1, overlap_param_gather=False)

AUTO_TP = replace(SHARDED, tp=2, dp=32, zero=2, overlap_param_gather=False)

STAGED_WITHOUT_ZERO = {
    **{"zero": 0, "pp": 2, "dp": 32, "schedule": "1f1b", "grad_dtype": "bf16"},
    **{"overlap_grad_reduce": False, "overlap_param_gather": False},
}

DOCUMENTED = {
    *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
    *("communication_data_type", "gradient_clipping", "steps_per_print", "wall_clock_breakdown"),
    *("bf16.enabled", "fp16.enabled", "data_types.grad_accum_dtype"),
    *("optimizer.type", "optimizer.params.lr", "optimizer.params.betas", "optimizer.params.eps"),
    *("optimizer.params.weight_decay", "tensor_parallel.autotp_size"),
    *("zero_optimization.stage", "zero_optimization.overlap_comm"),
    *("zero_optimization.stage3_prefetch_bucket_size",),
    *("zero_optimization.offload_optimizer.device",),
    *("zero_optimization.offload_optimizer.pin_memory",),
    *("activation_checkpointing.partition_activations",),
    *("activation_checkpointing.cpu_checkpointing", "activation_checkpointing.number_checkpoints"),
    *("pipeline.stages", "pipeline.partition", "pipeline.activation_checkpoint_interval"),
}
"""docs/_pages/config-json.md of DeepSpeed; of pipelines runtime/config.py get_pipeline_config, of
tensor parallelism runtime/tensor_parallel/config.py."""


def export(plan: Plan = SHARDED, model: Any = LLAMA) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(export_deepspeed(model, H100, DEEPSPEED, plan))
    return read


def keys(data: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in data.items():
        if isinstance(value, dict):
            yield from keys(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def test_the_json_says_the_plan():
    said = export()
    assert said["train_batch_size"] == 512
    assert said["train_micro_batch_size_per_gpu"] == 2
    assert said["gradient_accumulation_steps"] == 4
    assert said["zero_optimization"] == {
        "stage": 3,
        "overlap_comm": True,
        "stage3_prefetch_bucket_size": 50_000_000,
    }
    assert (said["bf16"], said["fp16"]) == ({"enabled": True}, {"enabled": False})
    assert said["data_types"] == {"grad_accum_dtype": "fp32"}
    assert said["activation_checkpointing"]["number_checkpoints"] == 32
    assert "pipeline" not in said
    assert "tensor_parallel" not in said
    staged = export(STAGES)
    assert staged["gradient_accumulation_steps"] == 16
    assert staged["pipeline"] == {
        "stages": 4,
        "partition": "type:transformer",
        "activation_checkpoint_interval": 1,
    }
    assert export(replace(SHARDED, tp=2, dp=32))["tensor_parallel"] == {"autotp_size": 2}
    half = export(replace(STAGES, precision="fp16", grad_dtype="bf16"))
    assert (half["fp16"], half["communication_data_type"]) == ({"enabled": True}, "fp16")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tp": 2, "pp": 2, "dp": 16, "schedule": "1f1b", "zero": 1}, "tp=2 of a pipeline"),
        ({"tp": 2, "dp": 32, "sequence_parallel": True}, "it has no sequence_parallel"),
        ({"zero": 0, "overlap_param_gather": False}, "not grad_dtype=fp32; use zero=1"),
        ({"optimizer_offload_pct": 50}, "the whole optimizer, not 50 %"),
        ({"dp": 32}, "= 32 GPUs"),
        ({"zero": 2}, "zero=2 gathers parameters after the step"),
        ({"zero": 0, "overlap_param_gather": False}, "reduces gradients after the backward"),
        (STAGED_WITHOUT_ZERO, "shards the optimizer .* use zero=1"),
    ],
)
def test_what_deepspeed_cannot_run_is_refused(changes, reason):
    with pytest.raises(ExportError, match=reason):
        export(replace(SHARDED, **changes))


def test_other_software_and_versions_are_refused():
    with pytest.raises(ExportError, match="again with --framework deepspeed"):
        export_deepspeed(LLAMA, H100, load_framework("torchtitan"), SHARDED)
    with pytest.raises(ExportError, match="choose from 0"):
        export_deepspeed(LLAMA, H100, DEEPSPEED, SHARDED, version="9")


def test_every_key_is_documented_and_no_name_is_written():
    model = replace(LLAMA, name='<script>"$(rm)\n')
    for plan, text in some_plans(
        export_deepspeed, (model, H100, DEEPSPEED), 256, count=8, seed="deepspeed"
    ):
        assert set(keys(json.loads(text))) <= DOCUMENTED, plan
        assert "script" not in text


@pytest.mark.parametrize("plan", [SHARDED, STAGES, AUTO_TP])
def test_deepspeed_itself_reads_the_file(plan, tmp_path):
    read = accepted("deepspeed", export_deepspeed(LLAMA, H100, DEEPSPEED, plan), tmp_path, plan.dp)
    assert read == {
        "batch": [512, 2, plan.num_micro_batches],
        "stage": plan.zero,
        "overlap_comm": True,
        "offloads": False,
        "bf16": True,
        "fp16": False,
        "grads": "fp32",
        "stages": plan.pp if plan.pp > 1 else "auto",
        "checkpoints": 32,
        "tp": plan.tp if plan.tp > 1 else 0,
    }
