"""What each kind of sub-layer asks of one rank: shapes, bytes, parameters, saved tensors.

:func:`work` turns a sub-layer of the model into a :class:`Work`; ``costs`` turns works into
seconds. A new kind is one more file here and one more line in ``_KINDS``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from parallelsim.cluster import AcceleratorSpec
from parallelsim.custom_layers import Custom
from parallelsim.framework import FrameworkSpec
from parallelsim.layers import (
    MLP,
    Attention,
    LatentAttention,
    Layer,
    MixtureOfExperts,
    SelectiveScan,
    StateSpace,
    SubLayer,
)
from parallelsim.model import ModelSpec
from parallelsim.operators import FloatArray, OperatorKeys
from parallelsim.sublayers.adapters import adapted
from parallelsim.sublayers.attention import attention_work
from parallelsim.sublayers.custom import custom_work, input_elements
from parallelsim.sublayers.experts import experts_work
from parallelsim.sublayers.latent_attention import latent_attention_work
from parallelsim.sublayers.mlp import mlp_work
from parallelsim.sublayers.state_space import selective_scan_work, state_space_work
from parallelsim.sublayers.work import Exchange, Place, Repeat, Work

__all__ = ["Exchange", "Repeat", "Work", "mean_input", "work"]

_KINDS: dict[type, Callable[[Any, Place], Work]] = {
    Attention: attention_work,
    LatentAttention: latent_attention_work,
    StateSpace: state_space_work,
    SelectiveScan: selective_scan_work,
    MLP: mlp_work,
    MixtureOfExperts: experts_work,
    Custom: custom_work,
}


def mean_input(
    model: ModelSpec, framework: FrameworkSpec, accelerator: AcceleratorSpec, keys: OperatorKeys
) -> FloatArray | None:
    """Elements of a layer's input on one rank, mean of all layers; None where all have the
    model's tokens and width.
    """
    if model.alike_inputs:
        return None
    total = np.zeros(len(keys.tp))
    for layer, count in model.layer_kinds:
        place = Place(model, layer, framework, accelerator, keys)
        own = input_elements(layer.custom, place) if layer.custom else None
        whole = place.tokens * model.hidden_size / keys.sequence_shards
        total = total + count * (whole if own is None else own)
    return total / model.num_layers


def work(
    model: ModelSpec,
    layer: Layer,
    part: SubLayer,
    framework: FrameworkSpec,
    accelerator: AcceleratorSpec,
    keys: OperatorKeys,
) -> Work:
    """The work of one sub-layer of ``layer`` on one rank for one micro-batch.

    Arrays have shape [K].
    """
    place = Place(model, layer, framework, accelerator, keys)
    asked = _KINDS[type(part)](part, place)
    return asked if model.lora is None else adapted(asked, part, model.lora, place)
