"""What a target writes of a plan is read back as the plan; what it cannot say it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from parallelsim.catalog import framework_names, load_cluster, load_framework, load_model
from parallelsim.errors import ExportError
from parallelsim.exporters import EXPORTERS
from parallelsim.framework import FrameworkSpec
from parallelsim.importers.readers import reader_of
from parallelsim.model import ModelSpec
from parallelsim.plan import Plan

GPUS, BATCH = 64, 256
WHERE = {"NODE_RANK": "0", "MASTER_ADDR": "node0", "SLURM_JOB_ID": "1"}
"""What a script finds in its environment."""
OVERLAP = {"overlap_grad_reduce": True, "overlap_param_gather": True}
SHARDED = {"zero": 1, **OVERLAP}
SEQUENCE = {"tp": 8, "sequence_parallel": True}
TITAN = {"zero": 3, "compile": True, "cross_entropy_fusion": True, **OVERLAP}
EXPERTS = {"ep": 8, "moe_dispatcher": "deepep", **SHARDED}
CASES: dict[str, tuple[str, Mapping[str, Any]]] = {
    "replicas": ("gpt3-175b", {"tp": 8, "pp": 8}),
    "interleaved": ("gpt3-175b", {"tp": 8, "pp": 4, "vpp": 12, **SHARDED}),
    "uneven-ends": (
        "gpt3-175b",
        {**SEQUENCE, "pp": 4, "layout": "first-last", "first_stage_layers": 23}
        | {"last_stage_layers": 23, **SHARDED},
    ),
    "fp16": ("gpt3-175b", {"tp": 8, "pp": 8, "precision": "fp16", "grad_dtype": "bf16", "zero": 1}),
    "offloaded": ("gpt3-175b", {**SEQUENCE, "pp": 8, "zero": 1, "optimizer_offload_pct": 100}),
    "some-layers-again": ("llama3-70b", {**SEQUENCE, "pp": 4, "recompute": "full:3", **SHARDED}),
    "all-layers-again": ("llama3-70b", {**SEQUENCE, "pp": 2, "recompute": "full", **SHARDED}),
    "attention-again": ("llama3-70b", {**SEQUENCE, "pp": 4, "recompute": "selective", **SHARDED}),
    "modules-again": (
        "llama3-70b",
        {**SEQUENCE, "pp": 4, "recompute": "selective", "recompute_modules": "layernorm+mlp"},
    ),
    "stages-at-will": (
        "llama3-70b",
        {**SEQUENCE, "pp": 4, "layout": "free", "chunk_layers": (19, 21, 21, 19), **SHARDED},
    ),
    "chunks-at-will": (
        "llama3-70b",
        {"tp": 4, "pp": 2, "vpp": 2, "layout": "free", "chunk_layers": (19, 20, 21, 20)},
    ),
    "ring": ("llama3-70b", {"tp": 4, "cp": 4, "sequence_parallel": True, **SHARDED}),
    "heads-dealt-out": ("llama3-70b", {"tp": 2, "cp": 4, "cp_comm_type": "a2a", **SHARDED}),
    "dealt-in-nodes": (
        "llama3-70b",
        {"cp": 8, "cp_comm_type": "a2a+p2p", "cp_a2a": 4, "zero": 1, "pp": 4},
    ),
    "embedding-as-layer": ("llama3.1-405b", {"tp": 8, "pp": 8, "layout": "embedding-loss"}),
    "fully-sharded": ("llama3-8b", TITAN),
    "hybrid-sharded": ("llama3-8b", {**TITAN, "dp_replicate": 8, "recompute": "full"}),
    "fully-sharded-float8": ("llama3-8b", {**TITAN, "precision": "fp8-current"}),
    "titan-stages": (
        "llama3-8b",
        {**TITAN, "tp": 2, "pp": 4, "vpp": 2, "sequence_parallel": True}
        | {"reshard_after_forward": False, "micro_batch_size": 2},
    ),
    "megatron-fsdp": ("llama3-8b", {"zero": 2, "precision": "fp8-delayed", **OVERLAP}),
    "graphs": ("llama3-70b", {**SEQUENCE, "cuda_graphs": True, "tp_comm_overlap": True, "pp": 2}),
    "nanotron": (
        "llama3-8b",
        {"tp": 2, "sequence_parallel": True, "zero": 1, "overlap_grad_reduce": True}
        | {"micro_batch_size": 2, "recompute": "full"},
    ),
    "nanotron-stages": (
        "llama3-8b",
        {"pp": 2, "layout": "first-last", "first_stage_layers": 18, "last_stage_layers": 14}
        | {"overlap_grad_reduce": True, "schedule": "gpipe"},
    ),
    "accelerate": (
        "llama3-8b",
        {
            "zero": 3,
            "compile": True,
            "grad_dtype": "bf16",
            "reshard_after_forward": False,
            **OVERLAP,
        },
    ),
    "accelerate-hybrid": (
        "llama3-70b",
        {"tp": 4, "cp": 2, "cp_comm_type": "all-gather", "dp_replicate": 2, "recompute": "full"}
        | {"zero": 3, "grad_dtype": "bf16", "micro_batch_size": 2, **OVERLAP},
    ),
    "deepspeed-stage-2": ("llama3-8b", {"zero": 2, "overlap_grad_reduce": True}),
    "deepspeed-stage-3": ("llama3-8b", {"zero": 3, "recompute": "full", **OVERLAP}),
    "deepspeed-stages": ("gpt3-175b", {"pp": 8, "zero": 1, "recompute": "full"}),
    "adapters": ("llama3-8b+lora", {"zero": 1, "overlap_grad_reduce": True}),
    "experts": ("mixtral-8x7b", {"tp": 2, "etp": 2, "sequence_parallel": True, **EXPERTS}),
    "experts-apart": ("mixtral-8x7b", {**SEQUENCE, "ep": 8, **SHARDED, "optimizer": "adam-bf16"}),
    "titan-experts": ("qwen3-30b-a3b", {"zero": 3, "ep": 8, **OVERLAP}),
    "small-experts": (
        "qwen3-30b-a3b",
        {"pp": 4, "vpp": 4, "precision": "fp8-blockwise", **EXPERTS},
    ),
    "latent-attention": (
        "deepseek-v2-lite",
        {"recompute": "selective", "recompute_modules": "mla_up_proj+moe_act", **EXPERTS}
        | {"fp8_param_gather": True, "precision": "fp8-blockwise"},
    ),
    "state-space": ("nemotron-h-8b", {"tp": 4, "sequence_parallel": True, **SHARDED}),
    "encoder-decoder": ("t5-11b", {"tp": 8, "zero": 1}),
}
LEAST = {
    "megatron": 20,
    "torchtitan": 4,
    "deepspeed": 4,
    "nanotron": 2,
    "accelerate": 2,
    "megatron-bridge": 15,
}
"""Plans that a target says at least, alone and in its batch script."""
READ_BACK = [target for target in EXPORTERS if target.removeprefix("slurm-") in LEAST]


@cache
def model_of(name: str) -> ModelSpec:
    base, _, adapters = name.partition("+")
    return load_model(base, overrides={"lora_rank": 16} if adapters else {})


def frameworks(target: str) -> list[FrameworkSpec]:
    known = map(load_framework, framework_names())
    return [f for f in known if target.removeprefix("slurm-") in f.launches]


def plan_of(name: str) -> tuple[ModelSpec, Plan]:
    model, fields = CASES[name]
    used = fields.get("tp", 1) * fields.get("cp", 1) * fields.get("pp", 1)
    data = {"dp": GPUS // used, "global_batch_size": BATCH, **fields}
    return model_of(model), Plan.from_dict(data)


@cache
def exported(target: str, name: str) -> str | None:
    """What the target writes; None where it cannot say the plan."""
    model, plan = plan_of(name)
    for framework in frameworks(target):
        try:
            return EXPORTERS[target](model, load_cluster("hgx-h100", GPUS), framework, plan)
        except ExportError:
            continue
    return None


@pytest.mark.parametrize("target", READ_BACK)
def test_what_a_target_writes_is_read_back_as_the_plan(target: str) -> None:
    said = []
    for name in CASES:
        model, plan = plan_of(name)
        text = exported(target, name)
        if text is None:
            continue
        said.append(name)
        reader = reader_of(text)
        without_model = target.endswith(("deepspeed", "accelerate"))
        run = reader.read(text, "run", WHERE, model if without_model else None)
        assert run.plan(GPUS) == plan, name
        assert run.model.layers == model.layers, name
        assert run.num_gpus in (GPUS, None), name
        assert (run.unknown, run.not_modelled) == ((), ()), name
    assert len(said) >= LEAST[target.removeprefix("slurm-")], said


def test_every_plan_but_the_unexportable_has_a_target() -> None:
    silent = {name for name in CASES if not any(exported(t, name) for t in EXPORTERS)}
    assert silent == {"encoder-decoder"}
    assert len(CASES) - len(silent) >= 30
    assert len({model for model, _ in CASES.values()}) >= 8
