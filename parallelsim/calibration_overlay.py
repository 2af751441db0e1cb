"""Correction factors of a user's own cluster, and the overlay file that keeps them.

An overlay names a cluster and the factors that measured runs gave for it::

    name: my-cluster
    base: hgx-h100            # catalogue name, or a path relative to this file
    framework: megatron-core  # the software that the runs used
    source: 12 own runs, 2026-05-04
    unexplained: {num_runs: 12, log_error: 0.06}  # what the factors leave: widens intervals
    factors: {speed: 0.9, compute: 0.97, inter_node: 0.8, host: 1.2, memory_scale: 1.02}

``--cluster`` takes it for the hardware's factors, ``--framework`` the same file for the software's.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from parallelsim.cluster import AcceleratorSpec, ClusterSpec, Unexplained
from parallelsim.errors import SpecError
from parallelsim.framework import FrameworkSpec
from parallelsim.yaml_io import shown, shown_file

HARDWARE_FACTORS = ("speed", "compute", "memory_bound", "intra_node", "inter_node")
SOFTWARE_FACTORS = ("speed", "host", "memory_scale", "memory_constant_bytes")
LARGEST_FACTOR = 20.0
LARGEST_CONSTANT_BYTES = float(64 << 30)
LARGEST_LOG_ERROR = 4.0
_TEXTS = ("name", "base", "framework", "source")
_KEYS = (*_TEXTS, "factors", "unexplained")


@dataclass(frozen=True, slots=True)
class Factors:
    """What own runs show against the catalogue; the defaults change nothing."""

    speed: float = 1.0
    """On every rate below: the step takes 1 / speed of its time, but for network latencies."""
    compute: float = 1.0
    """On the sustained rate of GEMMs and attention."""
    memory_bound: float = 1.0
    """On the memory bandwidth that kernels reach."""
    intra_node: float = 1.0
    """On the bandwidths inside the innermost tier; latencies stay."""
    inter_node: float = 1.0
    """On the bandwidths of the outer tiers; latencies stay."""
    host: float = 1.0
    """On the seconds of CPU work: launches, and what each micro-batch and step costs."""
    memory_scale: float = 1.0
    """On activations and transients; parameters and optimizer are counted exactly."""
    memory_constant_bytes: float = 0.0
    """Added on every rank, may be negative."""


def apply_factors(
    cluster: ClusterSpec, framework: FrameworkSpec, factors: Factors
) -> tuple[ClusterSpec, FrameworkSpec]:
    """The cluster and the framework with corrected efficiencies."""
    return corrected_cluster(cluster, factors), corrected_framework(framework, factors)


def corrected_cluster(cluster: ClusterSpec, factors: Factors) -> ClusterSpec:
    """The cluster with the hardware's factors."""
    if all(getattr(factors, name) == 1 for name in HARDWARE_FACTORS):
        return cluster
    outer = tuple(
        replace(tier, efficiency=tier.efficiency * factors.inter_node * factors.speed)
        for tier in cluster.tiers[1:]
    )
    return replace(
        cluster,
        accelerator=_corrected_accelerator(cluster.accelerator, factors),
        tiers=(cluster.tiers[0], *outer),
    )


def _corrected_accelerator(accelerator: AcceleratorSpec, factors: Factors) -> AcceleratorSpec:
    attention, links = accelerator.attention, factors.intra_node * factors.speed
    compute, memory_bound = factors.compute * factors.speed, factors.memory_bound * factors.speed
    kernels = tuple(value * compute for value in attention.max_efficiency)
    curves = {
        name: replace(
            fit,
            bw1_bytes_per_s=tuple(value * links for value in fit.bw1_bytes_per_s),
            bw2_bytes_per_s=tuple(value * links for value in fit.bw2_bytes_per_s),
        )
        for name, fit in accelerator.link_collectives.items()
    }
    return replace(
        accelerator,
        sustained_efficiency=accelerator.sustained_efficiency * compute,
        attention=replace(attention, max_efficiency=kernels),
        memory_bandwidth_bytes_per_s=accelerator.memory_bandwidth_bytes_per_s * memory_bound,
        link_collectives=curves,
        p2p_bytes_per_s=accelerator.p2p_bytes_per_s * links,
    )


def corrected_framework(framework: FrameworkSpec, factors: Factors) -> FrameworkSpec:
    """The framework with the software's factors.

    Reserved = states + scale (1 + phi) dynamic + constant, so that phi' = scale (1 + phi) - 1.
    """
    if all(getattr(factors, name) == getattr(Factors(), name) for name in SOFTWARE_FACTORS):
        return framework
    host, memory, slower = framework.host, framework.memory, factors.host / factors.speed
    return replace(
        framework,
        host=replace(
            host,
            layer_forward_s=host.layer_forward_s * slower,
            layer_backward_s=host.layer_backward_s * slower,
            micro_batch_s=host.micro_batch_s * slower,
            step_s=host.step_s * slower,
        ),
        memory=replace(
            memory,
            fragmentation=factors.memory_scale * (1 + memory.fragmentation) - 1,
            constant_bytes=memory.constant_bytes + factors.memory_constant_bytes,
        ),
    )


def is_overlay(data: Mapping[str, Any]) -> bool:
    """A document with ``base`` or ``factors`` is an overlay, no whole cluster or framework."""
    return "factors" in data or "base" in data


def overlay_document(
    name: str,
    base: str,
    framework: str,
    factors: Factors,
    source: str,
    path: str,
    unexplained: Unexplained | None = None,
) -> dict[str, Any]:
    """The mapping of an overlay file that will lie at ``path``; factors that change nothing are
    left out.
    """
    folder = os.path.dirname(os.path.abspath(path))
    changed = {
        f.name: float(f"{getattr(factors, f.name):.6g}")
        for f in fields(Factors)
        if getattr(factors, f.name) != f.default
    }
    document: dict[str, Any] = {
        "name": name,
        "base": _named_from(base, folder),
        "framework": _named_from(framework, folder),
        "source": source,
        "factors": changed,
    }
    if unexplained:
        error = float(f"{unexplained.log_error:.4g}")
        document["unexplained"] = {"num_runs": unexplained.num_runs, "log_error": error}
    return document


def overlay_cluster(
    data: Mapping[str, Any], file: str, load_cluster: Callable[[str], ClusterSpec]
) -> ClusterSpec:
    """The base cluster with the hardware's factors of an overlay.

    Args:
        data: the overlay's mapping.
        file: its path.
        load_cluster: finds the base by name or path.

    Raises:
        SpecError: unknown or missing keys, factors out of range, no source, an overlay as base.
    """
    factors = _checked(data, file)
    cluster = load_cluster(_base(data["base"], file, "base"))
    corrected = corrected_cluster(cluster, factors)
    return replace(corrected, name=str(data["name"]), unexplained=_unexplained(data, file))


def overlay_framework(
    data: Mapping[str, Any], file: str, load_framework: Callable[[str], FrameworkSpec]
) -> FrameworkSpec:
    """The overlay's framework with the software's factors; see :func:`overlay_cluster`."""
    factors = _checked(data, file)
    return corrected_framework(load_framework(_base(data["framework"], file, "framework")), factors)


def _checked(data: Mapping[str, Any], file: str) -> Factors:
    for key in data:
        if key not in _KEYS:
            raise _error(f"unknown key; an overlay has {', '.join(_KEYS)}", file, str(key)[:80])
    for key in _TEXTS:
        text = data.get(key)
        if not isinstance(text, str) or not text.strip() or not text.isprintable():
            hint = "the factors' origin, as 'own measurement'" if key == "source" else "text"
            raise _error(f"got {shown(text)}, expected {hint}", file, key)
    values = data.get("factors")
    if not isinstance(values, dict):
        raise _error(f"got {shown(values)}, expected a mapping", file, "factors")
    known = {f.name for f in fields(Factors)}
    for key, value in values.items():
        where = f"factors.{str(key)[:80]}"
        if key not in known:
            raise _error(f"unknown factor; there are {', '.join(sorted(known))}", file, where)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _error(f"got {shown(value)}, expected a number", file, where)
        constant = key == "memory_constant_bytes"
        low = -LARGEST_CONSTANT_BYTES if constant else 1 / LARGEST_FACTOR
        high = LARGEST_CONSTANT_BYTES if constant else LARGEST_FACTOR
        if not (math.isfinite(value) and low <= value <= high):
            raise _error(f"got {value}, expected {low:g} to {high:g}", file, where)
    return Factors(**{key: float(value) for key, value in values.items()})


def _unexplained(data: Mapping[str, Any], file: str) -> Unexplained | None:
    values = data.get("unexplained")
    if values is None:
        return None
    if not isinstance(values, dict) or set(values) != {"num_runs", "log_error"}:
        raise _error(f"got {shown(values)}, expected num_runs and log_error", file, "unexplained")
    runs, error = values["num_runs"], values["log_error"]
    if isinstance(runs, bool) or not isinstance(runs, int) or runs < 1:
        raise _error(f"got {shown(runs)}, expected 1 or more", file, "unexplained.num_runs")
    is_number = isinstance(error, int | float) and not isinstance(error, bool)
    if not (is_number and 0 <= error <= LARGEST_LOG_ERROR):
        expected = f"expected 0 to {LARGEST_LOG_ERROR:g}"
        raise _error(f"got {shown(error)}, {expected}", file, "unexplained.log_error")
    return Unexplained(runs, float(error))


def _base(name: str, file: str, key: str) -> str:
    """Name or path of a base, paths as seen from here; an overlay on an overlay is refused."""
    from parallelsim.yaml_io import read_yaml

    folder = os.path.dirname(os.path.abspath(file))
    if not _is_path(name):
        return name
    path = name if os.path.isabs(name) else os.path.relpath(os.path.join(folder, name))
    if path.endswith((".yaml", ".yml")) and is_overlay(read_yaml(path)):
        raise _error(f"{shown(name)} is an overlay itself; name what it is based on", file, key)
    return path if _is_path(path) else f"./{path}"


def _named_from(name: str, folder: str) -> str:
    """A catalogue name as it is, a relative path as seen from ``folder``."""
    if not _is_path(name) or os.path.isabs(name):
        return name
    relative = os.path.relpath(name, folder)
    return relative if _is_path(relative) else f"./{relative}"


def _is_path(name: str) -> bool:
    return "/" in name or name.endswith((".yaml", ".yml", ".json"))


def _error(message: str, file: str, key: str) -> SpecError:
    return SpecError(message, file=shown_file(file), key=key)
