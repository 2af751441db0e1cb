"""Peak memory of a pipeline stage, term by term (docs/equations.md M).

M_i = S_i + max( (1 + phi) D_i , T_i ) + C0
D_i = F_i (saved tensors of the stage) + F_i E_i + max( X_i , R_i + B_i ) + G

S states (parameters, gradients, optimizer), F micro-batches in flight, E embedding output, X loss,
R one recomputed layer, B working set of backward, G whole tensors of sequence parallelism, T
transient of the optimizer step, phi fragmentation, C0 constant. X and R + B each with what ZeRO 3
has gathered by then. The peak of a plan is that of its fullest stage.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from parallelsim.costs import SELECTIVE, CostTable
from parallelsim.framework import MemoryFacts
from parallelsim.memory_activations import (
    Activations,
    Stage,
    activations,
    on_the_gpu,
    stage_buffers,
    transients,
)
from parallelsim.memory_states import States, states, step_bytes
from parallelsim.operators import FloatArray, IntArray
from parallelsim.pipeline import in_flight_micro_batches
from parallelsim.plan import PLAN_FIELDS, code
from parallelsim.plan_batch import PlanBatch, largest, plus_scaled, scaled
from parallelsim.stages import (
    Columns,
    StageLayers,
    free_stages,
    leading_on_rank,
    plan_columns,
    ranks_at_leading_end,
)

CHIMERA = code("schedule", "chimera")
FREE_AT_ONCE = 256
"""Plans with layout ``free`` whose stages are computed together."""


@dataclass(frozen=True, slots=True, eq=False)
class MemoryBreakdown:
    """Bytes of one stage of each plan, float64 of shape [P]; the total is the sum of the fields."""

    parameters_bytes: FloatArray
    gradients_bytes: FloatArray
    optimizer_bytes: FloatArray
    """fp32 master weights and both moments."""
    activations_bytes: FloatArray
    """Saved tensors of all micro-batches in flight."""
    loss_bytes: FloatArray
    """Logits and cross-entropy where they are the larger transient, else 0."""
    working_bytes: FloatArray
    """Other transients: backward, recompute, gathered inputs and parameters, optimizer step."""
    fragmentation_bytes: FloatArray
    constant_bytes: FloatArray | float
    """The same on every rank."""

    @property
    def total_bytes(self) -> FloatArray:
        """Sum of the fields, shape [P]."""
        return (
            self.parameters_bytes
            + self.gradients_bytes
            + self.optimizer_bytes
            + self.activations_bytes
            + self.loss_bytes
            + self.working_bytes
            + self.fragmentation_bytes
            + self.constant_bytes
        )


def stage_memory(
    table: CostTable,
    plans: PlanBatch,
    columns: Columns,
    held: States,
    saved: Activations,
    stage: Stage,
    in_flight: FloatArray,
) -> MemoryBreakdown:
    """Peak bytes of one stage of each plan with so many micro-batches in flight, shape [P].

    Neglects: the embedding's share of in-flight memory beyond its output, buffers outside the
    allocator's (NCCL, DeepEP), which the driver counts.
    """
    facts = table.framework.memory
    layers = scaled(stage.layers, columns.ends.copies)
    kept = (stage.layers - stage.recomputed) * saved.saved_bytes
    kept = kept + stage.recomputed * saved.checkpoint_bytes
    kept = plus_scaled(kept, saved.embedding_bytes, stage.is_first)
    if table.first is not None or table.last is not None:
        at_ends = saved.first_bytes * stage.leading + saved.last_bytes * stage.is_last
        kept = kept + np.where(stage.recomputed > 0, 0.0, at_ends)
    if largest(plans.activation_offload_pct):
        kept = on_the_gpu(kept, in_flight, stage, saved, plans)
    else:
        kept = in_flight * kept
    loss, working, gathered = transients(facts, held, saved, stage)
    if facts.asynchronous_hidden_bytes:
        ahead = np.minimum(columns.num_micro_batches, 2)
        working = working + ahead * saved.asynchronous_bytes
    if facts.stage_buffers_kept:
        working = working + stage_buffers(plans, columns, in_flight, stage, saved)
    dynamic = kept + loss + working
    fragmentation = facts.fragmentation * dynamic
    resident, trained = _resident(held, stage, layers)
    if facts.optimizer_step_bytes_per_param or facts.optimizer_step_bytes_per_owned_param:
        step = step_bytes(facts, plans, columns) * trained
        working = working + np.maximum(step - (dynamic + fragmentation), 0.0)
    if gathered is not None:
        working = working + gathered
    return MemoryBreakdown(
        parameters_bytes=resident[0],
        gradients_bytes=resident[1],
        optimizer_bytes=resident[2],
        activations_bytes=kept,
        loss_bytes=loss,
        working_bytes=working,
        fragmentation_bytes=fragmentation,
        constant_bytes=_constant_bytes(facts, plans),
    )


def _constant_bytes(facts: MemoryFacts, plans: PlanBatch) -> FloatArray | float:
    """C0, and the pools of CUDA graphs where a plan captures some."""
    if not largest(plans.cuda_graphs):
        return facts.constant_bytes
    return np.asarray(facts.constant_bytes + facts.cuda_graph_bytes * plans.cuda_graphs)


def _resident(
    held: States, stage: Stage, layers: FloatArray
) -> tuple[tuple[FloatArray, FloatArray, FloatArray], FloatArray]:
    """(bytes of parameters, gradients and optimizer; parameters that are trained) of a stage with
    this many layers' weights.
    """
    parameters = layers * held.layer_parameters + stage.edge_parameters
    optimizer_bytes = held.optimizer_bytes * parameters
    if isinstance(held.edge_optimizer_bytes, np.ndarray):
        optimizer_bytes = optimizer_bytes + held.edge_optimizer_bytes * stage.edge_parameters
    resident = (
        held.parameter_bytes * parameters,
        held.gradient_bytes * parameters,
        optimizer_bytes,
    )
    if held.experts is not None:
        of_experts = layers * held.experts.layer_parameters + stage.edge_expert_parameters
        resident = (
            resident[0] + held.experts.parameter_bytes * of_experts,
            resident[1] + held.experts.gradient_bytes * of_experts,
            resident[2] + held.experts.optimizer_bytes * of_experts,
        )
        parameters = parameters + of_experts
    if held.adapter_parameters is not None:
        trained = layers * held.adapter_parameters
        resident = (resident[0], held.gradient_bytes * trained, held.optimizer_bytes * trained)
        return resident, trained
    return resident, parameters


def fullest_stage(
    table: CostTable, rows: IntArray, plans: PlanBatch, columns: Columns, held: States
) -> tuple[MemoryBreakdown, FloatArray, IntArray]:
    """(breakdown, total bytes, index) of the stage that needs most: the first, second, or last.

    In-flight micro-batches fall from stage to stage, so the second is the fullest of the middle
    ones; Hanayo's rise towards the last, Chimera's towards the middle. With layout ``free`` all
    stages are asked.
    """
    candidates = _candidates(table, rows, plans, columns, held)
    _, chosen = candidates[0]
    best, index = chosen.total_bytes, np.zeros(len(plans), np.int64)
    for stage, memory in candidates[1:]:
        total = memory.total_bytes
        fuller = total > best
        best = np.where(fuller, total, best)
        index = np.where(fuller, stage.astype(np.int64), index)
        chosen = MemoryBreakdown(
            **{
                f.name: np.where(fuller, getattr(memory, f.name), getattr(chosen, f.name))
                for f in fields(MemoryBreakdown)
            }
        )
    for free, fullest, terms, total in _free_peaks(table, plans):
        best[free], index[free] = total, fullest
        chosen = _with_terms(chosen, free, terms, len(plans))
    return chosen, best, index


def _with_terms(
    memory: MemoryBreakdown, plans: IntArray, terms: MemoryBreakdown, num_plans: int
) -> MemoryBreakdown:
    """The breakdown with the terms of some plans put in."""
    columns = {}
    for f in fields(MemoryBreakdown):
        column = np.array(np.broadcast_to(getattr(memory, f.name), num_plans), np.float64)
        column[plans] = getattr(terms, f.name)
        columns[f.name] = column
    return MemoryBreakdown(**columns)


def peak_memory(
    table: CostTable, rows: IntArray, plans: PlanBatch, columns: Columns, held: States
) -> FloatArray:
    """Bytes of the fullest stage, shape [P]: the number of :func:`fullest_stage`, nothing else."""
    candidates = _candidates(table, rows, plans, columns, held)
    peak = candidates[0][1].total_bytes
    for _, memory in candidates[1:]:
        peak = np.maximum(peak, memory.total_bytes)
    for free, _, _, total in _free_peaks(table, plans):
        peak[free] = total
    return peak


def _free_peaks(
    table: CostTable, plans: PlanBatch
) -> Iterator[tuple[IntArray, IntArray, MemoryBreakdown, FloatArray]]:
    """Of the plans with layout ``free``, some at a time: (positions, fullest stage, its memory and
    total bytes).
    """
    free = np.array([plan for plan, _ in free_stages(plans)], np.int64)
    for some in (free[at : at + FREE_AT_ONCE] for at in range(0, len(free), FREE_AT_ONCE)):
        chosen = plans.take(some)
        _, memory = each_stage(table, chosen)
        ends = np.cumsum(chosen.pp)
        of_plans = np.split(memory.total_bytes, ends[:-1])
        stage = np.array([int(np.argmax(total)) for total in of_plans])
        at = ends - chosen.pp + stage
        terms = {
            f.name: np.broadcast_to(getattr(memory, f.name), memory.total_bytes.shape)[at]
            for f in fields(MemoryBreakdown)
        }
        yield some, stage, MemoryBreakdown(**terms), memory.total_bytes[at]


def each_stage(table: CostTable, plans: PlanBatch) -> tuple[FloatArray, MemoryBreakdown]:
    """(layers of the weights that it holds, peak bytes) of every stage of the plans, one plan after
    the other; shape [sum of pp].
    """
    rows, columns = table.rows(plans), plan_columns(table.model.num_layers, plans)
    held, pp = states(table, rows, plans, columns), plans.pp
    stages = list(free_stages(plans))
    plan = np.repeat(np.arange(len(plans)), pp)
    index = (np.arange(len(plan)) - np.repeat(np.cumsum(pp) - pp, pp)).astype(np.float64)
    rows, plans, columns, held = (_repeated(x, plan) for x in (rows, plans, columns, held))
    is_first, is_last, ends = index == 0, index == columns.pp - 1, columns.ends

    def by_stage(values: StageLayers) -> FloatArray:
        return np.where(is_first, values.first, np.where(is_last, values.last, values.middle))

    def at_ends(first: FloatArray | float, last: FloatArray | float) -> FloatArray:
        return np.where(is_first, first, np.where(is_last, last, 0.0))

    layers, recomputed = by_stage(columns.layers), by_stage(columns.recomputed)
    edges, experts = at_ends(held.first_parameters, held.last_parameters), np.zeros(len(plan))
    if held.experts is not None:
        experts = at_ends(held.experts.first_parameters, held.experts.last_parameters)
    embedding = at_ends(ends.embedding_first, ends.embedding_last)
    for at, free in stages:
        layers[plan == at], recomputed[plan == at] = free.layers, free.recomputed
    head = at_ends(ends.holds_head_first, ends.holds_head_last)
    stage = Stage(index, layers, recomputed, edges, experts, embedding, head)
    stage = _with_leading(stage, table, rows, plans, columns)
    in_flight, saved = _in_flight(plans, columns, stage.position), activations(table, rows)
    memory = stage_memory(table, plans, columns, held, saved, stage, in_flight)
    return layers * ends.copies, memory


def _repeated(values: Any, index: IntArray) -> Any:
    """The values of each plan at these positions, however nested; numbers for all plans stay."""
    if isinstance(values, tuple):
        return type(values)(*(_repeated(value, index) for value in values))
    return values.take(index) if isinstance(values, np.ndarray | PlanBatch) else values


def _with_leading(
    stage: Stage, table: CostTable, rows: IntArray, plans: PlanBatch, columns: Columns
) -> Stage:
    """The stage with its share of the model's leading layers; the parameters of the first and the
    last stage have theirs already.
    """
    if table.first is None:
        return stage
    more = table.first
    share = (stage.layers > 0) * leading_on_rank(table.model, plans, stage.position)
    inside = share * ((stage.position > 0) & (stage.position < columns.pp - 1))
    return stage._replace(
        edge_parameters=stage.edge_parameters + inside * more.parameters[rows],
        edge_expert_parameters=stage.edge_expert_parameters + inside * more.expert_parameters[rows],
        leading=share / columns.ends.copies,
    )


def lowest_memory(table: CostTable, plans: PlanBatch) -> FloatArray:
    """Bytes that every layout, schedule and recompute depth of these plans exceeds, shape [P].

    Some stage holds at least L/p mean layers and one micro-batch: its states, and the cheaper of
    keeping all its tensors or recomputing all of them. Schedule, layout, vpp and recompute are not
    read.
    """
    columns, facts = plan_columns(table.model.num_layers, plans), table.framework.memory
    selective = PlanBatch.from_columns(
        len(plans),
        {name: getattr(plans, name) for name in PLAN_FIELDS} | {"recompute": SELECTIVE},
    )
    rows = table.rows(selective)
    held, saved = states(table, rows, plans, columns), activations(table, rows)
    layers = table.model.num_layers / columns.pp
    trained = held.gradient_bytes + held.optimizer_bytes
    per_parameter = held.parameter_bytes + (trained if held.adapter_parameters is None else 0.0)
    stays = 1 - plans.activation_offload_pct / 100
    keep = (stays * layers + facts.backward_working_set) * saved.saved_bytes
    again = stays * layers * saved.checkpoint_bytes
    again = again + (1 + facts.backward_working_set) * saved.saved_bytes
    dynamic = np.minimum(keep, again) + saved.gathered_bytes
    parameters = layers * held.layer_parameters
    if table.first is not None:
        parameters = parameters + table.first.parameters[rows] / columns.pp
        dynamic = np.maximum(dynamic + np.minimum(saved.first_bytes, 0.0) / columns.pp, 0.0)
    resident = per_parameter * parameters + held.gathered_bytes
    if held.experts is not None:
        experts = held.experts
        each = experts.parameter_bytes
        if held.adapter_parameters is None:
            each = each + experts.gradient_bytes + experts.optimizer_bytes
        of_experts = layers * experts.layer_parameters
        of_experts = of_experts + np.minimum(experts.first_parameters, 0.0) / columns.pp
        resident = resident + each * of_experts
    return resident + (1 + facts.fragmentation) * dynamic + _constant_bytes(facts, plans)


def _candidates(
    table: CostTable, rows: IntArray, plans: PlanBatch, columns: Columns, held: States
) -> list[tuple[FloatArray, MemoryBreakdown]]:
    """First, last and second stage, as far as any plan of the batch has them; where leading layers
    reach beyond the first two, also the last stage with some and the first one without.

    Stages that a plan lacks have no layers and no edge, so they never are its fullest.
    """
    saved = activations(table, rows)
    layers, again = columns.layers, columns.recomputed
    zeros, ends = np.zeros(len(plans)), columns.ends
    embedding, head = ends.embedding_first, ends.holds_head_first
    experts = held.experts
    of_experts: tuple[FloatArray | float, FloatArray | float] = (0.0, 0.0)
    if experts is not None:
        of_experts = experts.first_parameters, experts.last_parameters
    edges = (held.first_parameters, of_experts[0], embedding, head)
    stages = [Stage(zeros, layers.first, again.first, *edges)]
    if largest(plans.pp) > 1:
        last, embedding, head = columns.pp - 1, ends.embedding_last, ends.holds_head_last
        edges = (held.last_parameters, of_experts[1], embedding, head)
        stages.append(Stage(last, layers.last, again.last, *edges))
    if largest(plans.pp) > 2:
        second = zeros + 1
        if largest(plans.schedule) >= CHIMERA:
            in_the_middle = plans.schedule == CHIMERA
            second = np.where(in_the_middle, np.maximum(columns.pp // 2 - 1, 1), second)
        for between in (second, *_leading_ends(table, plans)):
            stages.append(Stage(between, layers.middle, again.middle, 0.0, 0.0, 0.0, 0.0))
    stages = [_with_leading(stage, table, rows, plans, columns) for stage in stages]
    in_flight = _in_flight(plans, columns, np.stack([stage.position for stage in stages]))
    return [
        (stage.position, stage_memory(table, plans, columns, held, saved, stage, count))
        for stage, count in zip(stages, in_flight, strict=True)
    ]


def _in_flight(plans: PlanBatch, columns: Columns, position: FloatArray) -> FloatArray:
    """Micro-batches in flight on the stages at these positions."""
    return in_flight_micro_batches(
        plans.schedule, columns.pp, columns.vpp, position, columns.num_micro_batches
    )


def _leading_ends(table: CostTable, plans: PlanBatch) -> tuple[FloatArray, ...]:
    """The middle ranks where leading layers end, if any plan has some beyond its first rank."""
    if table.first is None:
        return ()
    with_some, without = ranks_at_leading_end(table.model, plans)
    if not (without != 1).any():
        return ()
    last_but_one = np.maximum(plans.pp - 2, 1)
    return np.clip(with_some, 1, last_but_one), np.clip(without, 1, last_but_one)
