"""Custom operators: what a model file spells out, as the work of one rank."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from parallelsim.custom_layers import COLLECTIVES, WEIGHTED, Custom, CustomOperator
from parallelsim.expressions import Value
from parallelsim.layers import Attention
from parallelsim.operators import FloatArray, Gemm
from parallelsim.sublayers.attention import attention_core, kv_width, ring_merges
from parallelsim.sublayers.work import Collective, Place, Work

KERNELS_PER_LAYER = 12.0
"""Kernels of a dense layer, whose launches ``HostFacts`` states; each operator launches one."""


def custom_work(custom: Custom, place: Place) -> Work:
    """The sum over the operators.

    Products are GEMMs (a convolution an implicit one, in 16 bits), byte counts are those of 16-bit
    tensors. Neglects: casts to fp8, the first product's input gradient, which nobody needs.
    """
    symbols = symbols_of(place)
    total = _nothing(place)
    for each in custom.operators:
        total = _with_operator(total, each, symbols, place)
    return replace(total, host_share=len(custom.operators) / KERNELS_PER_LAYER)


def symbols_of(place: Place) -> dict[str, Value]:
    """The symbols of expressions (``expressions.SYMBOLS``), float64 of shape [K]."""
    keys = place.keys
    return {
        "samples": keys.micro_batch_size.astype(np.float64),
        "tokens": place.tokens,
        "seq_length": np.full_like(place.tokens, float(place.seq_length)),
        "hidden": np.full_like(place.tokens, float(place.model.hidden_size)),
        "tp": place.tp,
        "cp": keys.cp.astype(np.float64),
        "sp": keys.sequence_shards,
    }


def input_elements(custom: Custom, place: Place) -> FloatArray | None:
    """Numbers of the layer's input on the rank, where the file states them."""
    if custom.input_values is None:
        return None
    return custom.input_values.value(symbols_of(place))


def _with_operator(
    total: Work, each: CustomOperator, symbols: dict[str, Value], place: Place
) -> Work:
    width = place.width
    total = replace(
        total,
        parameters=total.parameters + each.parameters(symbols),
        saved_bytes=total.saved_bytes + width * each.size("saved_bytes", symbols),
    )
    if each.kind in WEIGHTED:
        gemm = Gemm(*each.product(symbols))
        if each.kind == "convolution":
            return replace(total, gemms_16_bit=(*total.gemms_16_bit, gemm))
        return replace(total, gemms=(*total.gemms, gemm))
    if each.kind == "attention":
        return _with_attention(total, each, symbols, place)
    if each.kind == "tensor-parallel-region":
        return replace(total, tp_regions=total.tp_regions + 1.0)
    if each.kind in COLLECTIVES:
        moved = Collective(each.kind, each.size("bytes", symbols), each.group)
        return replace(total, collectives=(*total.collectives, moved))
    forward, backward = (
        width * each.size(f"{way}_bytes", symbols) for way in ("forward", "backward")
    )
    return replace(
        total,
        forward_bytes=total.forward_bytes + forward,
        backward_bytes=total.backward_bytes + backward,
    )


def _with_attention(
    total: Work, each: CustomOperator, symbols: dict[str, Value], place: Place
) -> Work:
    """The core, and the merges of its context-parallel ring; ``num_heads`` of the whole model."""
    heads, groups, width = (
        round(float(each.size(name, symbols)[0]))
        for name in ("num_heads", "num_query_groups", "head_dim")
    )
    attention = Attention(heads, groups, width, causal=each.causal)
    query = attention.query_width / place.tp
    merged = place.width * ring_merges(place, query)
    return replace(
        total,
        core=attention_core(attention, place, query, kv_width(attention, place.tp)),
        forward_bytes=total.forward_bytes + 8.0 * merged,
        backward_bytes=total.backward_bytes + 6.0 * merged,
    )


def _nothing(place: Place) -> Work:
    zeros = np.zeros_like(place.tokens)
    return Work(
        forward_bytes=zeros,
        backward_bytes=zeros,
        cast_forward_bytes=zeros,
        cast_backward_bytes=zeros,
        parameters=zeros,
        saved_bytes=zeros,
    )
