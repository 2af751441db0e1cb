"""Which plan to run next, which one is the best so far, and whether another run may pay.

The expected gain of running plan j is what it may save over the best plan measured so far, times
the probability that it fits:

    gain_j = E[ max(0, 1 - t_j / t_best) ] P(j fits)

over joint draws of both step times. The first run is the plan predicted fastest; another one
replaces it as the recommendation only where it is faster with a probability of 84 %, and runs a
second time before the loop ends: of several noisy runs the best looking was lucky too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parallelsim.causes import cause_seconds
from parallelsim.correlation import joint_draws
from parallelsim.operators import FloatArray, IntArray
from parallelsim.plan_batch import PlanBatch
from parallelsim.simulate import Simulation
from parallelsim.tuning.memory import fits_after, posterior_weights
from parallelsim.tuning.posterior import Posterior, posterior

DRAWS = 1024
SURE = 1.0
"""Standard deviations by which a plan must be faster than the first one to replace it: noise would
else, in some studies, put a slower plan in its place."""


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """The plans of a study, the one predicted fastest first, with their predictions."""

    plans: PlanBatch
    seconds: FloatArray
    """By cause, shape [P, causes]."""
    memory_use_frac: FloatArray

    @classmethod
    def of(cls, simulation: Simulation) -> Candidates:
        """Those with these predictions."""
        return cls(simulation.plans, cause_seconds(simulation.time), simulation.memory_use_frac)


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """What was measured, one entry a run."""

    position: IntArray
    """Of the plan among the candidates."""
    step_time_s: FloatArray
    """NaN of a run out of memory."""
    peak_ratio: FloatArray
    """Measured over predicted peak memory; NaN where it was not measured."""

    @property
    def failed(self) -> NDArray[np.bool_]:
        """Out of memory."""
        return np.isnan(self.step_time_s)


@dataclass(frozen=True, slots=True, eq=False)
class Advice:
    """What follows from the runs so far; positions are among the candidates."""

    best: int | None
    """The recommended plan of those that ran; None before the first that fitted."""
    proposal: int | None
    """The plan worth running next; None where every candidate has run."""
    gain: FloatArray
    """Expected gain of each candidate's run, as a share of the step; 0 of those that ran."""
    p_fits: FloatArray
    memory: FloatArray
    """Weights of the memory's thresholds."""
    times: Posterior

    @property
    def expected_gain(self) -> float:
        """Of the proposal; 1 while no plan has run."""
        if self.best is None:
            return 1.0
        return 0.0 if self.proposal is None else float(self.gain[self.proposal])


def advise(candidates: Candidates, runs: Runs) -> Advice:
    """The next run and the best plan so far."""
    plans, failed = candidates.plans, runs.failed
    timed = runs.position[~failed]
    times = posterior(candidates.seconds, plans, timed, runs.step_time_s[~failed])
    use = candidates.memory_use_frac
    weights = posterior_weights(use[runs.position], failed.astype(np.float64), runs.peak_ratio)
    p_fits = fits_after(weights, use)
    p_fits[runs.position[failed]] = 0.0
    best = recommended(times, timed)
    open_ = np.ones(len(plans), np.bool_)
    open_[runs.position] = False
    if best is None:
        gain = np.where(open_, p_fits * np.exp(times.log_time.min() - times.log_time), 0.0)
    else:
        draws = joint_draws(times.covariance, DRAWS) + times.log_time
        saved = np.maximum(0.0, 1 - np.exp(draws - draws[:, [best]])).mean(axis=0)
        gain = np.where(open_, saved * p_fits, 0.0)
    proposal = _proposal(gain, open_, len(runs.position) == 0)
    return Advice(best, proposal, gain, p_fits, weights, times)


def _proposal(gain: FloatArray, is_open: NDArray[np.bool_], is_first: bool) -> int | None:
    if is_first:
        return 0
    return int(gain.argmax()) if is_open.any() else None


def next_run(
    advice: Advice, runs: Runs, budget: int, min_gain_frac: float
) -> tuple[int | None, str | None]:
    """(plan to run next, None), or (None, why the loop ends): ``budget`` runs are spent, the
    expected ``gain`` is below the least that is wanted, or no ``candidates`` are left.
    """
    left = budget - len(runs.position)
    if left <= 0:
        return None, "budget"
    is_worth_it = advice.expected_gain >= min_gain_frac and advice.proposal is not None
    if is_worth_it and (left > 1 or not _is_unconfirmed(advice.best, runs)):
        return advice.proposal, None
    if _is_unconfirmed(advice.best, runs):
        return advice.best, None
    return None, "candidates" if advice.proposal is None else "gain"


def _is_unconfirmed(best: int | None, runs: Runs) -> bool:
    """The recommended plan is not the one predicted fastest, and ran once only."""
    return best not in (None, 0) and int((runs.position == best).sum()) == 1


def recommended(times: Posterior, timed: IntArray) -> int | None:
    """The plan of those that ran that is the fastest, unless it is too close to the first one to
    tell.
    """
    if len(timed) == 0:
        return None
    ran = np.unique(timed)
    first, fastest = int(timed[0]), int(ran[times.log_time[ran].argmin()])
    c = times.covariance
    spread = np.sqrt(max(c[first, first] + c[fastest, fastest] - 2 * c[first, fastest], 0.0))
    ahead = times.log_time[first] - times.log_time[fastest]
    return fastest if ahead > SURE * spread else first
