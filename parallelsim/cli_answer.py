"""What ``plan`` prints and ``report`` shows: the options that ask for it, and the answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from parallelsim.cli_beside import Beside, beside
from parallelsim.cli_compare_with import compare_with_option
from parallelsim.cli_explain import why_not_option
from parallelsim.cli_inputs import Inputs, load_inputs, search_space
from parallelsim.cli_objective import (
    ObjectiveOptions,
    chosen_size,
    least_memory_first,
    objective_options,
)
from parallelsim.cli_options import (
    SearchOptions,
    SpecOptions,
    only_grid,
    search_options,
    spec_options,
)
from parallelsim.cli_run import planned, script_and_arguments
from parallelsim.cli_searcher import HowToSearch, check_how, how_options, run_search
from parallelsim.cli_values import Part, whole_number

if TYPE_CHECKING:
    from parallelsim.robustness import Robustness
    from parallelsim.search.result import SearchResult


@dataclass(frozen=True)
class Asked:
    """What is to be planned, and what else is asked of it."""

    spec: SpecOptions
    search: SearchOptions
    aim: ObjectiveOptions
    how: HowToSearch
    top: int
    parts: tuple[Part, ...]
    compare_with: str | None
    all_variants: bool

    def check(self) -> None:
        """Refuse options that contradict each other, before anything is read.

        Raises:
            click.UsageError: with what to do.
        """
        if self.compare_with is not None and self.aim.chooses_size:
            raise click.UsageError(
                f"--objective {self.aim.objective} chooses the number of GPUs, --compare-with has "
                "its own"
            )
        if self.spec.num_gpus is None and self.compare_with is None:
            raise click.UsageError(
                "Missing option '--gpus': the number of GPUs ('parallelsim fit' finds the "
                "smallest)."
            )
        check_how(self.search, self.how)
        if self.aim.chooses_size:
            only_grid(self.search, f"--objective {self.aim.objective}")

    def input_files(self) -> tuple[str, ...]:
        """The files that are read."""
        from parallelsim.input_files import input_files

        spec = self.spec
        script = self.compare_with and script_and_arguments(self.compare_with)[0]
        return input_files(spec.model, spec.cluster, spec.framework, script)


@dataclass(frozen=True)
class Answer:
    """The ranked plans, and what was asked beside them."""

    inputs: Inputs
    search: SearchOptions
    result: SearchResult
    more: Beside

    def robustness(self) -> Robustness:
        """How the ranked plans fare where the inputs are otherwise."""
        from parallelsim.robustness import robustness

        return robustness(search_space(self.inputs, self.search), self.result.plans)


def asked_options(num_plans: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the options of :class:`Asked`; the command receives them as ``asked``.

    Args:
        num_plans: shown where ``--top`` does not say otherwise.
    """
    top_option = click.option(
        "--top",
        "-k",
        type=whole_number(1, 1000),
        metavar="N",
        default=num_plans,
        show_default=True,
        help="Plans to show.",
    )

    variants_option = click.option(
        "--all-variants",
        is_flag=True,
        help="Rank every plan; else of plans with the same degrees, micro-batch and sharding the"
        " fastest alone.",
    )

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def with_asked(*args: Any, **options: Any) -> Any:
            own = {name: options.pop(name) for name in Asked.__dataclass_fields__}
            return command(*args, asked=Asked(**own), **options)

        several: Callable[..., Any] = with_asked
        options = (compare_with_option, why_not_option, variants_option, top_option, how_options)
        for option in options:
            several = option(several)
        return spec_options(search_options(objective_options(several)))

    return add


def answer(asked: Asked, *, plan_file: bool = False) -> Answer:
    """Search, and answer what is asked beside the ranking.

    Args:
        asked: checked options.
        plan_file: the plans go to a file, which has to name their model.

    Raises:
        ParallelSimError: whatever is wrong with the inputs; an empty ranking is an answer.
    """
    spec, search = asked.spec, asked.search
    run = planned(spec, asked.compare_with) if asked.compare_with is not None else None
    inputs = run.inputs if run else load_inputs(spec, spec.num_gpus or 0)
    if run and plan_file:
        run.check_named()
    spec, choice = chosen_size(asked.aim, spec, inputs, search)
    if choice:
        inputs = load_inputs(spec, spec.num_gpus or 0)
    result = run_search(inputs, search, asked.how, asked.top, asked.all_variants)
    more = beside(
        inputs,
        search,
        result,
        aim=asked.aim,
        choice=choice,
        run=run,
        file=asked.compare_with,
        parts=asked.parts,
    )
    if len(result.plans) and more.least_memory:
        result = least_memory_first(inputs, search, asked.aim, asked.top, result)
    return Answer(inputs, search, result, more)
