"""The rules of sharded data parallelism, compilers and optimizers, written plan by plan."""

from parallelsim.cluster import ClusterSpec
from parallelsim.framework import FrameworkSpec
from parallelsim.plan import Plan


def broken_sharding(cluster: ClusterSpec, framework: FrameworkSpec, plan: Plan) -> set[str]:
    """Names of those that the plan breaks."""
    can = framework.capabilities
    groups = plan.dp_replicate
    rest = plan.tp * plan.cp * plan.dp
    obeyed = {
        "replicas-divide-data-parallel": groups == 1
        or (plan.dp % groups == 0 and rest % (plan.ep * plan.etp * groups) == 0),
        "replicas-need-sharded-gradients": groups == 1 or plan.zero in (2, 3),
        "gathered-parameters-need-zero-3": plan.reshard_after_forward or plan.zero == 3,
        "framework-has-sharding": (groups == 1 or can.hybrid_sharding)
        and (plan.reshard_after_forward or can.reshard_choice),
        "offload-has-a-host-link": plan.activation_offload_pct == 0
        or (can.activation_offload and cluster.accelerator.host_bytes_per_s is not None),
        "framework-has-optimizer": plan.optimizer in can.optimizers,
    }
    return {name for name, holds in obeyed.items() if not holds}
