"""V-Half and V-Min: split backward over a V, with half or a third of 1F1B's activations.

arXiv:2405.15362, section 3, table 1 (activations, asymptotic), table 8 (V-Min's offsets); the exact
counts from the README of github.com/sail-sg/zero-bubble-pipeline-parallelism. Every micro-batch
repeats one block of operations, six slots after the one before it (F, Bi and W of two chunks fill
six slots); the time a chunk's activation lives in the block bounds the memory. The weight gradients
take the free slots. Activations, in micro-batches of a whole stage: V-Half floor((p + 2)/2), V-Min
floor((p + 4)/3). Bubble with t_F = t_Bi = t_W, as a share of a step of m micro-batches: V-Half
about p/(2 m), V-Min about 2 p/(3 m) in the paper, whose schedules also move operations of the fill
and the drain forward; this one keeps the blocks' order. V-Min stalls in every block where the three
times differ. Forbids v != 2.

Closed forms (:mod:`parallelsim.pipeline_forms`): worst error 2 % (V-Half) and 1 % (V-Min) with m >=
p; exact with equal stages.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from parallelsim.timeline.operations import (
    FORWARD,
    INPUT,
    WEIGHT,
    Generator,
    Schedule,
    Size,
    Slots,
    from_slots,
    wave_stages,
)
from parallelsim.timeline.schedules.rules import two_chunks

PERIOD = 6
"""Slots between two micro-batches: three operations of two chunks."""

Grid = NDArray[np.int64]


def _half_block(pp: int, rank: Grid) -> tuple[Grid, ...]:
    """Slots of F0, F1, Bi1, Bi0: chunk 0 goes down in steps of two, chunk 1 up in steps of one."""
    shift = 3 if pp % 2 == 0 else 0
    return (
        2 * rank,
        3 * pp - 2 - rank,
        3 * pp - 1 + shift + 2 * rank,
        6 * pp - 2 + shift - rank,
    )


def _min_block(pp: int, rank: Grid) -> tuple[Grid, ...]:
    """Slots of F0, F1, Bi1, Bi0: each step takes one; the shift keeps them apart modulo six."""
    shift = 2 if pp % 3 == 0 else 0
    return rank, 2 * pp - 1 - rank, 2 * pp + shift + rank, 4 * pp - 1 + shift - rank


def _build(name: str, size: Size) -> Schedule:
    pp, _, m = size
    j = np.arange(m)
    block = (_half_block if name == "v-half" else _min_block)(pp, np.arange(pp)[:, None])
    forward_0, forward_1, input_1, input_0 = (slot + PERIOD * j for slot in block)
    taken = np.concatenate([forward_0, forward_1, input_1, input_0], axis=1)
    weight = np.empty((2, pp, m), np.int64)
    for rank in range(pp):
        inputs = np.concatenate([input_0[rank], input_1[rank]])
        weight[:, rank] = _first_free(taken[rank], inputs).reshape(2, m)
    parts = (
        Slots(FORWARD, 0, forward_0, j),
        Slots(FORWARD, 1, forward_1, j),
        Slots(INPUT, 1, input_1, j),
        Slots(INPUT, 0, input_0, j),
        Slots(WEIGHT, 0, weight[0], j),
        Slots(WEIGHT, 1, weight[1], j),
    )
    return from_slots(name, size, parts, wave_stages(pp, 2))


def _first_free(taken: Grid, inputs: Grid) -> Grid:
    """Of each input gradient, the slot of its weight gradient: the first free one, oldest first.

    The k-th oldest takes free slot number max(first after its input, that of the one before + 1).
    """
    order = np.argsort(inputs)
    free = np.setdiff1d(np.arange(taken.max() + 2 + len(inputs)), taken)
    k = np.arange(len(inputs))
    number = np.maximum.accumulate(np.searchsorted(free, inputs[order]) - k) + k
    slots = np.empty_like(inputs)
    slots[order] = free[number]
    return slots


V_HALF = Generator(
    "v-half",
    lambda size: _build("v-half", size),
    two_chunks,
    splits_backward=True,
    chunks_per_rank=2,
)
V_MIN = Generator(
    "v-min", lambda size: _build("v-min", size), two_chunks, splits_backward=True, chunks_per_rank=2
)
