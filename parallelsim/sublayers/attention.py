"""Softmax attention with full, grouped or multi-query heads, and cross-attention."""

from __future__ import annotations

import numpy as np

from parallelsim.layers import Attention
from parallelsim.operators import AttentionCore, FloatArray, Gemm
from parallelsim.sublayers.work import (
    Place,
    Work,
    cast_bytes,
    cast_of,
    gathered_input_bytes,
    residual_stream,
    spared_bytes,
    with_own,
)


def attention_work(attention: Attention, place: Place) -> Work:
    """QKV projection, core, output projection of one rank.

    GEMMs (T, q/tp + 2 k/tp, h) and (T, h, q/tp); the keys and values of cross-attention are
    (T', 2 k/tp, h') of the other sequence's T' tokens. RoPE moves 4 T (q + k)/tp bytes each way,
    the ring's merges 8 and 6 T q/tp (cp - 1). Saved 2 (2 q + 2 k)/tp bytes a token and the core's.
    """
    h, tokens, tp = place.model.hidden_size, place.tokens, place.tp
    query = attention.query_width / tp
    kv = kv_width(attention, tp)
    hidden = np.full_like(tokens, h)
    memory_tokens = _memory_tokens(attention, place)
    joint = attention.kv_seq_length is None
    gemms: tuple[Gemm, ...] = (
        Gemm(tokens, query + 2 * kv * joint, hidden),
        Gemm(tokens, hidden, query),
    )
    if not joint:
        other = np.full_like(tokens, attention.kv_hidden_size or h)
        gemms += (Gemm(memory_tokens, 2 * kv, other),)
    rope = 4.0 * (tokens * query + memory_tokens * kv) * (place.model.position_embedding == "rope")
    ring = ring_merges(place, query)
    cast_f, cast_b = cast_bytes(place, query + 2 * kv)
    core = attention_core(attention, place, query, kv)
    saved = tokens * 4.0 * query + memory_tokens * 4.0 * kv
    saved = saved + tokens * core_saved_bytes(attention.num_heads, place)
    saved = saved + gathered_input_bytes(place)
    saved = saved - spared_bytes(place, tokens * (h / place.keys.sequence_shards + query))
    return with_own(
        residual_stream(place),
        place,
        saved,
        forward_bytes=place.width * (rope + 8.0 * ring),
        backward_bytes=place.width * (rope + 6.0 * ring),
        cast_forward_bytes=cast_f + cast_of(place) * tokens * query,
        cast_backward_bytes=cast_b,
        parameters=_rank_parameters(attention, h, tp),
        gemms=gemms,
        core=core,
        tp_regions=place.tp_region,
    )


def kv_width(attention: Attention, tp: FloatArray) -> FloatArray:
    """Key columns of one rank: k / tp, but at least one head where tp exceeds the groups
    (replicated).
    """
    return np.maximum(attention.num_query_groups / tp, 1.0) * attention.head_dim


def ring_merges(place: Place, query: FloatArray) -> FloatArray:
    """Elements of the partial outputs that a context-parallel ring merges."""
    return place.tokens * (place.keys.ring - 1.0) * query


def core_saved_bytes(num_heads: int, place: Place) -> FloatArray:
    """Saved inside the core, for each token: 4 a/tp (log-sum-exp) with flash attention, else the
    scores, 2 a s/tp in software that fuses the softmax and 3 more with dropout, unless they are
    recomputed.
    """
    heads = num_heads / place.tp
    if place.framework.compute.flash_attention:
        return 4.0 * heads
    score_bytes = place.framework.memory.score_bytes + 3.0 * (place.model.attention_dropout > 0)
    return np.where(place.keys.recomputes("core_attn"), 0.0, score_bytes * heads * place.seq_length)


def _memory_tokens(attention: Attention, place: Place) -> FloatArray:
    """Tokens whose keys and values the rank projects."""
    if attention.kv_seq_length is None:
        return place.tokens
    return place.keys.micro_batch_size * float(attention.kv_seq_length) / place.keys.cp


def attention_core(
    attention: Attention, place: Place, query: FloatArray, kv: FloatArray
) -> AttentionCore:
    """softmax(Q K^T) V of the rank's heads: ``query`` and ``kv`` columns of it."""
    keys, s = place.keys, place.seq_length
    heads = keys.micro_batch_size * attention.num_heads / place.tp
    pairs = attention.pairs_per_sequence(s)
    kv_tokens = _memory_tokens(attention, place)
    return AttentionCore(
        head_dim=attention.core_width,
        flops=4.0 * attention.head_dim * heads * pairs / keys.cp,
        query_bytes=keys.element_bytes * place.tokens * query,
        kv_bytes=2 * keys.element_bytes * kv_tokens * kv,
        output_bytes=keys.element_bytes * place.tokens * query,
        scores=heads * (float(s) * (attention.kv_seq_length or s)) / keys.cp,
        local_seq_length=s / keys.cp.astype(np.float64),
        seq_length=s,
    )


def _rank_parameters(attention: Attention, h: int, tp: FloatArray) -> FloatArray:
    """Matrices over tp, row-parallel biases and query/key norms on every rank."""
    query, kv = attention.query_width / tp, kv_width(attention, tp)
    matrices = 2 * h * query + 2 * (attention.kv_hidden_size or h) * kv
    biases = attention.qkv_bias * (query + 2 * kv) + attention.output_bias * h
    extra = attention.qk_norm * 2 * attention.head_dim + attention.sinks * attention.num_heads / tp
    return matrices + biases + extra
