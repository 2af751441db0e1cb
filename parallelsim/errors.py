"""Every error that parallelsim raises on purpose.

::

    ParallelSimError
    ├── SpecError              a model, cluster or framework description is wrong
    │   └── UnknownNameError   a name that the catalogue does not have
    ├── PlanError              a malformed plan (one that only breaks a rule is an answer)
    ├── ExportError            a target cannot express the plan
    ├── OutputError            a file cannot be read or written
    └── NoFeasiblePlanError    a search found nothing that fits

Messages are one line: what is wrong, where, and what to do. The program prints them and exits; see
``parallelsim.cli``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

EXIT_INTERRUPTED = 130
"""What the program exits with after Ctrl-C, as shells do."""


class ParallelSimError(Exception):
    """Base of all deliberate errors; ``exit_code`` is what the program exits with."""

    exit_code = 1


class SpecError(ParallelSimError):
    """A description (file or arguments) is wrong: names the file, the key and what was expected."""

    def __init__(self, message: str, *, file: str | None = None, key: str | None = None) -> None:
        where = ": ".join(part for part in (file, key) if part)
        super().__init__(f"{where}: {message}" if where else message)
        self.file = file
        self.key = key


class UnknownNameError(SpecError):
    """A catalogue name that does not exist, with the nearest ones that do."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        near = nearest_names(name, names)
        if not near and len(name) > 2:
            near = [known_name for known_name in names if name.lower() in known_name][:3]
        others = f"see 'parallelsim {kind}s'"
        if kind == "accelerator":  # has no command of its own
            others = f"there are {', '.join(names)}"
        hint = f"did you mean {', '.join(near)}?" if near else others
        shown = name if len(name) <= 80 else name[:77] + "..."
        super().__init__(f"unknown {kind} {shown!r}: {hint}")
        self.name = name
        self.nearest = tuple(near)


def nearest_names(name: str, known: Iterable[str]) -> list[str]:
    """Up to three of the known names that are spelt like this one, the nearest first."""
    import difflib

    return difflib.get_close_matches(name.lower(), list(known), n=3, cutoff=0.5)


def none_of(what: str, value: object, known: Sequence[str]) -> str:
    """``what`` must be one of the known names and is none; the nearest, where one is near."""
    near = nearest_names(str(value), known)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"{what} must be one of {', '.join(known)}, got {str(value)[:80]!r}{hint}"


class PlanError(ParallelSimError):
    """A plan is malformed: a missing or unknown field, a wrong type, a number out of range."""


class ExportError(ParallelSimError):
    """The export target cannot express the plan; the message says what and why."""


class OutputError(ParallelSimError):
    """A file cannot be read, written, or would be overwritten."""


class NoFeasiblePlanError(ParallelSimError):
    """No plan satisfies every rule and fits in memory."""

    exit_code = 3
