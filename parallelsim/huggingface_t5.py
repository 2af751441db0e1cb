"""Hugging Face configurations of encoder-decoders: T5 and Switch Transformers.

Keys and defaults are those of each architecture's configuration class in the transformers library.
Relative positions bound no sequence; the encoder's is ``n_positions``, 512 where it is left out, as
both were pre-trained (arXiv:1910.10683 section 3.1.2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from parallelsim.errors import SpecError
from parallelsim.huggingface_config import ACTIVATIONS, ConfigReader, blocks_of
from parallelsim.layers import MLP, Attention, Layer, MixtureOfExperts
from parallelsim.model import ModelSpec
from parallelsim.yaml_io import shown


def _model(
    config: ConfigReader,
    name: str,
    encoder: Sequence[MLP | MixtureOfExperts],
    decoder: Sequence[MLP | MixtureOfExperts],
) -> ModelSpec:
    """The encoder and the decoder, from the feed-forward part of each of their layers."""
    heads, length = config.whole("num_heads"), config.whole("n_positions", default=512)
    own = Attention(heads, heads, config.whole("d_kv"))
    seen = replace(own, causal=False)
    cross = replace(seen, kv_seq_length=length)
    lower = [_layer(Layer(seen, seq_length=length), part) for part in encoder]
    upper = [_layer(Layer(own, cross_attention=cross, num_norms=3), part) for part in decoder]
    dropout = config.share("dropout_rate", default=0.1)
    return ModelSpec(
        name=name,
        hidden_size=config.whole("d_model"),
        vocab_size=config.whole("vocab_size"),
        seq_length=0,
        max_seq_length=length,
        default_global_batch_tokens=0,
        blocks=(*blocks_of(lower), *blocks_of(upper)),
        tied_embeddings=config.flag("tie_word_embeddings", True),
        position_embedding="relative",
        relative_position_buckets=config.whole("relative_attention_num_buckets", default=32),
        hidden_dropout=dropout,
        attention_dropout=dropout,
    )


def _layer(layer: Layer, part: MLP | MixtureOfExperts) -> Layer:
    if isinstance(part, MLP):
        return replace(layer, mlp=part)
    return replace(layer, experts=part)


def _mlp(config: ConfigReader, key: str) -> MLP:
    """``relu`` or ``gated-gelu`` under the key."""
    kind = config.text(key, default="relu")
    gated, name = kind.startswith("gated-"), kind.removeprefix("gated-")
    if name not in ACTIVATIONS:
        raise SpecError(f"expected relu or gated-gelu, got {shown(kind)}", key=key)
    return MLP(config.whole("d_ff"), gated=gated, activation=ACTIVATIONS[name])


def _stacks(config: ConfigReader) -> tuple[int, int]:
    """Layers of the encoder and of the decoder."""
    names = ("num_layers", "num_decoder_layers|num_layers")
    encoder, decoder = (config.sizes("d_model", "num_heads", name)[2] for name in names)
    return encoder, decoder


def _t5(config: ConfigReader, name: str) -> ModelSpec:
    encoder, decoder = _stacks(config)
    mlp = _mlp(config, "feed_forward_proj")
    return _model(config, name, [mlp] * encoder, [mlp] * decoder)


def _switch(config: ConfigReader, name: str) -> ModelSpec:
    """Experts in every ``num_layers / num_sparse_layers``-th layer of a stack, from the second."""
    encoder, decoder = _stacks(config)
    mlp = _mlp(config, "dense_act_fn")
    experts = MixtureOfExperts(
        num_experts=config.whole("num_experts"),
        top_k=1,
        ffn_hidden_size=mlp.ffn_hidden_size,
        gated=mlp.gated,
        activation=mlp.activation,
        router_bias=config.flag("router_bias", False),
    )

    def stack(num_layers: int, key: str) -> list[MLP | MixtureOfExperts]:
        num_sparse = config.whole(key, smallest=0)
        step = num_layers // num_sparse if num_sparse else 0
        if num_sparse > num_layers:
            raise SpecError(f"expected at most {num_layers} layers, got {num_sparse}", key=key)
        return [
            experts if step and (step == 1 or index % step == 1) else mlp
            for index in range(num_layers)
        ]

    return _model(
        config,
        name,
        stack(encoder, "num_sparse_encoder_layers"),
        stack(decoder, "num_sparse_decoder_layers"),
    )


ENCODER_DECODER_BUILDERS: Mapping[str, Callable[[ConfigReader, str], ModelSpec]] = {
    "t5": _t5,
    "switch_transformers": _switch,
}
