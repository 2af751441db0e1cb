"""A model and a plan in Megatron-LM's flags, and what Megatron-LM cannot express.

Each group of flags is a :class:`FlagGroup`; nothing here comes from a user's text, only numbers and
fixed words, so that the script that holds the flags needs no quoting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from parallelsim.cluster import ClusterSpec
from parallelsim.framework import FrameworkSpec
from parallelsim.model import Layer, ModelSpec
from parallelsim.plan import Plan
from parallelsim.search.partition_layouts import megatron_layout


@dataclass(frozen=True, slots=True)
class MegatronVersion:
    """How one version of Megatron-LM differs in the flags that are exported."""

    name: str
    title: str
    null_tokenizer_adds_token: bool
    """NullTokenizer has one token more than ``--vocab-size`` says (for end of document)."""
    cuda_graph_scope: bool
    """Graphs of whole layers need ``--cuda-graph-scope full``; later versions default to them."""
    cuda_graphs_with_recompute: bool
    """CUDA graphs go with selective recompute."""
    stage_layout: bool = True
    """Has ``--pipeline-model-parallel-layout``: since core_v0.13.0."""


VERSIONS = {
    version.name: version
    for version in (
        MegatronVersion("core_v0.15.0", "tag core_v0.15.0, December 2025", True, True, False),
        MegatronVersion("main-2026-08", "branch main at d98e8a64, August 2026", False, False, True),
    )
}
"""Versions that scripts can be written for, oldest first."""


@dataclass(frozen=True, slots=True)
class FlagGroup:
    """Flags that belong together, one string for each line of the script."""

    array: str
    """Name of the bash array."""
    comment: str
    flags: tuple[str, ...]


PRECISION_FLAGS = {
    "fp32": (),
    "bf16": ("--bf16",),
    "fp16": ("--fp16",),
    "fp8-delayed": (
        "--bf16",
        "--fp8-format hybrid",
        "--fp8-recipe delayed",
        "--fp8-amax-history-len 1024",
        "--fp8-amax-compute-algo max",
    ),
    "fp8-current": ("--bf16", "--fp8-format hybrid", "--fp8-recipe tensorwise"),
    "fp8-blockwise": ("--bf16", "--fp8-format e4m3", "--fp8-recipe blockwise"),
    "mxfp8": ("--bf16", "--fp8-format e4m3", "--fp8-recipe mxfp8"),
    "nvfp4": ("--bf16", "--fp4-format e2m1", "--fp4-recipe nvfp4"),
}
LAYOUT_FLAGS = {
    "even": (),
    "embedding": ("--account-for-embedding-in-pipeline-split",),
    "loss": ("--account-for-loss-in-pipeline-split",),
    "embedding-loss": (
        "--account-for-embedding-in-pipeline-split",
        "--account-for-loss-in-pipeline-split",
    ),
}
POSITION_FLAGS = {"rope": "rope", "learned": "learned_absolute", "none": "none"}
ACTIVATION_FLAGS = {
    (True, "silu"): ("--swiglu",),
    (False, "gelu"): (),
    (False, "squared-relu"): ("--squared-relu", "--no-bias-gelu-fusion"),
}
"""By (gated, activation). Megatron's default is plain gelu; its bias fusion knows gelu alone."""
NORM_FLAGS = {("rmsnorm", False): "RMSNorm", ("layernorm", True): "LayerNorm"}
BIAS_FLAGS = {
    (True, True, True): (),
    (False, False, False): ("--disable-bias-linear",),
    (True, False, False): ("--disable-bias-linear", "--add-qkv-bias"),
}
"""By biases of (query/key/value, attention output, feed-forward)."""
CP_COMM_FLAGS = {"p2p": "p2p", "all-gather": "all_gather", "a2a": "a2a"}


def model_refusals(model: ModelSpec) -> Iterator[str]:
    """What of the architecture ``pretrain_gpt.py`` cannot build."""
    if not all(layer.attention.causal for layer in model.layers):
        yield "pretrain_gpt.py trains causal attention only, the model's is bidirectional"
    if model.head_transform or model.pooler or model.num_token_types:
        yield "pretrain_gpt.py builds a plain decoder, without BERT's extra embeddings and heads"
    if model.position_embedding not in POSITION_FLAGS:
        yield f"it has no {model.position_embedding} position embedding"
    if model.embedding_norm:
        yield "it has no norm after the embedding"
    if model.output_bias:
        yield "its output layer has no bias"
    if not model.final_norm:
        yield "it always ends in a norm"
    if (model.norm, model.norm_bias) not in NORM_FLAGS:
        bias = "with" if model.norm_bias else "without"
        yield f"it has no {model.norm} {bias} bias"
    yield from _layer_refusals(model)


def _layer_refusals(model: ModelSpec) -> Iterator[str]:
    layers = [layer for layer, _ in model.layer_kinds]
    first = layers[0]
    if any(layer.parallel for layer in layers):
        yield "it does not run attention and feed-forward in parallel"
    if any(layer.num_norms != 2 for layer in layers):
        yield f"its layers have 2 norms, not {max(layer.num_norms for layer in layers)}"
    if len({_without_window(layer) for layer in layers}) > 1:
        yield "its layers differ only in the attention window"
    if len({layer.attention.window for layer in layers} - {None}) > 1:
        yield "it has one size of attention window"
    if (first.mlp.gated, first.mlp.activation) not in ACTIVATION_FLAGS:
        gated = "gated" if first.mlp.gated else "plain"
        yield f"it has no exact {gated} {first.mlp.activation}"
    if _biases(first) not in BIAS_FLAGS:
        yield "it puts biases in all linear layers, in query/key/value alone, or in none"
    if first.attention.qk_norm and model.norm != "rmsnorm":
        yield "it norms queries and keys with the model's own norm, which must be rmsnorm"


def _without_window(layer: Layer) -> tuple[object, ...]:
    a = layer.attention
    attention = (a.num_heads, a.num_query_groups, a.head_dim, a.qk_norm, a.causal)
    return (*attention, _biases(layer), layer.mlp, layer.num_norms, layer.parallel)


def _biases(layer: Layer) -> tuple[bool, bool, bool]:
    return layer.attention.qkv_bias, layer.attention.output_bias, layer.mlp.bias


def plan_refusals(model: ModelSpec, plan: Plan, version: MegatronVersion) -> Iterator[str]:
    """What of a valid plan the version cannot run."""
    if plan.zero >= 2:
        yield f"it shards the optimizer alone (zero 1), not zero={plan.zero}"
    if plan.schedule not in ("none", "1f1b", "interleaved-1f1b"):
        yield f"its schedules are 1f1b and interleaved-1f1b, not {plan.schedule}"
    if plan.layout == "free" and not version.stage_layout:
        yield f"{version.name} has no --pipeline-model-parallel-layout (since core_v0.13.0)"
    if plan.precision == "fp32" and plan.cp > 1:
        yield "its context parallelism needs 16-bit attention, not precision fp32"
    if plan.cuda_graphs and plan.recompute == "selective":
        if not version.cuda_graphs_with_recompute:
            yield f"{version.name} has no CUDA graphs with recompute"
        elif model.attention_dropout:
            dropout = model.attention_dropout
            yield f"it does not recompute attention with dropout {dropout} inside CUDA graphs"


def architecture(model: ModelSpec) -> FlagGroup:
    """The model."""
    layer = model.layers[0]
    attention, mlp = layer.attention, layer.mlp
    flags = [
        f"--num-layers {model.num_layers}",
        f"--hidden-size {model.hidden_size}",
        f"--ffn-hidden-size {mlp.ffn_hidden_size}",
        f"--num-attention-heads {attention.num_heads}",
    ]
    if attention.num_query_groups != attention.num_heads:
        flags += ["--group-query-attention", f"--num-query-groups {attention.num_query_groups}"]
    flags += [f"--kv-channels {attention.head_dim}", f"--seq-length {model.seq_length}"]
    flags += [f"--max-position-embeddings {max(model.max_seq_length, model.seq_length)}"]
    flags += [f"--position-embedding-type {POSITION_FLAGS[model.position_embedding]}"]
    if model.position_embedding == "rope":
        flags += [f"--rotary-base {model.rotary_base:.0f}"]
        if model.rotary_percent != 1:
            flags += [f"--rotary-percent {model.rotary_percent:g}"]
    flags += [f"--normalization {NORM_FLAGS[model.norm, model.norm_bias]}"]
    flags += [*ACTIVATION_FLAGS[mlp.gated, mlp.activation], *BIAS_FLAGS[_biases(layer)]]
    if mlp.activation == "gelu" and not mlp.bias:
        flags += ["--no-bias-gelu-fusion"]
    if attention.qk_norm:
        flags += ["--qk-layernorm"]
    if not model.tied_embeddings:
        flags += ["--untie-embeddings-and-output-weights"]
    flags += _window_flags(model)
    flags += [f"--hidden-dropout {model.hidden_dropout}"]
    flags += [f"--attention-dropout {model.attention_dropout}"]
    return FlagGroup("MODEL_ARGS", "The model", tuple(flags))


def _window_flags(model: ModelSpec) -> list[str]:
    windows = [layer.attention.window for layer in model.layers]
    sizes = {w for w in windows if w is not None and w < model.seq_length}
    if not sizes:
        return []
    # Megatron counts the tokens to the left and right of each, without itself.
    flags = [f"--window-size {min(sizes) - 1},0"]
    if any(window is None for window in windows):
        pattern = ",".join("0" if window is None else "1" for window in windows)
        flags += [f"--window-attn-skip-freq '[{pattern}]'"]
    return flags


def batch(plan: Plan) -> FlagGroup:
    """Micro-batch and global batch."""
    comment = f"Batch: {plan.num_micro_batches} micro-batches a step for each of {plan.dp} replicas"
    micro, whole = plan.micro_batch_size, plan.global_batch_size
    flags = (f"--micro-batch-size {micro}", f"--global-batch-size {whole}")
    return FlagGroup("BATCH_ARGS", comment, flags)


def parallelism(plan: Plan) -> FlagGroup:
    """Degrees of parallelism and the stage layout."""
    flags = [
        f"--tensor-model-parallel-size {plan.tp}",
        f"--context-parallel-size {plan.cp}",
        f"--pipeline-model-parallel-size {plan.pp}",
    ]
    if plan.sequence_parallel:
        flags += ["--sequence-parallel"]
    if plan.cp > 1:
        flags += [f"--cp-comm-type {CP_COMM_FLAGS[plan.cp_comm_type]}"]
    if plan.vpp > 1 and plan.layout != "free":
        flags += [f"--num-virtual-stages-per-pipeline-rank {plan.vpp}"]
    if plan.layout == "free":
        # The number of virtual stages follows from the number of chunks.
        flags += [f'--pipeline-model-parallel-layout "{megatron_layout(plan.chunk_layers)}"']
    elif plan.layout == "first-last":
        flags += [f"--decoder-first-pipeline-num-layers {plan.first_stage_layers}"]
        flags += [f"--decoder-last-pipeline-num-layers {plan.last_stage_layers}"]
    else:
        flags += LAYOUT_FLAGS[plan.layout]
    comment = f"Parallelism: the rest, dp={plan.dp}, follows from the number of GPUs"
    return FlagGroup("PARALLEL_ARGS", comment, tuple(flags))


def memory(plan: Plan) -> FlagGroup | None:
    """Activation recomputation."""
    if plan.recompute == "none":
        return None
    if plan.recompute == "selective":
        flags: Sequence[str] = (
            "--recompute-granularity selective",
            "--recompute-modules core_attn",
        )
    elif plan.recompute_num_layers:
        number = f"--recompute-num-layers {plan.recompute_num_layers}"
        flags = ("--recompute-granularity full", "--recompute-method block", number)
    else:
        flags = (
            "--recompute-granularity full",
            "--recompute-method uniform",
            "--recompute-num-layers 1",
        )
    return FlagGroup("RECOMPUTE_ARGS", f"Recompute: {plan.recompute_label}", tuple(flags))


def data_parallel(plan: Plan) -> FlagGroup | None:
    """Optimizer sharding and the overlaps of data-parallel communication."""
    flags = []
    if plan.zero == 1:
        flags += ["--use-distributed-optimizer"]
    if plan.overlap_grad_reduce:
        flags += ["--overlap-grad-reduce"]
    if plan.overlap_param_gather:
        flags += ["--overlap-param-gather"]
    if not flags:
        return None
    return FlagGroup("DATA_PARALLEL_ARGS", "Data parallelism and optimizer", tuple(flags))


def precision(plan: Plan) -> FlagGroup | None:
    """Formats of the GEMMs and of the gradients."""
    flags = list(PRECISION_FLAGS[plan.precision])
    if plan.grad_dtype == "bf16" and "--bf16" in flags:
        flags += ["--grad-reduce-in-bf16"]
    if plan.grad_dtype == "fp32" and "--fp16" in flags:
        flags += ["--accumulate-allreduce-grads-in-fp32"]
    if not flags:
        return None
    grads = "fp32" if plan.grad_dtype == "fp32" else "16-bit"
    comment = f"Precision: {plan.precision}, gradients {grads}"
    return FlagGroup("PRECISION_ARGS", comment, tuple(flags))


def kernels(
    cluster: ClusterSpec, framework: FrameworkSpec, plan: Plan, version: MegatronVersion
) -> FlagGroup:
    """Attention backend, fusions, user buffers, CUDA graphs."""
    backend = _attention_backend(cluster, framework, plan)
    flags = ["--transformer-impl transformer_engine", f"--attention-backend {backend}"]
    flags += ["--no-create-attention-mask-in-dataloader"]
    if plan.cross_entropy_fusion:
        flags += ["--cross-entropy-loss-fusion", "--cross-entropy-fusion-impl native"]
    if plan.tp_comm_overlap:
        flags += ["--tp-comm-overlap"]
    if plan.cuda_graphs:
        flags += ["--cuda-graph-impl transformer_engine", "--te-rng-tracker"]
        flags += ["--cuda-graph-scope full"] if version.cuda_graph_scope else []
    return FlagGroup("KERNEL_ARGS", "Kernels, fusions and graphs", tuple(flags))


def _attention_backend(cluster: ClusterSpec, framework: FrameworkSpec, plan: Plan) -> str:
    """The kernels that predictions are about, named so that a missing one fails instead of slowing.

    Transformer Engine prefers cuDNN's attention since Hopper and FlashAttention on Ampere; both are
    for 16-bit formats.
    """
    capability = cluster.accelerator.compute_capability or 0
    if not framework.compute.flash_attention or plan.precision == "fp32" or capability < 8:
        return "auto"
    return "fused" if capability >= 9 else "flash"
