"""The words for terms, plans and zones that tables and sentences share."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from parallelsim.plan import Plan
from parallelsim.units import format_seconds

TIME_LABELS: Mapping[str, str] = {
    "gemm_s": "GEMMs",
    "attention_s": "attention",
    "memory_bound_s": "norms, activations, residuals",
    "head_s": "embedding, head, loss",
    "recompute_s": "recompute",
    "host_s": "CPU wait",
    "tp_exposed_s": "exposed TP",
    "cp_exposed_s": "exposed CP",
    "ep_exposed_s": "exposed EP",
    "p2p_exposed_s": "exposed PP",
    "bubble_s": "bubble",
    "dp_exposed_s": "exposed DP",
    "optimizer_s": "optimizer",
    "overhead_s": "overhead",
    "straggler_s": "stragglers",
}
MEMORY_LABELS: Mapping[str, str] = {
    "parameters_bytes": "parameters",
    "gradients_bytes": "gradients",
    "optimizer_bytes": "optimizer state",
    "activations_bytes": "activations",
    "loss_bytes": "logits and loss",
    "working_bytes": "working set",
    "fragmentation_bytes": "fragmentation",
    "constant_bytes": "constant (CUDA, NCCL)",
}
SURE_TO_FIT = 0.995
"""P(fits) that is printed as 100 %."""
USEFUL_TIME = frozenset({"gemm_s", "attention_s", "memory_bound_s", "head_s"})
"""Terms that one GPU alone would pay too; all others are losses."""


def label(name: str) -> str:
    """What a term is called in a table; an unlisted one gets its own name without the unit."""
    known = TIME_LABELS.get(name) or MEMORY_LABELS.get(name)
    return known or name.removesuffix("_bytes").removesuffix("_s").replace("_", " ")


def largest_loss(time: Mapping[str, float]) -> tuple[str, float]:
    """Name and share of the step of the largest loss; ("", 0) where nothing is lost."""
    losses = {
        name: value for name, value in time.items() if name not in USEFUL_TIME and name != "total_s"
    }
    total = sum(value for name, value in time.items() if name != "total_s")
    name = max(losses, key=lambda key: losses[key], default="")
    if not name or not total or losses[name] <= 0:
        return "", 0.0
    return name, losses[name] / total


def step_interval(step_time_s: float, low_s: float, high_s: float) -> str:
    """A step time with its interval: ``14.5 s, 80 % between 13.6 s and 15.6 s``."""
    low, high = format_seconds(low_s), format_seconds(high_s)
    return f"{format_seconds(step_time_s)}, 80 % between {low} and {high}"


_PARTS = (
    ("sequence_parallel", "sequence parallel"),
    ("tp_comm_overlap", "TP overlap"),
    ("overlap_grad_reduce", "gradient overlap"),
    ("overlap_param_gather", "parameter overlap"),
    ("cross_entropy_fusion", "fused loss"),
    ("cuda_graphs", "CUDA graphs"),
    ("fp8_param_gather", "fp8 weights"),
)


def degrees(plan: Plan) -> str:
    """The degrees of a plan in a few words: ``tp 4, pp 4 (vpp 5), dp 16, micro-batch 1``."""
    parts = [f"tp {plan.tp}"]
    parts += [f"cp {plan.cp}"] if plan.cp > 1 else []
    parts += [f"pp {plan.pp}" + (f" (vpp {plan.vpp})" if plan.vpp > 1 else "")]
    parts += [f"ep {plan.ep}"] if plan.ep > 1 else []
    parts += [f"etp {plan.etp}"] if plan.etp > 1 else []
    parts += [f"dp {plan.dp}" + (f" (x{plan.dp_replicate})" if plan.dp_replicate > 1 else "")]
    parts += [f"micro-batch {plan.micro_batch_size}"]
    parts += [f"recompute {plan.recompute_label}"] if plan.recompute != "none" else []
    return ", ".join(parts)


def switches(plan: Plan) -> str:
    """All that :func:`degrees` leaves out, in one line."""
    parts = [f"schedule {plan.schedule}", f"layout {plan.layout}", f"zero {plan.zero}"]
    if plan.layout == "first-last":
        parts[1] += f" ({plan.first_stage_layers}/{plan.last_stage_layers})"
    if plan.layout == "free":
        parts[1] += f" ({cut_words(plan.chunk_layers)})"
    parts += [f"recompute {plan.recompute_label}", f"gradients {plan.grad_dtype}"]
    groups = f" (a2a over {plan.cp_a2a})" if plan.cp_a2a > 1 else ""
    parts += [f"cp by {plan.cp_comm_type}{groups}"] if plan.cp > 1 else []
    parts += [f"{plan.dp_replicate} shard groups"] if plan.dp_replicate > 1 else []
    parts += [] if plan.reshard_after_forward else ["parameters kept after forward"]
    parts += ["compiled"] if plan.compile else []
    offload = plan.activation_offload_pct
    parts += [f"{offload} % of activations on the host"] if offload else []
    offload = plan.optimizer_offload_pct
    parts += [f"{offload} % of the optimizer on the host"] if offload else []
    parts += [f"optimizer {plan.optimizer}"] if plan.optimizer != "adam" else []
    if plan.ep * plan.etp > 1:
        parts += [f"experts by {plan.moe_dispatcher}"]
        parts += ["EP overlap on"] if plan.ep_comm_overlap else []
    parts += [f"{words} {'on' if getattr(plan, name) else 'off'}" for name, words in _PARTS]
    return ", ".join(parts)


def differences(first: Plan, second: Plan) -> str:
    """What the first plan has otherwise than the second: ``tp 8 (not 4), zero 1 (not 0)``.

    The schedule is named only where pp and vpp agree: it mostly follows from them.
    """
    a, b = first.to_dict(), second.to_dict()
    names = [name for name in a if a[name] != b[name]]
    if "pp" in names or "vpp" in names:
        names = [name for name in names if name != "schedule"]
    return ", ".join(f"{name} {_word(a[name])} (not {_word(b[name])})" for name in names)


def cut_words(chunk_layers: Sequence[int]) -> str:
    """Layers chunk by chunk, equal neighbours together: ``7, 14 x 8, 7``."""
    parts = []
    for layers, group in itertools.groupby(chunk_layers):
        number = len(list(group))
        parts.append(f"{number} x {layers}" if number > 1 else str(layers))
    return ", ".join(parts)


def _word(value: int | bool | str | list[int]) -> str:
    if isinstance(value, list):
        return f"[{cut_words(value)}]" if value else "none"
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def verdict(zone: str, p_fits: float) -> str:
    """Whether a plan fits, in words."""
    if zone == "safe":
        return "fits"
    if zone == "out":
        return "does not fit"
    if p_fits >= SURE_TO_FIT:
        return "fits, above the memory limit"
    return "tight: run three steps first"
