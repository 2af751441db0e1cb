"""``plan --objective``: what is asked of the plan, and the cluster size where that is open."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from parallelsim.cli_inputs import Inputs, fit_task
from parallelsim.cli_options import Command, SearchOptions, SpecOptions
from parallelsim.cli_values import number_up_to, shown
from parallelsim.errors import NoFeasiblePlanError, SpecError

if TYPE_CHECKING:
    from parallelsim.objectives import Budget, Choice
    from parallelsim.search.result import SearchResult

OBJECTIVES = ("step-time", "tokens-per-gpu", "cost", "fewest-gpus", "memory")
_SUFFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}


def token_count(text: str | float) -> float:
    """``15T``, ``300B`` or ``1.5e12`` tokens."""
    match = re.fullmatch(r"([0-9.]+(?:e[0-9]+)?)([kmbt]?)", str(text).lower(), re.ASCII)
    try:
        tokens = float(match[1]) * _SUFFIXES[match[2]] if match else math.nan
    except ValueError:
        tokens = math.nan
    if not 0 < tokens <= 1e18:
        raise click.BadParameter(f"{shown(text)} is no number of tokens (as 15T, 300B or 1.5e12)")
    return tokens


@dataclass(frozen=True)
class ObjectiveOptions:
    """What the plan is chosen for."""

    objective: str
    tokens: float | None
    deadline_days: float | None
    price_per_gpu_hour: float | None

    @property
    def chooses_size(self) -> bool:
        """The number of GPUs is open."""
        return self.objective in ("tokens-per-gpu", "cost", "fewest-gpus")

    def check(self) -> None:
        """Refuse an objective without what it needs.

        Raises:
            click.UsageError: which option is missing.
        """
        needs = {"cost": ("tokens",), "fewest-gpus": ("tokens", "deadline_days")}
        for name in needs.get(self.objective, ()):
            if getattr(self, name) is None:
                option = "--" + name.replace("_", "-")
                raise click.UsageError(f"--objective {self.objective} needs {option}")
        for name in ("deadline_days", "price_per_gpu_hour"):
            if getattr(self, name) is not None and self.tokens is None:
                raise click.UsageError(f"--{name.replace('_', '-')} needs --tokens")


_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--objective",
        type=click.Choice(OBJECTIVES),
        default="step-time",
        show_default=True,
        help="What the plan is chosen for: step-time and memory (the least) with --gpus GPUs;"
        " tokens-per-gpu, cost (dollars for --tokens) and fewest-gpus (for --tokens by"
        " --deadline-days) with at most --gpus.",
    ),
    click.option(
        "--tokens",
        type=token_count,
        metavar="N",
        help="Tokens of the whole training, as 15T: prints its days, GPU-hours and price.",
    ),
    click.option(
        "--deadline-days",
        type=number_up_to(1e6, low=1e-3),
        metavar="X",
        help="Days by which all --tokens are trained.",
    ),
    click.option(
        "--price-per-gpu-hour",
        type=number_up_to(1e4, low=1e-4),
        metavar="X",
        help="Dollars.  [default: of the cluster's file, if it states a price]",
    ),
)


def objective_options(command: Command) -> Command:
    """Add the options of :class:`ObjectiveOptions`; the command receives them as ``aim``."""

    @wraps(command)
    def with_aim(
        *args: Any,
        objective: str,
        tokens: float | None,
        deadline_days: float | None,
        price_per_gpu_hour: float | None,
        **options: Any,
    ) -> Any:
        aim = ObjectiveOptions(objective, tokens, deadline_days, price_per_gpu_hour)
        aim.check()
        return command(*args, aim=aim, **options)

    for option in reversed(_OPTIONS):
        with_aim = option(with_aim)
    return with_aim


def budget_of(aim: ObjectiveOptions, inputs: Inputs) -> Budget:
    """The budget, with the price of the cluster's file where none is given.

    Raises:
        SpecError: the objective is a cost and there is no price.
    """
    from parallelsim.objectives import Budget

    price = aim.price_per_gpu_hour or inputs.cluster.dollars_per_gpu_hour
    if aim.objective == "cost" and price is None:
        raise SpecError(f"{inputs.cluster.name} states no price; give --price-per-gpu-hour")
    return Budget(aim.tokens, aim.deadline_days, price)


def chosen_size(
    aim: ObjectiveOptions, spec: SpecOptions, inputs: Inputs, search: SearchOptions
) -> tuple[SpecOptions, Choice | None]:
    """The options with the number of GPUs that the objective chooses, and how it was found.

    Raises:
        NoFeasiblePlanError: no size meets the deadline, or has a safe plan.
    """
    if not aim.chooses_size:
        return spec, None
    from parallelsim.cli_sweep import num_cores
    from parallelsim.objectives import choose_size

    at_most = inputs.cluster.num_gpus
    if sys.stderr.isatty():
        click.echo(f"trying sizes up to {at_most} GPUs ...", err=True)
    budget = budget_of(aim, inputs)
    task = fit_task(spec, search)
    choice = choose_size(task, aim.objective, budget, at_most, num_cores())
    if choice.best is None:
        raise NoFeasiblePlanError(_no_size(choice, budget, at_most))
    return replace(spec, num_gpus=int(choice.best["num_gpus"])), choice


def _no_size(choice: Choice, budget: Budget, at_most: int) -> str:
    """Why no size is chosen."""
    found = [row for row in choice.tried if row["step_time_s"] is not None]
    if not found:
        return f"no size up to {at_most} GPUs has a safe plan; 'parallelsim fit' says what binds"
    fastest = max(found, key=lambda row: float(row["tokens_per_s"]))
    days = budget.days(float(fastest["tokens_per_s"]))
    return (
        f"no size up to {at_most} GPUs trains all tokens in {budget.deadline_days:g} days: the "
        f"fastest, {fastest['num_gpus']} GPUs, takes {days:.3g}"
    )


def least_memory_first(
    inputs: Inputs, search: SearchOptions, top: int, result: SearchResult
) -> SearchResult:
    """The result with the plans that need the least memory in place of the fastest."""
    from parallelsim.cli_inputs import search_space
    from parallelsim.search.least_memory import least_memory

    if not len(result.plans):
        return result
    plans = least_memory(search_space(inputs, search), top, search.memory_limit)
    none = result.faster_but_tight.take(slice(0))
    return replace(result, plans=plans, faster_but_tight=none, cut_gain_frac=(None,) * len(plans))
