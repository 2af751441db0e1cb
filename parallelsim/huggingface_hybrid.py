"""Hugging Face configurations of state-space models and hybrids: Nemotron-H, Bamba, Jamba, Mamba.

Keys and defaults are those of each architecture's configuration class in the transformers library
(``src/transformers/models/*/configuration_*.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from parallelsim.errors import SpecError
from parallelsim.huggingface_config import ConfigReader, blocks_of
from parallelsim.layer_checks import LIMITS
from parallelsim.layers import (
    MLP,
    Attention,
    Layer,
    MixtureOfExperts,
    SelectiveScan,
    StateSpace,
)
from parallelsim.model import ModelSpec
from parallelsim.yaml_io import shown

_SYMBOLS: Mapping[str, str] = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_MTP = "num_nextn_predict_layers"
_LAYER_NAMES: Mapping[str, str] = {
    "mamba": "mamba",
    "linear_attention": "mamba",
    "attention": "attention",
    "full_attention": "attention",
    "mlp": "mlp",
    "moe": "moe",
}


def _model(config: ConfigReader, name: str, layers: Sequence[Layer], **fields: Any) -> ModelSpec:
    positions = fields.pop("position_embedding", "none")
    longest = fields.pop("max_seq_length", None) or config.whole("max_position_embeddings")
    return ModelSpec(
        name=name,
        hidden_size=config.whole("hidden_size"),
        vocab_size=config.whole("vocab_size"),
        seq_length=0,
        max_seq_length=longest,
        default_global_batch_tokens=0,
        blocks=blocks_of(layers),
        position_embedding=positions,
        **fields,
    )


def _refuse_bias(config: ConfigReader, *keys: str) -> None:
    for key in keys:
        if config.flag(key, False):
            raise SpecError("biases of these projections are not supported", key=key)


def _pattern(config: ConfigReader) -> list[str]:
    """mamba, attention, mlp or moe for each layer of a Nemotron-H."""
    limit = LIMITS["num_layers"][1]
    if config.value("hybrid_override_pattern") is not None:
        names = _spelled(config, "hybrid_override_pattern", limit)
    else:
        given = config.value("layers_block_type")
        good = isinstance(given, list) and len(given) <= limit
        if not good or not all(isinstance(each, str) and each in _LAYER_NAMES for each in given):
            message = f"expected a list of {', '.join(_LAYER_NAMES)}, got {shown(given)}"
            raise SpecError(message, key="hybrid_override_pattern or layers_block_type")
        names = [_LAYER_NAMES[each] for each in given]
    stated = config.whole("num_hidden_layers", default=len(names) or 1)
    if not names or stated != len(names):
        message = f"expected the {len(names)} of the pattern, got {stated}"
        raise SpecError(message, key="num_hidden_layers")
    return names


def _spelled(config: ConfigReader, key: str, limit: int) -> list[str]:
    """The kinds of layers that a text of one letter each spells."""
    text = config.text(key)
    if not text or len(text) > limit or set(text) - set(_SYMBOLS):
        message = f"expected up to {limit} of {' '.join(_SYMBOLS)}, got {shown(text)}"
        raise SpecError(message, key=key)
    return [_SYMBOLS[symbol] for symbol in text]


def _predicted(config: ConfigReader) -> list[str]:
    """Kinds of layers of one multi-token-prediction module; none without."""
    number = config.whole(_MTP, default=0, smallest=0)
    if number > 1 and config.flag("mtp_use_repeated_layer", True):
        message = "modules that share their weights are not supported; set it to 1"
        raise SpecError(message, key=_MTP)
    return _spelled(config, "mtp_hybrid_override_pattern", 100) if number else []


def _nemotron_h(config: ConfigReader, name: str) -> ModelSpec:
    """Layers of one sub-layer each, in the order that a pattern spells; no position embedding."""
    _refuse_bias(config, "use_bias", "mamba_proj_bias", "mlp_bias")
    predicted, names = _predicted(config), _pattern(config)
    heads = config.whole("num_attention_heads")
    bias = config.flag("attention_bias", False)
    parts: dict[str, Callable[[], Layer]] = {
        "mamba": lambda: Layer(state_space=_nemotron_mixer(config), num_norms=1),
        "attention": lambda: Layer(
            Attention(
                heads,
                config.whole("num_key_value_heads", default=heads),
                config.whole("head_dim|attention_head_dim", default=128),
                qkv_bias=bias,
                output_bias=bias,
            ),
            num_norms=1,
        ),
        "mlp": lambda: Layer(
            mlp=MLP(config.whole("intermediate_size"), gated=False, activation=_relu2(config)),
            num_norms=1,
        ),
        "moe": lambda: Layer(experts=_nemotron_experts(config), num_norms=1),
    }
    layers = {kind: parts[kind]() for kind in dict.fromkeys([*names, *predicted])}
    return _model(
        config,
        name,
        [layers[kind] for kind in names],
        num_mtp_layers=config.whole(_MTP, default=0, smallest=0),
        mtp_layers=tuple(layers[kind] for kind in predicted),
        tied_embeddings=config.flag("tie_word_embeddings", False),
        hidden_dropout=config.share("hidden_dropout"),
        attention_dropout=config.share("attention_dropout"),
    )


def _relu2(config: ConfigReader) -> str:
    return config.activation(("mlp_hidden_act",), "squared-relu")


def _nemotron_mixer(config: ConfigReader) -> StateSpace:
    return StateSpace(
        num_heads=config.whole("mamba_num_heads"),
        head_dim=config.whole("mamba_head_dim"),
        state_size=config.whole("ssm_state_size"),
        num_groups=config.whole("n_groups|mamba_n_groups"),
        conv_kernel=config.whole("conv_kernel|mamba_d_conv", default=4),
        chunk_size=config.whole("chunk_size|mamba_chunk_size", default=128),
        conv_bias=config.flag("use_conv_bias", True),
    )


def _nemotron_experts(config: ConfigReader) -> MixtureOfExperts:
    """Ungated experts behind a sigmoid router with a balancing bias."""
    width = config.whole("moe_shared_expert_intermediate_size")
    return MixtureOfExperts(
        num_experts=config.whole("n_routed_experts"),
        top_k=config.whole("num_experts_per_tok"),
        ffn_hidden_size=config.whole("moe_intermediate_size"),
        gated=False,
        activation=_relu2(config),
        shared_ffn_hidden_size=width * config.whole("n_shared_experts", default=1, smallest=0),
        router="sigmoid",
        router_bias=True,
        num_groups=config.whole("n_group", default=1),
        group_top_k=config.whole("topk_group", default=1),
        latent_size=config.optional_whole("moe_latent_size", default=None),
        score_scale=config.number("routed_scaling_factor", 1.0),
    )


def _bamba(config: ConfigReader, name: str) -> ModelSpec:
    """A mixer and an MLP in every layer; attention in place of the mixer in a few."""
    _refuse_bias(config, "mamba_proj_bias")
    hidden, heads, num_layers = config.sizes()
    mixers = config.whole("mamba_n_heads")
    inner = config.whole("mamba_expand", default=2) * hidden
    auto = config.value("mamba_d_head") in (None, "auto")
    mixer = StateSpace(
        num_heads=mixers,
        head_dim=inner // mixers if auto else config.whole("mamba_d_head"),
        state_size=config.whole("mamba_d_state"),
        num_groups=config.whole("mamba_n_groups"),
        conv_kernel=config.whole("mamba_d_conv", default=4),
        chunk_size=config.whole("mamba_chunk_size", default=256),
        conv_bias=config.flag("mamba_conv_bias", True),
    )
    groups = config.whole("num_key_value_heads", default=heads)
    attention = Attention(heads, groups, config.head_dim(hidden, heads))
    mlp = MLP(
        config.whole("intermediate_size"),
        gated=True,
        activation=config.activation(("hidden_act",), "silu"),
    )
    attends = config.whole_list("attn_layer_indices", num_layers)
    layers = [
        Layer(attention, mlp) if index in attends else Layer(state_space=mixer, mlp=mlp)
        for index in range(num_layers)
    ]
    return _model(
        config,
        name,
        layers,
        position_embedding="rope",
        rotary_base=config.number("rope_theta", default=10_000.0),
        rotary_percent=config.number("partial_rotary_factor", default=0.5),
        tied_embeddings=config.flag("tie_word_embeddings", False),
        attention_dropout=config.share("attention_dropout"),
    )


def _mamba2(config: ConfigReader, name: str) -> ModelSpec:
    """Mixers alone; nothing bounds the sequence."""
    _refuse_bias(config, "use_bias")
    mixer = StateSpace(
        num_heads=config.whole("num_heads"),
        head_dim=config.whole("head_dim"),
        state_size=config.whole("state_size"),
        num_groups=config.whole("n_groups"),
        conv_kernel=config.whole("conv_kernel", default=4),
        chunk_size=config.whole("chunk_size", default=256),
        conv_bias=config.flag("use_conv_bias", True),
    )
    return _model(
        config,
        name,
        [Layer(state_space=mixer, num_norms=1)] * _num_layers(config),
        max_seq_length=LIMITS["max_seq_length"][1],
        tied_embeddings=config.flag("tie_word_embeddings", False),
    )


def _mamba(config: ConfigReader, name: str) -> ModelSpec:
    """Mamba-1 mixers alone; nothing bounds the sequence."""
    falcon = config.text("model_type") == "falcon_mamba"
    mixer = SelectiveScan(
        inner_width=config.whole("intermediate_size"),
        state_size=config.whole("state_size", default=16),
        dt_rank=_dt_rank(config, "time_step_rank"),
        conv_kernel=config.whole("conv_kernel", default=4),
        conv_bias=config.flag("use_conv_bias", True),
    )
    _refuse_bias(config, "use_bias")
    layer = Layer(state_space=mixer, num_norms=1)
    return _model(
        config,
        name,
        [layer] * _num_layers(config),
        max_seq_length=LIMITS["max_seq_length"][1],
        tied_embeddings=config.flag("tie_word_embeddings", not falcon),
    )


def _num_layers(config: ConfigReader) -> int:
    number = config.whole("num_hidden_layers")
    if number > LIMITS["num_layers"][1]:
        message = f"expected at most {LIMITS['num_layers'][1]}, got {number}"
        raise SpecError(message, key="num_hidden_layers")
    return number


def _dt_rank(config: ConfigReader, key: str) -> int:
    """A number, or ``auto``: a sixteenth of the hidden size, rounded up."""
    if config.value(key) in (None, "auto"):
        return -(-config.whole("hidden_size") // 16)
    return config.whole(key)


def _jamba(config: ConfigReader, name: str) -> ModelSpec:
    """Mamba-1 mixers, attention without positions in every eighth layer, experts in every second;
    scores are chosen after the softmax.
    """
    _refuse_bias(config, "mamba_proj_bias")
    hidden, heads, num_layers = config.sizes()
    mixer = SelectiveScan(
        inner_width=config.whole("mamba_expand", default=2) * hidden,
        state_size=config.whole("mamba_d_state", default=16),
        dt_rank=_dt_rank(config, "mamba_dt_rank"),
        conv_kernel=config.whole("mamba_d_conv", default=4),
        conv_bias=config.flag("mamba_conv_bias", True),
        inner_norms=True,
    )
    groups = config.whole("num_key_value_heads", default=8)
    attention = Attention(heads, groups, config.head_dim(hidden, heads))
    width = config.whole("intermediate_size")
    activation = config.activation(("hidden_act",), "silu")
    dense = MLP(width, gated=True, activation=activation)
    number = config.whole("num_experts", default=16)
    experts = MixtureOfExperts(
        num_experts=number,
        top_k=config.whole("num_experts_per_tok", default=2),
        ffn_hidden_size=width,
        gated=True,
        activation=activation,
        router_pre_softmax=True,
    )
    attends, sparse = (
        _every(config, kind, num_layers, *usual) for kind, usual in _JAMBA_PERIODS.items()
    )
    layers = [
        Layer(
            attention=attention if attends[index] else None,
            state_space=None if attends[index] else mixer,
            experts=experts if sparse[index] and number > 1 else None,
            mlp=None if sparse[index] and number > 1 else dense,
        )
        for index in range(num_layers)
    ]
    return _model(
        config,
        name,
        layers,
        tied_embeddings=config.flag("tie_word_embeddings", False),
        attention_dropout=config.share("attention_dropout"),
    )


_JAMBA_PERIODS: Mapping[str, tuple[int, int]] = {"attn": (8, 4), "expert": (2, 1)}
"""Kind of layer -> (period, offset) where the keys are left out."""


def _every(config: ConfigReader, kind: str, number: int, period: int, offset: int) -> list[bool]:
    """Which layers are ``offset`` behind a multiple of the period."""
    period = config.whole(f"{kind}_layer_period", default=period)
    offset = config.whole(f"{kind}_layer_offset", default=offset, smallest=0)
    if offset >= period:
        message = f"expected less than {kind}_layer_period={period}, got {offset}"
        raise SpecError(message, key=f"{kind}_layer_offset")
    return [index % period == offset for index in range(number)]


HYBRID_BUILDERS: Mapping[str, Callable[[ConfigReader, str], ModelSpec]] = {
    "nemotron_h": _nemotron_h,
    "bamba": _bamba,
    "mamba2": _mamba2,
    "mamba": _mamba,
    "falcon_mamba": _mamba,
    "jamba": _jamba,
}
