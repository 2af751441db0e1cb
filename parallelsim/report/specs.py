"""Models, clusters and frameworks as lines of text."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeVar

from parallelsim.cluster import ClusterSpec
from parallelsim.custom_layers import Custom
from parallelsim.framework import FrameworkSpec
from parallelsim.layers import (
    MLP,
    Attention,
    LatentAttention,
    MixtureOfExperts,
    SelectiveScan,
    StateSpace,
)
from parallelsim.model import ModelSpec
from parallelsim.report.tables import Column
from parallelsim.units import GB, TERA, format_bytes, format_count

Part = TypeVar("Part")

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
            if value == "-" and key.startswith(("blocks", "input_op", "output_op")):
                continue  # what a layer has not
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
    sparse = model.num_active_parameters < model.num_parameters
    return [
        model.name,
        format_count(model.num_parameters),
        format_count(model.num_active_parameters) if sparse else "all",
        str(model.num_layers),
        str(model.hidden_size),
        _attention_words(model),
        _expert_words(model),
        str(model.vocab_size),
        str(model.seq_length) if model.seq_length else "-",
        format_count(model.default_global_batch_tokens)
        if model.default_global_batch_tokens
        else "-",
    ]


def _parts(model: ModelSpec, kind: type[Part]) -> list[tuple[Part, int]]:
    """The distinct sub-layers of a kind and how many layers have each."""
    counts: dict[Part, int] = {}
    for layer, count in model.layer_kinds:
        for part in layer.sublayers:
            if isinstance(part, kind):
                counts[part] = counts.get(part, 0) + count
    return list(counts.items())


def _attention_words(model: ModelSpec) -> str:
    """heads/kv of the first attention, and the other mixers: ``32/8``, ``MLA 128``, ``Mamba``."""
    words = [f"{part.num_heads}/{part.num_query_groups}" for part, _ in _parts(model, Attention)]
    words += [f"MLA {part.num_heads}" for part, _ in _parts(model, LatentAttention)]
    has_mixers = any(layer.state_space for layer, _ in model.layer_kinds)
    mixers = ["Mamba"] if has_mixers else []
    return " + ".join([*words[:1], *mixers]) or "-"


def _expert_words(model: ModelSpec) -> str:
    """top_k of experts, and shared ones: ``8 of 256 + shared``."""
    parts = _parts(model, MixtureOfExperts)
    if not parts:
        return "-"
    experts = parts[0][0]
    shared = " + shared" if experts.shared_ffn_hidden_size else ""
    return f"{experts.top_k} of {experts.num_experts}{shared}"


def _model_summary(model: ModelSpec) -> list[str]:
    """The counts, and what the layers are made of."""
    text = f"{model.name}: {model.num_parameters:,} parameters in {model.num_layers} layers"
    if model.num_active_parameters < model.num_parameters:
        without = model.num_active_parameters - model.vocab_size * model.hidden_size
        text += f", {model.num_active_parameters:,} active for a token"
        text += f" ({without:,} without the embedding)"
    if model.seq_length:
        text += f", {model.flops_per_sequence() / model.seq_length:.4g} training FLOPs a token"
    lines = [text]
    lines += [f"  {count} layers with {_described(part)}" for part, count in _parts(model, object)]
    if model.num_mtp_layers:
        more = f"{model.num_mtp_layers} multi-token-prediction module"
        more += f" of {len(model.mtp_layers)} layers" if model.mtp_layers else ""
        lines.append(f"  {more}: {model.mtp_parameters():,} parameters more")
    if model.lora:
        targets = ", ".join(model.lora.targets)
        trained = f"{model.num_trainable_parameters:,} parameters are trained"
        lines.append(f"  LoRA of rank {model.lora.rank} on {targets}: {trained}")
    return lines


def _described(part: Any) -> str:
    """A sub-layer in words."""
    if isinstance(part, Attention):
        kind = "attention" if part.kv_seq_length is None else "cross-attention"
        kind = kind if part.causal or part.kv_seq_length is not None else "bidirectional attention"
        text = f"{kind}: {part.num_heads} heads of {part.head_dim}"
        text += f", {part.num_query_groups} key/value heads"
        if part.kv_seq_length is not None:
            text += f", over {part.kv_seq_length} tokens of the encoder"
        if part.window is not None:
            text += f", {'in chunks' if part.chunked else 'over a window'} of {part.window} tokens"
        return text + (", sinks" if part.sinks else "")
    if isinstance(part, LatentAttention):
        widths = f"{part.qk_nope_head_dim}+{part.qk_rope_head_dim}/{part.v_head_dim}"
        latents = f"latents {part.q_lora_rank or 'none'}/{part.kv_lora_rank}"
        return f"latent attention: {part.num_heads} heads of {widths}, query/key-value {latents}"
    if isinstance(part, StateSpace):
        text = f"a Mamba-2 mixer: {part.num_heads} heads of {part.head_dim}"
        return f"{text}, {part.state_size} states, {part.num_groups} groups"
    if isinstance(part, SelectiveScan):
        text = f"a Mamba-1 mixer: {part.inner_width} channels of {part.state_size} states"
        return f"{text}, dt of rank {part.dt_rank}"
    if isinstance(part, Custom):
        names = [each.name for each in part.operators]
        shown = ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
        return f"{len(names)} operators of their own: {shown}"
    if isinstance(part, MLP):
        return f"an MLP: {part.ffn_hidden_size} wide, {_activation_words(part)}"
    text = f"experts: {part.top_k} of {part.num_experts}, each {part.ffn_hidden_size} wide"
    text += f", {_activation_words(part)}, {part.router} router"
    if part.num_groups > 1:
        text += f" within {part.group_top_k} of {part.num_groups} groups"
    if part.shared_ffn_hidden_size:
        text += f", shared experts {part.shared_ffn_hidden_size} wide"
    if part.latent_size:
        text += f", on latents of {part.latent_size}"
    return text


def _activation_words(part: MLP | MixtureOfExperts) -> str:
    return f"{'gated ' if part.gated else ''}{part.activation}"


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
        ", ".join(framework.launches) or "-",
    ]


MODEL_VIEW = View(
    "model",
    (
        Column("model", "left"),
        Column("parameters"),
        Column("active"),
        Column("layers", priority=3),
        Column("hidden", priority=5),
        Column("attention", "left", priority=2),
        Column("experts", "left", priority=1),
        Column("vocabulary", priority=6),
        Column("sequence", priority=2),
        Column("batch (tokens)", priority=4),
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
        Column("TFLOPS", priority=3),
        Column("HBM GB/s", priority=5),
        Column("node", priority=4),
        Column("domain", priority=6),
        Column("link GB/s", priority=4),
        Column("NIC GB/s", priority=1),
        Column("measured", "left", priority=2),
    ),
    _cluster_row,
    _cluster_summary,
)
FRAMEWORK_VIEW = View(
    "framework",
    (
        Column("framework", "left"),
        Column("title", "left", priority=3),
        Column("ZeRO", "left"),
        Column("CP", "left", priority=4),
        Column("calibrated", priority=1),
        Column("exports to", "left", priority=2),
    ),
    _framework_row,
    lambda framework: [f"{framework.name}: {framework.title}"],
)
