"""Rules of sharded data parallelism, compilers, optimizers and offload."""

from __future__ import annotations

import numpy as np

from parallelsim.plan import OPTIMIZERS
from parallelsim.plan_batch import PlanBatch
from parallelsim.rule_context import BoolArray, Context, Rule, unsupported


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
        broken = broken | (p.dp_replicate > 1)
    if not can.reshard_choice:
        broken = broken | (p.reshard_after_forward == 0)
    return broken


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
        "replicas-need-sharded-gradients",
        "replicas of shard groups need zero 2 or 3",
        lambda c, p: (p.dp_replicate > 1) & (p.zero < 2),
        lambda c, p: (
            f"dp_replicate={p.dp_replicate} replicates groups that zero 2 or 3 shards over, "
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
                "replicated shard groups; use dp_replicate=1"
                if p.dp_replicate > 1 and not c.framework.capabilities.hybrid_sharding
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
        "offload-has-a-host-link",
        "the framework offloads activations, and the accelerator's host link is known",
        lambda c, p: (
            False
            if c.framework.capabilities.activation_offload
            and c.cluster.accelerator.host_bytes_per_s
            else p.activation_offload_pct > 0
        ),
        lambda c, p: (
            f"activation_offload_pct={p.activation_offload_pct} needs software that offloads "
            f"(not {c.framework.name})"
            if not c.framework.capabilities.activation_offload
            else f"no host_link is known of {c.cluster.accelerator.name}; "
            "use activation_offload_pct=0"
        ),
    ),
)
