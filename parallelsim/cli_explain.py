"""``parallelsim explain``, and ``--why-not`` of it and of ``plan``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from parallelsim.cli_inputs import Inputs, search_space
from parallelsim.cli_options import (
    SearchOptions,
    SpecOptions,
    json_option,
    memory_limit_option,
    rank_option,
    spec_options,
)
from parallelsim.cli_progress import shown_progress
from parallelsim.cli_run import planned
from parallelsim.cli_values import Part, part_of_space
from parallelsim.errors import PlanError

if TYPE_CHECKING:
    from parallelsim.simulate import Simulation
    from parallelsim.why_not import WhyNot

NO_CUTS = (
    "layers are cut freely between the stages of a pipeline, by software that takes such a layout, "
    "and no plan here has both"
)
why_not_option: Callable[[Any], Any] = click.option(
    "--why-not",
    "parts",
    type=part_of_space,
    metavar="FIELD=VALUE,...",
    multiple=True,
    help="Say why no plan with these values wins, as tp=4,pp=8 or 'cp=2|4'. Repeatable.",
)


@click.command()
@click.argument("file")
@rank_option
@spec_options
@why_not_option
@memory_limit_option
@json_option
def explain(
    file: str,
    rank: int,
    spec: SpecOptions,
    parts: tuple[Part, ...],
    memory_limit: float,
    as_json: bool,
) -> None:
    """Explain a plan: its rank, what limits it, the single change that helps most, broken rules.

    FILE is what 'parallelsim plan --output FILE' wrote, or a launch script or a configuration of
    today. Options change what it states.
    """
    from parallelsim.explain import explain_plan
    from parallelsim.report import explained

    run = planned(spec, file, rank)
    search = SearchOptions({}, {}, memory_limit, "grid")
    space = search_space(run.inputs, search)
    with shown_progress(quiet=as_json):
        explanation = explain_plan(space, run.plan, memory_limit)
        answers = answered(run.inputs, search, parts, explanation.found.plans.take(slice(1)))
    if as_json:
        from parallelsim.report.documents import json_text

        head = run.inputs.head() | {"memory_limit": memory_limit, "import": run.document()}
        click.echo(json_text("explain", explained.explanation_document(head, explanation, answers)))
        return
    for note in (*run.inputs.notes, *run.notes):
        click.echo(f"note: {note}", err=True)
    click.echo(run.inputs.header(memory_limit) + "\n")
    explained.print_explanation(explanation)
    print_answers(answers)


def print_answers(answers: Sequence[WhyNot]) -> None:
    """The answers for people, where there are some."""
    if answers:
        from parallelsim.report.explained import print_why_not

        print_why_not(answers)


def answered(
    inputs: Inputs, search: SearchOptions, parts: Sequence[Part], winner: Simulation
) -> list[WhyNot]:
    """Why each part of the space does not win; its values replace those that are fixed."""
    if not parts:
        return []
    from parallelsim.cli_misfit import broken_by
    from parallelsim.why_not import no_such_plan, why_not

    answers = []
    for part in parts:
        fixed = {k: v for k, v in search.fixed.items() if k not in part.values}
        limits = {k: v for k, v in search.limits.items() if k not in part.values}
        chosen = replace(search, fixed=fixed, limits=limits | part.values)
        try:
            space = search_space(inputs, chosen)
            empty = not (
                space.num_candidates or any(map(space.free_stagings, space.pipeline_degrees))
            )
        except PlanError as error:
            answers.append(no_such_plan(part.text, error))
            continue
        if empty:
            values = {**fixed, **{k: tuple(v)[0] for k, v in part.values.items()}}
            why = [NO_CUTS] if values.get("layout") == "free" else broken_by(inputs, values)
            words = "; ".join(why) or "these values do not go together in any plan"
            answers.append(no_such_plan(part.text, words))
            continue
        answers.append(why_not(space, part.text, winner, search.memory_limit))
    return answers
