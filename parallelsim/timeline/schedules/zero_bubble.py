"""Zero bubble ZB-H1 and ZB-H2: the backward split into input and weight gradient.

arXiv:2401.10241, sections 2.1 and 2.2, figure 3, table 2. Only input gradients are on the way
between ranks; weight gradients fill the gaps. The rank's own bubble, between its first and last
operation:

ZB-H1  (p - 1)(t_F + t_Bi - t_W), activations p micro-batches on every rank
ZB-H2  (p - 1)(t_F + t_Bi - 2 t_W), activations 2 p - 1 micro-batches on every rank

for m >= p and m >= 2 p - 1. ZB-H2's ranks start and end one after the other: without a barrier
between steps (the paper checks the gradient norm afterwards) nobody waits; with one, the makespan
is longer by (p - 1) t_F. Forbids chunks: a rank holds one stage.

Closed forms (:mod:`parallelsim.pipeline_forms`): exact with equal stages and m >= p (ZB-H2: 2 p);
worst error 1 % and 2 %.
"""

from __future__ import annotations

import numpy as np

from parallelsim.timeline.operations import (
    FORWARD,
    INPUT,
    WEIGHT,
    Generator,
    Schedule,
    Size,
    Slots,
    from_slots,
    loop_stages,
)
from parallelsim.timeline.schedules.rules import one_chunk


def _build(name: str, size: Size, depth: int) -> Schedule:
    """Rank r runs ``depth`` (p - r - 1) forwards ahead, and weight gradients ``depth`` r behind."""
    rank = np.arange(size.pp)[:, None]
    ahead, behind = depth * (size.pp - 1 - rank), depth * rank
    j = np.arange(size.num_micro_batches)
    parts = (
        Slots(FORWARD, 0, 3 * (j - ahead), j),
        Slots(INPUT, 0, 3 * j + 1, j),
        Slots(WEIGHT, 0, 3 * (j + behind) + 2, j),
    )
    return from_slots(name, size, parts, loop_stages(size.pp, 1))


ZB_H1 = Generator("zb-h1", lambda size: _build("zb-h1", size, 1), one_chunk, splits_backward=True)
ZB_H2 = Generator("zb-h2", lambda size: _build("zb-h2", size, 2), one_chunk, splits_backward=True)
