"""Step times after a few runs: a Gaussian process with the simulator as its mean.

    ln t_i = ln( sum_k T_ik exp(x_k) ) + f(z_i) + e_i,   x_k ~ N(0, sd_k^2)

T_ik the predicted seconds of cause k of plan i (:mod:`parallelsim.correlation`), x_k the log of its
factor, f a small smooth function of the degrees, e_i the plan's own. Linearised in x around the
estimate, with s_ik the shares of the causes there, ln t is a Gaussian process with the kernel

    K_ij = sum_k s_ik s_jk sd_k^2 + f^2 exp(-d_ij^2 / 2 l^2) + e^2 [i = j]

so that a run says most of the plans that spend their time as it does. The estimate is iterated
(Gauss-Newton): factors of 1.5 are far from linear. How much no cause explains, f and e, is learnt:
of a few sizes the one that the runs make likeliest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parallelsim.correlation import CAUSE_SD
from parallelsim.operators import FloatArray, IntArray
from parallelsim.plan_batch import PlanBatch

SIZES = (0.01, 0.03, 0.09)
"""Of what no cause explains: standard deviation of f. The first is kept until runs contradict it;
published runs, of other clusters each, have 0.08."""
EVIDENCE = 1.0
"""Log likelihood that the next larger size must gain: a few noisy runs alone prefer it by less."""
OWN_PART = 1 / 3
"""Of that size, what is the plan's own: e."""
RUN_SD = 0.02
"""Relative noise of one run: the same plan again."""
SMOOTH_LENGTH = 0.5
"""Doublings of a degree over which f changes."""
_ROUNDS = 8
_DEGREES = ("tp", "cp", "pp", "vpp", "dp", "ep", "micro_batch_size")


@dataclass(frozen=True, slots=True, eq=False)
class Posterior:
    """What is known of the candidates' step times."""

    log_time: FloatArray
    """Mean of ln t, shape [P]."""
    covariance: FloatArray
    """Of ln t, shape [P, P]."""
    log_factor: FloatArray
    """Mean of x, shape [causes]."""
    log_factor_sd: FloatArray


def posterior(
    seconds: FloatArray, plans: PlanBatch, runs: IntArray, measured_s: FloatArray
) -> Posterior:
    """The candidates' step times given runs of some of them.

    Args:
        seconds: predicted, by cause, of every candidate, shape [P, causes].
        plans: the candidates, shape [P].
        runs: position of each timed run's plan, shape [n]; a plan may have run several times.
        measured_s: its step time, shape [n].
    """
    near = nearness(plans, plans) + OWN_PART**2 * np.eye(len(plans))
    fits = [_fit(seconds, size**2 * near, runs, measured_s) for size in SIZES]
    evidence = [fit[0] - EVIDENCE * step for step, fit in enumerate(fits)]
    return fits[int(np.argmax(evidence))][1]


def _fit(
    seconds: FloatArray, near: FloatArray, runs: IntArray, measured_s: FloatArray
) -> tuple[float, Posterior]:
    """(log likelihood of the runs, posterior) with the covariance ``near`` of f + e, [P, P]."""
    prior, x = np.diag(CAUSE_SD**2), np.zeros(len(CAUSE_SD))
    ran = near[np.ix_(runs, runs)] + RUN_SD**2 * np.eye(len(runs))
    for _ in range(_ROUNDS):
        mean, shares = _log_time_and_shares(seconds[runs], x)
        kernel = shares @ prior @ shares.T + ran
        residual = np.log(measured_s) - mean + shares @ x
        weights = np.linalg.solve(kernel, residual)
        x = prior @ shares.T @ weights
    likelihood = -float(residual @ weights + np.linalg.slogdet(kernel)[1]) / 2
    of_factors = prior @ shares.T
    factors = prior - of_factors @ np.linalg.solve(kernel, of_factors.T)
    mean, shares = _log_time_and_shares(seconds, x)
    cross = shares @ of_factors + near[:, runs]
    return likelihood, Posterior(
        log_time=mean + near[:, runs] @ weights,
        covariance=shares @ prior @ shares.T + near - cross @ np.linalg.solve(kernel, cross.T),
        log_factor=x,
        log_factor_sd=np.sqrt(np.maximum(np.diag(factors), 0.0)),
    )


def _log_time_and_shares(seconds: FloatArray, x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Ln of the step with every cause stretched by exp(x), and the causes' shares of it."""
    stretched = seconds * np.exp(x)
    total = stretched.sum(axis=1)
    return np.log(total), stretched / total[:, None]


def nearness(plans: PlanBatch, others: PlanBatch) -> FloatArray:
    """exp(-d^2 / 2 l^2) of every plan to every other, shape [P, O]; d in doublings of degrees, a
    kind of recompute or sharding counting as one.
    """
    a, b = _position(plans), _position(others)
    squared = ((a[:, None, :] - b[None, :, :]) ** 2).sum(axis=2)
    return np.asarray(np.exp(-squared / (2 * SMOOTH_LENGTH**2)))


def _position(plans: PlanBatch) -> FloatArray:
    doublings = [np.log2(np.maximum(getattr(plans, name), 1)) for name in _DEGREES]
    kinds = [plans.recompute, np.maximum(plans.zero, 1)]
    return np.stack([*doublings, *kinds], axis=1).astype(np.float64)
