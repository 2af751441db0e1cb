"""Why one plan beats another: every term of time and memory side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from parallelsim.report.labels import differences, label
from parallelsim.units import format_bytes, format_percent, format_seconds

if TYPE_CHECKING:
    from parallelsim.simulate import Simulation

MIN_SHARE = 0.001
"""Terms that differ by less than this share of the step are not named as a reason."""


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


def compare(simulation: Simulation, ranks: Sequence[int] | None = None) -> Comparison:
    """The plans of a simulation side by side, the first against each other one.

    Args:
        simulation: one or more plans.
        ranks: the number by which each plan is called; 1, 2, ... where left out.
    """
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
        _sentence(simulation, names, time, steps, peaks, other) for other in range(1, len(steps))
    )
    return Comparison(names, steps, peaks, time, memory, why)


def _floats(values: object) -> tuple[float, ...]:
    return tuple(float(value) for value in np.asarray(values))


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
        how_much = f"{format_percent(abs(gain))} {'faster' if gain > 0 else 'slower'}"
        verdict = f"{me} ({format_seconds(first)}) is {how_much} than {it}"
        verdict += f" ({format_seconds(second)})"
    saved = {name: values[other] - values[0] for name, values in time.items()}
    gains = _named(saved, first)
    losses = _named({name: -value for name, value in saved.items()}, first)
    verdict += f": it saves {gains}" if gains else ""
    verdict += f"{', and' if gains else ':'} pays {losses} more" if losses else ""
    return f"{verdict}. It has {how}."


def _named(amounts: Mapping[str, float], step_time_s: float) -> str:
    """The three largest amounts of time that matter, in words."""
    ordered = sorted(amounts.items(), key=lambda item: -item[1])[:3]
    return ", ".join(
        f"{format_seconds(v)} of {label(k)}" for k, v in ordered if v > MIN_SHARE * step_time_s
    )
