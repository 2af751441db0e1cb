"""Layers cut into pipeline stages. Stages come in three classes: first, middle and last."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from parallelsim.operators import FloatArray
from parallelsim.plan import PlanBatch, code

EMBEDDING, LOSS, BOTH, FIRST_LAST = (
    code("layout", name) for name in ("embedding", "loss", "embedding-loss", "first-last")
)
FULL = code("recompute", "full")


class StageLayers(NamedTuple):
    """Of each stage class, float64 of shape [P]; middle is 0 with pp <= 2, last with pp = 1."""

    first: FloatArray
    middle: FloatArray
    last: FloatArray


def stage_layers(num_layers: int, plans: PlanBatch) -> StageLayers:
    """Layers of the first, each middle, and the last stage.

    The embedding and the loss take one layer's place each where the layout counts them. A layout
    that does not divide gives fractions: the rules refuse such plans, the formulas stay defined.
    """
    pp = plans.pp.astype(np.float64)
    counts_embedding = (plans.layout == EMBEDDING) | (plans.layout == BOTH)
    counts_loss = (plans.layout == LOSS) | (plans.layout == BOTH)
    slots = (num_layers + counts_embedding + counts_loss) / pp
    first, middle, last = slots - counts_embedding, slots, slots - counts_loss
    uneven = plans.layout == FIRST_LAST
    if uneven.any():
        rest = num_layers - plans.first_stage_layers - plans.last_stage_layers
        first = np.where(uneven, plans.first_stage_layers, first)
        last = np.where(uneven, plans.last_stage_layers, last)
        middle = np.where(uneven, rest / np.maximum(pp - 2, 1.0), middle)
    return StageLayers(
        np.where(plans.pp > 1, first, float(num_layers)),
        np.where(plans.pp > 2, middle, 0.0),
        np.where(plans.pp > 1, last, 0.0),
    )


def recomputed_layers(layers: FloatArray, plans: PlanBatch) -> FloatArray:
    """Layers of a stage that full recompute covers: all, or N in each of its v chunks."""
    is_full = plans.recompute == FULL
    if not is_full.any():
        return np.zeros(len(plans))
    chosen = plans.recompute_num_layers * plans.vpp
    covered = np.where(plans.recompute_num_layers > 0, np.minimum(chosen, layers), layers)
    return np.where(is_full, covered, 0.0)


def num_micro_batches(plans: PlanBatch) -> FloatArray:
    """Micro-batches of a step on each pipeline.

    At least 1: a batch that does not divide is refused by a rule.
    """
    per_step = plans.micro_batch_size.astype(np.float64) * plans.dp
    return np.maximum(np.floor(plans.global_batch_size / per_step), 1.0)


class Columns(NamedTuple):
    """What most terms of time and memory need of a block of plans; float64 of shape [P]."""

    pp: FloatArray
    vpp: FloatArray
    num_micro_batches: FloatArray
    shards: FloatArray
    """Ranks that gradients, optimizer and parameters can be sharded over: dp * cp."""
    is_single: FloatArray
    """1.0 where pp = 1: the first stage is also the last."""
    layers: StageLayers
    recomputed: StageLayers
    """Layers of each stage class that full recompute covers."""


def plan_columns(num_layers: int, plans: PlanBatch) -> Columns:
    """The columns of a block."""
    layers = stage_layers(num_layers, plans)
    return Columns(
        pp=plans.pp.astype(np.float64),
        vpp=plans.vpp.astype(np.float64),
        num_micro_batches=num_micro_batches(plans),
        shards=(plans.dp * plans.cp).astype(np.float64),
        is_single=(plans.pp == 1).astype(np.float64),
        layers=layers,
        recomputed=StageLayers(*(recomputed_layers(count, plans) for count in layers)),
    )
