"""Exports of a plan to the software that runs it: one target a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from parallelsim.exporters.deepspeed import export_deepspeed
from parallelsim.exporters.megatron import export_megatron
from parallelsim.exporters.torchtitan import export_torchtitan

EXPORTERS: Mapping[str, Callable[..., str]] = {
    "megatron": export_megatron,
    "torchtitan": export_torchtitan,
    "deepspeed": export_deepspeed,
}
"""By the name of a target: (model, cluster, framework, plan, version=...) -> the file's text."""
