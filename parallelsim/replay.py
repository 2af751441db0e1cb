"""A plan on the exact engine: what its stages cost, and the step time that the replay gives.

Forward, input gradient and weight gradient come from the same table as the step's breakdown
(:func:`parallelsim.step.chunk_seconds`). A transfer takes its whole time between ranks, and its
exposed share from the computation of both; of data-parallel communication the part that the step
pays for is replayed, the gathers before the first forward and the reductions after the last
backward of each rank.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from parallelsim.cluster import ClusterSpec
from parallelsim.costs import CostTable
from parallelsim.framework import FrameworkSpec
from parallelsim.memory import activations, states
from parallelsim.model import ModelSpec
from parallelsim.operators import FloatArray, IntArray
from parallelsim.pipeline_paths import ChunkSeconds
from parallelsim.plan import UNSYNCHRONIZED, Plan, PlanBatch
from parallelsim.simulate import Simulation
from parallelsim.stages import chunk_layers, plan_columns, recomputed_layers
from parallelsim.step import after_stages, chunk_seconds, schedule_seconds, transfer_seconds
from parallelsim.timeline import (
    Graph,
    Replay,
    Schedule,
    StageCosts,
    bubbles,
    compiled_graph,
    replay,
    stage_costs,
    steady_step_time,
    step_time,
)


class PlanReplay(NamedTuple):
    """A plan's schedule with its costs, ready to be replayed."""

    graph: Graph
    costs: StageCosts
    """Of one plan."""
    activation_bytes: FloatArray
    """[S]: saved by one micro-batch on each stage of the model, in the order of the model."""
    busy_s: float
    """Pipeline, transfers, data-parallel communication, optimizer and launches by the closed form:
    what stragglers stretch."""
    rest_s: float
    """Of those, what is not in the replay: optimizer and launches."""
    fixed_s: float
    """Of the step that is neither replayed nor stretched."""
    straggler_s: float
    data_parallel_s: float
    """Paid for in every step, also where no drain separates the steps."""

    @property
    def schedule(self) -> Schedule:
        """The operation lists."""
        return self.graph.schedule

    def run(self) -> Replay:
        """Start and end of every operation."""
        return replay(self.graph, self.costs)

    def step_time_s(self) -> float:
        """Seconds of the step: the replay's makespan and the rest of the breakdown.

        Without a flush or barrier (PipeDream-2BW, ZB-H2) that of a step in the long run.
        """
        makespan = float(schedule_time(self.graph, self.costs)[0])
        if _overlaps_steps(self.schedule):
            makespan += self.data_parallel_s
        busy = makespan + self.rest_s
        return busy * (1 + self.straggler_s / self.busy_s) + self.fixed_s


def _overlaps_steps(schedule: Schedule) -> bool:
    return not schedule.flushes or schedule.name in UNSYNCHRONIZED


def schedule_time(graph: Graph, costs: StageCosts) -> FloatArray:
    """Seconds of a step, [P]: the makespan; where ranks enter the next step one by one, the time
    between two steps in the long run, without gathers and reductions.
    """
    schedule = graph.schedule
    if not schedule.flushes:
        pp, vpp, m = schedule.size
        twice = compiled_graph(schedule.name, pp, vpp, 2 * m, gathers=graph.gathers)
        return steady_step_time(graph, twice, costs)
    if schedule.name in UNSYNCHRONIZED:
        found = bubbles(replay(graph, costs))
        return np.asarray((found.busy_s + found.inner_idle_s).max(axis=0))
    return step_time(graph, costs)


def plan_replay(
    model: ModelSpec, cluster: ClusterSpec, framework: FrameworkSpec, plan: Plan
) -> PlanReplay:
    """The replay of one plan.

    Raises:
        PlanError: more ranks or operations than are replayed, a rule of the schedule broken, or an
            efficiency that is not known.
    """
    name = "1f1b" if plan.schedule == "none" else plan.schedule
    graph = compiled_graph(name, plan.pp, plan.vpp, plan.num_micro_batches, gathers=True)
    schedule = graph.schedule
    batch = PlanBatch.from_plans([plan])
    table = CostTable(model, cluster, framework, batch)
    rows, columns = table.rows(batch), plan_columns(model.num_layers, batch)
    held = states(table, rows, batch, columns)
    stages = schedule_seconds(table, rows, batch, columns)
    tail = after_stages(table, rows, batch, columns, held, stages)
    forward, inputs, weight = _by_stage(chunk_seconds(table, rows, batch), schedule.num_stages)
    transfer, exposed = (float(a[0]) for a in transfer_seconds(table, rows, batch, columns))
    paid = exposed * transfer  # the transfer is 0 with one rank
    forward_ends, backward_ends = graph.endings
    costs = stage_costs(
        schedule,
        forward + paid,
        backward_s=inputs + weight + paid,
        input_s=inputs + paid,
        weight_s=weight,
        transfer_s=transfer,
        gather_s=float(tail.gather_s[0]) * _chosen(schedule, forward_ends.argmin(axis=1)),
        reduce_s=float(tail.dp_s[0] - tail.gather_s[0])
        * _chosen(schedule, backward_ends.argmax(axis=1)),
    )
    launches = framework.host.micro_batch_s * plan.num_micro_batches
    rest = float(tail.optimizer_s[0]) + launches + float(np.max(tail.offload_s))
    replayed = tail.steady_s + tail.p2p_s + tail.bubble_s + tail.dp_s
    return PlanReplay(
        graph=graph,
        costs=costs,
        activation_bytes=_activation_bytes(table, batch, schedule.num_stages),
        busy_s=float(replayed[0]) + rest,
        rest_s=rest,
        fixed_s=float(tail.overhead_s[0]) - launches,
        straggler_s=float(tail.straggler_s[0]),
        data_parallel_s=float(tail.dp_s[0]),
    )


def replayed_step_time(simulation: Simulation, index: int) -> float:
    """Seconds of one plan's step with the pipeline replayed instead of its closed form.

    Raises:
        PlanError: as :func:`plan_replay`.
    """
    plan = simulation.plans.plan(index)
    return plan_replay(
        simulation.model, simulation.cluster, simulation.framework, plan
    ).step_time_s()


def _by_stage(chunks: ChunkSeconds, num_stages: int) -> list[FloatArray]:
    """[S] seconds of each kind of operation."""
    if num_stages == 1:  # the only stage is counted as the first; its head as the last one's
        ends = zip(chunks.first, chunks.last, strict=True)
        return [np.array([float(first[0] + last[0])]) for first, last in ends]
    kinds = []
    for first, middle, last in zip(*chunks, strict=True):
        seconds = np.full(num_stages, float(middle[0]))
        seconds[0], seconds[-1] = float(first[0]), float(last[0])
        kinds.append(seconds)
    return kinds


def _chosen(schedule: Schedule, chunk: IntArray) -> FloatArray:
    """[S] 1 on the stages of one chunk of each rank: with which it starts, or ends."""
    share = np.zeros(schedule.num_stages)
    share[schedule.stage[np.arange(schedule.num_ranks), chunk]] = 1.0
    return share


def _activation_bytes(table: CostTable, plans: PlanBatch, num_stages: int) -> FloatArray:
    """[S]: the terms of :func:`parallelsim.memory.stage_memory`, of one micro-batch and stage."""
    saved = activations(table, table.rows(plans))
    layers = chunk_layers(table.model.num_layers, plans)
    kept = []
    for count in layers:
        again = recomputed_layers(count * plans.vpp, plans) / plans.vpp
        each = (count - again) * saved.saved_bytes + again * saved.checkpoint_bytes
        kept.append(float(each[0]))
    stages = np.full(num_stages, kept[1])
    stages[0], stages[-1] = kept[0], kept[2] if num_stages > 1 else kept[0]
    stages[0] += float(saved.embedding_bytes[0]) + float(np.max(saved.first_bytes))
    stages[-1] += float(np.max(saved.last_bytes))
    return stages
