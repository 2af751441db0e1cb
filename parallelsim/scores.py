"""How far predictions are from measurements: errors, out-of-memory verdicts, rankings.

Pure functions on arrays; none knows models or plans.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

FITS_BELOW = 0.90
"""The yes/no verdict: a plan fits up to this predicted use of the memory."""
SAFE_BELOW = 0.80
NEAR = (0.75, 1.2)
"""Predicted uses near the boundary, where a verdict is hard."""
SMALLEST_SET = 5
"""Plans that a set must have to be ranked."""
TOP = 5
PROBABILITY_EDGES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)


@dataclass(frozen=True, slots=True)
class ErrorScore:
    """Relative errors (predicted / measured - 1) of one set of rows; NaN where n = 0."""

    n: int
    mape: float
    median: float
    """Of the absolute errors."""
    bias: float
    """Mean signed error."""
    p90: float
    """90th percentile of the absolute errors."""


def error_score(
    predicted: Sequence[float] | FloatArray, measured: Sequence[float] | FloatArray
) -> ErrorScore:
    """Errors of step times or memory; both of shape [n], measured above 0."""
    errors = np.asarray(predicted, np.float64) / np.asarray(measured, np.float64) - 1
    if not len(errors):
        return ErrorScore(0, *[float("nan")] * 4)
    size = np.abs(errors)
    return ErrorScore(
        len(errors),
        float(size.mean()),
        float(np.median(size)),
        float(errors.mean()),
        float(np.quantile(size, 0.9)),
    )


@dataclass(frozen=True, slots=True)
class VerdictScore:
    """Verdicts at ``FITS_BELOW`` against what happened; shares without rows are NaN."""

    fits_and_ran: int
    fits_but_failed: int
    """The unforgivable cell."""
    refused_but_ran: int
    refused_and_failed: int
    auc: float
    """Share of (failed, ran) pairs whose failed run has the higher predicted use."""
    near_n: int
    near_accuracy: float
    """Of the rows with a predicted use inside ``NEAR``."""
    below_safe_n: int
    """Rows predicted at or below ``SAFE_BELOW``."""
    failed_below_safe: int
    failed_below_safe_share: float
    """Of the rows that failed."""

    @property
    def n(self) -> int:
        """Rows with a verdict."""
        return (
            self.fits_and_ran
            + self.fits_but_failed
            + self.refused_but_ran
            + self.refused_and_failed
        )

    @property
    def failed(self) -> int:
        """Rows that ran out of memory."""
        return self.fits_but_failed + self.refused_and_failed

    @property
    def accuracy(self) -> float:
        """Share of right verdicts."""
        return _share(self.fits_and_ran + self.refused_and_failed, self.n)


def verdict_score(use: Sequence[float] | FloatArray, failed: Sequence[bool]) -> VerdictScore:
    """Verdicts for predicted memory use, shape [n], against runs that failed for lack of memory."""
    u, bad = np.asarray(use, np.float64), np.asarray(failed, np.bool_)
    fits = u <= FITS_BELOW
    near = (u > NEAR[0]) & (u < NEAR[1])
    safe = u <= SAFE_BELOW
    return VerdictScore(
        fits_and_ran=int((fits & ~bad).sum()),
        fits_but_failed=int((fits & bad).sum()),
        refused_but_ran=int((~fits & ~bad).sum()),
        refused_and_failed=int((~fits & bad).sum()),
        auc=area_under_curve(u, bad),
        near_n=int(near.sum()),
        near_accuracy=_share(int((near & (fits != bad)).sum()), int(near.sum())),
        below_safe_n=int(safe.sum()),
        failed_below_safe=int((safe & bad).sum()),
        failed_below_safe_share=_share(int((safe & bad).sum()), int(bad.sum())),
    )


def area_under_curve(score: FloatArray, positive: NDArray[np.bool_]) -> float:
    """P(score of a positive > score of a negative), ties half; NaN without both (Mann-Whitney)."""
    wins = np.sort(score[~positive])
    high = score[positive]
    if not len(wins) or not len(high):
        return float("nan")
    below = np.searchsorted(wins, high, "left")
    ties = np.searchsorted(wins, high, "right") - below
    return float((below + ties / 2).sum() / (len(wins) * len(high)))


@dataclass(frozen=True, slots=True)
class RankingScore:
    """Mean over sets of plans for one task; NaN without sets."""

    sets: int
    plans: int
    kendall_tau: float
    """Tau-b: 1 for the same order, -1 for the reverse."""
    top1_regret: float
    """Measured time of the plan predicted fastest over the best measured, minus one."""
    worst_regret: float
    best_in_top: float
    """Share of sets whose best measured plan is among the ``TOP`` predicted fastest."""


def ranking_score(sets: Sequence[tuple[FloatArray, FloatArray]]) -> RankingScore:
    """Rankings of (predicted, measured) step times, one pair of arrays a set."""
    if not sets:
        return RankingScore(0, 0, *[float("nan")] * 4)
    taus, regrets, hits = [], [], []
    for predicted, measured in sets:
        order = np.argsort(predicted, kind="stable")
        taus.append(kendall_tau(predicted, measured))
        regrets.append(float(measured[order[0]] / measured.min() - 1))
        hits.append(bool((measured[order[:TOP]] == measured.min()).any()))
    known = [tau for tau in taus if not np.isnan(tau)]
    return RankingScore(
        sets=len(sets),
        plans=sum(len(measured) for _, measured in sets),
        kendall_tau=float(np.mean(known)) if known else float("nan"),
        top1_regret=float(np.mean(regrets)),
        worst_regret=float(np.max(regrets)),
        best_in_top=float(np.mean(hits)),
    )


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """Events that were given a probability between two bounds, and how many happened."""

    low: float
    high: float
    n: int
    mean_said: float
    happened: int
    happened_frac: float
    """Weighted."""


def reliability(
    said: FloatArray,
    happened: NDArray[np.bool_],
    weights: FloatArray,
    edges: Sequence[float] = PROBABILITY_EDGES,
) -> list[ReliabilityBin]:
    """Probabilities against events, all of shape [n], in bins [low, high) that are not empty; the
    last one holds its upper bound.
    """
    position = np.minimum(np.searchsorted(edges, said, side="right") - 1, len(edges) - 2)
    return [
        ReliabilityBin(
            *(edges[i], edges[i + 1], int(of.sum()), float(said[of].mean())),
            *(int(happened[of].sum()), float(np.average(happened[of], weights=weights[of]))),
        )
        for i in range(len(edges) - 1)
        if (of := position == i).any()
    ]


def kendall_tau(x: FloatArray, y: FloatArray) -> float:
    """Kendall's tau-b; NaN where one of them is constant."""
    a = np.sign(x[:, None] - x[None, :])
    b = np.sign(y[:, None] - y[None, :])
    scale = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / scale if scale else float("nan")


def grouped(keys: Sequence[Hashable]) -> Mapping[Hashable, NDArray[np.int64]]:
    """Positions by key, keys in order of first appearance."""
    positions: dict[Hashable, list[int]] = {}
    for index, key in enumerate(keys):
        positions.setdefault(key, []).append(index)
    return {key: np.array(index, np.int64) for key, index in positions.items()}


def _share(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")
