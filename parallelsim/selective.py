"""Selective recompute: what one sub-layer runs again, keeps and restores.

Two kinds exist. Megatron-Core's repeats the attention core (arXiv:2205.05198 section 4.2);
torchtitan's saves every second matrix product and the attention's output, and repeats the rest. The
framework's facts say which.
"""

from __future__ import annotations

import numpy as np

from parallelsim.framework import FrameworkSpec
from parallelsim.model import ModelSpec
from parallelsim.operators import FloatArray, OperatorKeys
from parallelsim.sublayers import Work


def repeated_seconds(
    framework: FrameworkSpec,
    keys: OperatorKeys,
    gemm_s: FloatArray,
    attention_s: FloatArray,
    memory_bound_s: FloatArray,
) -> FloatArray:
    """Forward seconds that selective recompute repeats: the attention core, or operators."""
    compute = framework.compute
    again = (
        compute.selective_gemm_frac * gemm_s
        + compute.selective_core_frac * attention_s
        + compute.selective_memory_bound_frac * memory_bound_s
    )
    return np.where(keys.recomputes("core_attn"), again, 0.0)


def selective_bytes(
    model: ModelSpec, framework: FrameworkSpec, asked: Work, keys: OperatorKeys
) -> tuple[FloatArray, FloatArray]:
    """(bytes kept from forward to backward, bytes restored) of one sub-layer.

    Selective recompute by operators keeps the sub-layer's input, a share of the GEMMs' outputs and
    the attention's, 2 T h/(2 sp) + kappa 2 sum(m n) + 2 T q/tp, and restores the rest.
    """
    memory = framework.memory
    saved = asked.saved_bytes
    hidden = keys.tokens(model) * model.hidden_size / keys.sequence_shards
    if not memory.selective_outputs_kept:
        return saved, np.zeros_like(saved)
    outputs: FloatArray | float = sum(g.m * g.n for g in (*asked.gemms, *asked.gemms_16_bit))
    outputs = outputs + sum(g.num_products * g.m * g.n for g in asked.grouped_gemms)
    kept = keys.element_bytes * (hidden / 2 + memory.selective_outputs_kept * outputs)
    if asked.core is not None:
        kept = kept + asked.core.output_bytes
    kept = kept + np.where(keys.compile > 0, 0.0, memory.eager_hidden_bytes / 2) * hidden
    kept = np.where(keys.selective > 0, np.minimum(kept, saved), saved)
    return kept, saved - kept
