"""What accelerator and cluster files may hold, and the specifications that they describe.

Files use human units (``memory_gib``, ``hbm_gb_per_s``, ``peak_tflops``, ``latency_us``,
``nic_gbit_per_s``); they become SI here and nowhere else. GB and Gbit are decimal, GiB and MiB
binary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from parallelsim.cluster import (
    COLLECTIVES,
    AcceleratorSpec,
    AttentionEfficiency,
    ClusterSpec,
    CollectiveFit,
    GemmEfficiency,
    Tier,
)
from parallelsim.errors import SpecError
from parallelsim.schemas_model import StrictModel, validated
from parallelsim.units import GB, GIB, MIB, MICRO, TERA
from parallelsim.yaml_io import require_sources, shown, shown_file, shown_key

BYTES_PER_S_PER_GBIT = 1e9 / 8
ADDED_NIC_EFFICIENCY = 0.62
ADDED_NIC_LATENCY_S = 11e-6
"""Of a network that the user adds to a file without one: fitted on published A100 runs over
InfiniBand and RoCE, the lower of the two generations that were fitted (NDR: 0.85, 10 us)."""

Name = Annotated[str, Field(max_length=100, pattern=r"^[\w.()+/ -]+$")]
"""Letters, digits and . ( ) + / - or blanks: names stand in one-line messages."""
Share = Annotated[float, Field(gt=0, le=1)]
Microseconds = Annotated[float, Field(ge=0, le=1e7)]
Rate = Annotated[float, Field(gt=0, le=1e7)]  # GB/s, Gbit/s or TFLOPS
Format = Literal["fp32", "bf16", "fp16", "fp8", "fp4"]
Precision = Literal[
    "fp32", "bf16", "fp16", "fp8-delayed", "fp8-current", "fp8-blockwise", "mxfp8", "nvfp4"
]
FORMATS: dict[str, Format] = {
    "fp32": "fp32",
    "bf16": "bf16",
    "fp16": "fp16",
    "fp8-delayed": "fp8",
    "fp8-current": "fp8",
    "fp8-blockwise": "fp8",
    "mxfp8": "fp8",
    "nvfp4": "fp4",
}
"""The number format of the GEMMs of each training precision."""


class SectionFile(StrictModel):
    """A mapping that may say where its numbers come from."""

    source: str | None = None


class PlatformFile(SectionFile):
    """What can run on it."""

    compute_capability: float | None = Field(default=None, gt=0, le=100)
    precisions: list[Precision] = Field(min_length=1, max_length=8)


class MemoryFile(SectionFile):
    """Memory that the driver reports (one of MiB and GiB), and its bandwidth."""

    memory_mib: int | None = Field(default=None, ge=1, le=10**9)
    memory_gib: float | None = Field(default=None, gt=0, le=1e6)
    hbm_gb_per_s: Rate


class PeakFile(SectionFile):
    """Dense peaks in TFLOPS."""

    peak_tflops: dict[Format, Rate] = Field(min_length=1)


class GemmFile(SectionFile):
    """:class:`GemmEfficiency`."""

    max_efficiency: Share
    m0: float = Field(ge=0, le=1e6)
    n0: float = Field(ge=0, le=1e6)
    k0: float = Field(ge=0, le=1e6)
    memory_efficiency: Share
    launch_us: Microseconds


class Fp8File(SectionFile):
    """8-bit and 4-bit GEMMs: burst efficiency, and by precision a factor on the sustained rate."""

    max_efficiency: Share
    sustained_ratio: dict[Precision, Annotated[float, Field(gt=0, le=2)]]


class SustainedFile(SectionFile):
    """Clock under training load over the clock of the measured bursts."""

    efficiency: Share


class AttentionFile(SectionFile):
    """:class:`AttentionEfficiency`."""

    head_dims: list[Annotated[int, Field(ge=1, le=65536)]] = Field(min_length=1, max_length=64)
    max_efficiency: list[Share]
    half_seq_length: float = Field(ge=0, le=1e7)
    memory_efficiency: Share
    launch_us: Microseconds
    backward_ratio: float = Field(gt=0, le=100)


class PointToPointFile(SectionFile):
    """One GPU to one other."""

    p2p_gb_per_s: Rate


class LinesFile(SectionFile):
    """The two lines of one collective with ``ranks`` GPUs."""

    ranks: int = Field(ge=2, le=65536)
    a1_us: Microseconds
    bw1_gb_per_s: Rate
    a2_us: Microseconds
    bw2_gb_per_s: Rate


Lines = Annotated[list[LinesFile], Field(min_length=1, max_length=64)]


class CollectivesFile(SectionFile):
    """Collectives of the innermost tier."""

    all_reduce: Lines
    all_gather: Lines
    reduce_scatter: Lines
    all_to_all: Lines


class AcceleratorFile(SectionFile):
    """A whole accelerator file."""

    name: Name
    vendor: Name
    architecture: Literal["volta", "ampere", "ada", "hopper", "blackwell", "cdna3", "cdna4"]
    measured: bool
    platform: PlatformFile
    memory: MemoryFile
    peak: PeakFile
    gemm: GemmFile
    fp8: Fp8File | None = None
    sustained: SustainedFile
    attention: AttentionFile
    point_to_point: PointToPointFile
    collectives: CollectivesFile


class TierFile(SectionFile):
    """One level of the network: bandwidth as one link or as the NICs of a node."""

    name: Name
    size: int | None = Field(ge=1, le=2**31)
    link_gb_per_s: Rate | None = None
    nics_per_node: int | None = Field(default=None, ge=1, le=1024)
    nic_gbit_per_s: Rate | None = None
    latency_us: Microseconds
    efficiency: Share


class ClusterFile(SectionFile):
    """A whole cluster file; the accelerator is a catalogue name or a whole accelerator mapping."""

    name: Name
    accelerator: str | dict[str, Any]
    gpus_per_node: int = Field(ge=1, le=65536)
    max_gpus: int | None = Field(default=None, ge=1, le=2**31)
    tiers: list[TierFile] = Field(min_length=1, max_length=8)


def accelerator_from_document(data: dict[str, Any], file: str) -> AcceleratorSpec:
    """The accelerator that a file's mapping describes.

    Raises:
        SpecError: unknown, missing or malformed keys; numbers without source; a precision without
            its peak or its efficiency.
    """
    require_sources(data, file)
    return _accelerator(data, file)


def cluster_from_document(
    data: dict[str, Any],
    file: str,
    *,
    load_accelerator: Callable[[str], AcceleratorSpec],
    nic_gbit_per_s: float | None,
) -> ClusterSpec:
    """The cluster that a file's mapping describes, at the size of one node.

    Args:
        data: the mapping.
        file: its name in errors.
        load_accelerator: finds the accelerator that the file names.
        nic_gbit_per_s: Gbit/s one way for each GPU between nodes, in place of what the file states;
            where it states nothing, a network of this rate is added.

    Raises:
        SpecError: unknown, missing or malformed keys; numbers without source; tiers that do not
            nest; an accelerator that does not exist.
    """
    document = validated(ClusterFile, data, file)
    require_sources(data, file)
    if isinstance(document.accelerator, str):
        accelerator = load_accelerator(document.accelerator)
    else:
        accelerator = _accelerator(document.accelerator, f"{file}: accelerator")
    node = document.gpus_per_node
    _check_nesting(document, file)
    tiers = tuple(_tier(tier, node, file, index) for index, tier in enumerate(document.tiers))
    if nic_gbit_per_s is not None:
        tiers = _with_nic(tiers, nic_gbit_per_s, node)
    return ClusterSpec(
        name=document.name,
        accelerator=accelerator,
        gpus_per_node=node,
        tiers=tiers,
        num_gpus=node,
        max_gpus=document.max_gpus,
    )


def _accelerator(data: dict[str, Any], file: str) -> AcceleratorSpec:
    document = validated(AcceleratorFile, data, file)
    _check_precisions(document, file)
    fp8 = document.fp8
    return AcceleratorSpec(
        name=document.name,
        vendor=document.vendor,
        architecture=document.architecture,
        compute_capability=document.platform.compute_capability,
        memory_bytes=_memory_bytes(document.memory, file),
        memory_bandwidth_bytes_per_s=document.memory.hbm_gb_per_s * GB,
        peak_flops={name: value * TERA for name, value in document.peak.peak_tflops.items()},
        precisions=tuple(document.platform.precisions),
        gemm=_gemm(document.gemm),
        gemm_fp8_max_efficiency=None if fp8 is None else fp8.max_efficiency,
        sustained_efficiency=document.sustained.efficiency,
        fp8_sustained_ratio={str(p): ratio for p, ratio in fp8.sustained_ratio.items()}
        if fp8
        else {},
        attention=_attention(document.attention, file),
        link_collectives={
            name: _collective(document.collectives, name, file) for name in COLLECTIVES
        },
        p2p_bytes_per_s=document.point_to_point.p2p_gb_per_s * GB,
        measured=document.measured,
    )


def _check_precisions(document: AcceleratorFile, file: str) -> None:
    """Each precision has the peak of its format; 8 and 4 bits also an efficiency."""
    for precision in document.platform.precisions:
        number_format = FORMATS[precision]
        if number_format not in document.peak.peak_tflops:
            raise _error(
                f"precision {precision} needs the key {number_format}", file, "peak", "peak_tflops"
            )
        if number_format in ("fp8", "fp4"):
            if document.fp8 is None:
                raise _error(f"precision {precision} needs this section", file, "fp8")
            if precision not in document.fp8.sustained_ratio:
                raise _error(
                    f"precision {precision} needs its ratio", file, "fp8", "sustained_ratio"
                )


def _memory_bytes(memory: MemoryFile, file: str) -> int:
    mib, gib = memory.memory_mib, memory.memory_gib
    if mib is not None and gib is None:
        return mib * MIB
    if gib is not None and mib is None:
        return round(gib * GIB)
    raise _error("expected either memory_mib or memory_gib", file, "memory")


def _gemm(gemm: GemmFile) -> GemmEfficiency:
    return GemmEfficiency(
        max_efficiency=gemm.max_efficiency,
        m0=gemm.m0,
        n0=gemm.n0,
        k0=gemm.k0,
        memory_efficiency=gemm.memory_efficiency,
        launch_s=gemm.launch_us * MICRO,
    )


def _attention(attention: AttentionFile, file: str) -> AttentionEfficiency:
    heads = attention.head_dims
    if heads != sorted(set(heads)):
        raise _error(
            f"expected ascending head sizes, got {shown(heads)}", file, "attention", "head_dims"
        )
    if len(attention.max_efficiency) != len(heads):
        message = (
            f"expected a list of {len(heads)}, as head_dims, got {shown(attention.max_efficiency)}"
        )
        raise _error(message, file, "attention", "max_efficiency")
    return AttentionEfficiency(
        head_dims=tuple(heads),
        max_efficiency=tuple(attention.max_efficiency),
        half_seq_length=attention.half_seq_length,
        memory_efficiency=attention.memory_efficiency,
        launch_s=attention.launch_us * MICRO,
        backward_ratio=attention.backward_ratio,
    )


def _collective(collectives: CollectivesFile, operation: str, file: str) -> CollectiveFit:
    lines: list[LinesFile] = getattr(collectives, operation)
    ranks = [line.ranks for line in lines]
    if ranks != sorted(set(ranks)):
        raise _error("expected ascending ranks", file, "collectives", operation)
    return CollectiveFit(
        num_ranks=tuple(ranks),
        a1_s=tuple(line.a1_us * MICRO for line in lines),
        bw1_bytes_per_s=tuple(line.bw1_gb_per_s * GB for line in lines),
        a2_s=tuple(line.a2_us * MICRO for line in lines),
        bw2_bytes_per_s=tuple(line.bw2_gb_per_s * GB for line in lines),
    )


def _check_nesting(document: ClusterFile, file: str) -> None:
    """Sizes grow by whole multiples, hold whole nodes or divide one; only the last may be open."""
    node = document.gpus_per_node
    inner = 1
    for index, tier in enumerate(document.tiers):
        if tier.size is None:
            if index < len(document.tiers) - 1 or index == 0:
                message = "only the outermost of several tiers may be open (null)"
                raise _error(message, file, "tiers", index, "size")
            return
        if tier.size % inner or (index > 0 and tier.size == inner):
            message = f"expected a larger multiple of the tier inside, {inner}, got {tier.size}"
            raise _error(message, file, "tiers", index, "size")
        if tier.size % node and node % tier.size:
            message = f"expected a multiple or a divisor of gpus_per_node, {node}, got {tier.size}"
            raise _error(message, file, "tiers", index, "size")
        inner = tier.size


def _tier(tier: TierFile, node: int, file: str, index: int) -> Tier:
    """A tier in SI units; NICs are divided among the GPUs of a node."""
    link, num_nics, rate = tier.link_gb_per_s, tier.nics_per_node, tier.nic_gbit_per_s
    if link is not None and num_nics is None and rate is None:
        bandwidth = link * GB
    elif link is None and num_nics is not None and rate is not None:
        bandwidth = num_nics * rate * BYTES_PER_S_PER_GBIT / node
    else:
        message = "expected either link_gb_per_s or both nics_per_node and nic_gbit_per_s"
        raise _error(message, file, "tiers", index)
    return Tier(
        name=tier.name,
        size=tier.size,
        bandwidth_bytes_per_s=bandwidth,
        latency_s=tier.latency_us * MICRO,
        efficiency=tier.efficiency,
    )


def _with_nic(tiers: tuple[Tier, ...], nic_gbit_per_s: float, node: int) -> tuple[Tier, ...]:
    """The tiers with this rate for each GPU between nodes; outer tiers keep theirs if lower."""
    if not 0 < nic_gbit_per_s <= 1e7:
        message = f"expected Gbit/s for each GPU above 0, got {shown(nic_gbit_per_s)}"
        raise SpecError(message, key="--nic-gbit-per-s")
    rate = nic_gbit_per_s * BYTES_PER_S_PER_GBIT
    between = (
        i for i, tier in enumerate(tiers) if i > 0 and (tier.size is None or tier.size > node)
    )
    first = next(between, None)
    if first is None:
        return (*tiers, Tier("network", None, rate, ADDED_NIC_LATENCY_S, ADDED_NIC_EFFICIENCY))
    changed = replace(tiers[first], bandwidth_bytes_per_s=rate)
    outer = (
        replace(tier, bandwidth_bytes_per_s=min(rate, tier.bandwidth_bytes_per_s))
        for tier in tiers[first + 1 :]
    )
    return (*tiers[:first], changed, *outer)


def _error(message: str, file: str, *path: str | int) -> SpecError:
    return SpecError(message, file=shown_file(file), key=shown_key(path))
