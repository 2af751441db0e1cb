"""Rows of a table by their fields in order: from a wish for every field to the nearest row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from parallelsim.operators import IntArray
from parallelsim.plan import FIELD_TYPES
from parallelsim.plan_batch import PlanBatch

Point = Mapping[str, float]
"""By name of a coordinate: the position of an ordered value, a category, or a real number."""


@dataclass(frozen=True, slots=True)
class Coordinate:
    """One choice: positions 0 to ``size`` - 1, some categories, or real numbers to ``high``."""

    name: str
    size: int = 0
    categories: tuple[int, ...] = ()
    high: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class _Level:
    """Nodes of one field of the tree, ordered by parent and value."""

    name: str
    is_ordered: bool
    known: IntArray
    parents: IntArray
    values: IntArray
    """Positions among the field's values, or the categories themselves."""
    num_open: IntArray
    """Rows below that can still be found."""


class ChoiceTree:
    """Plans that differ in the named fields."""

    def __init__(self, plans: PlanBatch, names: Sequence[str]) -> None:
        self.coordinates: list[Coordinate] = []
        """Fields of which some prefix has several values."""
        self._levels: list[_Level] = []
        node, number = np.zeros(len(plans), np.int64), 1
        for name in names:
            column = getattr(plans, name)
            if self._levels and (column == column[:1]).all():
                continue
            known, position = _positions(column)
            pairs, node = np.unique(node * len(known) + position, return_inverse=True)
            parents, values = np.divmod(pairs, max(len(known), 1))
            is_ordered = FIELD_TYPES[name] is int
            if not is_ordered:
                values = known[values]
            self._levels.append(_Level(name, is_ordered, known, parents, values, np.bincount(node)))
            if len(pairs) > number:
                number = len(pairs)
                categories = () if is_ordered else tuple(known.tolist())
                size = len(known) if is_ordered else 0
                self.coordinates.append(Coordinate(name, size, categories))
        self._row = np.zeros(number, np.int64)
        self._row[node] = np.arange(len(plans))
        self._node = node

    def nearest(self, point: Point) -> tuple[int, ...]:
        """The nodes of the row that takes, field by field, the nearest value with an open row;
        empty if no row is open.
        """
        path: list[int] = []
        for level in self._levels:
            parent = path[-1] if path else 0
            first, end = np.searchsorted(level.parents, (parent, parent + 1))
            distance = np.abs(level.values[first:end] - point.get(level.name, 0))
            if not level.is_ordered:
                distance = np.minimum(distance, 1)
            distance = np.where(level.num_open[first:end] > 0, distance, np.inf)
            if not np.isfinite(distance).any():
                return ()
            path.append(int(first + np.argmin(distance)))
        return tuple(path)

    def row(self, path: Sequence[int]) -> int:
        """The row that these nodes lead to."""
        return int(self._row[path[-1]])

    def point(self, row: int) -> dict[str, float]:
        """The coordinates of a row."""
        point, node = {}, int(self._node[row])
        for level in reversed(self._levels):
            point[level.name] = float(level.values[node])
            node = int(level.parents[node])
        return point

    def wish(self, plan: PlanBatch) -> dict[str, float]:
        """The coordinates of one plan, each value taken as the nearest known."""
        wish = {}
        for level in self._levels:
            value = int(getattr(plan, level.name)[0])
            nearest = int(np.argmin(np.abs(level.known - value)))
            wish[level.name] = float(nearest if level.is_ordered else level.known[nearest])
        return wish

    def close(self, rows: Sequence[int] | IntArray, change: int = -1) -> None:
        """Find these rows no more."""
        node = self._node[rows]
        for level in reversed(self._levels):
            np.add.at(level.num_open, node, change)
            node = level.parents[node]

    def reopen(self, rows: Sequence[int] | IntArray) -> None:
        """Undo :meth:`close`."""
        self.close(rows, change=1)


def _positions(column: IntArray) -> tuple[IntArray, IntArray]:
    """(sorted distinct values, the position of each row's value among them)."""
    known = np.flatnonzero(np.bincount(column))
    position = np.zeros(int(column.max(initial=0)) + 1, np.int64)
    position[known] = np.arange(len(known))
    return known, position[column]
