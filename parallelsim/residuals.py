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

from parallelsim.operators import FloatArray
from parallelsim.scored_row import ScoredRow
from parallelsim.uncertainty import LEVEL, NORMAL_QUANTILE, REGIMES, Regime, regime_of

TextArray = NDArray[np.str_]

MIN_SOURCES = 5
"""Of fewer, no quantile for a new source is known: the regime borrows."""
FACTORS = np.arange(0.0, 4.01, 0.25)
"""Candidates for the communication factor k. Coverage hardly changes from 2 on; the bound keeps a
step of communication alone within five half-widths."""
MUCH_EXPOSED = 0.1
"""Share of exposed communication that parts the rows when k is fitted."""
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
    exposed_frac: FloatArray

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
        np.array([row.exposed_frac for row in timed], np.float64),
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
    follow no more of the sources than their level and their slope with exposed communication is an
    assumption: the factor is 1.13 for 16 sources, but fits of all constants that leave a source out
    err 1.7 times as much on it (docs/accuracy_leave_out.md).
    """
    if sources <= FOLLOWED:
        return float("inf")
    leverage = FOLLOWED / sources
    return float(np.sqrt((1 + leverage) / (1 - leverage)))


def source_mean(values: FloatArray, source: TextArray) -> float:
    """Mean over sources of their means."""
    return float(np.mean([values[source == name].mean() for name in np.unique(source)]))


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
    communication_factor: float

    def covers(self, data: Residuals) -> NDArray[np.bool_]:
        """Which rows their interval holds."""
        half = np.zeros(len(data))
        for regime, width in self.widths.items():
            half[data.of(regime)] = width.half_width
        scale = 1 + self.communication_factor * data.exposed_frac
        return np.asarray(np.abs(data.log_ratio) <= half * scale)


def fit(data: Residuals, exchanged: Residuals) -> Fit:
    """Half-widths of all regimes.

    Args:
        data: residuals with each row's own framework.
        exchanged: the same runs predicted for every other calibrated framework that can run them:
            what an uncalibrated framework file risks.
    """
    known = data.measured & data.calibrated & ~data.experts
    factor = _communication_factor(data.take(known))
    return Fit({regime: _width(regime, data, exchanged, factor) for regime in REGIMES}, factor)


def _communication_factor(data: Residuals) -> float:
    """The k at which steps with much and with little exposed communication have the same quantile;
    0 where too few sources have both.
    """
    size, much = np.abs(data.log_ratio), data.exposed_frac > MUCH_EXPOSED
    if min(len(np.unique(data.source[side])) for side in (much, ~much)) < MIN_SOURCES:
        return 0.0

    def imbalance(factor: float) -> float:
        scores = size / (1 + factor * data.exposed_frac)
        high, low = (source_quantile(scores[s], data.source[s]) for s in (much, ~much))
        return abs(float(np.log(high / low)))

    return float(min(FACTORS, key=imbalance))


def _width(regime: Regime, data: Residuals, exchanged: Residuals, factor: float) -> Width:
    """Its own quantile where it has sources enough, else that of the wider regime, widened."""

    def scores(rows: Residuals) -> FloatArray:
        return np.asarray(np.abs(rows.log_ratio) / (1 + factor * rows.exposed_frac))

    def quantile(rows: Residuals) -> float:
        unseen = unseen_factor(len(np.unique(rows.source)))
        return unseen * source_quantile(scores(rows), rows.source)

    own = data.take(data.of(regime))
    sources = len(np.unique(own.source))
    if sources >= MIN_SOURCES:
        return Width(quantile(own), len(own), sources, "its own rows")
    known = data.take(data.of(Regime(True, True, regime.several_nodes)))
    half, basis = quantile(known), ["measured and calibrated rows"]
    squared = half**2
    if not regime.calibrated:
        same = (exchanged.several_nodes == regime.several_nodes) & ~exchanged.experts
        other = exchanged.take(same)
        wider = max(half, source_quantile(scores(other), other.source))
        squared += wider**2 - half**2
        basis.append("widened by what another framework's file costs")
    if regime.experts:
        excess = _excess_variance(data, factor, data.calibrated & data.measured & data.experts)
        squared += excess * NORMAL_QUANTILE**2
        basis.append("widened by the spread of mixtures of experts")
    if not regime.measured:
        without = data.calibrated & ~data.measured & ~data.experts
        squared += _excess_variance(data, factor, without) * NORMAL_QUANTILE**2
        basis.append("widened by the spread of accelerators without measurements")
    return Width(float(np.sqrt(squared)), len(own), sources, ", ".join(basis))


def _excess_variance(data: Residuals, factor: float, which: NDArray[np.bool_]) -> float:
    """Mean square residual of these rows beyond that of dense models on measured accelerators, and
    (K + 1) / K for a mean over few sources; inf where there is none.
    """
    squares = (data.log_ratio / (1 + factor * data.exposed_frac)) ** 2
    known = data.calibrated & data.measured & ~data.experts
    if not which.any():
        return float("inf")
    sources = len(np.unique(data.source[which]))
    excess = source_mean(squares[which], data.source[which])
    excess -= source_mean(squares[known], data.source[known])
    return max(excess, 0.0) * (sources + 1) / sources


def held_out_coverage(data: Residuals, exchanged: Residuals) -> NDArray[np.bool_]:
    """Which rows are held by the interval that was fitted without any row of their source."""
    covered = np.zeros(len(data), np.bool_)
    for name in np.unique(data.source):
        rest = fit(data.take(data.source != name), exchanged.take(exchanged.source != name))
        index = data.source == name
        covered[index] = rest.covers(data.take(index))
    return covered


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
