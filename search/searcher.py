"""The contract of searchers: what they are asked, when they must stop, what they answer.

A searcher sees a :class:`~parallelsim.search.space.SearchSpace` and a :class:`Request`, and asks an
:class:`~parallelsim.search.objective.Objective` for scores of batches of plans, less is better,
infinite for a plan that breaks a rule or does not fit. It is called once::

    result = searcher.search(space, request)

and must

* ask for no more plans than ``request.budget``, and start no batch after ``request.timeout_s``;
* give the same plans for the same seed, budget and space, unless the clock or Ctrl-C ended it;
* end early on Ctrl-C, on the time-out, and where a budget cuts short what it set out to do, with
  the best so far, and say which in ``SearchResult.stopped``;
* rank by the replay, and account for what it asked: ``num_evaluated``, ``num_feasible`` and
  ``reasons``; ``proven`` is true only where no plan of the space can be better.

``tests/test_searchers.py`` asks this of every searcher.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from parallelsim.errors import PlanError
from parallelsim.simulate import DEFAULT_MEMORY_LIMIT, TIGHT_LIMIT

if TYPE_CHECKING:
    from parallelsim.search.result import SearchResult
    from parallelsim.search.space import SearchSpace

INTERRUPTED, TIME_OUT, BUDGET = "interrupted", "time-out", "budget"
"""Why a search ended before it was done: ``SearchResult.stopped``."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a search is asked for and may spend."""

    top_k: int = 10
    """Plans wanted."""
    memory_limit: float = DEFAULT_MEMORY_LIMIT
    """Share of the reported memory up to which a plan is safe."""
    budget: int | None = None
    """Plans of which the objective may be asked; None: as many as the searcher needs."""
    seed: int = 0
    timeout_s: float | None = None
    """Seconds after which no further batch is started; what was found is still replayed."""
    workers: int | None = 1
    """Processes of a searcher that can use several; None: all cores where that pays."""
    all_variants: bool = False
    """Rank every plan; else of plans that are variants of one another the fastest alone
    (:mod:`parallelsim.search.variants`)."""

    def __post_init__(self) -> None:
        """Refuse what no search can do.

        Raises:
            PlanError: with what was expected.
        """
        for name, value in (
            ("top_k", self.top_k),
            ("budget", self.budget),
            ("workers", self.workers),
        ):
            if value is not None and value < 1:
                raise PlanError(f"{name} must be at least 1, got {value}")
        if not 0 < self.memory_limit <= TIGHT_LIMIT:
            words = f"memory_limit must be above 0 and up to {TIGHT_LIMIT}"
            raise PlanError(f"{words}, got {self.memory_limit}")
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise PlanError(f"timeout_s must be above 0 seconds, got {self.timeout_s}")


class Stopped(Exception):  # noqa: N818  an event, not an error
    """The budget is spent or the time is up; ``args[0]`` is the reason. Caught by the searcher."""


@dataclass(slots=True)
class Meter:
    """What one search has spent."""

    request: Request
    num_evaluated: int = 0
    started: float = field(default_factory=time.perf_counter)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the search began."""
        return time.perf_counter() - self.started

    def allowed(self, wanted: int) -> int:
        """How many of so many plans the budget still has."""
        budget = self.request.budget
        return wanted if budget is None else min(wanted, budget - self.num_evaluated)

    def spend(self, num_plans: int) -> None:
        """Count plans that the objective is asked for."""
        self.num_evaluated += num_plans

    def check_time(self) -> None:
        """Raise :class:`Stopped` once the time is up."""
        timeout_s = self.request.timeout_s
        if timeout_s is not None and self.elapsed_s >= timeout_s:
            raise Stopped(TIME_OUT)


class Searcher(ABC):
    """A way to find good plans; see the module."""

    name: ClassVar[str]
    """As ``--searcher`` and ``SearchResult.searcher`` have it."""

    @abstractmethod
    def search(self, space: SearchSpace, request: Request) -> SearchResult:
        """The best plans found for the request.

        Raises:
            ParallelSimError: the request or the space cannot be searched.
        """
