"""Megatron launch scripts as the tests read them."""

from __future__ import annotations

import subprocess

from parallelsim.catalog import load_cluster, load_framework
from parallelsim.exporters.megatron import DEFAULT_VERSION, export_megatron
from parallelsim.model import ModelSpec
from parallelsim.plan import Plan

MEGATRON = load_framework("megatron-core")
DATA_PARALLEL = Plan(dp=8, global_batch_size=16, zero=1)


def export(
    model: ModelSpec,
    plan: Plan = DATA_PARALLEL,
    version: str = DEFAULT_VERSION,
    cluster: str = "hgx-h100",
) -> str:
    """The script, which bash has parsed."""
    place = load_cluster(cluster, plan.num_gpus)
    script = export_megatron(model, place, MEGATRON, plan, version=version)
    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return script


def array(script: str, name: str) -> list[str]:
    """The lines of one bash array, without their indent."""
    lines = script.splitlines()
    start = lines.index(f"{name}=(") + 1
    return [line.strip() for line in lines[start : lines.index(")", start)]]
