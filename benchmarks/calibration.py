"""Does calibration on a few runs of a source help on its other runs?

    python benchmarks/calibration.py TABLE.csv ... [--draws 10] [--seed 0]

Fits 3 to 5 random runs of each group of 10 timed rows or more, scores the group's other rows, and
prints step-time MAPE before and after (mean over the draws, and the worst draw): with the packaged
constants, which saw these groups and so have next to no bias there; for parts of the groups (one
node, several, a model) that they predict with a bias; and with wrong constants, as for a new
cluster or software. Fails where fewer than 80 % of the groups with a bias above 4 % improve, where
any group's mean MAPE rises by more than 1.5 points, or where fewer than ten are biased, so that
nothing was tested.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from parallelsim.calibration import calibrate
from parallelsim.calibration_overlay import Factors, apply_factors
from parallelsim.calibration_predictor import MeasuredRun, Predictor
from parallelsim.cluster import ClusterSpec
from parallelsim.framework import FrameworkSpec
from parallelsim.scored_row import ScoredRow
from parallelsim.scores import error_score, grouped
from parallelsim.validation import validate

SMALLEST_GROUP = 10
FIT_ON = (3, 4, 5)
BIASED = 0.04
MUST_IMPROVE = 0.80
MAY_RISE = 0.015
LEAST_BIASED = 10
WRONG = {
    "all 1.1 times as fast": Factors(speed=1.1),
    "all 1.6 times as fast": Factors(speed=1.6),
    "all 1.3 times as slow": Factors(speed=1 / 1.3),
    "compute 1.25 times as fast": Factors(compute=1.25),
    "networks 1.6 times as fast": Factors(intra_node=1.6, inter_node=1.6),
    "host and kernels in memory half as slow": Factors(host=0.5, memory_bound=2.0),
    "compute 0.85, between nodes 0.7 times as fast": Factors(compute=0.85, inter_node=0.7),
    "compute 1.2 times as fast, host 1.5 times as slow": Factors(compute=1.2, host=1.5),
}
"""Constants as they are before anyone measured: the same runs look slower or faster than these."""


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


def assumed(runs: Sequence[MeasuredRun], factors: Factors) -> list[MeasuredRun]:
    """The same measurements, predicted with constants that are wrong by these factors."""
    specs: dict[tuple[int, int], tuple[ClusterSpec, FrameworkSpec]] = {}
    result = []
    for run in runs:
        key = (id(run.cluster), id(run.framework))
        if key not in specs:
            specs[key] = apply_factors(run.cluster, run.framework, factors)
        cluster, framework = specs[key]
        result.append(replace(run, cluster=cluster, framework=framework))
    return result


@dataclass
class Tally:
    """Groups over the limits."""

    biased: int = 0
    improved: int = 0
    risen: int = 0

    @classmethod
    def of(cls, tallies: Iterable[Tally]) -> Tally:
        """All of them together."""
        counts = np.array([(t.biased, t.improved, t.risen) for t in tallies])
        return cls(*counts.sum(axis=0).tolist())

    def add(self, name: str, runs: Sequence[MeasuredRun], draws: int, seed: int) -> str:
        """Calibrate on one group; its line of the table."""
        bias = bias_of(runs)
        result = changes(runs, draws, seed)
        before, after = result.mean(axis=0)
        marks = ""
        if abs(bias) > BIASED:
            self.biased += 1
            self.improved += int(after < before)
            marks += " biased" + (", better" if after < before else ", NOT BETTER")
        if after - before > MAY_RISE:
            self.risen += 1
            marks += " RISES"
        worst = float((result[:, 1] - result[:, 0]).max())
        figures = f"{100 * bias:+6.1f} {100 * before:6.1f} {100 * after:6.1f} {100 * worst:+10.1f}"
        return f"{name:20s} {len(runs):4d} {figures}{marks}"

    def __str__(self) -> str:
        return (
            f"{self.improved} of {self.biased} biased groups improve; "
            f"{self.risen} rise by more than 1.5 points"
        )

    @property
    def fails(self) -> bool:
        """Fewer than 80 % of the biased groups improve, one rises, or few are biased."""
        too_few = self.improved < MUST_IMPROVE * self.biased
        return too_few or self.risen > 0 or self.biased < LEAST_BIASED


def groups_of(rows: Sequence[ScoredRow]) -> dict[str, list[MeasuredRun]]:
    """Timed runs by group, groups of ``SMALLEST_GROUP`` alone."""
    return _large(rows, lambda row: row.group)


def biased_parts_of(rows: Sequence[ScoredRow]) -> dict[str, list[MeasuredRun]]:
    """Parts of the groups that the packaged constants predict with a bias, and not as a whole."""
    whole = groups_of(rows)
    parts = _large(rows, lambda row: f"{row.group}, {_nodes(row)}")
    parts |= _large(rows, lambda row: f"{row.group}, {row.case.model.name if row.case else ''}")
    return {
        name: runs
        for name, runs in parts.items()
        if abs(bias_of(runs)) > BIASED and len(runs) < len(whole[name.split(", ")[0]])
    }


def _large(
    rows: Sequence[ScoredRow], key: Callable[[ScoredRow], str]
) -> dict[str, list[MeasuredRun]]:
    timed = [row for row in rows if row.run.step_time_s is not None]
    return {
        str(name): [measured_run(timed[i]) for i in index]
        for name, index in grouped([key(row) for row in timed]).items()
        if len(index) >= SMALLEST_GROUP
    }


def _nodes(row: ScoredRow) -> str:
    assert row.case is not None
    cluster = row.case.cluster
    return "several nodes" if cluster.num_gpus > cluster.domain_size else "one node"


def bias_of(runs: Sequence[MeasuredRun]) -> float:
    """Mean signed error of the runs as they are predicted."""
    measured = np.array([run.step_time_s for run in runs], np.float64)
    return error_score(Predictor(runs)(Factors())[0], measured).bias


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 where the limits hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="+")
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    scored = validate(options.tables).scored
    groups, tallies = groups_of(scored), {}
    tasks = [("packaged constants", Factors(), groups)]
    tasks += [("packaged constants, biased parts", Factors(), biased_parts_of(scored))]
    tasks += [(label, factors, groups) for label, factors in WRONG.items()]
    for label, factors, chosen in tasks:
        tally = tallies[label] = Tally()
        print(f"\n{label}")
        print(
            f"{'group':20s} {'rows':>4} {'bias':>6} {'before':>6} {'after':>6} {'worst draw':>10}"
        )
        for name, runs in chosen.items():
            print(tally.add(name, assumed(runs, factors), options.draws, options.seed), flush=True)
        print(tally)
    print("\nAll together")
    whole = Tally.of(tallies.values())
    print(whole)
    return int(whole.fails)


if __name__ == "__main__":
    sys.exit(main())
