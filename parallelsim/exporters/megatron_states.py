"""Optimizer, sharded data parallelism and offload in Megatron-LM's flags."""

from __future__ import annotations

from collections.abc import Iterator

from parallelsim.cluster import ClusterSpec
from parallelsim.exporters.megatron_flags import FlagGroup, MegatronVersion
from parallelsim.model import ModelSpec
from parallelsim.plan import Plan

OPTIMIZER_FLAGS = {
    "adam": ("--optimizer adam",),
    "adam-bf16": (
        "--optimizer adam",
        "--use-precision-aware-optimizer",
        "--exp-avg-dtype bf16",
        "--exp-avg-sq-dtype bf16",
    ),
    "muon": ("--optimizer muon",),
    "sgd": ("--optimizer sgd", "--sgd-momentum 0.9"),
}
FSDP_STRATEGIES = {2: "optim_grads", 3: "optim_grads_params"}
"""Of Megatron-FSDP, by ZeRO stage."""


def state_refusals(model: ModelSpec, plan: Plan, version: MegatronVersion) -> Iterator[str]:
    """What of a valid plan's optimizer, sharding and offload the version cannot run."""
    if plan.optimizer not in OPTIMIZER_FLAGS:
        yield f"it has no optimizer {plan.optimizer}"
    if plan.optimizer == "muon" and not version.muon:
        yield f"{version.name} has no optimizer muon"
    if plan.optimizer == "adam-bf16" and not plan.zero:
        yield "moments in 16 bits need the distributed optimizer, zero=1"
    if plan.zero >= 2 and plan.optimizer == "muon":
        yield f"Megatron-FSDP (zero={plan.zero}) runs adam and sgd, not muon"
    if plan.dp_replicate > 1 and not plan.overlap_grad_reduce:
        yield "replicas of shard groups need overlap_grad_reduce"
    if plan.optimizer_offload_pct and plan.zero > 1:
        yield f"its optimizer on the host goes with zero=1, not zero={plan.zero}"
    if plan.activation_offload_pct:
        yield from _activation_refusals(model, plan)


def _activation_refusals(model: ModelSpec, plan: Plan) -> Iterator[str]:
    pct, layers = plan.activation_offload_pct, model.num_layers
    number = offloaded_layers(model, plan)
    if round(100 * number / layers) != pct or not 0 < number < layers:
        yield (
            f"it offloads whole layers, 1 to {layers - 1} of {layers}: "
            f"activation_offload_pct={pct} is {pct * layers / 100:g}"
        )
    if plan.pp > 1:
        yield f"it offloads activations without pipelines, got pp={plan.pp}"
    if plan.recompute != "none":
        yield f"it offloads activations or recomputes them, got recompute {plan.recompute_label}"
    if plan.cuda_graphs:
        yield "it has no CUDA graphs with offloaded activations"


def offloaded_layers(model: ModelSpec, plan: Plan) -> int:
    """Layers whose activations go to the host."""
    return round(model.num_layers * plan.activation_offload_pct / 100)


def optimizer(plan: Plan) -> tuple[str, ...]:
    """The optimizer, and the part of it that the host steps."""
    flags = OPTIMIZER_FLAGS[plan.optimizer]
    if not plan.optimizer_offload_pct:
        return flags
    return (
        *flags,
        "--use-precision-aware-optimizer",
        "--optimizer-cpu-offload",
        f"--optimizer-offload-fraction {plan.optimizer_offload_pct / 100:g}",
        "--overlap-cpu-optimizer-d2h-h2d",
    )


def data_parallel(plan: Plan) -> FlagGroup | None:
    """What is sharded over replicas, and the overlaps of data-parallel communication."""
    # On one replica it shards nothing, and the optimizer on the host is a part of it.
    sharded = plan.zero or plan.optimizer_offload_pct
    flags = ["--use-distributed-optimizer"] if sharded else []
    if plan.zero >= 2:
        flags += ["--use-megatron-fsdp", "--init-model-with-meta-device"]
        flags += [f"--data-parallel-sharding-strategy {FSDP_STRATEGIES[plan.zero]}"]
        flags += ["--ckpt-format fsdp_dtensor"]
    if plan.dp_replicate > 1:
        flags += [f"--num-distributed-optimizer-instances {plan.dp_replicate}"]
    if plan.overlap_grad_reduce:
        flags += ["--overlap-grad-reduce"]
    if plan.overlap_param_gather:
        flags += ["--overlap-param-gather"]
    if not flags:
        return None
    return FlagGroup("DATA_PARALLEL_ARGS", "Data parallelism", tuple(flags))


def activation_offload(model: ModelSpec, plan: Plan) -> FlagGroup | None:
    """Layers whose activations wait in host memory."""
    if not plan.activation_offload_pct:
        return None
    flag = f"--cpu-offloading-num-layers {offloaded_layers(model, plan)}"
    return FlagGroup("OFFLOAD_ARGS", "Activations in host memory", (flag,))


def environment(cluster: ClusterSpec, plan: Plan) -> list[str]:
    """Lines that set how many hardware queues and CPU threads a process has."""
    capability = cluster.accelerator.compute_capability
    gpus = min(cluster.gpus_per_node, cluster.num_gpus)
    lines = []
    if plan.ep_comm_overlap:
        lines += ["# Experts' exchange overlaps with compute on many hardware queues."]
        lines += ["export CUDA_DEVICE_MAX_CONNECTIONS=32"]
    elif plan.zero >= 2:
        lines += ["# Megatron-FSDP refuses a single hardware queue."]
        lines += ["unset CUDA_DEVICE_MAX_CONNECTIONS"]
    elif (plan.tp > 1 or plan.cp > 1) and (capability is None or capability < 10):
        lines += ["# Megatron-LM refuses tp > 1 or cp > 1 without it before Blackwell."]
        lines += ["export CUDA_DEVICE_MAX_CONNECTIONS=1"]
    if not plan.optimizer_offload_pct:
        return [*lines, "export OMP_NUM_THREADS=1"]
    lines += ["# The optimizer steps on the CPU cores, a GPU's share of them each."]
    return [*lines, f"export OMP_NUM_THREADS=$(( $(nproc) > {gpus} ? $(nproc) / {gpus} : 1 ))"]
