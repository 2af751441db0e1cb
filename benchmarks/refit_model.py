"""Free constants, their place in the specifications, and the predictions under any values of them.

A :class:`Constant` has a prior that does not come from the measured runs: a mean and a width, the
standard deviation of its log. It stands at one or more paths of the specifications
(``framework.compute.gemm_efficiency``, ``cluster.tiers.1.efficiency``) or is a number of the
equations (``parallelsim.exposure:TP_NIC_SHARE``). It may vary, by framework say: then

    value = prior f[framework] exp( w z + w_a z_a[framework] ),   all z ~ N(0, 1)

so that a framework without runs takes what the runs of the others say; f is 1 unless its sources
say otherwise. Constants that stand at the
same path multiply.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallelsim.costs import CostTable
from parallelsim.measured_cases import Case
from parallelsim.plan_batch import PlanBatch
from parallelsim.scores import grouped
from parallelsim.simulate import screen_time

FloatArray = NDArray[np.float64]
LOG_STEP = 0.05
"""Of the numerical derivatives, in the log of a constant: wider than the kinks of a maximum."""


@dataclass(frozen=True)
class Constant:
    """A number that is not known exactly, and what is known about it without the measured runs."""

    name: str
    paths: tuple[str, ...]
    """Where it stands; ``{architecture}`` and other attributes of a case are filled in."""
    prior: float
    width: float
    """Standard deviation of the log of the prior."""
    why: str
    """Where prior and width come from."""
    units: tuple[Any, ...] = ()
    """What the constant is multiplied with at each path (1): numbers, or tuples of numbers."""
    where: Mapping[str, str] = field(default_factory=dict)
    """Attributes that a case must have."""
    varies: tuple[tuple[str, float], ...] = ()
    """(attribute, width of the differences between its values)."""
    factors: Mapping[str, float] = field(default_factory=dict)
    """Of the prior, by values of those attributes."""
    upper: float = np.inf
    absent: float | None = None
    """The value that says that the software lacks the mechanism: it stays."""
    today: str = ""
    """Where the catalogue has it, if not at the first path."""

    @property
    def is_global(self) -> bool:
        """A number of the equations, the same for all runs."""
        return ":" in self.paths[0]

    def prior_of(self, kind: Mapping[str, str]) -> float:
        """The prior's median in cases of some attributes."""
        known = (self.factors.get(kind.get(name, ""), 1.0) for name, _ in self.varies)
        return self.prior * math.prod(known)

    @property
    def total_width(self) -> float:
        """Prior standard deviation of the log of one value."""
        return float(np.sqrt(self.width**2 + sum(w**2 for _, w in self.varies)))


@dataclass(frozen=True)
class Parameter:
    """One z: of the constant as a whole, or of one value of the attribute that it varies by."""

    constant: int
    width: float
    attribute: str = ""
    value: str = ""


def attributes(case: Case) -> dict[str, str]:
    """What constants may depend on."""
    facts, accelerator = case.run.facts, case.cluster.accelerator
    measured = facts.text("measured_inter_node_all_reduce_gb_per_s")
    return {
        "framework": case.framework.name,
        "accelerator": accelerator.name,
        "architecture": accelerator.architecture,
        "kernels": f"{case.framework.name} on {accelerator.architecture}",
        "experts": str(case.model.has_experts),
        "flash": facts.text("flash_attention").lower(),
        "network": "measured" if measured else "catalogue",
    }


@dataclass(frozen=True)
class Batch:
    """Cases of one model, cluster and framework."""

    first: Case
    rows: NDArray[np.int64]
    plans: PlanBatch
    attributes: Mapping[str, str]
    constants: tuple[int, ...]
    """Indices of the constants that stand in its specifications."""
    places: tuple[tuple[str, Any, tuple[int, ...]], ...]
    """(path, unit, constants whose product with the unit stands there)."""


class Predictor:
    """Step times of cases as a function of the parameters z; shape [P]."""

    def __init__(self, cases: Sequence[Case], constants: Sequence[Constant]) -> None:
        self.size, self.constants = len(cases), tuple(constants)
        kinds = [attributes(case) for case in cases]
        keys = [
            (id(c.model), id(c.cluster), id(c.framework), tuple(kind.values()))
            for c, kind in zip(cases, kinds, strict=True)
        ]
        self.batches = []
        for index in grouped(keys).values():
            first, kind = cases[int(index[0])], kinds[int(index[0])]
            found = self._constants_of(first, kind)
            plans = PlanBatch.from_plans([cases[int(i)].plan for i in index])
            rows, places = np.asarray(index, np.int64), self._places(found, first, kind)
            self.batches.append(Batch(first, rows, plans, kind, found, places))
        everywhere = [i for i, constant in enumerate(constants) if constant.is_global]
        self._equations = self._places(everywhere, None, {})
        self.parameters = tuple(self._parameters())
        self._of_constant = [
            [p for p, parameter in enumerate(self.parameters) if parameter.constant == c]
            for c in range(len(constants))
        ]

    def _constants_of(self, case: Case, kind: Mapping[str, str]) -> tuple[int, ...]:
        return tuple(
            i
            for i, constant in enumerate(self.constants)
            if not constant.is_global
            and all(kind[name] == value for name, value in constant.where.items())
            and read(case, constant.paths[0].format_map(kind)) not in (None, constant.absent)
        )

    def _parameters(self) -> Iterator[Parameter]:
        for index, constant in enumerate(self.constants):
            yield Parameter(index, constant.width)
            members = [b for b in self.batches if index in b.constants]
            for attribute, width in constant.varies:
                for value in sorted({b.attributes[attribute] for b in members}):
                    yield Parameter(index, width, attribute, value)

    def only(self, rows: NDArray[np.bool_]) -> Predictor:
        """The same parameters, for some of the cases; arrays are of those cases alone."""
        part = copy(self)
        position = np.cumsum(rows) - 1
        part.size, part.batches = int(rows.sum()), []
        for batch in self.batches:
            kept = np.flatnonzero(rows[batch.rows])
            if len(kept):
                part.batches.append(
                    replace(batch, rows=position[batch.rows[kept]], plans=batch.plans.take(kept))
                )
        return part

    def applying(self, constant: int, kind: Mapping[str, str]) -> list[int]:
        """Parameters that move a constant in cases of some attributes."""
        return [
            p
            for p in self._of_constant[constant]
            if not self.parameters[p].attribute
            or kind.get(self.parameters[p].attribute) == self.parameters[p].value
        ]

    def value(self, constant: int, z: FloatArray, kind: Mapping[str, str]) -> float:
        """A constant in cases of some attributes."""
        total = sum(self.parameters[p].width * z[p] for p in self.applying(constant, kind))
        declared = self.constants[constant]
        return float(min(declared.prior_of(kind) * np.exp(total), declared.upper))

    def step_times(self, z: FloatArray) -> FloatArray:
        """Seconds of every case."""
        return self._times(self.batches, z, -1)

    def jacobian(
        self, z: FloatArray, here: FloatArray, known: FloatArray | None = None
    ) -> FloatArray:
        """Derivatives of the log step times, shape [P, K]; ``here`` are the step times at z.

        One pass a constant: its parameters all act through the log of its value. Constants none of
        whose columns of ``known`` is NaN are taken from there.
        """
        result = np.zeros((self.size, len(self.parameters)))
        for index, constant in enumerate(self.constants):
            columns = self._of_constant[index]
            if known is not None and not np.isnan(known[:, columns]).any():
                result[:, columns] = known[:, columns]
                continue
            batches = [b for b in self.batches if constant.is_global or index in b.constants]
            moved = self._times(batches, z, index)
            for batch in batches:
                slope = np.log(moved[batch.rows] / here[batch.rows]) / LOG_STEP
                for p in self.applying(index, batch.attributes):
                    result[batch.rows, p] = slope * self.parameters[p].width
        return result

    def _places(
        self, constants: Sequence[int], case: Case | None, kind: Mapping[str, str]
    ) -> tuple[tuple[str, Any, tuple[int, ...]], ...]:
        """Of a case's specifications, or (None) of the equations."""
        units: dict[str, Any] = {}
        members: dict[str, tuple[int, ...]] = {}
        for index in constants:
            constant = self.constants[index]
            for place, path in enumerate(constant.paths):
                full = path.format_map(kind)
                if case is None or read(case, full) is not None:
                    units.setdefault(full, constant.units[place] if constant.units else 1.0)
                    members[full] = (*members.get(full, ()), index)
        return tuple((path, units[path], members[path]) for path in members)

    def _times(self, batches: Sequence[Batch], z: FloatArray, bumped: int) -> FloatArray:
        """With the log of constant ``bumped`` increased by ``LOG_STEP``; NaN elsewhere."""
        seconds = np.full(self.size, np.nan)
        known: dict[tuple[int, tuple[str, ...]], float] = {}

        def settings(
            places: Sequence[tuple[str, Any, tuple[int, ...]]], kind: Mapping[str, str]
        ) -> dict[str, Any]:
            result = {}
            for path, unit, members in places:
                factor = 1.0
                for index in members:
                    constant = self.constants[index]
                    key = (index, tuple(kind.get(name, "") for name, _ in constant.varies))
                    if key not in known:
                        step = np.exp(LOG_STEP) if index == bumped else 1.0
                        known[key] = min(self.value(index, z, kind) * step, constant.upper)
                    factor *= known[key]
                result[path] = scaled(unit, factor)
            return result

        with patched(settings(self._equations, {})):
            for batch in batches:
                first = batch.first
                specs = {"framework": first.framework, "cluster": first.cluster}
                specs = updated(specs, settings(batch.places, batch.attributes))
                table = CostTable(first.model, specs["cluster"], specs["framework"], batch.plans)
                seconds[batch.rows] = screen_time(table, batch.plans)
        return seconds


def scaled(unit: Any, factor: float) -> Any:
    """A number, or each number of a tuple, times the factor."""
    if isinstance(unit, tuple):
        return tuple(factor * number for number in unit)
    return factor * unit


def read(case: Case, path: str) -> Any:
    """What stands at a path of a case's specifications, None where nothing does."""
    root, *names = path.split(".")
    value: Any = {"framework": case.framework, "cluster": case.cluster}.get(root)
    for name in names:
        if isinstance(value, Mapping):
            value = value.get(name)
        elif isinstance(value, tuple):
            value = value[int(name)] if int(name) < len(value) else None
        else:
            value = getattr(value, name, None)
        if value is None:
            return None
    return value


def updated(spec: Any, settings: Mapping[str, Any]) -> Any:
    """A copy of nested dataclasses, mappings and tuples with other values at some paths."""
    inner: dict[str, dict[str, Any]] = {}
    for path, value in settings.items():
        name, _, rest = path.partition(".")
        inner.setdefault(name, {})[rest] = value
    changes = {}
    for name, below in inner.items():
        held = spec[int(name)] if isinstance(spec, tuple) else None
        held = spec[name] if isinstance(spec, Mapping) else held
        held = getattr(spec, name) if is_dataclass(spec) else held
        changes[name] = below[""] if "" in below else updated(held, below)
    if isinstance(spec, Mapping):
        return {**spec, **changes}
    if isinstance(spec, tuple):
        return tuple(changes.get(str(i), value) for i, value in enumerate(spec))
    return replace(spec, **changes)


def number_of_equations(path: str) -> Any:
    """The value of ``module:NAME`` or ``module:NAME.key``."""
    module, _, name = path.partition(":")
    attribute, *keys = name.split(".")
    value = getattr(sys.modules[module], attribute)
    for key in keys:
        value = value[key]
    return value


@contextmanager
def patched(settings: Mapping[str, Any]) -> Iterator[None]:
    """The numbers of the equations set for a while, in every module that imported them."""
    saved = []
    try:
        for path, value in settings.items():
            attribute, *keys = path.partition(":")[2].split(".")
            old = number_of_equations(f"{path.partition(':')[0]}:{attribute}")
            new = updated(old, {".".join(keys): value}) if keys else value
            for name, module in list(sys.modules.items()):
                if name.startswith("parallelsim") and getattr(module, attribute, None) is old:
                    saved.append((module, attribute, old))
                    setattr(module, attribute, new)
        yield
    finally:
        for module, attribute, old in reversed(saved):
            setattr(module, attribute, old)
