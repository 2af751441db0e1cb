"""Seconds of one optimizer step: the one sum.

T = ( pipeline + transfers + data parallelism + optimizer + micro-batch overhead ) (1 + straggler)
    + step overhead
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from parallelsim.costs import CostTable
from parallelsim.exposure import data_parallel_exposed, pipeline_transfer_time
from parallelsim.memory import FP32, IS_FP32, States, most_parameters
from parallelsim.operators import IS_FP8, FloatArray, IntArray
from parallelsim.pipeline import INTERLEAVED, PLAIN, StageSeconds, pipeline_time
from parallelsim.pipeline_paths import ChunkSeconds, Operations
from parallelsim.plan import PlanBatch
from parallelsim.stages import Columns, StageLayers, chunk_layers, recomputed_layers

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
    edge, ends = table.edge, columns.ends
    head, head_forward = edge.head_s[rows], edge.head_forward_s[rows]
    embedding = edge.embedding_s[rows]
    layers, again = columns.layers, columns.recomputed
    middle = np.ceil(layers.middle)  # where they are not equal, the fullest one sets the pace
    first = layers.first * layer_s + again.first * forward_s
    last = layers.last * layer_s + again.last * forward_s
    forward_first = layers.first * forward_s + edge.embedding_forward_s[rows]
    return StageSeconds(
        first=first + (embedding * ends.embedding_first + head * ends.head_first),
        middle=middle * layer_s + again.middle * forward_s,
        last=last + (embedding * ends.embedding_last + head * ends.head_last),
        forward_first=forward_first + head_forward * ends.head_first,
        forward_middle=middle * forward_s,
        forward_last=layers.last * forward_s + head_forward * ends.head_last,
    )


def chunk_seconds(
    table: CostTable, rows: IntArray, plans: PlanBatch, layers: StageLayers | None = None
) -> ChunkSeconds:
    """Forward, input and weight gradient of one micro-batch by stage of the model.

    Weight gradients are those of the GEMMs; the rest of the backward, and the recompute, goes with
    the input gradient. ``layers`` are those of the plans' own layouts unless given.
    """
    if layers is None:
        layers = chunk_layers(table.model.num_layers, plans)
        layers = layers._replace(middle=np.ceil(layers.middle))
    layer, edge = table.layer, table.edge
    forward, weight = layer.forward_s[rows], layer.weight_s[rows]
    rest = table.layer_total_s[rows] - forward - weight

    def stage(count: FloatArray, edge_s: tuple[FloatArray | float, ...]) -> Operations:
        again = recomputed_layers(count * plans.vpp, plans) / plans.vpp
        return Operations(
            count * forward + edge_s[0],
            count * rest + again * forward + edge_s[1],
            count * weight + edge_s[2],
        )

    embedding_forward, head_forward = edge.embedding_forward_s[rows], edge.head_forward_s[rows]
    head_weight = edge.head_weight_s[rows]
    embedding = (embedding_forward, edge.embedding_s[rows] - embedding_forward, 0.0)
    head = (head_forward, edge.head_s[rows] - head_forward - head_weight, head_weight)
    return ChunkSeconds(
        stage(layers.first, embedding),
        stage(layers.middle, (0.0, 0.0, 0.0)),
        stage(layers.last, head),
    )


def schedule_seconds(
    table: CostTable, rows: IntArray, plans: PlanBatch, columns: Columns
) -> StageSeconds:
    """The seconds that the block's schedules need."""
    stages = stage_seconds(table, rows, columns)
    if (plans.schedule >= PLAIN).any():
        stages = stages._replace(chunks=chunk_seconds(table, rows, plans))
    return stages


def step_breakdown(
    table: CostTable, rows: IntArray, plans: PlanBatch, columns: Columns, held: States
) -> StepBreakdown:
    """Seconds of one optimizer step of every plan, by cause."""
    m, stages = columns.num_micro_batches, schedule_seconds(table, rows, plans, columns)
    tail = after_stages(table, rows, plans, columns, held, stages)
    on_first = stages.first >= np.maximum(stages.middle, stages.last)
    on_last = ~on_first & (stages.last >= stages.middle)

    def of_slowest(first: FloatArray, middle: FloatArray | float, last: FloatArray) -> FloatArray:
        return np.where(on_first, first, np.where(on_last, last, middle))

    first, middle, last = columns.layers
    layers, layer = of_slowest(first, np.ceil(middle), last) * m, table.layer
    head, embedding, ends = table.edge.head_s[rows], table.edge.embedding_s[rows], columns.ends
    edge_first = embedding * ends.embedding_first + head * ends.head_first
    edge_last = embedding * ends.embedding_last + head * ends.head_last
    again = of_slowest(*columns.recomputed) * m * layer.forward_s[rows]
    return StepBreakdown(
        gemm_s=layers * layer.gemm_s[rows],
        attention_s=layers * layer.attention_s[rows],
        memory_bound_s=layers * layer.memory_bound_s[rows],
        head_s=m * of_slowest(edge_first, 0.0, edge_last),
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
    stages = schedule_seconds(table, rows, plans, columns)
    tail = after_stages(table, rows, plans, columns, held, stages)
    return (
        tail.steady_s
        + tail.p2p_s
        + tail.bubble_s
        + tail.dp_s
        + tail.optimizer_s
        + tail.overhead_s
        + tail.straggler_s
    )


class StepTail(NamedTuple):
    """Seconds of the slowest stage's micro-batches and of what comes on top; shape [P]."""

    steady_s: FloatArray
    p2p_s: FloatArray
    bubble_s: FloatArray
    dp_s: FloatArray
    optimizer_s: FloatArray
    overhead_s: FloatArray
    straggler_s: FloatArray
    gather_s: FloatArray
    """The part of ``dp_s`` that comes before the micro-batches."""


def after_stages(
    table: CostTable,
    rows: IntArray,
    plans: PlanBatch,
    columns: Columns,
    held: States,
    stages: StageSeconds,
) -> StepTail:
    """What follows from the stages' seconds."""
    framework, m = table.framework, columns.num_micro_batches
    pp, vpp = columns.pp, columns.vpp
    num_gpus = columns.shards * plans.tp * pp
    pipeline = pipeline_time(stages, plans.schedule, pp, vpp, m)
    p2p = _transfers(table, rows, plans, columns)
    parameters = most_parameters(held, columns)
    holders = columns.shards * columns.ends.copies
    fp8 = IS_FP8[plans.precision]
    interleaved = plans.schedule == INTERLEAVED
    window = np.where(interleaved, np.minimum(pp, m) * (vpp - 1) / vpp, 1.0)
    reduce_s, gather_s = data_parallel_exposed(
        framework.overlap,
        table.network,
        num_ranks=holders,
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
    dp = reduce_s + gather_s
    optimizer = optimizer_time(table, parameters, holders, plans.zero, fp8)
    per_micro_batch = framework.host.micro_batch_s * m
    busy = pipeline.steady_s + p2p + pipeline.bubble_s + dp + optimizer + per_micro_batch
    overlap = framework.overlap
    slope = np.where(fp8, overlap.straggler_per_doubling_fp8, overlap.straggler_per_doubling)
    straggler = busy * slope * np.log2(np.maximum(num_gpus / 8, 1.0))
    overhead = per_micro_batch + framework.host.step_s
    return StepTail(
        pipeline.steady_s, p2p, pipeline.bubble_s, dp, optimizer, overhead, straggler, gather_s
    )


def _transfers(
    table: CostTable, rows: IntArray, plans: PlanBatch, columns: Columns
) -> FloatArray:
    """Exposed transfers between stages, seconds.

    2 v for each micro-batch (the exposed share), and 2 (p - 1) to fill and drain (T12).
    """
    transfer, exposed = transfer_seconds(table, rows, plans, columns)
    steady = 2 * columns.num_micro_batches * columns.vpp * exposed
    return (steady + 2 * (columns.pp - 1)) * transfer


def transfer_seconds(
    table: CostTable, rows: IntArray, plans: PlanBatch, columns: Columns
) -> tuple[FloatArray, FloatArray]:
    """(seconds of one transfer between neighbouring ranks, share of it that computation does not
    hide while the pipeline is full).
    """
    overlap = table.framework.overlap
    num_bytes = table.edge.checkpoint_bytes[rows]
    if overlap.scatter_gather_p2p:
        num_bytes = np.where(plans.sequence_parallel > 0, num_bytes, num_bytes / plans.tp)
    num_gpus = columns.shards * plans.tp * columns.pp
    transfer = pipeline_transfer_time(overlap, table.network, num_bytes, columns.pp, num_gpus)
    exposed = np.where(plans.vpp > 1, overlap.p2p_exposed_interleaved, overlap.p2p_exposed)
    return transfer, exposed


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
