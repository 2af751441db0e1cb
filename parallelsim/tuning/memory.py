"""What runs say of memory: up to which predicted use u plans fit.

    P(plan i fits) = P( ln c > ln u_i + e_i ),  e_i ~ N(0, 0.03^2)

c is one threshold for all plans of a study: 1 / (factor by which memory is mispredicted), less what
fragmentation takes. Its prior is the table of P(fits) by predicted use that ``plan`` prints
(:func:`parallelsim.uncertainty.fits_probability`); a run that fitted says that c is above its u,
one that ran out of memory that it is below, and a measured peak of f times the predicted one that c
is near 1 / f.
"""

from __future__ import annotations

import math

import numpy as np

from parallelsim.operators import FloatArray
from parallelsim.uncertainty import fits_probability

LARGEST_USE = 1.2
"""Plans predicted to need more are no candidates: of published ones 4 in 1,324 ran."""
OWN_SD = 0.03
"""Of ln u: what one plan's memory is mispredicted by beyond the others'."""
PEAK_SD = 0.10
"""Of ln c around a measured peak: what fragmentation takes, and what the peak of one plan says of
another's; published runs failed at 90 % of the memory as often as they ran."""
_LOG_THRESHOLDS = np.log(np.linspace(0.6, 1.3, 351))


def prior_weights() -> FloatArray:
    """Of each threshold on the grid: the fall of P(fits) there."""
    survival = np.concatenate([[1.0], fits_probability(np.exp(_LOG_THRESHOLDS))])
    survival[-1] = 0.0
    return np.asarray(-np.diff(survival))


def threshold_draws(number: int, rng: np.random.Generator) -> FloatArray:
    """Thresholds from the prior, shape [number]."""
    return np.asarray(np.exp(rng.choice(_LOG_THRESHOLDS, number, p=prior_weights())))


def posterior_weights(
    use: FloatArray, failed: FloatArray, peak_ratio: FloatArray | None = None
) -> FloatArray:
    """Of each threshold on the grid, after runs.

    Args:
        use: predicted, of each run, shape [n].
        failed: 1 for a run out of memory, 0 for one that fitted, shape [n].
        peak_ratio: measured over predicted peak, NaN where it was not measured, shape [n].
    """
    log_weights = np.log(np.maximum(prior_weights(), 1e-12))
    for u, bad in zip(use, failed, strict=True):
        fits = _fits(_LOG_THRESHOLDS - math.log(u))
        log_weights += np.log(np.maximum(1 - fits if bad else fits, 1e-12))
    known = np.empty(0) if peak_ratio is None else peak_ratio[np.isfinite(peak_ratio)]
    for ratio in known:
        log_weights -= ((_LOG_THRESHOLDS + math.log(ratio)) / PEAK_SD) ** 2 / 2
    weights = np.exp(log_weights - log_weights.max())
    return np.asarray(weights / weights.sum())


def threshold_quantile(weights: FloatArray, probability: float) -> float:
    """Predicted use that the threshold is below with this probability."""
    reached = int(np.searchsorted(np.cumsum(weights), probability))
    return float(np.exp(_LOG_THRESHOLDS[min(reached, len(weights) - 1)]))


def fits_after(weights: FloatArray, use: FloatArray) -> FloatArray:
    """P(fits) of plans with predicted use ``use``, shape [P], under the weights."""
    return np.array([float(weights @ _fits(_LOG_THRESHOLDS - math.log(u))) for u in use])


def _fits(margin: FloatArray) -> FloatArray:
    """P(a plan fits) with ln c - ln u = margin: the normal distribution function."""
    return np.array([0.5 * math.erfc(-x / (OWN_SD * math.sqrt(2))) for x in margin])
