"""Spoiled documents: what a file may hold where a reader expects numbers, names and lists."""

from __future__ import annotations

import copy
import math
from random import Random
from typing import Any

from parallelsim.errors import ParallelSimError

JUNK: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 8, 13, 72, 2**31, 10**30, 10**400, 0.5, -0.5, 1e-300, 1e300),
    *(
        math.nan,
        math.inf,
        "",
        "bf16",
        "hopper",
        "h100-80gb-sxm",
        "a\nb",
        "\x00",
        "\ud800",
        "x" * 500,
    ),
    *([], {}, [[]], [{}], [1, 2], {"source": 1}, {"source": "own"}, {"a\nb": 1}),
)


def paths(data: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value below ``data``."""
    pairs: Any = data.items() if isinstance(data, dict) else ()
    pairs = enumerate(data) if isinstance(data, list) else pairs
    found = []
    for key, value in pairs:
        found += [(*prefix, key), *paths(value, (*prefix, key))]
    return found


def mutated(data: dict[str, Any], random: Random) -> dict[str, Any]:
    """A copy with one to three values replaced, removed or added."""
    data = copy.deepcopy(data)
    for _ in range(random.randint(1, 3)):
        *parents, last = random.choice(paths(data) or [("name",)])
        target: Any = data
        for key in parents:
            target = target[key]
        action = random.random()
        if action < 0.2 and last in target:
            del target[last]
        elif action < 0.35 and isinstance(target, dict):
            target[random.choice(("", "extra", "max_gpus", "a\nb"))] = copy.deepcopy(
                random.choice(JUNK)
            )
        else:
            target[last] = copy.deepcopy(random.choice(JUNK))
    return data


def assert_readable(error: ParallelSimError) -> None:
    assert "\n" not in str(error)
    assert str(error).isprintable()
    assert len(str(error)) < 600
