"""From measured runs to the numbers of :mod:`parallelsim.uncertainty`.

A source (one cluster, one stack) is drawn from all sources, then a run from its runs: that is how
the next user's run comes, so sources weigh equally however many rows they have, and what is left
out to test an interval is a whole source. Residual: ln(measured / predicted step time).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallelsim.causes import other_frac
from parallelsim.operators import FloatArray
from parallelsim.scored_row import ScoredRow
from parallelsim.uncertainty import LEVEL, REGIMES, Regime, regime_of, widening

TextArray = NDArray[np.str_]

ITERATIONS = 150
"""Of :func:`variances`; the half-widths have settled to 1 % by then."""
MUCH_OTHER = 0.2
"""Share of the step beside GEMMs and attention that parts the rows of docs/accuracy.md."""
FOLLOWED = 2
"""Parameters by which constants follow the sources in view, assumed: level, and slope."""
USE_EDGES = (0.70, 0.75, 0.80, 0.85, 0.90, 0.95, 1.00, 1.05, 1.20)
"""Bins of the predicted memory use u; the first and last are open."""


@dataclass(frozen=True, eq=False)
class Residuals:
    """Of step times; arrays of shape [n]."""

    source: TextArray
    measured: NDArray[np.bool_]
    calibrated: NDArray[np.bool_]
    several_nodes: NDArray[np.bool_]
    experts: NDArray[np.bool_]
    log_ratio: FloatArray
    other_frac: FloatArray
    """Of the predicted step: what is neither GEMM nor attention."""

    def __len__(self) -> int:
        return len(self.log_ratio)

    def take(self, index: Any) -> Residuals:
        """Those at a mask or positions."""
        return Residuals(**{f.name: getattr(self, f.name)[index] for f in fields(self)})

    def of(self, regime: Regime) -> NDArray[np.bool_]:
        """Mask of the rows of a regime."""
        return np.asarray(
            (self.measured == regime.measured)
            & (self.calibrated == regime.calibrated)
            & (self.several_nodes == regime.several_nodes)
            & (self.experts == regime.experts)
        )


def residuals(rows: Sequence[ScoredRow]) -> Residuals:
    """Residuals of the scored rows that have a measured step time."""
    timed = [row for row in rows if row.case is not None and row.run.step_time_s]
    cases = [row.case for row in timed if row.case]
    regimes = [regime_of(case.model, case.cluster, case.framework) for case in cases]
    return Residuals(
        np.array([row.group for row in timed], np.str_),
        np.array([regime.measured for regime in regimes], np.bool_),
        np.array([regime.calibrated for regime in regimes], np.bool_),
        np.array([regime.several_nodes for regime in regimes], np.bool_),
        np.array([regime.experts for regime in regimes], np.bool_),
        np.log([(row.run.step_time_s or np.nan) / row.step_time_s for row in timed]),
        np.array([other_frac(np.array([row.cause_shares]))[0] for row in timed], np.float64),
    )


def source_quantile(values: FloatArray, source: TextArray, level: float = LEVEL) -> float:
    """Bound that the next value, of a new source, stays below with probability ``level``.

    Hierarchical conformal prediction (arXiv:2306.06342): each of K sources weighs 1 / (K + 1),
    spread over its rows, and the source to come the rest at infinity; inf where that is reached.
    """
    names, position, rows = np.unique(source, return_inverse=True, return_counts=True)
    weight = 1 / (rows[position] * (len(names) + 1.0))
    order = np.argsort(values, kind="stable")
    reached = int(np.searchsorted(np.cumsum(weight[order]), level - 1e-12))
    return float(values[order][reached]) if reached < len(values) else float("inf")


def unseen_factor(sources: int) -> float:
    """Residual of a source that the constants never saw, over that of one that they were set on.

    inf for too few sources.

    Equation: sqrt((1 + h) / (1 - h)), h = 2 / K: variance of a residual of least squares outside
    and inside the fit, each of K sources with the mean leverage of two parameters. That constants
    follow no more of the sources than their level and one slope is an assumption: the factor is
    1.11 for 20 sources, but fits of all constants that leave a source out err 1.7 times as much on
    it (docs/accuracy_leave_out.md).
    """
    if sources <= FOLLOWED:
        return float("inf")
    leverage = FOLLOWED / sources
    return float(np.sqrt((1 + leverage) / (1 - leverage)))


def source_mean(values: FloatArray, source: TextArray) -> float:
    """Mean over sources of their means."""
    return float(np.mean([values[source == name].mean() for name in np.unique(source)]))


def source_weight(source: TextArray) -> FloatArray:
    """Weight of each row: every source the same, and their sum one; shape of ``source``."""
    names, position, rows = np.unique(source, return_inverse=True, return_counts=True)
    return np.asarray(1 / (len(names) * rows[position]))


def variances(data: Residuals) -> tuple[float, float]:
    """(a^2, c^2) of ln(measured / predicted), whose variance is a^2 + c^2 u^2; u: ``other_frac``.

    Greatest likelihood of normal residuals, sources weighing equally. Each step multiplies a
    variance by the square root of what the residuals give over what it gives itself: the
    likelihood never falls and no variance gets negative (Hunter & Lange 2004, MM algorithms).

    Neglects: that residuals of one source are alike; the quantile over sources makes up for it.
    """
    weight, terms = source_weight(data.source), _terms(data)
    found = np.full(2, float(weight @ data.log_ratio**2) / 2)
    for _ in range(ITERATIONS):
        variance = terms @ found
        given = (weight * data.log_ratio**2 / variance**2) @ terms
        own = (weight / variance) @ terms
        found = found * np.sqrt(given / np.where(own > 0, own, 1.0))
    return float(found[0]), float(found[1])


def _terms(data: Residuals) -> FloatArray:
    return np.column_stack([np.ones(len(data)), data.other_frac**2])


def excess(squares: FloatArray, source: TextArray) -> float:
    """How much larger the variance is than assumed, relative; 0 for no more.

    m^3 / (m^2 + e^2): the mean m over sources of their mean square less one, shrunk to 0 as far as
    its standard error e, from the spread of the sources, is large; unshrunk of a single source.
    inf where there is none.

    Args:
        squares: squared residuals over their assumed variance, shape [n].
        source: of each, shape [n].
    """
    means = np.array([squares[source == name].mean() for name in np.unique(source)]) - 1
    if not len(means):
        return float("inf")
    mean = max(float(means.mean()), 0.0)
    error = float(means.var(ddof=1)) / len(means) if len(means) > 1 else 0.0
    return mean**3 / (mean**2 + error) if mean else 0.0


@dataclass(frozen=True)
class Width:
    """Half-width of one regime and what it rests on."""

    half_width: float
    rows: int
    sources: int
    basis: str


@dataclass(frozen=True)
class Fit:
    """Everything that the intervals need."""

    widths: Mapping[Regime, Width]
    other_factor: float

    def half_width(self, data: Residuals) -> FloatArray:
        """Of each row, on the logarithm of the step time."""
        half = np.zeros(len(data))
        for regime, width in self.widths.items():
            half[data.of(regime)] = width.half_width
        return half * widening(self.other_factor, data.other_frac)


def fit(data: Residuals, exchanged: Residuals) -> Fit:
    """Half-widths of all regimes.

    w_r^2 = q^2 a^2 (1 + e_unmeasured) (1 + e_experts),  uncalibrated: q the larger of both

    q is the quantile, for a new source, of the residuals over their standard deviations, of all
    rows; a, c: :func:`variances` of dense models on measured accelerators; e: :func:`excess`. No
    regime has a number of its own rows alone, so that none follows its largest source.

    Args:
        data: residuals with each row's own framework.
        exchanged: the same runs predicted for every other calibrated framework that can run them:
            what an uncalibrated framework file risks.
    """
    base, slope = variances(data.take(data.measured & ~data.experts))
    unmeasured = _excess(data, ~data.measured & ~data.experts, base, slope)
    experts = _excess(data, data.measured & data.experts, base, slope)

    def score(rows: Residuals) -> FloatArray:
        variance = _terms(rows) @ np.array([base, slope])
        variance = variance * np.where(rows.measured, 1, 1 + unmeasured)
        variance = variance * np.where(rows.experts, 1 + experts, 1)
        return np.asarray(np.abs(rows.log_ratio) / np.sqrt(variance))

    own = unseen_factor(len(np.unique(data.source))) * source_quantile(score(data), data.source)
    other = max(own, source_quantile(score(exchanged), exchanged.source))
    widths = {}
    for regime in REGIMES:
        quantile, basis = own if regime.calibrated else other, ["all rows"]
        variance = base
        if not regime.calibrated:
            basis.append("widened by what another framework's file costs")
        if regime.experts:
            variance *= 1 + experts
            basis.append("widened by the spread of mixtures of experts")
        if not regime.measured:
            variance *= 1 + unmeasured
            basis.append("widened by the spread of accelerators without measurements")
        rows = data.take(data.of(regime))
        half = quantile * float(np.sqrt(variance))
        widths[regime] = Width(half, len(rows), len(np.unique(rows.source)), ", ".join(basis))
    return Fit(widths, float(np.sqrt(slope / base)))


def _excess(data: Residuals, which: NDArray[np.bool_], base: float, slope: float) -> float:
    rows = data.take(which)
    squares = rows.log_ratio**2 / (_terms(rows) @ np.array([base, slope]))
    return excess(np.asarray(squares), rows.source)


def held_out_half_width(data: Residuals, exchanged: Residuals) -> FloatArray:
    """Half-widths of the rows by a fit without any row of their source."""
    half = np.zeros(len(data))
    for name in np.unique(data.source):
        rest = fit(data.take(data.source != name), exchanged.take(exchanged.source != name))
        index = data.source == name
        half[index] = rest.half_width(data.take(index))
    return half


def interval_score(log_ratio: FloatArray, half_width: FloatArray) -> FloatArray:
    """2 w + 2 / (1 - level) max(|r| - w, 0): small for narrow intervals that hold; shape [n].

    Proper (Gneiting & Raftery 2007, 6.2): neither wider nor narrower than true pays.
    """
    missed = np.maximum(np.abs(log_ratio) - half_width, 0.0)
    return np.asarray(2 * half_width + 2 / (1 - LEVEL) * missed)


@dataclass(frozen=True, eq=False)
class FitsTable:
    """P(fits) by predicted memory use: counts by bin, and the monotone curve through them."""

    use: FloatArray
    """Mean predicted use of a bin, shape [bins]."""
    runs: NDArray[np.int64]
    failed: NDArray[np.int64]
    probability: FloatArray

    def at(self, use: FloatArray) -> FloatArray:
        """P(fits), shape of ``use``."""
        return np.interp(use, self.use, self.probability)


def fits_table(use: FloatArray, failed: NDArray[np.bool_]) -> FitsTable:
    """Shares of runs that fitted in bins of predicted use, pooled until they fall (isotonic fit).

    Both of shape [n], from sources that report failures: those that list successes alone say
    nothing of a plan's risk. A bin without runs is left out.
    """
    bins = np.searchsorted(USE_EDGES, use, side="left")
    kept = np.unique(bins)
    runs = np.array([(bins == b).sum() for b in kept], np.int64)
    bad = np.array([failed[bins == b].sum() for b in kept], np.int64)
    centre = np.array([use[bins == b].mean() for b in kept])
    is_open = (kept == 0) | (kept == len(USE_EDGES))
    nearest = np.where(kept == 0, USE_EDGES[0], USE_EDGES[-1])
    return FitsTable(np.where(is_open, nearest, centre), runs, bad, falling(1 - bad / runs, runs))


def falling(values: FloatArray, weights: NDArray[np.int64]) -> FloatArray:
    """Nearest falling sequence, weighted least squares: neighbours that rise are pooled."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        pools.append((float(value), float(weight), 1))
        while len(pools) > 1 and pools[-2][0] < pools[-1][0]:
            (a, m, i), (b, n, j) = pools[-2:]
            pools[-2:] = [((a * m + b * n) / (m + n), m + n, i + j)]
    return np.array([value for value, _, count in pools for _ in range(count)])
