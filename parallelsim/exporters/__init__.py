"""Exports of a plan to the software that runs it: one target a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from parallelsim.exporters.accelerate import export_accelerate
from parallelsim.exporters.bridge import export_bridge
from parallelsim.exporters.deepspeed import export_deepspeed
from parallelsim.exporters.megatron import export_megatron
from parallelsim.exporters.nanotron import export_nanotron
from parallelsim.exporters.slurm import under_slurm
from parallelsim.exporters.torchtitan import export_torchtitan

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
