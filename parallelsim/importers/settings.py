"""A nested configuration: values by dotted key, which of them were read, and the run of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parallelsim.errors import SpecError
from parallelsim.importers.run import Fields, ImportedRun, Settled
from parallelsim.model import ModelSpec
from parallelsim.yaml_io import shown

MAX_WHOLE = 10**9
OFF: tuple[Any, ...] = (False, None, "", "none", 0, [], {})
"""Values that turn nothing on."""


@dataclass
class Settings:
    """What a TOML, JSON or YAML file says."""

    file: str
    data: Mapping[str, Any]
    text: str = ""
    """As it stands in the file, with comments."""
    read: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def value(self, key: str, default: Any = None) -> Any:
        """The value of a dotted key, marked as read; ``default`` where it is absent or null.

        Raises:
            SpecError: something else stands where a section is expected.
        """
        self.read.add(key)
        return self._found(key, default)

    def pass_over(self, usual: Mapping[str, Any]) -> None:
        """Count keys that have these values as read."""
        self.read |= {key for key, value in usual.items() if self._found(key) == value}

    def _found(self, key: str, default: Any = None) -> Any:
        *sections, name = key.split(".")
        at: Any = self.data
        for depth, section in enumerate(sections):
            at = at.get(section, {})
            if at is None:
                return default
            if not isinstance(at, Mapping):
                where = ".".join(sections[: depth + 1])
                raise self.error(where, f"expected a section, got {shown(at)}")
        found = at.get(name)
        return default if found is None else found

    def whole(self, key: str, default: int | None = None, low: int = 1) -> int:
        """A whole number of at least ``low``.

        Raises:
            SpecError: another value, or none and no default.
        """
        value = self.value(key, default)
        if value is None:
            raise self.error(key, "is needed")
        is_whole = value.is_integer() if isinstance(value, float) else isinstance(value, int)
        if not is_whole or isinstance(value, bool):
            hint = "; write what the program puts there" if value == "auto" else ""
            raise self.error(key, f"expected a whole number, got {shown(value)}{hint}")
        if not low <= value <= MAX_WHOLE:
            raise self.error(key, f"expected {low} to {MAX_WHOLE}, got {shown(value)}")
        return int(value)

    def number(self, key: str, default: float) -> float:
        """A finite number."""
        value = self.value(key, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not abs(value) <= 1e15:
            raise self.error(key, f"expected a number, got {shown(value)}")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false."""
        value = self.value(key, default)
        if not isinstance(value, bool):
            raise self.error(key, f"expected true or false, got {shown(value)}")
        return value

    def choice(self, key: str, choices: Sequence[str], default: str) -> str:
        """One of the given names."""
        value = self.value(key, default)
        if not isinstance(value, str) or value not in choices:
            raise self.error(key, f"expected {', '.join(choices)}, got {shown(value)}")
        return value

    def texts(self, key: str, default: Sequence[str] = ()) -> list[str]:
        """A list of names."""
        value = self.value(key, list(default))
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(key, f"expected a list of names, got {shown(value)}")
        return value

    def has(self, key: str) -> bool:
        """Whether a value is given, marked as read."""
        return self.value(key) is not None

    def unread(
        self, harmless: Sequence[str], not_modelled: Sequence[str]
    ) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """(harmless, not modelled, unknown) keys that were not read, in the order of the file.

        A key is among some where it is one of them or inside of it; the innermost one counts. A key
        that is not modelled is harmless while it is off.
        """
        ignored, unmodelled, unknown = list[str](), list[str](), list[str]()
        for key in _leaves(self.data, ""):
            if _depth(key, self.read):
                continue
            changes, does_not = _depth(key, not_modelled), _depth(key, harmless)
            is_on = self._found(key) not in OFF
            kind = ignored if does_not or changes else unknown
            (unmodelled if changes > does_not and is_on else kind).append(key)
        return tuple(ignored), tuple(unmodelled), tuple(unknown)

    def run(
        self,
        model: ModelSpec,
        plan: tuple[Fields, Settled],
        framework: str,
        passed_over: tuple[Sequence[str], Sequence[str]],
        *,
        is_known: bool = True,
        num_gpus: int | None = None,
    ) -> ImportedRun:
        """The run that was read; ``passed_over`` are keys as in :meth:`unread`."""
        ignored, not_modelled, unknown = self.unread(*passed_over)
        return ImportedRun(
            model=model,
            is_known=is_known,
            fields=plan[0],
            num_gpus=num_gpus,
            ignored=ignored,
            not_modelled=not_modelled,
            unknown=unknown,
            notes=tuple(self.notes),
            framework=framework,
            settled=plan[1],
        )

    def error(self, key: str, message: str) -> SpecError:
        """An error that names the file and the key."""
        return SpecError(message, file=self.file, key=key)


def reads(
    parse: Callable[[str, str], Mapping[str, Any]],
    run_of: Callable[[Settings, ModelSpec | None], ImportedRun],
) -> Callable[..., ImportedRun]:
    """The function of a ``Reader`` of settings: ``parse`` has (text, file), ``run_of`` the
    settings and what is trained, in place of what they say.
    """

    def read(
        text: str,
        file: str = "the configuration",
        environment: Mapping[str, str] | None = None,
        model: ModelSpec | None = None,
    ) -> ImportedRun:
        return run_of(Settings(file, parse(text, file), text), model)

    return read


def _leaves(data: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for name, value in data.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{key}.")
        else:
            yield key


def _depth(key: str, names: set[str] | Sequence[str]) -> int:
    """Parts of the longest name that is the key or around it; 0: none is."""
    parts = key.split(".")
    return max((n for n in range(1, len(parts) + 1) if ".".join(parts[:n]) in names), default=0)
