"""``plan --compare-with``: a run of today against what the search finds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from parallelsim.cli_inputs import search_space
from parallelsim.cli_options import SearchOptions
from parallelsim.cli_run import PlannedRun

if TYPE_CHECKING:
    from parallelsim.report.edits import Compared
    from parallelsim.search.result import SearchResult

compare_with_option: Callable[[Any], Any] = click.option(
    "--compare-with",
    metavar="FILE",
    help="A launch script, a configuration or a plan file: its rank, and the edits that lead to"
    " plan 1. It states what is not given.",
)

RANKED = 10
"""Plans of the ranking that the run's place counts in, at least."""


def compared_run(
    run: PlannedRun, file: str, search: SearchOptions, result: SearchResult
) -> Compared:
    """The run of a file against the search of its inputs."""
    from parallelsim.edits import greedy_edits
    from parallelsim.replay import replayed
    from parallelsim.report.edits import Compared
    from parallelsim.rules import explain
    from parallelsim.search.grid import grid_search
    from parallelsim.search.place import place
    from parallelsim.simulate import simulate

    space = search_space(run.inputs, search)
    inputs = (space.model, space.cluster, space.framework)
    simulation = replayed(simulate(*inputs, run.plan, search.memory_limit))
    broken = tuple(explain(*inputs, run.plan))
    ranked = result
    if len(result.plans) < RANKED:  # as ``explain`` counts the layouts that a search finds
        ranked = grid_search(space, RANKED, search.memory_limit)
    where = None if broken else place(space, ranked, simulation, search.memory_limit)
    goal = result.plans.take(slice(1))
    edits = greedy_edits(simulation, goal, search.memory_limit) if len(goal) else []
    return Compared(file, simulation, broken, where, tuple(edits), goal)
