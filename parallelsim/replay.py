"""Plans on the exact engine: what their stages cost, and the step time that the replay gives.

Forward, input gradient and weight gradient come from the same table as the step's breakdown
(:func:`parallelsim.stage_seconds.chunk_seconds`). A transfer takes its whole time between ranks,
and its exposed share from the computation of both; of data-parallel communication the part that
the step pays for is replayed, the gathers before the first forward and the reductions after the
last backward of each rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import NamedTuple

import numpy as np

from parallelsim.cluster import ClusterSpec
from parallelsim.costs import CostTable
from parallelsim.errors import PlanError
from parallelsim.framework import FrameworkSpec
from parallelsim.memory_states import states
from parallelsim.model import ModelSpec
from parallelsim.operators import FloatArray, IntArray
from parallelsim.plan import UNSYNCHRONIZED, Plan, code
from parallelsim.plan_batch import PlanBatch
from parallelsim.replay_costs import activation_bytes, stage_kinds, starts_with
from parallelsim.simulate import RATES, Simulation
from parallelsim.stage_seconds import schedule_seconds
from parallelsim.stages import plan_columns
from parallelsim.step import StepBreakdown, StepTail, after_stages, transfer_seconds
from parallelsim.timeline import (
    Graph,
    Replay,
    Schedule,
    StageCosts,
    compiled_graph,
    replay,
    stage_costs,
    steady_step_time,
    step_time,
)

LAYOUT_PLACES = {"embedding": 1, "loss": 1, "embedding-loss": 2, "free": 2}
"""Chunks that embedding and loss may fill alone."""
MOST_OPERATIONS = 200_000
"""Of a schedule that is replayed whole: about half a second. Of larger ones :func:`replayed` runs
as many micro-batches as go."""

FEWEST_TURNS = 4
"""Micro-batches a rank that a shortened schedule keeps: fill, drain and a steady part."""


ROUNDING = 1e-9
"""Of the time: what rounding may take off a bound."""


class PlanReplay(NamedTuple):
    """Plans of one schedule with their costs, ready to be replayed; arrays of shape [P]."""

    graph: Graph
    costs: StageCosts
    activation_bytes: FloatArray
    """[P, S]: saved by one micro-batch on each stage of the model, in the order of the model."""
    tail: StepTail
    """The step by the closed form."""
    launches_s: float
    """Of all micro-batches: the part of the overhead that stragglers stretch."""

    @property
    def schedule(self) -> Schedule:
        """The operation lists."""
        return self.graph.schedule

    def run(self) -> Replay:
        """Start and end of every operation."""
        return replay(self.graph, self.costs)

    def pipeline_s(self) -> FloatArray:
        """Seconds of compute, bubble, transfers and data-parallel communication: the makespan.

        Without a flush or barrier (PipeDream-2BW, ZB-H2) those of a step in the long run.
        """
        makespan = schedule_time(self.graph, self.costs)
        return makespan + self.tail.dp_s if _overlaps_steps(self.schedule) else makespan

    def straggler_s(self, pipeline_s: FloatArray) -> FloatArray:
        """What stragglers add: the closed form's share of all that they stretch."""
        return _straggler_s(self.tail, self.launches_s, pipeline_s)

    def step_times_s(self) -> FloatArray:
        """Seconds of the step: the replay's makespan and the rest of the breakdown, [P]."""
        return _step_times_s(self.tail, self.launches_s, self.pipeline_s())

    def step_time_s(self) -> float:
        """The same of a single plan."""
        return float(self.step_times_s()[0])


def _straggler_s(tail: StepTail, launches_s: float, pipeline_s: FloatArray) -> FloatArray:
    rest = tail.optimizer_s + tail.offload_s + launches_s
    busy = tail.steady_s + tail.p2p_s + tail.bubble_s + tail.dp_s + rest
    return tail.straggler_s / busy * (pipeline_s + rest)


def _step_times_s(tail: StepTail, launches_s: float, pipeline_s: FloatArray) -> FloatArray:
    stretched = pipeline_s + tail.optimizer_s + tail.offload_s
    return stretched + _straggler_s(tail, launches_s, pipeline_s) + tail.overhead_s


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
        from parallelsim.timeline import bubbles

        found = bubbles(replay(graph, costs))
        return np.asarray((found.busy_s + found.inner_idle_s).max(axis=0))
    return step_time(graph, costs)


def plan_replay(
    model: ModelSpec,
    cluster: ClusterSpec,
    framework: FrameworkSpec,
    plan: Plan,
    left_out: int = 0,
) -> PlanReplay:
    """The replay of one plan, without so many of its last micro-batches.

    Raises:
        PlanError: more ranks or operations than are replayed, a rule of the schedule broken, fewer
            layers than chunks, or an efficiency that is not known.
    """
    batch, graph = PlanBatch.from_plans([plan]), plan_graph(plan, left_out)
    places = model.num_layers + LAYOUT_PLACES.get(plan.layout, 0)
    if places < plan.pp * plan.vpp:
        raise PlanError(
            f"{model.num_layers} layers are fewer than pp={plan.pp} x vpp={plan.vpp} = "
            f"{plan.pp * plan.vpp} chunks; use fewer, so that each holds a layer"
        )
    return batch_replay(CostTable(model, cluster, framework, batch), batch, graph)


def batch_replay(table: CostTable, plans: PlanBatch, graph: Graph | None = None) -> PlanReplay:
    """The replay of plans of equal schedule, pp, vpp and number of micro-batches.

    Raises:
        PlanError: as :func:`plan_replay`.
    """
    graph = graph or plan_graph(plans.plan(0))
    schedule = graph.schedule
    rows = table.rows(plans)
    tail, transfer, paid = _closed_form(table, rows, plans)
    forward, inputs, weight = stage_kinds(table, rows, plans, schedule.num_stages)
    forward_ends, backward_ends = graph.endings
    gather, reduce = tail.gather_s[:, None], (tail.dp_s - tail.gather_s)[:, None]
    costs = stage_costs(
        schedule,
        forward + paid,
        backward_s=inputs + weight + paid,
        input_s=inputs + paid,
        weight_s=weight,
        transfer_s=transfer[:, None],
        gather_s=gather * starts_with(schedule, forward_ends.argmin(axis=1)),
        reduce_s=reduce * starts_with(schedule, backward_ends.argmax(axis=1)),
    )
    return PlanReplay(
        graph=graph,
        costs=costs,
        activation_bytes=activation_bytes(table, rows, plans, schedule.num_stages),
        tail=tail,
        launches_s=table.framework.host.micro_batch_s * plans.plan(0).num_micro_batches,
    )


def _closed_form(
    table: CostTable, rows: IntArray, plans: PlanBatch
) -> tuple[StepTail, FloatArray, FloatArray]:
    """(step by the closed form, seconds of a transfer [P], and its exposed share [P, 1])."""
    columns = plan_columns(table.model.num_layers, plans)
    held = states(table, rows, plans, columns)
    stages = schedule_seconds(table, rows, plans, columns)
    tail = after_stages(table, rows, plans, columns, held, stages)
    transfer, exposed = transfer_seconds(table, rows, plans, columns)
    transfer = np.broadcast_to(transfer, len(plans))
    return tail, transfer, (exposed * transfer)[:, None]  # the transfer is 0 with one rank


def least_replays_s(table: CostTable, plans: PlanBatch) -> FloatArray:
    """Seconds that no replayed step of these plans is below, [P].

    For plans that flush, deal their chunks round the ranks, and have equal pp, vpp and number of
    micro-batches m. A rank r starts when a micro-batch has passed the first chunks of the ranks
    before it, runs all its chunks m times, and the same first chunks run backwards after it:

    T >= gather + sum_{i<r} ( F_i + B_i + 2 c ) + m sum_{chunks of r} ( F + B ) + reduce

    F, B the seconds of a chunk, c of a transfer. Schedules of more than ``MOST_OPERATIONS``
    have none: 0.
    """
    if num_operations(plans)[0] > MOST_OPERATIONS:
        return np.zeros(len(plans))
    rows, pp, vpp = table.rows(plans), int(plans.pp[0]), int(plans.vpp[0])
    tail, transfer, paid = _closed_form(table, rows, plans)
    kinds = stage_kinds(table, rows, plans, pp * vpp)
    chunk = (kinds[0] + kinds[1] + kinds[2] + 2 * paid).reshape(-1, vpp, pp)
    hop = chunk[:, 0] + 2 * transfer[:, None]
    before = np.cumsum(hop, axis=1) - hop
    num_micro_batches = _schedule_key(plans)[3][:, None]
    pipeline = (before + num_micro_batches * chunk.sum(axis=1)).max(axis=1) + tail.dp_s
    launches = table.framework.host.micro_batch_s * num_micro_batches[0, 0]
    return _step_times_s(tail, float(launches), pipeline) * (1 - ROUNDING)


def plan_graph(plan: Plan, left_out: int = 0) -> Graph:
    """The operations of a plan's schedule, without the last micro-batches.

    Raises:
        PlanError: as :func:`plan_replay`.
    """
    name = "1f1b" if plan.schedule == "none" else plan.schedule
    return compiled_graph(name, plan.pp, plan.vpp, plan.num_micro_batches - left_out, gathers=True)


def _kept_graph(graphs: dict[tuple[int, ...], Graph], plan: Plan, left_out: int) -> Graph:
    size = (plan.pp, plan.vpp, plan.num_micro_batches - left_out)
    key = (code("schedule", plan.schedule), *size)
    if key not in graphs:
        graphs[key] = plan_graph(plan, left_out)
    return graphs[key]


def _left_out(plans: PlanBatch) -> int:
    """Micro-batches beyond ``MOST_OPERATIONS``, a multiple of p: a schedule's pattern stays whole.

    Plans of one schedule.
    """
    operations, plan = float(num_operations(plans)[0]), plans.plan(0)
    if operations <= MOST_OPERATIONS:
        return 0
    kept = int(plan.num_micro_batches * MOST_OPERATIONS / operations)
    return -(-(plan.num_micro_batches - kept) // plan.pp) * plan.pp


def replayed(
    simulation: Simulation,
    table: CostTable | None = None,
    graphs: dict[tuple[int, ...], Graph] | None = None,
) -> Simulation:
    """The simulation with the pipeline of every plan replayed instead of its closed form.

    The bubble holds the difference, so that the total stays the sum of its terms; where the replay
    hides transfers that the closed form counts, the transfers are less. Stragglers stretch what
    there is. Of schedules with more than ``MOST_OPERATIONS`` the first micro-batches are replayed,
    and the rest take the pace of the last p of them. Left as they are: plans that break a rule,
    that have no pipeline (the closed form is exact), or where 4 p micro-batches are too many.

    Args:
        simulation: plans of any kind.
        table: costs that cover the plans' shapes, from an earlier call on the same inputs.
        graphs: compiled schedules of earlier calls; new ones are added.
    """
    graphs = {} if graphs is None else graphs
    plans = simulation.plans
    table = table or CostTable(simulation.model, simulation.cluster, simulation.framework, plans)
    time = {f.name: getattr(simulation.time, f.name).copy() for f in fields(StepBreakdown)}
    done = np.zeros(len(plans), np.bool_)
    usable = simulation.obeys_rules & np.isfinite(simulation.step_time_s)
    for index in same_schedules(plans, np.flatnonzero(usable)):
        some = plans.take(index)
        if some.pp[0] == 1:
            done[index] = True
            continue
        plan, left_out = some.plan(0), _left_out(some)
        if left_out and plan.num_micro_batches - left_out < FEWEST_TURNS * plan.pp:
            continue
        planned = batch_replay(table, some, _kept_graph(graphs, plan, left_out))
        pipeline, tail = planned.pipeline_s(), planned.tail
        if left_out:
            shorter = _kept_graph(graphs, plan, left_out + plan.pp)
            turn = pipeline - batch_replay(table, some, shorter).pipeline_s()
            pipeline = pipeline + left_out / plan.pp * turn
        idle = pipeline - tail.steady_s - tail.dp_s
        p2p = np.minimum(tail.p2p_s, np.maximum(idle, 0.0))
        time["p2p_exposed_s"][index] = p2p
        time["bubble_s"][index] = idle - p2p
        time["straggler_s"][index] = planned.straggler_s(pipeline)
        done[index] = True
    breakdown = StepBreakdown(**time)
    step = breakdown.total_s
    faster = np.divide(simulation.step_time_s, step, out=np.ones(len(plans)), where=done)
    rates = {
        name: getattr(simulation, name) * faster
        for name in RATES
        if not name.startswith("step_time")
    }
    return replace(simulation, time=breakdown, step_time_s=step, replayed=done, **rates)


def same_schedules(plans: PlanBatch, chosen: IntArray) -> Iterator[IntArray]:
    """Positions of plans with equal schedule, pp, vpp and number of micro-batches, together."""
    key = np.stack(_schedule_key(plans))[:, chosen]
    order = np.lexsort(key)
    changes = (np.diff(key[:, order], axis=1) != 0).any(axis=0)
    yield from (part for part in np.split(chosen[order], np.flatnonzero(changes) + 1) if part.size)


def _schedule_key(plans: PlanBatch) -> list[IntArray]:
    samples = np.maximum(plans.micro_batch_size * plans.dp, 1)
    return [plans.schedule, plans.pp, plans.vpp, plans.global_batch_size // samples]


def num_operations(plans: PlanBatch) -> FloatArray:
    """Forwards and backwards of one step over all ranks and chunks, shape [P]; with split
    backwards half as many again.
    """
    _, pp, vpp, micro_batches = (column.astype(np.float64) for column in _schedule_key(plans))
    return 2 * pp * vpp * micro_batches


def replayed_step_time(simulation: Simulation, index: int) -> float:
    """Seconds of one plan's step with the pipeline replayed instead of its closed form.

    Raises:
        PlanError: as :func:`plan_replay`.
    """
    plan = simulation.plans.plan(index)
    return plan_replay(
        simulation.model, simulation.cluster, simulation.framework, plan
    ).step_time_s()
