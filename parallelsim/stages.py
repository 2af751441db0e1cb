"""Layers cut into pipeline stages. Stages come in three classes: first, middle and last.

A plan with layout ``free`` has any number of layers on each: of its middle stages the class is the
fullest, and :func:`free_stages` has them all.

A stage here is what one rank holds. Where chunks go down the ranks and up again (a wave), the first
rank holds both ends of the model; where two copies of the model run in opposite directions, each
rank holds two stages and runs half of the micro-batches through either: per micro-batch, half of
both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallelsim.model import ModelSpec
from parallelsim.operators import FloatArray
from parallelsim.plan import LAYOUTS, MAX_DEGREE, SCHEDULES, TWO_WAY, WAVES, code
from parallelsim.plan_batch import PlanBatch, by_code, largest

EMBEDDING, LOSS, BOTH, FIRST_LAST = (
    code("layout", name) for name in ("embedding", "loss", "embedding-loss", "first-last")
)
FREE, FULL = code("layout", "free"), code("recompute", "full")
COUNTS_EMBEDDING, COUNTS_LOSS = (
    np.isin(LAYOUTS, names).astype(np.float64)
    for names in (("embedding", "embedding-loss"), ("loss", "embedding-loss"))
)
"""By code: 1 where a layout gives the embedding, or the loss, a layer's place."""
IS_WAVE, IS_TWO_WAY = (np.isin(SCHEDULES, names) for names in (WAVES, TWO_WAY))
"""By code: whether a schedule is one."""
PLAIN_SCHEDULES = int(np.argmax(IS_WAVE | IS_TWO_WAY))
"""Schedules below this code deal chunks round the ranks, one copy of each."""


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
    pp = plans.pp
    counts_embedding = by_code(COUNTS_EMBEDDING, plans.layout)
    counts_loss = by_code(COUNTS_LOSS, plans.layout)
    slots = (num_layers + counts_embedding + counts_loss) / pp
    first, middle, last = slots - counts_embedding, slots, slots - counts_loss
    uneven = np.flatnonzero(plans.layout == FIRST_LAST)
    if len(uneven):
        at_ends = plans.first_stage_layers[uneven], plans.last_stage_layers[uneven]
        first[uneven], last[uneven] = at_ends
        rest = num_layers - at_ends[0] - at_ends[1]
        middle[uneven] = rest / np.maximum(pp[uneven] - 2, 1.0)
    first[np.flatnonzero(pp == 1)] = num_layers
    middle *= pp > 2
    last *= pp > 1
    layers = StageLayers(first, middle, last)
    for index, stages in free_stages(plans):
        _set_classes(layers, index, stages.layers)
    return layers


class FreeStages(NamedTuple):
    """Of one plan with layout ``free``; float64."""

    chunks: FloatArray
    """[pp * vpp]: layers, in the order of the model."""
    layers: FloatArray
    """[pp]: layers of each rank."""
    recomputed: FloatArray
    """[pp]: those that full recompute covers: all, or the first N of each chunk."""


def free_stages(plans: PlanBatch) -> Iterator[tuple[int, FreeStages]]:
    """Position and stages of every plan of the batch with layout ``free``.

    A list of another length than pp * vpp is passed over: the rules refuse such a plan.
    """
    if len(plans.cuts) == 1:
        return
    found: dict[tuple[int, ...], FreeStages] = {}
    for index in np.flatnonzero(plans.layout == FREE).tolist():
        pp, vpp = int(plans.pp[index]), int(plans.vpp[index])
        most = int(plans.recompute_num_layers[index]) or MAX_DEGREE
        most = most if plans.recompute[index] == FULL else 0
        cut = plans.cuts[plans.chunk_layers[index]]
        if len(cut) == pp * vpp:
            key = (int(plans.chunk_layers[index]), pp, most)
            if key not in found:
                chunks = np.array(cut, np.float64)
                again = np.minimum(chunks, most).reshape(vpp, pp)
                found[key] = FreeStages(chunks, chunks.reshape(vpp, pp).sum(0), again.sum(0))
            yield index, found[key]


def leading_shares(number: int, chunks: FloatArray) -> FloatArray:
    """Share of the model's first ``number`` layers that each chunk holds, shape [..., chunks] as
    the chunks' layers; of no layers the first chunk holds all.
    """
    if number == 0:
        shares = np.zeros_like(chunks)
        shares[..., 0] = 1.0
        return shares
    ends = np.minimum(np.cumsum(chunks, axis=-1), number)
    return np.asarray(np.diff(ends, axis=-1, prepend=0.0) / number)


def leading_on_chunk(model: ModelSpec, plans: PlanBatch, chunk: FloatArray) -> FloatArray:
    """:func:`leading_shares` of one chunk of each plan, shape [P]: the number of the chunk in the
    order of the model; 0 beyond the last.
    """
    return _leading_between(_layers_before(model.num_layers, plans), model, chunk)


def _leading_between(layers_before: Before, model: ModelSpec, chunk: FloatArray) -> FloatArray:
    """(min(F_{k+1}, n) - min(F_k, n)) / n, n leading layers and F_k layers before chunk k."""
    number = max(model.num_leading_layers, 1)
    before, after = (np.minimum(layers_before(k), number) for k in (chunk, chunk + 1))
    return np.asarray((after - before) / number)


def leading_on_rank(model: ModelSpec, plans: PlanBatch, rank: FloatArray) -> FloatArray:
    """Share of the model's leading layers whose weights one rank of each plan holds, shape [P];
    of two copies of the model the sum of both.
    """
    mirror = plans.pp - 1 - rank
    share = (rank == 0) + (mirror == 0) * by_code(IS_TWO_WAY, plans.schedule) * 1.0
    beyond = np.flatnonzero(_beyond_first_chunk(model, plans))
    if beyond.size:
        share[beyond] = _dealt_share(model, plans.take(beyond), rank[beyond])
    return np.asarray(share)


def _beyond_first_chunk(model: ModelSpec, plans: PlanBatch) -> NDArray[np.bool_]:
    """Where leading layers may reach beyond the first chunk."""
    least = model.num_layers / (plans.pp * plans.vpp) - 1  # the embedding may take a place
    of_rank = np.minimum(plans.first_stage_layers / plans.vpp, least + 1)  # a wave has even ones
    least = np.where(plans.layout == FIRST_LAST, of_rank, least)
    return np.asarray((least < model.num_leading_layers) | (plans.layout == FREE))


def _dealt_share(model: ModelSpec, plans: PlanBatch, rank: FloatArray) -> FloatArray:
    """:func:`leading_on_rank`, chunk by chunk."""
    pp = plans.pp.astype(np.float64)
    layers_before, mirror = _layers_before(model.num_layers, plans), pp - 1 - rank
    special = largest(plans.schedule) >= PLAIN_SCHEDULES
    wave = by_code(IS_WAVE, plans.schedule) if special else False
    share, turn = _leading_between(layers_before, model, rank), 1
    while (layers_before(turn * pp) < model.num_leading_layers).any():
        on_turn = np.where(wave, mirror, rank) if turn % 2 else rank
        share = share + _leading_between(layers_before, model, turn * pp + on_turn)
        turn += 1
    if special:
        two_way = by_code(IS_TWO_WAY, plans.schedule)
        share = share + two_way * _leading_between(layers_before, model, mirror)
    return share


def leading_at_ends(model: ModelSpec, plans: PlanBatch) -> tuple[FloatArray, FloatArray]:
    """:func:`leading_on_rank` of the first rank, and of a last one apart from it."""
    last = plans.pp.astype(np.float64) - 1
    on_last = np.where(last > 0, leading_on_rank(model, plans, last), 0.0)
    return leading_on_rank(model, plans, np.zeros(len(plans))), on_last


def ranks_at_leading_end(model: ModelSpec, plans: PlanBatch) -> tuple[FloatArray, FloatArray]:
    """Ranks of the last chunk with leading layers and of the one after it, shape [P] each."""
    layers_before, last = _layers_before(model.num_layers, plans), np.zeros(len(plans))
    while (further := layers_before(last + 1) < model.num_leading_layers).any():
        last = last + further
    return _rank_of(plans, last), _rank_of(plans, last + 1)


def _rank_of(plans: PlanBatch, chunk: FloatArray) -> FloatArray:
    """The rank that holds a chunk of the model, shape [P]."""
    turn, place = np.divmod(chunk, plans.pp)
    upwards = by_code(IS_WAVE, plans.schedule) & (turn % 2 == 1)
    return np.where(upwards, plans.pp - 1 - place, place)


Before = Callable[[FloatArray], FloatArray]


def _layers_before(num_layers: int, plans: PlanBatch) -> Before:
    """Layers before a chunk of each plan, in the order of the model, as a function of the chunk."""
    (first, middle, _), pp, vpp = chunk_layers(num_layers, plans), plans.pp, plans.vpp
    uneven, free, num_chunks = _uneven_chunks(plans), list(free_stages(plans)), pp * vpp
    by_turn = bool(uneven.any())

    def before(chunk: FloatArray) -> FloatArray:
        layers = np.where(chunk > 0, first + (chunk - 1) * middle, 0.0)
        if by_turn:  # the ends of every turn round the ranks
            turn, place = np.divmod(chunk, pp)
            within = np.where(place > 0, first + (place - 1) * middle, 0.0)
            layers = np.where(uneven, turn * num_layers / vpp + within, layers)
        for index, stages in free:
            layers[index] = stages.chunks[: int(chunk[index])].sum()
        return np.where(chunk < num_chunks, layers, float(num_layers))

    return before


def _uneven_chunks(plans: PlanBatch) -> NDArray[np.bool_]:
    """Where all chunks of the first and the last rank differ from the others."""
    by_rank: NDArray[np.bool_] = np.asarray(plans.layout == FIRST_LAST)
    if not by_rank.any():
        return by_rank
    return np.asarray(by_rank & ~by_code(IS_WAVE, plans.schedule))


def _set_classes(classes: StageLayers, index: int, values: FloatArray) -> None:
    """Set one plan's first, fullest middle, and last value."""
    classes.first[index] = values[0]
    classes.middle[index] = values[1:-1].max(initial=0.0)
    classes.last[index] = values[-1] if len(values) > 1 else 0.0


def chunk_layers(num_layers: int, plans: PlanBatch) -> StageLayers:
    """Layers of the stages of the model, chunk by chunk: the first, each of the middle ones, the
    last; middle is 0 where there are only two, and last where there is one.
    """
    layers = stage_layers(num_layers, plans)
    counts_embedding = (plans.layout == EMBEDDING) | (plans.layout == BOTH)
    counts_loss = (plans.layout == LOSS) | (plans.layout == BOTH)
    middle = np.where(plans.pp > 2, layers.middle, layers.first + counts_embedding) / plans.vpp
    uneven = _uneven_chunks(plans)
    even = (num_layers + counts_embedding + counts_loss) / (plans.pp * plans.vpp)
    middle = np.where(uneven, middle, even)
    last = np.where(uneven, layers.last / plans.vpp, even - counts_loss)
    chunks = StageLayers(
        np.where(uneven, layers.first / plans.vpp, even - counts_embedding),
        np.where(plans.pp * plans.vpp > 2, middle, 0.0),
        np.where(plans.pp * plans.vpp > 1, last, 0.0),
    )
    for index, stages in free_stages(plans):
        _set_classes(chunks, index, stages.chunks)
    return chunks


class Ends(NamedTuple):
    """Share of the micro-batches whose embedding and head a rank runs, whether it holds the head's
    weights, and copies of the weights; of shape [P], or one number for all plans.
    """

    embedding_first: FloatArray | float
    embedding_last: FloatArray | float
    head_first: FloatArray
    head_last: FloatArray
    holds_head_first: FloatArray
    holds_head_last: FloatArray
    copies: FloatArray | float


def _ends(plans: PlanBatch, is_single: FloatArray, *, special: bool) -> Ends:
    if not special:
        others = 1 - is_single
        return Ends(1.0, 0.0, is_single, others, is_single, others, 1.0)
    wave, two_way = (by_code(kind, plans.schedule) for kind in (IS_WAVE, IS_TWO_WAY))
    head_first = np.where(wave, 1.0, np.where(two_way, 0.5, is_single))
    return Ends(
        np.where(two_way, 0.5, 1.0),
        np.where(two_way, 0.5, 0.0),
        head_first,
        1 - head_first,
        np.ceil(head_first),
        np.ceil(1 - head_first),
        np.where(two_way, 2.0, 1.0),
    )


def _rank_layers(num_layers: int, plans: PlanBatch, *, special: bool) -> StageLayers:
    """Layers that a micro-batch passes on the first, each middle, and the last rank."""
    layers = stage_layers(num_layers, plans)
    if not special:
        return layers
    wave, two_way = (by_code(kind, plans.schedule) for kind in (IS_WAVE, IS_TWO_WAY))
    chunks, mean = chunk_layers(num_layers, plans), (layers.first + layers.last) / 2
    first = chunks.first + chunks.last + (plans.vpp - 2) * chunks.middle
    whole = plans.vpp * chunks.middle
    return StageLayers(
        np.where(wave, first, np.where(two_way, mean, layers.first)),
        np.where(wave & (plans.pp > 2), whole, layers.middle),
        np.where(wave, whole, np.where(two_way, mean, layers.last)),
    )


def recomputed_layers(layers: FloatArray, plans: PlanBatch) -> FloatArray:
    """Layers of a stage that full recompute covers: all, or N in each of its v chunks."""
    return np.minimum(layers, recompute_depth(plans))


def recompute_depth(plans: PlanBatch) -> FloatArray:
    """Most layers of a stage that full recompute covers: N in each of its v chunks, infinity where
    all are; 0 of other plans; shape [P].
    """
    chosen = plans.recompute_num_layers
    depth = np.where(chosen > 0, chosen * plans.vpp, np.inf)
    return np.where(plans.recompute == FULL, depth, 0.0)


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
    num_gpus: FloatArray
    is_single: FloatArray
    """1.0 where pp = 1: the first stage is also the last."""
    ends: Ends
    layers: StageLayers
    recomputed: StageLayers
    """Layers of each stage class that full recompute covers."""


def plan_columns(num_layers: int, plans: PlanBatch) -> Columns:
    """The columns of a block."""
    special = largest(plans.schedule) >= PLAIN_SCHEDULES
    layers = _rank_layers(num_layers, plans, special=special)
    is_single, shards = (plans.pp == 1).astype(np.float64), plans.dp * plans.cp
    depth = recompute_depth(plans)
    recomputed = StageLayers(*(np.minimum(count, depth) for count in layers))
    for index, stages in free_stages(plans):
        _set_classes(recomputed, index, stages.recomputed)
    return Columns(
        pp=plans.pp.astype(np.float64),
        vpp=plans.vpp.astype(np.float64),
        num_micro_batches=num_micro_batches(plans),
        shards=shards.astype(np.float64),
        num_gpus=(shards * plans.tp * plans.pp).astype(np.float64),
        is_single=is_single,
        ends=_ends(plans, is_single, special=special),
        layers=layers,
        recomputed=recomputed,
    )
