"""Canonical ways to shard data parallelism: ZeRO stages and groups of which replicas exist."""

from __future__ import annotations

import math

from parallelsim.search.asked import Asked

from parallelsim.framework import FrameworkSpec

Shardings = tuple[tuple[int, int, int], ...]
"""Values of zero, dp_replicate and reshard_after_forward."""


def sharding_choices(
    framework: FrameworkSpec, asked: Asked, *, pp: int, cp: int, dp: int
) -> Shardings:
    """Hybrid groups have at least two ranks; sharded gradients need one stage, or software that
    scatters them once a step. What the framework's file says to leave out comes where it is
    asked for. Stages of a pipeline keep what they gathered.
    """
    can, many = framework.capabilities, dp * cp > 1
    highest = 3 if pp == 1 or can.sharded_stages else 1
    possible = [z for z in can.zero_stages if z == 0 or (many and z <= highest)]
    zeros = [z for z in possible if z not in can.zero_on_request] or possible
    ways = []
    for zero in asked.allowed("zero", zeros, can.zero_stages if many else possible):
        sizes = [n for n in _divisors(dp) if n < dp * cp]
        replicates = can.optimizer_replicas if zero == 1 else zero >= 2 and can.hybrid_sharding
        groups = sizes if replicates else [1]
        frees = [True, False] if zero == 3 and can.reshard_choice else [True]
        frees = frees[-1:] if pp > 1 else frees
        ways += [
            (zero, n, freed)
            for n in asked.allowed("dp_replicate", groups, groups)
            for freed in asked.allowed("reshard_after_forward", frees, frees)
        ]
    return tuple(ways)


def _divisors(number: int) -> list[int]:
    """Of a whole number, in order."""
    low = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*low, *(number // n for n in low)})
