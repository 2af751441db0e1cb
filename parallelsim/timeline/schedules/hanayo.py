"""Hanayo: one copy of the model in W waves, down the ranks and up again; v = 2 W chunks.

arXiv:2308.15762, section 3.3, figures 5 and 6: Chimera's two directions become the two halves of a
wave, so that weights are held once. A unit of m = p micro-batches with S = p v stages and equal
slots takes 2 S + 2 p - 2 slots of t_F/v: bubble (p - 1)(t_F + t_B)/v, half of 1F1B's for one wave,
and less by every further wave. Activations: at most p micro-batches of a whole stage, as 1F1B's
rank 0. More micro-batches follow in units of p. Forbids odd v: a wave is two chunks.
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
    wave_stages,
)


def build(size: Size) -> Schedule:
    """Of unit u, micro-batch i: F in slot 2 S u + s + 2 i, B in 2 S (u + 1) - 1 - s + 2 i."""
    pp, vpp, m = size
    stage, num_stages = wave_stages(pp, vpp), pp * vpp
    j = np.arange(m)
    unit, i = np.divmod(j, pp)
    parts = []
    for chunk in range(vpp):
        s = stage[:, chunk, None]
        parts.append(Slots(FORWARD, chunk, 2 * num_stages * unit + s + 2 * i, j))
        parts.append(Slots(BACKWARD, chunk, 2 * num_stages * (unit + 1) - 1 - s + 2 * i, j))
    return from_slots(HANAYO.name, size, parts, stage)


def broken_rule(size: Size) -> str | None:
    """Whole waves."""
    if size.vpp % 2:
        return (
            f"vpp must be even, got {size.vpp}: a wave is two chunks, down the ranks and up again"
        )
    return None


HANAYO = Generator("hanayo", build, broken_rule)
