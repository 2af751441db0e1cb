"""Plans as points of a small mixed space, for searchers that sample.

A point has one coordinate for each choice that a space leaves: degrees and micro-batch sizes as
positions among their values, switches and kinds as categories, virtual stages as a logarithm, the
layers that the first and last stage have fewer than those between, the depth of recompute as a
share of a chunk. dp follows from the other degrees. Where ``is_cut``, the layers are cut into
stages by dynamic programming together with the depth of recompute, and ``nudge`` chooses among
that cut and those a layer away from it (:mod:`parallelsim.search.free_cuts`).

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
from parallelsim.search.cuts import BEFORE_CUT, FREE, MOST_NEIGHBOURS
from parallelsim.search.free_cuts import FreeCuts
from parallelsim.search.scan import UNSTAGED_RULES
from parallelsim.search.space import SearchSpace
from parallelsim.search.stagings import STAGED

from parallelsim.costs import CostTable
from parallelsim.operators import FloatArray, IntArray
from parallelsim.plan import PLAN_FIELDS, Plan
from parallelsim.plan_batch import PlanBatch
from parallelsim.rule_context import BoolArray
from parallelsim.rule_stages import FULL
from parallelsim.rules import obeys_rules
from parallelsim.stages import chunk_layers, stage_layers

FIRST = ("pp", "tp", "cp", "ep", "etp", "micro_batch_size")
"""Fields that are decoded before the others."""
KINDS = ("is_cut", "schedule", "recompute")
WEIGHTS = {
    "is_cut": 256.0,
    "nudge": 1.0,
    "log2_vpp": 4.0,
    "first_fewer": 1.0,
    "last_fewer": 1.0,
    "recompute_share": 4.0,
    "schedule": 64.0,
    "recompute": 8.0,
}
"""Of the coordinates of stagings in the distance between two: a kind is changed last, the cut into
stages by a layer first."""
NUM_NUDGES = 1 + MOST_NEIGHBOURS
STAGING_RULES = tuple(rule for rule in BEFORE_CUT if rule.reads_staging)

PlanId = tuple[int, int]
"""A plan as a row of the encoding's first table and one of the second: the same for every process
that searches the same space."""


class Encoding:
    """Decodes points of one space into plans that differ."""

    def __init__(self, space: SearchSpace, table: CostTable, memory_limit: float) -> None:
        """See the class; ``table``: the costs of the space's plans."""
        self.space = space
        self.below_s = np.inf
        """Layers are cut only where that promises a step faster than this."""
        self._may_cut = False
        self._aside: list[int] = []
        """Rows of which every plan that is left needs a cut, closed until layers may be cut."""
        self._cuts = FreeCuts(space, table, memory_limit)
        self._staged = {pp: self._staged_rows(pp) for pp in space.pipeline_degrees}
        degrees = [pp for pp, staged in self._staged.items() if len(staged)]
        tables = [space.unstaged(pp) for pp in degrees]
        inputs = (space.model, space.cluster, space.framework)
        valid = [np.flatnonzero(obeys_rules(*inputs, t, UNSTAGED_RULES)) for t in tables]
        parts = [table.take(rows) for table, rows in zip(tables, valid, strict=True)]
        parts.insert(0, PlanBatch.from_plans([]))
        rest = [name for name in PLAN_FIELDS if name not in (*FIRST, *STAGED)]
        self._tree = ChoiceTree(PlanBatch.concatenate(parts), (*FIRST, *rest))
        self._least_cut_s = np.concatenate([self._cuts.least_s(part) for part in parts])
        self._rows = np.concatenate([np.zeros(0, np.int64), *valid])
        self._pp = np.repeat(degrees, [len(rows) for rows in valid])
        self._stagings = {pp: self._features(pp) for pp in set(self._pp.tolist())}
        self._fitting = {pp: space.stagings_by_kind(pp) for pp in self._stagings}
        self._opened: dict[int, _Row] = {}
        self._opened_cuts: set[int] = set()
        none = [pp for pp in self._stagings if not len(space.staged_rows(pp))]
        self._close(np.flatnonzero(np.isin(self._pp, none)).tolist())
        self.coordinates = (*self._tree.coordinates, *self._staging_coordinates())
        """Of the space's points; a choice that follows from the others has none."""

    def _staged_rows(self, pp: int) -> IntArray:
        """The space's stagings, then ``NUM_NUDGES`` rows for each with which layers are cut."""
        stagings = self._cuts.stagings(pp)
        cut = np.zeros((len(stagings), len(STAGED)), np.int64)
        cut[:, [STAGED.index("vpp"), STAGED.index("schedule")]] = np.reshape(stagings, (-1, 2))
        cut[:, STAGED.index("layout")] = FREE
        return np.concatenate([self.space.staged_rows(pp), np.repeat(cut, NUM_NUDGES, axis=0)])

    def _features(self, pp: int) -> Mapping[str, FloatArray]:
        """The coordinates of every staging of one pp, by name; NaN where it has none."""
        staged = self._staged[pp]
        columns = {name: staged[:, i] for i, name in enumerate(STAGED)}
        plans = PlanBatch.from_columns(len(staged), {**columns, "pp": pp})
        is_cut = plans.layout == FREE
        features = dict.fromkeys(WEIGHTS, np.full(len(staged), np.nan))
        for name, values in _features_of(self.space.model.num_layers, plans.take(~is_cut)).items():
            features[name] = features[name].copy()
            features[name][~is_cut] = values
        features |= {
            "is_cut": is_cut * 1.0,
            "nudge": np.where(is_cut, (np.cumsum(is_cut) - 1) % NUM_NUDGES, np.nan),
            "log2_vpp": np.log2(plans.vpp),
            "schedule": plans.schedule.astype(np.float64),
        }
        return features

    def _num_regular(self, row: int) -> int:
        """Stagings of a row that are of the space: those whose layers are cut come after them."""
        return len(self.space.staged_rows(int(self._pp[row])))

    def _nudge(self, row: int, staging: int) -> int:
        """Of a staging whose layers are cut: which of the cuts."""
        return (staging - self._num_regular(row)) % NUM_NUDGES

    def _staging_coordinates(self) -> list[Coordinate]:
        found = []
        for name in WEIGHTS:
            parts = [features[name] for features in self._stagings.values()]
            known = np.unique(np.concatenate([np.zeros(0), *parts]))
            known = known[~np.isnan(known)]
            if name == "nudge":
                found += [Coordinate(name, size=NUM_NUDGES)] if len(known) else []
            elif name in KINDS:
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

    def allow_cuts(self) -> None:
        """From now on cut layers where points ask for it; before, none is cut while another plan
        is left.
        """
        self._may_cut = True
        self._tree.reopen(self._aside)
        self._aside = []

    def is_new(self, point: Point) -> bool:
        """Whether the plan nearest to the point was not taken yet."""
        path = self._tree.nearest(point)
        if not path:
            return False
        row = self._tree.row(path)
        self._open({row})
        opened = self._opened[row]
        staging = self._closest(row, point, opened.valid)
        return staging is not None and bool(opened.free[staging])

    def take(self, identity: PlanId) -> None:
        """Do not decode this plan any more."""
        row, staging = identity
        self._open({row})
        if staging >= self._num_regular(row):
            self._open_cuts(row)
        self._opened[row].free[staging] = False

    def release(self, identity: PlanId) -> None:
        """Undo :meth:`take`."""
        row, staging = identity
        self._opened[row].free[staging] = True

    def wish(self, plan: Plan) -> dict[str, float]:
        """The coordinates of a plan that need not be of the space."""
        return self._tree.wish(PlanBatch.from_plans([plan])) | self._point_of(plan)

    def plans(self, identities: Sequence[PlanId]) -> PlanBatch:
        """The plans themselves."""
        plans = self._plans([row for row, _ in identities], [staged for _, staged in identities])
        index = np.flatnonzero(plans.layout == FREE)
        if not len(index):
            return plans
        cut = PlanBatch.from_plans([self._cut_plan(identities[i]) for i in index.tolist()])
        order = np.arange(len(plans))
        order[index] = len(plans) + np.arange(len(index))
        return PlanBatch.concatenate([plans, cut]).take(order)

    def point(self, identity: PlanId) -> dict[str, float]:
        """The coordinates of a plan."""
        (plan,) = self.plans([identity])
        return self._tree.point(identity[0]) | self._point_of(plan)

    def _point_of(self, plan: Plan) -> dict[str, float]:
        """The coordinates of a plan's staging."""
        batch = PlanBatch.from_plans([plan])
        features = _features_of(self.space.model.num_layers, batch)
        point = {name: float(values[0]) for name, values in features.items()}
        is_cut = plan.layout == "free"
        nudge = self._cuts.position(plan) if is_cut else 0
        return point | {"is_cut": float(is_cut), "nudge": float(nudge)}

    def _cut_plan(self, identity: PlanId) -> Plan:
        """The plan of a staging whose layers are cut."""
        row, staging = identity
        return self._cuts.of(self._family(row, staging))[self._nudge(row, staging)]

    def _nearest(self, point: Point) -> PlanId | None:
        """The nearest plan that was not taken."""
        while path := self._tree.nearest(point):
            row = self._tree.row(path)
            self._open({row})
            staging = self._closest(row, point, self._opened[row].free)
            if staging is not None:
                return row, staging
            self._close([row])
        if self._aside:
            self.allow_cuts()
            return self._nearest(point)
        return None

    def _close(self, rows: Sequence[int]) -> None:
        """Decode these rows no more, or not before layers may be cut."""
        self._tree.close(rows)
        if not self._may_cut:
            self._aside += rows

    def _closest(self, row: int, point: Point, among: BoolArray) -> int | None:
        """The nearest of these stagings of a row; cuts without a plan are struck off."""
        opened, distance = self._opened[row], self._distance(row, point)
        regular = self._num_regular(row)
        wants_cut = point.get("is_cut", 1.0) > 0 or not among[:regular].any()
        if not self._may_cut:
            among = among[:regular]
        elif wants_cut:
            self._open_cuts(row)
        while among.any():
            staging = int(np.argmin(np.where(among, distance[: len(among)], np.inf)))
            if staging < regular:
                return staging
            nudge, number = self._nudge(row, staging), 0
            if opened.estimates[staging] < self.below_s:
                number = len(self._cuts.of(self._family(row, staging)))
            if nudge < number:
                return staging
            missing = slice(staging - nudge + number, staging - nudge + NUM_NUDGES)
            opened.valid[missing] = opened.free[missing] = False
        return None

    def _family(self, row: int, staging: int) -> Plan:
        """The plan without its cut."""
        return self._plans([row], [staging]).plan(0)

    def _distance(self, row: int, point: Point) -> FloatArray:
        """From the point to each staging of the row's pp."""
        features = self._stagings[int(self._pp[row])]
        distance = np.zeros(len(features["log2_vpp"]))
        for name, feature in features.items():
            if name in point:
                away = np.nan_to_num(feature - point[name])
                distance += WEIGHTS[name] * (away != 0 if name in KINDS else np.abs(away))
        return distance

    def _open(self, rows: Collection[int]) -> None:
        """Note which stagings of the space go with these rows and obey the rules."""
        shared, staged = [], []
        for row in sorted(row for row in rows if row not in self._opened):
            pp = int(self._pp[row])
            kinds, positions = self._fitting[pp]
            fitting = positions[kinds[self._rows[row]]]
            none = np.zeros(len(self._staged[pp]), np.bool_)
            self._opened[row] = _Row(none, none.copy(), np.full(len(none), np.inf))
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

    def _open_cuts(self, row: int) -> None:
        """Note which cuts of a row promise to be faster than ``below_s``, the first time."""
        if row in self._opened_cuts:
            return
        self._opened_cuts.add(row)
        space, opened = self.space, self._opened[row]
        first = np.arange(self._num_regular(row), len(opened.valid), NUM_NUDGES)
        if len(first) == 0 or self._least_cut_s[row] >= self.below_s:
            return
        plans = self._plans([row] * len(first), first.tolist())
        inputs = (space.model, space.cluster, space.framework)
        index = np.flatnonzero(obeys_rules(*inputs, plans, STAGING_RULES))
        opened.estimates[first[index]] = self._cuts.estimates(plans.take(index), self.below_s)
        opened.estimates[first[0] :] = np.repeat(opened.estimates[first], NUM_NUDGES)
        promising = np.isfinite(opened.estimates)
        opened.valid[promising] = opened.free[promising] = True

    def _plans(self, rows: Sequence[int], stagings: Sequence[int]) -> PlanBatch:
        """The plans of these rows and stagings, side by side; families where layers are cut."""
        space = self.space
        if not rows:
            return PlanBatch.from_plans([])
        pps = self._pp[rows]
        shared = [space.shared_rows(pp)[self._rows[r]] for pp, r in zip(pps, rows, strict=True)]
        staged = [self._staged[pp][s] for pp, s in zip(pps, stagings, strict=True)]
        return space.joined(pps, np.array(shared).T, np.array(staged).T)


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """Of one row of the first table: stagings that go with it, and those not taken."""

    valid: BoolArray
    free: BoolArray
    estimates: FloatArray
    """Seconds that a cut may take."""


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
    known = ~np.isnan(features[name])
    chunks, kinds = chunks[known].tolist(), features[name][known].tolist()
    return len({*zip(chunks, kinds, strict=True)}) > len(set(chunks))
