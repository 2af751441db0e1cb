"""DualPipe and DualPipeV: forwards run together with backwards, from both ends of the pipeline.

arXiv:2412.19437, section 3.2.1, figure 5 and table 2 (DualPipe); DualPipeV cuts it in half: a V on
half the ranks in place of two copies (README of github.com/deepseek-ai/DualPipe, same table). With
PP stages (PP = 2 p for the V), F&B a forward and a whole backward together, B a whole backward of
which W is the weight gradient: bubble (PP/2 - 1)(F&B + B - 3 W); activations PP + 1 chunks (each a
PP-th of the model); twice the weights of 1F1B on PP ranks. Forbids fewer than 2 p micro-batches
(the fill needs them), odd p or m for the two directions, and v != 2 for the V.

Closed forms (:mod:`parallelsim.pipeline_forms`), a forward and a backward together taking the sum
of their times: median error 0, worst 2.5 %.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parallelsim.timeline.operations import (
    Generator,
    Phase,
    Schedule,
    Size,
    from_phases,
    two_way_stages,
    wave_stages,
)
from parallelsim.timeline.schedules.rules import two_chunks, two_way


def _phases(half: int, depth: int, each: int, near: int) -> Sequence[Phase]:
    """Eight phases of the rank ``depth`` ranks from the end, of ``half`` ranks to the turning
    point.

    ``each``: micro-batches of a chunk; ``near``: the chunk whose forwards the rank runs first.
    """
    n, f, outer = near, 1 - near, half - depth - 1
    drain = depth + 1
    # The drain splits its second half of the backwards, to finish with weight gradients.
    whole = drain // 2 * 2 + (1 - depth % 2)
    letters = ["B" if k < whole else "I" for k in range(2 * drain)]
    last = " ".join(f"{letter}{(f, n)[k % 2]}" for k, letter in enumerate(letters))
    return (
        (2 * outer, f"F{n}"),
        (depth + 1, f"F{n} F{f}"),
        (outer, f"I{f} W F{f}"),
        *_steady(half, depth, each, n),
        (outer, f"B{f} F{f}+B{n}"),
        (1, last),
        (outer, f"W I{n}"),
        (depth + 1, "W"),
    )


def _steady(half: int, depth: int, each: int, n: int) -> Sequence[Phase]:
    """Pairs of forward and backward in turn; the innermost rank starts with one apart."""
    turns, both = each - 2 * half + depth + 1, f"F{n}+B{1 - n} F{1 - n}+B{n}"
    if depth < half - 1:
        return ((turns, both),)
    return ((1, f"F{n} B{1 - n} F{1 - n}+B{n}"), (turns - 1, both))


def build(size: Size) -> Schedule:
    """The two directions mirror each other."""
    pp, _, m = size

    def phases(rank: int) -> Sequence[Phase]:
        return _phases(pp // 2, min(rank, pp - 1 - rank), m // 2, int(rank >= pp // 2))

    copy = np.tile([0, 1], (pp, 1))
    return from_phases("dualpipe", size, phases, two_way_stages(pp), copy=copy)


def build_v(size: Size) -> Schedule:
    """Rank r of the V is rank r of the first half of a DualPipe on twice the ranks."""
    pp, _, m = size

    def phases(rank: int) -> Sequence[Phase]:
        return _phases(pp, rank, m, 0)

    return from_phases("dualpipe-v", size, phases, wave_stages(pp, 2))


def broken_rule(size: Size) -> str | None:
    """Both directions, and enough micro-batches to fill."""
    return two_way(size) or _enough(size)


def broken_rule_v(size: Size) -> str | None:
    """A V, and enough micro-batches to fill."""
    return two_chunks(size) or _enough(size)


def _enough(size: Size) -> str | None:
    if size.num_micro_batches < 2 * size.pp:
        return (
            f"micro-batches must be at least 2 pp = {2 * size.pp}, got {size.num_micro_batches}: "
            "the fill of the pipeline takes as many"
        )
    return None


DUALPIPE = Generator("dualpipe", build, broken_rule, splits_backward=True)
DUALPIPE_V = Generator(
    "dualpipe-v", build_v, broken_rule_v, splits_backward=True, chunks_per_rank=2
)
