"""Plans as points of a small mixed space, for searchers that sample.

A point has one coordinate for each choice that a space leaves: degrees and micro-batch sizes as
positions among their values, switches and kinds as categories, virtual stages as a logarithm, the
layers that the first and last stage have fewer than those between, the depth of recompute as a
share of a chunk. dp follows from the other degrees.

Which values go together is left to the tables of the space. A point is decoded field by field, each
taking the nearest value that plans with the fields before have; layout, virtual stages, schedule
and recompute together take the nearest combination that obeys the rules and was not decoded before.
So every point is a plan of the space, and points that differ little are plans that differ little.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from parallelsim.search.choice_tree import ChoiceTree, Coordinate, Point
from parallelsim.search.space import SearchSpace
from parallelsim.search.stagings import STAGED

from parallelsim.operators import FloatArray
from parallelsim.plan import PLAN_FIELDS, Plan
from parallelsim.plan_batch import PlanBatch
from parallelsim.rule_context import BoolArray
from parallelsim.rule_stages import FULL
from parallelsim.rules import RULES, obeys_rules
from parallelsim.stages import chunk_layers, stage_layers

FIRST = ("pp", "tp", "cp", "ep", "etp", "micro_batch_size")
"""Fields that are decoded before the others."""
KINDS = ("schedule", "recompute")
WEIGHTS = {
    "log2_vpp": 4.0,
    "first_fewer": 1.0,
    "last_fewer": 1.0,
    "recompute_share": 4.0,
    "schedule": 64.0,
    "recompute": 8.0,
}
"""Of the coordinates of stagings in the distance between two: a kind is changed last, the cut into
stages by a layer first."""
STAGING_RULES = tuple(rule for rule in RULES if rule.reads_staging)
UNSTAGED_RULES = tuple(rule for rule in RULES if not rule.reads_staging)


PlanId = tuple[int, int]
"""A plan as a row of the encoding's first table and one of the second: the same for every process
that searches the same space."""


class Encoding:
    """Decodes points of one space into plans that differ."""

    def __init__(self, space: SearchSpace) -> None:
        self.space = space
        degrees = [pp for pp in space.pipeline_degrees if space.num_stagings(pp).any()]
        tables = [space.unstaged(pp) for pp in degrees]
        inputs = (space.model, space.cluster, space.framework)
        valid = [np.flatnonzero(obeys_rules(*inputs, t, UNSTAGED_RULES)) for t in tables]
        parts = [table.take(rows) for table, rows in zip(tables, valid, strict=True)]
        parts.insert(0, PlanBatch.from_plans([]))
        rest = [name for name in PLAN_FIELDS if name not in (*FIRST, *STAGED)]
        self._tree = ChoiceTree(PlanBatch.concatenate(parts), (*FIRST, *rest))
        self._rows = np.concatenate([np.zeros(0, np.int64), *valid])
        self._pp = np.repeat(degrees, [len(rows) for rows in valid])
        self._stagings = {pp: _features(space, pp) for pp in set(self._pp.tolist())}
        self._fitting = {pp: space.stagings_by_kind(pp) for pp in self._stagings}
        self._opened: dict[int, _Row] = {}
        self.coordinates = (*self._tree.coordinates, *self._staging_coordinates())
        """Of the space's points; a choice that follows from the others has none."""

    def _staging_coordinates(self) -> list[Coordinate]:
        found = []
        for name in WEIGHTS:
            parts = [features[name] for features in self._stagings.values()]
            known = np.unique(np.concatenate([np.zeros(0), *parts]))
            if name in KINDS:
                if any(_is_free(name, features) for features in self._stagings.values()):
                    found.append(Coordinate(name, categories=tuple(known.astype(int).tolist())))
            elif known.max(initial=0) > 0:
                found.append(Coordinate(name, high=float(known[-1])))
        return found

    def decode(self, points: Sequence[Point]) -> list[PlanId]:
        """The plan of each point, none that was taken before: fewer plans than points only where
        the space has no more.
        """
        paths = [self._tree.nearest(point) for point in points]
        self._open({self._tree.row(path) for path in paths if path})
        found = []
        for point in points:
            identity = self._nearest(point)
            if identity is None:
                break
            self.take(identity)
            found.append(identity)
        return found

    def is_new(self, point: Point) -> bool:
        """Whether the plan nearest to the point was not taken yet."""
        path = self._tree.nearest(point)
        if not path:
            return False
        row = self._tree.row(path)
        self._open({row})
        opened = self._opened[row]
        distance = np.where(opened.valid, self._distance(row, point), np.inf)
        return bool(opened.free[np.argmin(distance)]) if len(distance) else False

    def take(self, identity: PlanId) -> None:
        """Do not decode this plan any more."""
        row, staging = identity
        self._open({row})
        self._opened[row].free[staging] = False

    def release(self, identity: PlanId) -> None:
        """Undo :meth:`take`."""
        row, staging = identity
        self._opened[row].free[staging] = True

    def wish(self, plan: Plan) -> dict[str, float]:
        """The coordinates of a plan that need not be of the space."""
        batch = PlanBatch.from_plans([plan])
        features = _features_of(self.space.model.num_layers, batch)
        return self._tree.wish(batch) | {name: float(v[0]) for name, v in features.items()}

    def plans(self, identities: Sequence[PlanId]) -> PlanBatch:
        """The plans themselves."""
        return self._plans([row for row, _ in identities], [staged for _, staged in identities])

    def point(self, identity: PlanId) -> dict[str, float]:
        """The coordinates of a plan."""
        row, staging = identity
        features = self._stagings[int(self._pp[row])]
        of_staging = {name: float(values[staging]) for name, values in features.items()}
        return self._tree.point(row) | of_staging

    def _nearest(self, point: Point) -> PlanId | None:
        """The nearest plan that was not taken."""
        while path := self._tree.nearest(point):
            row = self._tree.row(path)
            self._open({row})
            free = self._opened[row].free
            if free.any():
                distance = np.where(free, self._distance(row, point), np.inf)
                return row, int(np.argmin(distance))
            self._tree.close(path)
        return None

    def _distance(self, row: int, point: Point) -> FloatArray:
        """From the point to each staging of the row's pp."""
        features = self._stagings[int(self._pp[row])]
        distance = np.zeros(len(features["log2_vpp"]))
        for name, feature in features.items():
            if name in point:
                away = feature - point[name]
                distance += WEIGHTS[name] * (away != 0 if name in KINDS else np.abs(away))
        return distance

    def _open(self, rows: Collection[int]) -> None:
        """Note which stagings go with these rows and obey the rules."""
        shared, staged = [], []
        for row in sorted(row for row in rows if row not in self._opened):
            pp = int(self._pp[row])
            kinds, positions = self._fitting[pp]
            fitting = positions[kinds[self._rows[row]]]
            none = np.zeros(len(self.space.staged_rows(pp)), np.bool_)
            self._opened[row] = _Row(none, none.copy())
            shared += [row] * len(fitting)
            staged += fitting.tolist()
        if not shared:
            return
        space = self.space
        inputs = (space.model, space.cluster, space.framework)
        obeys = obeys_rules(*inputs, self._plans(shared, staged), STAGING_RULES)
        for row, staging in np.array([shared, staged]).T[obeys].tolist():
            opened = self._opened[row]
            opened.valid[staging] = opened.free[staging] = True

    def _plans(self, rows: Sequence[int], stagings: Sequence[int]) -> PlanBatch:
        """The plans of these rows and stagings, side by side."""
        space = self.space
        if not rows:
            return PlanBatch.from_plans([])
        pps = self._pp[rows]
        shared = [space.shared_rows(pp)[self._rows[r]] for pp, r in zip(pps, rows, strict=True)]
        staged = [space.staged_rows(pp)[s] for pp, s in zip(pps, stagings, strict=True)]
        return space.joined(pps, np.array(shared).T, np.array(staged).T)


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """Of one row of the first table: stagings that go with it, and those not taken."""

    valid: BoolArray
    free: BoolArray


def _features(space: SearchSpace, pp: int) -> Mapping[str, FloatArray]:
    """The coordinates of every staging of one pp, by name."""
    table = space.staged_rows(pp)
    columns = {name: table[:, i] for i, name in enumerate(STAGED)}
    return _features_of(
        space.model.num_layers, PlanBatch.from_columns(len(table), {**columns, "pp": pp})
    )


def _features_of(num_layers: int, plans: PlanBatch) -> Mapping[str, FloatArray]:
    layers = stage_layers(num_layers, plans)
    chunks = np.maximum.reduce(chunk_layers(num_layers, plans))
    fullest = np.maximum.reduce(layers)
    depth = np.where(plans.recompute_num_layers > 0, plans.recompute_num_layers, chunks)
    return {
        "log2_vpp": np.log2(plans.vpp),
        "first_fewer": fullest - layers.first,
        "last_fewer": np.where(plans.pp > 1, fullest - layers.last, 0.0),
        "recompute_share": np.where(plans.recompute == FULL, depth / chunks, 0.0),
        "schedule": plans.schedule.astype(np.float64),
        "recompute": plans.recompute.astype(np.float64),
    }


def _is_free(name: str, features: Mapping[str, FloatArray]) -> bool:
    """Whether stagings with the same number of chunks differ in the kind."""
    chunks = np.round(features["log2_vpp"], 6)
    with_kind = len({*zip(chunks.tolist(), features[name].tolist(), strict=True)})
    return with_kind > len(set(chunks.tolist()))
