"""What accelerator and cluster files may hold: the checks in front of ``schemas_build``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from parallelsim.cluster import COLLECTIVES
from parallelsim.errors import SpecError
from parallelsim.schemas_model import OPTIONAL, StrictModel, validated
from parallelsim.yaml_io import require_sources, shown, shown_file, shown_key

Name = Annotated[str, Field(max_length=100, pattern=r"^[\w.()+/ -]+$")]
"""Letters, digits and . ( ) + / - or blanks: names stand in one-line messages."""
Share = Annotated[float, Field(gt=0, le=1)]
Microseconds = Annotated[float, Field(ge=0, le=1e7)]
Rate = Annotated[float, Field(ge=1e-3, le=1e7)]  # GB/s, Gbit/s or TFLOPS
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

    source: str | None = OPTIONAL


class PlatformFile(SectionFile):
    """What can run on it."""

    compute_capability: float | None = Field(default=OPTIONAL, gt=0, le=100)
    precisions: list[Precision] = Field(min_length=1, max_length=8)


class MemoryFile(SectionFile):
    """Memory that the driver reports (one of MiB and GiB), and its bandwidth."""

    memory_mib: int | None = Field(default=OPTIONAL, ge=1, le=10**9)
    memory_gib: float | None = Field(default=OPTIONAL, gt=0, le=1e6)
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


class HostLinkFile(SectionFile):
    """One GPU to host memory, each way."""

    host_gb_per_s: Rate


class HostMemoryFile(SectionFile):
    """Memory of a node's CPUs: all of it, and the peak of its channels."""

    host_memory_gib: float = Field(gt=0, le=1e6)
    host_memory_gb_per_s: Rate


class PriceFile(StrictModel):
    """What a GPU costs, as on its date; prices have a source of their own."""

    source: str = Field(min_length=1)
    dollars_per_gpu_hour: float = Field(gt=0, le=1e4)
    date: str = Field(pattern=r"^20[0-9]{2}-(0[1-9]|1[0-2])(-(0[1-9]|[12][0-9]|3[01]))?$")


class PowerFile(SectionFile):
    """Rated maximum of a node, all of it."""

    node_kw: float = Field(gt=0, le=1e4)


class ReliabilityFile(SectionFile):
    """How many GPU-hours pass for each failure that stops a run."""

    gpu_hours_between_failures: float = Field(ge=1, le=1e12)


class StorageFile(SectionFile):
    """Rate at which a node writes and reads checkpoints while all do."""

    storage_gb_per_s_per_node: Rate


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
    fp8: Fp8File | None = OPTIONAL
    sustained: SustainedFile
    attention: AttentionFile
    point_to_point: PointToPointFile
    host_link: HostLinkFile | None = OPTIONAL
    collectives: CollectivesFile


class TierFile(SectionFile):
    """One level of the network: bandwidth as one link or as the NICs of a node."""

    name: Name
    size: int | None = Field(ge=1, le=2**31)
    link_gb_per_s: Rate | None = OPTIONAL
    nics_per_node: int | None = Field(default=OPTIONAL, ge=1, le=1024)
    nic_gbit_per_s: Rate | None = OPTIONAL
    latency_us: Microseconds
    efficiency: Share


class ClusterFile(SectionFile):
    """A whole cluster file; the accelerator is a catalogue name or a whole accelerator mapping."""

    name: Name
    accelerator: str | dict[str, Any]
    gpus_per_node: int = Field(ge=1, le=65536)
    max_gpus: int | None = Field(default=OPTIONAL, ge=1, le=2**31)
    host_memory: HostMemoryFile | None = OPTIONAL
    price: PriceFile | None = OPTIONAL
    power: PowerFile | None = OPTIONAL
    reliability: ReliabilityFile | None = OPTIONAL
    storage: StorageFile | None = OPTIONAL
    tiers: list[TierFile] = Field(min_length=1, max_length=8)


def checked_accelerator(data: dict[str, Any], file: str) -> dict[str, Any]:
    """The mapping itself, where an accelerator file may hold it.

    Raises:
        SpecError: unknown, missing or malformed keys; numbers without source; a precision without
            its peak or its efficiency.
    """
    require_sources(data, file)
    _check_accelerator(data, file)
    return data


def checked_cluster(data: dict[str, Any], file: str) -> dict[str, Any]:
    """The mapping itself, where a cluster file may hold it.

    Raises:
        SpecError: unknown, missing or malformed keys; numbers without source; tiers that do not
            nest; an accelerator mapping that is wrong.
    """
    document = validated(ClusterFile, data, file)
    require_sources(data, file)
    if isinstance(document.accelerator, dict):
        _check_accelerator(document.accelerator, f"{file}: accelerator")
    _check_nesting(document, file)
    for index, tier in enumerate(document.tiers):
        _check_bandwidth(tier, file, index)
    return data


def _check_accelerator(data: dict[str, Any], file: str) -> None:
    document = validated(AcceleratorFile, data, file)
    _check_precisions(document, file)
    memory = document.memory
    if (memory.memory_mib is None) == (memory.memory_gib is None):
        raise _error("expected either memory_mib or memory_gib", file, "memory")
    _check_head_sizes(document.attention, file)
    for operation in COLLECTIVES:
        lines: list[LinesFile] = getattr(document.collectives, operation)
        ranks = [line.ranks for line in lines]
        if ranks != sorted(set(ranks)):
            raise _error("expected ascending ranks", file, "collectives", operation)


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


def _check_head_sizes(attention: AttentionFile, file: str) -> None:
    """Ascending, and one efficiency for each."""
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


def _check_bandwidth(tier: TierFile, file: str, index: int) -> None:
    """Stated once: as one link, or as the NICs of a node."""
    link, nics = tier.link_gb_per_s, (tier.nics_per_node, tier.nic_gbit_per_s)
    as_link = link is not None and nics == (None, None)
    as_nics = link is None and None not in nics
    if not as_link and not as_nics:
        message = "expected either link_gb_per_s or both nics_per_node and nic_gbit_per_s"
        raise _error(message, file, "tiers", index)


def _error(message: str, file: str, *path: str | int) -> SpecError:
    return SpecError(message, file=shown_file(file), key=shown_key(path))
