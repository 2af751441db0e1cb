"""Seconds of one optimizer step: the one sum.

T = ( pipeline + transfers + data parallelism + optimizer + micro-batch overhead ) (1 + straggler)
    + step overhead
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from parallelsim.costs import CostTable
from parallelsim.exposure import (
    DataParallel,
    data_parallel_exposed,
    offload_exposed,
    pipeline_transfer_time,
)
from parallelsim.memory_states import (
    GRADIENT_WIDTH,
    States,
    gathered_parameter_bytes,
    gathered_width,
    most_expert_parameters,
    most_parameters,
)
from parallelsim.operators import IS_FP8, FloatArray, IntArray
from parallelsim.optimizers import optimizer_time, shard_ranks
from parallelsim.pipeline import INTERLEAVED, StageSeconds, pipeline_time
from parallelsim.plan_batch import PlanBatch, by_code, largest, one_if_equal, scaled
from parallelsim.sharded import sharded_exposed
from parallelsim.stage_seconds import schedule_seconds
from parallelsim.stages import Columns, leading_at_ends


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
    ep_exposed_s: FloatArray
    """Tokens sent to experts and back."""
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
            + self.ep_exposed_s
            + self.p2p_exposed_s
            + self.bubble_s
            + self.dp_exposed_s
            + self.optimizer_s
            + self.overhead_s
            + self.straggler_s
        )


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
    head, embedding = table.edge.head_s.take(rows), table.edge.embedding_s.take(rows)
    ends = columns.ends
    edge_first = embedding * ends.embedding_first + head * ends.head_first
    edge_last = embedding * ends.embedding_last + head * ends.head_last
    leading = (0.0, 0.0) if table.first is None else leading_at_ends(table.model, plans)
    again = of_slowest(*columns.recomputed) * m * layer.forward_s.take(rows)

    def of_layers(name: str) -> FloatArray:
        """Of the slowest stage's layers, with leading and multi-token-prediction ones."""
        seconds: FloatArray = layers * getattr(layer, name).take(rows)
        if table.first is None and table.last is None:
            return seconds
        more = [
            0.0 if x is None else getattr(x, name).take(rows) for x in (table.first, table.last)
        ]
        on_ends = (
            more[0] * leading[0] / ends.copies + more[1] * ends.head_first,
            more[0] * leading[1] / ends.copies + more[1] * ends.head_last,
        )
        return seconds + m * of_slowest(on_ends[0], 0.0, on_ends[1])

    return StepBreakdown(
        gemm_s=of_layers("gemm_s"),
        attention_s=of_layers("attention_s"),
        memory_bound_s=of_layers("memory_bound_s"),
        head_s=m * of_slowest(edge_first, 0.0, edge_last),
        recompute_s=again + of_layers("selective_s"),
        host_s=of_layers("host_s") + tail.offload_s,
        tp_exposed_s=of_layers("tp_exposed_s"),
        cp_exposed_s=of_layers("cp_exposed_s"),
        ep_exposed_s=of_layers("ep_exposed_s"),
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
        + tail.offload_s
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
    offload_s: FloatArray | float
    """Activations wait for the host link."""
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
    pipeline = pipeline_time(stages, plans.schedule, pp, vpp, m)
    p2p = _transfers(table, rows, plans, columns)
    reduce_s, gather_s, optimizer = _synchronized(
        table, rows, plans, columns, held, pipeline.steady_s
    )
    dp = reduce_s + gather_s
    offload = _offload(table, rows, plans, columns)
    per_micro_batch = framework.host.micro_batch_s * m
    busy = pipeline.steady_s + p2p + pipeline.bubble_s + dp + optimizer + per_micro_batch + offload
    overlap = framework.overlap
    slopes = overlap.straggler_per_doubling, overlap.straggler_per_doubling_fp8
    slope = by_code(np.where(IS_FP8, slopes[1], slopes[0]), plans.precision)
    doublings = np.log2(np.maximum(one_if_equal(columns.num_gpus) / 8, 1.0))
    straggler = busy * (slope * doublings)
    overhead = per_micro_batch + framework.host.step_s
    steady, bubble = pipeline.steady_s, pipeline.bubble_s
    return StepTail(steady, p2p, bubble, dp, optimizer, overhead, straggler, offload, gather_s)


def _synchronized(
    table: CostTable,
    rows: IntArray,
    plans: PlanBatch,
    columns: Columns,
    held: States,
    steady_s: FloatArray,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Seconds of (gradient reduction, parameter gathering, optimizer); routed experts, which other
    ranks hold copies of, apart from the rest.
    """
    framework, m = table.framework, columns.num_micro_batches
    pp, vpp = columns.pp, columns.vpp
    parameters = most_parameters(held, columns)
    holders = scaled(columns.shards, columns.ends.copies)
    owners = shard_ranks(plans, holders)
    micro_batch_s = steady_s / m
    num_layers = np.maximum(np.maximum(*columns.layers[:2]), columns.layers.last)
    interleaved = plans.schedule == INTERLEAVED
    window = np.where(interleaved, np.minimum(pp, m) * (vpp - 1) / vpp, 1.0)

    def synchronized(
        held: FloatArray, gathered: FloatArray, ranks: FloatArray, stride: IntArray
    ) -> DataParallel:
        return data_parallel_exposed(
            framework.overlap,
            table.network,
            num_ranks=ranks,
            stride=stride,
            replicas=plans.dp_replicate,
            gradient_bytes=by_code(GRADIENT_WIDTH, plans.grad_dtype) * held,
            parameter_bytes=gathered,
            zero=plans.zero,
            overlap_grad_reduce=plans.overlap_grad_reduce,
            overlap_param_gather=plans.overlap_param_gather,
            micro_batch_s=micro_batch_s,
            window=window,
            num_layers=num_layers,
        )

    gathered = gathered_parameter_bytes(held, plans, columns, parameters)
    reduce_s, gather_s = synchronized(parameters, gathered, holders, plans.tp)
    optimizer = optimizer_time(table, parameters, owners, plans)
    if held.experts is not None and held.adapter_parameters is None:
        of_experts, ranks = most_expert_parameters(held.experts, columns), held.experts.replicas
        ranks = scaled(ranks, columns.ends.copies)
        gathered = gathered_width(plans) * of_experts
        more = synchronized(of_experts, gathered, ranks, plans.ep * plans.etp)
        reduce_s, gather_s = reduce_s + more.reduce_s, gather_s + more.gather_s
        owners = shard_ranks(plans, ranks)
        optimizer = optimizer + optimizer_time(table, of_experts, owners, plans)
    if largest(plans.zero) >= 2:
        reduce_s, gather_s = _sharded(table, rows, plans, columns, held, (reduce_s, gather_s))
    return reduce_s, gather_s, optimizer


def _sharded(
    table: CostTable,
    rows: IntArray,
    plans: PlanBatch,
    columns: Columns,
    held: States,
    unsharded: tuple[FloatArray, FloatArray],
) -> DataParallel:
    """Exposed (reduction, gather) of data parallelism where layers are gathered or scattered.

    ZeRO 2 gathers its parameters once a step, as ZeRO 1 does.
    """
    layered = sharded_exposed(table, rows, plans, columns, held)
    return DataParallel(
        np.where(plans.zero >= 2, layered.reduce_s, unsharded[0]),
        np.where(plans.zero == 3, layered.gather_s, unsharded[1]),
    )


def _offload(
    table: CostTable, rows: IntArray, plans: PlanBatch, columns: Columns
) -> FloatArray | float:
    """Seconds of the step that activations on their way to the host and back add: m times those of
    the layers of the fullest stage. A plan that keeps checkpoints alone moves those.
    """
    if not largest(plans.activation_offload_pct):
        return 0.0
    share, layers = plans.activation_offload_pct / 100, columns.layers
    recomputes = columns.recomputed.first + columns.recomputed.last > 0
    checkpoint, kept = table.edge.checkpoint_bytes.take(rows), table.layer.saved_bytes.take(rows)
    saved = np.where(recomputes, checkpoint, kept)
    forward = table.layer.forward_s.take(rows)
    backward = table.layer_total_s.take(rows) - forward + recomputes * forward
    rate = table.cluster.accelerator.host_bytes_per_s or np.nan
    each = np.where(share > 0, offload_exposed(share * saved, rate, forward, backward), 0.0)
    most = np.maximum(np.maximum(layers.first, layers.last), layers.middle)
    return columns.num_micro_batches * most * each


def _transfers(table: CostTable, rows: IntArray, plans: PlanBatch, columns: Columns) -> FloatArray:
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
    num_bytes = table.edge.checkpoint_bytes.take(rows)
    if overlap.scatter_gather_p2p:
        num_bytes = np.where(plans.sequence_parallel > 0, num_bytes, num_bytes / plans.tp)
    num_gpus = one_if_equal(columns.num_gpus)
    transfer = pipeline_transfer_time(overlap, table.network, num_bytes, columns.pp, num_gpus)
    shares = np.array([overlap.p2p_exposed, overlap.p2p_exposed_interleaved])
    exposed = shares.take(plans.vpp > 1)
    return transfer, exposed
