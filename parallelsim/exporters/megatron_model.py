"""The model in Megatron-LM's flags, and what of an architecture it cannot build."""

from __future__ import annotations

from collections.abc import Iterator

from parallelsim.exporters.megatron_flags import FlagGroup
from parallelsim.layers import (
    MLP,
    Attention,
    LatentAttention,
    Layer,
    MixtureOfExperts,
)
from parallelsim.model import ModelSpec

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


def model_refusals(model: ModelSpec) -> Iterator[str]:
    """What of the architecture ``pretrain_gpt.py`` cannot build."""
    if model.input_operators or model.output_operators or not model.vocab_size:
        yield "pretrain_gpt.py trains language models, between a vocabulary table and its logits"
        return
    if not all(_is_causal(layer) for layer, _ in model.layer_kinds):
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
    layers = [layer for layer, _ in model.layer_kinds]
    if reasons := list(_kind_refusals(layers)):
        yield from reasons
        return
    yield from _layer_refusals(model, layers)
    yield from _expert_refusals(layers)


def _is_causal(layer: Layer) -> bool:
    return layer.attention is None or layer.attention.causal


def _kind_refusals(layers: list[Layer]) -> Iterator[str]:
    """Kinds of sub-layers that are not built at all."""
    if any(layer.custom for layer in layers):
        yield "pretrain_gpt.py builds no layers of custom operators"
    if any(layer.state_space for layer in layers):
        yield "pretrain_gpt.py builds no state-space layers"
    if any(layer.cross_attention or layer.seq_length for layer in layers):
        yield "pretrain_gpt.py builds no encoder and no cross-attention"
    if any(not (layer.attention and (layer.mlp or layer.experts)) for layer in layers):
        yield "its layers have an attention and a feed-forward each"


def _layer_refusals(model: ModelSpec, layers: list[Layer]) -> Iterator[str]:
    if any(layer.parallel for layer in layers):
        yield "it does not run attention and feed-forward in parallel"
    if any(layer.num_norms != 2 for layer in layers):
        yield f"its layers have 2 norms, not {max(layer.num_norms for layer in layers)}"
    widths = {mlp for layer in layers if (mlp := layer.mlp)}
    if len({_without_window(layer) for layer in layers}) > 1 or len(widths) > 1:
        yield "its layers differ only in the attention window and in having experts"
    if len({_window(layer) for layer in layers} - {None}) > 1:
        yield "it has one size of attention window"
    for gated, activation in sorted({_activation(layer) for layer in layers}):
        if (gated, activation) not in ACTIVATION_FLAGS:
            yield f"it has no exact {'gated' if gated else 'plain'} {activation}"
    if len({_activation(layer) for layer in layers}) > 1:
        yield "experts and dense layers share the activation"
    if any(_biases(layer) not in BIAS_FLAGS for layer in layers):
        yield "it puts biases in all linear layers, in query/key/value alone, or in none"
    attention = layers[0].attention
    if isinstance(attention, Attention) and attention.qk_norm and model.norm != "rmsnorm":
        yield "it norms queries and keys with the model's own norm, which must be rmsnorm"


def _expert_refusals(layers: list[Layer]) -> Iterator[str]:
    kinds = {layer.experts for layer in layers if layer.experts}
    if len(kinds) > 1:
        yield "its mixtures of experts are alike in all layers"
    for experts in kinds:
        if experts.router_bias and experts.router != "sigmoid":
            yield "its router has a bias for each expert with sigmoid scores alone"


def _without_window(layer: Layer) -> tuple[object, ...]:
    """What all layers must share."""
    a = layer.attention
    if isinstance(a, Attention):
        attention: tuple[object, ...] = (a.num_heads, a.num_query_groups, a.head_dim, a.qk_norm)
        attention += (a.causal, a.sinks)
    else:
        attention = (a,)
    return (*attention, _biases(layer), layer.num_norms, layer.parallel)


def _window(layer: Layer) -> int | None:
    return layer.attention.window if isinstance(layer.attention, Attention) else None


def _feed_forward(layer: Layer) -> MLP | MixtureOfExperts:
    part = layer.mlp or layer.experts
    assert part is not None  # _kind_refusals
    return part


def _activation(layer: Layer) -> tuple[bool, str]:
    part = _feed_forward(layer)
    return part.gated, part.activation


def _biases(layer: Layer) -> tuple[bool, bool, bool]:
    a = layer.attention
    attention = (a.qkv_bias, a.output_bias) if isinstance(a, Attention) else (False, False)
    return (*attention, _feed_forward(layer).bias)


def architecture(model: ModelSpec) -> FlagGroup:
    """The model; :func:`model_refusals` must have found nothing."""
    layers = [layer for layer, _ in model.layer_kinds]
    part = _feed_forward(layers[0])
    dense = next((layer.mlp for layer in layers if layer.mlp), None)
    ffn = dense.ffn_hidden_size if dense else part.ffn_hidden_size
    flags = [
        f"--num-layers {model.num_layers}",
        f"--hidden-size {model.hidden_size}",
        f"--ffn-hidden-size {ffn}",
        *_attention_flags(layers[0].attention, model),
        f"--max-position-embeddings {max(model.max_seq_length, model.seq_length)}",
        f"--position-embedding-type {POSITION_FLAGS[model.position_embedding]}",
    ]
    if model.position_embedding == "rope":
        flags += [f"--rotary-base {model.rotary_base:.0f}"]
        if model.rotary_percent != 1:
            flags += [f"--rotary-percent {model.rotary_percent:g}"]
    flags += [f"--normalization {NORM_FLAGS[model.norm, model.norm_bias]}"]
    flags += [*ACTIVATION_FLAGS[_activation(layers[0])], *BIAS_FLAGS[_biases(layers[0])]]
    if part.activation == "gelu" and not part.bias:
        flags += ["--no-bias-gelu-fusion"]
    flags += _norm_flags(layers[0].attention)
    if not model.tied_embeddings:
        flags += ["--untie-embeddings-and-output-weights"]
    flags += _window_flags(model)
    if model.num_mtp_layers:
        flags += [f"--mtp-num-layers {model.num_mtp_layers}"]
    flags += [f"--hidden-dropout {model.hidden_dropout}"]
    flags += [f"--attention-dropout {model.attention_dropout}"]
    return FlagGroup("MODEL_ARGS", "The model", tuple(flags))


def _attention_flags(attention: Attention | LatentAttention | None, model: ModelSpec) -> list[str]:
    """Heads and the length of a sequence."""
    assert attention is not None  # _kind_refusals
    flags = [f"--num-attention-heads {attention.num_heads}"]
    if isinstance(attention, LatentAttention):
        flags += ["--multi-latent-attention"]
        if attention.q_lora_rank:
            flags += [f"--q-lora-rank {attention.q_lora_rank}"]
        flags += [f"--kv-lora-rank {attention.kv_lora_rank}"]
        flags += [f"--qk-head-dim {attention.qk_nope_head_dim}"]
        flags += [f"--qk-pos-emb-head-dim {attention.qk_rope_head_dim}"]
        flags += [f"--v-head-dim {attention.v_head_dim}"]
        flags += ["--rope-type rope", "--no-rope-fusion"]
        return [*flags, f"--seq-length {model.seq_length}"]
    if attention.num_query_groups != attention.num_heads:
        flags += ["--group-query-attention", f"--num-query-groups {attention.num_query_groups}"]
    flags += ["--softmax-type learnable"] if attention.sinks else []
    return [*flags, f"--kv-channels {attention.head_dim}", f"--seq-length {model.seq_length}"]


def _norm_flags(attention: Attention | LatentAttention | None) -> list[str]:
    """Norms of queries and keys, or of the latents."""
    if isinstance(attention, LatentAttention) or (attention is not None and attention.qk_norm):
        return ["--qk-layernorm"]
    return []


def _window_flags(model: ModelSpec) -> list[str]:
    windows = [_window(layer) for layer in model.layers]
    sizes = {w for w in windows if w is not None and w < model.seq_length}
    if not sizes:
        return []
    # Megatron counts the tokens to the left and right of each, without itself.
    flags = [f"--window-size {min(sizes) - 1},0"]
    if any(window is None for window in windows):
        pattern = ",".join("0" if window is None else "1" for window in windows)
        flags += [f"--window-attn-skip-freq '[{pattern}]'"]
    return flags


def mixture(model: ModelSpec) -> FlagGroup | None:
    """Routers and experts; nothing for dense models."""
    experts = next((layer.experts for layer in model.layers if layer.experts), None)
    if experts is None:
        return None
    flags = [
        f"--num-experts {experts.num_experts}",
        f"--moe-router-topk {experts.top_k}",
        f"--moe-ffn-hidden-size {experts.ffn_hidden_size}",
    ]
    if any(layer.experts is None for layer in model.layers):
        pattern = ",".join("1" if layer.experts else "0" for layer in model.layers)
        flags += [f"--moe-layer-freq '[{pattern}]'"]
    flags += [f"--moe-router-score-function {experts.router}"]
    if experts.router == "softmax" and experts.top_k == 1:
        flags += ["--moe-router-pre-softmax"]
    if experts.router_bias:
        flags += ["--moe-router-enable-expert-bias"]
    if experts.num_groups > 1:
        flags += [f"--moe-router-num-groups {experts.num_groups}"]
        flags += [f"--moe-router-group-topk {experts.group_top_k}"]
    if experts.shared_ffn_hidden_size:
        flags += [f"--moe-shared-expert-intermediate-size {experts.shared_ffn_hidden_size}"]
        flags += ["--moe-shared-expert-gate"] if experts.shared_gate else []
    if experts.latent_size:
        flags += [f"--moe-latent-size {experts.latent_size}"]
    if experts.capacity_factor is not None:
        flags += [f"--moe-expert-capacity-factor {experts.capacity_factor:g}"]
        flags += ["--moe-pad-expert-input-to-capacity"]
    flags += ["--moe-router-load-balancing-type aux_loss", "--moe-aux-loss-coeff 1e-3"]
    return FlagGroup("MOE_ARGS", "Routers and experts", tuple(flags))
