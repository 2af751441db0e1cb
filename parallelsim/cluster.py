"""Where it is trained: accelerators, and the network between them as tiers.

A tier is one level of the network seen from a GPU: the NVLink domain, then the NICs of the rail or
leaf, then the spine. ``size`` counts the GPUs that one instance of the tier joins.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from parallelsim.errors import SpecError


@dataclass(frozen=True, slots=True)
class GemmEfficiency:
    """Seconds of a GEMM by shape: the separable form.

    t = max( 2 (m + m0) (n + n0) (k + k0) / (P e_max), bytes / (B b_w) ) + t0

    Fitted on measured tables; ``max_efficiency`` is of short bursts, the sustained derate is apart.
    """

    max_efficiency: float
    m0: float
    n0: float
    k0: float
    memory_efficiency: float
    launch_s: float


@dataclass(frozen=True, slots=True)
class AttentionEfficiency:
    """Seconds of flash attention by shape.

    t = max( F / (P e_d s / (s + s0)), bytes / (B b_a) ) + t0, F = 4 pairs d for each head
    """

    head_dims: tuple[int, ...]
    """Head sizes that were measured, ascending."""
    max_efficiency: tuple[float, ...]
    """e_d at each head size; other sizes take the nearest."""
    half_seq_length: float
    memory_efficiency: float
    launch_s: float
    backward_ratio: float
    """Backward seconds over forward seconds."""

    def efficiency(self, head_dim: float) -> float:
        """e_d of the measured head size nearest to ``head_dim`` (the smaller one on a tie)."""
        nearest = min(range(len(self.head_dims)), key=lambda i: abs(self.head_dims[i] - head_dim))
        return self.max_efficiency[nearest]


@dataclass(frozen=True, slots=True)
class CollectiveFit:
    """Two lines, a low-latency and a bulk protocol: t = min(a1 + x / bw1, a2 + x / bw2).

    x = bytes (n - 1) / n, doubled for an all-reduce. One entry for each measured number of ranks.
    """

    num_ranks: tuple[int, ...]
    a1_s: tuple[float, ...]
    bw1_bytes_per_s: tuple[float, ...]
    a2_s: tuple[float, ...]
    bw2_bytes_per_s: tuple[float, ...]


COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@dataclass(frozen=True)
class AcceleratorSpec:
    """One GPU: peaks, memory, and its measured efficiencies."""

    name: str
    vendor: str
    architecture: str
    """volta, ampere, ada, hopper, blackwell, cdna3 or cdna4: frameworks key their kernels on it."""
    compute_capability: float | None
    """CUDA compute capability; None where there is no CUDA."""
    memory_bytes: int
    """What the driver reports as usable, not the label."""
    memory_bandwidth_bytes_per_s: float
    peak_flops: Mapping[str, float]
    """Dense peak by number format: bf16, fp16, fp32 (tf32 where the GPU has it), fp8, fp4."""
    precisions: tuple[str, ...]
    """Training precisions (values of ``Plan.precision``) that the hardware can run."""
    gemm: GemmEfficiency
    gemm_fp8_max_efficiency: float | None
    """e_max of fp8 GEMMs; shapes take the 16-bit offsets (casts are counted apart)."""
    sustained_efficiency: float
    """Clock under training load over clock in the bursts that ``gemm`` was fitted on."""
    fp8_sustained_ratio: Mapping[str, float]
    """By fp8 precision: a further factor on the sustained fp8 rate."""
    attention: AttentionEfficiency
    link_collectives: Mapping[str, CollectiveFit]
    """Collectives inside the innermost tier, by operation (``COLLECTIVES``)."""
    p2p_bytes_per_s: float
    """One GPU to one other inside the innermost tier, one way."""
    measured: bool
    """False where the efficiencies are the family's, not this part's own tables."""
    host_bytes_per_s: float | None = None
    """GPU to host memory, each way at once; None: not known."""


@dataclass(frozen=True, slots=True)
class Tier:
    """One level of the network."""

    name: str
    size: int | None
    """GPUs that one instance joins; None on the outermost: as many as there are."""
    bandwidth_bytes_per_s: float
    """One way, for each GPU."""
    latency_s: float
    """Added for each instance that a ring visits."""
    efficiency: float
    """Share of the bandwidth that large messages reach."""


@dataclass(frozen=True, slots=True)
class Unexplained:
    """What corrected efficiencies left of the error of the runs that they are from."""

    num_runs: int
    log_error: float
    """Root mean square of ln(measured / predicted), each run predicted from the others; of a single
    run what its own correction left."""

    @property
    def words(self) -> str:
        """For reports: ``3 own runs off by 12 %``."""
        runs = "1 own run" if self.num_runs == 1 else f"{self.num_runs} own runs"
        return f"{runs} off by {100 * math.expm1(self.log_error):.0f} %"


@dataclass(frozen=True)
class ClusterSpec:
    """Identical accelerators in identical nodes under one network."""

    name: str
    accelerator: AcceleratorSpec
    gpus_per_node: int
    tiers: tuple[Tier, ...]
    """Innermost first. ``tiers[0]`` is the NVLink (or PCIe, xGMI) domain that collectives use at
    link speed.
    """
    num_gpus: int
    max_gpus: int | None = None
    """Largest size that the source states; None where none is stated."""
    host_memory_bytes: float | None = None
    """Of a node's CPUs; None: not known."""
    host_memory_bytes_per_s: float | None = None
    """Peak of all memory channels of a node's CPUs; None: not known."""
    dollars_per_gpu_hour: float | None = None
    """None: the file states no price."""
    price_date: str = ""
    """Day or month of that price."""
    node_power_w: float | None = None
    """Rated maximum of a node, all of it; None: the file states none."""
    gpu_hours_between_failures: float | None = None
    """GPU-hours for each failure that stops a run; None: the file states none."""
    storage_bytes_per_s_per_node: float | None = None
    """Rate at which a node writes and reads checkpoints while all do; None: the file states none.
    """
    unexplained: Unexplained | None = None
    """Of a calibrated cluster: its intervals hold this too."""

    @property
    def domain_size(self) -> int:
        """GPUs of the innermost tier."""
        return self.tiers[0].size or self.num_gpus

    @property
    def host_bytes_per_s_per_gpu(self) -> float | None:
        """Peak rate of the CPUs' memory for each GPU in use of a node; None: not known."""
        rate = self.host_memory_bytes_per_s
        return None if rate is None else rate / min(self.gpus_per_node, self.num_gpus)

    @property
    def num_nodes(self) -> int:
        """Nodes in use, rounded up."""
        return -(-self.num_gpus // self.gpus_per_node)

    def with_num_gpus(self, num_gpus: int) -> ClusterSpec:
        """The same kind of cluster with ``num_gpus`` GPUs.

        Raises:
            SpecError: a size that whole nodes cannot give, with the nearest that they can; more
            than one
                node where the file states no network between nodes.
        """
        node = self.gpus_per_node
        if num_gpus < 1:
            raise SpecError(f"a cluster needs at least 1 GPU, got {num_gpus}", key="--gpus")
        if num_gpus < node and node % num_gpus:
            sizes = ", ".join(str(n) for n in range(1, node + 1) if node % n == 0)
            raise SpecError(
                f"{self.name} has {node} GPUs a node; inside one node use {sizes}, got {num_gpus}",
                key="--gpus",
            )
        if num_gpus > node and num_gpus % node:
            low = num_gpus // node * node
            raise SpecError(
                f"{self.name} has {node} GPUs a node; use whole nodes, "
                f"{low} or {low + node}, got {num_gpus}",
                key="--gpus",
            )
        if self.max_gpus is not None and num_gpus > self.max_gpus:
            raise SpecError(
                f"{self.name} has at most {self.max_gpus} GPUs, got {num_gpus}", key="--gpus"
            )
        if num_gpus > self.domain_size and len(self.tiers) < 2:
            raise SpecError(
                f"no source states the network between nodes of {self.name}; "
                f"give it with --nic-gbit-per-s (per GPU), or stay within {self.domain_size} GPUs",
                key="--gpus",
            )
        return replace(self, num_gpus=num_gpus)
