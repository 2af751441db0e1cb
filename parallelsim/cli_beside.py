"""What ``plan`` is asked beside the ranking: an objective, a run to compare with, why-not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from parallelsim.cli_compare_with import compared_run
from parallelsim.cli_explain import answered, print_answers
from parallelsim.cli_inputs import Inputs
from parallelsim.cli_objective import ObjectiveOptions, budget_of
from parallelsim.cli_options import SearchOptions
from parallelsim.cli_run import PlannedRun
from parallelsim.cli_values import Part

if TYPE_CHECKING:
    from parallelsim.objectives import Choice
    from parallelsim.report.edits import Compared
    from parallelsim.search.result import SearchResult
    from parallelsim.simulate import Simulation
    from parallelsim.whole_run import Budget
    from parallelsim.why_not import WhyNot


@dataclass(frozen=True)
class Beside:
    """The answers, and what they belong to."""

    aim: ObjectiveOptions
    budget: Budget | None
    """None where neither an objective nor tokens are given."""
    choice: Choice | None
    """How the number of GPUs was chosen."""
    fastest: Simulation
    """The fastest safe plan; empty where there is none."""
    run: PlannedRun | None
    compared: Compared | None
    answers: Sequence[WhyNot]

    @property
    def least_memory(self) -> bool:
        """The ranking is by memory."""
        return self.aim.objective == "memory"

    def document(self, plans: Simulation) -> dict[str, Any]:
        """For programs; only what was asked."""
        document: dict[str, Any] = {}
        if self.budget and len(plans):
            from parallelsim.report.objectives import objective_document

            objective = (self.aim.objective, self.budget, plans, self.choice)
            document["objective"] = objective_document(*objective)
            if self.budget.tokens is not None:
                from parallelsim.report.whole_run import whole_run_document

                document["whole_run"] = whole_run_document(plans, self.budget)
        if self.run and self.compared:
            from parallelsim.report.edits import compared_document

            document["compare_with"] = compared_document(self.compared, self.run.document())
        if self.answers:
            from parallelsim.report.explained import why_not_rows

            document["why_not"] = why_not_rows(self.answers)
        return document

    def paragraphs(self, plans: Simulation) -> list[str]:
        """For a page: all that :meth:`print_before` and :meth:`print_after` say, but in
        paragraphs, and of the sizes that were tried the chosen one alone.
        """
        from parallelsim.report.objectives import memory_words
        from parallelsim.report.whole_run import whole_run_words

        words = []
        if self.choice:
            number = f"{plans.cluster.num_gpus} GPUs are the best for {self.choice.objective}"
            words.append(f"{number} of the {len(self.choice.tried)} sizes that were tried.")
        if self.budget and len(plans):
            if self.least_memory:
                words.append(memory_words(plans, self.fastest, self.aim.slowdown))
            words += whole_run_words(plans, self.budget, "plan 1")
        if self.run and self.compared:
            from parallelsim.report.edits import compared_lines

            words += [f"{self.compared.file}: {note}" for note in self.run.notes]
            words += [line.strip() for line in compared_lines(self.compared)]
        words += [f"Why not {' '.join(answer.sentences)}" for answer in self.answers]
        return [word for word in words if word]

    def print_before(self) -> None:
        """For people, before the ranking: the sizes that were tried."""
        if self.choice and self.budget:
            from parallelsim.report.objectives import print_sizes

            print_sizes(self.choice, self.budget)
            click.echo("")

    def print_after(self, plans: Simulation) -> None:
        """For people, below the ranking."""
        if self.budget and len(plans):
            from parallelsim.report.objectives import memory_words
            from parallelsim.report.tables import paragraph
            from parallelsim.report.whole_run import whole_run_words

            if self.least_memory:
                click.echo(paragraph(memory_words(plans, self.fastest, self.aim.slowdown)))
            for words in whole_run_words(plans, self.budget, "plan 1"):
                click.echo(paragraph(words))
        if self.run and self.compared:
            from parallelsim.report.edits import print_compared

            for note in self.run.notes:
                click.echo(f"note: {self.compared.file}: {note}", err=True)
            click.echo("")
            print_compared(self.compared)
        print_answers(self.answers)


def beside(
    inputs: Inputs,
    search: SearchOptions,
    result: SearchResult,
    *,
    aim: ObjectiveOptions,
    choice: Choice | None,
    run: PlannedRun | None,
    file: str | None,
    parts: Sequence[Part],
) -> Beside:
    """Answer what is asked beside the ranking of ``result``, the fastest plans."""
    fastest = result.plans.take(slice(1))
    given = aim.objective != "step-time" or aim.run.tokens is not None
    return Beside(
        aim,
        budget_of(aim, inputs) if given else None,
        choice,
        fastest,
        run,
        compared_run(run, file, search, result) if run and file else None,
        answered(inputs, search, parts, fastest),
    )
