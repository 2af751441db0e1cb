"""Points near good ones: which plans to start from, and how far to go."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from parallelsim.search.choice_tree import Coordinate, Point
from parallelsim.search.encoding import PlanId

DECAY = 2.0
"""Mean rank, among the best plans of each niche, of the one to start from."""
SPREAD = {"log2_vpp": 1.5, "first_fewer": 1.5, "last_fewer": 1.5, "recompute_share": 0.4}
"""Standard deviation of a step along a real coordinate."""
CHANGES = (0.5, 0.3, 0.2)
"""Probability to change one, two or three coordinates."""


class Parents:
    """The plans to start from: of each niche (pp and tp) the best, or the front of all."""

    def __init__(self, *, by_front: bool) -> None:
        self.by_front = by_front
        self._best: dict[tuple[int, int], tuple[tuple[float, float], PlanId]] = {}
        self._front: dict[PlanId, tuple[float, ...]] = {}

    def offer(
        self, niche: tuple[int, int], identity: PlanId, excess: float, values: Sequence[float]
    ) -> None:
        """Consider a plan; ``excess`` above 0 is what it needs beyond the memory."""
        key = (excess, values[0])
        if niche not in self._best or key < self._best[niche][0]:
            self._best[niche] = (key, identity)
        if self.by_front and excess <= 0:
            mine = np.array(values)
            rivals = np.array(list(self._front.values())).reshape(-1, len(mine))
            if np.all(rivals <= mine, axis=1).any():
                return
            beaten = np.flatnonzero(np.all(mine <= rivals, axis=1))
            for plan in [list(self._front)[i] for i in beaten]:
                del self._front[plan]
            self._front[identity] = tuple(values)

    @property
    def best(self) -> float:
        """The least first value of a plan that fits; infinite before the first one."""
        fitting = (key[1] for key, _ in self._best.values() if key[0] <= 0)
        return min(fitting, default=np.inf)

    def draw(self, rng: np.random.Generator) -> PlanId | None:
        """One of them; the better, the more often."""
        if self._front and rng.random() < 0.5:
            return list(self._front)[int(rng.integers(len(self._front)))]
        ranked = sorted(self._best.values())
        if not ranked:
            return None
        return ranked[min(int(rng.exponential(DECAY)), len(ranked) - 1)][1]


def neighbour(
    point: Point, coordinates: Sequence[Coordinate], rng: np.random.Generator, more: int = 1
) -> dict[str, float]:
    """The point with one to three coordinates changed, ``more`` - 1 beyond that."""
    near = {c.name: point[c.name] for c in coordinates}
    number = int(rng.choice(len(CHANGES), p=CHANGES)) + more
    for index in rng.permutation(len(coordinates))[:number].tolist():
        choice = coordinates[index]
        value = near[choice.name]
        if choice.size:
            step = int(rng.choice((-2, -1, 1, 2), p=(0.1, 0.4, 0.4, 0.1)))
            near[choice.name] = int(np.clip(value + step, 0, choice.size - 1))
        elif choice.categories:
            near[choice.name] = _any(choice.categories, rng)
        else:
            step_s = rng.normal() * SPREAD[choice.name]
            near[choice.name] = float(np.clip(value + step_s, 0.0, choice.high))
    return {c.name: _typed(c, near[c.name]) for c in coordinates}


def drawn(coordinates: Sequence[Coordinate], rng: np.random.Generator) -> dict[str, float]:
    """Any point."""
    return {
        c.name: int(rng.integers(c.size))
        if c.size
        else _any(c.categories, rng)
        if c.categories
        else float(rng.uniform(0.0, c.high))
        for c in coordinates
    }


def _any(categories: Sequence[int], rng: np.random.Generator) -> int:
    return int(categories[int(rng.integers(len(categories)))])


def _typed(coordinate: Coordinate, value: float) -> float:
    if coordinate.high:
        return float(min(max(value, 0.0), coordinate.high))
    return int(value)
