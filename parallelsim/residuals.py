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

OTHER_FACTORS = np.arange(0, 8.01, 0.25)
"""k that :func:`least_score_factor` looks at: the score is flat within one step of its least."""
MUCH_OTHER = 0.2
"""Share of the step beside GEMMs and attention that parts the rows of docs/accuracy.md."""
FOLLOWED = 2
"""Parameters by which constants follow the sources in view, assumed: level, and slope."""
USE_EDGES = (0.70, 0.75, 0.80, 0.85, 0.90, 0.95, 1.00, 1.05, 1.20)
"""Bins of the predicted memory use u; the first and last are open."""
ALIKE = 0.4
"""Correlation within a source of whether runs of the same predicted use fit: analysis of variance
of the published runs with u from 0.90 to 1.06. Some software fails at 0.9 of the memory, some of
it runs at 1.05."""


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


def least_score_scale(size: FloatArray, shape: FloatArray, source: TextArray) -> float:
    """Factor b of the half-widths b ``shape`` whose mean :func:`interval_score` is least, sources
    weighing equally; all of shape [n].

    The score of one run falls with b by its shape until it is held and rises with it from there on,
    so b is a quantile of |r| / shape where each run also weighs its shape.
    """
    weight = source_weight(source) * shape
    ratio = size / shape
    order = np.argsort(ratio, kind="stable")
    share = np.cumsum(weight[order]) / weight.sum()
    return float(ratio[order][np.searchsorted(share[:-1], LEVEL - 1e-12)])


def least_score_factor(data: Residuals) -> tuple[float, float]:
    """(k, b): half-widths b sqrt(1 + k^2 u^2) of least mean score; u: ``other_frac``.

    A score that is linear beyond the interval is not led by single wild runs, as variances are.
    """
    size, weight = np.abs(data.log_ratio), source_weight(data.source)
    found = []
    for factor in OTHER_FACTORS:
        shape = widening(factor, data.other_frac)
        scale = least_score_scale(size, shape, data.source)
        score = float(weight @ interval_score(data.log_ratio, scale * shape))
        found.append((score, float(factor), scale))
    _, factor, scale = min(found)
    return factor, scale


def departure(size: FloatArray, shape: FloatArray, source: TextArray) -> float:
    """How much wider than ``shape`` intervals have to be, as a logarithm; 0 for no more.

    x^3 / (x^2 + e^2): x the log of :func:`least_score_scale`, shrunk to 0 as far as its standard
    error e, by the jackknife over the sources, is large; unshrunk of a single source. inf of none.

    Args:
        size: |r|, shape [n].
        shape: half-widths that are known to hold others, shape [n].
        source: of each, shape [n].
    """
    names = np.unique(source)
    if not len(names):
        return float("inf")
    wider = max(float(np.log(least_score_scale(size, shape, source))), 0.0)
    without = [source != name for name in names if len(names) > 1]
    logs = np.log([least_score_scale(size[m], shape[m], source[m]) for m in without])
    squared_error = (len(names) - 1) * float(logs.var()) if without else 0.0
    return wider**3 / (wider**2 + squared_error) if wider else 0.0


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

    w_r = q exp(x_unmeasured + x_experts),  uncalibrated: q the larger of both

    q is the quantile, for a new source, of all residuals over their half-widths, which are
    :func:`least_score_factor` of dense models on measured accelerators, and wider elsewhere by
    x: :func:`departure`. No regime has a number of its own rows alone, so that none follows its
    largest source.

    Args:
        data: residuals with each row's own framework.
        exchanged: the same runs predicted for every other calibrated framework that can run them:
            what an uncalibrated framework file risks.
    """
    factor, scale = least_score_factor(data.take(data.measured & ~data.experts))

    def departed(which: NDArray[np.bool_]) -> float:
        rows = data.take(which)
        shape = scale * widening(factor, rows.other_frac)
        return departure(np.abs(rows.log_ratio), shape, rows.source)

    unmeasured = departed(~data.measured & ~data.experts)
    experts = departed(data.measured & data.experts)

    def score(rows: Residuals) -> FloatArray:
        wider = np.where(rows.measured, 0, unmeasured) + np.where(rows.experts, experts, 0)
        return np.asarray(
            np.abs(rows.log_ratio) / (np.exp(wider) * widening(factor, rows.other_frac))
        )

    own = unseen_factor(len(np.unique(data.source))) * source_quantile(score(data), data.source)
    other = max(own, source_quantile(score(exchanged), exchanged.source))
    widths = {}
    for regime in REGIMES:
        half, basis = own if regime.calibrated else other, ["all rows"]
        if not regime.calibrated:
            basis.append("widened by what another framework's file costs")
        if regime.experts:
            half *= float(np.exp(experts))
            basis.append("widened by the errors of mixtures of experts")
        if not regime.measured:
            half *= float(np.exp(unmeasured))
            basis.append("widened by the errors of accelerators without measurements")
        rows = data.take(data.of(regime))
        widths[regime] = Width(half, len(rows), len(np.unique(rows.source)), ", ".join(basis))
    return Fit(widths, factor)


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


def fits_table(use: FloatArray, failed: NDArray[np.bool_], source: TextArray) -> FitsTable:
    """Shares of runs that fitted in bins of predicted use, pooled until they fall (isotonic fit).

    A bin's share is the mean over its sources that has the least variance: each of n runs counts
    as n / (1 + rho (n - 1)) independent ones, rho: ``ALIKE``. What a bin lacks in agreement between
    sources thus shows as a probability that is neither 0 nor 1.

    All of shape [n], from sources that report failures: those that list successes alone say
    nothing of a plan's risk. A bin without runs is left out.
    """
    bins = np.searchsorted(USE_EDGES, use, side="left")
    kept = np.unique(bins)
    runs = np.array([(bins == b).sum() for b in kept], np.int64)
    bad = np.array([failed[bins == b].sum() for b in kept], np.int64)
    centre = np.array([use[bins == b].mean() for b in kept])
    is_open = (kept == 0) | (kept == len(USE_EDGES))
    nearest = np.where(kept == 0, USE_EDGES[0], USE_EDGES[-1])
    share, weight = np.array([_fitted(failed[bins == b], source[bins == b]) for b in kept]).T
    return FitsTable(np.where(is_open, nearest, centre), runs, bad, falling(share, weight))


def _fitted(failed: NDArray[np.bool_], source: TextArray) -> tuple[float, float]:
    """Share of runs that fitted, and how many independent ones they are worth."""
    names, position, rows = np.unique(source, return_inverse=True, return_counts=True)
    worth = rows / (1 + ALIKE * (rows - 1))
    fitted = 1 - np.bincount(position, weights=failed) / rows
    return float(worth @ fitted / worth.sum()), float(worth.sum())


def falling(values: FloatArray, weights: FloatArray) -> FloatArray:
    """Nearest falling sequence, weighted least squares: neighbours that rise are pooled."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        pools.append((float(value), float(weight), 1))
        while len(pools) > 1 and pools[-2][0] < pools[-1][0]:
            (a, m, i), (b, n, j) = pools[-2:]
            pools[-2:] = [((a * m + b * n) / (m + n), m + n, i + j)]
    return np.array([value for value, _, count in pools for _ in range(count)])
