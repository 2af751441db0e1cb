"""How far predictions may be off: intervals of the step time, and P(fits).

low = t exp(-w), high = t exp(w), w = w_r sqrt(1 + k^2 u^2)

t predicted step time, u the share of it that is neither GEMM nor attention (memory-bound work,
launches, exposed communication: predicted less closely), w_r the half-width of the plan's regime:
accelerator measured or not, framework calibrated or not, mixture of experts or not. One node or
several is told apart to report coverage: beside u it makes no difference. The interval is meant to
hold 80 % of the measured runs of a source that no part of it was fitted on. The numbers are in
``residuals.json``; :mod:`parallelsim.residuals` fits them.

A calibrated cluster brings n runs with a mean square e^2 of what its factors left unexplained
(:class:`parallelsim.cluster.Unexplained`). The regime's spread counts as n0 runs against them, and

    w' = max(w, t_90(n0 + n) sqrt((n0 (w / z)^2 + n e^2) / (n0 + n)))

z = 1.28 the normal and t_90 Student's quantile: it never gets narrower, since few runs that agree
do not show how far plans unlike them are off.

Neglects: what differs between precisions and between models. Errors that the plans of one cluster
share are in :mod:`parallelsim.correlation`: two plans compare better than their intervals overlap.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from parallelsim.cluster import ClusterSpec, Unexplained
from parallelsim.framework import FrameworkSpec
from parallelsim.model import ModelSpec
from parallelsim.operators import FloatArray

LEVEL = 0.80
"""Share of measured runs that an interval holds."""
NORMAL_QUANTILE = 1.2816
"""Standard deviations on either side of the mean that hold this share of a normal distribution."""

REGIME_RUNS = 2
"""n0, assumed: few, since the runs are the user's own and the regime's are of others."""


@dataclass(frozen=True, slots=True)
class Regime:
    """What decides how well a step time is known."""

    measured: bool
    """The accelerator has its own measured tables."""
    calibrated: bool
    """The framework's file was compared with measured runs."""
    several_nodes: bool
    """The plan's GPUs are more than one domain of the innermost tier joins."""
    experts: bool = False
    """The model has mixtures of experts."""

    @property
    def name(self) -> str:
        """In words, as reports and JSON print it."""
        words = [
            "measured accelerator" if self.measured else "accelerator without measurements",
            "calibrated framework" if self.calibrated else "uncalibrated framework",
            "several nodes" if self.several_nodes else "one node or NVLink domain",
        ]
        return ", ".join(words + ["mixture of experts"] * self.experts)


REGIMES = tuple(
    Regime(measured, calibrated, several, experts)
    for experts in (False, True)
    for measured in (True, False)
    for calibrated in (True, False)
    for several in (False, True)
)


@dataclass(frozen=True)
class ResidualTable:
    """Fitted numbers of this module."""

    half_width: Mapping[Regime, float]
    """w_r, on the logarithm of the step time."""
    other_factor: float
    """k: spread of what is neither GEMM nor attention over that of any step."""
    fits_use: FloatArray
    """Predicted uses u of the memory, ascending."""
    fits_probability: FloatArray
    """P(fits) at each, falling."""


@cache
def residual_table() -> ResidualTable:
    """The packaged table."""
    data = json.loads(Path(__file__).with_name("residuals.json").read_text(encoding="utf-8"))
    return ResidualTable(
        half_width={r: float(data["regimes"][r.name]["half_width"]) for r in REGIMES},
        other_factor=float(data["other_factor"]),
        fits_use=np.array(data["fits"]["memory_use_frac"], np.float64),
        fits_probability=np.array(data["fits"]["probability"], np.float64),
    )


def regime_of(model: ModelSpec, cluster: ClusterSpec, framework: FrameworkSpec) -> Regime:
    """The regime of every plan of the model that fills this cluster."""
    return Regime(
        cluster.accelerator.measured,
        framework.calibrated,
        cluster.num_gpus > cluster.domain_size,
        model.has_experts,
    )


def widening(factor: float, other: FloatArray) -> FloatArray:
    """sqrt(1 + k^2 u^2), shape of ``other``: independent errors add by their squares."""
    return np.asarray(np.sqrt(1 + (factor * other) ** 2))


def interval_factor(
    regime: Regime, other: FloatArray, own: Unexplained | None = None
) -> FloatArray:
    """exp(w): high is the step time times this, low the step time over it; shape [P].

    Args:
        regime: of the plans.
        own: what the calibration of the cluster left unexplained.
        other: share of the step that is neither GEMM nor attention, shape [P]:
            :func:`parallelsim.causes.other_frac`.
    """
    table = residual_table()
    half_width = table.half_width[regime] * widening(table.other_factor, other)
    return np.exp(half_width if own is None else with_own_runs(half_width, own))


def with_own_runs(half_width: FloatArray, own: Unexplained) -> FloatArray:
    """Half-width w' of a calibrated cluster, shape of ``half_width``."""
    runs = REGIME_RUNS + own.num_runs
    squares = REGIME_RUNS * (half_width / NORMAL_QUANTILE) ** 2 + own.num_runs * own.log_error**2
    return np.maximum(half_width, student_quantile(runs) * np.sqrt(squares / runs))


def student_quantile(degrees: int) -> float:
    """90 % quantile of Student's t with 3 degrees of freedom or more, to 0.1 %.

    Expansion in 1 / degrees around the normal quantile (Abramowitz & Stegun 26.7.5).
    """
    z, n = NORMAL_QUANTILE, float(degrees)
    terms = (
        z,
        (z**3 + z) / (4 * n),
        (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2),
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3),
    )
    return sum(terms)


def fits_probability(memory_use_frac: FloatArray) -> FloatArray:
    """P(the plan fits) at predicted use u of the reported memory, shape [P].

    Straight lines between shares of published runs that fitted, made monotone.
    """
    table = residual_table()
    return np.interp(memory_use_frac, table.fits_use, table.fits_probability)
