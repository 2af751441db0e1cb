"""Why one plan beats another: every term of time and memory side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from parallelsim.report.labels import differences, label
from parallelsim.rules import reasons
from parallelsim.simulate import ZONES
from parallelsim.units import format_bytes, format_percent, format_seconds

if TYPE_CHECKING:
    from parallelsim.simulate import Simulation

MIN_SHARE = 0.001
"""Terms that differ by less than this share of the step are not named as a reason."""

EQUAL_SHARE = 0.001
"""Steps that differ by less are called equally fast."""


@dataclass(frozen=True)
class Comparison:
    """Plans side by side; every tuple has one entry for each plan, in the order given."""

    ranks: tuple[int, ...]
    """What the plans are called."""
    step_time_s: tuple[float, ...]
    peak_memory_bytes: tuple[float, ...]
    time: Mapping[str, tuple[float, ...]]
    """Seconds by term."""
    memory: Mapping[str, tuple[float, ...]]
    """Bytes of the fullest stage by term."""
    why: tuple[str, ...]
    """One sentence for each plan after the first: why the first is faster, or is not."""
    cannot_run: tuple[tuple[str, ...], ...] = ()
    """For each plan what the rules that it breaks say; empty for a plan that runs."""


def compare(
    simulation: Simulation,
    ranks: Sequence[int] | None = None,
    cannot_run: Sequence[Sequence[str]] | None = None,
) -> Comparison:
    """The plans of a simulation side by side, the first against each other one.

    Args:
        simulation: one or more plans.
        ranks: the number by which each plan is called; 1, 2, ... where left out.
        cannot_run: for each plan what :func:`parallelsim.rules.explain` says of it; the names of
            the rules that it breaks where left out.
    """
    if cannot_run is None:
        cannot_run = [reasons(mask) for mask in simulation.reasons]
    names = tuple(ranks) if ranks is not None else tuple(range(1, len(simulation.plans) + 1))
    time = {
        field.name: _floats(getattr(simulation.time, field.name))
        for field in fields(simulation.time)
    }
    memory = {
        field.name: _floats(getattr(simulation.memory, field.name))
        for field in fields(simulation.memory)
    }
    steps = _floats(simulation.step_time_s)
    peaks = _floats(simulation.peak_memory_bytes)
    why = tuple(
        _broken_sentence(names, cannot_run, other)
        or _sentence(simulation, names, time, steps, peaks, other)
        for other in range(1, len(steps))
    )
    broken = tuple(tuple(messages) for messages in cannot_run)
    too_large = [
        f"Plan {rank} does not fit in memory."
        for rank, zone in zip(names, np.asarray(simulation.zone), strict=True)
        if ZONES[int(zone)] == "out"
    ]
    why = tuple(" ".join([sentence, *too_large]) for sentence in why)
    return Comparison(names, steps, peaks, time, memory, why, broken)


def _floats(values: object) -> tuple[float, ...]:
    return tuple(float(value) for value in np.asarray(values))


def _broken_sentence(
    ranks: tuple[int, ...], cannot_run: Sequence[Sequence[str]], other: int
) -> str:
    """No time of a plan that cannot run wins; empty where both can."""
    broken = [index for index in (0, other) if cannot_run[index]]
    if not broken:
        return ""
    if len(broken) == 2:
        return f"Neither plan {ranks[0]} nor plan {ranks[other]} can run: neither wins."
    able = ranks[other if broken == [0] else 0]
    return f"Plan {ranks[broken[0]]} cannot run, so its times are no answer; plan {able} can."


def _sentence(
    simulation: Simulation,
    ranks: tuple[int, ...],
    time: Mapping[str, tuple[float, ...]],
    steps: tuple[float, ...],
    peaks: tuple[float, ...],
    other: int,
) -> str:
    """Why plan 1 is faster than the other: what it saves, what it pays, what it has otherwise."""
    first, second = steps[0], steps[other]
    me, it = f"Plan {ranks[0]}", f"plan {ranks[other]}"
    pair = f"{me} ({format_seconds(first)}) and {it} ({format_seconds(second)})"
    how = differences(simulation.plans.plan(0), simulation.plans.plan(other))
    if not how:
        return f"{pair} are the same plan."
    if abs(second - first) <= 1e-9 * first:
        verdict = f"{pair} are equally fast"
        if peaks[0] < peaks[other]:
            verdict += (
                f"; plan {ranks[0]} needs {format_bytes(peaks[other] - peaks[0])} less memory"
            )
    else:
        gain = second / first - 1
        how_much = f"{format_percent(abs(gain))} {'faster' if gain > 0 else 'slower'} than {it}"
        if abs(gain) < EQUAL_SHARE:
            how_much = f"as fast as (within {EQUAL_SHARE:.1%}) {it}".replace("%", " %")
        verdict = f"{me} ({format_seconds(first)}) is {how_much} ({format_seconds(second)})"
    gains, losses = _saved_and_paid({n: (v[0], v[other]) for n, v in time.items()}, first)
    verdict += f": it saves {gains}" if gains else ""
    verdict += f"{', and' if gains else ':'} pays {losses} more" if losses else ""
    return f"{verdict}. It has {how}."


def time_differences(first: Simulation, second: Simulation) -> tuple[str, str]:
    """What the one plan of the first simulation saves against that of the second, and what it pays
    more, in words: the largest terms of the step.
    """
    pairs = {
        field.name: tuple(float(getattr(s.time, field.name)[0]) for s in (first, second))
        for field in fields(first.time)
    }
    return _saved_and_paid(pairs, float(first.step_time_s[0]))


def _saved_and_paid(time: Mapping[str, tuple[float, ...]], step_time_s: float) -> tuple[str, str]:
    saved = {name: second - first for name, (first, second) in time.items()}
    paid = {name: -value for name, value in saved.items()}
    return _named(saved, step_time_s), _named(paid, step_time_s)


def _named(amounts: Mapping[str, float], step_time_s: float) -> str:
    """The three largest amounts of time that matter, in words."""
    ordered = sorted(amounts.items(), key=lambda item: -item[1])[:3]
    return ", ".join(
        f"{format_seconds(v)} of {label(k)}" for k, v in ordered if v > MIN_SHARE * step_time_s
    )
