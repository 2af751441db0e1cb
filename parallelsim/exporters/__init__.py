"""Exports of a plan to the software that runs it: one target a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from parallelsim.cluster import ClusterSpec
from parallelsim.errors import ExportError
from parallelsim.exporters.accelerate import export_accelerate
from parallelsim.exporters.bridge import export_bridge
from parallelsim.exporters.deepspeed import export_deepspeed
from parallelsim.exporters.megatron import export_megatron
from parallelsim.exporters.nanotron import export_nanotron
from parallelsim.exporters.slurm import under_slurm
from parallelsim.exporters.torchtitan import export_torchtitan
from parallelsim.framework import FrameworkSpec
from parallelsim.model import ModelSpec
from parallelsim.plan import Plan

_SOFTWARE: Mapping[str, Callable[..., str]] = {
    "megatron": export_megatron,
    "megatron-bridge": export_bridge,
    "torchtitan": export_torchtitan,
    "deepspeed": export_deepspeed,
    "accelerate": export_accelerate,
    "nanotron": export_nanotron,
}
EXPORTERS: Mapping[str, Callable[..., str]] = {
    **_SOFTWARE,
    **{f"slurm-{name}": under_slurm(name, write) for name, write in _SOFTWARE.items()},
}
"""By the name of a target: (model, cluster, framework, plan, version=...) -> the file's text."""


def export_rank(
    target: str,
    inputs: tuple[ModelSpec, ClusterSpec, FrameworkSpec],
    ranked: Mapping[int, Plan],
    rank: int = 1,
    **options: str,
) -> str:
    """What launches the plan of one rank.

    Raises:
        ExportError: the target cannot run it; names the best of the others that it can run.
    """
    try:
        return EXPORTERS[target](*inputs, ranked[rank], **options)
    except ExportError as error:
        for other in sorted(ranked.keys() - {rank}):
            with suppress(ExportError):
                EXPORTERS[target](*inputs, ranked[other], **options)
                break
        else:
            raise
        how = f"parallelsim export plans.yaml --rank {other} --to {target}"
        message = f"{error}. Plan {other} of what plan --output writes can be exported: {how}"
        raise ExportError(message) from None
