"""Chimera: two copies of the model in opposite directions, each run as 1F1B.

arXiv:2107.06925 (bidirectional pipelines; for more micro-batches, direct concatenation). For m = p
micro-batches, half a direction: makespan p t_F + (2 p - 2) t_B for t_B >= t_F (the paper's C_f and
C_b), hence a bubble of (p - 2) t_B, and p/2 - 1 forwards and backwards each with t_F = t_B.
Activations between p/2 + 1 and p stages' micro-batches. More micro-batches follow in units of p;
with t_F = t_B the units fit together without a gap, with t_B > t_F they leave some (the paper's
forward doubling is not built). Weights: two copies. Forbids odd p and odd m: the directions would
collide on a rank.

Closed form (:func:`parallelsim.pipeline_forms.chimera_time`): exact with whole units
where t_B >= t_F, else worst 1.5 %.
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
    two_way_stages,
)
from parallelsim.timeline.schedules.rules import two_way


def build(size: Size) -> Schedule:
    """Unit u, micro-batch i a direction: F in 2 p u + s + 2 i, B in 2 p (u + 1) - 1 - s + 2 i."""
    pp, _, m = size
    stage = two_way_stages(pp)
    j = np.arange(m // 2)
    unit, i = np.divmod(j, pp // 2)
    parts = []
    for copy in range(2):
        s = stage[:, copy, None]
        parts.append(Slots(FORWARD, copy, 2 * pp * unit + s + 2 * i, 2 * j + copy))
        parts.append(Slots(BACKWARD, copy, 2 * pp * (unit + 1) - 1 - s + 2 * i, 2 * j + copy))
    return from_slots(CHIMERA.name, size, parts, stage, copy=np.tile([0, 1], (pp, 1)))


CHIMERA = Generator("chimera", build, two_way)
