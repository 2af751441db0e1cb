"""A schedule's operations sorted by dependency level, once, for any number of replays.

Dependencies, for micro-batch j and stage s of S: F(j, s) after F(j, s - 1) and its transfer; B or
Bi(j, s) after B or Bi(j, s + 1) and its transfer, and after F(j, s); W(j, s) after Bi(j, s); the
operations of a rank in list order. The two on the own rank follow from the list order (checked), so
that a node waits for two others at most: the one before it on its rank, and the one that sends to
it.

Two features add a node of no duration where a third arrives: before the first forward of a chunk
whose parameters are gathered, and before a forward and backward that run together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallelsim.errors import PlanError
from parallelsim.timeline.operations import BACKWARD, FORWARD, INPUT, WEIGHT, IntArray, Schedule

NONE = -1


class Endings(NamedTuple):
    """List positions that hooks attach to, of each rank and chunk, [p, chunks]."""

    first_forward: IntArray
    last_backward: IntArray
    """Its weight gradient where the backward is split."""


class CostClass(NamedTuple):
    """What the duration of a node depends on, arrays of shape [K]."""

    kind: IntArray
    """NONE: no duration."""
    stage: IntArray
    link: IntArray
    """Rank boundary that the result crosses: r joins ranks r and r + 1, modulo p; NONE: it
    stays."""
    partner_stage: IntArray
    """Stage of the backward that runs together with this forward; NONE: it runs alone."""


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """Nodes in level order, [M]; in a replay's state they follow the heads.

    The heads are constants: time 0, then the time at which each chunk's parameters are there.
    """

    schedule: Schedule
    gathers: bool
    pairs: bool
    levels: tuple[tuple[int, int], ...]
    """First and last-plus-one node of each level."""
    own: IntArray
    """[M]: row of the state of the node before on the rank, or of a head."""
    sent: IntArray
    """[M]: row of the state of the node that sends, or of a head."""
    waits: NDArray[np.intp]
    """[2 M], level by level, first own, then sent: 2 k is when the rank of row k is free, 2 k + 1
    when its result is there."""
    cost_class: IntArray
    classes: CostClass
    node: IntArray
    """[N]: the node of each operation of the schedule."""
    sender: IntArray
    """[N]: the operation whose result each operation waits for; NONE where there is none."""
    endings: Endings

    @property
    def num_heads(self) -> int:
        """Constants before the nodes."""
        return 1 + self.schedule.stage.size

    @property
    def num_nodes(self) -> int:
        """Operations and joins M."""
        return len(self.cost_class)


def compile_graph(schedule: Schedule, *, gathers: bool = False, pairs: bool = False) -> Graph:
    """Sort the operations by level.

    ``gathers``: chunks wait for their parameters; ``pairs``: paired operations run together.

    Raises:
        PlanError: an operation missing, doubled or before what it needs, or ranks that wait for
            each other.
    """
    sender = _senders(schedule)
    endings = _endings(schedule)
    wait_for_parameters = np.zeros(len(schedule), np.bool_)
    if gathers:
        wait_for_parameters[endings.first_forward] = True
    together = np.zeros(len(schedule), np.bool_)
    if pairs:
        together[:-1] = schedule.paired[1:]
    extra = wait_for_parameters.astype(np.int64) + together
    node = np.arange(len(schedule)) + np.cumsum(extra)
    num_heads = 1 + schedule.stage.size
    num_nodes = int(len(schedule) + extra.sum())

    waits_for = np.full(num_nodes, NONE)
    waits_for[node] = np.where(sender == NONE, NONE, node[sender])
    if gathers:
        at = node[endings.first_forward] - 1 - together[endings.first_forward]
        waits_for[at] = -2 - (1 + np.arange(at.size).reshape(at.shape))
    if pairs:
        forward = np.flatnonzero(together)
        waits_for[node[forward] - 1] = waits_for[node[forward + 1]]
        waits_for[node[forward + 1]] = NONE
    first = np.append(node - extra, num_nodes)[schedule.first]
    level = _levels(schedule, first, waits_for, node)

    order = np.argsort(level, kind="stable")
    row = np.empty(num_nodes + num_heads, np.int64)
    row[order] = np.arange(num_nodes) + num_heads
    before = np.arange(num_nodes) - 1
    before[first[:-1]] = NONE
    own = np.where(before == NONE, 0, row[before])
    sent = np.where(waits_for >= 0, row[waits_for], np.where(waits_for == NONE, 0, -2 - waits_for))
    ends = np.cumsum(np.bincount(level)[1:])
    bounds = np.concatenate([[0], ends])
    kinds, classes = _cost_classes(schedule, node, together, num_nodes)
    return Graph(
        schedule=schedule,
        gathers=gathers,
        pairs=pairs,
        levels=tuple(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)),
        own=own[order],
        sent=sent[order],
        waits=_by_level(2 * own[order], 2 * sent[order] + 1, bounds),
        cost_class=kinds[order],
        classes=classes,
        node=row[node] - num_heads,
        sender=sender,
        endings=endings,
    )


def _senders(schedule: Schedule) -> IntArray:
    """The operation on another stage that each one waits for; checks the lists."""
    kind, j, s = schedule.kind, schedule.micro_batch.astype(np.int64), schedule.stages
    num_stages = schedule.num_stages
    cell = j * num_stages + s
    cells = schedule.size.num_micro_batches * num_stages
    position = np.arange(len(schedule))
    at = {}
    for name, chosen in (
        ("F", kind == FORWARD),
        ("B", (kind == BACKWARD) | (kind == INPUT)),
        ("Bi", kind == INPUT),
        ("W", kind == WEIGHT),
    ):
        at[name] = np.full(cells, NONE)
        at[name][cell[chosen]] = position[chosen]
        wanted = cells if name in "FB" else int((kind == INPUT).sum())
        if chosen.sum() != wanted or (at[name] != NONE).sum() != wanted:
            raise PlanError(f"{schedule.name}: every micro-batch needs one {name} on every stage")
    split = at["Bi"] != NONE
    if (at["F"] > at["B"]).any() or (at["Bi"][split] > at["W"][split]).any():
        raise PlanError(
            f"{schedule.name}: a rank runs a backward before its forward, or W before Bi"
        )
    sender = np.full(len(schedule), NONE)
    forward = np.flatnonzero((kind == FORWARD) & (s > 0))
    sender[forward] = at["F"][cell[forward] - 1]
    backward = np.flatnonzero(((kind == BACKWARD) | (kind == INPUT)) & (s < num_stages - 1))
    sender[backward] = at["B"][cell[backward] + 1]
    return sender


def _endings(schedule: Schedule) -> Endings:
    slot = schedule.rank * schedule.stage.shape[1] + schedule.chunk
    first, last = (np.zeros(schedule.stage.size, np.int64) for _ in range(2))
    forward = np.flatnonzero(schedule.kind == FORWARD)
    first[slot[forward][::-1]] = forward[::-1]
    backward = np.flatnonzero((schedule.kind == BACKWARD) | (schedule.kind == WEIGHT))
    last[slot[backward]] = backward
    return Endings(first.reshape(schedule.stage.shape), last.reshape(schedule.stage.shape))


def _levels(schedule: Schedule, first: IntArray, waits_for: IntArray, node: IntArray) -> IntArray:
    """The longest chain of waits that ends in each node, counted from 1.

    Each rank runs as far as it can; one that waits is resumed by the node it waits for.
    """
    sent, starts = waits_for.tolist(), first.tolist()
    position, level = starts[:-1], [0] * len(sent)
    waiting: dict[int, int] = {}
    ready = list(range(schedule.num_ranks))[::-1]
    while ready:
        rank = ready.pop()
        at, end = position[rank], starts[rank + 1]
        height = level[at - 1] if at > starts[rank] else 0
        while at < end:
            other = sent[at]
            if other >= 0:
                reached = level[other]
                if reached == 0:
                    waiting[other] = rank
                    break
                if reached > height:
                    height = reached
            height += 1
            level[at] = height
            if at in waiting:
                ready.append(waiting.pop(at))
            at += 1
        position[rank] = at
    if waiting:
        rank = min(waiting.values())
        stuck = int(np.searchsorted(node, position[rank]))
        raise PlanError(
            f"{schedule.name}: the ranks wait for each other, first at {schedule.label(stuck)}"
        )
    return np.array(level)


def _by_level(own: IntArray, sent: IntArray, bounds: IntArray) -> NDArray[np.intp]:
    """The two rows of waits, interleaved level by level."""
    sizes = np.diff(bounds)
    start = np.repeat(bounds[:-1], sizes)
    within = np.arange(len(own)) - start
    waits = np.empty(2 * len(own), np.intp)
    waits[2 * start + within] = own
    waits[2 * start + np.repeat(sizes, sizes) + within] = sent
    return waits


def _cost_classes(
    schedule: Schedule, node: IntArray, together: NDArray[np.bool_], num_nodes: int
) -> tuple[IntArray, CostClass]:
    """The class of each node, and the classes; class 0 has no duration."""
    num_stages, pp = schedule.num_stages, schedule.num_ranks
    copies, stages = schedule.num_copies, np.arange(num_stages)
    rank_of = np.empty((copies, num_stages), np.int64)
    rank_of[schedule.copy, schedule.stage] = np.arange(pp)[:, None]
    there = [np.roll(rank_of, -1, axis=1), np.roll(rank_of, 1, axis=1)]
    there[0][:, -1], there[1][:, 0] = rank_of[:, -1], rank_of[:, 0]
    kind, copy, stage = (
        a.ravel() for a in np.meshgrid(range(4), range(copies), stages, indexing="ij")
    )
    to = np.where(kind == FORWARD, there[0][copy, stage], there[1][copy, stage])
    to = np.where(kind == WEIGHT, rank_of[copy, stage], to)
    link = _link(rank_of[copy, stage], to, pp)

    copies_of = schedule.copy[schedule.rank, schedule.chunk]
    of_operation = (
        1 + (schedule.kind.astype(np.int64) * copies + copies_of) * num_stages + schedule.stages
    )
    forward = np.flatnonzero(together)
    alone, number = np.unique(
        of_operation[forward] * num_stages
        + schedule.stages[np.minimum(forward + 1, len(schedule) - 1)],
        return_inverse=True,
    )
    of_operation[forward] = 1 + len(kind) + number
    # The result of the paired backward leaves when the pair ends: no duration, but a transfer.
    base, partner = np.divmod(alone, num_stages)
    sends, sent_number = np.unique(
        of_operation[forward + 1] if len(forward) else forward, return_inverse=True
    )
    of_operation[forward + 1] = 1 + len(kind) + len(alone) + sent_number
    base, sends = base - 1, sends - 1
    none = np.full(len(sends), NONE)
    of_node = np.zeros(num_nodes, np.int64)
    of_node[node] = of_operation
    head, no_partner = np.array([NONE]), np.full(len(kind), NONE)
    return of_node, CostClass(
        kind=np.concatenate([head, kind, kind[base], none]),
        stage=np.concatenate([head, stage, stage[base], none]),
        link=np.concatenate([head, link, link[base], link[sends]]),
        partner_stage=np.concatenate([head, no_partner, partner, none]),
    )


def _link(here: IntArray, there: IntArray, pp: int) -> IntArray:
    """The boundary between two neighbouring ranks; the first and the last are neighbours too."""
    low, high = np.minimum(here, there), np.maximum(here, there)
    return np.where(here == there, NONE, np.where(high - low == 1, low, pp - 1))
