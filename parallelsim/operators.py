"""The operators of one layer, the embedding and the head on one rank: shapes, FLOPs and bytes.

All functions take :class:`OperatorKeys`, the few plan fields that shapes depend on, as arrays of
shape [K], and return arrays of shape [K]. Nothing here knows a clock; ``compute`` turns shapes
into seconds.

Symbols: T = micro_batch_size * seq_length / cp tokens of a rank; sp = tp with sequence parallelism,
else 1; h hidden size, q query width, k key/value width, f ffn width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallelsim.framework import FrameworkSpec
from parallelsim.layers import Layer
from parallelsim.model import VOCAB_PADDING, ModelSpec
from parallelsim.plan import PRECISIONS, code

FloatArray = NDArray[np.float64]
FP32 = code("precision", "fp32")
IS_FP8 = np.array([name.startswith(("fp8", "mxfp8", "nvfp4")) for name in PRECISIONS])
"""By precision code: GEMMs run in 8 bits or fewer."""
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class OperatorKeys:
    """Plan fields that decide the shapes on one rank; int64 arrays of shape [K], codes as in
    ``plan``.
    """

    tp: IntArray
    cp: IntArray
    micro_batch_size: IntArray
    sequence_parallel: IntArray
    precision: IntArray
    cp_comm_type: IntArray
    tp_comm_overlap: IntArray
    cross_entropy_fusion: IntArray
    cuda_graphs: IntArray
    grad_dtype: IntArray
    selective: IntArray
    """1 where the attention core is recomputed (recompute = selective)."""

    @property
    def sequence_shards(self) -> FloatArray:
        """sp: what divides tensors outside the tensor-parallel regions."""
        return np.where(self.sequence_parallel > 0, self.tp, 1).astype(np.float64)

    @property
    def element_bytes(self) -> FloatArray:
        """Bytes of an activation or parameter outside the 8-bit GEMMs: 4 in fp32, else 2."""
        return np.where(self.precision == FP32, 4.0, 2.0)

    def tokens(self, model: ModelSpec) -> FloatArray:
        """T, tokens of one micro-batch on one rank."""
        return self.micro_batch_size * float(model.seq_length) / self.cp


class Gemm(NamedTuple):
    """C[m, n] = A[m, k] B[k, n] of the forward pass; one entry for each key."""

    m: FloatArray
    n: FloatArray
    k: FloatArray


class AttentionCore(NamedTuple):
    """softmax(Q K^T) V of one layer on one rank."""

    flops: FloatArray
    """Forward: 4 d for each query-key pair and head (two products, a multiply and an add each)."""
    io_bytes: FloatArray
    """Q, K, V read and the output written."""
    scores: FloatArray
    """Entries of the score matrix that an unfused implementation stores."""
    local_seq_length: FloatArray
    """Tokens of a sequence that the rank holds."""


def kv_width(layer: Layer, tp: IntArray) -> FloatArray:
    """Key columns of one rank: k / tp, but at least one head where tp exceeds the groups
    (replicated).
    """
    attention = layer.attention
    heads = np.maximum(attention.num_query_groups / tp.astype(np.float64), 1.0)
    return heads * attention.head_dim


def layer_gemms(
    model: ModelSpec, layer: Layer, keys: OperatorKeys
) -> tuple[Gemm, Gemm, Gemm, Gemm]:
    """QKV, attention output, MLP up and MLP down projections of one rank.

    (T, q/tp + 2 k/tp, h), (T, h, q/tp), (T, g f/tp, h) with g = 2 if gated, (T, h, f/tp).
    """
    tokens, tp = keys.tokens(model), keys.tp.astype(np.float64)
    h = np.full_like(tokens, model.hidden_size)
    query = layer.attention.query_width / tp
    ffn = layer.mlp.ffn_hidden_size / tp
    return (
        Gemm(tokens, query + 2 * kv_width(layer, keys.tp), h),
        Gemm(tokens, h, query),
        Gemm(tokens, ffn * (2 if layer.mlp.gated else 1), h),
        Gemm(tokens, h, ffn),
    )


def attention_core(model: ModelSpec, layer: Layer, keys: OperatorKeys) -> AttentionCore:
    """The attention core of one rank: heads over tp, sequence over cp (balanced for causal
    masks).
    """
    attention, s = layer.attention, model.seq_length
    heads = keys.micro_batch_size * attention.num_heads / keys.tp.astype(np.float64)
    query = attention.query_width / keys.tp.astype(np.float64)
    pairs = attention.pairs_per_sequence(s)
    return AttentionCore(
        flops=4.0 * attention.head_dim * heads * pairs / keys.cp,
        io_bytes=2 * keys.element_bytes * keys.tokens(model) * (query + kv_width(layer, keys.tp)),
        scores=heads * (float(s) * s) / keys.cp,
        local_seq_length=s / keys.cp.astype(np.float64),
    )


def memory_bound_bytes(
    model: ModelSpec, layer: Layer, framework: FrameworkSpec, keys: OperatorKeys
) -> tuple[FloatArray, FloatArray]:
    """Bytes that norms, residuals, activations, dropout and RoPE move, forward and backward.

    forward  T h (20, or 22 with dropout)/sp + T f/tp (6 gated | 4) + RoPE
    backward T h (22, or 24 with dropout)/sp + T f/tp (10 gated | 6) + RoPE
    RoPE     4 T (q + k)/tp, and 8 T q/tp (cp - 1) forward, 6 T q/tp (cp - 1) backward to merge the
             partial outputs of a ring (docs/equations.md T4)
    An unfused RMSNorm adds 2 T h (44 | 72)/sp. Four norms a layer add half of the norms' share
    again.
    """
    # The byte counts below are those of 16-bit tensors.
    tokens, tp = keys.element_bytes / 2 * keys.tokens(model), keys.tp.astype(np.float64)
    hidden = tokens * model.hidden_size / keys.sequence_shards
    ffn = tokens * layer.mlp.ffn_hidden_size / tp
    query = tokens * layer.attention.query_width / tp
    dropout = 2.0 if model.hidden_dropout > 0 else 0.0
    extra_norms = 8.0 * (layer.num_norms - 2) / 2
    rope = 4.0 * (query + tokens * kv_width(layer, keys.tp)) * (model.position_embedding == "rope")
    ring = np.where(keys.cp_comm_type == 0, keys.cp - 1.0, 0.0) * query
    forward = (20.0 + dropout + extra_norms) * hidden + (6.0 if layer.mlp.gated else 4.0) * ffn
    backward = (22.0 + dropout + extra_norms) * hidden + (10.0 if layer.mlp.gated else 6.0) * ffn
    if model.norm == "rmsnorm" and not framework.compute.fused_rmsnorm:
        forward = forward + 2 * 44.0 * hidden
        backward = backward + 2 * 72.0 * hidden
    return forward + rope + 8.0 * ring, backward + rope + 6.0 * ring


def fp8_cast_bytes(
    model: ModelSpec,
    layer: Layer,
    keys: OperatorKeys,
    *,
    gathers_in_16_bit: bool,
    current: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Bytes that casts to fp8 move, forward and backward, before the factor of ``compute``.

    forward  4 T q/tp + [gathers in 16 bit and tp > 1] 4 T h + [current scaling] 2 T (2 h/sp + q/tp
    + f/tp) backward 4 T (f1 + qkv)/tp + 8 T h/sp + [the same] 4 T h + [current] 2 T (2 h/sp + (f1
    + qkv)/tp) with f1 = 2 f if gated, else f (docs/equations.md T4). ``current`` is 1.0 where amax
    is found on the fly.
    """
    tokens, tp = keys.tokens(model), keys.tp.astype(np.float64)
    query = layer.attention.query_width / tp
    qkv = query + 2 * kv_width(layer, keys.tp)
    ffn = layer.mlp.ffn_hidden_size / tp
    up = ffn * (2 if layer.mlp.gated else 1)
    hidden = model.hidden_size / keys.sequence_shards
    gather = 4.0 * model.hidden_size * ((keys.tp > 1) & gathers_in_16_bit)
    forward = 4.0 * query + gather + current * 2.0 * (2 * hidden + query + ffn)
    backward = 4.0 * (up + qkv) + 8.0 * hidden + gather + current * 2.0 * (2 * hidden + up + qkv)
    return tokens * forward, tokens * backward


def rank_layer_parameters(model: ModelSpec, layer: Layer, keys: OperatorKeys) -> FloatArray:
    """Parameters of one layer on one rank: matrices over tp, norms and row-parallel biases on
    every rank.
    """
    h, tp, attention = model.hidden_size, keys.tp.astype(np.float64), layer.attention
    qkv = attention.query_width / tp + 2 * kv_width(layer, keys.tp)
    up = (2 if layer.mlp.gated else 1) * layer.mlp.ffn_hidden_size / tp
    matrices = (
        h * qkv + h * attention.query_width / tp + h * up + h * layer.mlp.ffn_hidden_size / tp
    )
    column_biases = attention.qkv_bias * qkv + layer.mlp.bias * up
    row_biases = (attention.output_bias + layer.mlp.bias) * h
    norms = layer.num_norms * model.norm_parameters() + attention.qk_norm * 2 * attention.head_dim
    return matrices + column_biases + row_biases + norms


def rank_vocab(model: ModelSpec, tp: IntArray) -> FloatArray:
    """Rows of the padded vocabulary on one rank, V / tp."""
    multiple = VOCAB_PADDING * tp
    return (-(-model.vocab_size // multiple) * multiple / tp).astype(np.float64)


def rank_embedding_parameters(model: ModelSpec, keys: OperatorKeys) -> FloatArray:
    """Embedding on the first stage: vocabulary rows over tp, positions and token types on every
    rank.
    """
    replicated = model.embedding_parameters() - model.vocab_size * model.hidden_size
    return rank_vocab(model, keys.tp) * model.hidden_size + replicated


def rank_head_parameters(model: ModelSpec, keys: OperatorKeys) -> tuple[FloatArray, FloatArray]:
    """(output matrix over tp, final norm and other replicated parameters of the head) on the last
    stage.

    The output matrix is counted whether tied or not: with pp > 1 a tied embedding exists on both
    stages.
    """
    tied = 0 if model.tied_embeddings else model.vocab_size * model.hidden_size
    replicated = np.full(len(keys.tp), float(model.head_parameters() - tied))
    return rank_vocab(model, keys.tp) * model.hidden_size, replicated
