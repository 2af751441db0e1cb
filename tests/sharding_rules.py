"""The rules of sharded data parallelism, compilers and optimizers, written plan by plan."""

from parallelsim.cluster import ClusterSpec
from parallelsim.framework import FrameworkSpec
from parallelsim.model import ModelSpec
from parallelsim.plan import Plan


def broken_sharding(
    model: ModelSpec, cluster: ClusterSpec, framework: FrameworkSpec, plan: Plan
) -> set[str]:
    """Names of those that the plan breaks."""
    can = framework.capabilities
    groups = plan.dp_replicate
    link = cluster.accelerator.host_bytes_per_s is not None
    held = 0.16 * plan.optimizer_offload_pct * model.num_trainable_parameters * groups
    room = cluster.host_memory_bytes
    whole = plan.dp * plan.cp == 1
    stepped = (plan.zero > 0 or whole) and plan.optimizer == "adam" and room is not None
    stepped = stepped and held <= room * cluster.num_nodes
    rest = plan.tp * plan.cp * plan.dp
    replicates = can.optimizer_replicas if plan.zero == 1 else can.hybrid_sharding
    once_a_step = can.sharded_stages and plan.zero == 3 and not plan.reshard_after_forward
    obeyed = {
        "zero-2-with-stages": plan.zero < 2 or plan.pp == 1 or once_a_step,
        "replicas-divide-data-parallel": groups == 1
        or (plan.dp % groups == 0 and rest % (plan.ep * plan.etp * groups) == 0),
        "replicas-need-shards": groups == 1 or plan.zero in (1, 2, 3),
        "gathered-parameters-need-zero-3": plan.reshard_after_forward or plan.zero == 3,
        "framework-has-sharding": (groups == 1 or replicates)
        and (plan.reshard_after_forward or can.reshard_choice),
        "offload-has-a-host": (not plan.activation_offload_pct or (can.activation_offload and link))
        and (not plan.optimizer_offload_pct or (can.optimizer_offload and link and stepped)),
        "framework-has-optimizer": plan.optimizer in can.optimizers,
    }
    return {name for name, holds in obeyed.items() if not holds}
