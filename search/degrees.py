"""Parallel degrees that fill the GPUs, and micro-batches that fill the batch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from parallelsim.search.asked import Asked

from parallelsim.cluster import ClusterSpec
from parallelsim.errors import PlanError
from parallelsim.framework import FrameworkSpec
from parallelsim.model import ModelSpec

MAX_MICRO_BATCH_SIZE = 64
MAX_SHORT_TOKENS = 32_768
"""Sequences (images) so short that 64 of them are fewer tokens: as many as make these."""
MAX_SHORT_BATCH_SIZE = 1024


def divisors(number: int) -> list[int]:
    """All of them, ascending."""
    low = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*low, *(number // n for n in low)})


def degree_values(
    model: ModelSpec, cluster: ClusterSpec, framework: FrameworkSpec, asked: Asked
) -> dict[str, list[int]]:
    """Values of tp, cp, pp and dp: divisors of the number of GPUs.

    Raises:
        PlanError: none of the given values can be one.
    """
    every = divisors(cluster.num_gpus)
    few = [n for n in every if n <= model.num_layers + 2]
    has_cp = bool(framework.capabilities.cp_comm_types)
    whole = [n for n in every if n == 1 or (has_cp and model.seq_length % (2 * n) == 0)]
    inside = [n for n in every if n <= cluster.domain_size]
    return {
        "tp": _asked_degree("tp", inside, every, cluster, asked),
        "cp": _asked_degree("cp", whole, every if has_cp else [1], cluster, asked),
        "pp": _asked_degree("pp", few, few, cluster, asked),
        "dp": _asked_degree("dp", every, every, cluster, asked),
    }


def _asked_degree(
    name: str, default: list[int], possible: list[int], cluster: ClusterSpec, asked: Asked
) -> list[int]:
    values = asked.allowed(name, default, possible)
    if not values:
        given = ", ".join(str(v) for v in asked.values[name])
        shown = ", ".join(str(n) for n in possible[:12]) + (", ..." if len(possible) > 12 else "")
        raise PlanError(
            f"{name}={given} is not possible on {cluster.num_gpus} GPUs with this model; it can be "
            f"{shown}"
        )
    return values


def degree_choices(
    degrees: Mapping[str, list[int]], num_gpus: int, pp: int
) -> Iterator[tuple[int, int, int]]:
    """(tp, cp, dp) that fill the GPUs together with pp."""
    dps = set(degrees["dp"])
    for tp in degrees["tp"]:
        rest, left = divmod(num_gpus, tp * pp)
        for cp in degrees["cp"] if left == 0 else ():
            if rest % cp == 0 and rest // cp in dps:
                yield tp, cp, rest // cp


def largest_micro_batch(seq_length: int) -> int:
    """Sequences of the largest micro-batch that is searched."""
    short = min(MAX_SHORT_TOKENS // seq_length, MAX_SHORT_BATCH_SIZE)
    return max(MAX_MICRO_BATCH_SIZE, short)


def micro_batch_sizes(global_batch_size: int, dp: int, largest: int, asked: Asked) -> list[int]:
    """Sizes that divide a replica's share of the batch, or those of the caller's."""
    per_replica, left = divmod(global_batch_size, dp)
    given = asked.values.get("micro_batch_size", ())
    possible = [int(n) for n in given if 1 <= int(n) <= max(per_replica, 1)]
    # A batch that the replicas do not divide has no micro-batch: one plan stays to say so.
    sizes = [n for n in range(1, largest + 1) if per_replica % n == 0]
    return asked.allowed("micro_batch_size", [1] if left else sizes, possible)
