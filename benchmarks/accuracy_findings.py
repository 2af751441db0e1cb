"""The numbers of docs/accuracy.md: scores, intervals, P(fits), and the floor to keep."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from parallelsim.catalog import framework_names, load_framework
from parallelsim.measured_cases import CaseBuilder
from parallelsim.measurements import BadRow, RowError, read_tables
from parallelsim.residuals import (
    REGIMES,
    Fit,
    FitsTable,
    Residuals,
    fit,
    fits_table,
    held_out_half_width,
    interval_score,
    residuals,
    source_mean,
)
from parallelsim.scored_row import ScoredRow
from parallelsim.validation import Validation, part, predict, validate

COVERAGE = (0.70, 0.90)
"""What an 80 % interval must hold of a regime's rows, but for one standard error of so many: one
run more or less decides nothing."""
ENOUGH_ROWS = 50
"""Of a regime, for its coverage to be judged."""

Floor = Mapping[str, tuple[float, int]]
"""Figure by name, and +1 where smaller is better, -1 where larger is."""


@dataclass(frozen=True)
class Coverage:
    """Of the rows of a regime or source, by intervals fitted without the rows' sources."""

    name: str
    rows: int
    sources: int
    share: float
    by_source: float
    """Mean over sources."""

    def standard_error(self, share: float) -> float:
        """Of the share among so many rows, were they independent and ``share`` the truth."""
        return math.sqrt(share * (1 - share) / self.rows)


@dataclass(frozen=True)
class Findings:
    """Everything that the page prints."""

    validation: Validation
    data: Residuals
    fit: Fit
    half_width: np.ndarray
    """By the fit without the row's source, [n]."""
    fits: FitsTable
    fits_sources: tuple[str, ...]
    """Sources that report failures."""
    use: np.ndarray
    failed: np.ndarray
    held_out_fits: np.ndarray
    """P(fits) by the table that was fitted without the row's source, shape of ``use``."""

    @property
    def covered(self) -> np.ndarray:
        """Held by the interval that was fitted without the row's source, bool [n]."""
        return np.abs(self.data.log_ratio) <= self.half_width

    def interval_scores(self) -> tuple[float, float]:
        """Mean over rows, and mean over sources, of :func:`interval_score`."""
        scores = interval_score(self.data.log_ratio, self.half_width)
        return float(scores.mean()), source_mean(scores, self.data.source)

    def coverage(self, name: str, mask: np.ndarray) -> Coverage:
        """Coverage of some rows."""
        source, covered = self.data.source[mask], self.covered[mask].astype(float)
        if not len(covered):
            return Coverage(name, 0, 0, math.nan, math.nan)
        by_source = source_mean(covered, source)
        return Coverage(
            name, len(covered), len(np.unique(source)), float(covered.mean()), by_source
        )

    def coverage_by_regime(self) -> list[Coverage]:
        """Of all regimes, then of all rows."""
        rows = [self.coverage(regime.name, self.data.of(regime)) for regime in REGIMES]
        return [*rows, self.coverage("all", np.ones(len(self.data), bool))]

    def outside(self) -> list[Coverage]:
        """Regimes with enough rows whose intervals hold too few or too many of them."""
        judged = [row for row in self.coverage_by_regime() if row.rows >= ENOUGH_ROWS]
        low, high = COVERAGE
        return [
            row
            for row in judged
            if not low - row.standard_error(low) <= row.share <= high + row.standard_error(high)
        ]

    def coverage_by_source(self) -> list[Coverage]:
        """Of each source, in the table's order."""
        names = dict.fromkeys(self.data.source.tolist())
        return [self.coverage(name, self.data.source == name) for name in names]


def measure(table: str) -> Findings:
    """Predict the table, fit on it, and leave out every source in turn."""
    validation = validate([table])
    data = residuals(validation.scored)
    exchanged = exchanged_residuals(table)
    sources = tuple(dict.fromkeys(row.group for row in validation.scored if row.run.oom))
    judged = [
        row
        for row in validation.scored
        if row.group in sources and row.run.oom is not None and row.is_judged
    ]
    use = np.array([row.memory_use_frac for row in judged])
    failed = np.array([bool(row.run.oom) for row in judged])
    group = np.array([row.group for row in judged])
    held_out = np.empty(len(use))
    for name in sources:
        rest = group != name
        held_out[~rest] = fits_table(use[rest], failed[rest], group[rest]).at(use[~rest])
    return Findings(
        validation=validation,
        data=data,
        fit=fit(data, exchanged),
        half_width=held_out_half_width(data, exchanged),
        fits=fits_table(use, failed, group),
        fits_sources=sources,
        use=use,
        failed=failed,
        held_out_fits=held_out,
    )


def exchanged_residuals(table: str) -> Residuals:
    """Residuals of the timed runs, predicted for every other calibrated software.

    What an uncalibrated framework file risks: a file that another software was compared with.
    """
    runs = [run for run in read_tables([table]) if not isinstance(run, BadRow)]
    runs = [r for r in runs if r.step_time_s and not r.is_dropped and not r.is_apart]
    rows: list[ScoredRow] = []
    for name in framework_names():
        if not load_framework(name).calibrated:
            continue
        builder, cases = CaseBuilder(name), []
        for run in runs:
            if run.framework in ("", name):
                continue
            try:
                cases.append(builder.build(run))
            except RowError:
                continue
        rows += [row for row in predict(cases) if row.is_scored]
    return residuals(rows)


def floor_of(found: Findings, *, with_margin: bool = False) -> Floor:
    """The figures that must not get worse; ``with_margin`` rounds each a little to the bad side.

    Errors and regrets, in percent.
    """
    validation = found.validation
    parts = {p.name: p for p in validation.by_group(validation.scored) if p.name[0] != " "}
    overall = part("overall", validation.scored)
    errors = {"mean step time MAPE": 100 * validation.family_mean(validation.scored)[1]}
    errors |= {f"step time MAPE of {n}": 100 * p.time.mape for n, p in parts.items() if p.time.n}
    errors |= {
        f"peak memory MAPE of {n}": 100 * p.memory.mape
        for n, p in parts.items()
        if p.memory.n >= 10
    }
    errors["ranking top-1 regret"] = 100 * overall.ranking.top1_regret
    shares = {"ranking Kendall tau": overall.ranking.kendall_tau}
    shares |= {
        f"right verdicts of {n}": p.verdicts.accuracy
        for n, p in parts.items()
        if p.verdicts.failed >= 10
    }
    if with_margin:
        errors = {name: math.ceil(2 * (value + 0.1)) / 2 for name, value in errors.items()}
        shares = {name: math.floor(200 * (value - 0.002)) / 200 for name, value in shares.items()}
    return {name: (value, +1) for name, value in errors.items()} | {
        name: (value, -1) for name, value in shares.items()
    }
