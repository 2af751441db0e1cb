"""Which communication the critical path pays for: tensor, context, pipeline and data
parallelism.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from parallelsim.collectives import Network
from parallelsim.framework import OverlapFacts
from parallelsim.model import Layer, ModelSpec
from parallelsim.operators import IS_FP8, FloatArray, IntArray, OperatorKeys, kv_width
from parallelsim.plan import code

RING_HOP_S = 20e-6
"""Launch and synchronisation of one step of the context-parallel ring (docs/equations.md T10)."""
TP_NIC_SHARE = 0.70
"""Of a node's NICs that tensor-parallel collectives keep busy: they are small (T11)."""
BACKWARD_SHARE = 0.66
FORWARD_SHARE = 0.33
"""Of a micro-batch's time on a stage: what gradients and parameters can hide behind (T13)."""

P2P = code("cp_comm_type", "p2p")
A2A = code("cp_comm_type", "a2a")


class Exposed(NamedTuple):
    """Exposed seconds of one layer and micro-batch, shape [K]."""

    forward_s: FloatArray
    backward_s: FloatArray


def tensor_parallel_exposed(
    model: ModelSpec, layer: Layer, overlap: OverlapFacts, network: Network, keys: OperatorKeys
) -> Exposed:
    """Tensor-parallel collectives of one layer that the GEMMs do not hide.

    With sequence parallelism 2 all-gathers and 2 reduce-scatters forward, 3 and 2 backward (one
    gather is redone for the weight gradient); without, 2 all-reduces each way; half of each where
    attention and MLP run in parallel. S = 2 T h bytes, half in fp8 gathers. A constant share is
    exposed (T9).
    """
    group = network.group(keys.tp, np.ones(len(keys.tp)))
    tensor = keys.element_bytes * keys.tokens(model) * model.hidden_size
    shrink = np.where(IS_FP8[keys.precision], 0.5, 1.0)
    gather = network.all_gather(shrink * tensor, group, TP_NIC_SHARE)
    scatter = network.reduce_scatter(tensor, group, TP_NIC_SHARE)
    reduce = network.all_reduce(tensor, group, TP_NIC_SHARE)
    pairs = 1.0 if layer.parallel else 2.0
    sharded = keys.sequence_parallel > 0
    share = np.where(keys.tp_comm_overlap > 0, overlap.tp_exposed_user_buffers, overlap.tp_exposed)
    forward = np.where(sharded, pairs * (gather + scatter), pairs * reduce)
    backward = np.where(sharded, (pairs + 1) * gather + pairs * scatter, pairs * reduce)
    return Exposed(share * forward, share * backward)


def head_tensor_parallel_exposed(
    model: ModelSpec, overlap: OverlapFacts, network: Network, keys: OperatorKeys
) -> FloatArray:
    """Collectives around the output matrix: 2 gathers and a reduce-scatter, half of them hidden
    (T8).
    """
    group = network.group(keys.tp, np.ones(len(keys.tp)))
    tensor = keys.element_bytes * keys.tokens(model) * model.hidden_size
    share = np.where(keys.tp_comm_overlap > 0, overlap.tp_exposed_user_buffers, overlap.tp_exposed)
    total = 2 * network.all_gather(tensor, group) + network.reduce_scatter(tensor, group)
    return 0.5 * share * total


def context_parallel_exposed(
    model: ModelSpec,
    layer: Layer,
    overlap: OverlapFacts,
    network: Network,
    keys: OperatorKeys,
    attention_s: tuple[FloatArray, FloatArray],
) -> Exposed:
    """Exchange of keys and values (or heads) between the context-parallel ranks of one layer.

    p2p ring: r = (cp - 1) (4 T k/tp / B + 20 us) forward, twice the bytes backward; hidden behind
    the attention of (cp - 1)/cp of the steps, but a share of r always shows (T10).
    all-gather: keys and values gathered forward and backward, gradients reduce-scattered; not
    hidden. a2a: Q, K, V and the output re-sharded from sequence to heads and back, forward and
    backward; not hidden.
    """
    cp = keys.cp.astype(np.float64)
    tokens = keys.tokens(model)
    kv_bytes = 2 * keys.element_bytes * tokens * kv_width(layer, keys.tp)
    query_bytes = keys.element_bytes * tokens * layer.attention.query_width / keys.tp
    rate, _ = network.p2p_rate(keys.tp * keys.cp)
    group = network.group(keys.cp, keys.tp)

    ring_forward = (cp - 1) * (kv_bytes / rate + RING_HOP_S)
    ring_backward = (cp - 1) * (2 * kv_bytes / rate + RING_HOP_S)
    hidden = (cp - 1) / cp
    ring = [
        np.maximum(ring - attention * hidden, 0.0) + overlap.cp_exposed_floor * ring
        for ring, attention in zip((ring_forward, ring_backward), attention_s, strict=True)
    ]
    gather = network.all_gather(kv_bytes * cp, group)
    scatter = network.reduce_scatter(kv_bytes * cp, group)
    exchange = network.all_to_all(2 * query_bytes + kv_bytes, group)
    kind = keys.cp_comm_type
    forward = np.where(kind == P2P, ring[0], np.where(kind == A2A, exchange, gather))
    backward = np.where(kind == P2P, ring[1], np.where(kind == A2A, exchange, gather + scatter))
    alone = keys.cp == 1
    return Exposed(np.where(alone, 0.0, forward), np.where(alone, 0.0, backward))


def pipeline_transfer_time(
    overlap: OverlapFacts,
    network: Network,
    num_bytes: FloatArray,
    pp: FloatArray,
    num_gpus: FloatArray,
) -> FloatArray:
    """Seconds of one transfer between neighbouring stages, averaged over the boundaries; 0 with pp
    = 1.

    t = t0 + S (x / B_network + (1 - x) / B_link), x the share of boundaries that leave a domain
    (T12)
    """
    stride = num_gpus / pp
    domain = float(network.cluster.domain_size)
    link = network.cluster.accelerator.p2p_bytes_per_s
    crossings = np.where(stride >= domain, pp - 1, np.ceil(num_gpus / domain) - 1)
    share = np.minimum(crossings / np.maximum(pp - 1, 1.0), 1.0)
    outer, _ = network.p2p_rate(np.maximum(stride, domain + 1))
    time = overlap.p2p_latency_s + num_bytes * (share / outer + (1 - share) / link)
    return np.where(pp > 1, time, 0.0)


class DataParallel(NamedTuple):
    """Exposed seconds of a step, shape [P]."""

    reduce_s: FloatArray
    """Of the gradients, at its end."""
    gather_s: FloatArray
    """Of the parameters, at its beginning."""


def data_parallel_exposed(
    overlap: OverlapFacts,
    network: Network,
    *,
    num_ranks: FloatArray,
    stride: IntArray,
    gradient_bytes: FloatArray,
    parameter_bytes: FloatArray,
    zero: IntArray,
    overlap_grad_reduce: IntArray,
    overlap_param_gather: IntArray,
    micro_batch_s: FloatArray,
    window: FloatArray,
    num_micro_batches: FloatArray,
    num_layers: FloatArray,
) -> DataParallel:
    """Seconds of gradient reduction and parameter gathering that a step pays for.

    exposed = max(t - eta share w tau, floor t) for each collective, t itself without overlap
    (T13)

    ZeRO 0: one all-reduce of the gradients. ZeRO 1: one reduce-scatter, one all-gather of the
    parameters. ZeRO 2: a reduce-scatter for each micro-batch. ZeRO 3: two gathers for each
    micro-batch too. ``window`` w counts the micro-batches whose computation a collective can run
    behind. Software that reduces or slices tensor by tensor adds a time for each of ``num_layers``
    layers of the rank and each rank of the group. Neglects: the number of buckets, contention with
    tensor-parallel traffic.
    """
    group = network.group(num_ranks, stride)
    sharded = zero > 0
    reduce = network.reduce_scatter(gradient_bytes, group)
    gather = network.all_gather(parameter_bytes, group)
    if not sharded.all():
        whole = np.flatnonzero(~sharded)
        some = network.group(num_ranks[whole], stride[whole])
        reduce[whole] = network.all_reduce(gradient_bytes[whole], some)
        gather[whole] = 0.0
    if overlap.dp_rank_s or overlap.zero_rank_s:
        of_a_rank = np.where(sharded, overlap.zero_rank_s, overlap.dp_rank_s)
        reduce = reduce + of_a_rank * num_layers * np.where(num_ranks > 1, num_ranks, 0.0)
    budget = overlap.dp_overlap_efficiency * window * micro_batch_s
    floor = overlap.dp_exposed_floor
    hidden_reduce = np.maximum(reduce - BACKWARD_SHARE * budget, floor * reduce)
    hidden_gather = np.maximum(gather - FORWARD_SHARE * budget, floor * gather)
    reduce = np.where(overlap_grad_reduce > 0, hidden_reduce, reduce)
    gather = np.where(overlap_param_gather > 0, hidden_gather, gather)
    if (zero > 1).any():
        reduce = reduce * np.where(zero >= 2, num_micro_batches, 1.0)
        gather = gather * np.where(zero == 3, 2 * num_micro_batches, 1.0)
    return DataParallel(reduce, gather)
