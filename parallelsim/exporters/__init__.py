"""Exports of a plan to the software that runs it: one target a file."""

from __future__ import annotations

from collections.abc import Mapping

from parallelsim.exporters import torchtitan
from parallelsim.exporters.megatron import export_megatron
from parallelsim.exporters.target import Target

TARGETS = (
    Target("megatron", "Megatron-LM", export_megatron, ".sh"),
    Target("torchtitan", torchtitan.TITLE, torchtitan.export_torchtitan, ".toml", torchtitan.START),
)
EXPORTERS: Mapping[str, Target] = {target.name: target for target in TARGETS}
"""By name."""
