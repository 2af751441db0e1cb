"""Multi-head latent attention (arXiv:2405.04434 section 2.1): low-rank queries, keys and values."""

from __future__ import annotations

import numpy as np

from parallelsim.layers import LatentAttention
from parallelsim.operators import AttentionCore, FloatArray, Gemm
from parallelsim.sublayers.attention import core_saved_bytes, ring_merges
from parallelsim.sublayers.work import (
    Place,
    Repeat,
    Work,
    cast_bytes,
    cast_of,
    gathered_input_bytes,
    residual_stream,
    spared_bytes,
    with_own,
)


def latent_attention_work(attention: LatentAttention, place: Place) -> Work:
    """Down and up projections, core and output projection of one rank.

    GEMMs (T/sp, r_q, h), (T, d_qk a/tp, r_q), (T/sp, r_kv + d_rope, h), (T, (d_nope + d_v) a/tp,
    r_kv), (T, h, d_v a/tp): the down projections are on every rank and see its share of the tokens.
    Saved 2 (2 r_q + 2 r_kv + d_rope)/sp + 2 a (2 d_qk + 2 d_v + d_nope)/tp bytes a token, and the
    core's. Neglects: fusions that keep the latents alone.
    """
    h, tokens, tp = place.model.hidden_size, place.tokens, place.tp
    shard = place.keys.sequence_shards
    heads = attention.num_heads / tp
    query, value = heads * attention.qk_head_dim, heads * attention.v_head_dim
    rank, rope = attention.kv_lora_rank, attention.qk_rope_head_dim
    up = heads * (attention.qk_nope_head_dim + attention.v_head_dim)
    q_rank = attention.q_lora_rank or 0

    def full(n: float) -> FloatArray:
        return np.full_like(tokens, n)

    down = (Gemm(tokens / shard, full(rank + rope), full(h)), Gemm(tokens, up, full(rank)))
    if q_rank:
        queries: tuple[Gemm, ...] = (
            Gemm(tokens / shard, full(q_rank), full(h)),
            Gemm(tokens, query, full(q_rank)),
        )
    else:
        queries = (Gemm(tokens, query, full(h)),)
    gemms = (*queries, *down, Gemm(tokens, full(h), value))
    copies = 4.0 * tokens * (2 * query + value)
    norms = 8.0 * tokens * (rank + q_rank) / shard
    ring = ring_merges(place, value)
    cast_f, cast_b = cast_bytes(place, query + up)
    latents = 2.0 * (2 * q_rank + 2 * rank + rope) / shard
    per_head = 2 * attention.qk_head_dim + 2 * attention.v_head_dim + attention.qk_nope_head_dim
    saved = tokens * (latents + 2.0 * heads * per_head)
    saved = saved + tokens * core_saved_bytes(attention.num_heads, place)
    saved = saved + gathered_input_bytes(place)
    saved = saved - spared_bytes(place, tokens * ((h + q_rank + rank) / shard + value))
    in_core = 2 * attention.qk_head_dim + attention.v_head_dim + attention.qk_nope_head_dim
    projected = Repeat(
        "mla_up_proj",
        place.width * copies,
        place.width * tokens * 2.0 * heads * in_core,
        (down[1], *queries[1:]),
    )
    q_parameters = q_rank * (h + query + 1) if q_rank else h * query
    parameters = q_parameters + h * (rank + rope) + rank * (up + 1) + value * h
    return with_own(
        residual_stream(place),
        place,
        saved,
        forward_bytes=place.width * (copies + norms + 8.0 * ring),
        backward_bytes=place.width * (copies + 2 * norms + 6.0 * ring),
        cast_forward_bytes=cast_f + cast_of(place) * tokens * value,
        cast_backward_bytes=cast_b,
        parameters=parameters,
        gemms=gemms,
        core=_core(attention, place, heads),
        tp_regions=place.tp_region,
        repeats=(projected,),
    )


def _core(attention: LatentAttention, place: Place, heads: FloatArray) -> AttentionCore:
    keys, s = place.keys, place.seq_length
    element = keys.element_bytes * place.tokens * heads
    all_heads = keys.micro_batch_size * heads
    return AttentionCore(
        head_dim=attention.core_width,
        flops=4.0 * attention.core_width * all_heads * attention.pairs_per_sequence(s) / keys.cp,
        query_bytes=element * attention.qk_head_dim,
        kv_bytes=element * (attention.qk_head_dim + attention.v_head_dim),
        output_bytes=element * attention.v_head_dim,
        scores=all_heads * (float(s) * s) / keys.cp,
        local_seq_length=s / keys.cp.astype(np.float64),
        seq_length=s,
    )
