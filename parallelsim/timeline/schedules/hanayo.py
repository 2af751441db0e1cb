"""Hanayo: one copy of the model in W waves, down the ranks and up again; v = 2 W chunks.

After arXiv:2308.15762: Chimera's two directions become the two halves of a wave, so that weights
are held once; S = 2 W p stages. The lists were built from that description, not copied from the
paper's figures: a unit of m = p micro-batches on equal stages with t_B >= t_F has a bubble of 2 (p
- 1) t_B/v, in t_B = 2 t_F a share (2 p - 2)/(3 p W + 2 p - 2) of the step. That is Chimera's on
twice the ranks, and W times less with W waves. Activations: at most p micro-batches of a whole
stage, as 1F1B's rank 0. More micro-batches follow in units of p. Forbids odd v: a wave is two
chunks.

Closed form (:func:`parallelsim.pipeline_forms.hanayo_time`): exact with whole units
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
