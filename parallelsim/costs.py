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
        self._values = [_distinct(column) for column in columns]
        self._strides = _strides([len(values) for values in self._values])
        self._luts = [
            _lookup(v, stride) for v, stride in zip(self._values, self._strides, strict=True)
        ]
        codes = self._codes(columns)
        self._present = _distinct(codes)
        self._compact = _lookup(self._present, 1)
        digits = [
            values[self._present // stride % len(values)]
            for values, stride in zip(self._values, self._strides, strict=True)
        ]
        keys = OperatorKeys(*digits)
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
        return len(self._present)

    def rows(self, plans: PlanBatch) -> IntArray:
        """Row of each plan, shape [P]; every plan's key must have been among the constructor's."""
        return _find(self._compact, self._codes(_key_columns(plans)))

    def _codes(self, columns: list[IntArray]) -> IntArray:
        total = _find(self._luts[0], columns[0])
        for lut, column in zip(self._luts[1:], columns[1:], strict=True):
            if len(lut[0]) > 1:
                total = total + _find(lut, column)
        return total


Lookup = tuple[IntArray, IntArray | None, int]
"""(distinct values, position by value where that is small, stride)."""

SMALL = 1 << 20


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
        np.where(plans.recompute == SELECTIVE, 1 + plans.recompute_modules, 0),
    ]


def _distinct(column: IntArray) -> IntArray:
    """Sorted distinct values; by marking where the values are small, which is far faster than
    sorting.
    """
    if len(column) == 0:
        return column
    top = int(column.max())
    if top >= SMALL:
        return np.unique(column)
    mark = np.zeros(top + 1, bool)
    mark[column] = True
    return np.flatnonzero(mark)


def _lookup(values: IntArray, stride: int) -> Lookup:
    if len(values) == 0 or int(values[-1]) >= SMALL:
        return values, None, stride
    table = np.zeros(int(values[-1]) + 1, np.int64)
    table[values] = np.arange(len(values)) * stride
    return values, table, stride


def _find(lookup: Lookup, column: IntArray) -> IntArray:
    values, table, stride = lookup
    if table is None:
        return np.searchsorted(values, column) * stride
    return table.take(column)


def _strides(sizes: list[int]) -> list[int]:
    strides, total = [], 1
    for size in sizes:
        strides.append(total)
        total *= size
    return strides
