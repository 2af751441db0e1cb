"""Hugging Face configurations of vision transformers (``vit``).

Keys and defaults are those of ``ViTConfig`` and ``ViTForImageClassification`` in the transformers
library; the pooler of ``ViTModel`` is not built for classification.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from parallelsim.custom_layers import custom_from_file
from parallelsim.errors import SpecError
from parallelsim.huggingface_config import ConfigReader
from parallelsim.layers import MLP, Attention, Block, Layer
from parallelsim.model import ModelSpec
from parallelsim.yaml_io import shown


def _vit(config: ConfigReader, name: str) -> ModelSpec:
    """Patches and a class token, an encoder of bidirectional layers, a classifier."""
    hidden, heads, layers = config.sizes()
    size, patch = config.whole("image_size", default=224), config.whole("patch_size", default=16)
    if size % patch:
        raise SpecError(f"images of {size} do not divide by {patch}", key="patch_size")
    bias = config.flag("qkv_bias", True)
    attention = Attention(
        heads, heads, config.head_dim(hidden, heads), bias, output_bias=True, causal=False
    )
    mlp = MLP(
        config.whole("intermediate_size", default=3072),
        gated=False,
        bias=True,
        activation=config.activation(("hidden_act",), "gelu"),
    )
    tokens = (size // patch) ** 2 + 1
    return ModelSpec(
        name=name,
        hidden_size=hidden,
        vocab_size=0,
        seq_length=tokens,
        max_seq_length=tokens,
        default_global_batch_tokens=0,
        blocks=(Block(layers, (Layer(attention, mlp),)),),
        position_embedding="learned",
        norm="layernorm",
        norm_bias=True,
        input_operators=custom_from_file(
            _patches(size, patch, config.whole("num_channels", default=3))
        ),
        output_operators=custom_from_file(_classifier(_num_labels(config))),
        hidden_dropout=config.share("hidden_dropout_prob"),
        attention_dropout=config.share("attention_probs_dropout_prob"),
    )


def _num_labels(config: ConfigReader) -> int:
    names = config.value("id2label")
    if names is not None and not isinstance(names, dict):
        raise SpecError(f"expected a mapping, got {shown(names)}", key="id2label")
    return len(names) if names else config.whole("num_labels", 2)


def _patches(size: int, patch: int, channels: int) -> list[Mapping[str, Any]]:
    """As in the catalogue's ViT-L/16: one convolution, then the class token and positions."""
    sizes = {"height": size, "width": size, "in_channels": channels, "out_channels": "hidden"}
    sizes |= {"kernel_size": patch, "stride": patch, "parameters": "hidden"}
    image = f"2 * samples * {size} * {size} * {channels}"
    moved = {"forward_bytes": "6 * tokens * hidden", "backward_bytes": "4 * tokens * hidden"}
    return [
        {"name": "patches", "kind": "convolution", **sizes, "saved_bytes": image},
        {"name": "class token", "kind": "memory-bound", **moved, "parameters": "hidden"},
    ]


def _classifier(num_labels: int) -> list[Mapping[str, Any]]:
    """One product for each image, and the loss."""
    product = {"m": "samples", "n": num_labels, "k": "hidden", "parameters": num_labels}
    moved = f"8 * samples * {num_labels}"
    loss = {"forward_bytes": moved, "backward_bytes": moved}
    return [
        {"name": "classifier", "kind": "gemm", **product, "saved_bytes": "2 * samples * hidden"},
        {
            "name": "loss",
            "kind": "memory-bound",
            **loss,
            "saved_bytes": f"12 * samples * {num_labels}",
        },
    ]


VISION_BUILDERS: Mapping[str, Callable[[ConfigReader, str], ModelSpec]] = {"vit": _vit}
