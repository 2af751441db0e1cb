"""Interleaved 1F1B: v chunks a rank, dealt round the ranks; micro-batches in groups.

arXiv:2104.04473, section 2.2.2, figure 4 below; groups as in Megatron-core (default: of p). Within
a group all micro-batches pass a chunk before the next chunk's turn. Rank r runs 2 (p - r - 1) + (v
- 1) g chunk forwards before it alternates. Bubble (p - 1)(t_F + t_B)/v: a share (p - 1)/(v m) of
the computation. Activations of rank 0: p + (p - 1)/v micro-batches of a whole stage. Forbids v = 1
(that is 1f1b), and a last group smaller than p, whose chunk forwards would not reach the first rank
again before they are needed (Megatron's rule; with groups of p: m a multiple of p).

Closed form (:mod:`parallelsim.pipeline`), groups of p: exact with equal chunks; median error 0,
worst 0.2 %, with m >= p.
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
    """Groups of p micro-batches."""
    return build_grouped(size, size.pp)


def build_grouped(size: Size, group: int) -> Schedule:
    """A rank's k-th chunk forward in slot 2 (k - w), its k-th chunk backward in slot 2 k + 1."""
    pp, vpp, m = size
    j = np.arange(m)
    start = j // group * group
    members = np.minimum(group, m - start)
    ahead = 2 * (pp - 1 - np.arange(pp)[:, None]) + (vpp - 1) * group

    turn = [start * vpp + chunk * members + j - start for chunk in range(vpp)]
    parts = []
    for chunk in range(vpp):
        parts.append(Slots(FORWARD, chunk, 2 * (turn[chunk] - ahead), j))
        parts.append(Slots(BACKWARD, chunk, 2 * turn[vpp - 1 - chunk] + 1, j))
    return from_slots(INTERLEAVED.name, size, parts, loop_stages(pp, vpp))


def broken_rule(size: Size) -> str | None:
    """Groups of p."""
    return broken_rule_grouped(size, size.pp)


def broken_rule_grouped(size: Size, group: int) -> str | None:
    """At least two chunks and ranks; groups, the last included, of at least p micro-batches."""
    pp, vpp, m = size
    if pp < 2:
        return "pp must be at least 2: chunks of one rank have nothing to interleave with"
    if vpp < 2:
        return "vpp must be at least 2: with one chunk a rank this is 1f1b"
    if not pp <= group <= m:
        return (
            f"the micro-batch group must be between pp={pp} and the {m} micro-batches, got {group}"
        )
    if 0 < m % group < pp:
        return (
            f"{m} micro-batches in groups of {group} leave a last group of {m % group}: it must be "
            f"empty or at least pp={pp}, or its chunks would wait for each other"
        )
    return None


INTERLEAVED = Generator("interleaved-1f1b", build, broken_rule)
