"""A Hugging Face ``config.json`` as a :class:`ModelSpec`.

A key that is left out takes the default that the architecture's configuration class documents,
where published configurations do leave it out; any other missing key is an error. Unknown
architectures, checkpoints that were quantised later and models of several modalities are refused by
name. A configuration does not state the training: its ``seq_length`` and
``default_global_batch_tokens`` are 0.

This file holds decoders and BERT; ``huggingface_experts``, ``huggingface_hybrid`` and
``huggingface_t5`` the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from parallelsim.errors import SpecError
from parallelsim.huggingface_config import ConfigReader, blocks_of
from parallelsim.huggingface_experts import EXPERT_BUILDERS
from parallelsim.huggingface_hybrid import HYBRID_BUILDERS
from parallelsim.huggingface_t5 import ENCODER_DECODER_BUILDERS
from parallelsim.huggingface_vit import VISION_BUILDERS
from parallelsim.layers import MLP, Attention, Block, Layer
from parallelsim.model import ModelSpec
from parallelsim.yaml_io import shown

_REFUSED_KEYS: Mapping[str, str] = {
    "vision_config": "a model of several modalities",
    "audio_config": "a model of several modalities",
    "num_experts": "a mixture of experts",
    "num_local_experts": "a mixture of experts",
    "n_routed_experts": "a mixture of experts",
}
"""Of plain decoders: keys that another architecture's configuration would have."""
_RELEASED_QUANTISED = ("deepseek_v3", "kimi_k2", "gpt_oss")
"""Released in fp8 or MXFP4 alone: what their configurations say of that is no part of the model."""


def model_from_config(config: Mapping[str, Any], name: str) -> ModelSpec:
    """The model that a Hugging Face configuration describes, called ``name``.

    Raises:
        SpecError: an unknown architecture, a missing or malformed key, sizes out of range.
    """
    reader = ConfigReader(config)
    model_type = reader.text("model_type")
    if config.get("quantization_config") is not None and model_type not in _RELEASED_QUANTISED:
        message = "a quantised checkpoint; use the configuration of the original model"
        raise SpecError(message, key="quantization_config")
    if model_type in _SPECIAL_BUILDERS:
        return _SPECIAL_BUILDERS[model_type](reader, name)
    if model_type not in _FAMILIES and model_type not in _BUILDERS:
        known = ", ".join(known_model_types())
        raise SpecError(f"{shown(model_type)} is not known; known: {known}", key="model_type")
    for key, meaning in _REFUSED_KEYS.items():
        if config.get(key) is not None:
            raise SpecError(f"{meaning} is not supported", key=key)
    if model_type in _FAMILIES:
        return _decoder(reader, name, _FAMILIES[model_type])
    return _BUILDERS[model_type](reader, name)


def known_model_types() -> tuple[str, ...]:
    """Values of ``model_type`` that can be read, sorted."""
    return tuple(sorted([*_FAMILIES, *_BUILDERS, *_SPECIAL_BUILDERS]))


@dataclass(frozen=True)
class _Family:
    """Decoders that use Llama's key names and differ in defaults."""

    gated: bool = True
    activation_keys: tuple[str, ...] = ("hidden_act",)
    activation: str = "silu"
    layernorm: bool = False
    """LayerNorm with bias instead of RMSNorm."""
    num_norms: int = 2
    qk_norm: bool = False
    tied_embeddings: bool = False
    head_dim: int | None = None
    """Where the key is left out; None: hidden_size / num_attention_heads."""
    qkv_bias: bool | None = None
    """None: the key ``attention_bias`` (false if left out) holds for both projections."""
    output_bias: bool = False
    groups_default: bool = False
    """Without ``num_key_value_heads`` every head has its own group; else the key is needed."""
    bias_key: str | None = None
    """A key that switches every bias at once (StarCoder 2), true if left out."""
    window: str = "none"
    """How layers get a sliding window: none, all, alternate (first local), upper (Qwen)."""
    rotary_percent: float = 1.0
    """Where ``partial_rotary_factor`` is left out."""
    default_window: int | None = None
    """Where the key ``sliding_window`` is left out."""


_FAMILIES: Mapping[str, _Family] = {
    "llama": _Family(groups_default=True),
    "mistral": _Family(window="all", default_window=4096),
    "qwen2": _Family(qkv_bias=True, window="upper", default_window=4096),
    "qwen3": _Family(qk_norm=True, head_dim=128, window="upper", default_window=4096),
    "gemma": _Family(
        activation_keys=("hidden_activation", "hidden_act"),
        activation="gelu",
        tied_embeddings=True,
        head_dim=256,
    ),
    "gemma2": _Family(
        activation_keys=("hidden_activation", "hidden_act"),
        activation="gelu",
        num_norms=4,
        tied_embeddings=True,
        head_dim=256,
        window="alternate",
        default_window=4096,
    ),
    "nemotron": _Family(
        groups_default=True,
        gated=False,
        activation="squared-relu",
        layernorm=True,
        rotary_percent=0.5,
    ),
    "phi3": _Family(groups_default=True, qkv_bias=False, window="all"),
    "starcoder2": _Family(
        gated=False,
        activation="gelu",
        layernorm=True,
        tied_embeddings=True,
        bias_key="use_bias",
        window="all",
    ),
}


def _decoder(config: ConfigReader, name: str, family: _Family) -> ModelSpec:
    """A decoder with Llama's key names."""
    hidden, heads, num_layers = config.sizes()
    attention_bias = config.flag("attention_bias", False)
    mlp_bias = config.flag("mlp_bias", False)
    qkv_bias = attention_bias if family.qkv_bias is None else family.qkv_bias
    output_bias = attention_bias if family.qkv_bias is None else family.output_bias
    if family.bias_key:
        qkv_bias = output_bias = mlp_bias = config.flag(family.bias_key, True)
    head_dim = config.whole("head_dim", default=family.head_dim or config.head_dim(hidden, heads))
    own_groups = family.groups_default or "num_key_value_heads" in config.config
    attention = Attention(
        num_heads=heads,
        num_query_groups=config.whole("num_key_value_heads", default=heads if own_groups else None),
        head_dim=head_dim,
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        qk_norm=family.qk_norm,
    )
    layer = Layer(
        attention,
        MLP(
            ffn_hidden_size=config.whole("intermediate_size"),
            gated=family.gated,
            bias=mlp_bias,
            activation=config.activation(family.activation_keys, family.activation),
        ),
        num_norms=family.num_norms,
    )
    windows = _windows(config, family, num_layers)
    layers = [replace(layer, attention=replace(attention, window=window)) for window in windows]
    return ModelSpec(
        name=name,
        hidden_size=hidden,
        vocab_size=config.whole("vocab_size"),
        seq_length=0,
        max_seq_length=config.whole("max_position_embeddings"),
        default_global_batch_tokens=0,
        blocks=blocks_of(layers),
        tied_embeddings=config.flag("tie_word_embeddings", family.tied_embeddings),
        rotary_base=config.number("rope_theta", default=10_000.0),
        rotary_percent=config.number("partial_rotary_factor", default=family.rotary_percent),
        norm="layernorm" if family.layernorm else "rmsnorm",
        norm_bias=family.layernorm,
        hidden_dropout=config.share("resid_pdrop", "residual_dropout", "hidden_dropout"),
        attention_dropout=config.share("attention_dropout"),
    )


def _windows(config: ConfigReader, family: _Family, num_layers: int) -> list[int | None]:
    """The sliding window of each layer, None where it sees everything."""
    window = config.optional_whole("sliding_window", default=family.default_window)
    if family.window == "none":
        return [None] * num_layers
    if family.window == "upper" and not config.flag("use_sliding_window", False):
        window = None
    kinds = config.layer_types(num_layers)
    if kinds is not None:
        local = [kind == "sliding_attention" for kind in kinds]
        if any(local) and window is None:
            raise SpecError("layers slide, but no window is stated", key="sliding_window")
    elif family.window == "upper":
        first = config.whole("max_window_layers", default=28, smallest=0)
        local = [index >= first for index in range(num_layers)]
    elif family.window == "alternate":
        local = [index % 2 == 0 for index in range(num_layers)]
    else:
        local = [True] * num_layers
    return [window if slides else None for slides in local]


def _layernorm_model(
    config: ConfigReader, name: str, hidden_size: int, blocks: tuple[Block, ...], **fields: Any
) -> ModelSpec:
    """What GPT-2, GPT-NeoX, Falcon, BLOOM and BERT have in common."""
    return ModelSpec(
        name=name,
        hidden_size=hidden_size,
        vocab_size=config.whole("vocab_size"),
        seq_length=0,
        default_global_batch_tokens=0,
        blocks=blocks,
        norm="layernorm",
        norm_bias=True,
        **fields,
    )


def _gpt2(config: ConfigReader, name: str) -> ModelSpec:
    hidden, heads, num_layers = config.sizes("n_embd", "n_head", "n_layer")
    mlp = MLP(
        ffn_hidden_size=config.whole("n_inner", default=4 * hidden),
        gated=False,
        bias=True,
        activation=config.activation(("activation_function",), "gelu"),
    )
    return _layernorm_model(
        config,
        name,
        hidden,
        (Block(num_layers, (Layer(config.biased_heads(hidden, heads), mlp),)),),
        max_seq_length=config.whole("n_positions"),
        tied_embeddings=config.flag("tie_word_embeddings", True),
        position_embedding="learned",
        hidden_dropout=config.share("resid_pdrop", default=0.1),
        attention_dropout=config.share("attn_pdrop", default=0.1),
    )


def _gpt_neox(config: ConfigReader, name: str) -> ModelSpec:
    hidden, heads, num_layers = config.sizes()
    bias = config.flag("attention_bias", True)
    attention = replace(config.biased_heads(hidden, heads), qkv_bias=bias, output_bias=bias)
    mlp = MLP(
        ffn_hidden_size=config.whole("intermediate_size"),
        gated=False,
        bias=True,
        activation=config.activation(("hidden_act",), "gelu"),
    )
    layer = Layer(attention, mlp, parallel=config.flag("use_parallel_residual", True))
    return _layernorm_model(
        config,
        name,
        hidden,
        (Block(num_layers, (layer,)),),
        max_seq_length=config.whole("max_position_embeddings"),
        tied_embeddings=config.flag("tie_word_embeddings", False),
        rotary_base=config.number("rotary_emb_base", default=10_000.0),
        rotary_percent=config.number("rotary_pct", default=0.25),
        hidden_dropout=config.share("hidden_dropout"),
        attention_dropout=config.share("attention_dropout"),
    )


def _falcon(config: ConfigReader, name: str) -> ModelSpec:
    """Falcon: the old parallel decoder (7B) has one norm a layer, the new one a norm a branch."""
    hidden, heads, num_layers = config.sizes(
        "hidden_size", "num_attention_heads|n_head", "num_hidden_layers|n_layer"
    )
    new = config.flag("new_decoder_architecture", False)
    multi_query = config.flag("multi_query", True)
    groups = config.whole("num_kv_heads|n_head_kv", default=heads)
    parallel = new or config.flag("parallel_attn", True)
    num_norms = config.whole("num_ln_in_parallel_attn", default=2) if new else 2 - parallel
    bias = config.flag("bias", False)
    attention = Attention(
        num_heads=heads,
        num_query_groups=groups if new or not multi_query else 1,
        head_dim=config.head_dim(hidden, heads),
        qkv_bias=bias,
        output_bias=bias,
    )
    mlp = MLP(
        ffn_hidden_size=config.whole("ffn_hidden_size", default=4 * hidden),
        gated=False,
        bias=bias,
        activation=config.activation(("activation",), "gelu"),
    )
    return _layernorm_model(
        config,
        name,
        hidden,
        (Block(num_layers, (Layer(attention, mlp, num_norms=num_norms, parallel=parallel),)),),
        max_seq_length=config.whole("max_position_embeddings", default=2048),
        tied_embeddings=config.flag("tie_word_embeddings", True),
        position_embedding="alibi" if config.flag("alibi", False) else "rope",
        rotary_base=config.number("rope_theta", default=10_000.0),
        hidden_dropout=config.share("hidden_dropout"),
        attention_dropout=config.share("attention_dropout"),
    )


def _bloom(config: ConfigReader, name: str) -> ModelSpec:
    """BLOOM: ALiBi sets no bound on the sequence; ``seq_length`` is what it was trained on."""
    hidden, heads, num_layers = config.sizes(
        "hidden_size|n_embed", "num_attention_heads|n_head", "num_hidden_layers|n_layer"
    )
    mlp = MLP(ffn_hidden_size=4 * hidden, gated=False, bias=True, activation="gelu")
    return _layernorm_model(
        config,
        name,
        hidden,
        (Block(num_layers, (Layer(config.biased_heads(hidden, heads), mlp),)),),
        max_seq_length=config.whole("seq_length"),
        tied_embeddings=config.flag("tie_word_embeddings", True),
        position_embedding="alibi",
        embedding_norm=True,
        hidden_dropout=config.share("hidden_dropout"),
        attention_dropout=config.share("attention_dropout"),
    )


def _bert(config: ConfigReader, name: str) -> ModelSpec:
    """BERT with its masked-language-model head, as it is trained, without pooler."""
    hidden, heads, num_layers = config.sizes()
    position_type = config.text("position_embedding_type", default="absolute")
    if position_type != "absolute":
        message = f"expected 'absolute', got {shown(position_type)}"
        raise SpecError(message, key="position_embedding_type")
    mlp = MLP(
        ffn_hidden_size=config.whole("intermediate_size"),
        gated=False,
        bias=True,
        activation=config.activation(("hidden_act",), "gelu"),
    )
    attention = replace(config.biased_heads(hidden, heads), causal=config.flag("is_decoder", False))
    return _layernorm_model(
        config,
        name,
        hidden,
        (Block(num_layers, (Layer(attention, mlp),)),),
        max_seq_length=config.whole("max_position_embeddings"),
        tied_embeddings=config.flag("tie_word_embeddings", True),
        position_embedding="learned",
        embedding_norm=True,
        final_norm=False,
        num_token_types=config.whole("type_vocab_size", default=2),
        output_bias=True,
        head_transform=True,
        hidden_dropout=config.share("hidden_dropout_prob", default=0.1),
        attention_dropout=config.share("attention_probs_dropout_prob", default=0.1),
    )


_BUILDERS: Mapping[str, Callable[[ConfigReader, str], ModelSpec]] = {
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "falcon": _falcon,
    "bloom": _bloom,
    "bert": _bert,
}
_SPECIAL_BUILDERS = {
    **EXPERT_BUILDERS,
    **HYBRID_BUILDERS,
    **ENCODER_DECODER_BUILDERS,
    **VISION_BUILDERS,
}
"""Architectures with sub-layers of their own, which also judge their own keys."""
