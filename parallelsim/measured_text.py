"""What free-text cells of a measurement say, as far as it changes a prediction.

Sources describe overlap, recompute and kernels as launch settings (``ub_tp_comm_overlap=true``) or
in a few words. Only settings that a plan or a framework has are read; all other words are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from parallelsim.framework import FrameworkSpec
from parallelsim.measurements import Facts
from parallelsim.plan import GRAD_DTYPES

FLASH_ATTENTION_1_EFFICIENCY = 0.75
"""FlashAttention-1 over FlashAttention-2 kernels in whole training runs on A100: published sources
give 0.60 to 0.86 (arXiv:2307.08691 up to 2 times for the kernels alone; docs/equations.md T2)."""

_SWITCHES: Mapping[str, re.Pattern[str]] = {
    "tp_comm_overlap": re.compile(r"\b(?:ub_)?tp_comm_overlap\s*=\s*(true|false|1|0)\b", re.I),
    "overlap_grad_reduce": re.compile(
        r"\boverlap_grad_(?:sync|reduce)\s*=\s*(true|false|1|0)\b", re.I
    ),
    "overlap_param_gather": re.compile(
        r"\boverlap_param_(?:sync|gather)\s*=\s*(true|false|1|0)\b", re.I
    ),
    "fp8_param_gather": re.compile(r"\bfp8_param(?:s|_gather)\s*=\s*(true|false|1|0)\b", re.I),
    "cuda_graphs": re.compile(
        r"\b(?:cuda_graph_impl|layer_cuda_graph|mcore_cuda_graph)\s*=\s*(\w+)", re.I
    ),
}
"""Launch settings that are switches of a plan."""
_OFF = ("false", "0", "none", "null")
_NUM_LAYERS = re.compile(r"\b(?:recompute|checkpoint)_num_layers\s*=\s*(\d+)", re.I)
_KERNEL = re.compile(r"\bkernel\s*=\s*([^;]*)", re.I)
_FP32_GRADIENTS = re.compile(r"\bfp32 grad", re.I)
_FUSED_LOSS = re.compile(r"\bfused cross-entropy\b", re.I)
_OFFLOAD = re.compile(r"\bcpu_offloading\s*=\s*true\b", re.I)


SWITCH_COLUMNS = (*_SWITCHES, "cross_entropy_fusion")
"""Optional columns under the names of plan switches: they say it better than text."""
KERNEL_COLUMNS = ("fused_rmsnorm", "fused_softmax")
"""Optional columns under the names of framework facts."""


def stated_switches(facts: Facts) -> dict[str, bool]:
    """Plan switches that the cells state; an overlap of ``none`` turns every overlap off, a column
    of the switch's own name decides.
    """
    stated: dict[str, bool] = {}
    if states_fused_cross_entropy(facts):
        stated["cross_entropy_fusion"] = True
    if _states_no_overlap(facts):
        stated |= dict.fromkeys(
            ("tp_comm_overlap", "overlap_grad_reduce", "overlap_param_gather"), False
        )
    for cell in ("recompute_detail", "overlap"):
        for name, pattern in _SWITCHES.items():
            for match in pattern.finditer(facts.text(cell)):
                stated[name] = match[1].lower() not in _OFF
    for name in SWITCH_COLUMNS:
        value = facts.switch(name)
        if value is not None:
            stated[name] = value
    return stated


def stated_recompute_layers(facts: Facts) -> int:
    """Layers that full recompute covers in each virtual stage, 0 for all."""
    match = _NUM_LAYERS.search(facts.text("recompute_detail"))
    return int(match[1]) if match else 0


def states_offload(facts: Facts) -> bool:
    """Activations or states are moved to host memory."""
    text = facts.text("offload").lower()
    if text not in ("", "false", "none"):
        try:
            return float(text) > 0
        except ValueError:
            return True
    return _OFFLOAD.search(facts.text("recompute_detail")) is not None


def follows_recipe(facts: Facts) -> bool:
    """Nothing contradicts the vendors' recipes: these train in bf16 or fp8, and with overlap."""
    return facts.text("precision") not in ("", "fp16") and not _states_no_overlap(facts)


def stated_grad_dtype(facts: Facts) -> str:
    """``fp32`` or ``bf16`` as the column or the notes say, else empty."""
    stated = facts.text("grad_dtype")
    if stated in GRAD_DTYPES:
        return stated
    return "fp32" if _FP32_GRADIENTS.search(facts.text("notes")) else ""


def states_fused_cross_entropy(facts: Facts) -> bool:
    """The notes say that the loss is one kernel."""
    return _FUSED_LOSS.search(facts.text("notes")) is not None


def _states_no_overlap(facts: Facts) -> bool:
    return re.match(r"none\b", facts.text("overlap"), re.I) is not None


def framework_variant(framework: FrameworkSpec, facts: Facts) -> FrameworkSpec:
    """The framework with the kernels that the row states instead of its own.

    ``flash_attention`` True, fa2 or fa1 against False (the scores are stored); the columns
    ``fused_rmsnorm`` and ``fused_softmax``, or ``kernel=`` in the notes: fused or torch for the
    softmax without flash, an RMS kernel for the norms.
    """
    compute, memory = framework.compute, framework.memory
    kernel = facts.text("flash_attention").lower()
    if kernel in ("true", "fa1", "fa2", "fa3"):
        compute = replace(compute, flash_attention=True)
    elif kernel == "false":
        compute = replace(compute, flash_attention=False)
    if kernel == "fa1":
        slower = {
            k: v * FLASH_ATTENTION_1_EFFICIENCY for k, v in compute.attention_efficiency.items()
        }
        compute = replace(compute, attention_efficiency=slower)
    match = _KERNEL.search(facts.text("notes"))
    norm, softmax = (facts.switch(name) for name in KERNEL_COLUMNS)
    if norm is None and match and "rms" in match[1].lower():
        norm = True
    if softmax is None and match and match[1].strip().lower() in ("fused", "torch"):
        softmax = match[1].strip().lower() == "fused"
    if norm is not None:
        compute = replace(compute, fused_rmsnorm=norm)
        memory = replace(memory, unfused_norm_bytes=0.0 if norm else memory.unfused_norm_bytes)
    if softmax is not None:
        compute = replace(compute, fused_softmax=softmax)
    if compute == framework.compute and memory == framework.memory:
        return framework
    return replace(framework, compute=compute, memory=memory)
