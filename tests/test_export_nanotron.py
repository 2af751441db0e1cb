"""nanotron's YAML says what the plan says in fields that nanotron has, or is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import yaml
from random_exports import some_plans
from tools_targets import accepted

from parallelsim.catalog import load_cluster, load_framework, load_model
from parallelsim.errors import ExportError
from parallelsim.exporters.nanotron import export_nanotron
from parallelsim.plan import Plan

LLAMA = load_model("llama3-8b").with_seq_length(8192)
H100 = load_cluster("hgx-h100", 64)
NANOTRON = load_framework("nanotron")
PLAN = Plan(
    tp=2,
    dp=32,
    micro_batch_size=2,
    global_batch_size=512,
    sequence_parallel=True,
    zero=1,
    overlap_grad_reduce=True,
)
STAGES = replace(
    PLAN,
    pp=2,
    dp=16,
    schedule="1f1b",
    layout="first-last",
    first_stage_layers=18,
    last_stage_layers=14,
    sequence_parallel=False,
    recompute="full",
)

FIELDS = {
    "": "general parallelism model tokenizer checkpoints logging metrics_logging tokens optimizer "
    "data_stages profiler lighteval s3_upload",
    "general": "project run seed step consumed_train_samples benchmark_csv_path "
    "ignore_sanity_checks",
    "checkpoints": "checkpoints_path checkpoint_interval save_initial_state save_final_state "
    "resume_checkpoint_path load_lr_scheduler load_optimizer "
    "checkpoints_path_is_shared_file_system",
    "parallelism": "dp pp tp pp_engine tp_mode tp_linear_async_communication recompute_layer "
    "tp_recompute_allgather expert_parallel_size context_parallel_size",
    "tokens": "sequence_length train_steps micro_batch_size batch_accumulation_per_replica "
    "val_check_interval limit_val_batches limit_test_batches",
    "model": "model_config init_method dtype make_vocab_size_divisible_by ddp_bucket_cap_mb",
    "model.init_method": "std scaling_method",
    "model.model_config": "bos_token_id eos_token_id hidden_act hidden_size initializer_range "
    "intermediate_size is_llama_config max_position_embeddings num_attention_heads "
    "num_hidden_layers attention_bias num_key_value_heads pad_token_id pretraining_tp "
    "rms_norm_eps rope_scaling rope_theta rope_interleaved tie_word_embeddings use_cache "
    "vocab_size _attn_implementation z_loss_enabled z_loss_coefficient",
    "optimizer": "optimizer_factory zero_stage weight_decay clip_grad accumulate_grad_in_fp32 "
    "learning_rate_scheduler weight_decay_exclude_named_params",
    "optimizer.optimizer_factory": "adam_eps adam_beta1 adam_beta2 torch_adam_is_fused name",
    "optimizer.learning_rate_scheduler": "learning_rate lr_warmup_steps lr_warmup_style "
    "lr_decay_style lr_decay_steps lr_decay_starting_step min_decay_lr",
    "data_stages": "name start_training_step data sequence_length",
    "data_stages.data": "dataset seed num_loading_workers",
    "logging": "log_level log_level_replica iteration_step_info_interval",
}
"""Fields of nanotron's dataclasses, which it reads strictly (dacite): src/nanotron/config/ of
huggingface/nanotron, 2411b022 (April 2026), files config, parallelism_config and models_config."""


def export(plan: Plan = PLAN, model: Any = LLAMA) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load(export_nanotron(model, H100, NANOTRON, plan))
    return read


def fields(data: Any, at: str = "") -> Iterator[tuple[str, str]]:
    for item in data if isinstance(data, list) else [data]:
        for name, value in item.items():
            yield at, name
            if isinstance(value, dict | list):
                yield from fields(value, f"{at}.{name}".lstrip("."))


def test_the_yaml_says_the_plan():
    said = export()
    assert said["parallelism"] == {
        "dp": 32,
        "pp": 1,
        "tp": 2,
        "context_parallel_size": 1,
        "expert_parallel_size": 1,
        "pp_engine": "1f1b",
        "tp_mode": "REDUCE_SCATTER",
        "tp_linear_async_communication": True,
        "tp_recompute_allgather": True,
        "recompute_layer": False,
    }
    assert said["tokens"] == {
        "sequence_length": 8192,
        "micro_batch_size": 2,
        "batch_accumulation_per_replica": 8,
        "train_steps": 50,
    }
    assert said["optimizer"]["zero_stage"] == 1
    assert said["optimizer"]["accumulate_grad_in_fp32"] is True
    assert isinstance(said["optimizer"]["optimizer_factory"]["adam_eps"], float)
    assert said["model"]["model_config"]["num_key_value_heads"] == 8
    staged = export(STAGES)["parallelism"]
    assert (staged["pp"], staged["tp_mode"], staged["recompute_layer"]) == (2, "ALL_REDUCE", True)
    assert export(replace(STAGES, schedule="gpipe"))["parallelism"]["pp_engine"] == "afab"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"first_stage_layers": 17, "last_stage_layers": 15}, r"into 18 \+ 14, not 17 \+ 15; plan"),
        ({"layout": "even", "first_stage_layers": 0, "last_stage_layers": 0}, r"not 16 \+ 16"),
        ({"overlap_grad_reduce": False}, "overlap_grad_reduce is always true"),
        ({"precision": "fp16"}, "are for bf16, not fp16"),
        ({"zero": 3}, "zero=3"),
    ],
)
def test_what_nanotron_cannot_run_is_refused(changes, reason):
    with pytest.raises(ExportError, match=reason):
        export(replace(STAGES, **changes))


@pytest.mark.parametrize("name", ["gpt3-6.7b", "qwen3-32b", "mixtral-8x7b"])
def test_models_other_than_llama_are_refused(name):
    with pytest.raises(ExportError, match="it builds Llama's decoders"):
        export(model=load_model(name).with_seq_length(2048))


def test_every_field_is_one_of_nanotrons():
    for plan, text in some_plans(
        export_nanotron, (LLAMA, H100, NANOTRON), 256, count=6, seed="nanotron"
    ):
        for at, name in fields(yaml.safe_load(text)):
            assert name in FIELDS[at].split(), (at, name, plan)


@pytest.mark.parametrize("plan", [PLAN, STAGES])
def test_nanotron_itself_reads_the_file(plan, tmp_path):
    read = accepted("nanotron", export_nanotron(LLAMA, H100, NANOTRON, plan), tmp_path, plan.dp)
    assert read == {
        "degrees": [plan.dp, plan.tp, plan.pp],
        "mode": "REDUCE_SCATTER" if plan.sequence_parallel else "ALL_REDUCE",
        "engine": "OneForwardOneBackwardPipelineEngine",
        "again": plan.recompute == "full",
        "batch": [2, 512],
        "zero": 1,
        "dtype": "torch.bfloat16",
        "model": ["LlamaConfig", 32, 8],
        "optimizer": "AdamWOptimizerArgs",
    }
