"""Exhaustive search: every plan of the space, in blocks, with a running list of the best.

Rules first, memory second, a bound on the time last, each on what is left. What the bound lets into
the ranking is replayed (:mod:`parallelsim.search.refine`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from parallelsim.search.cuts import (
    FREE,
    Family,
    best_of_families,
    family,
    fastest_cuts,
    find_cuts,
)
from parallelsim.search.refine import Replays, ranking
from parallelsim.search.result import SearchResult
from parallelsim.search.scan import Scan
from parallelsim.search.searcher import INTERRUPTED, Meter, Request, Searcher
from parallelsim.search.space import SearchSpace

from parallelsim.replay import replayed
from parallelsim.simulate import (
    DEFAULT_MEMORY_LIMIT,
    Simulation,
    simulate,
)

SPARE = 8
"""Plans kept for each wanted one: equivalent plans become one row only after the full
simulation.
"""
MOST_KEPT = 20_000
"""Plans kept at most for one ranking; where more have bounds that could enter it, it is not
proven."""


class GridSearcher(Searcher):
    """Screens every plan with a bound below its replay; those whose bound could enter the ranking
    are replayed, and ranked by that. Plans that may gain by it have their layers cut into stages by
    dynamic programming (:mod:`parallelsim.search.cuts`). The seed has no effect.
    """

    name: ClassVar[str] = "grid"

    def search(self, space: SearchSpace, request: Request) -> SearchResult:
        """The fastest safe plans of the space, and the tight ones that beat them."""
        meter, memory_limit = Meter(request), request.memory_limit
        keep = SPARE * request.top_k + 64
        while True:
            scan = Scan(space, keep, memory_limit, meter)
            scan.run()
            refined = _refined(scan, request.top_k)
            if refined.reached or scan.stopped or keep >= MOST_KEPT:
                break
            keep *= SPARE
        nearest = scan.found.nearest.plans
        if len(nearest) == 0 and not scan.stopped:
            # The lower bound on memory spared every plan's own figure: look again without a limit.
            unlimited = Scan(space, 1, math.inf, meter)
            unlimited.run()
            nearest = unlimited.found.nearest.plans
        return SearchResult(
            plans=refined.safe,
            faster_but_tight=refined.tight,
            nearest_miss=replayed(
                simulate(space.model, space.cluster, space.framework, nearest, memory_limit)
            ),
            num_candidates=scan.found.num_candidates,
            num_feasible=scan.found.num_safe,
            num_tight=scan.found.num_tight,
            reasons=scan.found.reasons_in_order,
            proven=refined.proven and not scan.stopped and scan.found.num_candidates > 0,
            stopped=scan.stopped,
            exhaustive=not scan.stopped,
            num_evaluated=meter.num_evaluated,
            elapsed_s=meter.elapsed_s,
            searcher=self.name,
            num_replayed=refined.num_replayed,
            num_cut=refined.num_cut,
            num_uncut=refined.num_uncut,
            cut_gain_frac=refined.gains,
        )


def grid_search(
    space: SearchSpace, top_k: int = 10, memory_limit: float = DEFAULT_MEMORY_LIMIT
) -> SearchResult:
    """The ``top_k`` fastest safe plans of the space, proved where it can be, and the tight ones
    that beat them: :class:`GridSearcher` without budget or time-out.

    Ctrl-C ends the search early: the result is then ``partial`` and holds the best so far.
    """
    return GridSearcher().search(space, Request(top_k, memory_limit))


@dataclass(frozen=True, slots=True)
class _Refined:
    """The rankings by the replay."""

    safe: Simulation
    tight: Simulation
    reached: bool
    """The bound of no plan that the scan dropped is below the last place."""
    proven: bool
    """The safe ranking lacks no plan of the space."""
    num_replayed: int = 0
    num_cut: int = 0
    num_uncut: int = 0
    gains: tuple[float | None, ...] = ()


def _refined(scan: Scan, top_k: int) -> _Refined:
    """Replay what the scan kept, and cut layers where that may gain."""
    try:
        return _replay_and_cut(scan, top_k)
    except KeyboardInterrupt:
        scan.stopped = INTERRUPTED
        space = scan.space
        inputs = (space.model, space.cluster, space.framework)
        kept = simulate(*inputs, scan.found.safe.plans, scan.memory_limit)
        return _Refined(ranking(kept, top_k), kept.take(slice(0)), reached=False, proven=False)


def _replay_and_cut(scan: Scan, top_k: int) -> _Refined:
    space, table = scan.space, scan.table
    replays = Replays(space, table, scan.memory_limit)
    ranked = replays.rank(scan.found.safe.plans, scan.found.safe.score, top_k)
    safe, found = ranked.plans, None
    last = float(safe.step_time_s[-1]) if len(safe) == top_k else math.inf
    # What the scan dropped has bounds above those of what it kept.
    reached = not scan.truncated or float(scan.found.safe.score[-1]) >= last
    gains: tuple[float | None, ...] = (None,) * len(safe)
    if (reached or scan.found.keep >= MOST_KEPT) and not scan.stopped:
        known = best_of_families(ranked.replayed)
        found = find_cuts(space, table, scan.unstaged, known, last, scan.memory_limit)
        cut = fastest_cuts(replays, found.plans, last)
        safe = ranking(Simulation.concatenate([safe, cut]), top_k)
        gains = tuple(_gain(safe, i, known, last) for i in range(len(safe)))
    best = float(safe.step_time_s[0]) if len(safe) else math.inf
    tight = replays.rank(scan.found.tight.plans, scan.found.tight.score, top_k, best).plans
    exact = scan.found.only_bounded and bool(safe.replayed.all())
    return _Refined(
        safe=safe,
        tight=tight,
        reached=reached,
        proven=ranked.complete and reached and exact,
        num_replayed=replays.num_replayed,
        num_cut=found.num_cut if found else 0,
        num_uncut=found.num_left if found else 0,
        gains=gains,
    )


def _gain(
    safe: Simulation, index: int, known: Mapping[Family, float], last_s: float
) -> float | None:
    """Share of the step that the cut of one plan saves over its best other layout, at least.

    Layouts that were not replayed are not below ``last_s``.
    """
    if safe.plans.layout[index] != FREE:
        return None
    other = known.get(family(safe.plans, index))
    return None if other is None else 1 - float(safe.step_time_s[index]) / min(other, last_s)
