"""Seconds of one optimizer step: the one sum.

T = ( pipeline + transfers + data parallelism + optimizer + micro-batch overhead ) (1 + straggler)
    + step overhead
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from parallelsim.compute import IS_FP8
from parallelsim.costs import CostTable
from parallelsim.exposure import data_parallel_exposed, pipeline_transfer_time
from parallelsim.memory import FP32, IS_FP32, States, most_parameters
from parallelsim.operators import FloatArray, IntArray
from parallelsim.pipeline import INTERLEAVED, StageSeconds, pipeline_time
from parallelsim.plan import PlanBatch
from parallelsim.stages import Columns

ADAM_BYTES = 30.0
"""Read and written for each optimizer element: fp32 gradient, master weight and both moments."""
CAST_BYTES = 4.0
"""For each resident parameter: the 16-bit copy and its source."""
CAST_BYTES_FP8 = 6.0


@dataclass(frozen=True, slots=True, eq=False)
class StepBreakdown:
    """Seconds of one step by cause on the critical path, float64 of shape [P]; the total is the
    sum.

    Computation and exposed communication are those of the slowest stage over all micro-batches.
    """

    gemm_s: FloatArray
    attention_s: FloatArray
    memory_bound_s: FloatArray
    """Norms, activations, residuals, RoPE, dropout, casts."""
    head_s: FloatArray
    """Embedding, output matrix and loss, where the slowest stage holds them."""
    recompute_s: FloatArray
    host_s: FloatArray
    """The GPU waits for the CPU to launch kernels."""
    tp_exposed_s: FloatArray
    cp_exposed_s: FloatArray
    p2p_exposed_s: FloatArray
    bubble_s: FloatArray
    dp_exposed_s: FloatArray
    optimizer_s: FloatArray
    overhead_s: FloatArray
    """Fixed seconds of each micro-batch and step."""
    straggler_s: FloatArray

    @property
    def total_s(self) -> FloatArray:
        """Sum of the fields, shape [P]."""
        return (
            self.gemm_s
            + self.attention_s
            + self.memory_bound_s
            + self.head_s
            + self.recompute_s
            + self.host_s
            + self.tp_exposed_s
            + self.cp_exposed_s
            + self.p2p_exposed_s
            + self.bubble_s
            + self.dp_exposed_s
            + self.optimizer_s
            + self.overhead_s
            + self.straggler_s
        )


def stage_seconds(table: CostTable, rows: IntArray, columns: Columns) -> StageSeconds:
    """Seconds of one micro-batch on each stage class.

    tau_i = l_i t_layer + r_i t_forward + embedding on the first + head on the last (T12). Neglects:
    clock throttling, jitter.
    """
    layer_s, forward_s = table.layer_total_s[rows], table.layer.forward_s[rows]
    edge, is_single = table.edge, columns.is_single
    head, head_forward = edge.head_s[rows], edge.head_forward_s[rows]
    layers, again = columns.layers, columns.recomputed
    middle = np.ceil(layers.middle)  # where they are not equal, the fullest one sets the pace
    first = layers.first * layer_s + again.first * forward_s
    last = layers.last * layer_s + again.last * forward_s
    forward_first = layers.first * forward_s + edge.embedding_forward_s[rows]
    return StageSeconds(
        first=first + (edge.embedding_s[rows] + head * is_single),
        middle=middle * layer_s + again.middle * forward_s,
        last=last + (head - head * is_single),
        forward_first=forward_first + head_forward * is_single,
        forward_middle=middle * forward_s,
        forward_last=layers.last * forward_s + (head_forward - head_forward * is_single),
    )


def step_breakdown(
    table: CostTable, rows: IntArray, plans: PlanBatch, columns: Columns, held: States
) -> StepBreakdown:
    """Seconds of one optimizer step of every plan, by cause."""
    m, stages = columns.num_micro_batches, stage_seconds(table, rows, columns)
    tail = _after_stages(table, rows, plans, columns, held, stages)
    on_first = stages.first >= np.maximum(stages.middle, stages.last)
    on_last = ~on_first & (stages.last >= stages.middle)

    def of_slowest(first: FloatArray, middle: FloatArray | float, last: FloatArray) -> FloatArray:
        return np.where(on_first, first, np.where(on_last, last, middle))

    first, middle, last = columns.layers
    layers, layer = of_slowest(first, np.ceil(middle), last) * m, table.layer
    head = table.edge.head_s[rows]
    edge_first = table.edge.embedding_s[rows] + head * columns.is_single
    again = of_slowest(*columns.recomputed) * m * layer.forward_s[rows]
    return StepBreakdown(
        gemm_s=layers * layer.gemm_s[rows],
        attention_s=layers * layer.attention_s[rows],
        memory_bound_s=layers * layer.memory_bound_s[rows],
        head_s=m * of_slowest(edge_first, 0.0, head),
        recompute_s=again + layers * layer.selective_s[rows],
        host_s=layers * layer.host_s[rows],
        tp_exposed_s=layers * layer.tp_exposed_s[rows],
        cp_exposed_s=layers * layer.cp_exposed_s[rows],
        p2p_exposed_s=tail.p2p_s,
        bubble_s=tail.bubble_s,
        dp_exposed_s=tail.dp_s,
        optimizer_s=tail.optimizer_s,
        overhead_s=tail.overhead_s,
        straggler_s=tail.straggler_s,
    )


def step_time(
    table: CostTable, rows: IntArray, plans: PlanBatch, columns: Columns, held: States
) -> FloatArray:
    """Seconds of one optimizer step: the breakdown's total up to rounding, without its parts."""
    stages = stage_seconds(table, rows, columns)
    tail = _after_stages(table, rows, plans, columns, held, stages)
    return (
        tail.steady_s
        + tail.p2p_s
        + tail.bubble_s
        + tail.dp_s
        + tail.optimizer_s
        + tail.overhead_s
        + tail.straggler_s
    )


class _Tail(NamedTuple):
    """Seconds of the slowest stage's micro-batches and of what comes on top; shape [P]."""

    steady_s: FloatArray
    p2p_s: FloatArray
    bubble_s: FloatArray
    dp_s: FloatArray
    optimizer_s: FloatArray
    overhead_s: FloatArray
    straggler_s: FloatArray


def _after_stages(
    table: CostTable,
    rows: IntArray,
    plans: PlanBatch,
    columns: Columns,
    held: States,
    stages: StageSeconds,
) -> _Tail:
    framework, m = table.framework, columns.num_micro_batches
    pp, vpp = columns.pp, columns.vpp
    num_gpus = columns.shards * plans.tp * pp
    pipeline = pipeline_time(stages, plans.schedule, pp, vpp, m)
    p2p = _transfers(table, rows, plans, columns, num_gpus)
    parameters = most_parameters(held, columns.layers)
    fp8 = IS_FP8[plans.precision]
    interleaved = plans.schedule == INTERLEAVED
    window = np.where(interleaved, np.minimum(pp, m) * (vpp - 1) / vpp, 1.0)
    dp = data_parallel_exposed(
        framework.overlap,
        table.network,
        num_ranks=columns.shards,
        stride=plans.tp,
        gradient_bytes=np.where(plans.grad_dtype == FP32, 4.0, 2.0) * parameters,
        parameter_bytes=np.where(IS_FP32[plans.precision], 4.0, 2.0) * parameters,
        zero=plans.zero,
        overlap_grad_reduce=plans.overlap_grad_reduce,
        overlap_param_gather=plans.overlap_param_gather,
        micro_batch_s=pipeline.steady_s / m,
        window=window,
        num_micro_batches=m,
    )
    optimizer = optimizer_time(table, parameters, columns.shards, plans.zero, fp8)
    per_micro_batch = framework.host.micro_batch_s * m
    busy = pipeline.steady_s + p2p + pipeline.bubble_s + dp + optimizer + per_micro_batch
    overlap = framework.overlap
    slope = np.where(fp8, overlap.straggler_per_doubling_fp8, overlap.straggler_per_doubling)
    straggler = busy * slope * np.log2(np.maximum(num_gpus / 8, 1.0))
    overhead = per_micro_batch + framework.host.step_s
    return _Tail(
        pipeline.steady_s, p2p, pipeline.bubble_s, dp, optimizer, overhead, straggler
    )


def _transfers(
    table: CostTable, rows: IntArray, plans: PlanBatch, columns: Columns, num_gpus: FloatArray
) -> FloatArray:
    """Exposed transfers between stages, seconds.

    2 v for each micro-batch (the exposed share), and 2 (p - 1) to fill and drain (T12).
    """
    overlap = table.framework.overlap
    num_bytes = table.edge.checkpoint_bytes[rows]
    if overlap.scatter_gather_p2p:
        num_bytes = np.where(plans.sequence_parallel > 0, num_bytes, num_bytes / plans.tp)
    transfer = pipeline_transfer_time(overlap, table.network, num_bytes, columns.pp, num_gpus)
    exposed = np.where(
        plans.schedule == INTERLEAVED, overlap.p2p_exposed_interleaved, overlap.p2p_exposed
    )
    steady = 2 * columns.num_micro_batches * columns.vpp * exposed
    return (steady + 2 * (columns.pp - 1)) * transfer


def optimizer_time(
    table: CostTable, parameters: FloatArray, shards: FloatArray, zero: IntArray, fp8: FloatArray
) -> FloatArray:
    """Seconds of the Adam step: (30 N_opt + (4 | 6 fp8) N) bytes at the bandwidth it reaches
    (T14).
    """
    accelerator = table.cluster.accelerator
    rate = accelerator.memory_bandwidth_bytes_per_s * table.framework.compute.optimizer_efficiency
    owned = parameters / np.where(zero > 0, shards, 1.0)
    resident = np.where(zero == 3, owned, parameters)
    moved = ADAM_BYTES * owned + np.where(fp8, CAST_BYTES_FP8, CAST_BYTES) * resident
    return np.asarray(moved / rate)
