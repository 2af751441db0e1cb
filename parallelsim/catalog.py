"""A name or a path to a specification: models, clusters, accelerators, frameworks.

A path is anything with a ``/`` or with the suffix .yaml, .yml or .json, and whatever exists and is
no name of the catalogue; all else is a name of the catalogue that is installed with the program.

Files at a path are checked with pydantic before they are built. Those of the catalogue are checked
by the tests and built at once: pydantic alone would take a quarter of a cold start.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from typing import Any

from parallelsim.calibration_overlay import is_overlay, overlay_cluster, overlay_framework
from parallelsim.cluster import AcceleratorSpec, ClusterSpec
from parallelsim.errors import SpecError, UnknownNameError
from parallelsim.framework import FrameworkSpec
from parallelsim.layers import MLP, Attention, Block, LatentAttention, Layer, MixtureOfExperts
from parallelsim.lora import TARGETS, LoRA
from parallelsim.model import ModelSpec
from parallelsim.schemas_build import (
    build_accelerator,
    build_cluster,
    build_framework,
    build_model,
)
from parallelsim.yaml_io import in_file, parse_yaml, read_json, read_yaml, shown, shown_file

_MODEL_FIELDS = (
    "hidden_size",
    "vocab_size",
    "max_seq_length",
    "tied_embeddings",
    "num_mtp_layers",
)
_SUB_LAYER_FIELDS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "num_attention_heads": ((Attention, LatentAttention), "num_heads"),
    "num_query_groups": ((Attention,), "num_query_groups"),
    "head_dim": ((Attention,), "head_dim"),
    "ffn_hidden_size": ((MLP,), "ffn_hidden_size"),
    "num_experts": ((MixtureOfExperts,), "num_experts"),
    "top_k": ((MixtureOfExperts,), "top_k"),
    "moe_ffn_hidden_size": ((MixtureOfExperts,), "ffn_hidden_size"),
    "shared_ffn_hidden_size": ((MixtureOfExperts,), "shared_ffn_hidden_size"),
}
"""Key -> the sub-layers whose field it sets, in every layer that has one."""
_ADAPTER_FIELDS = ("lora_rank", "lora_targets")
OVERRIDES = (
    "num_layers",
    *_MODEL_FIELDS,
    *_SUB_LAYER_FIELDS,
    "encoder_seq_length",
    *_ADAPTER_FIELDS,
)
"""Keys of ``--set``. Those of a sub-layer change every layer that has it; num_layers resizes the
block that repeats most; lora_rank 0 trains everything; lora_targets are joined by +."""


def model_names() -> tuple[str, ...]:
    """Names of the catalogue's models, sorted."""
    return _names("parallelsim.models")


def cluster_names() -> tuple[str, ...]:
    """Names of the catalogue's clusters, sorted."""
    return _names("parallelsim.clusters")


def accelerator_names() -> tuple[str, ...]:
    """Names of the catalogue's accelerators, sorted."""
    return _names("parallelsim.clusters", "accelerators")


def framework_names() -> tuple[str, ...]:
    """Names of the catalogue's frameworks, sorted."""
    return _names("parallelsim.frameworks")


def load_model(
    name_or_path: str | os.PathLike[str],
    overrides: Mapping[str, int | bool | str] | None = None,
) -> ModelSpec:
    """A model by catalogue name, YAML file, or Hugging Face ``config.json`` (or its folder).

    Args:
        name_or_path: a name of :func:`model_names`, or a path.
        overrides: sizes to change, as ``--set num_layers=12`` gives them; see :data:`OVERRIDES`.

    Raises:
        UnknownNameError: no such name; the message has the nearest.
        SpecError: the file or an override is wrong.
        OutputError: the file cannot be read.
    """
    text = os.fspath(name_or_path)
    if _is_path(text, model_names()):
        model = _model_from_path(text)
    else:
        model = build_model(*_catalogue_document("model", text, "parallelsim.models"))
    return _overridden(model, overrides) if overrides else model


def load_cluster(
    name_or_path: str | os.PathLike[str],
    num_gpus: int | None = None,
    nic_gbit_per_s: float | None = None,
) -> ClusterSpec:
    """A cluster by catalogue name or YAML file.

    Args:
        name_or_path: a name of :func:`cluster_names`, or a path.
        num_gpus: size of the cluster; the file's own where left out.
        nic_gbit_per_s: NIC bandwidth of each GPU in Gbit/s, where no source states it.

    Raises:
        UnknownNameError, SpecError, OutputError: as for :func:`load_model`.
    """
    text = os.fspath(name_or_path)
    if _is_path(text, cluster_names()):
        from parallelsim.schemas_cluster import checked_cluster

        data = read_yaml(text)
        if is_overlay(data):
            base = partial(load_cluster, num_gpus=num_gpus, nic_gbit_per_s=nic_gbit_per_s)
            return overlay_cluster(data, text, base)
        data = checked_cluster(data, text)
    else:
        data, _ = _catalogue_document("cluster", text, "parallelsim.clusters")
    try:
        cluster = build_cluster(
            data, load_accelerator=load_accelerator, nic_gbit_per_s=nic_gbit_per_s
        )
    except UnknownNameError as error:  # the accelerator that the file names
        raise SpecError(str(error), file=shown_file(text), key="accelerator") from None
    return cluster if num_gpus is None else cluster.with_num_gpus(num_gpus)


def names_overlay(name_or_path: str | os.PathLike[str]) -> bool:
    """It is a file of corrected efficiencies, as ``parallelsim calibrate`` writes."""
    text = os.fspath(name_or_path)
    return _is_path(text, cluster_names()) and is_overlay(read_yaml(text))


def load_accelerator(name: str) -> AcceleratorSpec:
    """An accelerator by catalogue name.

    Raises:
        UnknownNameError: no such name.
    """
    data, _ = _catalogue_document("accelerator", name, "parallelsim.clusters", "accelerators")
    return build_accelerator(data)


def load_framework(name_or_path: str | os.PathLike[str]) -> FrameworkSpec:
    """A framework by catalogue name or YAML file.

    Raises:
        UnknownNameError, SpecError, OutputError: as for :func:`load_model`.
    """
    text = os.fspath(name_or_path)
    if _is_path(text, framework_names()):
        from parallelsim.schemas_framework import checked_framework

        data = read_yaml(text)
        if is_overlay(data):
            return overlay_framework(data, text, load_framework)
        data = checked_framework(data, text)
    else:
        data, _ = _catalogue_document("framework", text, "parallelsim.frameworks")
    return build_framework(data)


@cache
def _names(package: str, folder: str = "") -> tuple[str, ...]:
    names = os.listdir(_folder(package, folder))
    return tuple(sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml")))


def _folder(package: str, folder: str) -> str:
    """Where a package keeps its files.

    Wheels and editable installs are both folders; importlib.resources would also read zip files,
    but takes a tenth of importing NumPy to load.
    """
    return os.path.join(import_module(package).__path__[0], folder)


def _catalogue_document(
    kind: str, name: str, package: str, folder: str = ""
) -> tuple[dict[str, Any], str]:
    """The mapping of a catalogue file and the name to use for it in errors."""
    file = f"{name}.yaml"
    return parse_yaml(catalogue_text(kind, name, package, folder), file), file


def catalogue_text(kind: str, name: str, package: str, folder: str = "") -> str:
    """A file of the catalogue as it is written.

    Raises:
        UnknownNameError: no such name.
    """
    known = _names(package, folder)
    if name not in known:
        raise UnknownNameError(kind, name[:200], known)
    with open(os.path.join(_folder(package, folder), f"{name}.yaml"), encoding="utf-8") as stream:
        return stream.read()


def _is_path(text: str, names: tuple[str, ...]) -> bool:
    if "/" in text or os.sep in text or text.endswith((".yaml", ".yml", ".json")):
        return True
    try:
        return bool(text) and text not in names and os.path.exists(text)
    except ValueError:
        return False


def _model_from_path(text: str) -> ModelSpec:
    """A YAML model file, or a Hugging Face configuration named after the folder that holds it."""
    config = os.path.join(text, "config.json") if os.path.isdir(text) else text
    if config.endswith(".json"):
        from parallelsim.huggingface import model_from_config

        data = read_json(config)
        folder, file = os.path.split(os.path.abspath(config))
        name = os.path.basename(folder) if file == "config.json" else file.removesuffix(".json")
        try:
            return model_from_config(data, name if name and name.isprintable() else "model")
        except SpecError as error:
            raise in_file(error, config) from None
    from parallelsim.schemas_model import checked_model

    return build_model(checked_model(read_yaml(text), text), text)


def _overridden(model: ModelSpec, overrides: Mapping[str, int | bool | str]) -> ModelSpec:
    """The model with all overrides applied at once: only the result has to be consistent."""
    values = {key: _override_value(key, value) for key, value in overrides.items()}
    if values.get("encoder_seq_length") == 0:
        raise SpecError("expected 1 or more, got 0", key="--set encoder_seq_length")
    changes = {key: values[key] for key in _MODEL_FIELDS if key in values}
    layers = {layer: _changed(layer, values) for layer, _ in model.layer_kinds}
    for key in (*_SUB_LAYER_FIELDS, "encoder_seq_length"):
        if key in values and not any(_applies(key, layer) for layer in layers):
            message = f"{model.name} has no layer with such a size"
            raise SpecError(message, key=f"--set {key}")
    blocks = tuple(
        Block(block.repeat, tuple(layers[layer] for layer in block.layers))
        for block in model.blocks
    )
    if "num_layers" in values:
        blocks = _resized(model, blocks, values["num_layers"])
    if "max_seq_length" in values:
        # A smaller bound also shortens the default training sequence.
        changes["seq_length"] = min(model.seq_length, max(values["max_seq_length"], 0))
    try:
        if any(key in values for key in _ADAPTER_FIELDS):
            changes["lora"] = _adapters(model, values)
        return replace(model, blocks=blocks, **changes)
    except SpecError as error:
        raise SpecError(f"--set {error}", key=error.key) from None


def _override_value(key: str, value: object) -> Any:
    if key not in OVERRIDES:
        raise SpecError(f"--set {shown(key)}: unknown; the known keys are {', '.join(OVERRIDES)}")
    text = str(value).lower() if isinstance(value, str | bool) else value
    if key == "tied_embeddings":
        if text not in ("true", "false"):
            raise SpecError(f"expected true or false, got {shown(value)}", key=f"--set {key}")
        return text == "true"
    if key == "lora_targets":
        if not isinstance(value, str):
            message = f"expected names joined by +, got {shown(value)}"
            raise SpecError(message, key=f"--set {key}")
        return tuple(value.split("+"))
    if isinstance(text, str) and re.fullmatch(r"[0-9]{1,18}", text):
        return int(text)
    if isinstance(text, int) and 0 <= text < 10**18:
        return text
    raise SpecError(f"expected a whole number, got {shown(value)}", key=f"--set {key}")


def _adapters(model: ModelSpec, values: Mapping[str, Any]) -> LoRA | None:
    """The model's adapters with another rank or other targets; none where the rank is 0."""
    rank = values.get("lora_rank", model.lora.rank if model.lora else None)
    if rank is None:
        raise SpecError("needs lora_rank as well", key="lora_targets")
    if rank == 0:
        return None
    targets = values.get("lora_targets", model.lora.targets if model.lora else TARGETS)
    try:
        return LoRA(rank, targets)
    except SpecError as error:
        raise SpecError(f"lora_{error}") from None


def _resized(model: ModelSpec, blocks: tuple[Block, ...], num_layers: int) -> tuple[Block, ...]:
    """The blocks with ``num_layers`` layers in all: the one of the most layers takes the change."""
    key = "--set num_layers"
    sizes = [block.repeat * len(block.layers) for block in blocks]
    largest = sizes.index(max(sizes))
    if sizes.count(max(sizes)) > 1:
        message = f"{model.name} has {len(blocks)} kinds of blocks; write a model file instead"
        raise SpecError(message, key=key)
    layers = blocks[largest].layers
    others = sum(sizes) - sizes[largest]
    repeat, rest = divmod(num_layers - others, len(layers))
    if repeat < 1 or rest:
        more = f" beside {others} others" if others else ""
        message = f"{model.name} repeats {len(layers)} layers{more}; expected "
        message += f"a multiple{' more' if others else ''}, got {num_layers}"
        raise SpecError(message, key=key)
    return (*blocks[:largest], Block(repeat, layers), *blocks[largest + 1 :])


def _applies(key: str, layer: Layer) -> bool:
    """Whether a layer has what the key changes."""
    if key == "encoder_seq_length":
        return layer.seq_length is not None
    return any(isinstance(part, _SUB_LAYER_FIELDS[key][0]) for part in layer.sublayers)


def _changed(layer: Layer, values: Mapping[str, Any]) -> Layer:
    parts: dict[str, Any] = {}
    for name in ("attention", "cross_attention", "mlp", "experts"):
        part = getattr(layer, name)
        fields = {
            field: values[key]
            for key, (kinds, field) in _SUB_LAYER_FIELDS.items()
            if key in values and isinstance(part, kinds)
        }
        if name == "cross_attention" and part is not None and "encoder_seq_length" in values:
            fields["kv_seq_length"] = values["encoder_seq_length"]
        if fields:
            parts[name] = replace(part, **fields)
    if layer.seq_length is not None and "encoder_seq_length" in values:
        parts["seq_length"] = values["encoder_seq_length"]
    return replace(layer, **parts)
