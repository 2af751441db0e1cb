"""What is known of a bash script while it is walked through, and how a walk ends early."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from parallelsim.importers.bash_expand import Variables
from parallelsim.importers.bash_words import Token


@dataclass(frozen=True)
class Command:
    """Words of a command, with unset values marked, and the line that it starts in."""

    words: tuple[str, ...]
    line: int


@dataclass
class Script:
    """What the script does, as far as words go."""

    file: str
    variables: Variables
    is_wanted: Callable[[Sequence[str]], bool]
    found: list[Command] = field(default_factory=list)
    documents: list[str] = field(default_factory=list)
    """Here-documents that no shell reads, as they reach a file."""
    notes: list[str] = field(default_factory=list)
    functions: dict[str, list[Token]] = field(default_factory=dict)
    depth: int = 0
    turns: int = 0
    """Of the loops so far."""


class LeaveError(Exception):
    """``break``, or ``continue``, of the innermost loop."""

    def __init__(self, *, ends: bool) -> None:
        super().__init__()
        self.ends = ends


class ExitError(Exception):
    """The script ends here."""
