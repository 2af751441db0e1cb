"""Options of ``plan`` that say how to search, and the search itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from parallelsim.cli_inputs import Inputs, search_space
from parallelsim.cli_options import SearchOptions
from parallelsim.cli_values import number_up_to, whole_number

if TYPE_CHECKING:
    from parallelsim.search.result import SearchResult
    from parallelsim.search.searcher import Searcher

MOST_EVALUATIONS = 10**9
MOST_SECONDS = 1e7
BAYESIAN_ONLY = ("sampler", "storage", "study", "warm_start", "pareto")


@dataclass(frozen=True)
class HowToSearch:
    """What the search may spend, and how a Bayesian one works."""

    budget: int | None
    seed: int | None
    timeout: float | None
    workers: int | None
    sampler: str | None
    storage: str | None
    study: str | None
    warm_start: bool
    pareto: bool


_OPTIONS = (
    click.option(
        "--budget",
        type=whole_number(1, MOST_EVALUATIONS),
        metavar="N",
        help="Plans to evaluate at most.  [default: grid all, bayesian 2000]",
    ),
    click.option(
        "--seed",
        type=whole_number(0, 2**31 - 1),
        metavar="S",
        help="Of a Bayesian search.  [default: 0]",
    ),
    click.option(
        "--timeout",
        type=number_up_to(MOST_SECONDS, low=1e-3),
        metavar="SECONDS",
        help="End the search then, with the best so far.",
    ),
    click.option(
        "--workers",
        type=whole_number(1, 1024),
        metavar="N",
        help="Processes of the grid, with the answer of one.  [default: one for each CPU core "
        "where the space is large]",
    ),
    click.option(
        "--sampler",
        metavar="tpe|gp",
        type=click.Choice(("tpe", "gp")),
        help="Of a Bayesian search: tree of Parzen estimators, or Gaussian process.  "
        "[default: tpe]",
    ),
    click.option(
        "--storage",
        metavar="URL",
        help="Where a Bayesian search keeps its study, for others to join and to go on later: "
        "sqlite:///FILE, postgresql://..., or the path of a journal file.",
    ),
    click.option(
        "--study",
        metavar="NAME",
        help="Name of the study.  [default: follows from the inputs; in sqlite:///"
        "parallelsim-studies.db without --storage]",
    ),
    click.option(
        "--warm-start", is_flag=True, help="Bayesian: try the ten best plans of the grid first."
    ),
    click.option(
        "--pareto",
        is_flag=True,
        help="Bayesian: also the plans that no other beats in step time and memory.",
    ),
)
"""In the order of ``--help``."""


def how_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of :class:`HowToSearch`; the command receives them as ``how``."""

    @wraps(command)
    def with_how(*args: Any, **options: Any) -> Any:
        own = {field.name: options.pop(field.name) for field in fields(HowToSearch)}
        return command(*args, how=HowToSearch(**own), **options)

    for option in reversed(_OPTIONS):
        with_how = option(with_how)
    return with_how


def run_search(
    inputs: Inputs, search: SearchOptions, how: HowToSearch, top: int, all_variants: bool
) -> SearchResult:
    """The ranked plans for the inputs.

    Raises:
        click.UsageError: an option that the searcher does not have.
        ParallelSimError: the searcher cannot run, or its study is another's.
    """
    from parallelsim.search.grid import GridSearcher
    from parallelsim.search.searcher import Request

    space = search_space(inputs, search)
    spent = (how.budget, how.seed or 0, how.timeout, how.workers)
    request = Request(top, search.memory_limit, *spent, all_variants=all_variants)
    searcher: Searcher = GridSearcher()
    if search.searcher != "grid":
        from parallelsim.search.bayesian import BayesianSearcher

        best = searcher.search(space, Request(10, search.memory_limit)) if how.warm_start else None
        searcher = BayesianSearcher(
            how.sampler or "tpe",
            how.storage,
            how.study,
            tuple(best.plans.plans) if best else (),
            how.pareto,
        )
    return searcher.search(space, request)


def check_how(search: SearchOptions, how: HowToSearch) -> None:
    """Refuse options that the searcher does not have.

    Raises:
        click.UsageError: with what to do.
    """
    for option, name in (("storage", how.storage), ("study", how.study)):
        if name == "":
            raise click.UsageError(f"--{option} is empty: name one, or leave the option out")
    if search.searcher != "grid":
        if how.workers is not None:
            raise click.UsageError("--workers are the grid's: start more of these on one --storage")
        return
    if how.budget is not None and how.workers is not None:
        raise click.UsageError("--budget is spent by one process: leave out --workers")
    given = [name for name in BAYESIAN_ONLY if getattr(how, name)]
    given += ["seed"] if how.seed is not None else []
    if given:
        option = given[0].replace("_", "-")
        raise click.UsageError(f"--{option} needs --searcher bayesian: the grid has none")
