"""The values of options: text to numbers and assignments.

Each function takes the text of an option and raises ``click.BadParameter`` with what it expects,
which the program reports as wrong usage (exit code 2).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import TypeVar

import click

from parallelsim.errors import PlanError, nearest_names
from parallelsim.plan import MAX_CHUNKS, Plan, check_field

Value = int | bool | str
Values = range | tuple[Value, ...]

T = TypeVar("T")

MAX_SEQ_LENGTH = 2**27

PLAN_FIELD_KINDS: Mapping[str, str] = {field.name: str(field.type) for field in fields(Plan)}
"""Plan field -> int, bool, str, or a list of int."""
LIST = "tuple[int, ...]"

OWN_OPTIONS = {"global_batch_size": "--global-batch-size", "precision": "--precision"}
"""Plan fields that --fix and --limit leave to another option."""

_SWITCHES = {"true": True, "on": True, "yes": True, "1": True}
_SWITCHES |= {"false": False, "off": False, "no": False, "0": False}


def shown(value: object) -> str:
    """A value from outside as it appears in a message: quoted and at most 60 characters long."""
    text = str(value)
    return repr(text if len(text) <= 60 else text[:57] + "...")


def sequence_length(text: str | int) -> int:
    """Tokens; ``k`` is 1024: 8192 and 8k are the same."""
    match = re.fullmatch(r"([0-9]{1,9})([kKmM]?)", str(text), re.ASCII)
    tokens = int(match[1]) * {"": 1, "k": 1024, "m": 1024**2}[match[2].lower()] if match else 0
    if not 1 <= tokens <= MAX_SEQ_LENGTH:
        raise click.BadParameter(f"{shown(text)} is no number of tokens (as 8192, 8k or 128k)")
    return tokens


def number_up_to(high: float, low: float = 0.0) -> Callable[[str | float], float]:
    """Reads a finite number with ``0 < value`` and ``low <= value <= high``."""
    bounds = f"from {low:g} to {high:g}" if low else f"above 0 and up to {high:g}"

    def number(text: str | float) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (0 < value <= high and value >= low):
            raise click.BadParameter(f"{shown(text)} is no number {bounds}")
        return value

    return number


def whole_number(low: int, high: int) -> Callable[[str | int], int]:
    """Reads a whole number with ``low <= value <= high``."""

    def number(text: str | int) -> int:
        value = _integer(str(text))
        if value is None or value < low:
            raise click.BadParameter(f"{shown(text)} is no whole number from {low}")
        if value > high:
            raise click.BadParameter(f"{shown(text)} is too large, at most {high}")
        return value

    return number


def fixed_values(text: str) -> dict[str, Value]:
    """``tp=8,pp=4``: plan fields with the one value that they may have.

    ``recompute=full:2`` sets recompute_num_layers too; ``recompute=full`` means all layers.
    """
    with _as_bad_parameter():
        pairs = [pair for name, part in assignments(text) for pair in _fixed_value(name, part)]
        return unique(pairs)


def limited_values(text: str) -> dict[str, Values]:
    """``cp=1..4,tp=1|2|4``: plan fields with the values that they may have.

    A range stays a range until the size of the problem is known.
    """
    with _as_bad_parameter():
        return unique((name, _limit_values(name, part)) for name, part in assignments(text))


MAX_AXIS = 1000
"""Values of one axis of a sweep."""


def axis(number: Callable[[str], int]) -> Callable[[str | tuple[int, ...]], tuple[int, ...]]:
    """Reads ``4k,32k`` or ``64..4096``: whole numbers; a range doubles from its first on and ends
    with its last.
    """

    def values(text: str | tuple[int, ...]) -> tuple[int, ...]:
        if isinstance(text, tuple):
            return text
        found: dict[int, None] = {}
        for part in text.split(","):
            low, dots, high = (piece.strip() for piece in part.partition(".."))
            first = number(low)
            last = number(high) if dots else first
            if last < first:
                raise click.BadParameter(f"the range {shown(part)} is reversed: {last} < {first}")
            while first < last:
                found[first] = None
                first *= 2
            found[last] = None
        if len(found) > MAX_AXIS:
            raise click.BadParameter(f"{len(found)} values; at most {MAX_AXIS}")
        return tuple(found)

    return values


@dataclass(frozen=True)
class Part:
    """A part of a search space: plan fields with the values that they have in it."""

    text: str
    """As it was given."""
    values: dict[str, Values]


def part_of_space(text: str | Part) -> Part:
    """``tp=4,cp=1|2,recompute=full:2``: as ``--fix`` and ``--limit`` take them, together."""
    if isinstance(text, Part):  # click converts defaults and values of multiple options again
        return text
    with _as_bad_parameter():
        pairs: list[tuple[str, Values]] = []
        for name, part in assignments(text):
            if "|" in part or ".." in part:
                pairs.append((name, _limit_values(name, part)))
            else:
                pairs += [(field, (value,)) for field, value in _fixed_value(name, part)]
        return Part(text, unique(pairs))


def settings(text: str) -> dict[str, Value]:
    """``num_layers=12``: fields of the model with another value."""
    with _as_bad_parameter():
        return unique((name, _setting(part)) for name, part in assignments(text))


@contextmanager
def _as_bad_parameter() -> Iterator[None]:
    try:
        yield
    except PlanError as error:
        raise click.BadParameter(str(error)) from None


def _nearest(name: str, known: list[str]) -> str:
    """'did you mean ...?' for a misspelt name, else the list of what there is."""
    near = nearest_names(name, known)
    return f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(known)}"


def assignments(text: str) -> list[tuple[str, str]]:
    """``a=1,b=2`` -> [("a", "1"), ("b", "2")].

    Raises:
        PlanError: a part that is no assignment.
    """
    pairs = []
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not name or not value or "=" in value:
            raise PlanError(f"expected field=value, got {shown(part)}")
        pairs.append((name.replace("-", "_"), value))
    return pairs


def unique(pairs: Iterable[tuple[str, T]]) -> dict[str, T]:
    """The pairs as a mapping.

    Raises:
        PlanError: one name twice.
    """
    result: dict[str, T] = {}
    for name, value in pairs:
        if name in result:
            raise PlanError(f"{name} is given twice")
        result[name] = value
    return result


def _integer(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[+-]?[0-9]{1,18}", text.strip(), re.ASCII) else None


def _field_kind(name: str) -> str:
    if name in OWN_OPTIONS:
        raise PlanError(f"{name} has its own option, {OWN_OPTIONS[name]}")
    if name not in PLAN_FIELD_KINDS:
        known = [field for field in PLAN_FIELD_KINDS if field not in OWN_OPTIONS]
        raise PlanError(f"unknown plan field {shown(name)}: {_nearest(name, known)}")
    return PLAN_FIELD_KINDS[name]


def _value(name: str, text: str) -> Value:
    kind = _field_kind(name)
    value: Value | None = text
    if kind == LIST:
        raise PlanError(f"{name} is found by the search; fix layout=free for such plans alone")
    if kind == "int":
        value = _integer(text)
    elif kind == "bool":
        value = _SWITCHES.get(text.lower())
    if value is None:
        expected = "a whole number" if kind == "int" else "true or false"
        raise PlanError(f"{name} must be {expected}, got {shown(text)}")
    if name == "recompute_modules":
        Plan.from_dict({"recompute": "selective", name: value})
    elif name == "layout":  # free without its list: the search finds that
        check_field(name, value)
    elif name != "recompute_num_layers":
        Plan.from_dict({name: value})  # range and choice, in the words of the plan itself
    return value


def _fixed_value(name: str, text: str) -> list[tuple[str, Value]]:
    if name == "recompute" and text.startswith("full"):
        plan = Plan.from_dict({"recompute": text})
        return [("recompute", "full"), ("recompute_num_layers", plan.recompute_num_layers)]
    return [(name, _value(name, text))]


def _limit_values(name: str, text: str) -> Values:
    low, dots, high = text.partition("..")
    if not dots:
        return tuple(dict.fromkeys(_value(name, part.strip()) for part in text.split("|")))
    if _field_kind(name) != "int":
        raise PlanError(f"{name} has no range; list its values as a|b")
    first, last = int(_value(name, low)), int(_value(name, high))
    if last < first:
        raise PlanError(f"{name}: the range {shown(text)} is empty")
    return range(first, last + 1)


def whole_numbers(text: str) -> list[int]:
    """``3,4,4,3``: a list of whole numbers from 0."""
    numbers = [_integer(part) for part in text.split(",", MAX_CHUNKS)]
    known = [number for number in numbers if number is not None and number >= 0]
    if len(known) < len(numbers):
        raise click.BadParameter(
            f"{shown(text)} is no list of at most {MAX_CHUNKS} whole numbers, as 3,4,4,3"
        )
    return known


def _setting(text: str) -> Value:
    """A number, a switch, or the text itself: the model says which of them a field takes."""
    number = _integer(text)
    return _SWITCHES.get(text.lower(), text) if number is None else number
