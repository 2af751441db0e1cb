"""Collectives into seconds: measured curves inside the innermost tier, rail-aligned rings across
tiers.

A group of n ranks is placed by its stride: ranks order tp, cp, dp, pp, innermost first, so tp has
stride 1, cp stride tp, the data-parallel group (dp * cp ranks) stride tp. ``bytes`` are always
those of the whole tensor: what every rank holds after an all-gather or before a reduce-scatter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parallelsim.cluster import COLLECTIVES, ClusterSpec, CollectiveFit, Tier
from parallelsim.operators import FloatArray, IntArray, distinct_copies

BoolArray = NDArray[np.bool_]

ALL_TO_ALL_SHARE = 0.79
PER_NODE_SHARE = 0.95
"""Of the NIC rate that rings reach: NCCL's all-to-all, and kernels that send a token to each node
once (docs/equations.md T16); fitted: benchmarks/refit.py."""
KERNEL_SPEEDUP = 1.25
"""Inside a domain, of kernels that send a token to each rank once over NCCL's all-to-all of as many
bytes: Hybrid-EP's own tests reach 1.17 (8 B200), 1.34 (8 GB200) and 1.20 (36 GB200) times the
measured curves (github.com/deepseek-ai/DeepEP, docs/README_Hybrid-EP.md, kernels alone)."""
ALL_TO_ALL_BASE_S, ALL_TO_ALL_HOP_S = 16e-6, 3.6e-6
"""Latency of an all-to-all between nodes, and added for each node (T16)."""
TREE_STEPS_PER_LEVEL = 3.0
"""Latency steps of a tree all-reduce for each doubling of the nodes (docs/equations.md T11).
"""


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Where the ranks of a group sit; float64 arrays of one shape."""

    num_ranks: FloatArray
    inside: FloatArray
    """Ranks inside one instance of the innermost tier."""
    curve_index: IntArray
    """The same as a position in the curves."""
    inside_frac: FloatArray
    """(n - 1)/n of these n ranks: what of a tensor a rank sends inside."""
    crossings: tuple[Crossing, ...]
    """Of the outer tiers, innermost first."""

    def take(self, index: IntArray) -> Group:
        """The groups at these positions."""
        return Group(
            self.num_ranks.take(index),
            self.inside.take(index),
            self.curve_index.take(index),
            self.inside_frac.take(index),
            tuple(crossing.take(index) for crossing in self.crossings),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Crossing:
    """How a group crosses one outer tier."""

    tier: Tier
    below: FloatArray
    """Ranks inside one instance of the tier below."""
    within: FloatArray
    """Ranks inside one instance of this tier."""
    sent_frac: FloatArray
    """1 - below/within."""
    byte_s: FloatArray
    """Seconds for each byte of the tensor: ``sent_frac`` over the rate of the busy NICs."""
    ring_s: FloatArray
    """Latency of a ring."""

    def take(self, index: IntArray) -> Crossing:
        """Those of the groups at these positions."""
        columns = (self.below, self.within, self.sent_frac, self.byte_s, self.ring_s)
        return Crossing(self.tier, *(column.take(index) for column in columns))


@dataclass(frozen=True, slots=True, eq=False)
class _Curve:
    """The two lines at every number of ranks from 0 to the domain's size."""

    a1_s: FloatArray
    per_byte1: FloatArray
    a2_s: FloatArray
    per_byte2: FloatArray


class Network:
    """Seconds of collectives on one cluster; holds the curves tabulated by number of ranks."""

    def __init__(self, cluster: ClusterSpec) -> None:
        self.cluster = cluster
        fits = cluster.accelerator.link_collectives
        self._curves = {op: _tabulate(fits[op], cluster.domain_size) for op in COLLECTIVES}
        self._sizes = [float(tier.size or np.inf) for tier in cluster.tiers]

    def group(
        self,
        num_ranks: IntArray | FloatArray,
        stride: IntArray | FloatArray,
        nic_share: float = 1.0,
    ) -> Group:
        """The group of ``num_ranks`` ranks that are ``stride`` GPUs apart.

        ``nic_share``: of the NICs of the ranks below an outer tier, those that a collective keeps
        busy; at least one.
        """
        ranks = np.asarray(num_ranks, np.float64)
        per_tier = [
            np.minimum(ranks, np.maximum(np.floor(size / stride), 1.0)) for size in self._sizes[:-1]
        ]
        per_tier.append(ranks)
        crossings = []
        for below, within, tier in zip(
            per_tier[:-1], per_tier[1:], self.cluster.tiers[1:], strict=True
        ):
            busy = below if nic_share == 1.0 else nic_share * below
            rate = np.maximum(busy, 1.0) * (tier.bandwidth_bytes_per_s * tier.efficiency)
            sent = 1 - below / within
            ring = (within > below) * (tier.latency_s / 2 * (within - 1))
            crossings.append(Crossing(tier, below, within, sent, sent / rate, ring))
        inside = per_tier[0]
        return Group(
            num_ranks=ranks,
            inside=inside,
            curve_index=np.minimum(inside, self.cluster.domain_size).astype(np.int64),
            inside_frac=1 - 1 / np.maximum(inside, 1.0),
            crossings=tuple(crossings),
        )

    def all_gather(self, num_bytes: FloatArray, group: Group) -> FloatArray:
        """Seconds until every rank holds all ``num_bytes``; 0 for one rank.

        t = max( inside the domain, (k - 1)/k S / (r eta B) + alpha (n - 1)/2 over each outer tier )
        with k instances of the tier below and r ranks in each (T11).
        """
        return self._hierarchical("all_gather", num_bytes, group)

    def reduce_scatter(self, num_bytes: FloatArray, group: Group) -> FloatArray:
        """Seconds until every rank holds its reduced share of ``num_bytes``; 0 for one rank."""
        return self._hierarchical("reduce_scatter", num_bytes, group)

    def all_reduce(self, num_bytes: FloatArray, group: Group) -> FloatArray:
        """Seconds until every rank holds the sum.

        Inside a domain the measured curve (NVLS where the hardware has it); across, a
        reduce-scatter and an all-gather whose latency is that of the ring or of a tree, whichever
        is lower.
        """
        twice = 2 * num_bytes
        time = self._inside("all_reduce", twice, group)
        for at in group.crossings:
            wire = twice * at.byte_s
            levels = np.log2(at.within / at.below)
            steps = np.minimum(at.within - 1, TREE_STEPS_PER_LEVEL * levels)
            latency = at.tier.latency_s * ((at.within > at.below) * steps)
            time = np.maximum(time, wire + latency)
        return time

    def all_to_all(self, num_bytes: FloatArray, group: Group) -> FloatArray:
        """Seconds for every rank to send 1/n of its ``num_bytes`` to each rank."""
        time = self._inside("all_to_all", num_bytes, group)
        for at in group.crossings:
            rate = at.tier.bandwidth_bytes_per_s * at.tier.efficiency
            latency = at.tier.latency_s * ((at.within > at.below) * (at.within / at.below))
            time = np.maximum(time, at.sent_frac * num_bytes / rate + latency)
        return time

    def expert_all_to_all(
        self,
        token_bytes: FloatArray,
        copies: float,
        group: Group,
        per_node: BoolArray,
        reached: FloatArray,
    ) -> FloatArray:
        """Seconds for every rank to send each of its tokens to ``copies`` experts of the group.

        t = max( inside: c S (r - 1)/r, across: q S (k - 1)/k / (eta_a B) + alpha k ) with r ranks
        in a domain, k domains and n = r k; c = q = K, or c = n (1 - (1 - 1/n)^K) and
        q = k (1 - (1 - 1/k)^K) where a token goes to each rank, and crosses to each domain, once
        (``per_node``), at most the share ``reached`` of them; those kernels are
        :data:`KERNEL_SPEEDUP` times as fast inside. docs/equations.md T16.
        """
        distinct = distinct_copies(group.num_ranks, copies)
        sent = np.where(per_node, distinct, copies)
        time = self._inside("all_to_all", sent * token_bytes, group)
        time = np.where(per_node, time / KERNEL_SPEEDUP, time)
        for at in group.crossings:
            k, tier = at.within / at.below, at.tier
            domains = np.minimum(distinct_copies(k, copies), np.maximum(reached * k, 1.0))
            sent = np.where(per_node, domains, copies)
            share = np.where(per_node, PER_NODE_SHARE, ALL_TO_ALL_SHARE)
            rate = share * tier.bandwidth_bytes_per_s * tier.efficiency
            latency = np.where(k > 1, ALL_TO_ALL_BASE_S + ALL_TO_ALL_HOP_S * k, 0.0)
            time = np.maximum(time, sent * token_bytes * (1 - 1 / k) / rate + latency)
        return time

    def p2p_rate(self, distance: IntArray | FloatArray) -> FloatArray:
        """Bytes/s between two ranks ``distance`` GPUs apart at the far end of their group.

        ``distance`` counts the GPUs that the two ends span: within the domain they use its links.
        """
        rate = np.full(np.shape(distance), self.cluster.accelerator.p2p_bytes_per_s)
        for size, tier in zip(self._sizes, self.cluster.tiers[1:], strict=False):
            outer = tier.bandwidth_bytes_per_s * tier.efficiency
            rate = np.where(distance > size, outer, rate)
        return rate

    def _hierarchical(self, op: str, num_bytes: FloatArray, group: Group) -> FloatArray:
        time = self._inside(op, num_bytes, group)
        for at in group.crossings:
            time = np.maximum(time, num_bytes * at.byte_s + at.ring_s)
        return time

    def _inside(self, op: str, num_bytes: FloatArray, group: Group) -> FloatArray:
        """Two-line curve on the ranks of one domain; ``num_bytes`` is already doubled for an
        all-reduce.
        """
        curve, ranks, moved = self._curves[op], group.curve_index, num_bytes * group.inside_frac
        return np.minimum(
            curve.a1_s.take(ranks) + moved * curve.per_byte1.take(ranks),
            curve.a2_s.take(ranks) + moved * curve.per_byte2.take(ranks),
        )


def _tabulate(fit: CollectiveFit, domain_size: int) -> _Curve:
    """The curve at 0..domain_size ranks: latency linear in n - 1, bandwidth linear in log n
    between the measured counts, both continued by the last slope (latency) or the last value
    (bandwidth) above them.
    """
    ranks = np.arange(domain_size + 1, dtype=np.float64)
    safe = np.maximum(ranks, 2.0)
    known = np.array(fit.num_ranks, np.float64)

    def latency(values: tuple[float, ...]) -> FloatArray:
        inner: FloatArray = np.interp(safe, known, values)
        if len(known) < 2:
            return np.asarray(inner * safe / known[0])
        slope = max((values[-1] - values[-2]) / (known[-1] - known[-2]), 0.0)
        return np.where(safe > known[-1], values[-1] + slope * (safe - known[-1]), inner)

    def inverse_bandwidth(values: tuple[float, ...]) -> FloatArray:
        return 1 / np.interp(np.log2(safe), np.log2(known), values)

    alone = ranks < 2
    columns = (
        latency(fit.a1_s),
        inverse_bandwidth(fit.bw1_bytes_per_s),
        latency(fit.a2_s),
        inverse_bandwidth(fit.bw2_bytes_per_s),
    )
    return _Curve(*(np.where(alone, 0.0, column) for column in columns))
