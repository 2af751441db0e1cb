"""What a training software does by default: for what the source of a run leaves out.

Tables of published runs leave settings out. Each framework's documented (or shipped recipe's)
value fills them in; software without an entry takes :data:`GENERIC`, which turns on what its
capabilities allow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class RunDefaults:
    """Settings of an unstated cell; switches also need the framework's capability."""

    source: str
    zero: int = 0
    grad_dtype: str = "fp32"
    """With bf16 or fp8; fp16 takes ``fp16_grad_dtype``."""
    fp16_grad_dtype: str = "fp32"
    plain_precision: str = "bf16"
    """Of models without gated MLP (GPT-2 and GPT-3)."""
    gated_precision: str = "bf16"
    recomputes: tuple[str, ...] = ("none", "selective", "full")
    """From the lightest: the first that is predicted to fit."""
    sequence_parallel: bool = True
    """With tp > 1."""
    tp_comm_overlap: bool = False
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    overlap_with_zero: bool = True
    """The gradient reduction is overlapped with a sharded optimizer too."""
    cross_entropy_fusion: bool = False
    compile: bool = False
    compile_with_fp8: bool = False
    """Compiled with an fp8 precision or asynchronous tensor parallelism."""
    compiles_loss_since: tuple[int, int] | None = None
    """Year and month from which a compiled model's loss over whole rows is compiled with it."""
    moe_dispatcher: str = "all-to-all"
    rack_dispatcher: str = ""
    """Where links join more GPUs than a node has; empty: the same."""
    expert_graphs: tuple[str, ...] = ()
    """Accelerator architectures, or ``rack`` for links that join more GPUs than a node has, where
    models with experts run under CUDA graphs, unless a module of theirs is recomputed."""
    latent_recompute: str = ""
    """The module of latent attention that is recomputed where no recompute is stated."""
    overlaps_outer_exchange: bool = False
    """Tokens that leave the domain of the links travel behind another micro-batch."""
    drop_overlaps: bool = True
    """Also where experts drop tokens."""
    etp_is_tp: bool = False
    """Experts are split over as many ranks as the rest of a layer."""
    fp8_param_gather: tuple[str, ...] = ()
    """Precisions with which weights are kept in fp8 alone (and the optimizer is sharded)."""
    dropout: float = 0.0
    """Of models without gated MLP; gated ones are trained without."""
    plain_positions: str = "learned"
    """Positions of models without gated MLP."""
    layer_split: str = "even"
    """Uneven layers: ``even`` leaves the remainder to the last stage, ``by-cost`` balances the
    FLOPs of layers and output matrix over the stages."""


GENERIC = RunDefaults(
    source="no documentation known: what the capabilities allow",
    overlap_grad_reduce=True,
    overlap_param_gather=True,
)

DEFAULTS: Mapping[str, RunDefaults] = {
    "megatron-core": RunDefaults(
        source=(
            "Megatron-Bridge 26.04 recipes and mixed-precision presets: distributed optimizer, "
            "gradients reduced "
            "in bf16, user buffers with sequence parallelism, fused cross-entropy, both "
            "overlaps; recompute only "
            "where the recipe asks for it. fp8_param_gather is on in the presets of delayed and "
            "current scaling and mxfp8, off for blockwise and nvfp4 (Megatron-Bridge 067f987d "
            "training/mixed_precision.py; NeMo 8cfedd72 llm/recipes/precision/mixed_precision.py). "
            "Experts: NeMo's recipes send tokens by all-to-all; Megatron-LM core "
            "megatron/training/arguments.py sets an expert_tensor_parallel_size of None to "
            "tensor_model_parallel_size"
        ),
        zero=1,
        grad_dtype="bf16",
        recomputes=("none",),
        tp_comm_overlap=True,
        overlap_grad_reduce=True,
        overlap_param_gather=True,
        cross_entropy_fusion=True,
        etp_is_tp=True,
        fp8_param_gather=("fp8-delayed", "fp8-current", "mxfp8"),
        plain_positions="rope",
    ),
    "megatron-lm-2022": RunDefaults(
        source="Megatron-LM v3.0 megatron/arguments.py and examples/pretrain_gpt3_175B.sh",
        fp16_grad_dtype="bf16",
        plain_precision="fp16",
        dropout=0.1,
    ),
    "megatron-lm-2021": RunDefaults(
        source=(
            "Megatron-LM v2.5 megatron/arguments.py and examples/sc21; arXiv:2104.04473 section 5"
        ),
        fp16_grad_dtype="bf16",
        plain_precision="fp16",
        recomputes=("none", "full"),
        sequence_parallel=False,
        dropout=0.1,
    ),
    "megatron-deepspeed": RunDefaults(
        source=(
            "Megatron-DeepSpeed megatron/arguments.py and "
            "examples/pretrain_gpt_distributed_with_mp.sh"
        ),
        fp16_grad_dtype="bf16",
        plain_precision="fp16",
        recomputes=("none", "full"),
        sequence_parallel=False,
        dropout=0.1,
    ),
    "deepspeed": RunDefaults(
        source=(
            "DeepSpeed docs, config-json: bf16 with ZeRO 1 keeps and reduces gradients in "
            "the model's format"
        ),
        zero=1,
        grad_dtype="bf16",
        recomputes=("none", "full"),
        sequence_parallel=False,
    ),
    "nanotron": RunDefaults(
        source=(
            "nanotron src/nanotron/config (accumulate_grad_in_fp32, tp_mode), models/base.py "
            "build_model "
            "(stages by cumulative compute cost)"
        ),
        recomputes=("none", "full"),
        overlap_grad_reduce=True,
        overlap_with_zero=False,
        layer_split="by-cost",
    ),
    "internevo": RunDefaults(
        source=(
            "InternEvo configs/7B_sft.py: ZeRO-1 over the data-parallel group, overlapped reduction"
        ),
        zero=1,
        grad_dtype="bf16",
        recomputes=("none", "full"),
        overlap_grad_reduce=True,
        overlap_param_gather=True,
    ),
    "torchtitan": RunDefaults(
        source=(
            "torchtitan job_config.py: fully_shard over all data-parallel ranks, fp32 reduction, "
            "compile off; docs/float8.md and docs/async_tp.md: both need torch.compile; commits "
            "e8977b00 of December 2024 and d1f62be7 of February 2025 on compiling the loss"
        ),
        zero=3,
        recomputes=("none", "full"),
        compile_with_fp8=True,
        compiles_loss_since=(2025, 2),
        overlap_grad_reduce=True,
        overlap_param_gather=True,
    ),
    "llm-foundry": RunDefaults(
        source=(
            "llm-foundry scripts/train/benchmarking: FULL_SHARD, PURE mixed precision, "
            "alibi, no dropout"
        ),
        zero=3,
        grad_dtype="bf16",
        overlap_grad_reduce=True,
        overlap_param_gather=True,
        plain_positions="alibi",
    ),
}


WITHOUT_RECIPE: Mapping[str, RunDefaults] = {
    "megatron-core": RunDefaults(
        source=(
            "Megatron-LM core 0.8-0.15 megatron/training/arguments.py: overlaps, fused "
            "cross-entropy and "
            "recompute are off, gradients fp32 with bf16 and 16-bit with fp16 "
            "(accumulate_allreduce_grads_in_fp32); examples/gpt3/train_gpt3_175b_distributed.sh "
            "trains in fp16"
        ),
        zero=1,
        fp16_grad_dtype="bf16",
        plain_precision="fp16",
        recomputes=("none",),
        etp_is_tp=True,
    ),
}
"""Where a vendor's recipes set what the software itself does not: the software's own defaults."""


_BRIDGE_2509 = replace(
    DEFAULTS["megatron-core"],
    source=DEFAULTS["megatron-core"].source
    + (
        "; Megatron-Bridge v0.1.0rc4 (NeMo container 25.09) scripts/performance/configs: "
        "expert_tensor_parallel_size 1, all-to-all, with its overlap where experts span nodes of 8 "
        "GPUs and drop no tokens (run_script.py, A2A_1F1B), graphs of attention and router on B200 "
        "and GB200, mla_up_proj recomputed"
    ),
    expert_graphs=("blackwell",),
    overlaps_outer_exchange=True,
    etp_is_tp=False,
    latent_recompute="mla_up_proj",
    drop_overlaps=False,
)
_BRIDGE_2511 = replace(
    _BRIDGE_2509,
    source=_BRIDGE_2509.source
    + "; v0.2.0 to v0.4.1 (25.11 and later): HybridEP on GB200 and GB300, graphs there alone",
    rack_dispatcher="deepep",
    expert_graphs=("rack",),
    drop_overlaps=True,
)
SINCE_RELEASE: Mapping[str, tuple[tuple[tuple[int, int], RunDefaults], ...]] = {
    "megatron-core": (((25, 9), _BRIDGE_2509), ((25, 11), _BRIDGE_2511)),
}
"""Recipes that releases of the vendor's container brought: (year, month), oldest first, and their
settings."""


def run_defaults(
    framework: str, *, follows_recipe: bool = True, release: tuple[int, int] | None = None
) -> RunDefaults:
    """The defaults of a framework by name, or the generic ones.

    Args:
        framework: catalogue name.
        follows_recipe: nothing that is stated about the run contradicts the vendor's recipes.
        release: of the vendor's container, (year, month), where stated.
    """
    if not follows_recipe and framework in WITHOUT_RECIPE:
        return WITHOUT_RECIPE[framework]
    found = DEFAULTS.get(framework, GENERIC)
    for first, recipes in SINCE_RELEASE.get(framework, ()):
        if release is not None and release >= first:
            found = recipes
    return found
