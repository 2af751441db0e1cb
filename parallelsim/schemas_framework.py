"""What a framework file may hold: the fields of :class:`FrameworkSpec`, group by group, with
sources. The check in front of ``schemas_build``.
"""

from __future__ import annotations

import math
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_type_hints

from pydantic import create_model

from parallelsim.errors import SpecError
from parallelsim.framework import SUBLAYERS, FrameworkSpec
from parallelsim.plan import (
    CP_COMM_TYPES,
    GRAD_DTYPES,
    LAYOUTS,
    MOE_DISPATCHERS,
    OPTIMIZERS,
    PRECISIONS,
    SCHEDULES,
)
from parallelsim.schemas_build import FRAMEWORK_GROUPS
from parallelsim.schemas_model import OPTIONAL, StrictModel, validated
from parallelsim.yaml_io import require_sources, shown_file

_KNOWN_VALUES: dict[str, tuple[Any, ...]] = {
    "schedules": SCHEDULES,
    "zero_stages": (0, 1, 2, 3),
    "zero_on_request": (0, 1, 2, 3),
    "cp_comm_types": CP_COMM_TYPES,
    "precisions": PRECISIONS,
    "grad_dtypes": GRAD_DTYPES,
    "layouts": LAYOUTS,
    "optimizers": OPTIMIZERS,
    "recomputes": ("none", "selective", "full", "block", "modules"),
    "moe_dispatchers": MOE_DISPATCHERS,
    "sublayers": SUBLAYERS,
}


def _schema(name: str, group: type) -> type[StrictModel]:
    """A pydantic mirror of a dataclass: the same names and types, lists for tuples, and a
    source; fields with a default may be left out.
    """
    hints = get_type_hints(group)
    members: dict[str, Any] = {"source": (str | None, OPTIONAL)}
    for field in fields(group):
        kind = hints[field.name]
        text = str(kind)
        if is_dataclass(kind):
            kind = _schema(field.name, kind)  # type: ignore[arg-type]
        elif text.startswith("tuple"):
            kind = list[int] if "int" in text else list[str]
        elif "Mapping" in text:
            kind = dict[str, float]
        members[field.name] = (kind, ... if field.default is MISSING else OPTIONAL)
    return create_model(name, __base__=StrictModel, **members)


def checked_framework(data: dict[str, Any], file: str) -> dict[str, Any]:
    """The mapping itself, where a framework file may hold it.

    Raises:
        SpecError: unknown, missing or malformed keys, negative numbers, values that no plan field
            has, numbers without source.
    """
    validated(_schema("framework", FrameworkSpec), data, file)
    require_sources(data, file)
    for name in FRAMEWORK_GROUPS:
        for key, value in data[name].items():
            if key != "source":
                _check(key, value, file, f"{name}.{key}")
    return data


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
