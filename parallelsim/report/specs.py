"""Models, clusters and frameworks as lines of text."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from parallelsim.cluster import ClusterSpec
from parallelsim.framework import FrameworkSpec
from parallelsim.model import ModelSpec
from parallelsim.report.tables import Column
from parallelsim.units import GB, TERA, format_bytes, format_count

_UNSTATED_AS_ZERO = ("seq_length", "default_global_batch_tokens")
"""Fields of a model that are 0 where its file states none."""


@dataclass(frozen=True)
class View:
    """How specifications of one kind are listed and shown."""

    kind: str
    columns: tuple[Column, ...]
    row: Callable[[Any], list[str]]
    summary: Callable[[Any], list[str]]

    def details(self, name: str, spec: Any) -> list[str]:
        """Key figures, every field, and the sources that its file states."""
        lines = [*self.summary(spec), ""]
        for key, value in _flat("", spec):
            unstated = self.kind == "model" and key in _UNSTATED_AS_ZERO and value == "0"
            lines.append(f"{key}: {'not stated' if unstated else value}")
        found = sources(self.kind, name)
        return [*lines, "", "sources:", *(f"  {line}" for line in found)] if found else lines


def sources(kind: str, name: str) -> list[str]:
    """The distinct ``source`` texts of a catalogue file or of the user's own YAML, in order."""
    from parallelsim.yaml_io import parse_yaml, read_yaml

    if "/" in name or name.endswith((".yaml", ".yml", ".json")) or os.path.exists(name):
        return (
            list(dict.fromkeys(_sources(read_yaml(name))))
            if name.endswith((".yaml", ".yml"))
            else []
        )
    from importlib.resources import files

    resource = files(f"parallelsim.{kind}s").joinpath(f"{name}.yaml")
    data = parse_yaml(resource.read_text(encoding="utf-8"), f"{name}.yaml")
    return list(dict.fromkeys(_sources(data)))


def _sources(data: Any) -> Iterator[str]:
    if isinstance(data, dict):
        for key, value in data.items():
            if key == "source" and isinstance(value, str):
                yield " ".join(value.split())
            else:
                yield from _sources(value)
    elif isinstance(data, list):
        for item in data:
            yield from _sources(item)


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, str]]:
    """Every leaf of a specification with its dotted name."""
    if is_dataclass(value):
        for field in fields(value):
            yield from _flat(
                f"{prefix}.{field.name}" if prefix else field.name, getattr(value, field.name)
            )
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(f"{prefix}.{key}", item)
    elif isinstance(value, tuple) and value and is_dataclass(value[0]):
        for index, item in enumerate(value):
            yield from _flat(f"{prefix}[{index}]", item)
    elif isinstance(value, tuple):
        yield prefix, ", ".join(_word(item) for item in value) or "none"
    else:
        yield prefix, _word(value)


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return "-" if value is None else str(value)


def _model_row(model: ModelSpec) -> list[str]:
    attention = model.blocks[0].layers[0].attention
    return [
        model.name,
        format_count(model.num_parameters),
        str(model.num_layers),
        str(model.hidden_size),
        f"{attention.num_heads}/{attention.num_query_groups}",
        str(model.vocab_size),
        str(model.seq_length) if model.seq_length else "-",
        format_count(model.default_global_batch_tokens)
        if model.default_global_batch_tokens
        else "-",
    ]


def _model_summary(model: ModelSpec) -> list[str]:
    text = f"{model.name}: {model.num_parameters:,} parameters in {model.num_layers} layers"
    if model.seq_length:
        text += f", {model.flops_per_sequence() / model.seq_length:.4g} training FLOPs a token"
    return [text]


def _cluster_row(cluster: ClusterSpec) -> list[str]:
    gpu = cluster.accelerator
    inner, outer = cluster.tiers[0], cluster.tiers[1] if len(cluster.tiers) > 1 else None
    return [
        cluster.name,
        gpu.name,
        format_bytes(gpu.memory_bytes),
        f"{gpu.peak_flops.get('bf16', gpu.peak_flops.get('fp16', 0.0)) / TERA:.0f}",
        f"{gpu.memory_bandwidth_bytes_per_s / GB:.0f}",
        str(cluster.gpus_per_node),
        f"{cluster.domain_size}",
        f"{inner.bandwidth_bytes_per_s / GB:.0f}",
        f"{outer.bandwidth_bytes_per_s / GB:.0f}" if outer else "not stated",
        "yes" if gpu.measured else "family's values",
    ]


def _cluster_summary(cluster: ClusterSpec) -> list[str]:
    gpu = cluster.accelerator
    node = f"{cluster.gpus_per_node} x {gpu.name} ({format_bytes(gpu.memory_bytes)})"
    lines = [f"{cluster.name}: nodes of {node}"]
    for tier in cluster.tiers:
        size = f"{tier.size} GPUs" if tier.size else "all GPUs"
        lines.append(
            f"  {tier.name}: {size}, {tier.bandwidth_bytes_per_s / GB:.4g} GB/s a GPU one way"
        )
    return lines


def _framework_row(framework: FrameworkSpec) -> list[str]:
    can = framework.capabilities
    return [
        framework.name,
        framework.title,
        ", ".join(map(str, can.zero_stages)),
        ", ".join(can.cp_comm_types) or "-",
        "yes" if framework.calibrated else "no",
        framework.launches,
    ]


MODEL_VIEW = View(
    "model",
    (
        Column("model", "left"),
        Column("parameters"),
        Column("layers"),
        Column("hidden"),
        Column("heads/kv", priority=2),
        Column("vocabulary", priority=3),
        Column("sequence"),
        Column("batch (tokens)", priority=1),
    ),
    _model_row,
    _model_summary,
)
CLUSTER_VIEW = View(
    "cluster",
    (
        Column("cluster", "left"),
        Column("GPU", "left"),
        Column("memory"),
        Column("TFLOPS", priority=1),
        Column("HBM GB/s", priority=3),
        Column("node", priority=2),
        Column("domain", priority=4),
        Column("link GB/s", priority=2),
        Column("NIC GB/s"),
        Column("measured", "left"),
    ),
    _cluster_row,
    _cluster_summary,
)
FRAMEWORK_VIEW = View(
    "framework",
    (
        Column("framework", "left"),
        Column("title", "left", priority=1),
        Column("ZeRO", "left"),
        Column("CP", "left", priority=2),
        Column("calibrated"),
        Column("exports to", "left"),
    ),
    _framework_row,
    lambda framework: [f"{framework.name}: {framework.title}"],
)
