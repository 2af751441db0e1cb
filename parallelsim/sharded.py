"""Sharded data parallelism (ZeRO 2 and 3, FSDP, HSDP): what its traffic adds to each layer.

Parameters of one layer are gathered while the layer before computes, gradients scattered while the
next one does. Symbols: f, b forward and backward seconds of one layer, AG gathering its parameters
and RS scattering its gradients inside a shard group, AR summing the scattered gradients over the
replicas of the group, kappa what traffic slows computation by (docs/equations.md T20).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from parallelsim.collectives import Network
from parallelsim.costs import CostTable
from parallelsim.exposure import DataParallel
from parallelsim.memory_states import GRADIENT_WIDTH, PARAMETER_WIDTH, States, gathered_width
from parallelsim.operators import FloatArray, IntArray
from parallelsim.plan_batch import PlanBatch, by_code
from parallelsim.stages import Columns, StageLayers


class Traffic(NamedTuple):
    """Seconds of one unit's collectives for one micro-batch, shape [P]."""

    gather_s: FloatArray
    reduce_s: FloatArray
    """Scatter inside the group, then the sum over its replicas."""


def unit_traffic(
    network: Network,
    plans: PlanBatch,
    ranks: FloatArray,
    stride: IntArray,
    gathered_bytes: FloatArray,
    scattered_bytes: FloatArray,
) -> Traffic:
    """AG(W_g, n_s), and RS(W_r, n_s) + AR(W_r / n_s, r) with r replicas of groups of n_s ranks.

    The ranks of a group are ``stride`` GPUs apart, its replicas ``stride`` n_s.
    """
    shards = ranks / plans.dp_replicate
    group = network.group(shards, stride)
    replicas = network.group(plans.dp_replicate, stride * shards)
    gather = np.where(plans.zero == 3, network.all_gather(gathered_bytes, group), 0.0)
    scatter = network.reduce_scatter(scattered_bytes, group)
    summed = network.all_reduce(scattered_bytes / shards, replicas)
    return Traffic(gather, scatter + summed)


def added_time(
    compute: FloatArray, hidden: FloatArray, shown: FloatArray, contention: float
) -> FloatArray:
    """max(c + kappa min(H, c), H) - c + S: what a layer of c seconds takes longer with overlapped
    traffic H and traffic S that waits.
    """
    slowed = compute + contention * np.minimum(hidden, compute)
    return np.maximum(slowed, hidden) - compute + shown


def sharded_exposed(
    table: CostTable, rows: IntArray, plans: PlanBatch, columns: Columns, held: States
) -> DataParallel:
    """Exposed seconds of a step under ZeRO 2 and 3, shape [P]; the gathers are ZeRO 3's alone.

    Layer   F = max(f + kappa min(AG, f), AG)
            B = max(b + kappa min(R, b), R), R = [resharded] AG + RS + AR
    Step    r ( L (F - f + B - b) + AG_1 + R_1 + AG_e + R_e )

    with b including recomputation, the gather of the first layer (1) and the scatter of the last
    exposed in each of r rounds, as are those of the embedding (e). Every micro-batch gathers and
    scatters (r = m); the stages of a pipeline gather when the first one passes them and scatter
    after the last (r = 1), one after another, so that L counts the layers of all stages. Neglects:
    layers of unequal size.
    """
    overlap = table.framework.overlap
    rounds = np.where(columns.is_single, columns.num_micro_batches, 1.0)
    layer, edge = _layer_traffic(table, plans, columns, held), _edge_traffic(table, rows, plans)
    forward = table.layer.forward_s[rows]
    backward = table.layer_total_s[rows] - forward
    again = np.where(plans.reshard_after_forward > 0, layer.gather_s, 0.0)
    gathers, reduces = plans.overlap_param_gather > 0, plans.overlap_grad_reduce > 0

    def added(compute: FloatArray, gather: FloatArray, reduce: FloatArray) -> FloatArray:
        hidden = np.where(gathers, gather, 0.0) + np.where(reduces, reduce, 0.0)
        return added_time(compute, hidden, gather + reduce - hidden, overlap.shard_contention)

    count = _of_all_stages(columns.layers, columns)
    recomputed = _of_all_stages(columns.recomputed, columns)
    none = np.zeros(len(plans))
    in_forward = count * added(forward, layer.gather_s, none)
    in_backward = (count - recomputed) * added(backward, again, layer.reduce_s)
    in_backward = in_backward + recomputed * added(backward + forward, again, layer.reduce_s)
    ends_gather = edge.gather_s + np.where(gathers, layer.gather_s, 0.0)
    ends_reduce = edge.reduce_s + np.where(reduces, layer.reduce_s, 0.0)
    return DataParallel(rounds * (in_backward + ends_reduce), rounds * (in_forward + ends_gather))


def _of_all_stages(layers: StageLayers, columns: Columns) -> FloatArray:
    """Layers of all stages together; of the first where there is no other."""
    others = layers.last + np.maximum(columns.pp - 2, 0.0) * layers.middle
    return layers.first + np.where(columns.is_single, 0.0, others)


def _layer_traffic(table: CostTable, plans: PlanBatch, columns: Columns, held: States) -> Traffic:
    """Of one layer, routed experts by themselves: other ranks hold copies of them."""
    width = gathered_width(plans)
    gradient = by_code(GRADIENT_WIDTH, plans.grad_dtype)

    def traffic(
        parameters: FloatArray, trained: FloatArray, ranks: FloatArray, stride: IntArray
    ) -> Traffic:
        moved = (width * parameters, gradient * trained)
        return unit_traffic(table.network, plans, ranks, stride, *moved)

    adapters = held.adapter_parameters
    trained = held.layer_parameters if adapters is None else adapters
    dense = traffic(held.layer_parameters, trained, columns.shards, plans.tp)
    if held.experts is None:
        return dense
    experts, stride = held.experts, plans.ep * plans.etp
    trained = experts.layer_parameters if adapters is None else 0.0 * adapters
    more = traffic(experts.layer_parameters, trained, experts.replicas, stride)
    return Traffic(dense.gather_s + more.gather_s, dense.reduce_s + more.reduce_s)


def _edge_traffic(table: CostTable, rows: IntArray, plans: PlanBatch) -> Traffic:
    """Of the embedding, and of the output matrix where it is the same."""
    parameters = table.edge.embedding_parameters[rows]
    gradient = by_code(GRADIENT_WIDTH, plans.grad_dtype)
    shards = (plans.dp * plans.cp).astype(np.float64)
    trained = 0.0 if table.model.lora else parameters
    wide = by_code(PARAMETER_WIDTH, plans.precision)
    moved = (wide * parameters, gradient * trained)
    return unit_traffic(table.network, plans, shards, plans.tp, *moved)
