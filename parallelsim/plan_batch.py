"""Many plans as a struct of arrays: :class:`PlanBatch`, the fields of a :class:`Plan`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallelsim.plan import CHOICES, FIELD_TYPES, NO_CUTS, PLAN_FIELDS, Cuts, IntArray, Plan


@dataclass(frozen=True, slots=True, eq=False)
class PlanBatch:
    """Plans as a struct of int64 arrays of one shape [P]; names are codes, switches are 0 or 1.

    ``chunk_layers`` are positions in the batch's own table ``cuts``.
    """

    tp: IntArray
    cp: IntArray
    pp: IntArray
    vpp: IntArray
    dp: IntArray
    ep: IntArray
    etp: IntArray
    micro_batch_size: IntArray
    global_batch_size: IntArray
    schedule: IntArray
    layout: IntArray
    first_stage_layers: IntArray
    last_stage_layers: IntArray
    chunk_layers: IntArray
    sequence_parallel: IntArray
    zero: IntArray
    recompute: IntArray
    recompute_num_layers: IntArray
    recompute_modules: IntArray
    precision: IntArray
    grad_dtype: IntArray
    cp_comm_type: IntArray
    cp_a2a: IntArray
    tp_comm_overlap: IntArray
    overlap_grad_reduce: IntArray
    overlap_param_gather: IntArray
    cross_entropy_fusion: IntArray
    cuda_graphs: IntArray
    moe_dispatcher: IntArray
    ep_comm_overlap: IntArray
    fp8_param_gather: IntArray
    dp_replicate: IntArray
    reshard_after_forward: IntArray
    compile: IntArray
    optimizer: IntArray
    activation_offload_pct: IntArray
    optimizer_offload_pct: IntArray
    cuts: Cuts = NO_CUTS

    def __len__(self) -> int:
        return int(self.tp.shape[0])

    @property
    def num_gpus(self) -> IntArray:
        """Tp * cp * pp * dp, shape [P]."""
        return self.tp * self.cp * self.pp * self.dp

    @classmethod
    def from_plans(cls, plans: Sequence[Plan]) -> PlanBatch:
        """A batch of the given plans, in order."""
        cuts = _table(plan.chunk_layers for plan in plans)
        position = {cut: index for index, cut in enumerate(cuts)}
        columns = {
            name: [_code(name, getattr(p, name)) for p in plans]
            for name in PLAN_FIELDS
            if name != "chunk_layers"
        }
        columns["chunk_layers"] = [position[plan.chunk_layers] for plan in plans]
        return cls(**{k: np.array(v, np.int64) for k, v in columns.items()}, cuts=cuts)

    @classmethod
    def from_columns(cls, num_plans: int, columns: Mapping[str, Any]) -> PlanBatch:
        """A batch from arrays (or scalars) by field name; fields left out take the plan's defaults.

        Scalars stay one number seen P times: such columns are read-only. No plan has layout free.
        """
        default = Plan()
        filled = {
            name: columns.get(name, 0 if name == "chunk_layers" else _code(name, plain))
            for name in PLAN_FIELDS
            for plain in (getattr(default, name),)
        }
        arrays: dict[str, Any] = {
            k: np.broadcast_to(np.asarray(v, np.int64), (num_plans,)) for k, v in filled.items()
        }
        return cls(**arrays)

    @classmethod
    def concatenate(cls, batches: Iterable[PlanBatch]) -> PlanBatch:
        """One batch of all plans, in order."""
        parts = list(batches)
        columns = {name: _joined([getattr(b, name) for b in parts]) for name in PLAN_FIELDS}
        cuts = parts[0].cuts
        if any(batch.cuts != cuts for batch in parts):
            cuts = _table(cut for batch in parts for cut in batch.cuts)
            position = {cut: index for index, cut in enumerate(cuts)}
            columns["chunk_layers"] = np.concatenate(
                [np.array([position[cut] for cut in b.cuts])[b.chunk_layers] for b in parts]
            )
        return cls(**columns, cuts=cuts)

    def take(self, index: Any) -> PlanBatch:
        """The plans at ``index``: positions, a mask, or a slice.

        A column that is one number seen P times stays one.
        """
        columns = {name: getattr(self, name) for name in PLAN_FIELDS}
        if isinstance(index, slice):  # of one number seen often, a slice is one
            return PlanBatch(**{k: c[index] for k, c in columns.items()}, cuts=self.cuts)
        index = np.asarray(index)
        is_mask = index.dtype == np.bool_
        index = np.flatnonzero(index) if is_mask else index.astype(np.int64, copy=False)
        return PlanBatch(**{k: _taken(c, index) for k, c in columns.items()}, cuts=self.cuts)

    def folded(self) -> PlanBatch:
        """The same plans; a column of equal numbers becomes one number seen P times, which is
        fastest to compute with.
        """
        return PlanBatch(**{k: _folded(getattr(self, k)) for k in PLAN_FIELDS}, cuts=self.cuts)

    def plan(self, index: int) -> Plan:
        """The plan at one position."""
        values: dict[str, Any] = {}
        for name, kind in FIELD_TYPES.items():
            value = int(getattr(self, name)[index])
            if kind is tuple:
                values[name] = self.cuts[value]
            else:
                values[name] = CHOICES[name][value] if kind is str else kind(value)
        return Plan(**values)

    def __iter__(self) -> Iterator[Plan]:
        return (self.plan(i) for i in range(len(self)))


def largest(column: NDArray[Any]) -> int:
    """The largest value of a field, 0 of no plans."""
    if len(column) == 0:
        return 0
    return int(column[0] if column.strides == (0,) else column.max())


def one_if_equal(values: NDArray[Any]) -> NDArray[Any]:
    """The first value alone where all are equal: what follows from it is computed once."""
    return values[:1] if (values == values[:1]).all() else values


def scaled(values: NDArray[np.float64], share: NDArray[np.float64] | float) -> NDArray[np.float64]:
    """``values * share``, without the product where all plans have the share 1."""
    return values if isinstance(share, float) and share == 1 else values * share


def plus_scaled(
    total: NDArray[np.float64],
    values: NDArray[np.float64] | float,
    share: NDArray[np.float64] | float,
) -> NDArray[np.float64]:
    """``total + values * share``, without the sum where all plans have the share 0."""
    if isinstance(share, float) and share == 0:
        return total
    return total + scaled(np.asarray(values), share)


def by_code(values: NDArray[Any], codes: IntArray) -> NDArray[Any]:
    """``values[codes]``; one number seen P times where the codes are one."""
    if codes.strides == (0,) and len(codes):
        return np.broadcast_to(values[codes[0]], codes.shape)
    return values.take(codes)


def _taken(column: IntArray, index: IntArray) -> IntArray:
    if column.strides == (0,) and len(column) > 0:
        fewer = len(index) <= len(column)
        return column[: len(index)] if fewer else np.broadcast_to(column[0], index.shape)
    return column.take(index)


def _folded(column: IntArray) -> IntArray:
    if len(column) == 0 or column.strides == (0,) or column[0] != column[-1]:
        return column
    head = column[:64]
    if (head != head[0]).any() or (column != head[0]).any():
        return column
    return np.broadcast_to(head[0], column.shape)


def _joined(columns: Sequence[IntArray]) -> IntArray:
    """The columns one after the other; one number if they are the same number seen many times."""
    filled = [column for column in columns if len(column)]
    if filled and all(c.strides == (0,) and c[0] == filled[0][0] for c in filled):
        return np.broadcast_to(filled[0][0], (sum(map(len, filled)),))
    return np.concatenate(columns)


def _table(cuts: Iterable[tuple[int, ...]]) -> Cuts:
    """The distinct cuts in ascending order: a batch's codes sort as the cuts themselves do."""
    return tuple(sorted({(), *cuts}))


def _code(name: str, value: int | bool | str) -> int:
    return CHOICES[name].index(value) if isinstance(value, str) else int(value)
