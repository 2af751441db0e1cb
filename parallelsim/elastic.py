"""A run that loses nodes: the best plan for what is left, and when switching to it pays.

The global batch stays, so that the training stays the same. Neglects plans that leave ranks unequal
batches, spare nodes, and that the model's default batch may divide better elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from parallelsim.cluster import ClusterSpec
from parallelsim.default_batch import default_global_batch_size
from parallelsim.fit import Task, allowed_sizes
from parallelsim.objectives import row_recovery, with_goodput
from parallelsim.sweep import FOUND, Point, Row, run
from parallelsim.whole_run import Budget, lost_time

MOST_SIZES = 33
"""Sizes that are all tried; of more, those that miss few nodes, and 2^k or 3 2^k of them."""
EACH_TRIED = 16
"""Missing nodes up to which each number is tried in any case."""


@dataclass(frozen=True)
class Shrunk:
    """What is left of the cluster, and the plan for it."""

    num_gpus: int
    used: Row | None
    """The plan that makes most progress on that many GPUs or fewer; None: there is none."""
    switch_s: float
    """Until training goes on with it: restart, and the checkpoint read into its layout."""
    back_s: float
    """The checkpoint before the return to all GPUs, whose restart is paid either way."""
    pays_after_s: float
    """Repairs that take longer are worth the switch; infinite without a plan."""


@dataclass(frozen=True)
class Elastic:
    """Answer of :func:`elastic`."""

    full: Row
    """The best plan on all GPUs."""
    restart_s: float
    """Of all GPUs, the checkpoint read."""
    lost_s: float
    """Training that a failure undoes, expected: lost whether the run waits or switches."""
    sizes: tuple[Shrunk, ...]
    """From one node less down to half."""
    rows: tuple[Row, ...]
    """Each size that was tried, ascending, with or without a plan."""


def pays_after(switch_s: float, back_s: float, full_rate: float, rate: float) -> float:
    """Seconds of repair above which a run gains by switching.

    R_n (T - s) = R b,   T = s + b R / R_n

    Waiting makes no progress for T. Switching takes s, then trains at R_n tokens/s until the
    repair, then writes a checkpoint for b, while the run that waited trains at R. Both restart on
    all GPUs then, and both have lost the steps since the last checkpoint. Neglects that reading a
    checkpoint into other shards may be slower than into the same ones.
    """
    return switch_s + back_s * full_rate / rate if rate else np.inf


def sizes_left(cluster: ClusterSpec, num_gpus: int) -> list[int]:
    """Sizes from ``num_gpus`` down to half of it, in whole nodes."""
    sizes = allowed_sizes(cluster, -(-num_gpus // 2), num_gpus)[::-1]
    if len(sizes) <= MOST_SIZES:
        return sizes
    lost = {i for i in range(EACH_TRIED + 1)} | {m << k for m in (1, 3) for k in range(40)}
    return [size for i, size in enumerate(sizes) if i in lost or i == len(sizes) - 1]


def elastic(
    task: Task,
    num_gpus: int,
    budget: Budget,
    num_processes: int = 1,
) -> Elastic | None:
    """The plans for ``num_gpus`` and for what is left when nodes fail, down to half.

    Args:
        task: what is trained; its batch, or the model's for ``num_gpus``, is kept at all sizes.
        num_gpus: all GPUs.
        budget: how the run fails and recovers.
        num_processes: searches at once.

    Returns:
        None where no plan is safe on all GPUs.
    """
    batch = task.global_batch_size or default_global_batch_size(task.model, num_gpus)
    task = replace(task, global_batch_size=batch)
    wanted = [Point(task.model.seq_length, batch, n) for n in sizes_left(task.cluster, num_gpus)]
    rows = [with_goodput(task, budget, row) for row in run(task, wanted, num_processes)]
    rows.sort(key=lambda row: int(row["num_gpus"]))
    full = rows[-1]
    if full["status"] != FOUND:
        return None
    kept = row_recovery(task, budget, full)
    lost = float(lost_time(kept, np.array([full["step_time_s"]]))[0])
    shrunk = tuple(
        _shrunk(task, budget, full, int(row["num_gpus"]), rows) for row in reversed(rows[:-1])
    )
    return Elastic(full, float(kept.restart_s[0]), lost, shrunk, tuple(rows))


def _shrunk(task: Task, budget: Budget, full: Row, num_gpus: int, rows: Sequence[Row]) -> Shrunk:
    fits = [row for row in rows if row["status"] == FOUND and int(row["num_gpus"]) <= num_gpus]
    if not fits:
        return Shrunk(num_gpus, None, np.inf, np.inf, np.inf)
    used = max(fits, key=lambda row: float(row["kept_tokens_per_s"]))
    kept = row_recovery(task, budget, used)
    switch, back = float(kept.restart_s[0]), float(kept.write_s[0])
    rates = float(full["kept_tokens_per_s"]), float(used["kept_tokens_per_s"])
    return Shrunk(num_gpus, used, switch, back, pays_after(switch, back, *rates))
