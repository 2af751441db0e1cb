"""Seconds and bytes of one layer, the embedding and the head, tabulated over the distinct shapes.

Operators depend on few plan fields (:class:`~parallelsim.operators.OperatorKeys`). A table over the
distinct combinations is computed once; each plan then looks up its row. That is what makes
millions of plans a second possible.

Layer kinds (sliding and full attention, say) are averaged by their share of the model: exact where
every stage holds them in that proportion, as alternating layers do on stages with an even number
of layers.
"""

from __future__ import annotations

import numpy as np

from parallelsim.cluster import ClusterSpec
from parallelsim.collectives import Network
from parallelsim.edge_costs import edge_costs, with_custom_edges
from parallelsim.framework import FrameworkSpec
from parallelsim.layer_costs import layer_costs, leading_costs, prediction_costs
from parallelsim.model import ModelSpec
from parallelsim.operators import (
    IntArray,
    OperatorKeys,
)
from parallelsim.plan import code
from parallelsim.plan_batch import PlanBatch

SELECTIVE = code("recompute", "selective")


class CostTable:
    """Layer and edge costs over the distinct keys of a set of plans; :meth:`rows` finds each
    plan's row.
    """

    def __init__(
        self, model: ModelSpec, cluster: ClusterSpec, framework: FrameworkSpec, plans: PlanBatch
    ) -> None:
        self.model, self.cluster, self.framework = model, cluster, framework
        self.network = Network(cluster)
        columns = _key_columns(plans)
        self._rows = _Rows(columns)
        rows = self._rows.of(columns)
        example = np.zeros(len(self._rows), np.int64)
        example[rows] = np.arange(len(rows))
        keys = OperatorKeys(*(column[example] for column in columns))
        inputs = (model, self.network, framework, keys)
        self.layer = layer_costs(model.main_kinds, *inputs)
        self.edge = with_custom_edges(edge_costs(*inputs), *inputs)
        self.layer_total_s = self.layer.total_s
        self.first = leading_costs(self.layer, *inputs) if model.leading_kinds else None
        """What the leading layers cost beyond as many others."""
        self.last = prediction_costs(*inputs) if model.num_mtp_layers else None
        """The layers of the multi-token-prediction modules; on the last stage."""
        self.first_total_s, self.last_total_s = (
            np.zeros(1) if more is None else more.total_s for more in (self.first, self.last)
        )

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self, plans: PlanBatch) -> IntArray:
        """Row of each plan, shape [P]; every plan's key must have been among the constructor's."""
        return self._rows.of(_key_columns(plans))


SMALL = 1 << 20


class _Rows:
    """Numbers the distinct combinations of columns, from 0.

    Positions among a column's values are the digits of a code, and codes are looked up in a table;
    where there are too many, those of some columns are numbered first.
    """

    def __init__(self, columns: list[IntArray]) -> None:
        self._stages: list[tuple[list[tuple[int, _Lookup]], _Lookup]] = []
        """Columns whose digits make a code, and the numbers of the codes that occur."""
        self._size = size = 1
        digits: list[tuple[int, _Lookup]] = []
        for place, column in enumerate(columns):
            values = _distinct(column)
            if size * len(values) > SMALL and digits:
                self._add(digits, columns)
                digits, size = [], self._size
            if len(values) > 1:
                digits.append((place, _Lookup(values, size)))
                size *= len(values)
        self._add(digits, columns)

    def _add(self, digits: list[tuple[int, _Lookup]], columns: list[IntArray]) -> None:
        codes = _distinct(self._codes(digits, columns, self.of(columns)))
        self._stages.append((digits, _Lookup(codes, 1)))
        self._size = len(codes)

    def __len__(self) -> int:
        return self._size

    def of(self, columns: list[IntArray]) -> IntArray:
        """The number of each combination, shape [P]."""
        numbers = np.zeros(len(columns[0]), np.int64)
        for digits, of_codes in self._stages:
            numbers = of_codes.find(self._codes(digits, columns, numbers))
        return numbers

    def _codes(
        self, digits: list[tuple[int, _Lookup]], columns: list[IntArray], numbers: IntArray
    ) -> IntArray:
        for place, lookup in digits:
            numbers = numbers + lookup.find(columns[place])
        return numbers


class _Lookup:
    """Position among distinct values, times a stride."""

    def __init__(self, values: IntArray, stride: int) -> None:
        self._values, self._stride = values, stride
        top = int(values[-1]) if len(values) else 0
        self._is_position = top == len(values) - 1
        self._table: IntArray | None = None
        if top < SMALL and len(values):
            self._table = np.zeros(top + 1, np.int64)
            self._table[values] = np.arange(len(values)) * stride

    def find(self, column: IntArray) -> IntArray:
        """Of each value."""
        if self._is_position:
            return column * self._stride
        if self._table is None:
            return np.searchsorted(self._values, column) * self._stride
        return self._table.take(column)


def _key_columns(plans: PlanBatch) -> list[IntArray]:
    return [
        plans.tp,
        plans.cp,
        plans.micro_batch_size,
        plans.sequence_parallel,
        plans.precision,
        plans.cp_comm_type,
        plans.cp_a2a,
        plans.tp_comm_overlap,
        plans.cross_entropy_fusion,
        plans.cuda_graphs,
        plans.grad_dtype,
        plans.ep,
        plans.etp,
        plans.moe_dispatcher,
        plans.ep_comm_overlap,
        plans.compile,
        (plans.recompute == SELECTIVE) * (1 + plans.recompute_modules),
    ]


def _distinct(column: IntArray) -> IntArray:
    """Sorted distinct values; by marking where the values are small, which is far faster than
    sorting.
    """
    if len(column) == 0 or column.strides == (0,):
        return column[:1]
    top = int(column.max())
    if top >= SMALL:
        return np.unique(column)
    mark = np.zeros(top + 1, bool)
    mark[column] = True
    return np.flatnonzero(mark)
