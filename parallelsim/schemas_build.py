"""Mappings of files become specifications: one builder for each kind of file.

The builders trust the mapping: names, types, ranges and sources are what ``schemas_model``,
``schemas_cluster`` and ``schemas_framework`` check before, for files that come from users. The
catalogue that is installed with the program was checked by the tests, and needs no check (nor
pydantic) when it is read. Optional keys take the defaults of the dataclasses.

Files use human units (``memory_gib``, ``hbm_gb_per_s``, ``peak_tflops``, ``latency_us``,
``nic_gbit_per_s``); they become SI here and nowhere else. GB and Gbit are decimal, GiB and MiB
binary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from parallelsim.cluster import (
    COLLECTIVES,
    AcceleratorSpec,
    AttentionEfficiency,
    ClusterSpec,
    CollectiveFit,
    GemmEfficiency,
    Tier,
)
from parallelsim.custom_layers import custom_from_file
from parallelsim.errors import SpecError
from parallelsim.framework import (
    Capabilities,
    ComputeFacts,
    FrameworkSpec,
    HostFacts,
    MemoryFacts,
    OverlapFacts,
)
from parallelsim.layer_checks import check_windows
from parallelsim.layers import (
    MLP,
    Attention,
    Block,
    LatentAttention,
    Layer,
    MixtureOfExperts,
    SelectiveScan,
    StateSpace,
)
from parallelsim.lora import LoRA
from parallelsim.model import ModelSpec
from parallelsim.units import GB, GIB, MIB, MICRO, TERA
from parallelsim.yaml_io import in_file, shown, shown_file

BYTES_PER_S_PER_GBIT = 1e9 / 8
ADDED_NIC_EFFICIENCY = 0.713
ADDED_NIC_LATENCY_S = 11e-6
"""Of a network that the user adds to a file without one: those of dgx-a100-80gb, which are fitted
(docs/accuracy_leave_out.md) and lower than InfiniBand NDR's (0.751, 10 us)."""

FRAMEWORK_GROUPS: Mapping[str, type] = {
    "capabilities": Capabilities,
    "compute": ComputeFacts,
    "host": HostFacts,
    "overlap": OverlapFacts,
    "memory": MemoryFacts,
}
"""The fields of :class:`FrameworkSpec` that are mappings of their own."""

Spec = TypeVar("Spec")
File = Mapping[str, Any]


def build_model(data: File, file: str) -> ModelSpec:
    """The model that a checked mapping describes; ``file`` names it in errors.

    Raises:
        SpecError: sizes out of range, or an architecture that does not count the exact published
            number of parameters.
    """
    architecture, training = data["architecture"], data["training"]
    try:
        model = _record(
            ModelSpec,
            {**training, **architecture},
            name=data["name"],
            default_global_batch_tokens=training.get("global_batch_tokens") or 0,
            blocks=tuple(_block(block) for block in architecture["blocks"]),
            mtp_layers=tuple(_layer(layer) for layer in architecture.get("mtp_layers") or ()),
            **{
                name: custom_from_file(architecture[name]) if architecture.get(name) else None
                for name in ("input_operators", "output_operators")
            },
            lora=_record(LoRA, training["lora"]) if training.get("lora") else None,
        )
        check_windows((layer for layer, _ in model.layer_kinds), model.max_seq_length)
    except SpecError as error:
        raise in_file(error, file) from None
    published = data.get("published_parameters")
    if published and published["exact"] and published["value"] != model.num_parameters:
        counted, stated = model.num_parameters, published["value"]
        message = f"the architecture counts {counted}, the file states {stated}"
        raise SpecError(message, file=shown_file(file), key="published_parameters.value")
    return model


def build_framework(data: File) -> FrameworkSpec:
    """The framework that a checked mapping describes."""
    groups: dict[str, Any] = {
        name: _record(kind, data[name]) for name, kind in FRAMEWORK_GROUPS.items()
    }
    return _record(FrameworkSpec, data, **groups)


def build_accelerator(data: File) -> AcceleratorSpec:
    """The accelerator that a checked mapping describes."""
    platform, memory, gemm, attention = (
        data[name] for name in ("platform", "memory", "gemm", "attention")
    )
    fp8 = data.get("fp8") or {"max_efficiency": None, "sustained_ratio": {}}
    host = data.get("host_link")
    mib, gib = memory.get("memory_mib"), memory.get("memory_gib")
    return _record(
        AcceleratorSpec,
        data,
        compute_capability=platform.get("compute_capability"),
        precisions=platform["precisions"],
        memory_bytes=round(gib * GIB) if mib is None else mib * MIB,
        memory_bandwidth_bytes_per_s=memory["hbm_gb_per_s"] * GB,
        peak_flops={name: value * TERA for name, value in data["peak"]["peak_tflops"].items()},
        gemm=_record(GemmEfficiency, gemm, launch_s=gemm["launch_us"] * MICRO),
        gemm_fp8_max_efficiency=fp8["max_efficiency"],
        sustained_efficiency=data["sustained"]["efficiency"],
        fp8_sustained_ratio=fp8["sustained_ratio"],
        attention=_record(AttentionEfficiency, attention, launch_s=attention["launch_us"] * MICRO),
        link_collectives={name: _collective(data["collectives"][name]) for name in COLLECTIVES},
        p2p_bytes_per_s=data["point_to_point"]["p2p_gb_per_s"] * GB,
        host_bytes_per_s=host["host_gb_per_s"] * GB if host else None,
    )


def build_cluster(
    data: File,
    *,
    load_accelerator: Callable[[str], AcceleratorSpec],
    nic_gbit_per_s: float | None,
) -> ClusterSpec:
    """The cluster that a checked mapping describes, at the size of one node.

    Args:
        data: the mapping.
        load_accelerator: finds the accelerator that the file names.
        nic_gbit_per_s: Gbit/s one way for each GPU between nodes, in place of what the file states;
            where it states nothing, a network of this rate is added.

    Raises:
        SpecError: the rate is out of range, or the accelerator does not exist.
    """
    accelerator, node = data["accelerator"], data["gpus_per_node"]
    tiers = tuple(_tier(tier, node) for tier in data["tiers"])
    if nic_gbit_per_s is not None:
        tiers = _with_nic(tiers, nic_gbit_per_s, node)
    named = isinstance(accelerator, str)
    host, price = data.get("host_memory"), data.get("price")
    power, reliability, storage = (data.get(n) for n in ("power", "reliability", "storage"))
    return _record(
        ClusterSpec,
        data,
        host_memory_bytes=host["host_memory_gib"] * GIB if host else None,
        host_memory_bytes_per_s=host["host_memory_gb_per_s"] * GB if host else None,
        dollars_per_gpu_hour=price["dollars_per_gpu_hour"] if price else None,
        price_date=price["date"] if price else "",
        node_power_w=power["node_kw"] * 1e3 if power else None,
        gpu_hours_between_failures=(
            float(reliability["gpu_hours_between_failures"]) if reliability else None
        ),
        storage_bytes_per_s_per_node=(
            storage["storage_gb_per_s_per_node"] * GB if storage else None
        ),
        accelerator=load_accelerator(accelerator) if named else build_accelerator(accelerator),
        tiers=tiers,
        num_gpus=node,
    )


def _record(kind: type[Spec], data: File, **given: Any) -> Spec:
    """The dataclass with the mapping's values of the same names and, before those, the given ones.

    Keys that are no field are another's to read. The dataclass's annotations decide the types.
    """
    values = {**data, **given}
    arguments = {
        field.name: _frozen(values[field.name], whole="float" not in str(field.type))
        for field in fields(kind)  # type: ignore[arg-type]
        if field.name in values
    }
    return kind(**arguments)


def _frozen(value: Any, whole: bool) -> Any:
    """Lists as tuples, and where the field is not of whole numbers, those as floats."""
    if isinstance(value, list | tuple):
        return tuple(_frozen(item, whole) for item in value)
    if isinstance(value, dict):
        return {key: _frozen(item, whole) for key, item in value.items()}
    return value if whole or type(value) is not int else float(value)


def _block(block: File) -> Block:
    return Block(block["repeat"], tuple(_layer(layer) for layer in block["layers"]))


SUB_LAYERS: Mapping[str, tuple[str, type, Mapping[str, str]]] = {
    "attention": ("attention", Attention, {"num_heads": "num_attention_heads"}),
    "latent_attention": ("attention", LatentAttention, {"num_heads": "num_attention_heads"}),
    "state_space": ("state_space", StateSpace, {}),
    "selective_scan": ("state_space", SelectiveScan, {}),
    "cross_attention": ("cross_attention", Attention, {"num_heads": "num_attention_heads"}),
    "mlp": ("mlp", MLP, {}),
    "experts": ("experts", MixtureOfExperts, {}),
}
"""Key of a layer's mapping -> field of :class:`Layer`, its kind, and fields of other names."""


def _layer(layer: File) -> Layer:
    """The layer, with one norm for each sub-layer where the file does not say."""
    parts: dict[str, Any] = {}
    for key, (field, kind, names) in SUB_LAYERS.items():
        if (part := layer.get(key)) is None:
            continue
        if field in parts:
            other = next(k for k, (f, _, _) in SUB_LAYERS.items() if f == field)
            raise SpecError(f"a layer has {other} or {key}, not both", key=key)
        given = {ours: part[theirs] for ours, theirs in names.items()}
        if key == "cross_attention":  # every token sees the whole other sequence
            given["causal"] = False
        parts[field] = _record(kind, part, **given)
    num_norms = layer.get("num_norms", len(parts))
    if layer.get("operators"):
        parts["custom"] = custom_from_file(layer["operators"], layer.get("input_values"))
    elif layer.get("input_values") is not None:
        raise SpecError("only layers with operators state their input", key="input_values")
    switches = {key: layer[key] for key in ("parallel", "seq_length") if key in layer}
    return Layer(**parts, **switches, num_norms=num_norms)


def _collective(lines: Iterable[File]) -> CollectiveFit:
    return CollectiveFit(
        num_ranks=tuple(line["ranks"] for line in lines),
        a1_s=tuple(line["a1_us"] * MICRO for line in lines),
        bw1_bytes_per_s=tuple(line["bw1_gb_per_s"] * GB for line in lines),
        a2_s=tuple(line["a2_us"] * MICRO for line in lines),
        bw2_bytes_per_s=tuple(line["bw2_gb_per_s"] * GB for line in lines),
    )


def _tier(tier: File, node: int) -> Tier:
    """A tier in SI units; NICs are divided among the GPUs of a node."""
    link = tier.get("link_gb_per_s")
    if link is not None:
        bandwidth = link * GB
    else:
        bandwidth = tier["nics_per_node"] * tier["nic_gbit_per_s"] * BYTES_PER_S_PER_GBIT / node
    latency = tier["latency_us"] * MICRO
    return _record(Tier, tier, bandwidth_bytes_per_s=bandwidth, latency_s=latency)


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
