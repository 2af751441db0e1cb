"""ZB-V: split backward over a V: chunk 0 down the ranks, chunk 1 up again.

arXiv:2401.10241, section 6 (V-ZB of arXiv:2405.15362). No bubble between a rank's
first and last operation where t_F = t_Bi = t_W and m >= 2 p - 1; activations: 2 p chunks, p
micro-batches of a whole stage, on every rank. Forbids v != 2. Fewer micro-batches go; the
operations of those missing are left out.

Closed form (:func:`parallelsim.pipeline_forms.zb_v_time`): exact with equal stages and m >= 2 p -
1; worst error 1 %, 3 % with fewer micro-batches than ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

from parallelsim.timeline.operations import (
    Generator,
    Phase,
    Schedule,
    Size,
    from_phases,
    wave_stages,
)
from parallelsim.timeline.schedules.rules import two_chunks


def build(size: Size) -> Schedule:
    """Fill the V, then in turn a forward and both halves of a backward of either chunk; drain."""
    pp, m = size.pp, max(size.num_micro_batches, 2 * size.pp - 1)

    def phases(rank: int) -> Sequence[Phase]:
        left = pp - rank
        return (
            (2 * left - 1, "F0"),
            (rank, "F1 F0"),
            (left, "F1 I1 W1"),
            (m - (2 * left - 1) - rank, "F0 I0 W0 F1 I1 W1"),
            (left - 1, "I0 W0 F1 I1 W1"),
            (rank, "I0 I1"),
            (left, "I0 W0"),
            (rank, "W1"),
            (rank, "W0"),
        )

    return from_phases("zb-v", size, phases, wave_stages(pp, 2))


ZB_V = Generator("zb-v", build, two_chunks, splits_backward=True, chunks_per_rank=2)
