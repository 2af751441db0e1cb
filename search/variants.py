"""Plans that are variants of one another: they deal the work to the GPUs in the same way.

A ranking has one row for each way, its fastest variant. What is left free inside a row: virtual
stages, schedule, cut into stages, recompute, kinds of communication, switches.
"""

from __future__ import annotations

import numpy as np

from parallelsim.operators import IntArray
from parallelsim.plan_batch import PlanBatch

SHARED = (
    *("tp", "cp", "pp", "dp", "ep", "etp", "micro_batch_size"),
    *("zero", "dp_replicate", "reshard_after_forward"),
)
"""What variants have in common: degrees, micro-batch and sharding."""
_MOST = 2**62


def variant_groups(plans: PlanBatch, all_variants: bool = False) -> IntArray:
    """A number for each plan, from 0, equal for variants of one another; shape [P].

    With ``all_variants`` each plan is a group of its own.
    """
    if all_variants:
        return np.arange(len(plans))
    codes, sizes = np.zeros(len(plans), np.int64), 1
    for name in SHARED:
        values = np.asarray(getattr(plans, name), np.int64)
        size = int(values.max(initial=0)) + 1
        if sizes * size > _MOST:
            codes = np.unique(codes, return_inverse=True)[1]
            sizes = len(codes)
        codes, sizes = codes * size + values, sizes * size
    return np.asarray(np.unique(codes, return_inverse=True)[1], np.int64)


def way(plans: PlanBatch, index: int) -> tuple[int, ...]:
    """What a plan has in common with its variants."""
    return tuple(int(getattr(plans, name)[index]) for name in SHARED)


def first_of_groups(groups: IntArray, at_most: int) -> IntArray:
    """Positions of the first ``at_most`` of each group, in order."""
    ranked = np.argsort(groups, kind="stable")
    in_order = groups[ranked]
    starts = np.flatnonzero(np.diff(in_order, prepend=-1))
    place = np.arange(len(groups)) - np.repeat(starts, np.diff(starts, append=len(groups)))
    return np.sort(ranked[place < at_most])
