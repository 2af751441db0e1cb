"""Seconds of one micro-batch on each class of stages and on each chunk of the model."""

from __future__ import annotations

import numpy as np

from parallelsim.costs import CostTable
from parallelsim.operators import FloatArray, IntArray
from parallelsim.pipeline import INTERLEAVED, PLAIN, StageSeconds
from parallelsim.pipeline_paths import ChunkSeconds, Operations
from parallelsim.plan_batch import PlanBatch, largest, plus_scaled
from parallelsim.stages import (
    BOTH,
    LOSS,
    Columns,
    StageLayers,
    chunk_layers,
    leading_at_ends,
    leading_on_chunk,
    recomputed_layers,
)


def stage_seconds(
    table: CostTable, rows: IntArray, plans: PlanBatch, columns: Columns
) -> StageSeconds:
    """Seconds of one micro-batch on each stage class.

    tau_i = l_i t_layer + r_i t_forward + embedding on the first + head on the last + what its
    leading layers take beyond others (T12, T18). Neglects: clock throttling, jitter, leading layers
    of the middle stages, of which the slowest sets the pace.
    """
    layer_s, forward_s = table.layer_total_s.take(rows), table.layer.forward_s.take(rows)
    ends = columns.ends
    head, head_forward = head_seconds(table, rows)
    embedding, embedding_forward = embedding_seconds(table, rows)
    layers, again = columns.layers, columns.recomputed
    middle = np.ceil(layers.middle)  # where they are not equal, the fullest one sets the pace
    first = layers.first * layer_s + again.first * forward_s
    last = layers.last * layer_s + again.last * forward_s
    forward_first = layers.first * forward_s + embedding_forward
    forward_last = layers.last * forward_s + head_forward * ends.head_last
    if table.first is not None:
        on_first, on_last = leading_at_ends(table.model, plans)
        both, forward, _ = leading_seconds(table, rows)
        each = 1 / ends.copies
        first, last = first + on_first * each * both, last + on_last * each * both
        forward_first = forward_first + on_first * each * forward
        forward_last = forward_last + on_last * each * forward
    return StageSeconds(
        first=first + plus_scaled(head * ends.head_first, embedding, ends.embedding_first),
        middle=middle * layer_s + again.middle * forward_s,
        last=last + plus_scaled(head * ends.head_last, embedding, ends.embedding_last),
        forward_first=forward_first + head_forward * ends.head_first,
        forward_middle=middle * forward_s,
        forward_last=forward_last,
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
    layer = table.layer
    forward, weight = layer.forward_s.take(rows), layer.weight_s.take(rows)
    rest = table.layer_total_s.take(rows) - forward - weight

    def stage(count: FloatArray, edge_s: EdgeParts) -> Operations:
        again = recomputed_layers(count * plans.vpp, plans) / plans.vpp
        return Operations(
            count * forward + edge_s[0],
            count * rest + again * forward + edge_s[1],
            count * weight + edge_s[2],
        )

    def edge(total: FloatArray, forward: FloatArray, weight: FloatArray | float) -> EdgeParts:
        return forward, total - forward - weight, weight

    head_weight_s = table.edge.head_weight_s.take(rows)
    if table.last is not None:
        head_weight_s = head_weight_s + table.last.weight_s.take(rows)
    return ChunkSeconds(
        stage(layers.first, edge(*embedding_seconds(table, rows), 0.0)),
        stage(layers.middle, (0.0, 0.0, 0.0)),
        stage(layers.last, edge(*head_seconds(table, rows), head_weight_s)),
    )


EdgeParts = tuple[FloatArray | float, FloatArray | float, FloatArray | float]


def embedding_seconds(table: CostTable, rows: IntArray) -> tuple[FloatArray, FloatArray]:
    """(both passes, forward) of the embedding."""
    return table.edge.embedding_s.take(rows), table.edge.embedding_forward_s.take(rows)


def leading_seconds(
    table: CostTable, rows: IntArray
) -> tuple[FloatArray | float, FloatArray | float, FloatArray | float]:
    """(both passes, forward, weight gradients) of what the model's leading layers take beyond as
    many others.
    """
    if table.first is None:
        return 0.0, 0.0, 0.0
    more = table.first
    return table.first_total_s.take(rows), more.forward_s.take(rows), more.weight_s.take(rows)


def head_seconds(table: CostTable, rows: IntArray) -> tuple[FloatArray, FloatArray]:
    """(both passes, forward) of what the last stage has beyond its layers: the head, and the layers
    of multi-token prediction.
    """
    edge, more = table.edge, table.last
    both, forward = edge.head_s.take(rows), edge.head_forward_s.take(rows)
    if more is None:
        return both, forward
    return both + table.last_total_s.take(rows), forward + more.forward_s.take(rows)


def schedule_seconds(
    table: CostTable, rows: IntArray, plans: PlanBatch, columns: Columns
) -> StageSeconds:
    """The seconds that the block's schedules need."""
    stages = stage_seconds(table, rows, plans, columns)
    if largest(plans.schedule) >= PLAIN:
        chunks = chunk_seconds(table, rows, plans)
        stages = stages._replace(chunks=_with_leading(chunks, table, rows, plans))
    two_ranks = np.flatnonzero((plans.schedule == INTERLEAVED) & (plans.pp == 2))
    if len(two_ranks):
        stages = _with_chunks(stages, table, rows, plans, columns, two_ranks)
    return stages


def _with_leading(
    chunks: ChunkSeconds, table: CostTable, rows: IntArray, plans: PlanBatch
) -> ChunkSeconds:
    """The chunks with the leading layers that the first and the last one hold."""
    if table.first is None:
        return chunks
    both, forward, weight = leading_seconds(table, rows)
    more = (forward, both - forward - weight, weight)
    last = (plans.pp * plans.vpp).astype(np.float64) - 1
    on_first = leading_on_chunk(table.model, plans, np.zeros(len(plans)))
    on_last = np.where(last > 0, leading_on_chunk(table.model, plans, last), 0.0)

    def plus(stage: Operations, share: FloatArray) -> Operations:
        return Operations(*(s + share * x for s, x in zip(stage, more, strict=True)))

    return chunks._replace(first=plus(chunks.first, on_first), last=plus(chunks.last, on_last))


def _with_chunks(
    stages: StageSeconds,
    table: CostTable,
    rows: IntArray,
    plans: PlanBatch,
    columns: Columns,
    index: IntArray,
) -> StageSeconds:
    """The stages with the middle chunks of these interleaved plans on two ranks.

    A chunk of the last rank without its head: the layout's layers, recomputed as that rank's are.
    """
    layout, vpp, rows = plans.layout[index], columns.vpp[index], rows[index]
    last, again = columns.layers.last[index], columns.recomputed.last[index]
    layers = np.ceil((last + ((layout == LOSS) | (layout == BOTH))) / vpp)
    again = np.where(again >= last, layers, again / vpp)
    forward_s = table.layer.forward_s.take(rows)
    chunk, forward_chunk = np.zeros((2, len(plans)))
    chunk[index] = layers * table.layer_total_s.take(rows) + again * forward_s
    forward_chunk[index] = layers * forward_s
    return stages._replace(chunk=chunk, forward_chunk=forward_chunk)
