"""BERT and T5 as Megatron-LM builds them (megatron/core/models/bert, megatron/core/models/T5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from parallelsim.errors import SpecError
from parallelsim.importers.arguments import Arguments
from parallelsim.layers import Attention, Layer

DECODER_LENGTH = "--decoder-seq-length"
"""Only models with an encoder and a decoder have it."""


def bert_edges(arguments: Arguments) -> dict[str, Any]:
    """What BERT has beside its layers: the transform of its masked-language-model head and, for
    pairs of sentences, token types and a pooler.
    """
    pairs = not arguments.has("--bert-no-binary-head")
    return {
        "num_token_types": 2 if pairs else 0,
        "pooler": pairs,
        "head_transform": True,
        "output_bias": True,
    }


def encoder(arguments: Arguments, layers: Sequence[Layer], length: int | None) -> list[Layer]:
    """The layers with attention to both sides, of sequences of ``length`` where not the model's."""
    return [
        replace(layer, attention=_softmax(arguments, layer, causal=False), seq_length=length)
        for layer in layers
    ]


def encoder_decoder(arguments: Arguments, layers: Sequence[Layer]) -> list[Layer]:
    """An encoder of these layers and a decoder of as many, or as many as the flags say, which reads
    the encoder's output.
    """
    length = arguments.whole("--seq-length")
    number = arguments.whole("--decoder-num-layers", len(layers))
    decoder = replace(
        layers[0],
        cross_attention=_softmax(arguments, layers[0], causal=False, kv_seq_length=length),
    )
    return [*encoder(arguments, layers, length), *[decoder] * number]


def _softmax(arguments: Arguments, layer: Layer, **changes: Any) -> Attention:
    if not isinstance(layer.attention, Attention) or not layer.mlp:
        message = "an encoder has softmax attention and a dense MLP in each layer"
        raise SpecError(f"the flags say another kind of layers; {message}", file=arguments.file)
    return replace(layer.attention, **changes)
