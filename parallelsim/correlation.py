"""How the errors of plans hang together: two plans that spend their time on the same causes are
wrong together, and their order is surer than their intervals, taken alone, let it seem.

    ln(measured_i / predicted_i) = sum_k s_ik x_k + e_i

s_ik the share of cause k in the step of plan i, x_k the log of the factor by which that cause is
mispredicted, N(0, sd_k^2); e_i what is the plan's own, more where kernels wait for the CPU. The
covariance of two plans follows; :func:`interval_covariance` fits it so that each plan alone keeps
the interval of its regime (:mod:`parallelsim.uncertainty`).

Neglects: the second order of the factors; that communication hides behind slower computation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from parallelsim.causes import CAUSES, cause_shares
from parallelsim.operators import FloatArray
from parallelsim.uncertainty import NORMAL_QUANTILE

if TYPE_CHECKING:
    from parallelsim.simulate import Simulation

COMPUTE_SD = 0.15
COMMUNICATION_SD = 0.35
CAUSE_SD = np.array([COMPUTE_SD] * 4 + [COMMUNICATION_SD] * 5)
"""Standard deviations of x_k before any run, in the order of ``CAUSES``. Measured groups of plans
are as likely with these as with half or twice of them."""
OWN_SD = 0.03
"""Of e where no kernel waits for the CPU."""
LAUNCH_FACTOR = 60.0
"""e of a plan whose kernels wait for the CPU: its standard deviation is ``OWN_SD (1 + LAUNCH_FACTOR
s_launch)``. Kernels too short to hide their launch are predicted less closely, in each plan
otherwise.

Both are chosen by the log and Brier scores of P(best) on measured groups of plans, each model of a
source weighing the same: its tasks (GPUs, batches) repeat an error, and one source has 50 of 81
tasks. ``parallelsim validate`` prints the counts, and the shares with these weights. Chosen anew
with a source left out, they improve the Brier score of what is left out (per model 0.547 to 0.536,
from 0.03 and 30 with 0.03 of a smooth function of the degrees), not its log score. That function,
heavier tails (Student's t) and the spreads of greatest likelihood of all residuals predict it no
better.
"""
TIE_QUANTILE = 0.8416
"""Standard deviations at which one plan is faster than another with a probability of 80 %."""
DRAWS = 4096


def covariance(shares: FloatArray) -> FloatArray:
    """Of ln(measured / predicted) between plans before any run, by the priors alone; [P, P]."""
    by_cause = (shares * CAUSE_SD**2) @ shares.T
    own = OWN_SD * (1 + LAUNCH_FACTOR * shares[:, CAUSES.index("launch")])
    return np.asarray(by_cause + np.diag(own**2))


def interval_covariance(shares: FloatArray, interval_factor: FloatArray) -> FloatArray:
    """Of ln(measured / predicted) between plans, shape [P, P]; each plan alone has the spread of
    its 80 % interval.

    C_ij = a_i a_j K_ij + c_i c_j,  a = min(1, sd / sqrt(K_ii)),  c = sqrt(sd^2 - a^2 K_ii)

    K is :func:`covariance`. Where the interval is wider, all plans share the rest: an accelerator
    or a kind of model that is less known is so for each of them.

    Args:
        shares: by cause, shape [P, causes].
        interval_factor: high over predicted step time, shape [P].
    """
    prior = covariance(shares)
    wanted, known = np.log(interval_factor) / NORMAL_QUANTILE, np.sqrt(np.diag(prior))
    scale = np.minimum(wanted / known, 1.0)
    rest = np.sqrt(np.maximum(wanted**2 - (scale * known) ** 2, 0.0))
    return np.asarray(prior * np.outer(scale, scale) + np.outer(rest, rest))


def p_best(log_times: FloatArray) -> FloatArray:
    """P(a plan is the fastest of them), shape [P]: its share of the draws, shape [draws, P]."""
    number, size = log_times.shape
    return np.asarray(np.bincount(log_times.argmin(axis=1), minlength=size) / number)


def joint_draws(covariance: FloatArray, number: int, seed: int = 0) -> FloatArray:
    """Draws from N(0, covariance), shape [number, P]; the same every time."""
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    normal = np.random.default_rng(seed).standard_normal((number, len(values)))
    return np.asarray(normal @ root.T)


@dataclass(frozen=True, slots=True, eq=False)
class Trust:
    """How sure the order of plans is; arrays of shape [P]."""

    p_best: FloatArray
    """P(it is the fastest of these plans)."""
    tied: NDArray[np.bool_]
    """The first plan is faster than this one with a probability below 80 %; false of the first."""
    regret_frac: float
    """What the first plan is expected to cost against the one of these that turns out fastest."""


def trust(simulation: Simulation) -> Trust:
    """How sure the order of the plans of a simulation, the fastest first, is."""
    size = len(simulation)
    if size < 2:
        return Trust(np.ones(size), np.zeros(size, np.bool_), 0.0)
    factor = simulation.step_time_high_s / simulation.step_time_s
    errors = interval_covariance(cause_shares(simulation.time), factor)
    log_time = np.log(simulation.step_time_s)
    spread = np.diag(errors) + errors[0, 0] - 2 * errors[0]
    tied = log_time - log_time[0] < TIE_QUANTILE * np.sqrt(np.maximum(spread, 0.0))
    tied[0] = False
    draws = log_time + joint_draws(errors, DRAWS)
    regret = np.exp(draws[:, 0] - draws.min(axis=1)).mean() - 1
    return Trust(p_best(draws), np.asarray(tied), float(regret))
