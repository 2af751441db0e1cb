"""Saved tensors and transients of one pipeline stage: what the peak of ``memory`` is made of beside
the resident states (docs/equations.md M).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from parallelsim.costs import CostTable
from parallelsim.framework import MemoryFacts
from parallelsim.memory_states import States
from parallelsim.operators import FloatArray, IntArray
from parallelsim.plan_batch import PlanBatch
from parallelsim.stages import Columns


class Activations(NamedTuple):
    """Of one micro-batch; shape [P]."""

    saved_bytes: FloatArray
    """Of one layer."""
    restored_bytes: FloatArray | float
    """Of one layer, by selective recompute; where software keeps them."""
    largest_bytes: FloatArray
    """Of the layer that saves most: what is rebuilt and differentiated at once."""
    checkpoint_bytes: FloatArray
    """Of one recomputed layer."""
    embedding_bytes: FloatArray
    loss_bytes: FloatArray
    gathered_bytes: FloatArray
    asynchronous_bytes: FloatArray | float
    first_bytes: FloatArray | float
    """What leading layers save beyond as many others."""
    last_bytes: FloatArray | float
    """What the layers of multi-token prediction save."""


def activations(table: CostTable, rows: IntArray) -> Activations:
    """The activation columns of the cost table, looked up for each plan."""
    facts, saved = table.framework.memory, table.layer.saved_bytes.take(rows)
    is_alike = len(table.model.main_kinds) == 1
    first, last = (
        0.0 if more is None else more.saved_bytes.take(rows) for more in (table.first, table.last)
    )
    return Activations(
        saved,
        table.layer.restored_bytes.take(rows) if facts.selective_outputs_kept else 0.0,
        saved if is_alike else table.layer.largest_saved_bytes.take(rows),
        table.edge.checkpoint_bytes.take(rows),
        table.edge.embedding_bytes.take(rows),
        table.edge.loss_bytes.take(rows),
        table.edge.gathered_bytes.take(rows),
        table.edge.asynchronous_bytes.take(rows) if facts.asynchronous_hidden_bytes else 0.0,
        first,
        last,
    )


class Stage(NamedTuple):
    """One stage of each plan."""

    position: FloatArray
    """From 0."""
    layers: FloatArray
    """That a micro-batch passes; of two copies of the model, the mean of both stages."""
    recomputed: FloatArray
    edge_parameters: FloatArray | float
    edge_expert_parameters: FloatArray | float
    is_first: FloatArray | float
    is_last: FloatArray | float
    leading: FloatArray | float = 0.0
    """Share of the model's leading layers that a micro-batch passes; 0 where the model has none."""


def transients(
    facts: MemoryFacts, held: States, saved: Activations, stage: Stage
) -> tuple[FloatArray, FloatArray, FloatArray | None]:
    """(loss, R + B + G of the module's equation, what ZeRO 3 has gathered then): the larger of the
    loss and of the backward pass of one layer; the other is 0.
    """
    backward = (facts.backward_working_set + (stage.recomputed > 0)) * saved.largest_bytes
    if facts.selective_outputs_kept:
        backward = backward + saved.restored_bytes
    loss = saved.loss_bytes * stage.is_last
    at_loss, in_backward, gathered = held.gathered_at_loss_bytes, held.gathered_bytes, None
    if isinstance(in_backward, np.ndarray):
        loss_peaks = loss + at_loss > backward + in_backward
        gathered = np.where(loss_peaks, at_loss, in_backward)
    else:
        loss_peaks = loss > backward
    working = ~loss_peaks * backward + saved.gathered_bytes
    return loss_peaks * loss, working, gathered


def stage_buffers(
    plans: PlanBatch, columns: Columns, in_flight: FloatArray, stage: Stage, saved: Activations
) -> FloatArray:
    """What a stage's neighbours send, beside the saved inputs of layers: v x (m - F) of inputs and
    v x (m + F) of gradients and outputs, for m micro-batches of x bytes and v virtual stages.

    The first stage receives no inputs, the last one no gradients.
    """
    m, last = columns.num_micro_batches, columns.pp - 1
    inputs = np.where(stage.position > 0, m - in_flight, 0.0)
    outputs = np.where(stage.position < last, m + in_flight, 0.0)
    buffers: FloatArray = plans.vpp * saved.checkpoint_bytes * (inputs + outputs)
    return buffers


def on_the_gpu(
    kept: FloatArray, in_flight: FloatArray, stage: Stage, saved: Activations, plans: PlanBatch
) -> FloatArray:
    """Saved tensors less those in host memory, more two layers' on their way there and back:
    F (1 - alpha) A + 2 alpha A_layer, and never more than without offload.
    """
    share = plans.activation_offload_pct / 100
    moved = np.where(stage.recomputed > 0, saved.checkpoint_bytes, saved.saved_bytes)
    return np.minimum(in_flight * kept, in_flight * (1 - share) * kept + 2 * share * moved)
