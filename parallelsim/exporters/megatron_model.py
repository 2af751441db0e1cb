"""The model in Megatron-LM's flags, and what of an architecture it cannot build."""

from __future__ import annotations

from collections.abc import Iterator

from parallelsim.exporters.megatron_experts import expert_model_refusals
from parallelsim.exporters.megatron_flags import (
    DEFAULT_VERSION,
    VERSIONS,
    FlagGroup,
    MegatronVersion,
)
from parallelsim.exporters.megatron_hybrid import hybrid_model_refusals, mixer_of
from parallelsim.layers import (
    MLP,
    Attention,
    LatentAttention,
    Layer,
    MixtureOfExperts,
    SelectiveScan,
)
from parallelsim.model import ModelSpec

POSITION_FLAGS = {"rope": "rope", "learned": "learned_absolute", "none": "none"}
ACTIVATION_FLAGS = {
    (True, "silu"): ("--swiglu",),
    (True, "clamped-silu"): (
        "--quick-geglu",
        "--glu-linear-offset 1.0",
        "--activation-func-clamp-value 7.0",
    ),
    (False, "gelu"): (),
    (False, "squared-relu"): ("--squared-relu", "--no-bias-gelu-fusion"),
}
"""By (gated, activation). Megatron's default is plain gelu; its bias fusion knows gelu alone.

Clamped SiLU is GPT-OSS's: x sigmoid(1.702 x), clamped at 7, times the other half plus 1.
"""
NORM_FLAGS = {("rmsnorm", False): "RMSNorm", ("layernorm", True): "LayerNorm"}
BIAS_FLAGS = {
    (True, True, True): (),
    (False, False, False): ("--disable-bias-linear",),
    (True, False, False): ("--disable-bias-linear", "--add-qkv-bias"),
}
"""By biases of (query/key/value, attention output, feed-forward)."""
Attentions = list[Attention | LatentAttention]


def model_refusals(
    model: ModelSpec, version: MegatronVersion = VERSIONS[DEFAULT_VERSION]
) -> Iterator[str]:
    """What of the architecture Megatron-LM's pretraining scripts cannot build."""
    if model.input_operators or model.output_operators or not model.vocab_size:
        yield "it trains language models, between a vocabulary table and its logits"
    if any(layer.custom for layer, _ in model.layer_kinds):
        yield "it builds no layers of custom operators"
    if any(isinstance(layer.state_space, SelectiveScan) for layer, _ in model.layer_kinds):
        yield "its state-space mixers are Mamba-2, not Mamba-1"
        return
    if model.num_stacks > 1 or any(layer.seq_length for layer, _ in model.layer_kinds):
        yield "it trains no encoder with a decoder: main has no pretrain_t5.py any more"
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
    whole = all(layer.attention and (layer.mlp or layer.experts) for layer in layers)
    if mixer_of(model) is None and not whole:
        yield "its transformers have an attention and a feed-forward in each layer"
        return
    yield from _layer_refusals(model, layers)
    yield from _attention_refusals(model)
    yield from expert_model_refusals(model, version)
    yield from hybrid_model_refusals(model, version)


def _is_causal(layer: Layer) -> bool:
    return layer.attention is None or layer.attention.causal


def _attentions(model: ModelSpec) -> Attentions:
    """Of each kind of layer that has one."""
    return [layer.attention for layer, _ in model.layer_kinds if layer.attention]


def _feed_forwards(model: ModelSpec) -> list[MLP | MixtureOfExperts]:
    """Of each kind of layer that has one."""
    kinds = [layer.mlp or layer.experts for layer, _ in model.layer_kinds]
    return [part for part in kinds if part]


def _layer_refusals(model: ModelSpec, layers: list[Layer]) -> Iterator[str]:
    if any(layer.parallel for layer in layers):
        yield "it does not run attention and feed-forward in parallel"
    if mixer_of(model) is None and any(layer.num_norms != 2 for layer in layers):
        yield f"its layers have 2 norms, not {max(layer.num_norms for layer in layers)}"
    parts = _feed_forwards(model)
    widths = {part for part in parts if isinstance(part, MLP)}
    if len({_without_window(a) for a in _attentions(model)}) > 1 or len(widths) > 1:
        yield "its layers differ only in the attention window, in RoPE and in having experts"
    activations = sorted({(part.gated, part.activation) for part in parts})
    for gated, activation in activations:
        if (gated, activation) not in ACTIVATION_FLAGS:
            yield f"it has no exact {'gated' if gated else 'plain'} {activation}"
    if len(activations) > 1:
        yield "experts and dense layers share the activation"
    if not all(biases in BIAS_FLAGS for biases in _biases(model)) or len(_biases(model)) > 1:
        yield "it puts biases in all linear layers, in query/key/value alone, or in none"


def _attention_refusals(model: ModelSpec) -> Iterator[str]:
    softmax = [a for a in _attentions(model) if isinstance(a, Attention)]
    if any(a.qk_norm for a in softmax) and model.norm != "rmsnorm":
        yield "it norms queries and keys with the model's own norm, which must be rmsnorm"
    if any(a.qk_norm and a.qk_l2_norm for a in softmax):
        yield "it norms queries and keys once"
    if len({a.qk_l2_norm for a in softmax}) > 1:
        yield "it divides queries and keys by their length in all layers or in none"
    windows = {window for a in softmax if (window := _window(a, model)) is not None}
    if len(windows) > 1:
        yield "it has one size of attention window"
    if any(a.chunked and _window(a, model) for a in softmax):
        size, length = min(windows), model.seq_length
        yield f"it has no attention in chunks ({size} tokens of a sequence of {length})"


def _without_window(attention: Attention | LatentAttention) -> tuple[object, ...]:
    """What all attentions must share."""
    a = attention
    if isinstance(a, Attention):
        sizes = (a.num_heads, a.num_query_groups, a.head_dim)
        return (*sizes, a.qk_norm, a.causal, a.sinks)
    return (a,)


def _window(attention: Attention | LatentAttention | None, model: ModelSpec) -> int | None:
    """Its window where that is shorter than the sequence."""
    window = attention.window if isinstance(attention, Attention) else None
    return None if window is None or window >= model.seq_length else window


def _biases(model: ModelSpec) -> set[tuple[bool, bool, bool]]:
    """Each combination of an attention's biases and a feed-forward's that the layers have.

    Where a hybrid lacks one of the two kinds, those of the other.
    """
    attentions = {
        (a.qkv_bias, a.output_bias) if isinstance(a, Attention) else (False, False)
        for a in _attentions(model)
    }
    parts = {part.bias for part in _feed_forwards(model)}
    parts = parts or {output for _, output in attentions} or {False}
    attentions = attentions or {(bias, bias) for bias in parts}
    return {(*attention, bias) for attention in attentions for bias in parts}


def architecture(model: ModelSpec) -> FlagGroup:
    """The model; :func:`model_refusals` must have found nothing."""
    parts = _feed_forwards(model)
    dense = [part for part in parts if isinstance(part, MLP)]
    # A hybrid's pattern says how many layers there are.
    flags = [f"--num-layers {model.num_layers}"] if mixer_of(model) is None else []
    flags += [f"--hidden-size {model.hidden_size}"]
    flags += [f"--ffn-hidden-size {part.ffn_hidden_size}" for part in (dense or parts)[:1]]
    flags += [
        *_attention_flags(model),
        f"--seq-length {model.seq_length}",
        f"--max-position-embeddings {max(model.max_seq_length, model.seq_length)}",
        *_position_flags(model),
        f"--normalization {NORM_FLAGS[model.norm, model.norm_bias]}",
        *_activation_flags(parts),
        *BIAS_FLAGS[next(iter(_biases(model)))],
        *_norm_flags(model),
    ]
    if not model.tied_embeddings:
        flags += ["--untie-embeddings-and-output-weights"]
    flags += _window_flags(model)
    if model.num_mtp_layers:
        flags += [f"--mtp-num-layers {model.num_mtp_layers}"]
    flags += [f"--hidden-dropout {model.hidden_dropout}"]
    flags += [f"--attention-dropout {model.attention_dropout}"]
    return FlagGroup("MODEL_ARGS", "The model", tuple(flags))


def _position_flags(model: ModelSpec) -> list[str]:
    flags = [f"--position-embedding-type {POSITION_FLAGS[model.position_embedding]}"]
    if model.position_embedding != "rope":
        return flags
    flags += [f"--rotary-base {model.rotary_base:.0f}"]
    if model.rotary_percent != 1:
        flags += [f"--rotary-percent {model.rotary_percent:g}"]
    turned = [not isinstance(a := layer.attention, Attention) or a.rope for layer in model.layers]
    if not all(turned):
        pattern = ",".join("0" if rope else "1" for rope in turned)
        flags += [f"--no-rope-freq '[{pattern}]'"]
    return flags


def _activation_flags(parts: list[MLP | MixtureOfExperts]) -> list[str]:
    if not parts:
        return []
    gated, activation = parts[0].gated, parts[0].activation
    flags = [*ACTIVATION_FLAGS[gated, activation]]
    # The fusion needs a bias, and grouped experts have it for gated ones alone.
    grouped = any(isinstance(part, MixtureOfExperts) for part in parts)
    if activation == "gelu" and (grouped or not parts[0].bias):
        flags += ["--no-bias-gelu-fusion"]
    return flags


def _attention_flags(model: ModelSpec) -> list[str]:
    """Heads, and their projections."""
    attention = next(iter(_attentions(model)), None)
    if attention is None:
        mixer = mixer_of(model)
        assert mixer is not None  # model_refusals
        # No layer has them; Megatron wants a number all the same.
        return [f"--num-attention-heads {mixer.num_heads}", f"--kv-channels {mixer.head_dim}"]
    flags = [f"--num-attention-heads {attention.num_heads}"]
    if isinstance(attention, LatentAttention):
        flags += ["--multi-latent-attention"]
        if attention.q_lora_rank:
            flags += [f"--q-lora-rank {attention.q_lora_rank}"]
        flags += [f"--kv-lora-rank {attention.kv_lora_rank}"]
        flags += [f"--qk-head-dim {attention.qk_nope_head_dim}"]
        flags += [f"--qk-pos-emb-head-dim {attention.qk_rope_head_dim}"]
        flags += [f"--v-head-dim {attention.v_head_dim}"]
        return [*flags, "--rope-type rope", "--no-rope-fusion"]
    if attention.num_query_groups != attention.num_heads:
        flags += ["--group-query-attention", f"--num-query-groups {attention.num_query_groups}"]
    flags += ["--softmax-type learnable"] if attention.sinks else []
    return [*flags, f"--kv-channels {attention.head_dim}"]


def _norm_flags(model: ModelSpec) -> list[str]:
    """Norms of queries and keys, or of the latents."""
    attention = next(iter(_attentions(model)), None)
    if isinstance(attention, LatentAttention):
        return ["--qk-layernorm"]
    if attention is None:
        return []
    flags = ["--qk-layernorm"] if attention.qk_norm else []
    return flags + (["--qk-l2-norm"] if attention.qk_l2_norm else [])


def _window_flags(model: ModelSpec) -> list[str]:
    windows = [_window(layer.attention, model) for layer in model.layers]
    sizes = {window for window in windows if window is not None}
    if not sizes:
        return []
    # Megatron counts the tokens to the left and right of each, without itself.
    flags = [f"--window-size {min(sizes) - 1},0"]
    if any(window is None for window in windows):
        pattern = ",".join("0" if window is None else "1" for window in windows)
        flags += [f"--window-attn-skip-freq '[{pattern}]'"]
    return flags
