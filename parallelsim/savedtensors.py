"""Tensors that the forward pass saves for the backward pass, in bytes of one micro-batch on one
rank.

Bytes for each token and layer after Korthikanti et al., arXiv:2205.05198, section 4, extended to
grouped queries, gated MLPs and flash attention (docs/equations.md M). sigma = 1/tp with sequence
parallelism, else 1.
"""

from __future__ import annotations

import numpy as np

from parallelsim.framework import FrameworkSpec
from parallelsim.layers import Layer
from parallelsim.model import ModelSpec
from parallelsim.operators import IS_FP8, FloatArray, OperatorKeys, kv_width, rank_vocab


def layer_saved_bytes(
    model: ModelSpec, layer: Layer, framework: FrameworkSpec, keys: OperatorKeys
) -> FloatArray:
    """All saved tensors of one layer, without recompute of the whole layer.

    norms 8 h sigma (4 h sigma more for each norm beyond two), fp32 copies of an eager RMSNorm,
    dropout masks 2 h sigma, Q, K, V and the attention output 2 (2 q + 2 k)/tp, log-sum-exp 4 a/tp
    (flash) or the scores 2 or 5 a s/(tp cp) (unfused, not recomputed), gathered inputs 4 h where
    they are kept, MLP 4 f/tp plain, 6 or 8 f/tp gated; fp32 doubles all. With fp8 the inputs of
    the GEMMs, 2 h sigma + q/tp + f/tp elements, may be kept in one byte. Neglects the scales.
    """
    memory, attention = framework.memory, layer.attention
    tp = keys.tp.astype(np.float64)
    h = model.hidden_size
    hidden = h / keys.sequence_shards
    norms = (8.0 + 4.0 * (layer.num_norms - 2)) * hidden
    if model.norm == "rmsnorm":
        norms = norms + memory.unfused_norm_bytes * hidden
    masks = (2.0 if model.hidden_dropout > 0 else 0.0) * hidden
    projections = 2.0 * (2 * attention.query_width / tp + 2 * kv_width(layer, keys.tp))
    core = attention_core_bytes(model, layer, framework, keys)
    gathered = np.where(keys.sequence_parallel > 0, 4.0 * h, 0.0) * memory.keeps_gathered_input
    mlp_bytes = memory.mlp_bytes_gated if layer.mlp.gated else memory.mlp_bytes_plain
    mlp = mlp_bytes * layer.mlp.ffn_hidden_size / tp
    gemm_inputs = 2 * hidden + attention.query_width / tp + layer.mlp.ffn_hidden_size / tp
    spared = np.where(IS_FP8[keys.precision], 2.0 - memory.fp8_input_bytes, 0.0) * gemm_inputs
    a_token = norms + masks + projections + core + gathered + mlp - spared
    sixteen_bit = keys.tokens(model) * a_token
    saved: FloatArray = keys.element_bytes / 2 * sixteen_bit
    return saved


def attention_core_bytes(
    model: ModelSpec, layer: Layer, framework: FrameworkSpec, keys: OperatorKeys
) -> FloatArray:
    """Saved inside the attention core, for each token."""
    heads = layer.attention.num_heads / keys.tp.astype(np.float64)
    if framework.compute.flash_attention:
        return 4.0 * heads
    score_bytes = 5.0 if model.attention_dropout > 0 else 2.0
    scores = score_bytes * heads * model.seq_length
    return np.where(keys.selective > 0, 0.0, scores)


def embedding_bytes(model: ModelSpec, keys: OperatorKeys) -> FloatArray:
    """Output of the embedding on the first stage: 2 h sigma a token, and a dropout mask."""
    per_hidden = keys.element_bytes + (1.0 if model.hidden_dropout > 0 else 0.0)
    return per_hidden * keys.tokens(model) * model.hidden_size / keys.sequence_shards


def gathered_bytes(model: ModelSpec, keys: OperatorKeys) -> FloatArray:
    """Transient of sequence parallelism: the gathered input and its gradient, 4 h a token."""
    sharded = keys.sequence_parallel > 0
    return 2 * keys.element_bytes * np.where(sharded, model.hidden_size, 0.0) * keys.tokens(model)


def loss_bytes(model: ModelSpec, framework: FrameworkSpec, keys: OperatorKeys) -> FloatArray:
    """Logits, their fp32 copy and gradient at the loss, on the last stage."""
    memory = framework.memory
    fused = keys.cross_entropy_fusion > 0
    per_entry = np.where(fused, memory.logits_bytes_fused, memory.logits_bytes)
    vocab = rank_vocab(model, keys.tp) * (keys.tp if memory.logits_gathered else 1)
    return per_entry * keys.tokens(model) * vocab
