"""Compiled graphs, kept for the next replay of the same schedule and size."""

from __future__ import annotations

import functools

from parallelsim.timeline.graph import Graph, compile_graph
from parallelsim.timeline.schedules import make_schedule

MOST_CACHED = 64
"""Graphs that are kept, the last used ones."""
MAX_CACHED_OPERATIONS = 32_768
"""Of one graph, at about 100 bytes each; larger ones are built anew."""


def compiled_graph(
    name: str, pp: int, vpp: int, num_micro_batches: int, *, gathers: bool = False
) -> Graph:
    """The graph of a schedule; the same object for the same size: do not write into its arrays.

    Raises:
        PlanError: as :func:`~parallelsim.timeline.schedules.make_schedule`.
    """
    size = (name, int(pp), int(vpp), int(num_micro_batches))
    build = _kept if 3 * size[1] * size[2] * size[3] <= MAX_CACHED_OPERATIONS else _built
    return build(*size, gathers)


def _built(name: str, pp: int, vpp: int, num_micro_batches: int, gathers: bool) -> Graph:
    return compile_graph(make_schedule(name, pp, vpp, num_micro_batches), gathers=gathers)


_kept = functools.lru_cache(maxsize=MOST_CACHED)(_built)
