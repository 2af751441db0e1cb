"""Step times that the replay cannot beat.

A rank of a pipeline starts when the first chunks of the ranks before it have run, then has m
micro-batches to run, and the same first chunks run backwards when it has ended. So for every rank s

T >= sum_{i<s} ( tau_i / v + 2 (c + x) ) + m ( tau_s + 2 v x )

tau_i the seconds of one micro-batch on rank i with v chunks, c a transfer, x its exposed share.
1F1B has no less than its closed form without fill transfers either, a maximum of such bounds, and
the schedules of :mod:`parallelsim.pipeline_forms` no less than theirs, a maximum over paths.
"""

from __future__ import annotations

import numpy as np

from parallelsim.costs import CostTable
from parallelsim.memory_states import States
from parallelsim.operators import FloatArray, IntArray
from parallelsim.pipeline import GPIPE, INTERLEAVED, StageSeconds
from parallelsim.pipeline_forms import FORMS
from parallelsim.plan import SCHEDULES, code
from parallelsim.plan_batch import PlanBatch
from parallelsim.replay import ROUNDING
from parallelsim.stage_seconds import embedding_seconds, leading_seconds, schedule_seconds
from parallelsim.stages import Columns, chunk_layers
from parallelsim.step import StepTail, after_stages, transfer_seconds

IS_BOUNDED = np.array([name not in FORMS for name in SCHEDULES])
"""Schedules whose bound follows from the inequality for any costs; that the forms of the others are
not above the replay is tested on random ones."""
ONE_F_ONE_B = code("schedule", "1f1b")


def least_step_time(
    table: CostTable, rows: IntArray, plans: PlanBatch, columns: Columns, held: States
) -> FloatArray:
    """Seconds that no replay of these plans is below, shape [P].

    Plans with layout ``free`` have their middle stages counted as the fullest: no bound for them.
    """
    stages = schedule_seconds(table, rows, plans, columns)
    tail = after_stages(table, rows, plans, columns, held, stages)
    m = columns.num_micro_batches
    launches = table.framework.host.micro_batch_s * m
    pipeline = tail.steady_s + tail.bubble_s
    rest = tail.dp_s + tail.optimizer_s + launches
    stretch = 1 + tail.straggler_s / (pipeline + tail.p2p_s + rest)
    transfer, exposed = transfer_seconds(table, rows, plans, columns)
    paid = 2 * m * columns.vpp * exposed * transfer
    least = pipeline + paid
    alone = (plans.schedule == INTERLEAVED) | (plans.schedule == GPIPE)
    spread = _spread(table, plans)
    by_rank = _by_rank(table, rows, columns, stages, transfer, exposed, spread)
    flushed = (plans.schedule == ONE_F_ONE_B) & (columns.pp > 1)
    least = np.where(flushed, np.maximum(least, by_rank), least)
    least = np.where(alone | (flushed & (spread > 0)), by_rank, least)
    uncertain = _uncertain(table, rows, tail, m, spread)
    least = least - np.where(IS_BOUNDED[plans.schedule], 0.0, uncertain)
    bound = (least + rest) * stretch + tail.overhead_s - launches
    return np.asarray(bound * (1 - ROUNDING))


def _uncertain(
    table: CostTable, rows: IntArray, tail: StepTail, m: FloatArray, spread: FloatArray
) -> FloatArray:
    """Seconds by which the forms of :mod:`parallelsim.pipeline_forms` may be above a replay.

    The data-parallel communication, which ranks other than the slowest hide; and of leading layers
    beyond the first chunk all that they differ by.
    """
    moved = 0.0 if table.first is None else spread * m * np.abs(table.first_total_s[rows])
    return np.asarray(tail.dp_s + moved)


def _spread(table: CostTable, plans: PlanBatch) -> FloatArray:
    """1 where the leading layers do not fit into the first chunk, else 0."""
    if table.first is None:
        return np.zeros(len(plans))
    first = chunk_layers(table.model.num_layers, plans).first
    return np.asarray((first < table.model.num_leading_layers) * 1.0)


def _by_rank(
    table: CostTable,
    rows: IntArray,
    columns: Columns,
    stages: StageSeconds,
    transfer: FloatArray,
    exposed: FloatArray,
    spread: FloatArray,
) -> FloatArray:
    """The module's inequality for the first, last but one, and last rank.

    The stages' seconds leave out leading layers of the middle ranks. Where they reach beyond the
    first chunk (``spread`` 1, else 0), those ranks are taken with what they may spare.
    """
    pp, vpp, m = columns.pp, columns.vpp, columns.num_micro_batches
    # The first chunk of the first rank may be up to a layer lighter than the others.
    layer = table.layer_total_s[rows] + table.layer.forward_s[rows]
    # Leading layers that are cheaper than the others lighten the first chunk alone.
    of_leading = leading_seconds(table, rows)[0]
    cheaper = np.minimum(embedding_seconds(table, rows)[0] + of_leading, 0.0)
    lightest = np.maximum(stages.first / vpp - layer, 0.0) + cheaper
    spared = spread * np.minimum(of_leading, 0.0)
    lightest = lightest - spread * np.maximum(of_leading, 0.0)
    first = np.where(vpp > 1, lightest, stages.first)
    exposed_s = exposed * transfer
    hop = 2 * (transfer + exposed_s)
    before = first + spared + np.maximum(pp - 3, 0.0) * (stages.middle / vpp)
    fill = np.maximum(before + np.where(pp > 2, stages.middle / vpp, 0.0), 0.0)
    last = fill + (pp - 1) * hop + m * stages.last
    middle = np.where(
        pp > 2, np.maximum(before, 0.0) + (pp - 2) * hop + m * (stages.middle + spared), 0.0
    )
    longest = np.maximum(np.maximum(m * stages.first, middle), last)
    return np.asarray(longest + 2 * m * vpp * exposed_s)
