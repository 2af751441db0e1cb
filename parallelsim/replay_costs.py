"""What the stages of replayed plans cost: seconds of each kind of operation, and bytes saved."""

from __future__ import annotations

import numpy as np

from parallelsim.costs import CostTable
from parallelsim.memory_activations import activations
from parallelsim.operators import FloatArray, IntArray
from parallelsim.plan_batch import PlanBatch
from parallelsim.stage_seconds import chunk_seconds, leading_seconds
from parallelsim.stages import (
    FIRST_LAST,
    StageLayers,
    chunk_layers,
    free_stages,
    leading_shares,
    recomputed_layers,
    stage_layers,
)
from parallelsim.timeline import Schedule


def _layers(num_layers: int, plans: PlanBatch, num_stages: int) -> FloatArray:
    """[P, S]: layers of each stage of the model."""
    classes = chunk_layers(num_layers, plans)
    layers = np.repeat(np.ceil(classes.middle)[:, None], num_stages, axis=1)
    layers[:, -1] = classes.last
    layers[:, 0] = classes.first
    by_rank = np.flatnonzero(plans.layout == FIRST_LAST)
    if by_rank.size and num_stages > 1:  # all chunks of the first and the last rank are uneven
        some = plans.take(by_rank)
        pp, ranks = int(some.pp[0]), stage_layers(num_layers, some)
        each = np.repeat(ranks.middle[:, None], pp, axis=1)
        each[:, 0], each[:, -1] = ranks.first, ranks.last
        layers[by_rank] = np.tile(each, num_stages // pp) / some.vpp[:, None]
    for index, stages in free_stages(plans):
        layers[index] = stages.chunks
    return layers


def stage_kinds(
    table: CostTable, rows: IntArray, plans: PlanBatch, num_stages: int
) -> list[FloatArray]:
    """[P, S] seconds of each kind of operation."""
    layers = _layers(table.model.num_layers, plans, num_stages)
    plan_of = np.repeat(np.arange(len(plans)), num_stages)
    flat = layers.ravel()
    one_class = StageLayers(flat, flat, flat)
    chunks = chunk_seconds(table, rows[plan_of], plans.take(plan_of), one_class)
    kinds = []
    for first, middle, last in zip(*chunks, strict=True):
        seconds, at_first, at_last = (a.reshape(layers.shape) for a in (middle, first, last))
        if num_stages == 1:  # holds both ends
            kinds.append(at_first + (at_last - seconds))
            continue
        seconds[:, 0], seconds[:, -1] = at_first[:, 0], at_last[:, -1]
        kinds.append(seconds)
    if table.first is not None:
        shares = leading_shares(table.model.num_leading_layers, layers)
        both, forward, weight = leading_seconds(table, rows)
        for seconds, more in zip(kinds, (forward, both - forward - weight, weight), strict=True):
            seconds += shares * np.asarray(more)[:, None]
    return kinds


def starts_with(schedule: Schedule, chunk: IntArray) -> FloatArray:
    """[S] 1 on the stages of one chunk of each rank: with which it starts, or ends."""
    share = np.zeros(schedule.num_stages)
    share[schedule.stage[np.arange(schedule.num_ranks), chunk]] = 1.0
    return share


def activation_bytes(
    table: CostTable, rows: IntArray, plans: PlanBatch, num_stages: int
) -> FloatArray:
    """[P, S]: the terms of :func:`parallelsim.memory.stage_memory`, of one micro-batch."""
    saved = activations(table, rows)
    layers = _layers(table.model.num_layers, plans, num_stages)
    of_chunk = plans.take(np.repeat(np.arange(len(plans)), num_stages))
    again = recomputed_layers(layers.ravel() * of_chunk.vpp, of_chunk) / of_chunk.vpp
    again = again.reshape(layers.shape)
    kept = (layers - again) * saved.saved_bytes[:, None] + again * saved.checkpoint_bytes[:, None]
    leading, last = leading_shares(table.model.num_leading_layers, layers), np.zeros_like(layers)
    last[:, -1] = 1.0
    first_bytes, last_bytes = (
        np.broadcast_to(more, len(plans))[:, None] for more in (saved.first_bytes, saved.last_bytes)
    )
    kept += np.where(again > 0, 0.0, first_bytes * leading + last_bytes * last)
    kept[:, 0] += saved.embedding_bytes
    return kept
