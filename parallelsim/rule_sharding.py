"""Rules of sharded data parallelism, compilers, optimizers and offload."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from parallelsim.plan import OPTIMIZERS, Plan
from parallelsim.plan_batch import PlanBatch
from parallelsim.rule_context import BoolArray, Context, Rule, unsupported
from parallelsim.units import GIB

HOST_BYTES = 16.0
"""Of host memory for an offloaded parameter: master weight, two moments, gradient, in fp32."""


def replicas_uneven(c: Context, p: PlanBatch) -> BoolArray | bool:
    """Replicas of shard groups do not divide the replicas of the parameters."""
    if (p.dp_replicate == 1).all():
        return False
    replicas = np.maximum(p.dp_replicate, 1)
    uneven: BoolArray = p.dp % replicas != 0
    if not ((p.ep > 1) | (p.etp > 1)).any():
        return uneven
    # Divided one by one: the product of all degrees may leave int64.
    ranks = p.dp // replicas * p.cp.astype(np.float64) * p.tp
    uneven |= (p.dp_replicate > 1) & (ranks % (p.ep.astype(np.float64) * p.etp) != 0)
    return uneven


def sharding_unsupported(c: Context, p: PlanBatch) -> BoolArray | bool:
    """The framework lacks hybrid groups, or always frees gathered parameters after forward."""
    can = c.framework.capabilities
    broken: BoolArray | bool = False
    if not can.hybrid_sharding:
        broken = broken | ((p.dp_replicate > 1) & (p.zero != 1))
    if not can.optimizer_replicas:
        broken = broken | ((p.dp_replicate > 1) & (p.zero == 1))
    if not can.reshard_choice:
        broken = broken | (p.reshard_after_forward == 0)
    return broken


def _has_replicas(c: Context, zero: int) -> bool:
    can = c.framework.capabilities
    return can.optimizer_replicas if zero == 1 else can.hybrid_sharding


def offload_unsupported(c: Context, p: PlanBatch) -> BoolArray | bool:
    """The framework or the host cannot take the activations or the optimizer that leave the GPU."""
    broken: BoolArray | bool = False
    if p.activation_offload_pct.any() and _activations_stay(c):
        broken = p.activation_offload_pct > 0
    if p.optimizer_offload_pct.any():
        offloads = p.optimizer_offload_pct > 0
        broken = broken | (offloads if _optimizer_stays(c) else offloads & ~_steps_on_host(c, p))
    return broken


def _activations_stay(c: Context) -> str:
    """Why activations cannot leave the GPU; empty where they can."""
    if not c.framework.capabilities.activation_offload:
        return f"{c.framework.name} does not offload activations"
    if not c.cluster.accelerator.host_bytes_per_s:
        return f"no host_link is known of {c.cluster.accelerator.name}"
    return ""


def _optimizer_stays(c: Context) -> str:
    """Why the optimizer cannot leave the GPU, whatever the plan; empty where it can."""
    if not c.framework.capabilities.optimizer_offload:
        return f"{c.framework.name} does not offload the optimizer"
    if not c.cluster.accelerator.host_bytes_per_s:
        return f"no host_link is known of {c.cluster.accelerator.name}"
    return "" if c.cluster.host_memory_bytes else f"no host_memory is known of {c.cluster.name}"


def _steps_on_host(c: Context, p: PlanBatch) -> BoolArray:
    """A sharded Adam in fp32, or one of a single replica, whose mean share fits into the memory of
    a node's CPUs.
    """
    steps: BoolArray = ((p.zero > 0) | ((p.dp == 1) & (p.cp == 1))) & (p.optimizer == 0)
    return steps & (_host_bytes(c, p) <= (c.cluster.host_memory_bytes or 0))


def _host_bytes(c: Context, p: PlanBatch | Plan) -> NDArray[np.float64]:
    """Mean of all nodes: master weight, moments and gradient of each offloaded parameter."""
    copies = np.asarray(p.dp_replicate, np.float64) * np.asarray(p.optimizer_offload_pct) / 100
    return np.asarray(HOST_BYTES * copies * c.model.num_trainable_parameters / c.cluster.num_nodes)


def _explain_offload(c: Context, p: Plan) -> str:
    if p.activation_offload_pct and (reason := _activations_stay(c)):
        return f"activation_offload_pct={p.activation_offload_pct}: {reason}; use 0"
    asked = f"optimizer_offload_pct={p.optimizer_offload_pct}"
    if reason := _optimizer_stays(c):
        return f"{asked}: {reason}; use 0"
    if (not p.zero and p.dp * p.cp > 1) or p.optimizer != OPTIMIZERS[0]:
        return (
            f"{asked} needs zero >= 1 and optimizer={OPTIMIZERS[0]}, got zero={p.zero}, "
            f"optimizer={p.optimizer}; change them or use 0"
        )
    needed, held = float(_host_bytes(c, p)) / GIB, (c.cluster.host_memory_bytes or 0) / GIB
    return (
        f"{asked} needs {needed:.0f} GiB of host memory a node, {c.cluster.name} has {held:.0f}; "
        "use less, or more nodes"
    )


SHARDING_RULES: tuple[Rule, ...] = (
    Rule(
        "replicas-divide-data-parallel",
        "dp_replicate divides dp, and with experts the ranks that hold the same ones",
        replicas_uneven,
        lambda c, p: (
            f"dp_replicate={p.dp_replicate} does not divide dp={p.dp}"
            + (f" with ep={p.ep} x etp={p.etp}" if p.ep * p.etp > 1 else "")
            + "; use a divisor"
        ),
    ),
    Rule(
        "replicas-need-shards",
        "replicas of shard groups need zero 1, 2 or 3",
        lambda c, p: (p.dp_replicate > 1) & (p.zero < 1),
        lambda c, p: (
            f"dp_replicate={p.dp_replicate} replicates groups that ZeRO shards over, "
            f"got zero={p.zero}; use zero=3 or dp_replicate=1"
        ),
    ),
    Rule(
        "gathered-parameters-need-zero-3",
        "keeping gathered parameters until the backward pass needs zero 3",
        lambda c, p: (p.reshard_after_forward == 0) & (p.zero < 3),
        lambda c, p: (
            f"reshard_after_forward off needs zero=3, got zero={p.zero}; turn it on or use zero=3"
        ),
    ),
    Rule(
        "framework-has-sharding",
        "the framework has replicated shard groups and a choice of when parameters are freed",
        sharding_unsupported,
        lambda c, p: (
            f"{c.framework.name} does not have "
            + (
                f"replicated shard groups with zero={p.zero}; use dp_replicate=1"
                if p.dp_replicate > 1 and not _has_replicas(c, p.zero)
                else "a choice of reshard_after_forward; turn it on"
            )
        ),
    ),
    Rule(
        "framework-has-optimizer",
        "the framework has the optimizer",
        lambda c, p: unsupported(p.optimizer, OPTIMIZERS, c.framework.capabilities.optimizers),
        lambda c, p: (
            f"{c.framework.name} does not have the optimizer {p.optimizer}; it has "
            f"{', '.join(c.framework.capabilities.optimizers)}"
        ),
    ),
    Rule(
        "offload-has-a-host",
        "the framework offloads it, the host is known, steps a sharded Adam, and can hold it",
        offload_unsupported,
        _explain_offload,
    ),
)
