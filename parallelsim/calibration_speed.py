"""How much slower or faster all of some runs are than predicted: one number before any other.

Residuals r_i = log(measured_i / predicted_i) are a common part c and an own part each,

    r_i = c + e_i,   e_i ~ s t(4),   s^2 ~ 2 s0^2 / chi^2(2),   c ~ Cauchy(scale)

t has heavier tails than a normal distribution, so that one wild run moves little; Cauchy's let a
large common part that the runs agree on be believed whole, where a normal prior would pull it back
the more the larger it is. The estimate is the mean of c's posterior, summed over a grid of
(c, s): for a single run, which is either wild or like those to come, it lies between.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

COMMON_SCALE = 0.05
"""Half of all software and clusters are predicted within this, in the log. With ``OWN_SPREAD`` and
both degrees of freedom chosen among seven on published runs: 3 to 5 runs of 16 sources corrected by
their common part, scored on the others, as they are and 10 % slower and faster."""
OWN_SPREAD = 0.07
"""Spread of the runs of one source around their common part: 3 to 10 % in most."""
_SPREAD_RUNS = 2
"""``OWN_SPREAD`` counts as this many runs against what the runs show."""
_OWN_DEGREES = 4
_COMMON = np.linspace(-1.4, 1.4, 561)
"""Up to four times as slow; beyond it runs are refused."""
_SPREAD = np.geomspace(0.03, 0.4, 16)
_NEGLIGIBLE = -100.0
"""Logarithm of a density that no sum sees, and that does not underflow."""


@dataclass(frozen=True, slots=True)
class CommonPart:
    """Of the logarithm of measured over predicted."""

    mean: float
    sd: float
    left_out: FloatArray
    """The mean without each run; shape [N]."""


def common_part(residuals: FloatArray) -> CommonPart:
    """The posterior mean of c and its standard deviation, of all runs and without each.

    Neglects: that runs of one model err alike, so that many of them count as too many.

    Shapes: residuals [N], N of 1 or more.
    """
    own = np.stack([_log_density(r) for r in residuals])
    total = own.sum(axis=0)
    mean, sd = _moments(total)
    left_out = np.array([_moments(total - one)[0] for one in own])
    return CommonPart(mean, sd, left_out)


def _log_density(residual: float) -> FloatArray:
    """Of one run on the grid, shape [C, S]."""
    distance = (residual - _COMMON[:, None]) / _SPREAD
    return np.asarray(_log_t(distance, _OWN_DEGREES) - np.log(_SPREAD))


def _log_t(x: FloatArray, degrees: int) -> FloatArray:
    """Student's t, without its constant."""
    return np.asarray(-(degrees + 1) / 2 * np.log1p(x**2 / degrees))


def _moments(log_likelihood: FloatArray) -> tuple[float, float]:
    """Mean and standard deviation of c, given the runs' density on the grid.

    The density of log s, over which the grid is even, is s^-nu exp(-nu s0^2 / (2 s^2)).
    """
    spread = _SPREAD_RUNS * (-np.log(_SPREAD) - (OWN_SPREAD / _SPREAD) ** 2 / 2)
    density = log_likelihood + _log_t(_COMMON / COMMON_SCALE, 1)[:, None] + spread
    weight = np.exp(np.maximum(density - density.max(), _NEGLIGIBLE)).sum(axis=1)
    weight /= weight.sum()
    mean = float(weight @ _COMMON)
    return mean, float(np.sqrt(weight @ (_COMMON - mean) ** 2))
