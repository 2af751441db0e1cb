"""A model and a plan in Megatron-LM's flags, and what Megatron-LM cannot express.

Each group of flags is a :class:`FlagGroup`; nothing here comes from a user's text, only numbers and
fixed words, so that the script that holds the flags needs no quoting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from parallelsim.cluster import ClusterSpec
from parallelsim.framework import FrameworkSpec
from parallelsim.layers import Attention, LatentAttention
from parallelsim.model import ModelSpec
from parallelsim.plan import CP_COMM_TYPES, Plan
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
    deepep: str
    """The flag that makes the flexible dispatcher use DeepEP."""
    router_padding: str
    """The flag that fills up experts' tokens to what low-precision GEMMs need."""
    no_experts_in: frozenset[str]
    """Precisions that grouped experts do not have."""
    expert_options: bool
    """Has ``--moe-latent-size``, ``--moe-shared-expert-gate``, and CUDA graphs of routers
    (``--cuda-graph-modules``)."""
    kv_replication: bool
    """Key/value heads are replicated where there are fewer than tp."""
    hybrid_script: str
    """The program that trains hybrids of attention and state spaces."""
    hybrid_stack: str
    """Module and name of the layers that it builds."""
    hybrid_stages: bool
    """A hybrid's pattern has ``|`` between (virtual) stages, and ``E`` for experts; its layers can
    be recomputed and captured."""
    muon: bool
    """Has ``--optimizer muon``."""
    stage_layout: bool = True
    """Has ``--pipeline-model-parallel-layout``: since core_v0.13.0."""


VERSIONS = {
    version.name: version
    for version in (
        MegatronVersion(
            name="core_v0.15.0",
            title="tag core_v0.15.0, December 2025",
            null_tokenizer_adds_token=True,
            cuda_graph_scope=True,
            cuda_graphs_with_recompute=False,
            deepep="--moe-enable-deepep",
            router_padding="--moe-router-padding-for-fp8",
            no_experts_in=frozenset({"fp32", "fp16", "nvfp4"}),
            expert_options=False,
            kv_replication=False,
            hybrid_script="pretrain_mamba.py",
            hybrid_stack="megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec",
            hybrid_stages=False,
            muon=False,
        ),
        MegatronVersion(
            name="main-2026-08",
            title="branch main at d98e8a64, August 2026",
            null_tokenizer_adds_token=False,
            cuda_graph_scope=False,
            cuda_graphs_with_recompute=True,
            deepep="--moe-flex-dispatcher-backend deepep",
            router_padding="--moe-router-padding-for-quantization",
            no_experts_in=frozenset(),
            expert_options=True,
            kv_replication=True,
            hybrid_script="pretrain_hybrid.py",
            hybrid_stack="megatron.core.models.hybrid.hybrid_layer_specs hybrid_stack_spec",
            hybrid_stages=True,
            muon=True,
        ),
    )
}
"""Versions that scripts can be written for, oldest first."""
DEFAULT_VERSION = "main-2026-08"


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
LOW_PRECISIONS = frozenset(PRECISION_FLAGS) - {"fp32", "bf16", "fp16"}
"""Formats whose GEMMs take rows in multiples."""
LAYOUT_FLAGS = {
    "even": (),
    "embedding": ("--account-for-embedding-in-pipeline-split",),
    "loss": ("--account-for-loss-in-pipeline-split",),
    "embedding-loss": (
        "--account-for-embedding-in-pipeline-split",
        "--account-for-loss-in-pipeline-split",
    ),
}
CP_COMM_FLAGS = {name: name.replace("-", "_") for name in CP_COMM_TYPES}


def plan_refusals(model: ModelSpec, plan: Plan, version: MegatronVersion) -> Iterator[str]:
    """What of a valid plan the version cannot run."""
    if plan.compile:
        yield "it does not run layers through a compiler"
    if model.lora is not None:
        yield "its pretraining scripts have no adapters: Megatron-Bridge and NeMo add them"
    if plan.schedule not in ("none", "1f1b", "interleaved-1f1b"):
        yield f"its schedules are 1f1b and interleaved-1f1b, not {plan.schedule}"
    if plan.layout == "free" and not version.stage_layout:
        yield f"{version.name} has no --pipeline-model-parallel-layout (since core_v0.13.0)"
    if plan.precision == "fp32" and plan.cp > 1:
        yield "its context parallelism needs 16-bit attention, not precision fp32"
    attentions = [layer.attention for layer, _ in model.layer_kinds]
    groups = [a.num_query_groups for a in attentions if isinstance(a, Attention)]
    if not version.kv_replication and any(number % plan.tp for number in groups):
        yield f"{version.name} does not replicate {min(groups)} key/value heads over tp={plan.tp}"
    if plan.cuda_graphs and plan.recompute == "selective":
        if not version.cuda_graphs_with_recompute:
            yield f"{version.name} has no CUDA graphs with recompute"
        elif model.attention_dropout:
            dropout = model.attention_dropout
            yield f"it does not recompute attention with dropout {dropout} inside CUDA graphs"
    yield from _module_refusals(model, plan)


def _module_refusals(model: ModelSpec, plan: Plan) -> Iterator[str]:
    """Parts of a layer that it does not recompute here (transformer_config.py)."""
    modules = plan.recompute_modules.split("+")
    if "mla_up_proj" in modules and not any(
        isinstance(layer.attention, LatentAttention) for layer in model.layers
    ):
        yield "it recomputes mla_up_proj in multi-head latent attention alone"
    if "moe_act" in modules and not model.has_experts:
        yield "it recomputes moe_act in mixtures of experts alone"
    late = [name for name in ("layernorm", "moe_act") if name in modules]
    if late and plan.precision == "fp8-delayed":
        yield f"it does not recompute {' or '.join(late)} with precision fp8-delayed"


def batch(plan: Plan) -> FlagGroup:
    """Micro-batch and global batch."""
    comment = f"Batch: {plan.num_micro_batches} micro-batches a step for each of {plan.dp} replicas"
    micro, whole = plan.micro_batch_size, plan.global_batch_size
    flags = (f"--micro-batch-size {micro}", f"--global-batch-size {whole}")
    return FlagGroup("BATCH_ARGS", comment, flags)


def parallelism(plan: Plan, num_mtp_layers: int = 0) -> FlagGroup:
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
    if plan.cp_a2a > 1:
        sizes = f"{plan.cp_a2a} {plan.cp // plan.cp_a2a}"
        flags += [f"--hierarchical-context-parallel-sizes {sizes}"]
    if plan.vpp > 1 and plan.layout != "free":
        flags += [f"--num-virtual-stages-per-pipeline-rank {plan.vpp}"]
    if plan.layout == "free":
        # The number of virtual stages follows from the number of chunks.
        stages = megatron_layout(plan.chunk_layers, num_mtp_layers)
        flags += [f'--pipeline-model-parallel-layout "{stages}"']
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
            "--recompute-modules " + plan.recompute_modules.replace("+", " "),
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


def precision(plan: Plan) -> FlagGroup | None:
    """Formats of the GEMMs and of the gradients."""
    flags = list(PRECISION_FLAGS[plan.precision])
    if plan.grad_dtype == "bf16" and "--bf16" in flags:
        flags += ["--grad-reduce-in-bf16"]
    if plan.fp8_param_gather:
        flags += ["--fp8-param-gather"]
        # Row- and column-scaled weights are made from 16 bits gathered in the gradient buffer.
        reuses = plan.precision == "mxfp8" and plan.zero < 2
        flags += ["--reuse-grad-buf-for-mxfp8-param-ag"] if reuses else []
    if plan.grad_dtype == "fp32" and "--fp16" in flags:
        flags += ["--accumulate-allreduce-grads-in-fp32"]
    if not flags:
        return None
    grads = "fp32" if plan.grad_dtype == "fp32" else "16-bit"
    comment = f"Precision: {plan.precision}, gradients {grads}"
    return FlagGroup("PRECISION_ARGS", comment, tuple(flags))


def kernels(
    model: ModelSpec,
    cluster: ClusterSpec,
    framework: FrameworkSpec,
    plan: Plan,
    version: MegatronVersion,
) -> FlagGroup:
    """Attention backend, fusions, user buffers, CUDA graphs."""
    backend = _attention_backend(model, cluster, framework, plan)
    flags = ["--transformer-impl transformer_engine", f"--attention-backend {backend}"]
    flags += ["--no-create-attention-mask-in-dataloader"]
    if plan.cross_entropy_fusion:
        flags += ["--cross-entropy-loss-fusion", "--cross-entropy-fusion-impl native"]
    if plan.tp_comm_overlap:
        flags += ["--tp-comm-overlap"]
    if plan.cuda_graphs:
        flags += ["--cuda-graph-impl transformer_engine", "--te-rng-tracker"]
        flags += ["--cuda-graph-scope full"] if version.cuda_graph_scope else []
        modules = graph_modules(model, plan)
        flags += [f"--cuda-graph-modules {' '.join(modules)}"] if modules else []
    return FlagGroup("KERNEL_ARGS", "Kernels, fusions and graphs", tuple(flags))


def graph_modules(model: ModelSpec, plan: Plan) -> list[str]:
    """Parts of layers that CUDA graphs capture where not whole layers: how many tokens an expert
    gets without a capacity is known to the host alone after the router ran.
    """
    kinds = [layer for layer, _ in model.layer_kinds]
    experts = next((layer.experts for layer in kinds if layer.experts), None)
    if experts is None or experts.capacity_factor is not None:
        return []
    modules = ["attn"] if any(layer.attention for layer in kinds) else []
    if any(layer.state_space for layer in kinds):
        modules += ["mamba"]
    elif any(layer.mlp for layer in kinds) and not plan.ep_comm_overlap:
        modules += ["mlp"]
    modules += ["moe_router"]
    # Tokens that are filled up are counted on the host before they are sent.
    waits = plan.moe_dispatcher == "all-to-all" and plan.precision in LOW_PRECISIONS
    return modules if waits else [*modules, "moe_preprocess"]


def _has_sinks(model: ModelSpec) -> bool:
    attentions = [layer.attention for layer, _ in model.layer_kinds]
    return any(isinstance(a, Attention) and a.sinks for a in attentions)


def _has_latents(model: ModelSpec) -> bool:
    return any(isinstance(layer.attention, LatentAttention) for layer, _ in model.layer_kinds)


def _attention_backend(
    model: ModelSpec, cluster: ClusterSpec, framework: FrameworkSpec, plan: Plan
) -> str:
    """The kernels that predictions are about, named so that a missing one fails instead of slowing.

    Transformer Engine prefers cuDNN's attention since Hopper and FlashAttention on Ampere; both are
    for 16-bit formats. FlashAttention 2 has no sinks and no heads of two widths (latent attention).
    """
    capability = cluster.accelerator.compute_capability or 0
    if not framework.compute.flash_attention or plan.precision == "fp32" or capability < 8:
        return "auto"
    if capability >= 9 or _has_sinks(model):
        return "fused"
    return "auto" if _has_latents(model) else "flash"
