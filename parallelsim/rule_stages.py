"""How layers are cut into stages, scheduled and recomputed.

The divisibility rules are Megatron-LM's (``get_num_layers_to_build`` and what its interleaved
schedule checks).
"""

from __future__ import annotations

import numpy as np

from parallelsim import rule_schedules as schedules
from parallelsim.plan import MAX_DEGREE, IntArray, Plan, code
from parallelsim.plan_batch import PlanBatch, by_code, one_if_equal
from parallelsim.rule_context import BoolArray, Context, Rule, by_value
from parallelsim.rule_schedules import FIRST_LAST, FREE

EXTRA_LAYERS = (0, 1, 1, 2, 0, 0)
"""By layout: how many of embedding and loss count as a layer when layers are cut into stages."""
EVEN, EMBEDDING_LOSS = code("layout", "even"), code("layout", "embedding-loss")
FULL = code("recompute", "full")
SELECTIVE = code("recompute", "selective")


def layers_uneven(c: Context, p: PlanBatch) -> BoolArray:
    """Layers, counted as the layout says, do not divide over the virtual stages."""
    num_layers, extra = c.model.num_layers, by_code(np.array(EXTRA_LAYERS), p.layout)
    # One key for (chunks, extra): chunks beyond num_layers + 2 are all alike, they never divide.
    key = np.minimum(c.chunks, num_layers + 3) * 3 + extra

    def predicate(k: IntArray) -> BoolArray:
        uneven: BoolArray = (num_layers + k % 3) % np.maximum(k // 3, 1) != 0
        return uneven

    broken: BoolArray = by_value(key, predicate) & (p.layout < FIRST_LAST)
    return broken


def _explain_layers(c: Context, p: Plan) -> str:
    num_layers, extra = c.model.num_layers, EXTRA_LAYERS[code("layout", p.layout)]
    counted = f"{num_layers} layers" + (f" + {extra} for the {p.layout}" if extra else "")
    return (
        f"{counted} do not divide by pp={p.pp} x vpp={p.vpp} = {p.pp * p.vpp} virtual stages; "
        f"use divisors of {num_layers + extra} or another layout"
    )


def first_last_wrong(c: Context, p: PlanBatch) -> BoolArray:
    """Layout first-last leaves unequal or empty stages; another layout names a stage's layers."""
    chosen = p.layout == FIRST_LAST
    broken: BoolArray = ~chosen & ((p.first_stage_layers | p.last_stage_layers) != 0)
    index = np.flatnonzero(chosen)
    if index.size:
        first, last = p.first_stage_layers.take(index), p.last_stage_layers.take(index)
        vpp = one_if_equal(np.maximum(p.vpp.take(index), 1))
        between = one_if_equal(p.pp.take(index) - 2)
        rest = c.model.num_layers - first - last
        each = rest // np.maximum(between, 1)
        fits = (first > 0) & (last > 0) & ((rest > 0) == (between > 0)) & (rest >= 0)
        fits &= (each * np.maximum(between, 1) == rest) & (between >= 0)
        for layers in (first, last, each):
            fits &= layers // vpp * vpp == layers
        broken[index] = ~fits
    return broken


def _explain_first_last(c: Context, p: Plan) -> str:
    first, last, num_layers = p.first_stage_layers, p.last_stage_layers, c.model.num_layers
    if p.layout != "first-last":
        given = f"first_stage_layers={first}, last_stage_layers={last}"
        return f"{given} need layout first-last, got {p.layout}; use it, or leave them at 0"
    rest = num_layers - first - last
    return (
        f"{first} + {last} layers on the first and last stage leave {rest} of {num_layers} "
        f"for {max(p.pp - 2, 0)} stages between; each of the three must be above 0 (with pp=2 the "
        f"rest is 0) and every stage's layers a multiple of vpp={p.vpp}"
    )


def chunk_layers_wrong(c: Context, p: PlanBatch) -> BoolArray | bool:
    """Layout free does not cut all layers into pp * vpp chunks; another layout lists chunks."""
    chosen: BoolArray = p.layout == FREE
    if len(p.cuts) == 1:
        return chosen
    sizes, sums = (np.array([count(cut) for cut in p.cuts]) for count in (len, sum))
    filled = np.array([min(cut, default=0) > 0 or _ends_alone_empty(cut) for cut in p.cuts])
    at = p.chunk_layers
    whole = (sizes[at] == c.chunks) & (sums[at] == c.model.num_layers) & filled[at]
    broken: BoolArray = np.where(chosen, ~whole, at != 0)
    return broken


def _ends_alone_empty(cut: tuple[int, ...]) -> bool:
    """The first chunk has the embedding, the last one the loss: they may do without layers."""
    return len(cut) > 1 and min(cut[1:-1], default=1) > 0 and min(cut, default=0) >= 0


def _explain_chunks(c: Context, p: Plan) -> str:
    if p.layout != "free":
        return f"chunk_layers needs layout free, got {p.layout}; use it, or leave the list empty"
    return (
        f"chunk_layers lists {sum(p.chunk_layers)} layers in {len(p.chunk_layers)} chunks, the "
        f"model has {c.model.num_layers} for pp={p.pp} x vpp={p.vpp} = {p.pp * p.vpp} chunks; only "
        "the first and the last chunk may have none"
    )


def recompute_beyond_chunk(c: Context, p: PlanBatch) -> BoolArray | bool:
    """More layers to recompute than the fullest virtual stage has, or a number without ``full``."""
    broken: BoolArray = p.recompute_num_layers != 0
    index = np.flatnonzero(broken)
    if not index.size:
        return False
    layout, asked = p.layout.take(index), p.recompute_num_layers.take(index)
    chunks = np.minimum(c.chunks.take(index), MAX_DEGREE)
    layers = c.model.num_layers + np.array(EXTRA_LAYERS).take(layout)
    # With two virtual stages, embedding and loss leave each of them one layer short.
    layers -= 2 * ((layout == EMBEDDING_LOSS) & (chunks == 2))
    beyond = asked * chunks > layers
    uneven = np.flatnonzero(layout == FIRST_LAST)
    if uneven.size:
        at = index.take(uneven)
        first, last = p.first_stage_layers.take(at), p.last_stage_layers.take(at)
        between = one_if_equal(np.maximum(p.pp.take(at) - 2, 1))
        middle = np.maximum(c.model.num_layers - first - last, 0) // between
        largest = np.maximum(np.maximum(first, last), middle)
        beyond[uneven] = asked.take(uneven) * p.vpp.take(at) > largest
    if (layout == FREE).any():
        most = np.array([max(cut, default=0) for cut in p.cuts])[p.chunk_layers[index]]
        beyond = np.where(layout == FREE, asked > most, beyond)
    broken[index] = beyond | (p.recompute.take(index) != FULL)
    return broken


def _explain_recompute(c: Context, p: Plan) -> str:
    if p.recompute != "full":
        return (
            f"recompute_num_layers={p.recompute_num_layers} needs recompute full, got {p.recompute}"
        )
    return (
        f"recomputing {p.recompute_num_layers} layers is more than a virtual stage holds "
        f"({c.model.num_layers} layers over pp={p.pp} x vpp={p.vpp}); use a smaller number or full"
    )


STAGE_RULES: tuple[Rule, ...] = (
    Rule(
        "schedule-matches-stages",
        "schedule none where pp = 1, else one that runs on such stages and virtual stages",
        schedules.wrong_stages,
        schedules.explain_stages,
        reads_staging=True,
    ),
    Rule(
        "interleaving-needs-micro-batches",
        "with the interleaved schedule, pp divides the number of micro-batches",
        schedules.wrong_groups,
        schedules.explain_micro_batches,
        reads_staging=True,
    ),
    Rule(
        "schedule-has-micro-batches",
        "enough micro-batches for the schedule, in both directions where it has two",
        schedules.wrong_micro_batches,
        schedules.explain_micro_batches,
        reads_staging=True,
    ),
    Rule(
        "layers-divide-by-stages",
        "pp * vpp divides the layers (embedding and loss counted as the layout says)",
        layers_uneven,
        _explain_layers,
        reads_staging=True,
    ),
    Rule(
        "layout-needs-stages",
        "a layout other than even needs pp > 1",
        lambda c, p: (p.layout != EVEN) & (p.pp == 1),
        lambda c, p: f"layout {p.layout} needs pp > 1, got pp={p.pp}; use layout even",
        reads_staging=True,
    ),
    Rule(
        "layout-fits-schedule",
        "layouts first-last and free need both ends of the model on ranks of their own",
        schedules.wrong_layout,
        schedules.explain_layout,
        reads_staging=True,
    ),
    Rule(
        "first-last-fits",
        "layout first-last leaves the stages between equal, in whole virtual stages",
        first_last_wrong,
        _explain_first_last,
        reads_staging=True,
    ),
    Rule(
        "chunk-layers-fit",
        "layout free lists the layers of pp * vpp chunks, all of the model's",
        chunk_layers_wrong,
        _explain_chunks,
        reads_staging=True,
    ),
    Rule(
        "recompute-within-stage",
        "recompute at most the layers of a virtual stage",
        recompute_beyond_chunk,
        _explain_recompute,
        reads_staging=True,
    ),
    Rule(
        "cuda-graphs-without-full-recompute",
        "CUDA graphs of layers do not go with full recompute",
        lambda c, p: (p.cuda_graphs != 0) & (p.recompute == FULL),
        lambda c, p: (
            f"cuda_graphs capture single layers, got recompute {p.recompute_label}; "
            "use selective or none, or turn cuda_graphs off"
        ),
        reads_staging=True,
    ),
)
