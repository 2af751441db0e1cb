"""What a framework file may hold: the fields of :class:`FrameworkSpec`, group by group, with
sources.
"""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

from pydantic import create_model

from parallelsim.errors import SpecError
from parallelsim.framework import (
    Capabilities,
    ComputeFacts,
    FrameworkSpec,
    HostFacts,
    MemoryFacts,
    OverlapFacts,
)
from parallelsim.plan import CP_COMM_TYPES, GRAD_DTYPES, LAYOUTS, PRECISIONS, SCHEDULES
from parallelsim.schemas_model import StrictModel, validated
from parallelsim.yaml_io import require_sources, shown_file

_GROUPS = {
    "capabilities": Capabilities,
    "compute": ComputeFacts,
    "host": HostFacts,
    "overlap": OverlapFacts,
    "memory": MemoryFacts,
}
_KNOWN_VALUES: dict[str, tuple[Any, ...]] = {
    "schedules": SCHEDULES,
    "zero_stages": (0, 1, 2, 3),
    "cp_comm_types": CP_COMM_TYPES,
    "precisions": PRECISIONS,
    "grad_dtypes": GRAD_DTYPES,
    "layouts": LAYOUTS,
    "recomputes": ("none", "selective", "full", "block"),
}


def _schema(name: str, group: type) -> type[StrictModel]:
    """A pydantic mirror of a dataclass: the same names and types, lists for tuples, and a
    source.
    """
    hints = get_type_hints(group)
    members: dict[str, Any] = {"source": (str | None, None)}
    for field in fields(group):
        kind = hints[field.name]
        text = str(kind)
        if is_dataclass(kind):
            kind = _schema(field.name, kind)  # type: ignore[arg-type]
        elif text.startswith("tuple"):
            kind = list[int] if "int" in text else list[str]
        elif "Mapping" in text:
            kind = dict[str, float]
        members[field.name] = (kind, ...)
    return create_model(name, __base__=StrictModel, **members)


def framework_from_document(data: dict[str, Any], file: str) -> FrameworkSpec:
    """The framework that a file's mapping describes.

    Raises:
        SpecError: unknown, missing or malformed keys, negative numbers, values that no plan field
        has,
            numbers without source.
    """
    document = validated(_schema("framework", FrameworkSpec), data, file)
    require_sources(data, file)
    values = document.model_dump(exclude={"source"})
    for name, group in _GROUPS.items():
        members = {key: value for key, value in values[name].items() if key != "source"}
        for key, value in members.items():
            _check(key, value, file, f"{name}.{key}")
        frozen = {k: tuple(v) if isinstance(v, list) else v for k, v in members.items()}
        values[name] = group(**frozen)
    return FrameworkSpec(**values)


def _check(key: str, value: Any, file: str, where: str) -> None:
    if key in _KNOWN_VALUES:
        for item in value:
            if item not in _KNOWN_VALUES[key]:
                known = ", ".join(str(choice) for choice in _KNOWN_VALUES[key])
                message = f"got {str(item)[:80]!r}, expected some of {known}"
                raise SpecError(message, file=shown_file(file), key=where)
        return
    numbers = value.values() if isinstance(value, dict) else (value,)
    for number in numbers:
        if isinstance(number, int | float) and not (math.isfinite(number) and 0 <= number <= 1e15):
            message = f"got {number}, expected a number that is not negative"
            raise SpecError(message, file=shown_file(file), key=where)
    if key.endswith("_efficiency") and not isinstance(value, dict) and value > 1.5:
        message = f"got {value}, expected at most 1.5"
        raise SpecError(message, file=shown_file(file), key=where)
