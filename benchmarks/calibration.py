"""Does calibration on a few runs of a source help on its other runs?

    python benchmarks/calibration.py TABLE.csv ... [--draws 10] [--seed 0]

Fits 3 to 5 random runs of each group of 10 timed rows or more, scores the group's other rows, and
prints step-time MAPE before and after (mean over the draws, and the worst draw). Fails where fewer
than 80 % of the groups with a default bias above 4 % improve, or where any group's mean MAPE rises
by more than 1.5 points.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import numpy as np

from parallelsim.calibration import MeasuredRun, Predictor, calibrate
from parallelsim.scored_row import ScoredRow
from parallelsim.scores import error_score, grouped
from parallelsim.validation import validate

SMALLEST_GROUP = 10
FIT_ON = (3, 4, 5)
BIASED = 0.04
MUST_IMPROVE = 0.80
MAY_RISE = 0.015


def measured_run(row: ScoredRow) -> MeasuredRun:
    """A scored row as a run to fit."""
    case = row.case
    assert case is not None
    return MeasuredRun(
        row.id,
        case.model,
        case.cluster,
        case.framework,
        case.plan,
        case.run.step_time_s,
        None if case.run.oom else case.run.peak_memory_bytes,
    )


def changes(runs: Sequence[MeasuredRun], draws: int, seed: int) -> np.ndarray:
    """(MAPE before, MAPE after) on the runs that were not fitted, shape [draws, 2]."""
    generator = np.random.default_rng(seed)
    measured = np.array([run.step_time_s for run in runs], np.float64)
    rows = []
    for _ in range(draws):
        chosen = generator.permutation(len(runs))[: int(generator.choice(FIT_ON))]
        rest = np.setdiff1d(np.arange(len(runs)), chosen)
        others = Predictor([runs[i] for i in rest])
        factors = calibrate([runs[i] for i in chosen]).factors
        before = error_score(others(type(factors)())[0], measured[rest])
        after = error_score(others(factors)[0], measured[rest])
        rows.append((before.mape, after.mape))
    return np.array(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 where both limits hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="+")
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    rows = [row for row in validate(options.tables).scored if row.run.step_time_s is not None]
    biased = improved = risen = 0
    print(f"{'group':20s} {'rows':>4} {'bias':>6} {'before':>6} {'after':>6} {'worst draw':>10}")
    for name, index in grouped([row.group for row in rows]).items():
        if len(index) < SMALLEST_GROUP:
            continue
        members = [rows[i] for i in index]
        bias = error_score(
            [r.step_time_s for r in members], [r.run.step_time_s or 0.0 for r in members]
        ).bias
        result = changes([measured_run(row) for row in members], options.draws, options.seed)
        before, after = result.mean(axis=0)
        worst = float((result[:, 1] - result[:, 0]).max())
        marks = ""
        if abs(bias) > BIASED:
            biased += 1
            improved += after < before
            marks += " biased" + (", better" if after < before else ", NOT BETTER")
        if after - before > MAY_RISE:
            risen += 1
            marks += " RISES"
        print(
            f"{name!s:20s} {len(members):4d} {100 * bias:+6.1f} {100 * before:6.1f} "
            f"{100 * after:6.1f} {100 * worst:+10.1f}{marks}"
        )
    print(f"{improved} of {biased} biased groups improve; {risen} rise by more than 1.5 points")
    return int(improved < MUST_IMPROVE * biased or risen > 0)


if __name__ == "__main__":
    sys.exit(main())
