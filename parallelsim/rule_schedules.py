"""What the pipeline schedules ask of stages, chunks, micro-batches and layouts.

The same as ``broken_rule`` of each generator in :mod:`parallelsim.timeline.schedules`, for batches;
a test compares the two.
"""

from __future__ import annotations

import numpy as np

from parallelsim.plan import SCHEDULES, TWO_WAY, WAVES, Plan, code
from parallelsim.plan_batch import PlanBatch, one_if_equal
from parallelsim.rule_context import BoolArray, Context

NONE, INTERLEAVED = code("schedule", "none"), code("schedule", "interleaved-1f1b")
FIRST_LAST, FREE = code("layout", "first-last"), code("layout", "free")
ANY = 2**31
CHUNKS = {
    "none": (1, ANY),
    "interleaved-1f1b": (2, ANY),
    "breadth-first": (1, ANY),
    "hanayo": (2, ANY),
    "zb-v": (2, 2),
    "v-half": (2, 2),
    "v-min": (2, 2),
    "dualpipe-v": (2, 2),
}
"""Fewest and most virtual stages of a rank; of the others 1."""
FEWEST = np.array([CHUNKS.get(name, (1, 1))[0] for name in SCHEDULES])
MOST = np.array([CHUNKS.get(name, (1, 1))[1] for name in SCHEDULES])
IS_WAVE = np.array([name in WAVES for name in SCHEDULES])
IS_TWO_WAY = np.array([name in TWO_WAY for name in SCHEDULES])
HANAYO = code("schedule", "hanayo")
PER_STAGE = np.array(
    [{"pipedream-2bw": 1, "dualpipe": 2, "dualpipe-v": 2}.get(name, 0) for name in SCHEDULES]
)
"""Fewest micro-batches for each rank."""
LAST_PLAIN = code("schedule", "gpipe")


def wrong_stages(c: Context, p: PlanBatch) -> BoolArray:
    """The schedule contradicts pp or vpp."""
    single = p.pp == 1
    one_stage = (p.schedule == NONE) != single
    if not _beyond_plain(p):  # two comparisons are far cheaper than two table look-ups
        plain: BoolArray = one_stage | ((p.schedule == INTERLEAVED) != (p.vpp > 1))
        return plain
    broken: BoolArray = one_stage | (single & (p.vpp > 1))
    broken |= (p.vpp < FEWEST[p.schedule]) | (p.vpp > MOST[p.schedule])
    broken |= (p.schedule == HANAYO) & (p.vpp % 2 != 0)
    broken |= IS_TWO_WAY[p.schedule] & (p.pp % 2 != 0)
    return broken


def _beyond_plain(p: PlanBatch) -> bool:
    """Some plan has a schedule beyond 1F1B, interleaved 1F1B and GPipe."""
    return int(p.schedule.max(initial=0)) > LAST_PLAIN


def explain_stages(c: Context, p: Plan) -> str:
    """The numbers, and what goes with them."""
    if p.pp == 1 and p.vpp > 1:
        return f"vpp={p.vpp} needs pipeline stages, got pp=1; use vpp=1 or pp > 1"
    given = f"schedule {p.schedule} does not go with pp={p.pp}, vpp={p.vpp}"
    if p.pp == 1 or p.schedule == "none":
        return f"{given}; use {'none' if p.pp == 1 else 'another schedule'}"
    number = code("schedule", p.schedule)
    low, high = int(FEWEST[number]), int(MOST[number])
    if not low <= p.vpp <= high:
        needs = f"vpp={low}" if low == high else f"vpp of at least {low}"
        others = "interleaved-1f1b" if p.vpp > 1 else "1f1b"
        return f"{given}: it needs {needs}; change vpp, or use {others}"
    if p.schedule == "hanayo":
        return f"{given}: a wave is two virtual stages, down the ranks and up; use an even vpp"
    return f"{given}: stages of its two directions share ranks in pairs; use an even pp"


def wrong_micro_batches(c: Context, p: PlanBatch) -> BoolArray | bool:
    """Too few micro-batches to fill the pipeline, or not as many in both directions."""
    if not _beyond_plain(p):
        return False
    broken = c.num_micro_batches < PER_STAGE[p.schedule] * p.pp
    broken |= IS_TWO_WAY[p.schedule] & (c.num_micro_batches % 2 != 0)
    return np.asarray(broken)


def explain_micro_batches(c: Context, p: Plan) -> str:
    """The numbers, and what to do."""
    got = (
        f"got {p.num_micro_batches} (global batch {p.global_batch_size} / "
        f"(micro-batch {p.micro_batch_size} x dp={p.dp}))"
    )
    if p.schedule == "interleaved-1f1b":
        return (
            f"the interleaved schedule runs micro-batches in groups of pp={p.pp}, {got}; "
            "use a multiple of pp, or vpp=1"
        )
    fewest = int(PER_STAGE[code("schedule", p.schedule)]) * p.pp
    if p.num_micro_batches < fewest:
        why = (
            "two versions of the weights suffice only then"
            if p.schedule == "pipedream-2bw"
            else "they fill the pipeline"
        )
        return (
            f"schedule {p.schedule} with pp={p.pp} needs {fewest} micro-batches ({why}), {got}; "
            "use a smaller pp, dp or micro-batch"
        )
    return (
        f"schedule {p.schedule} sends half of the micro-batches in either direction, {got}; "
        "use an even number"
    )


def wrong_groups(c: Context, p: PlanBatch) -> BoolArray | bool:
    """The interleaved schedule cannot form groups of pp micro-batches."""
    interleaved = p.schedule == INTERLEAVED
    if not interleaved.any():
        return False
    pp = one_if_equal(np.maximum(p.pp, 1))
    groups = c.num_micro_batches // pp
    broken: BoolArray = interleaved & ((groups == 0) | (groups * pp != c.num_micro_batches))
    return broken


def wrong_layout(c: Context, p: PlanBatch) -> BoolArray | bool:
    """Layers by rank where the first rank holds both ends, or a rank two copies of some."""
    if not _beyond_plain(p):
        return False
    wave, two_way = IS_WAVE[p.schedule], IS_TWO_WAY[p.schedule]
    return np.asarray((wave & (p.layout == FIRST_LAST)) | ((wave | two_way) & (p.layout == FREE)))


def explain_layout(c: Context, p: Plan) -> str:
    """What to do."""
    return (
        f"schedule {p.schedule} keeps parts of the model from both ends on one of pp={p.pp} ranks, "
        f"so layout {p.layout} has no meaning; use even, embedding, loss or embedding-loss"
    )
