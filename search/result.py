"""What a search found, what it rejected, and what it proved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from parallelsim.errors import NoFeasiblePlanError
from parallelsim.plan import Plan
from parallelsim.simulate import Simulation

NEAR_FRAC = 0.01
"""Share of the step up to which variants are near."""
OUT_OF_MEMORY = "out of memory"
"""The reason of plans that obey every rule and do not fit."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Ranked plans and the account of the rest."""

    plans: Simulation
    """Safe plans, fastest first by the replay; ties by memory, then by the plan's fields."""
    faster_but_tight: Simulation
    """Plans faster than the best safe one that may run out of memory, fastest first."""
    nearest_miss: Simulation
    """The plan with the least memory among those that obey every rule; empty if none does."""
    num_candidates: int
    num_feasible: int
    """Safe plans."""
    num_tight: int
    reasons: Mapping[str, int]
    """Plans that each rule rejects (a plan may break several), and those out of memory.

    Plans that cannot fit however they are cut into stages count as out of memory alone: rules about
    the cut are not asked for them.
    """
    proven: bool
    """No plan of the space is better than the first, by the replay: every candidate was screened,
    and every one whose bound could enter the ranking was replayed. Cuts of layout ``free`` are
    beside the space: they are sought, not exhausted."""
    elapsed_s: float
    searcher: str
    stopped: str = ""
    """Why the search ended early, with the best so far: interrupted, time-out or budget."""
    exhaustive: bool = False
    """Every plan of the space was screened."""
    num_evaluated: int = 0
    """Plans whose step time, or a bound on it, was asked for."""
    num_replayed: int = 0
    """Plans whose pipeline was replayed."""
    num_cut: int = 0
    """Plans whose layers were cut into stages by dynamic programming."""
    num_uncut: int = 0
    """Plans that a cut might have brought into the ranking and that were not cut."""
    cut_gain_frac: tuple[float | None, ...] = ()
    """Of each plan with layout ``free``, in order of ``plans``, the share of the step that its cut
    saves at least over its best variant with another layout, or where every variant is a row over
    the same plan with another layout; None for the other plans, and where none was replayed."""
    all_variants: bool = False
    """Every plan is a row; else the fastest of those that are variants of one another
    (:mod:`parallelsim.search.variants`), and each row is proved to be, where the search is."""
    num_near: tuple[int, ...] = ()
    """Of each row, other variants within ``NEAR_FRAC`` by the closed forms, as far as the search
    kept them; empty where they were not counted."""
    front: Simulation | None = None
    """Safe plans that no other one beats in step time and in memory, fastest first, where asked
    for."""

    @property
    def partial(self) -> bool:
        """The search ended early; the plans are the best so far."""
        return self.stopped != ""

    @property
    def best(self) -> Plan:
        """The plan to run: the fastest safe one.

        Raises:
            NoFeasiblePlanError: none is safe.
        """
        if not len(self.plans):
            raise NoFeasiblePlanError(self._account)
        return self.plans.plans.plan(0)

    def to_frame(self) -> Any:
        """One row a plan, safe ones first, then faster tight ones, with its ``rank``; see
        :func:`parallelsim.frames.data_frame`. Needs pandas.
        """
        frame = self._both.to_frame()
        frame.insert(0, "rank", range(1, len(frame) + 1))
        return frame

    def __repr__(self) -> str:
        from parallelsim.frames import plans_text

        return plans_text(self._both, [self._account])

    def _repr_html_(self) -> str:
        from parallelsim.frames import plans_html

        return plans_html(self._both, [self._account])

    @property
    def _both(self) -> Simulation:
        return Simulation.concatenate([self.plans, self.faster_but_tight])

    @property
    def _account(self) -> str:
        rejected = ", ".join(f"{count:,} {name}" for name, count in self.reasons.items() if count)
        found = f"{self.num_feasible:,} safe, {self.num_tight:,} tight"
        proof = "; plan 1 is proved the fastest safe one" if self.proven and self.plans else ""
        return f"{self.num_candidates:,} candidates: {found}; rejected: {rejected or 'none'}{proof}"
