"""The conditions of ``[ ]``, ``[[ ]]`` and ``test``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase

from parallelsim.importers.bash_expand import Variables, without_unset

_COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": int.__eq__,
    "-ne": int.__ne__,
    "-lt": int.__lt__,
    "-le": int.__le__,
    "-gt": int.__gt__,
    "-ge": int.__ge__,
}


def holds(parts: Sequence[str], variables: Variables) -> bool | None:
    """The value of a condition's words; None where it cannot be decided here.

    Files that it asks for are taken to be there.
    """
    for joint, every in (("||", False), ("-o", False), ("&&", True), ("-a", True)):
        if joint in parts:
            at = parts.index(joint)
            sides = [holds(side, variables) for side in (parts[:at], parts[at + 1 :])]
            if (not every) in sides:  # one side decides
                return not every
            return None if None in sides else every
    words = [without_unset(part) for part in parts if part not in ("(", ")")]
    if words[:1] == ["!"]:
        opposite = holds(parts[1:], variables)
        return None if opposite is None else not opposite
    if len(words) == 1:
        return bool(words[0])
    if len(words) == 2 and re.fullmatch("-[a-z]", words[0]):
        if words[0] in ("-n", "-z"):
            return bool(words[1]) == (words[0] == "-n")
        return words[0] != "-v" or variables.get(words[1]) is not None
    if len(words) == 3 and words[1] in ("=", "==", "!="):
        return fnmatchcase(words[0], words[2]) == (words[1] != "!=")
    if len(words) == 3 and words[1] in _COMPARISONS:
        numbers = [re.fullmatch(r"-?[0-9]{1,18}", w) for w in (words[0], words[2])]
        if all(numbers):
            return bool(_COMPARISONS[words[1]](int(words[0]), int(words[2])))
    return None
