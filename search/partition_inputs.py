"""The partition problem of a plan: layers and edges by the simulator's costs and memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from parallelsim.search.partition_problem import (
    EdgeItem,
    FloatArray,
    LayerItems,
    PartitionProblem,
)

from parallelsim.cluster import ClusterSpec
from parallelsim.costs import CostTable
from parallelsim.framework import FrameworkSpec
from parallelsim.layers import Block, Layer
from parallelsim.memory_activations import activations
from parallelsim.memory_states import States, states, step_bytes
from parallelsim.model import ModelSpec
from parallelsim.plan import Plan
from parallelsim.plan_batch import PlanBatch
from parallelsim.simulate import DEFAULT_MEMORY_LIMIT
from parallelsim.stage_seconds import head_seconds
from parallelsim.stages import plan_columns


def partition_problem(
    model: ModelSpec,
    cluster: ClusterSpec,
    framework: FrameworkSpec,
    plan: Plan,
    memory_limit: float = DEFAULT_MEMORY_LIMIT,
    tables: Mapping[Layer, CostTable] | None = None,
) -> PartitionProblem:
    """What :func:`~parallelsim.search.partition.partition` needs to cut the layers of this plan.

    The plan's own layout and full recompute are not read: they are what is sought. Stages that the
    result describes cost what :func:`parallelsim.simulate.simulate` says of them: the terms of
    :mod:`parallelsim.memory`, fragmentation included, rearranged into layers and edges.

    ``tables``: :func:`layer_tables` of plans among which this one is, from an earlier call.
    """
    plan = replace(plan, layout="even", first_stage_layers=0, last_stage_layers=0)
    if plan.recompute == "full":
        plan = replace(plan, recompute="none", recompute_num_layers=0)
    batch = PlanBatch.from_plans([plan])
    tables = tables or layer_tables(model, cluster, framework, batch)
    kinds = {layer: _one_kind(table, batch) for layer, table in tables.items()}
    layers = LayerItems(*np.array([kinds[layer] for layer in model.layers]).T)
    table = tables[model.layers[-1]]
    rows, columns = table.rows(batch), plan_columns(model.num_layers, batch)
    held, saved = states(table, rows, batch, columns), activations(table, rows)
    facts, edge = framework.memory, table.edge
    spread = 1 + facts.fragmentation
    largest = float(layers.saved_bytes.max())
    ahead = min(int(columns.num_micro_batches[0]), 2)
    gathered = spread * float(saved.gathered_bytes[0] + ahead * np.max(saved.asynchronous_bytes))
    first, last = float(held.first_parameters[0]), float(held.last_parameters[0])
    per_parameter, step = _state_bytes(held), float(step_bytes(facts, batch, columns)[0])
    embedding_forward = float(edge.embedding_forward_s[rows[0]])
    head_s, head_forward = (float(seconds[0]) for seconds in head_seconds(table, rows))
    return PartitionProblem(
        layers=layers,
        pp=plan.pp,
        vpp=plan.vpp,
        num_micro_batches=int(columns.num_micro_batches[0]),
        schedule=plan.schedule,
        first=EdgeItem(
            forward_s=embedding_forward,
            backward_s=float(edge.embedding_s[rows[0]]) - embedding_forward,
            state_bytes=per_parameter * first,
            saved_bytes=spread * float(saved.embedding_bytes[0]),
            step_bytes=step * first,
        ),
        last=EdgeItem(
            forward_s=head_forward,
            backward_s=head_s - head_forward,
            state_bytes=per_parameter * last + _expert_bytes(held, "last_parameters"),
            saved_bytes=spread * float(np.max(saved.last_bytes)),
            transient_bytes=spread * float(saved.loss_bytes[0]) + gathered,
            step_bytes=step * last,
        ),
        capacity_bytes=memory_limit * cluster.accelerator.memory_bytes,
        constant_bytes=facts.constant_bytes + float(np.max(held.gathered_bytes)),
        transient_bytes=facts.backward_working_set * largest + gathered,
        recompute_transient_bytes=(facts.backward_working_set + 1) * largest + gathered,
    )


def layer_tables(
    model: ModelSpec, cluster: ClusterSpec, framework: FrameworkSpec, plans: PlanBatch
) -> dict[Layer, CostTable]:
    """For each kind of layer the costs of the model with one such layer.

    ``plans`` recompute nothing in full: see :func:`partition_problem`.
    """
    return {
        layer: CostTable(replace(model, blocks=(Block(1, (layer,)),)), cluster, framework, plans)
        for layer, _ in model.layer_kinds
    }


def _one_kind(table: CostTable, batch: PlanBatch) -> FloatArray:
    """The columns of :class:`LayerItems` for the one layer of the table's model."""
    facts = table.framework.memory
    columns = plan_columns(1, batch)
    rows = table.rows(batch)
    held, row = states(table, rows, batch, columns), int(rows[0])
    forward, parameters = float(table.layer.forward_s[row]), float(table.layer.parameters[row])
    spread = 1 + facts.fragmentation
    return np.array(
        [
            forward,
            float(table.layer_total_s[row]) - forward,
            forward,
            _state_bytes(held) * parameters + _expert_bytes(held, "layer_parameters"),
            spread * float(table.layer.saved_bytes[row]),
            spread * float(table.edge.checkpoint_bytes[row]),
            float(step_bytes(facts, batch, columns)[0]) * parameters,
        ]
    )


def _state_bytes(held: States) -> float:
    """Resident bytes of a parameter with its gradient and optimizer."""
    parts = (held.parameter_bytes, held.gradient_bytes, held.optimizer_bytes)
    return sum(float(np.max(part)) for part in parts)


def _expert_bytes(held: States, name: str) -> float:
    """Resident bytes of routed experts: those of a layer, or of an end of the model."""
    experts = held.experts
    if experts is None:
        return 0.0
    each = experts.parameter_bytes + experts.gradient_bytes + experts.optimizer_bytes
    return float(np.max(each * getattr(experts, name)))
