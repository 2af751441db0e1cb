"""A plan as a Python program of Megatron-Bridge (NeMo's training library on Megatron-Core).

It takes Bridge's plain GPT recipe (recipes/gpt/vanilla_gpt.py) and overrides what the model and the
plan say. The overrides are Megatron-LM's flags under Bridge's names: the same Megatron-Core runs
them. Names: Megatron-Bridge 067f987d and Megatron-LM d98e8a64 (August 2026); flags and fields pair
as in Bridge's docs/megatron-lm-to-megatron-bridge.md.
"""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterator

import numpy as np

from parallelsim.cluster import ClusterSpec
from parallelsim.exporters import megatron
from parallelsim.exporters.megatron_flags import DEFAULT_VERSION, VERSIONS
from parallelsim.exporters.megatron_model import model_refusals
from parallelsim.exporters.megatron_states import environment
from parallelsim.exporters.target import Inputs, checked_heading
from parallelsim.layers import LatentAttention
from parallelsim.model import ModelSpec
from parallelsim.operators import rank_vocab
from parallelsim.plan import Plan

MAIN = "main-2026-08"
CORE = VERSIONS[DEFAULT_VERSION]
"""The Megatron-LM whose flags are translated."""

MODEL = frozenset(
    (
        *("num-layers", "hidden-size", "ffn-hidden-size", "num-attention-heads"),
        *("num-query-groups", "kv-channels", "softmax-type", "seq-length"),
        *("position-embedding-type", "rotary-base", "rotary-percent", "no-rope-freq"),
        *("normalization", "add-qkv-bias", "qk-layernorm", "window-size"),
        *("window-attn-skip-freq", "hidden-dropout", "attention-dropout"),
        *("tensor-model-parallel-size", "context-parallel-size", "pipeline-model-parallel-size"),
        *("sequence-parallel", "cp-comm-type", "pipeline-model-parallel-layout"),
        *("account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split"),
        *("moe-router-topk", "moe-ffn-hidden-size", "moe-router-score-function"),
        *("moe-router-dtype", "moe-router-pre-softmax", "moe-router-topk-scaling-factor"),
        *("moe-router-enable-expert-bias", "moe-router-num-groups", "moe-router-group-topk"),
        *("moe-apply-probs-on-input", "moe-shared-expert-intermediate-size"),
        *("moe-shared-expert-gate", "moe-latent-size", "moe-expert-capacity-factor"),
        *("moe-pad-expert-input-to-capacity", "moe-router-bias-update-rate"),
        *("moe-router-load-balancing-type", "moe-aux-loss-coeff", "moe-grouped-gemm"),
        *("moe-permute-fusion", "moe-token-dispatcher-type", "moe-flex-dispatcher-backend"),
        *("moe-router-padding-for-quantization", "expert-model-parallel-size"),
        *("expert-tensor-parallel-size", "overlap-moe-expert-parallel-comm"),
        *("recompute-granularity", "recompute-method", "recompute-num-layers"),
        *("recompute-modules", "cross-entropy-loss-fusion", "cross-entropy-fusion-impl"),
        *("tp-comm-overlap", "cuda-graph-impl", "init-model-with-meta-device"),
        *("attention-backend", "mtp-num-layers", "cuda-graph-modules", "moe-layer-freq"),
        *("multi-latent-attention", "q-lora-rank", "kv-lora-rank", "qk-head-dim"),
        *("qk-pos-emb-head-dim", "v-head-dim", "rope-type", "glu-linear-offset"),
        *("activation-func-clamp-value",),
    )
)
"""Flags that are fields of the model under the same name."""
RENAMED: dict[str, tuple[str, ...]] = {
    "num-experts": ("model.num_moe_experts",),
    "num-virtual-stages-per-pipeline-rank": ("model.virtual_pipeline_model_parallel_size",),
    "decoder-first-pipeline-num-layers": ("model.num_layers_in_first_pipeline_stage",),
    "decoder-last-pipeline-num-layers": ("model.num_layers_in_last_pipeline_stage",),
    "te-rng-tracker": ("model.use_te_rng_tracker",),
    "micro-batch-size": ("train.micro_batch_size",),
    "global-batch-size": ("train.global_batch_size",),
    "use-distributed-optimizer": (
        "ddp.use_distributed_optimizer",
        "optimizer.use_distributed_optimizer",
    ),
    "overlap-grad-reduce": ("ddp.overlap_grad_reduce",),
    "overlap-param-gather": ("ddp.overlap_param_gather", "optimizer.overlap_param_gather"),
    "use-megatron-fsdp": ("ddp.use_megatron_fsdp", "dist.use_megatron_fsdp"),
    "data-parallel-sharding-strategy": ("ddp.data_parallel_sharding_strategy",),
    "num-distributed-optimizer-instances": ("ddp.num_distributed_optimizer_instances",),
    "ckpt-format": ("checkpoint.ckpt_format",),
    "fp8-format": ("mixed_precision.fp8",),
    "fp8-recipe": ("mixed_precision.fp8_recipe",),
    "fp8-amax-history-len": ("mixed_precision.fp8_amax_history_len",),
    "fp8-amax-compute-algo": ("mixed_precision.fp8_amax_compute_algo",),
    "fp8-param-gather": ("mixed_precision.fp8_param_gather",),
    "fp4-format": ("mixed_precision.fp4",),
    "fp4-recipe": ("mixed_precision.fp4_recipe",),
    "reuse-grad-buf-for-mxfp8-param-ag": ("mixed_precision.reuse_grad_buf_for_mxfp8_param_ag",),
    "accumulate-allreduce-grads-in-fp32": ("mixed_precision.grad_reduce_in_fp32",),
}
OFF: dict[str, str] = {
    "disable-bias-linear": "model.add_bias_linear",
    "untie-embeddings-and-output-weights": "model.share_embeddings_and_output_weights",
    "no-bias-gelu-fusion": "model.bias_activation_fusion",
    "no-bias-dropout-fusion": "model.bias_dropout_fusion",
    "no-rope-fusion": "model.apply_rope_fusion",
    "grad-reduce-in-bf16": "mixed_precision.grad_reduce_in_fp32",
}
"""Flags that turn a field off."""
ENUMERATIONS = {"attention-backend": "AttnBackend.{}"}
LISTS = frozenset({"recompute-modules", "cuda-graph-modules"})
ACTIVATIONS = {
    "swiglu": ("torch.nn.functional.silu", True),
    "quick-geglu": ("quick_gelu", True),
    "squared-relu": ("squared_relu", False),
}
"""(function, gated) by flag."""
SAID_OTHERWISE = frozenset(
    (
        *("group-query-attention", "transformer-impl", "no-create-attention-mask-in-dataloader"),
        *("bf16", "fp16", "max-position-embeddings", *ACTIVATIONS),
    )
)
"""Flags whose fact is Bridge's default, another field's, or written by the program."""
Override = tuple[str, str]
"""(field behind ``cfg.``, Python source of its value)."""


def export_bridge(*inputs: *Inputs, version: str = MAIN) -> str:
    """A program that trains ``model`` with Megatron-Bridge as the plan says.

    Raises:
        ExportError: the version is unknown, or Megatron-Bridge cannot run the plan; says why.
    """
    model, cluster, _, plan = inputs
    of_model, of_plan = model_refusals(model, CORE), refusals(*inputs)
    head = checked_heading("megatron-bridge", version, (MAIN,), inputs, of_model, of_plan)
    said = overrides(*inputs)
    body = _BODY.format(
        environment="\n".join(_environment(cluster, plan)),
        seq_length=model.seq_length,
        overrides="\n".join(f"cfg.{field} = {value}" for field, value in said),
    )
    return "\n".join([*head, "# Start it on every node: torchrun ... FILE", body])


def refusals(*inputs: *Inputs) -> Iterator[str]:
    """What of a valid plan Megatron-Core cannot run, or Bridge's GPT recipe has no field for."""
    model, _, _, plan = inputs
    yield from megatron.refusals(model, plan, CORE)
    if plan.precision == "fp32":
        yield "its recipes train in 16-bit mixed precision, not fp32"
    if plan.optimizer != "adam" or plan.optimizer_offload_pct:
        yield "the recipe's optimizer is adam on the GPU"
    if plan.cp_a2a > 1:
        yield f"it has no hierarchical context parallelism (cp_a2a={plan.cp_a2a})"
    if model.position_embedding == "learned" and model.max_seq_length != model.seq_length:
        yield f"it learns {model.seq_length} positions, those of a sequence, not the model's"
    known = MODEL | RENAMED.keys() | OFF.keys() | SAID_OTHERWISE
    names = (name for name, _ in _flags(*inputs))
    if unknown := [f"--{name}" for name in names if name not in known]:
        yield f"its GPT recipe has no field for Megatron-LM's {', '.join(unknown)}"


def overrides(*inputs: *Inputs) -> list[Override]:
    """Fields of the recipe in order; :func:`refusals` must have found nothing.

    What Megatron-LM's script leaves at defaults is said where the recipe's are others.
    """
    model, _, _, plan = inputs
    rows = int(rank_vocab(model, np.array([plan.tp]))[0]) * plan.tp
    said = {"model": "MLAModelProvider()"} if _has_latents(model) else {}
    if model.has_experts:
        # As Megatron-LM does; the recipe's own are equal layers.
        said["model.transformer_layer_spec"] = _BLOCK_SPEC
    said |= {
        "model.vocab_size": repr(rows),
        "tokenizer.vocab_size": repr(model.vocab_size - 1),
        "model.bias_activation_fusion": "True",
        "model.bias_dropout_fusion": "True",
        "model.apply_rope_fusion": repr(model.position_embedding == "rope"),
        "model.cross_entropy_loss_fusion": "False",
        "model.virtual_pipeline_model_parallel_size": repr(plan.vpp if plan.vpp > 1 else None),
        "model.overlap_p2p_comm": repr(plan.vpp > 1),
        "model.batch_p2p_comm": repr(plan.vpp == 1),
        "ddp.use_distributed_optimizer": "False",
        "optimizer.use_distributed_optimizer": "False",
        "ddp.overlap_grad_reduce": "False",
        "ddp.overlap_param_gather": "False",
        "ddp.align_param_gather": repr(plan.vpp > 1),
        "mixed_precision": "fp16_mixed()" if plan.precision == "fp16" else "bf16_mixed()",
        "mixed_precision.grad_reduce_in_fp32": repr(plan.grad_dtype == "fp32"),
    }
    for name, words in _flags(*inputs):
        if name in ACTIVATIONS:
            function, gated = ACTIVATIONS[name]
            said |= {"model.activation_func": function, "model.gated_linear_unit": repr(gated)}
        for field in _fields(name):
            said[field] = _source(name, words)
    return list(said.items())


def _flags(*inputs: *Inputs) -> Iterator[tuple[str, list[str]]]:
    """(name without dashes, its words) of what Megatron-LM's script says of model and plan."""
    for group in megatron.flag_groups(*inputs, CORE):
        if group.array == "TRAINING_ARGS":
            continue
        for flag in group.flags:
            name, *words = shlex.split(flag, comments=True) or [""]
            if name:
                yield name.removeprefix("--"), words


def _has_latents(model: ModelSpec) -> bool:
    return any(isinstance(layer.attention, LatentAttention) for layer, _ in model.layer_kinds)


def _fields(name: str) -> tuple[str, ...]:
    if name in MODEL:
        return (f"model.{name.replace('-', '_')}",)
    return (OFF[name],) if name in OFF else RENAMED.get(name, ())


def _source(name: str, words: list[str]) -> str:
    """The value as Python: True for a bare flag, numbers, lists, else text."""
    if not words:
        return repr(name not in OFF)
    if name in ENUMERATIONS:
        return ENUMERATIONS[name].format(words[0])
    if name in LISTS:
        return repr(words)
    try:
        return repr(ast.literal_eval(words[0]))
    except (ValueError, SyntaxError):
        return repr(words[0])


_BLOCK_SPEC = "partial(get_gpt_decoder_block_spec, use_transformer_engine=True)"
_BODY = """\
import os
from functools import partial

{environment}

import torch
from megatron.core.activations import squared_relu
from megatron.core.fusions.fused_bias_geglu import quick_gelu
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.transformer.enums import AttnBackend

from megatron.bridge.models.mla_provider import MLAModelProvider
from megatron.bridge.recipes.gpt.vanilla_gpt import vanilla_gpt_pretrain_config
from megatron.bridge.training.config import MockGPTDatasetConfig
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.mixed_precision import bf16_mixed, fp16_mixed
from megatron.bridge.training.pretrain import pretrain

cfg = vanilla_gpt_pretrain_config()
cfg.dataset = MockGPTDatasetConfig(  # replace it by your data
    seq_length={seq_length},
    random_seed=1234,
    reset_attention_mask=False,
    reset_position_ids=False,
    eod_mask_loss=False,
    num_dataset_builder_threads=1,
    split="9999,8,2",
    data_sharding=True,
    dataloader_type="single",
    skip_getting_attention_mask_from_dataset=True,
)

# The model and the plan
{overrides}

# PLACEHOLDERS: edit them. None of them changes the speed or the memory of a step.
cfg.train.train_iters = 50
cfg.optimizer.lr = 1.0e-4
cfg.optimizer.min_lr = 1.0e-5
cfg.scheduler.lr_warmup_iters = 10
cfg.validation.eval_iters = 0
cfg.checkpoint.save = None
cfg.logger.log_interval = 1

if __name__ == "__main__":
    pretrain(config=cfg, forward_step_func=forward_step)
"""


def _environment(cluster: ClusterSpec, plan: Plan) -> Iterator[str]:
    """Megatron-LM's environment, set before CUDA starts."""
    for line in environment(cluster, plan):
        command, _, rest = line.partition(" ")
        name, _, value = rest.partition("=")
        if command == "export":
            yield f'os.environ["{name}"] = "{value}"'
        elif command == "unset":
            yield f'os.environ.pop("{name}", None)'
        else:
            yield line
