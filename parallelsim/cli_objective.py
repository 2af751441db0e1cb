"""``plan --objective``: what is asked of the plan, and the cluster size where that is open."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from parallelsim.cli_inputs import Inputs, fit_task, search_space
from parallelsim.cli_options import Command, SearchOptions, SpecOptions
from parallelsim.cli_values import number_up_to
from parallelsim.cli_whole_run import RunOptions, run_options
from parallelsim.errors import NoFeasiblePlanError, SpecError

if TYPE_CHECKING:
    from parallelsim.objectives import Choice
    from parallelsim.search.result import SearchResult
    from parallelsim.whole_run import Budget

MAX_SLOWDOWN = 0.1
OBJECTIVES = ("step-time", "tokens-per-gpu", "cost", "fewest-gpus", "memory")


@dataclass(frozen=True)
class ObjectiveOptions:
    """What the plan is chosen for."""

    objective: str
    max_slowdown: float | None
    """Of the least memory; None: not given."""
    run: RunOptions

    @property
    def chooses_size(self) -> bool:
        """The number of GPUs is open."""
        return self.objective in ("tokens-per-gpu", "cost", "fewest-gpus")

    @property
    def slowdown(self) -> float:
        """Share of the fastest step by which a plan that needs less memory may be slower."""
        return MAX_SLOWDOWN if self.max_slowdown is None else self.max_slowdown

    def check(self) -> None:
        """Refuse an objective without what it needs.

        Raises:
            click.UsageError: which option is missing.
        """
        if self.max_slowdown is not None and self.objective != "memory":
            raise click.UsageError("--max-slowdown belongs to --objective memory")
        needs = {"cost": ("tokens",), "fewest-gpus": ("tokens", "deadline_days")}
        for name in needs.get(self.objective, ()):
            if getattr(self.run, name) is None:
                option = "--" + name.replace("_", "-")
                raise click.UsageError(f"--objective {self.objective} needs {option}")


def objective_options(command: Command) -> Command:
    """Add the options of :class:`ObjectiveOptions`; the command receives them as ``aim``."""

    @wraps(command)
    def with_aim(
        *args: Any, objective: str, max_slowdown: float | None, run: RunOptions, **options: Any
    ) -> Any:
        aim = ObjectiveOptions(objective, max_slowdown, run)
        aim.check()
        return command(*args, aim=aim, **options)

    slowdown = click.option(
        "--max-slowdown",
        type=number_up_to(100.0),
        metavar="SHARE",
        help="With --objective memory: plans may be slower than the fastest by this share of its"
        f" step.  [default: {MAX_SLOWDOWN}]",
    )
    option = click.option(
        "--objective",
        type=click.Choice(OBJECTIVES),
        default="step-time",
        show_default=True,
        help="What the plan is chosen for: step-time and memory (the least of those nearly as fast"
        " as the fastest) with --gpus GPUs;"
        " tokens-per-gpu, cost (dollars for --tokens) and fewest-gpus (for --tokens by"
        " --deadline-days) with at most --gpus.",
    )
    return option(slowdown(run_options(with_aim)))


def budget_of(aim: ObjectiveOptions, inputs: Inputs) -> Budget:
    """The budget, with the price of the cluster's file where none is given.

    Raises:
        SpecError: the objective is a cost and there is no price.
    """
    budget = aim.run.budget(inputs.cluster)
    if aim.objective == "cost" and budget.dollars_per_gpu_hour is None:
        raise SpecError(f"{inputs.cluster.name} states no price; give --price-per-gpu-hour")
    return budget


def chosen_size(
    aim: ObjectiveOptions, spec: SpecOptions, inputs: Inputs, search: SearchOptions
) -> tuple[SpecOptions, Choice | None]:
    """The options with the number of GPUs that the objective chooses, and how it was found.

    Raises:
        NoFeasiblePlanError: no size meets the deadline, or has a safe plan.
    """
    if not aim.chooses_size:
        return spec, None
    from parallelsim.objectives import choose_size
    from parallelsim.processes import num_cores

    at_most = inputs.cluster.num_gpus
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
    fastest = max(found, key=lambda row: float(row["kept_tokens_per_s"]))
    days = budget.days(float(fastest["kept_tokens_per_s"]))
    return (
        f"no size up to {at_most} GPUs trains all tokens in {budget.deadline_days:g} days: the "
        f"fastest, {fastest['num_gpus']} GPUs, takes {days:.3g}"
    )


def least_memory_first(
    inputs: Inputs, search: SearchOptions, aim: ObjectiveOptions, top: int, result: SearchResult
) -> SearchResult:
    """The result with the plans that need the least memory in place of the fastest."""
    from parallelsim.search.least_memory import least_memory

    plans = least_memory(
        search_space(inputs, search),
        top,
        result.plans,
        aim.slowdown,
        all_variants=result.all_variants,
    )
    none = result.faster_but_tight.take(slice(0))
    return replace(
        result,
        plans=plans,
        faster_but_tight=none,
        cut_gain_frac=(None,) * len(plans),
        num_near=(),
    )
