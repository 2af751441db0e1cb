"""An explanation of one plan, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from parallelsim.report.documents import ranked_rows
from parallelsim.report.labels import degrees, differences, label, switches, verdict
from parallelsim.report.origins import origins
from parallelsim.report.plans import memory_terms, time_terms
from parallelsim.report.tables import line_width, paragraph
from parallelsim.simulate import ZONES
from parallelsim.units import format_bytes, format_percent, format_seconds

if TYPE_CHECKING:
    from parallelsim.explain import Explanation, Tried
    from parallelsim.search.place import Place
    from parallelsim.simulate import Simulation
    from parallelsim.why_not import WhyNot

MAX_CHANGES = 5
LEAST_BESIDE = 30
"""Characters of a line below which words go under a figure, not beside it."""
LEAST_GAIN = 5e-4
"""Share of the step below which a change is called no help."""


def print_explanation(explanation: Explanation) -> None:
    """Rank, broken rules, terms with their origins, memory, and the changes that help most."""
    simulation = explanation.simulation
    plan = simulation.plans.plan(0)
    click.echo(paragraph(f"plan: {degrees(plan)}"))
    click.echo(paragraph(switches(plan), indent=6))
    for message in explanation.broken:
        click.echo(paragraph(f"cannot run: {message}"))
    click.echo("\n" + paragraph(place_words(explanation)))
    click.echo("\nWhat limits it")
    print_terms(simulation)
    click.echo(paragraph(memory_words(simulation)))
    click.echo("")
    for line in change_lines(explanation):
        click.echo(line)


def place_words(explanation: Explanation) -> str:
    """The plan's rank, and how far it is behind the first."""
    simulation, found = explanation.simulation, explanation.found
    if explanation.place is None:
        return "It has no rank: it cannot run."
    step = float(simulation.step_time_s[0])
    words = rank_words(explanation.place, simulation)
    if not len(found.plans):
        return f"{words}: {format_seconds(step)} a step."
    first, ahead = found.plans.plans.plan(0), float(found.plans.step_time_s[0])
    if first == simulation.plans.plan(0):
        return f"{words}: {format_seconds(step)} a step."
    share = step / ahead - 1
    much = f"{format_percent(abs(share))} {'more' if share >= 0 else 'less'} than"
    return (
        f"{words}: {format_seconds(step)} a step, {much} plan 1 "
        f"({degrees(first)}: {format_seconds(ahead)})."
    )


def rank_words(place: Place, simulation: Simulation) -> str:
    """``Rank 6 of 59,424 safe plans``, of which variants are some, said otherwise where the plan
    itself is not safe.
    """
    about = "" if place.exact else "about "
    of = f"{about}{place.rank:,} of {place.num_safe:,} safe plans, all variants counted"
    zone = ZONES[int(simulation.zone[0])]
    if zone == "safe":
        return f"Rank {of}" + ("" if place.exact else " (by the closed forms)")
    words = verdict(zone, float(simulation.p_fits[0]))
    words = f"It is {words}" if words.startswith("tight") else f"It {words}"
    return f"{words}; by its time it would rank {of}"


def print_terms(simulation: Simulation) -> None:
    """Every term with its seconds, its share and where it comes from."""
    terms, words = time_terms(simulation, 0), origins(simulation, 0)
    total = sum(terms.values())
    shown = {name: value for name, value in terms.items() if value > 0}
    size = max(len(label(name)) for name in shown)
    for name in sorted(shown, key=lambda name: -shown[name]):
        seconds, share = format_seconds(shown[name]), shown[name] / total
        head = f"{label(name):{size}s} {seconds:>8s} {share:6.1%}"
        beside = len(head) + 2
        if line_width() - beside < LEAST_BESIDE:
            about = f": {words[name]}" if words[name] else ""
            click.echo(paragraph(f"{label(name)}, {seconds}, {share:.1%}{about}", hanging=2))
        else:
            click.echo((head + paragraph(words[name], indent=beside)[len(head) :]).rstrip())


def memory_words(simulation: Simulation) -> str:
    """The fullest stage and its largest terms."""
    terms = memory_terms(simulation, 0)
    largest = sorted(terms, key=lambda name: -terms[name])[:3]
    most = ", ".join(f"{label(name)} {format_bytes(terms[name])}" for name in largest)
    zone = ZONES[int(simulation.zone[0])]
    return (
        f"Memory: {format_bytes(float(simulation.peak_memory_bytes[0]))} of "
        f"{format_bytes(simulation.memory_capacity_bytes)} on stage "
        f"{int(simulation.fullest_stage[0])} ({float(simulation.memory_use_frac[0]):.0%}, "
        f"{verdict(zone, float(simulation.p_fits[0]))}): {most}."
    )


def change_lines(explanation: Explanation) -> list[str]:
    """The changes that help most, and that nothing else does."""
    plan, zone = explanation.simulation.plans.plan(0), int(explanation.simulation.zone[0])
    tried = explanation.tried

    def helps(one: Tried) -> bool:
        return int(one.simulation.zone[0]) < zone or one.gain_frac > LEAST_GAIN

    helping = [one for one in tried if helps(one)]
    number = f"{explanation.num_neighbours} neighbouring plans were simulated and replayed"
    if not helping:
        return [paragraph(f"No single change helps; {number}.")]
    lines = [paragraph(f"The single change that helps most: {_change(helping[0], plan)}.")]
    if len(helping) > 1:
        lines.append("Others:")
        for one in helping[1:MAX_CHANGES]:
            lines.append(paragraph(_change(one, plan), indent=2))
    left = len(helping) - MAX_CHANGES
    more = f"; {left} more would help less" if left > 0 else ""
    return [*lines, paragraph(f"({number}{more}.)")]


def _change(one: Tried, plan: object) -> str:
    after = one.simulation
    words = differences(after.plans.plan(0), plan)  # type: ignore[arg-type]
    gain = f"{abs(one.gain_frac):.1%} {'less' if one.gain_frac >= 0 else 'more'}"
    use = f"{float(after.memory_use_frac[0]):.0%} of memory"
    zone = ZONES[int(after.zone[0])]
    risk = "" if zone == "safe" else f", {zone}"
    return f"{words}: {format_seconds(float(after.step_time_s[0]))}, {gain}, {use}{risk}"


def print_why_not(answers: Sequence[WhyNot]) -> None:
    """Each answer as a paragraph."""
    for answer in answers:
        click.echo("\n" + paragraph(f"Why not {' '.join(answer.sentences)}"))


def explanation_document(
    head: Mapping[str, Any], explanation: Explanation, answers: Sequence[WhyNot]
) -> dict[str, Any]:
    """``explain --json``."""
    simulation, where = explanation.simulation, explanation.place
    found = explanation.found
    return {
        **head,
        **ranked_rows(simulation)[0],
        "rank": where.rank if where else None,
        "rank_is_exact": where.exact if where else None,
        "num_feasible": found.num_feasible,
        "num_candidates": found.num_candidates,
        "cannot_run": list(explanation.broken),
        "time_origins": origins(simulation, 0),
        "first": ranked_rows(found.plans.take(slice(1))),
        "num_neighbours": explanation.num_neighbours,
        "changes": [
            {"fields": list(one.fields), "gain_frac": one.gain_frac}
            | ranked_rows(one.simulation)[0]
            for one in explanation.tried
        ],
        "why_not": why_not_rows(answers),
    }


def why_not_rows(answers: Sequence[WhyNot]) -> list[dict[str, Any]]:
    """``--why-not`` for programs."""
    rows = []
    for answer in answers:
        result = answer.result
        rows.append(
            {
                "part": answer.part,
                "verdict": answer.verdict,
                "num_candidates": result.num_candidates if result else 0,
                "num_feasible": result.num_feasible if result else 0,
                "num_tight": result.num_tight if result else 0,
                "reasons": dict(result.reasons) if result else {},
                "best": ranked_rows(answer.best) if answer.best is not None else [],
                "why": " ".join(answer.sentences),
            }
        )
    return rows
