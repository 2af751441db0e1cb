"""A run of today against the best plan: its place, and the edits that lead there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from parallelsim.exporters.megatron import flag_groups
from parallelsim.plan import Plan
from parallelsim.report.documents import ranked_rows
from parallelsim.report.explained import rank_words
from parallelsim.report.labels import degrees, differences, step_interval
from parallelsim.report.tables import paragraph
from parallelsim.units import format_percent, format_seconds

if TYPE_CHECKING:
    from parallelsim.edits import Edit
    from parallelsim.search.place import Place
    from parallelsim.simulate import Simulation

NOTHING = 1e-3
CHANGES_NOTHING = "changes the step by less than 0.1 %"


@dataclass(frozen=True)
class Compared:
    """A run, its place in the space, and the edits to the best plan."""

    file: str
    simulation: Simulation
    """The run; one plan."""
    broken: tuple[str, ...]
    """What the rules say that it breaks."""
    place: Place | None
    edits: tuple[Edit, ...]
    goal: Simulation
    """The best safe plan; empty where there is none."""


def print_compared(compared: Compared) -> None:
    """The run, and each edit with what it saves and its flags."""
    for line in compared_lines(compared):
        indent = len(line) - len(line.lstrip())
        click.echo(line if indent > 1 else paragraph(line.lstrip(), indent))


def compared_lines(compared: Compared) -> Iterator[str]:
    """The run; the edits, a blank before each; flags that go (-) and come (+), six before each."""
    run = compared.simulation
    figures = (run.step_time_s, run.step_time_low_s, run.step_time_high_s)
    step = step_interval(*(float(values[0]) for values in figures))
    plan = run.plans.plan(0)
    yield f"Your run, {compared.file}: {degrees(plan)}; {step}."
    for message in compared.broken:
        yield f"It cannot run: {message}."
    if compared.place:
        yield rank_words(compared.place, run) + "."
    if not len(compared.goal):
        yield "There is no safe plan to compare it with."
        return
    if not compared.edits:
        yield "No edit towards plan 1 makes it faster."
        return
    yield "Edits towards plan 1, each simulated and replayed on top of those before:"
    before = run
    for number, edit in enumerate(compared.edits, 1):
        after, what = edit.simulation.plans.plan(0), before.plans.plan(0)
        gain = f"{abs(edit.gain_frac):.1%} {'less' if edit.gain_frac >= 0 else 'more'}"
        use = f"{float(edit.simulation.memory_use_frac[0]):.0%} of memory"
        seconds = format_seconds(float(edit.simulation.step_time_s[0]))
        yield f" {number}. {differences(after, what)}: {seconds}, {gain}, {use}"
        for sign, flags in zip("-+", changed_flags(before, after), strict=True):
            for flag in flags:
                yield f"      {sign} {flag}"
        before = edit.simulation
    total = 1 - float(before.step_time_s[0]) / float(run.step_time_s[0])
    words = f"Together {format_percent(abs(total))} {'less' if total >= 0 else 'more'}"
    rest = differences(compared.goal.plans.plan(0), before.plans.plan(0))
    lost = float(compared.goal.step_time_s[0]) / float(before.step_time_s[0]) - 1
    effect = f"would make it {format_percent(lost)} slower" if lost > NOTHING else CHANGES_NOTHING
    words += f"; what is left of plan 1 ({rest}) {effect}" if rest else ""
    yield f"{words}."


def changed_flags(before: Simulation, after: Plan) -> tuple[list[str], list[str]]:
    """(flags of Megatron-LM that go, flags that come); none for software that takes other flags."""
    if "megatron" not in before.framework.launches:
        return [], []
    inputs = (before.model, before.cluster, before.framework)
    plans = (before.plans.plan(0), after)
    old, new = (
        [flag for group in flag_groups(*inputs, plan) for flag in group.flags] for plan in plans
    )
    return [flag for flag in old if flag not in new], [flag for flag in new if flag not in old]


def compared_document(compared: Compared, imported: Mapping[str, Any] | None) -> dict[str, Any]:
    """``plan --compare-with`` for programs."""
    rows = []
    before = compared.simulation
    for edit in compared.edits:
        gone, come = changed_flags(before, edit.simulation.plans.plan(0))
        rows.append(
            {
                "fields": list(edit.fields),
                "gain_frac": edit.gain_frac,
                "flags_removed": gone,
                "flags_added": come,
            }
            | ranked_rows(edit.simulation)[0]
        )
        before = edit.simulation
    return {
        "file": compared.file,
        "import": imported,
        "cannot_run": list(compared.broken),
        **ranked_rows(compared.simulation)[0],
        "rank": compared.place.rank if compared.place else None,
        "rank_is_exact": compared.place.exact if compared.place else None,
        "edits": rows,
    }
