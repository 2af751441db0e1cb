"""Which communication the critical path pays for: tensor, context, pipeline and data
parallelism.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from parallelsim.collectives import Network
from parallelsim.framework import OverlapFacts
from parallelsim.model import ModelSpec
from parallelsim.operators import IS_FP8, AttentionCore, FloatArray, IntArray, OperatorKeys
from parallelsim.plan import code
from parallelsim.plan_batch import by_code, largest
from parallelsim.sublayers.work import Collective, Exchange

RING_HOP_S = 15.1e-6
"""Launch and synchronisation of one step of the context-parallel ring (docs/equations.md T10);
fitted: benchmarks/refit.py, which the runs hardly moved from its prior."""
TP_NIC_SHARE = 0.821
"""Of a node's NICs that tensor-parallel collectives keep busy: they are small (T11); fitted:
benchmarks/refit.py."""
BACKWARD_SHARE = 0.66
FORWARD_SHARE = 0.33
"""Of a micro-batch's time on a stage: what gradients and parameters can hide behind (T13)."""

GATHERED = code("cp_comm_type", "all-gather")
ALL_GATHER = code("moe_dispatcher", "all-gather")
DEEPEP = code("moe_dispatcher", "deepep")


class Exposed(NamedTuple):
    """Exposed seconds of one layer and micro-batch, shape [K]."""

    forward_s: FloatArray
    backward_s: FloatArray

    def plus(self, other: Exposed) -> Exposed:
        """The sum of both."""
        return Exposed(self.forward_s + other.forward_s, self.backward_s + other.backward_s)


def tensor_parallel_exposed(
    tensor: FloatArray, regions: float, overlap: OverlapFacts, network: Network, keys: OperatorKeys
) -> Exposed:
    """Tensor-parallel collectives around one sub-layer that the GEMMs do not hide.

    With sequence parallelism an all-gather and a reduce-scatter forward, one and a half and one
    backward (of two gathers one is redone for the weight gradient); without, an all-reduce each
    way; half of each where attention and MLP run in parallel. ``tensor``: 2 T h bytes, half in fp8
    gathers. A constant share is exposed (T9).
    """
    group = network.group(keys.tp, np.ones(len(keys.tp)), TP_NIC_SHARE)
    shrink = np.where(IS_FP8[keys.precision], 0.5, 1.0)
    gather = network.all_gather(shrink * tensor, group)
    scatter = network.reduce_scatter(tensor, group)
    reduce = network.all_reduce(tensor, group)
    redone = 0.5 * np.ceil(regions)
    sharded = keys.sequence_parallel > 0
    share = np.where(keys.tp_comm_overlap > 0, overlap.tp_exposed_user_buffers, overlap.tp_exposed)
    forward = np.where(sharded, regions * (gather + scatter), regions * reduce)
    backward = np.where(sharded, (regions + redone) * gather + regions * scatter, regions * reduce)
    return Exposed(share * forward, share * backward)


def collective_exposed(
    moved: Collective, overlap: OverlapFacts, network: Network, keys: OperatorKeys
) -> Exposed:
    """A collective of a custom operator, and its counterpart in the backward pass.

    Over tp as much is hidden as of other tensor-parallel collectives; over dp, the GPUs outside tp
    and cp, nothing: the layer waits for the batch's statistics. With pp > 1 that group is an upper
    bound: it counts all stages.
    """
    ones = np.ones(len(keys.tp))
    if moved.group == "tp":
        group, share = network.group(keys.tp, ones), overlap.tp_exposed
    else:
        inner = keys.tp * keys.cp
        group, share = network.group(network.cluster.num_gpus / inner, inner), 1.0
    shown = np.where(moved.num_bytes > 0, share, 0.0)  # nothing is not sent
    gather = shown * network.all_gather(moved.num_bytes, group)
    scatter = shown * network.reduce_scatter(moved.num_bytes, group)
    if moved.kind == "all-reduce":
        reduce = shown * network.all_reduce(moved.num_bytes, group)
        return Exposed(reduce, reduce)
    return Exposed(gather, scatter) if moved.kind == "all-gather" else Exposed(scatter, gather)


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
    core: AttentionCore,
    overlap: OverlapFacts,
    network: Network,
    keys: OperatorKeys,
    attention_s: tuple[FloatArray, FloatArray],
) -> Exposed:
    """Exchange of keys and values (or heads) between the context-parallel ranks of one layer.

    p2p ring: r = (n - 1) (kv bytes / B + 20 us) forward, twice the bytes backward, with n = cp;
    hidden behind the attention of (n - 1)/n of the steps, but a share of r always shows (T10).
    all-gather: keys and values gathered forward and backward, gradients reduce-scattered; not
    hidden. a2a: Q, K, V and the output re-sharded from sequence to heads and back, forward and
    backward; not hidden. a2a+p2p: the exchange among cp_a2a neighbours, then a ring of
    n = cp / cp_a2a groups; a rank passes on as many bytes, of fewer heads and more tokens.
    """
    cp, n = keys.cp.astype(np.float64), keys.ring
    rate = network.p2p_rate(keys.tp * keys.cp)
    group = network.group(keys.cp, keys.tp)

    ring_forward = (n - 1) * (core.kv_bytes / rate + RING_HOP_S)
    ring_backward = (n - 1) * (2 * core.kv_bytes / rate + RING_HOP_S)
    hidden = (n - 1) / n
    ring = [
        np.maximum(ring - attention * hidden, 0.0) + overlap.cp_exposed_floor * ring
        for ring, attention in zip((ring_forward, ring_backward), attention_s, strict=True)
    ]
    gather = network.all_gather(core.kv_bytes * cp, group)
    scatter = network.reduce_scatter(core.kv_bytes * cp, group)
    exchange = network.all_to_all(core.io_bytes, network.group(keys.dealt, keys.tp))
    gathers = keys.cp_comm_type == GATHERED
    forward = np.where(gathers, gather, exchange + ring[0])
    backward = np.where(gathers, gather + scatter, exchange + ring[1])
    alone = keys.cp == 1
    return Exposed(np.where(alone, 0.0, forward), np.where(alone, 0.0, backward))


def expert_exchange(
    exchange: Exchange, overlap: OverlapFacts, network: Network, keys: OperatorKeys
) -> FloatArray:
    """Exposed seconds of dispatch and combine of one pass; the backward pass has the same
    (docs/equations.md T16).

    all-to-all, deepep: each token to K experts and back, over the tiers of the group of ep ranks
    that are etp apart; then gathered and reduced over etp. all-gather: every rank gathers the
    tokens of all ep etp ranks, and reduces the outputs. A share is exposed where another
    micro-batch computes meanwhile.
    """
    group = network.group(keys.ep, keys.etp)
    per_node = keys.moe_dispatcher == DEEPEP
    limit = np.where(per_node, exchange.node_share, 1.0)
    received = exchange.token_bytes * exchange.busiest
    one_way = network.expert_all_to_all(received, exchange.copies, group, per_node, limit)
    inner = network.group(keys.etp, np.ones(len(keys.etp)))
    split = exchange.expert_copies_bytes
    sliced = network.all_gather(split, inner) + network.reduce_scatter(split, inner)
    whole = network.group(keys.ep * keys.etp, np.ones(len(keys.etp)))
    every = exchange.token_bytes * keys.ep * keys.etp
    gathered = network.all_gather(every, whole) + network.reduce_scatter(every, whole)
    time = np.where(keys.moe_dispatcher == ALL_GATHER, gathered, 2 * one_way + sliced)
    shown = np.where(keys.ep_comm_overlap > 0, overlap.ep_exposed_overlapped, 1.0)
    return shown * time


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
    boundaries = pp - 1
    crossings = np.where(stride >= domain, boundaries, np.ceil(num_gpus / domain) - 1)
    share = np.minimum(crossings / np.maximum(boundaries, 1.0), 1.0)
    outer = network.p2p_rate(np.maximum(stride, domain + 1))
    time = overlap.p2p_latency_s + num_bytes * (share / outer + (1 - share) / link)
    return np.where(pp > 1, time, 0.0)  # the time of no link may be NaN


def offload_exposed(
    num_bytes: FloatArray, host_bytes_per_s: float, forward_s: FloatArray, backward_s: FloatArray
) -> FloatArray:
    """Seconds of one layer and micro-batch that its offload adds: what neither pass hides.

    max(S / B_host - f, 0) + max(S / B_host - b, 0)   (docs/equations.md T24)
    """
    moved = num_bytes / host_bytes_per_s
    return np.maximum(moved - forward_s, 0.0) + np.maximum(moved - backward_s, 0.0)


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
    replicas: IntArray,
    gradient_bytes: FloatArray,
    parameter_bytes: FloatArray,
    zero: IntArray,
    overlap_grad_reduce: IntArray,
    overlap_param_gather: IntArray,
    micro_batch_s: FloatArray,
    window: FloatArray,
    num_layers: FloatArray,
) -> DataParallel:
    """Seconds of gradient reduction and parameter gathering that a step pays for.

    exposed = max(t - eta share w tau, floor t) for each collective, t itself without overlap
    (T13)

    ZeRO 0: one all-reduce of the gradients. ZeRO 1: one reduce-scatter, one all-gather of the
    parameters; with ``replicas`` of the group that shards, both inside it, and an all-reduce of the
    rank's part of the gradients between them. Software that sums all gradients on every rank has
    the all-reduce with ZeRO 1 too. What ZeRO 2 and 3 do in each micro-batch is in ``sharded``.
    ``window`` w counts the micro-batches whose computation a collective can run behind. Software
    that reduces or slices tensor by tensor adds a time for each of ``num_layers`` layers of the
    rank and each rank of the group. Neglects: the number of buckets, contention with
    tensor-parallel traffic.
    """
    shards = num_ranks / replicas if largest(replicas) > 1 else num_ranks
    group = network.group(shards, stride)
    sharded = zero > 0
    reduce = network.reduce_scatter(gradient_bytes, group)
    if largest(replicas) > 1:
        between = network.group(replicas, stride * shards)
        reduce = reduce + network.all_reduce(gradient_bytes / shards, between)
    gather = network.all_gather(parameter_bytes, group)
    if overlap.zero_all_reduces or not sharded.all():
        whole = np.flatnonzero(~sharded | overlap.zero_all_reduces)
        every = network.group(num_ranks, stride).take(whole)
        reduce[whole] = network.all_reduce(gradient_bytes.take(whole), every)
        gather = np.where(sharded, gather, 0.0)
    if overlap.dp_rank_s or overlap.zero_rank_s:
        of_a_rank = np.where(sharded, overlap.zero_rank_s, overlap.dp_rank_s)
        reduce = reduce + of_a_rank * num_layers * np.where(shards > 1, shards, 0.0)
    budget = overlap.dp_overlap_efficiency * window * micro_batch_s

    def exposed(time: FloatArray, share: float, overlapped: IntArray) -> FloatArray:
        least = by_code(np.array([1.0, overlap.dp_exposed_floor]), overlapped)
        behind = share * budget
        if not overlapped.all():
            behind = np.where(overlapped > 0, behind, 0.0)  # the budget may be infinite
        return np.maximum(time - behind, least * time)

    return DataParallel(
        exposed(reduce, BACKWARD_SHARE, overlap_grad_reduce),
        exposed(gather, FORWARD_SHARE, overlap_param_gather),
    )
