"""What is trained where, with every default filled in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

from parallelsim.catalog import load_cluster, load_framework, load_model, names_overlay
from parallelsim.cluster import ClusterSpec
from parallelsim.errors import PlanError, SpecError
from parallelsim.framework import FrameworkSpec
from parallelsim.model import ModelSpec
from parallelsim.plan import PRECISIONS

DEFAULT_CLUSTER = "hgx-h100"
DEFAULT_FRAMEWORK = "megatron-core"

Name = str | os.PathLike[str]
"""Of the catalogue, or a file."""


def default_framework(cluster: ClusterSpec | Name | None) -> Name:
    """The software that a calibrated cluster's runs used, with its factors; else Megatron-Core."""
    if cluster is None or isinstance(cluster, ClusterSpec) or not names_overlay(cluster):
        return DEFAULT_FRAMEWORK
    return cluster


class Setting(NamedTuple):
    """What is trained where, and with which numbers."""

    model: ModelSpec
    """At the sequence length that is trained."""
    cluster: ClusterSpec
    framework: FrameworkSpec
    precision: str


def load_setting(
    model: ModelSpec | Name,
    num_gpus: int | None,
    *,
    cluster: ClusterSpec | Name | None = None,
    framework: FrameworkSpec | Name | None = None,
    nic_gbit_per_s: float | None = None,
    seq_length: int | None = None,
    precision: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    any_precision: bool = False,
) -> Setting:
    """Load what is named, and settle sequence length and precision.

    Arguments are those of :func:`parallelsim.planning.plan`; with ``any_precision`` a precision
    that cannot run is let through: the rules answer it.

    Raises:
        ParallelSimError: whatever is wrong with them.
    """
    if not isinstance(model, ModelSpec):
        model = load_model(model, overrides=overrides)
    elif overrides:
        raise SpecError(f"overrides change a model by its name, and {model.name} is loaded")
    seq_length = seq_length or model.seq_length
    if seq_length < 1:
        raise SpecError(f"{model.name} states no sequence length for training; give --seq-length")
    framework = framework or default_framework(cluster)
    if not isinstance(cluster, ClusterSpec):
        cluster = load_cluster(cluster or DEFAULT_CLUSTER, num_gpus, nic_gbit_per_s)
    elif nic_gbit_per_s is not None:
        raise SpecError(f"nic_gbit_per_s is of a cluster by its name, and {cluster.name} is loaded")
    elif num_gpus is not None:
        cluster = cluster.with_num_gpus(num_gpus)
    if not isinstance(framework, FrameworkSpec):
        framework = load_framework(framework)
    if not (any_precision and precision in PRECISIONS):
        precision = _precision(precision, cluster, framework)
    return Setting(model.with_seq_length(seq_length), cluster, framework, precision)


def _precision(given: str | None, cluster: ClusterSpec, framework: FrameworkSpec) -> str:
    """The given precision, else the first of bf16 and fp16 that GPU and software both run."""
    hardware, software = cluster.accelerator.precisions, framework.capabilities.precisions
    both = [name for name in software if name in hardware]
    if given is not None:
        if given not in both:
            who = cluster.accelerator.name if given not in hardware else framework.name
            raise SpecError(
                f"{who} does not train in {given}; use {', '.join(both) or 'other software'}"
            )
        return given
    for name in ("bf16", "fp16", *both):
        if name in both:
            return name
    raise SpecError(f"{framework.name} and {cluster.accelerator.name} have no precision in common")


def check_fixed(fixed: Mapping[str, Any], num_gpus: int, global_batch_size: int) -> None:
    """Refuse fixed degrees that no plan can have.

    Raises:
        PlanError: they do not divide the GPUs or the batch.
    """
    degrees = {name: int(fixed[name]) for name in ("tp", "cp", "pp", "dp") if name in fixed}
    if degrees and num_gpus % prod(degrees.values()):
        words = " x ".join(f"{name}={value}" for name, value in degrees.items())
        divisors = [d for d in range(1, min(num_gpus, 4096) + 1) if num_gpus % d == 0]
        some = ", ".join(str(d) for d in divisors[:12]) + (", ..." if len(divisors) > 12 else "")
        raise PlanError(f"fix: {words} does not divide {num_gpus} GPUs; divisors are {some}")
    batch = {name: int(fixed[name]) for name in ("dp", "micro_batch_size") if name in fixed}
    if batch and global_batch_size % prod(batch.values()):
        words = " x ".join(f"{name}={value}" for name, value in batch.items())
        raise PlanError(
            f"fix: {words} does not divide the global batch of {global_batch_size} sequences"
        )
