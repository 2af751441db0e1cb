"""Mixture of experts: router, dispatch, grouped GEMMs, combine, and the shared expert.

Symbols: T_r = T/sp tokens of a rank, K = top_k, E experts, f_e expert width, iota load of the
busiest rank over the mean. The rank's experts take T_k = T_r K etp iota copies of tokens.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from parallelsim.layers import MixtureOfExperts
from parallelsim.operators import IS_FP8, FloatArray, Gemm, GroupedGemm, distinct_copies
from parallelsim.plan import code
from parallelsim.sublayers.mlp import activation_bytes, mlp_work
from parallelsim.sublayers.work import (
    Exchange,
    Place,
    Repeat,
    Work,
    residual_stream,
    spared_bytes,
    with_own,
)

FP8_PASSES = (1.5, 3.0)
"""Bytes that quantising expert inputs moves for each element, forward and backward (T15)."""
MEMORY_QUANTILE = 0.95
"""Of the busiest rank's load, for which memory has to last."""
ALL_TO_ALL = code("moe_dispatcher", "all-to-all")
DEEPEP = code("moe_dispatcher", "deepep")
BIAS_BYTES = (28.0, 40.0)
"""Moved for each output of an expert with a bias, forward and backward: times the router's weight
and added expert by expert in fp32, concatenated, cast (Megatron-LM core 0.20, moe/experts.py)."""
ROUTER_BYTES = 40.0
"""Moved for each token and expert by softmax, top-k, sort and auxiliary loss (T15)."""


def experts_work(experts: MixtureOfExperts, place: Place) -> Work:
    """Everything of one mixture-of-experts sub-layer on one rank (docs/equations.md T15).

    Grouped GEMMs of E/ep experts, (m_e, g f_e/etp, h) and (m_e, h, f_e/etp) with m_e = T_k ep/E;
    the router (T_r, E, h) in 16 bits. Moved forward 4 h (T_r + 3 T_k) + 6 T_k f_e/etp + 40
    T_r E, backward 10 for 6 and 60 for 40, and with fp8 1.5 and 3 T_k (h + f_e/etp). Saved
    T_k (2 h + (2 g + 2) f_e/etp) + 8 T_r E: what the GEMMs and the activation see; the router's
    weights are applied in the activation, so that neither permutation keeps its tokens. With a
    capacity factor each expert takes that many times its even share at most, and padding fills it.
    """
    model, keys, tokens = place.model, place.keys, place.tokens / place.keys.sequence_shards
    etp, ep = keys.etp.astype(np.float64), keys.ep.astype(np.float64)
    width = experts.expert_width(model.hidden_size)
    even = tokens * experts.top_k * etp
    copies = even * _load(experts, ep, experts.load_quantile)
    kept = even * _load(experts, ep, MEMORY_QUANTILE)
    local, ffn = experts.num_experts / ep, experts.ffn_hidden_size / etp
    up = ffn * (2 if experts.gated else 1)
    rows, wide = copies / local, np.full_like(tokens, width)
    grouped = (GroupedGemm(local, rows, up, wide), GroupedGemm(local, rows, wide, ffn))
    hidden = np.full_like(tokens, model.hidden_size)
    router_gemm = Gemm(tokens, np.full_like(tokens, experts.num_experts), hidden)
    gemms: tuple[Gemm, ...] = ()
    if experts.latent_size:
        gemms = (Gemm(tokens, wide, hidden), Gemm(tokens, hidden, wide))
    permuted = _permuted_bytes(experts, place, copies, tokens * etp)
    router = ROUTER_BYTES * tokens * experts.num_experts
    cast = np.where(IS_FP8[keys.precision], copies * (width + ffn), 0.0)
    act_forward, act_backward = activation_bytes(experts.gated, experts.activation)
    activated = Repeat(
        "moe_act",
        place.width * act_forward * copies * ffn,
        place.width * (2.0 * kept * ffn - spared_bytes(place, kept * ffn)),
    )
    forward = copies * (act_forward * ffn + experts.bias * BIAS_BYTES[0] * width)
    backward = copies * (act_backward * ffn + experts.bias * BIAS_BYTES[1] * width)
    dense = experts.dense_parameters(model.hidden_size)
    shared = mlp_work(experts.shared, place) if experts.shared else None
    if shared is not None and experts.shared is not None:
        dense = dense - experts.shared.num_parameters(model.hidden_size)
    saved = kept * (2.0 * width + 2.0 * up + 2.0 * ffn) + 8.0 * tokens * experts.num_experts
    element = keys.element_bytes * width
    own = with_own(
        residual_stream(place),
        place,
        saved - spared_bytes(place, kept * (width + ffn)),
        forward_bytes=place.width * (permuted + router + forward),
        backward_bytes=place.width * (permuted + 1.5 * router + backward),
        cast_forward_bytes=FP8_PASSES[0] * cast,
        cast_backward_bytes=FP8_PASSES[1] * cast,
        parameters=np.full_like(tokens, float(dense)),
        gemms=gemms,
        gemms_16_bit=(router_gemm,),
        grouped_gemms=grouped,
        expert_parameters=_rank_expert_parameters(experts, width, local, etp),
        host_share=0.0,
        num_local_experts=local,
        fixed_shapes=experts.capacity_factor is not None,
        repeats=(activated,),
        exchange=Exchange(
            token_bytes=element * tokens,
            busiest=copies / even,
            copies=float(experts.top_k),
            node_share=min(experts.group_top_k / experts.num_groups, 1.0),
            expert_copies_bytes=element * copies,
        ),
    )
    return own if shared is None else _with_shared(own, shared, place)


def busiest_load(
    load_cv: float, num_local: FloatArray, ep: FloatArray, quantile: float
) -> FloatArray:
    """Load of the busiest of ``ep`` ranks over the mean, at a quantile q: 1 + z c / sqrt(n).

    With n experts a rank whose loads vary by c = ``load_cv`` (standard deviation over mean), a
    rank's load is normal with deviation c / sqrt(n), and z = Phi^-1(q^(1/ep)) is the quantile of
    the largest of ep of them. Neglects correlated experts; the skew lasts through a step, so that
    it does not average out over layers and micro-batches.
    """
    from statistics import NormalDist  # milliseconds that models without a load_cv are spared

    spread = load_cv / np.sqrt(np.maximum(num_local, 1.0))
    ranks, position = np.unique(np.maximum(ep, 1.0), return_inverse=True)
    normal = NormalDist()
    z = np.array([normal.inv_cdf(quantile ** (1.0 / n)) if n > 1 else 0.0 for n in ranks.tolist()])
    # One rank cannot get more than all tokens of the group, nor the busiest less than the mean.
    load: FloatArray = np.clip(1.0 + spread * z[position], 1.0, np.maximum(ep, 1.0))
    return load


def _load(experts: MixtureOfExperts, ep: FloatArray, quantile: float) -> FloatArray:
    if experts.capacity_factor is not None:
        return np.full_like(ep, experts.capacity_factor)
    if experts.load_cv == 0.0:
        return np.ones_like(ep)
    return busiest_load(experts.load_cv, experts.num_experts / ep, ep, quantile)


def _permuted_bytes(
    experts: MixtureOfExperts, place: Place, copies: FloatArray, tokens: FloatArray
) -> FloatArray:
    """Moved by sorting tokens by expert and back; the backward pass moves as much.

    4 w (T_r + T_k): each token is read once and written K times, and the other way round. With
    all-to-all what arrives from each rank is sorted again by local expert, and back: 8 w T_k.
    Kernels that send a token to a rank once leave q T_r to be copied there, q of K ranks. Dropping
    and padding has no fused kernels: 6 w T_k more to gather, and to add in memory, copy by copy.
    In fp8 the rows of each expert are padded to whole tiles and unpadded after, 8 w T_k, unless
    the shapes are fixed or the dispatching kernel pads (Megatron-LM core 0.20, moe/experts.py).
    """
    ep = place.keys.ep.astype(np.float64)
    width = experts.expert_width(place.model.hidden_size)
    dispatcher = place.keys.moe_dispatcher
    once = np.where(dispatcher == DEEPEP, distinct_copies(ep, experts.top_k), 1.0)
    again = (dispatcher == ALL_TO_ALL) & (ep > 1) & (experts.num_experts > ep)
    fixed = experts.capacity_factor is not None
    pads = IS_FP8[place.keys.precision] & (dispatcher != DEEPEP) & (not fixed)
    passes = 4.0 + 6.0 * fixed + 8.0 * again + 8.0 * pads
    moved: FloatArray = width * (4.0 * once * tokens + passes * copies)
    return moved


def _rank_expert_parameters(
    experts: MixtureOfExperts, width: int, local: FloatArray, etp: FloatArray
) -> FloatArray:
    """Of the rank's experts: matrices over etp, the down projection's bias on every rank."""
    num_up = 2 if experts.gated else 1
    matrices = (num_up + 1) * width * experts.ffn_hidden_size / etp
    biases = experts.bias * (num_up * experts.ffn_hidden_size / etp + width)
    return local * (matrices + biases)


def _with_shared(own: Work, shared: Work, place: Place) -> Work:
    """The shared expert beside the routed ones, inside the same residual stream."""
    stream = residual_stream(place)
    return replace(
        own,
        forward_bytes=own.forward_bytes + shared.forward_bytes - stream.forward_bytes,
        backward_bytes=own.backward_bytes + shared.backward_bytes - stream.backward_bytes,
        cast_forward_bytes=own.cast_forward_bytes + shared.cast_forward_bytes,
        cast_backward_bytes=own.cast_backward_bytes + shared.cast_backward_bytes,
        parameters=own.parameters + shared.parameters - stream.parameters,
        saved_bytes=own.saved_bytes + shared.saved_bytes - stream.saved_bytes,
        gemms=own.gemms + shared.gemms,
        tp_regions=shared.tp_regions,
    )
