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
    best_of_ways,
    family,
    fastest_cuts,
    find_cuts,
)
from parallelsim.search.refine import Replays, ranking
from parallelsim.search.result import NEAR_FRAC, SearchResult
from parallelsim.search.scan import Found, Scan
from parallelsim.search.searcher import INTERRUPTED, Meter, Request, Searcher
from parallelsim.search.space import SearchSpace
from parallelsim.search.variants import way

from parallelsim.progress import tell
from parallelsim.replay import replayed
from parallelsim.simulate import (
    DEFAULT_MEMORY_LIMIT,
    Simulation,
    simulate,
)

SPARE = 8
"""Plans kept for each wanted one where every variant is ranked: equivalent plans become one row
only after the full simulation."""
SPARE_ROWS = 2
"""Ways to deal the work that are kept for each wanted row: bounds order them otherwise than the
replay."""
VARIANTS_KEPT = 24
"""Plans kept of each row."""
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
        found = room_for(request)
        while True:
            scan = Scan(space, found, memory_limit, meter)
            scan.run()
            tell(1, words="replaying the fastest")
            refined = _refined(scan, request.top_k)
            if refined.room is None or scan.stopped:
                break
            found = refined.room
        nearest = scan.found.nearest.plans
        if len(nearest) == 0 and not scan.stopped:
            # The lower bound on memory spared every plan's own figure: look again without a limit.
            unlimited = Scan(space, Found(1, 1, all_variants=True), math.inf, meter)
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
            all_variants=request.all_variants,
            num_near=refined.num_near,
        )


def grid_search(
    space: SearchSpace,
    top_k: int = 10,
    memory_limit: float = DEFAULT_MEMORY_LIMIT,
    *,
    all_variants: bool = False,
) -> SearchResult:
    """The ``top_k`` fastest safe plans of the space, proved where it can be, and the tight ones
    that beat them: :class:`GridSearcher` without budget or time-out.

    Of plans with the same degrees, micro-batch and sharding the fastest is one row, unless
    ``all_variants`` are to be ranked.

    Ctrl-C ends the search early: the result is then ``partial`` and holds the best so far.
    """
    request = Request(top_k, memory_limit, all_variants=all_variants)
    return GridSearcher().search(space, request)


@dataclass(frozen=True, slots=True)
class _Refined:
    """The rankings by the replay."""

    safe: Simulation
    tight: Simulation
    proven: bool
    """The safe ranking lacks no plan of the space."""
    num_replayed: int = 0
    num_cut: int = 0
    num_uncut: int = 0
    gains: tuple[float | None, ...] = ()
    num_near: tuple[int, ...] = ()
    room: Found | None = None
    """For a scan that keeps more, where this one may have dropped plans of the ranking."""


def room_for(request: Request) -> Found:
    """What a first pass keeps."""
    if request.all_variants:
        return Found(SPARE * request.top_k + 64, 1, all_variants=True)
    return Found(SPARE_ROWS * request.top_k + 8, VARIANTS_KEPT)


def _more_room(found: Found, reached: bool, lacking: bool) -> Found | None:
    """Room for a ranking that a scan was too small for; None where it was not."""
    if (reached and not lacking) or found.keep * found.each >= MOST_KEPT:
        return None
    keep = found.keep if reached else SPARE * found.keep
    return Found(keep, SPARE * found.each if lacking else found.each, found.all_variants)


def _refined(scan: Scan, top_k: int) -> _Refined:
    """Replay what the scan kept, and cut layers where that may gain."""
    try:
        return _replay_and_cut(scan, top_k)
    except KeyboardInterrupt:
        scan.stopped = INTERRUPTED
        space = scan.space
        inputs = (space.model, space.cluster, space.framework)
        kept = simulate(*inputs, scan.found.safe.plans, scan.memory_limit)
        best = ranking(kept, top_k, scan.found.all_variants)
        return _Refined(best, kept.take(slice(0)), proven=False)


def _replay_and_cut(scan: Scan, top_k: int) -> _Refined:
    space, table = scan.space, scan.table
    kept = scan.found.safe
    replays = Replays(space, table, scan.memory_limit, kept.all_variants)
    ranked = replays.rank(kept.plans, kept.score, top_k, complete_below_s=kept.complete_below())
    safe, found = ranked.plans, None
    last = float(safe.step_time_s[-1]) if len(safe) == top_k else math.inf
    reached = math.isinf(kept.limit) or kept.limit >= last
    room = None if scan.stopped else _more_room(scan.found, reached, ranked.lacking)
    gains: tuple[float | None, ...] = (None,) * len(safe)
    if room is None and not scan.stopped:
        known = best_of_families(ranked.replayed)
        ways = None if kept.all_variants else best_of_ways(ranked.replayed)
        found = find_cuts(space, table, scan.rows_below(last), known, last, scan.memory_limit, ways)
        cut = fastest_cuts(replays, found.plans, last)
        safe = ranking(Simulation.concatenate([safe, cut]), top_k, kept.all_variants)
        gains = tuple(_gain(safe, i, known, ways, last) for i in range(len(safe)))
    best = float(safe.step_time_s[0]) if len(safe) else math.inf
    tight = replays.rank(scan.found.tight.plans, scan.found.tight.score, top_k, best).plans
    exact = scan.found.only_bounded and bool(safe.replayed.all())
    return _Refined(
        safe=safe,
        tight=tight,
        proven=ranked.complete and reached and exact,
        num_replayed=replays.num_replayed,
        num_cut=found.num_cut if found else 0,
        num_uncut=found.num_left if found else 0,
        gains=gains,
        num_near=_num_near(safe, replays.simulated(kept.plans)) if room is None else (),
        room=room,
    )


def _num_near(rows: Simulation, kept: Simulation) -> tuple[int, ...]:
    """Of each row, how many other of the kept plans are variants of it and nearly as fast; plans
    that agree in every number count once.
    """
    distinct = ranking(kept, len(kept), all_variants=True)
    steps: dict[Family, list[float]] = {}
    for index, step_s in enumerate(distinct.step_time_s.tolist()):
        steps.setdefault(way(distinct.plans, index), []).append(step_s)
    numbers = []
    for index, step_s in enumerate(rows.step_time_s.tolist()):
        near = [s for s in steps.get(way(rows.plans, index), []) if s <= step_s * (1 + NEAR_FRAC)]
        itself = int(rows.plans.layout[index] != FREE)
        numbers.append(max(len(near) - itself, 0))
    return tuple(numbers)


def _gain(
    safe: Simulation,
    index: int,
    families: Mapping[Family, float],
    ways: Mapping[Family, float] | None,
    last_s: float,
) -> float | None:
    """Share of the step that the cut of one plan saves over its best variant with another layout,
    at least: variants that were not replayed are not below ``last_s``. Where every variant is
    ranked, over the same plan with another layout.
    """
    if safe.plans.layout[index] != FREE:
        return None
    if ways is None:
        other = families.get(family(safe.plans, index))
    else:
        other = ways.get(way(safe.plans, index))
    return None if other is None else 1 - float(safe.step_time_s[index]) / min(other, last_s)
