"""Breadth-first: chunks dealt round the ranks; all micro-batches pass a chunk before the next.

arXiv:2211.05953, section 4.1 and figure 2d. Bubble (p - 1)(t_F + t_B)/v, as interleaved. Each
chunk's weights are gathered once and its gradients reduced once a step, early: made for ZeRO over
data parallelism. Activations: all m micro-batches. With v = 1 it is GPipe with the backwards in
order. Forbids nothing; with fewer micro-batches than ranks the chunks wait for each other.

Closed form (:func:`parallelsim.pipeline_forms.breadth_first_time`): exact.
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


def build(size: Size) -> Schedule:
    """Chunk c forward in turn c, backward in turn 2 v - 1 - c."""
    _, vpp, m = size
    j = np.arange(m)
    parts = []
    for chunk in range(vpp):
        parts.append(Slots(FORWARD, chunk, chunk * m + j, j))
        parts.append(Slots(BACKWARD, chunk, (2 * vpp - 1 - chunk) * m + j, j))
    return from_slots(BREADTH_FIRST.name, size, parts, loop_stages(size.pp, vpp))


def broken_rule(size: Size) -> str | None:
    """Any size goes."""
    del size
    return None


BREADTH_FIRST = Generator("breadth-first", build, broken_rule)
