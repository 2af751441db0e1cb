"""The most probable constants given runs and priors.

With r_i = log(measured / predicted(z)), minimise

    sum_i k_i rho(r_i / s) + sum_p z_p^2 / 2,    rho(u) = d^2 ( sqrt(1 + (u/d)^2) - 1 )

by Gauss-Newton with numerical derivatives through the simulator. rho is quadratic for small u and
linear beyond d: one wild run pulls no further. k_i makes the n runs of a family (a source, its
dense models, mixtures, adapters and sharded runs apart) count as n / (1 + (n - 1) c) independent
ones (Kish's design effect): they share a cluster, a software stack and the equations' mistakes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from refit_model import FloatArray, Predictor

NOISE = 0.06
"""Of the log of a step time that no constant explains: runs repeat to 1 to 5 %, layouts add."""
ROBUST = 1.5
"""d."""
CORRELATION = 0.02
"""c: any number of runs of one family count as no more than 50."""
MAX_ITERATIONS = 16
REFRESHES = 1
"""Jacobians computed after that of the priors; between them steps reuse the last."""
UNSHOWN = 0.97
"""Posterior standard deviation of a z above which its derivatives are not computed again."""
CLOSE_ENOUGH = 0.02
LARGEST_STEP = 1.5
"""Of a z in one iteration."""


@dataclass(frozen=True)
class Estimate:
    """Where the search ended."""

    z: FloatArray
    covariance: FloatArray
    """Posterior, of z; the unit matrix where no run says anything."""
    objective: float


def source_weights(groups: Sequence[str]) -> FloatArray:
    """k_i."""
    _, inverse, count = np.unique(np.asarray(groups), return_inverse=True, return_counts=True)
    return np.asarray((1.0 / (1.0 + (count - 1.0) * CORRELATION))[inverse])


def irls(residuals: FloatArray, weights: FloatArray) -> FloatArray:
    """Weights of the least-squares problem that has the gradient of the robust one."""
    u = residuals / NOISE
    return weights / NOISE**2 / np.sqrt(1.0 + (u / ROBUST) ** 2)


def objective(z: FloatArray, residuals: FloatArray, weights: FloatArray) -> float:
    """The sum that the module's docstring minimises."""
    u = residuals / NOISE
    loss = ROBUST**2 * (np.sqrt(1.0 + (u / ROBUST) ** 2) - 1.0)
    return float((weights * loss).sum() + (z**2).sum() / 2)


def most_probable(
    predictor: Predictor,
    measured: FloatArray,
    groups: Sequence[str],
    start: tuple[FloatArray, FloatArray] | None = None,
) -> Estimate:
    """Fit all constants to runs.

    Args:
        predictor: of the runs to fit, and of no others.
        measured: step times, shape [P].
        groups: family of each run.
        start: (step times, Jacobian) at z = 0, where they are known.
    """
    log_measured, weights = np.log(measured), source_weights(groups)
    z = np.zeros(len(predictor.parameters))
    times = start[0] if start else predictor.step_times(z)
    jacobian = start[1] if start else predictor.jacobian(z, times)
    residuals = log_measured - np.log(times)
    best, refreshed = objective(z, residuals, weights), 0
    for _ in range(MAX_ITERATIONS):
        step = _step(jacobian, irls(residuals, weights), residuals, z)
        for shrink in (1.0, 0.4, 0.1):
            candidate = z + shrink * step
            times = predictor.step_times(candidate)
            changed = log_measured - np.log(times)
            value = objective(candidate, changed, weights)
            if value < best:
                break
        else:
            value = np.inf
        gained = best - value
        if gained > 0:
            z, residuals, best = candidate, changed, value
        if gained < CLOSE_ENOUGH or np.abs(step).max() < CLOSE_ENOUGH:
            if refreshed == REFRESHES:
                break
            sd = np.sqrt(np.diag(_covariance(jacobian, irls(residuals, weights))))
            known = np.where(sd > UNSHOWN, jacobian, np.nan)
            times, refreshed = np.exp(log_measured - residuals), refreshed + 1
            jacobian = predictor.jacobian(z, times, known)
    return Estimate(z, _covariance(jacobian, irls(residuals, weights)), best)


def _step(
    jacobian: FloatArray, weights: FloatArray, residuals: FloatArray, z: FloatArray
) -> FloatArray:
    hessian = (jacobian.T * weights) @ jacobian + np.eye(len(z))
    step = np.linalg.solve(hessian, jacobian.T @ (weights * residuals) - z)
    return np.asarray(np.clip(step, -LARGEST_STEP, LARGEST_STEP))


def _covariance(jacobian: FloatArray, weights: FloatArray) -> FloatArray:
    hessian = (jacobian.T * weights) @ jacobian + np.eye(jacobian.shape[1])
    return np.asarray(np.linalg.inv(hessian))
