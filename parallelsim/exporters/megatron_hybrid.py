"""Hybrids of attention, state spaces and feed-forwards: one letter a sub-layer in Megatron-LM."""

from __future__ import annotations

from collections.abc import Iterator

from parallelsim.exporters.megatron_flags import LOW_PRECISIONS, FlagGroup, MegatronVersion
from parallelsim.layers import (
    MLP,
    Attention,
    LatentAttention,
    Layer,
    MixtureOfExperts,
    StateSpace,
    SubLayer,
)
from parallelsim.model import ModelSpec
from parallelsim.plan import Plan

LETTERS: dict[type[SubLayer], str] = {
    StateSpace: "M",
    Attention: "*",
    MLP: "-",
    MixtureOfExperts: "E",
}
ENDS = {"even": (0, 0), "embedding": (1, 0), "loss": (0, 1), "embedding-loss": (1, 1)}
"""By layout: layers fewer in the first and in the last virtual stage."""
CONV_KERNEL, CHUNK_SIZE = 4, 128
"""What Megatron-LM's mixer is built with; neither has a flag."""


def mixer_of(model: ModelSpec) -> StateSpace | None:
    """The mixer that all such layers of a hybrid share; None for transformers."""
    mixers = (layer.state_space for layer, _ in model.layer_kinds)
    return next((mixer for mixer in mixers if isinstance(mixer, StateSpace)), None)


def hybrid_model_refusals(model: ModelSpec, version: MegatronVersion) -> Iterator[str]:
    """What of a hybrid cannot be built; nothing for transformers."""
    mixer = mixer_of(model)
    if mixer is None:
        return
    layers = [layer for layer, _ in model.layer_kinds]
    if any(layer.state_space not in (None, mixer) for layer in layers):
        yield "its state-space mixers are alike in all layers"
    built = (CONV_KERNEL, CHUNK_SIZE, True)
    if (mixer.conv_kernel, mixer.chunk_size, mixer.conv_bias) != built:
        yield (
            f"its state-space mixers have a convolution of {CONV_KERNEL} tokens with bias and "
            f"scan {CHUNK_SIZE} tokens at once"
        )
    if any(layer.num_norms != len(layer.sublayers) for layer in layers):
        yield "its hybrids have one norm for each sub-layer"
    if model.num_mtp_layers and not version.hybrid_stages:
        yield f"this export writes no multi-token prediction of hybrids for {version.name}"
    if model.has_experts and not version.hybrid_stages:
        yield f"{version.name} has no experts in hybrids"
    attentions = [layer.attention for layer in layers if layer.attention]
    if any(isinstance(a, LatentAttention) for a in attentions):
        yield "this export writes no latent attention for hybrids"
    softmax = [a for a in attentions if isinstance(a, Attention)]
    if any(a.qk_norm or a.qk_l2_norm or a.sinks for a in softmax):
        yield "its hybrids have neither norms of queries and keys nor sinks"
    if any(a.window is not None and a.window < model.seq_length for a in softmax):
        yield "its hybrids have no attention windows"


def hybrid_plan_refusals(model: ModelSpec, plan: Plan, version: MegatronVersion) -> Iterator[str]:
    """What of a valid plan cannot run with a hybrid; nothing for transformers."""
    mixer = mixer_of(model)
    if mixer is None:
        return
    local = mixer.num_groups // plan.tp
    if (local % plan.cp and plan.cp % local) or mixer.num_heads // plan.tp % plan.cp:
        yield f"cp={plan.cp} must divide the mixers' {local} groups of a rank, or be a multiple"
    columns = mixer.inner_width + mixer.conv_width + mixer.num_heads
    if plan.precision in LOW_PRECISIONS and columns % 16:
        yield f"in {plan.precision} the mixers' {columns} columns must divide by 16"
    if 0 in plan.chunk_layers:
        yield "its hybrids have layers in every virtual stage"
    if plan.recompute_num_layers and any(len(x.sublayers) > 1 for x, _ in model.layer_kinds):
        yield "it counts sub-layers in hybrids: recompute whole stages, or none"
    if not version.hybrid_stages:
        if plan.vpp > 1 or plan.layout != "even":
            yield f"{version.name} cuts hybrids into even stages without virtual ones"
        if plan.recompute == "full":
            yield f"{version.name} does not recompute whole layers of hybrids"
        if plan.cuda_graphs:
            yield f"{version.name} has no CUDA graphs of hybrids"


def chunk_layers(num_layers: int, plan: Plan) -> list[int]:
    """Layers of each virtual stage, in the model's order."""
    if plan.layout == "free":
        return list(plan.chunk_layers)
    if plan.layout == "first-last":
        first, last = plan.first_stage_layers, plan.last_stage_layers
        middle = (num_layers - first - last) // max(plan.pp - 2, 1)
        ranks = [first, *[middle] * (plan.pp - 2), last]
        return [layers // plan.vpp for layers in ranks] * plan.vpp
    embedding, loss = ENDS[plan.layout]
    number = plan.pp * plan.vpp
    chunks = [(num_layers + embedding + loss) // number] * number
    chunks[0] -= embedding
    chunks[-1] -= loss
    return chunks


def _letters(layer: Layer) -> str:
    return "".join(LETTERS[type(part)] for part in layer.sublayers)


def hybrid(model: ModelSpec, plan: Plan, version: MegatronVersion) -> FlagGroup | None:
    """Layers, stages and mixers of a hybrid; nothing for transformers."""
    mixer = mixer_of(model)
    if mixer is None:
        return None
    letters = [_letters(layer) for layer in model.layers]
    if version.hybrid_stages:
        segments, start = [], 0
        for number in chunk_layers(model.num_layers, plan):
            segments += ["".join(letters[start : start + number])]
            start += number
        module = "".join(_letters(layer) for layer in model.mtp_module)
        pattern = "/".join(["|".join(segments), *[module] * model.num_mtp_layers])
        flags = [f"--hybrid-layer-pattern='{pattern}'"]
    else:
        pattern = "".join(letters)
        flags = ["--is-hybrid-model", f"--num-layers {len(pattern)}"]
        flags += [f"--hybrid-override-pattern='{pattern}'"]
    flags += [
        f"--spec {version.hybrid_stack}",
        f"--mamba-num-heads {mixer.num_heads}",
        f"--mamba-head-dim {mixer.head_dim}",
        f"--mamba-state-dim {mixer.state_size}",
        f"--mamba-num-groups {mixer.num_groups}",
    ]
    comment = "Layers: M state space, * attention, - feed-forward, E experts; | between stages"
    comment += ", / before a module of multi-token prediction" if model.num_mtp_layers else ""
    return FlagGroup("HYBRID_ARGS", comment, tuple(flags))
