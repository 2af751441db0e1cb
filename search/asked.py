"""What the caller of a search fixed or limited."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from parallelsim.errors import PlanError, none_of
from parallelsim.plan import CHOICES, PLAN_FIELDS

Value = int | bool | str


@dataclass(frozen=True)
class Asked:
    """Plan fields with the values that they may have; other fields are free."""

    values: Mapping[str, tuple[Value, ...]]

    def check(self) -> None:
        """Refuse what no search can fix.

        Raises:
            PlanError: an unknown field, one that every plan shares, or an unknown name.
        """
        for name, values in self.values.items():
            if name not in PLAN_FIELDS or name in ("global_batch_size", "precision"):
                raise PlanError(f"{name!r} is no field that a search can fix or limit")
            for value in values:
                if name in CHOICES and value not in CHOICES[name]:
                    raise PlanError(none_of(name, value, CHOICES[name]))

    def allowed(self, name: str, default: Iterable[Value], possible: Iterable[Value]) -> list[int]:
        """The default values, or those of the possible ones that the caller gave, as codes."""
        given = self.values.get(name)
        values = default if given is None else [v for v in possible if v in given]
        return [CHOICES[name].index(v) if isinstance(v, str) else int(v) for v in values]
