"""1F1B (DAPPLE, PipeDream-Flush): as soon as the pipeline is full, one forward, one backward.

arXiv:2006.09503 section 2.2 and arXiv:2104.04473 section 2.2.1, figure 4 above. Rank r runs p - r -
1 forwards before it alternates. Bubble (p - 1)(t_F + t_B), as GPipe. Activations: min(p - r, m)
micro-batches on rank r. Forbids chunks: with them it is interleaved-1f1b.

Closed form (:mod:`parallelsim.pipeline`): exact with equal stages, or one slower at either end;
median error 0, worst 1 %.
"""

from __future__ import annotations

import numpy as np

from parallelsim.timeline.operations import (
    BACKWARD,
    FORWARD,
    Generator,
    Schedule,
    Size,
    Slots,
    from_slots,
    loop_stages,
)
from parallelsim.timeline.schedules.rules import one_chunk


def build(size: Size) -> Schedule:
    """Forward j in slot 2 (j - w), backward j in slot 2 j + 1; w = p - r - 1 forwards ahead."""
    ahead = size.pp - 1 - np.arange(size.pp)[:, None]
    j = np.arange(size.num_micro_batches)
    parts = (Slots(FORWARD, 0, 2 * (j - ahead), j), Slots(BACKWARD, 0, 2 * j + 1, j))
    return from_slots(ONE_F_ONE_B.name, size, parts, loop_stages(size.pp, 1))


ONE_F_ONE_B = Generator("1f1b", build, one_chunk)
