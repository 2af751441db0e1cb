"""GPipe: all forwards, then all backwards in reverse order.

arXiv:1811.06965, section 2.3 and figure 2c. Bubble (p - 1)(t_F + t_B), a share (p - 1)/(m + p - 1)
of the step. Activations: all m micro-batches on every rank. Forbids chunks: a rank holds one stage.

Closed form (:mod:`parallelsim.pipeline`): exact.
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
    """Forward j in slot j; backwards follow, the last micro-batch first."""
    j = np.arange(size.num_micro_batches)
    parts = (Slots(FORWARD, 0, j, j), Slots(BACKWARD, 0, 2 * len(j) - j, j))
    return from_slots(GPIPE.name, size, parts, loop_stages(size.pp, 1))


GPIPE = Generator("gpipe", build, one_chunk)
