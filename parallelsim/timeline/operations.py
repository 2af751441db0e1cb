"""What every rank runs, in order: :class:`Schedule`, a struct of arrays, and two ways to write one.

Symbols: p ranks, v chunks a rank, m micro-batches, r a rank, c a chunk of a rank, j a micro-batch,
s a stage: the position of a chunk in the model, 0 to S - 1.

A schedule is written either as time slots (every operation of a regular schedule has one by
formula; a rank runs its operations by ascending slot) or as phases (a rank repeats patterns of
operations; each takes the next micro-batch).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallelsim.errors import PlanError

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

FORWARD, BACKWARD, INPUT, WEIGHT = range(4)
KINDS = ("F", "B", "Bi", "W")
"""Forward, whole backward, and the backward's two halves: input gradient and weight gradient."""

MAX_OPERATIONS = 2_000_000
MAX_OPERATIONS_PER_RANK = 250_000
MAX_RANKS = 512
"""What is replayed; more is refused at once, before anything is built."""


class Size(NamedTuple):
    """What a schedule is generated from."""

    pp: int
    vpp: int
    num_micro_batches: int


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """All ranks' operations, list after list; arrays of shape [N] unless said otherwise."""

    name: str
    size: Size
    first: IntArray
    """[p + 1]: rank r runs operations first[r] to first[r + 1] - 1."""
    kind: NDArray[np.int8]
    chunk: NDArray[np.int16]
    micro_batch: NDArray[np.int32]
    paired: NDArray[np.bool_]
    """The backward may run together with the forward before it (DualPipe's F&B)."""
    stage: IntArray
    """[p, chunks]: position in the model of each chunk of each rank."""
    copy: IntArray
    """[p, chunks]: which copy of the model the chunk belongs to; a micro-batch passes through
    one."""
    flushes: bool = True
    """False: the next step's micro-batches follow without a drain (asynchronous updates)."""

    def __len__(self) -> int:
        return int(self.kind.shape[0])

    @property
    def num_ranks(self) -> int:
        """Pipeline ranks p."""
        return self.size.pp

    @property
    def num_stages(self) -> int:
        """Stages S that a micro-batch passes through."""
        return int(self.stage.max()) + 1

    @property
    def num_copies(self) -> int:
        """Copies of the weights over all ranks: 2 for bidirectional schedules."""
        return int(self.copy.max()) + 1

    @property
    def rank(self) -> IntArray:
        """Rank of each operation, [N]."""
        return np.repeat(np.arange(self.num_ranks), np.diff(self.first))

    @property
    def stages(self) -> IntArray:
        """Stage of each operation, [N]."""
        return self.stage[self.rank, self.chunk]

    def label(self, operation: int) -> str:
        """``rank 3: Bi of micro-batch 7, chunk 0``."""
        rank = int(np.searchsorted(self.first, operation, side="right")) - 1
        what = f"{KINDS[self.kind[operation]]} of micro-batch {self.micro_batch[operation]}"
        return f"rank {rank}: {what}, chunk {self.chunk[operation]}"


@dataclass(frozen=True, slots=True)
class Generator:
    """One schedule of the literature: its rules and its operation lists."""

    name: str
    build: Callable[[Size], Schedule]
    broken_rule: Callable[[Size], str | None]
    """The rule that a size breaks, as a sentence with its reason; None where it is allowed."""
    splits_backward: bool = False
    """Runs input and weight gradients as separate operations."""
    chunks_per_rank: int | None = None
    """The vpp it needs; None where any goes that the rule allows."""


def loop_stages(pp: int, vpp: int) -> IntArray:
    """Chunks dealt round the ranks: stage c p + r."""
    return np.arange(vpp) * pp + np.arange(pp)[:, None]


def wave_stages(pp: int, vpp: int) -> IntArray:
    """Chunks to and fro: down the ranks, up again; stage c p + r, or c p + p - 1 - r for odd c."""
    chunk, rank = np.arange(vpp), np.arange(pp)[:, None]
    return chunk * pp + np.where(chunk % 2 == 0, rank, pp - 1 - rank)


def two_way_stages(pp: int) -> IntArray:
    """Two copies: chunk 0 holds stage r of the first, chunk 1 stage p - 1 - r of the other."""
    rank = np.arange(pp)
    return np.stack([rank, pp - 1 - rank], axis=1)


class Slots(NamedTuple):
    """Time slots of the operations of one kind and chunk."""

    kind: int
    chunk: int
    slot: NDArray[np.generic]
    """[p, n]: slot of each rank's n operations."""
    micro_batch: IntArray
    """[n]."""


def from_slots(
    name: str, size: Size, parts: Sequence[Slots], stage: IntArray, **extra: object
) -> Schedule:
    """Ranks run their operations by ascending slot; ties in the order of the parts."""
    pp = size.pp
    slot = np.concatenate(
        [np.broadcast_to(part.slot, (pp, len(part.micro_batch))) for part in parts], axis=1
    )
    order = np.argsort(slot, axis=1, kind="stable")
    lengths = [len(part.micro_batch) for part in parts]
    kind = np.repeat([part.kind for part in parts], lengths)
    chunk = np.repeat([part.chunk for part in parts], lengths)
    micro_batch = np.concatenate([part.micro_batch for part in parts])
    return _schedule(
        name,
        size,
        np.arange(pp + 1) * slot.shape[1],
        (kind[order].ravel(), chunk[order].ravel(), micro_batch[order].ravel()),
        stage,
        **extra,
    )


Phase = tuple[int, str]
"""How often, and the pattern: operations separated by spaces, each a letter (F, B, I, W) and a
chunk.

``W`` without a chunk is the oldest input gradient's weight gradient; ``F0+B1`` are two operations
that may run together.
"""


def from_phases(
    name: str,
    size: Size,
    phases: Callable[[int], Sequence[Phase]],
    stage: IntArray,
    **extra: object,
) -> Schedule:
    """Rank r runs ``phases(r)``, without what lies beyond the last micro-batch."""
    columns: list[tuple[IntArray, ...]] = []
    for rank in range(size.pp):
        tokens = [np.tile(_tokens(pattern), (max(count, 0), 1)) for count, pattern in phases(rank)]
        kind, chunk, paired = np.concatenate(tokens).T
        micro_batch, chunk = _counted(kind, chunk)
        keep = micro_batch < size.num_micro_batches // (2 if "copy" in extra else 1)
        columns.append(tuple(a[keep] for a in (kind, chunk, micro_batch, paired)))
    kind, chunk, micro_batch, paired = (
        np.concatenate(column) for column in zip(*columns, strict=True)
    )
    first = np.cumsum([0] + [len(column[0]) for column in columns])
    if "copy" in extra:
        micro_batch = 2 * micro_batch + chunk
    return _schedule(
        name, size, first, (kind, chunk, micro_batch), stage, paired=paired > 0, **extra
    )


def _tokens(pattern: str) -> IntArray:
    """[n, 3]: kind, chunk (-1: the oldest pending), and whether it pairs with the one before."""
    found = []
    for group in pattern.split():
        for position, token in enumerate(group.split("+")):
            found.append(("FBIW".index(token[0]), int(token[1:] or -1), int(position > 0)))
    return np.array(found, np.int64)


def _counted(kind: IntArray, chunk: IntArray) -> tuple[IntArray, IntArray]:
    """The micro-batch each operation takes (the next of its kind and chunk), and its chunk."""
    micro_batch = np.empty(len(kind), np.int64)
    backward = (kind == BACKWARD) | (kind == INPUT)
    for of_kind in (kind == FORWARD, backward, kind == WEIGHT):
        for number in np.unique(chunk[of_kind]):
            same = np.flatnonzero(of_kind & (chunk == number))
            micro_batch[same] = np.arange(len(same))
    oldest = np.flatnonzero((kind == WEIGHT) & (chunk < 0))
    if len(oldest):
        source = np.flatnonzero(kind == INPUT)
        chunk = chunk.copy()
        chunk[oldest], micro_batch[oldest] = chunk[source], micro_batch[source]
    return micro_batch, chunk


def _schedule(
    name: str,
    size: Size,
    first: IntArray,
    columns: tuple[IntArray, IntArray, IntArray],
    stage: IntArray,
    **extra: object,
) -> Schedule:
    kind, chunk, micro_batch = columns
    values: dict[str, object] = {
        "paired": np.zeros(len(kind), np.bool_),
        "copy": np.zeros_like(stage),
        **extra,
    }
    return Schedule(
        name=name,
        size=size,
        first=first.astype(np.int64),
        kind=kind.astype(np.int8),
        chunk=chunk.astype(np.int16),
        micro_batch=micro_batch.astype(np.int32),
        stage=stage.astype(np.int64),
        **values,  # type: ignore[arg-type]
    )


def check_size(generator: Generator, size: Size) -> None:
    """Refuse what would take too long before anything is built.

    Raises:
        PlanError: more ranks or operations than are replayed.
    """
    pp, vpp, m = size
    if min(size) < 1:
        raise PlanError(
            f"{generator.name}: pp, vpp and micro-batches must be at least 1, got {pp}, {vpp}, {m}"
            + ("; the batch gives a replica no whole micro-batch" if m < 1 else "")
        )
    if pp > MAX_RANKS:
        raise PlanError(
            f"{generator.name}: pp={pp} is beyond the {MAX_RANKS} ranks that a timeline replays"
        )
    per_rank = vpp * m * (3 if generator.splits_backward else 2)
    if per_rank * pp > MAX_OPERATIONS or per_rank > MAX_OPERATIONS_PER_RANK:
        raise PlanError(
            f"{generator.name}: pp={pp}, vpp={vpp} and {m} micro-batches make {per_rank * pp} "
            f"operations, {per_rank} a rank; a timeline replays {MAX_OPERATIONS}, "
            f"{MAX_OPERATIONS_PER_RANK} a rank: use fewer micro-batches"
        )
