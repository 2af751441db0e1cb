"""The cluster of a measured run: its GPUs, sizes and bandwidth on the catalogue's networks."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace

from parallelsim.catalog import accelerator_names, load_accelerator
from parallelsim.cluster import ClusterSpec, Tier
from parallelsim.measured_names import matching_gpus
from parallelsim.measurements import Facts, RowError

CLUSTER_FACTS = (
    "gpu",
    "num_gpus",
    "gpus_per_node",
    "inter_node_gb_per_s_per_gpu",
    "measured_inter_node_all_reduce_gb_per_s",
)
"""Columns that decide the cluster."""
MOST_PER_NODE = 1024
INFINIBAND_SHARE = 0.84
"""Of the NICs' bandwidth in a test of the all-reduce: between InfiniBand's 0.94 and the 0.74 of
clouds' Ethernet (files of hgx-h100 and aws-p5)."""
SAME_NETWORK = 1.1
"""Bandwidths within this factor are one network, measured or rounded otherwise."""
LINK_GB_PER_S = (0.01, 10_000.0)
"""Bandwidths that are no mistake: a GPU's share of 1 Gbit/s Ethernet is 0.016 GB/s."""


def cluster_of(facts: Facts, clusters: Sequence[ClusterSpec]) -> ClusterSpec:
    """A cluster of the row's GPUs: the catalogue's network with the row's sizes and bandwidth.

    Where several clusters have the GPU, the one whose network is nearest to the row's; where none
    has, one of the same architecture lends its network. GPUs that a node joins follow the row,
    except in domains larger than a node (NVL72).

    Raises:
        RowError: unknown GPU, or no network known for a run beyond one node.
    """
    name = _gpu_name(facts)
    accelerator = load_accelerator(name)
    num_gpus = facts.required("num_gpus")
    bandwidth = facts.within("inter_node_gb_per_s_per_gpu", *LINK_GB_PER_S)
    same = [c for c in clusters if c.accelerator.name == name]
    uniform = [c for c in clusters if c.domain_size >= c.gpus_per_node]
    candidates = same or [
        c for c in uniform if c.accelerator.architecture == accelerator.architecture
    ]
    if not candidates:
        raise RowError(f"no cluster file for {name} or its architecture")

    reached = facts.within("measured_inter_node_all_reduce_gb_per_s", *LINK_GB_PER_S)

    def distance(cluster: ClusterSpec) -> tuple[float, float]:
        """NIC bandwidth off by this factor; among equals the lowest latency, as most networks have,
        or the highest where the run's own test stays below InfiniBand's.
        """
        first = _between_nodes(cluster.tiers, cluster.gpus_per_node)
        if first == len(cluster.tiers):
            return float("inf"), 0.0
        rate, latency = (
            cluster.tiers[first].bandwidth_bytes_per_s / 1e9,
            cluster.tiers[first].latency_s,
        )
        ratio = 1.0 if bandwidth is None else rate / bandwidth
        ethernet = reached is not None and reached < INFINIBAND_SHARE * cluster.gpus_per_node * rate
        return max(ratio, 1 / ratio), -latency if ethernet else latency

    chosen = min(candidates, key=distance)
    tiers = list(chosen.tiers)
    per_node = facts.count("gpus_per_node", chosen.gpus_per_node) or chosen.gpus_per_node
    if per_node > MOST_PER_NODE:
        raise RowError(f"gpus_per_node={per_node} is not within 1 to {MOST_PER_NODE}")
    if chosen.domain_size == chosen.gpus_per_node:
        tiers[0] = replace(tiers[0], size=per_node)
    if len(tiers) < 2 and num_gpus > per_node:
        lender = min((c for c in uniform if len(c.tiers) > 1), key=distance)
        if bandwidth is None:
            raise RowError(
                f"inter_node_gb_per_s_per_gpu is not stated and no file states it for {name}"
            )
        tiers.append(lender.tiers[1])
    first = _between_nodes(tiers, per_node)
    if reached is not None and len(tiers) > first:
        per_node_rate = per_node * (bandwidth or tiers[first].bandwidth_bytes_per_s / 1e9)
        tiers[first] = replace(tiers[first], efficiency=min(reached / per_node_rate, 1.0))
    if bandwidth is not None:
        tiers[first:] = [
            replace(tier, bandwidth_bytes_per_s=bandwidth * 1e9) for tier in tiers[first:]
        ]
    return ClusterSpec(
        name=chosen.name,
        accelerator=accelerator,
        gpus_per_node=per_node,
        tiers=tuple(tiers),
        num_gpus=num_gpus,
    )


def _gpu_name(facts: Facts) -> str:
    """The one accelerator of the catalogue that the row means.

    Raises:
        RowError: none, or several.
    """
    name = facts.word("gpu")
    found = matching_gpus(name, tuple(accelerator_names()))
    if not found:
        raise RowError(f"no accelerator file for {name[:40]!r}{_nearest(name)}")
    if len(found) > 1:
        raise RowError(f"gpu {name[:40]!r} may be {', '.join(found)}; use one of them")
    return found[0]


def network_differs(facts: Facts, cluster: ClusterSpec) -> bool:
    """The row states a network between nodes that is not the cluster's, and the run used it."""
    first = _between_nodes(cluster.tiers, cluster.gpus_per_node)
    if first == len(cluster.tiers) or cluster.num_nodes < 2:
        return False
    tier = cluster.tiers[first]
    rate = tier.bandwidth_bytes_per_s / 1e9
    known = {
        "inter_node_gb_per_s_per_gpu": rate,
        "measured_inter_node_all_reduce_gb_per_s": cluster.gpus_per_node * rate * tier.efficiency,
    }
    stated = {name: facts.within(name, *LINK_GB_PER_S) for name in known}
    return any(
        value is not None and not 1 / SAME_NETWORK < value / known[name] < SAME_NETWORK
        for name, value in stated.items()
    )


def _nearest(name: str) -> str:
    """A hint where the catalogue has a name close to this one."""
    close = difflib.get_close_matches(name[:100], accelerator_names(), n=1)
    return f"; is {close[0]!r} meant?" if close else ""


def _between_nodes(tiers: Sequence[Tier], gpus_per_node: int) -> int:
    """Position of the first tier after the innermost that joins nodes; their number where none."""
    sizes = [tier.size for tier in tiers]
    for position in range(1, len(sizes)):
        size = sizes[position]
        if size is None or size > gpus_per_node:
            return position
    return len(sizes)
