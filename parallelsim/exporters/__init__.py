"""Exports of a plan to the software that runs it: one target a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from parallelsim.exporters.megatron import export_megatron

EXPORTERS: Mapping[str, Callable[..., str]] = {"megatron": export_megatron}
"""By target: (model, cluster, framework, plan, version=...) -> the text of the file to run."""
