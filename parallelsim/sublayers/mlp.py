"""Feed-forward networks of two matrices, or three when gated."""

from __future__ import annotations

import numpy as np

from parallelsim.layers import MLP
from parallelsim.operators import FloatArray, Gemm
from parallelsim.sublayers.work import (
    Place,
    Repeat,
    Work,
    cast_bytes,
    gathered_input_bytes,
    residual_stream,
    spared_bytes,
    with_own,
)

ACTIVATION_BYTES = {True: (6.0, 10.0), False: (4.0, 6.0)}
"""Moved for each token and unit by a fused activation, forward and backward, gated or not (T4)."""
CHAIN_BYTES = {"clamped-silu": (22.0, 36.0)}
"""The same where kernels stand before the fused one: GPT-OSS clamps both halves and concatenates
them, 16 bytes; backward 16 in the fused kernels, 12 through the clamps and 8 to concatenate
(Megatron-LM core 0.20, fusions/fused_bias_geglu.py)."""


def activation_bytes(gated: bool, activation: str) -> tuple[float, float]:
    """Bytes that an activation moves for each token and unit, forward and backward."""
    return CHAIN_BYTES.get(activation, ACTIVATION_BYTES[gated])


def mlp_work(mlp: MLP, place: Place) -> Work:
    """Up projection, activation and down projection of one rank.

    GEMMs (T, g f/tp, h) with g = 2 if gated, and (T, h, f/tp). The activation moves T f/tp (6 gated
    | 4) bytes forward, (10 gated | 6) backward. Saved 4 f/tp plain, 6 or 8 f/tp gated.
    """
    h, tokens, tp = place.model.hidden_size, place.tokens, place.tp
    memory = place.framework.memory
    ffn = mlp.ffn_hidden_size / tp
    up = ffn * (2 if mlp.gated else 1)
    hidden = np.full_like(tokens, h)
    forward, backward = activation_bytes(mlp.gated, mlp.activation)
    cast_f, cast_b = cast_bytes(place, up)
    kept: FloatArray | float = memory.mlp_bytes_gated if mlp.gated else memory.mlp_bytes_plain
    if mlp.gated and memory.mlp_bytes_gated_compiled:
        kept = np.where(place.keys.compile > 0, memory.mlp_bytes_gated_compiled, kept)
    saved = tokens * kept * ffn + gathered_input_bytes(place)
    saved = saved - spared_bytes(place, tokens * (h / place.keys.sequence_shards + ffn))
    gemms = (Gemm(tokens, up, hidden), Gemm(tokens, hidden, ffn))
    again = Repeat(
        "mlp",
        place.width * tokens * ffn * forward,
        place.width * (tokens * kept * ffn - spared_bytes(place, tokens * ffn)),
        gemms,
    )
    return with_own(
        residual_stream(place),
        place,
        saved,
        forward_bytes=place.width * tokens * ffn * forward,
        backward_bytes=place.width * tokens * ffn * backward,
        cast_forward_bytes=cast_f,
        cast_backward_bytes=cast_b,
        parameters=h * up + h * ffn + mlp.bias * (up + h),
        gemms=gemms,
        tp_regions=place.tp_region,
        repeats=(again,),
    )
