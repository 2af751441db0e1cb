"""Hugging Face configurations of mixtures of experts, from Mixtral to DeepSeek.

Keys and defaults are those of each architecture's configuration class in the transformers library
(``src/transformers/models/*/configuration_*.py``; Grok-1's comes with its checkpoint). DeepSeek-V3,
Kimi K2 and GPT-OSS are released quantised: their ``quantization_config`` says nothing of the
architecture and is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from parallelsim.errors import SpecError
from parallelsim.huggingface_config import ConfigReader, blocks_of
from parallelsim.layers import MLP, Attention, LatentAttention, Layer, MixtureOfExperts
from parallelsim.model import ModelSpec
from parallelsim.yaml_io import shown


def _model(config: ConfigReader, name: str, layers: Sequence[Layer], **fields: Any) -> ModelSpec:
    """What these architectures have in common: RoPE, RMSNorm and an embedding."""
    theta = fields.pop("rope_theta", 10_000.0)
    tied = fields.pop("tied_embeddings", config.flag("tie_word_embeddings", False))
    return ModelSpec(
        name=name,
        hidden_size=config.whole("hidden_size"),
        vocab_size=config.whole("vocab_size"),
        seq_length=0,
        max_seq_length=config.whole("max_position_embeddings"),
        default_global_batch_tokens=0,
        blocks=blocks_of(layers),
        tied_embeddings=tied,
        rotary_base=config.number("rope_theta", default=theta),
        attention_dropout=config.share("attention_dropout"),
        **fields,
    )


def _attention(config: ConfigReader, head_dim: int | None = None, **fields: Any) -> Attention:
    """Grouped heads; biases as ``attention_bias`` says, unless given."""
    hidden, heads, _ = config.sizes()
    bias = config.flag("attention_bias", fields.pop("bias", False))
    size = config.whole("head_dim", default=head_dim or config.head_dim(hidden, heads))
    biases = {"qkv_bias": bias, "output_bias": bias}
    groups = config.whole("num_key_value_heads", default=heads)
    return Attention(heads, groups, size, **{**biases, **fields})


def _activation(config: ConfigReader) -> str:
    return config.activation(("hidden_act",), "silu")


def _dense(config: ConfigReader, key: str = "intermediate_size") -> MLP:
    """The gated network of layers without experts."""
    return MLP(config.whole(key), gated=True, activation=_activation(config))


def _refuse_window(config: ConfigReader, key: str) -> None:
    """Published configurations leave the window out or switch it off."""
    if config.value(key):
        message = "a sliding window is not supported with experts of this architecture"
        raise SpecError(message, key=key)


def _mixtral(config: ConfigReader, name: str) -> ModelSpec:
    _refuse_window(config, "sliding_window")
    experts = MixtureOfExperts(
        num_experts=config.whole("num_local_experts"),
        top_k=config.whole("num_experts_per_tok"),
        ffn_hidden_size=config.whole("intermediate_size"),
        gated=True,
        activation=_activation(config),
    )
    _, _, num_layers = config.sizes()
    layer = Layer(_attention(config), experts=experts)
    return _model(config, name, [layer] * num_layers, rope_theta=1e6)


def _grok_1(config: ConfigReader, name: str) -> ModelSpec:
    """Norms before and after each sub-layer; scores are chosen after the softmax, GELU is fixed."""
    experts = MixtureOfExperts(
        num_experts=config.whole("num_experts|num_local_experts"),
        top_k=config.whole("num_experts_per_tok"),
        ffn_hidden_size=config.whole("intermediate_size"),
        gated=True,
        activation="gelu",
        router_pre_softmax=True,
    )
    _, _, num_layers = config.sizes()
    layer = Layer(_attention(config), experts=experts, num_norms=4)
    tied = config.flag("tie_word_embeddings", True)
    return _model(config, name, [layer] * num_layers, tied_embeddings=tied)


def _qwen_moe(config: ConfigReader, name: str, attention: Attention, **more: Any) -> ModelSpec:
    """Experts in every ``decoder_sparse_step``-th layer that is not in ``mlp_only_layers``."""
    _refuse_window(config, "use_sliding_window")
    _, _, num_layers = config.sizes()
    experts = MixtureOfExperts(
        num_experts=config.whole("num_experts"),
        top_k=config.whole("num_experts_per_tok"),
        ffn_hidden_size=config.whole("moe_intermediate_size"),
        gated=True,
        activation=_activation(config),
        router_pre_softmax=not config.flag("norm_topk_prob", False),
        **more,
    )
    step = config.whole("decoder_sparse_step", default=1)
    dense = set(config.whole_list("mlp_only_layers", num_layers))
    layers = [
        Layer(attention, _dense(config))
        if index in dense or (index + 1) % step
        else Layer(attention, experts=experts)
        for index in range(num_layers)
    ]
    return _model(config, name, layers)


def _qwen2_moe(config: ConfigReader, name: str) -> ModelSpec:
    shared = config.whole("shared_expert_intermediate_size")
    attention = _attention(config, qkv_bias=config.flag("qkv_bias", True), output_bias=False)
    return _qwen_moe(config, name, attention, shared_ffn_hidden_size=shared, shared_gate=True)


def _qwen3_moe(config: ConfigReader, name: str) -> ModelSpec:
    return _qwen_moe(config, name, _attention(config, qk_norm=True))


def _gpt_oss(config: ConfigReader, name: str) -> ModelSpec:
    """Local and global layers in turn, sinks, biases everywhere, and a SiLU whose halves are
    clamped (the architecture's own; ``hidden_act`` says silu).
    """
    _, _, num_layers = config.sizes()
    kinds = config.layer_types(num_layers) or [
        "full_attention" if index % 2 else "sliding_attention" for index in range(num_layers)
    ]
    window = config.optional_whole("sliding_window", default=128)
    if window is None and "sliding_attention" in kinds:
        raise SpecError("layers slide, but no window is stated", key="sliding_window")
    experts = MixtureOfExperts(
        num_experts=config.whole("num_local_experts"),
        top_k=config.whole("num_experts_per_tok|experts_per_token"),
        ffn_hidden_size=config.whole("intermediate_size"),
        gated=True,
        activation="clamped-silu",
        bias=True,
        router_bias=True,
    )
    windows = {"sliding_attention": window, "full_attention": None}
    attentions = {
        kind: _attention(config, 64, bias=True, sinks=True, window=windows[kind])
        for kind in set(kinds)
    }
    layers = [Layer(attentions[kind], experts=experts) for kind in kinds]
    return _model(config, name, layers, rope_theta=150_000.0)


def _llama4(config: ConfigReader, name: str) -> ModelSpec:
    """The text model; of a whole configuration its ``text_config``.

    Every fourth layer sees everything (and has no RoPE), the others blocks of
    ``attention_chunk_size`` tokens. Its query/key norm has no parameters.
    """
    text = config.part("text_config") if config.text("model_type") == "llama4" else config
    _, _, num_layers = text.sizes()
    experts = MixtureOfExperts(
        num_experts=text.whole("num_local_experts"),
        top_k=text.whole("num_experts_per_tok"),
        ffn_hidden_size=text.whole("intermediate_size"),
        gated=True,
        activation=_activation(text),
        shared_ffn_hidden_size=text.whole("intermediate_size"),
        router="sigmoid",
        scales_input=True,
    )
    every = text.whole("interleave_moe_layer_step", default=1)
    stated = text.value("moe_layers") is not None
    sparse = text.whole_list("moe_layers", num_layers)
    sparse = sparse if stated else list(range(every - 1, num_layers, every))
    chunk = text.optional_whole("attention_chunk_size", default=8192)
    whole = _full_layers(text, num_layers)
    l2_norm = text.flag("use_qk_norm", True)
    local = _attention(text, window=chunk, chunked=chunk is not None, qk_l2_norm=l2_norm)
    full = _attention(text, rope=False)
    layers = []
    for index in range(num_layers):
        attention = full if whole[index] else local
        if index in sparse:
            layers.append(Layer(attention, experts=experts))
        else:
            layers.append(Layer(attention, _dense(text, "intermediate_size_mlp")))
    return _model(text, name, layers, rope_theta=500_000.0)


def _full_layers(text: ConfigReader, num_layers: int) -> list[bool]:
    """Whether each layer is one without RoPE, which sees everything."""
    rotary = text.whole_list("no_rope_layers", 2)
    if rotary and len(rotary) != num_layers:
        message = f"expected a list of {num_layers}, got {shown(rotary)}"
        raise SpecError(message, key="no_rope_layers")
    every = text.whole("no_rope_layer_interval", default=4)
    return [not turned for turned in rotary] or [
        (index + 1) % every == 0 for index in range(num_layers)
    ]


def _deepseek(config: ConfigReader, name: str) -> ModelSpec:
    """DeepSeek-V2, DeepSeek-V3 and Kimi K2: the first layers are dense."""
    if config.flag("attention_bias", False):
        raise SpecError("biases of latent attention are not supported", key="attention_bias")
    if config.whole("moe_layer_freq", default=1) != 1:
        raise SpecError("expected experts in every layer after the first", key="moe_layer_freq")
    _, heads, num_layers = config.sizes()
    attention = LatentAttention(
        num_heads=heads,
        kv_lora_rank=config.whole("kv_lora_rank"),
        qk_nope_head_dim=config.whole("qk_nope_head_dim"),
        qk_rope_head_dim=config.whole("qk_rope_head_dim"),
        v_head_dim=config.whole("v_head_dim"),
        q_lora_rank=config.optional_whole("q_lora_rank", default=None),
    )
    num_dense = config.whole("first_k_dense_replace", default=0, smallest=0)
    dense = [Layer(attention, _dense(config))] * min(num_dense, num_layers)
    sparse = [Layer(attention, experts=_deepseek_experts(config))] * (num_layers - len(dense))
    mtp = config.whole("num_nextn_predict_layers", default=0, smallest=0)
    return _model(config, name, dense + sparse, num_mtp_layers=mtp)


def _deepseek_experts(config: ConfigReader) -> MixtureOfExperts:
    """V2 routes by softmax; V3 and Kimi K2 by sigmoid with a bias that balances the experts."""
    latest = config.text("model_type") != "deepseek_v2"
    router = config.text("scoring_func", default="sigmoid" if latest else "softmax")
    method = config.text("topk_method", default="noaux_tc" if latest else "greedy")
    grouped = method != "greedy"
    width = config.whole("moe_intermediate_size")
    shared = config.whole("n_shared_experts", default=0, smallest=0)
    return MixtureOfExperts(
        num_experts=config.whole("n_routed_experts"),
        top_k=config.whole("num_experts_per_tok"),
        ffn_hidden_size=width,
        gated=True,
        activation=_activation(config),
        shared_ffn_hidden_size=shared * width,
        router=router,
        router_bias=method == "noaux_tc",
        num_groups=config.whole("n_group", default=1) if grouped else 1,
        group_top_k=config.whole("topk_group", default=1) if grouped else 1,
        router_pre_softmax=router == "softmax" and not config.flag("norm_topk_prob", latest),
        score_scale=config.number("routed_scaling_factor", 2.5 if latest else 1.0),
    )


EXPERT_BUILDERS: Mapping[str, Callable[[ConfigReader, str], ModelSpec]] = {
    "mixtral": _mixtral,
    "grok-1": _grok_1,
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _qwen3_moe,
    "gpt_oss": _gpt_oss,
    "llama4": _llama4,
    "llama4_text": _llama4,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "kimi_k2": _deepseek,
}
