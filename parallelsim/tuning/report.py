"""A study for people and as a document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from parallelsim.causes import CAUSES
from parallelsim.correlation import CAUSE_SD
from parallelsim.report.labels import degrees
from parallelsim.report.tables import Column
from parallelsim.simulate import Simulation
from parallelsim.tuning.advice import Advice, Candidates, Runs, advise, next_run
from parallelsim.tuning.memory import threshold_quantile
from parallelsim.tuning.study import Study
from parallelsim.uncertainty import NORMAL_QUANTILE
from parallelsim.units import format_percent, format_seconds

RUN_COLUMNS = (
    Column("run"),
    Column("plan"),
    Column("degrees", "left", priority=1),
    Column("predicted"),
    Column("measured"),
    Column("off"),
    Column("mem"),
)
LEARNT = 0.8
"""Posterior over prior standard deviation below which a cause's factor is printed."""
_CAUSE_WORDS = {
    "gemm": "GEMMs",
    "attention": "attention",
    "memory_bound": "memory-bound work",
    "launch": "launches",
}


@dataclass(frozen=True)
class State:
    """A study with what follows from it."""

    study: Study
    simulation: Simulation
    """Of the candidates, in the order of their ranks."""
    advice: Advice
    proposal: int | None
    """Position of the plan to run: the one that waits for its run, else the next one."""
    stop: str | None
    """Why no further run is proposed: ``budget``, ``gain`` or ``candidates``; None: one is."""

    @classmethod
    def of(cls, study: Study, simulation: Simulation) -> State:
        """What the study's runs say of the candidates."""
        place = {entry.rank: i for i, entry in enumerate(study.document.plans)}
        position = np.array([place[run.rank] for run in study.runs], np.int64)
        times = [np.nan if r.step_time_s is None else r.step_time_s for r in study.runs]
        peaks = [r.peak_memory_bytes or np.nan for r in study.runs]
        predicted = simulation.peak_memory_bytes[position]
        ratio = np.array(peaks, np.float64) / predicted
        runs = Runs(position, np.array(times, np.float64), ratio)
        advice = advise(Candidates.of(simulation), runs)
        if study.proposed is not None:
            return cls(study, simulation, advice, place[study.proposed], None)
        chosen = next_run(advice, runs, study.budget, study.min_gain_frac)
        return cls(study, simulation, advice, *chosen)

    def rank(self, position: int) -> int:
        """Of a candidate."""
        return self.study.document.plans[position].rank

    def corrected(self, position: int) -> tuple[float, float, float]:
        """(median, low, high) seconds of a candidate's step; 80 % between the last two."""
        times = self.advice.times
        mean, variance = times.log_time[position], times.covariance[position, position]
        half = NORMAL_QUANTILE * np.sqrt(max(variance, 0.0))
        return float(np.exp(mean)), float(np.exp(mean - half)), float(np.exp(mean + half))


def run_rows(state: State) -> list[list[str]]:
    """One line a run."""
    place = {entry.rank: i for i, entry in enumerate(state.study.document.plans)}
    rows = []
    for number, run in enumerate(state.study.runs, 1):
        i = place[run.rank]
        predicted = float(state.simulation.step_time_s[i])
        measured, off = "out of memory", "-"
        if run.step_time_s is not None:
            measured = format_seconds(run.step_time_s)
            off = f"{run.step_time_s / predicted - 1:+.1%}"
        use = f"{float(state.simulation.memory_use_frac[i]):.0%}"
        words = degrees(state.simulation.plans.plan(i))
        rows.append(
            [str(number), str(run.rank), words, format_seconds(predicted), measured, off, use]
        )
    return rows


def sentences(state: State) -> list[str]:
    """What the runs say, and what to do."""
    return [
        words for words in (_best(state), _factors(state), _memory(state), _outlook(state)) if words
    ]


def _best(state: State) -> str:
    best = state.advice.best
    if best is None:
        ran = "No run fitted yet." if state.study.runs else "Nothing has run yet."
        return f"{ran} Plan 1 is predicted to be the fastest that is safe in memory."
    plan = degrees(state.simulation.plans.plan(best))
    seconds = format_seconds(state.corrected(best)[0])
    return f"Best so far: plan {state.rank(best)} ({plan}), {seconds} a step by all runs together."


def _factors(state: State) -> str:
    times = state.advice.times
    words = [
        f"{_CAUSE_WORDS.get(name, name.upper())} {np.exp(x):.2f} (+- {np.exp(x) * sd:.2f})"
        for name, x, sd, before in zip(
            CAUSES, times.log_factor, times.log_factor_sd, CAUSE_SD, strict=True
        )
        if sd < LEARNT * before
    ]
    return f"Measured over predicted by cause: {', '.join(words)}." if words else ""


def _memory(state: State) -> str:
    if not state.study.runs:
        return ""
    low, high = (threshold_quantile(state.advice.memory, p) for p in (0.1, 0.9))
    return f"Plans fit up to a predicted use of {low:.0%} to {high:.0%} of the memory (80 %)."


def _outlook(state: State) -> str:
    stop, least = state.stop, f"{100 * state.study.min_gain_frac:.2g} %"
    gain = f"{100 * state.advice.expected_gain:.2g} %"
    if stop == "budget":
        used = len(state.study.runs)
        return f"The budget of {used} runs is spent ('tune next --budget {used + 1}' goes on)."
    if stop == "candidates":
        return "Every candidate has run."
    if stop == "gain":
        return f"Stop: another run is expected to gain {gain}, less than {least}."
    position = state.proposal
    if position is None or state.advice.best is None:
        return ""
    if state.study.proposed is not None:
        return f"Plan {state.study.proposed} waits for its run."
    if position == state.advice.best:
        return f"Plan {state.rank(position)} is to run once more before it is trusted."
    return f"Another run, of plan {state.rank(position)}, is expected to gain {gain}."


def proposal_words(state: State, position: int) -> str:
    """The plan to run and what is expected of it."""
    median, low, high = (format_seconds(value) for value in state.corrected(position))
    fits = float(state.advice.p_fits[position])
    words = (
        f"Run {len(state.study.runs) + 1}: plan {state.rank(position)} of "
        f"{len(state.simulation)}, {degrees(state.simulation.plans.plan(position))}. Expected: "
        f"{median} a step (80 % between {low} and {high}); it fits with a probability of {fits:.0%}"
    )
    if state.advice.best is None:
        return f"{words}."
    if position == state.advice.best:
        return f"{words}. It is the best so far, and runs once more before it is trusted."
    return f"{words}; expected gain {format_percent(float(state.advice.gain[position]))}."


def document(state: State, script: str | None = None) -> dict[str, Any]:
    """``tune next``, ``record`` and ``status`` with ``--json``."""
    study, advice = state.study, state.advice
    times = advice.times
    return {
        "study": str(study.folder),
        "model": study.model.name,
        "budget": study.budget,
        "min_gain_frac": study.min_gain_frac,
        "num_candidates": len(state.simulation),
        "runs": [
            {
                "rank": run.rank,
                "step_time_s": run.step_time_s,
                "out_of_memory": run.step_time_s is None,
                "peak_memory_bytes": run.peak_memory_bytes,
                "source": run.source,
            }
            for run in study.runs
        ],
        "best": None if advice.best is None else _plan(state, advice.best),
        "stop": state.stop,
        "proposal": None
        if state.proposal is None
        else _plan(state, state.proposal)
        | {
            "expected_gain_frac": None
            if advice.best is None
            else float(advice.gain[state.proposal]),
            "p_fits": float(advice.p_fits[state.proposal]),
            "script": script,
        },
        "factors": {
            name: {"factor": float(np.exp(x)), "log_sd": float(sd)}
            for name, x, sd in zip(CAUSES, times.log_factor, times.log_factor_sd, strict=True)
        },
        "memory_threshold": {
            name: threshold_quantile(advice.memory, p)
            for name, p in (("low", 0.1), ("median", 0.5), ("high", 0.9))
        },
    }


def _plan(state: State, position: int) -> dict[str, Any]:
    median, low, high = state.corrected(position)
    return {
        "rank": state.rank(position),
        "plan": state.simulation.plans.plan(position).to_dict(),
        "predicted_step_time_s": float(state.simulation.step_time_s[position]),
        "step_time_s": median,
        "step_time_low_s": low,
        "step_time_high_s": high,
    }
