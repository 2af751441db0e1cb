"""A table of measured runs against the predictions for them.

:func:`validate` predicts every run that it can, in batches of equal model, cluster and framework;
:class:`Validation` holds the rows and computes the scores of any part of them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from parallelsim.catalog import framework_names, load_framework
from parallelsim.causes import cause_shares
from parallelsim.errors import SpecError
from parallelsim.measured_cases import Case, CaseBuilder
from parallelsim.measurements import BadRow, RowError, Run, printable, read_tables
from parallelsim.plan_batch import PlanBatch
from parallelsim.progress import tell
from parallelsim.ranked_groups import ranked_groups
from parallelsim.rules import ByteArray, explain, reasons
from parallelsim.scored_row import ScoredRow
from parallelsim.scores import (
    SMALLEST_SET,
    ErrorScore,
    RankingScore,
    VerdictScore,
    error_score,
    grouped,
    ranking_score,
    verdict_score,
)
from parallelsim.simulate import TIGHT_LIMIT, simulate

LAYOUT_RULES = frozenset(
    {"layers-divide-by-stages", "first-last-fits", "framework-has-layout", "recompute-within-stage"}
)
"""Broken by the averaged middle stages of an uneven split, which a measured run may well have
had."""
WRONG_UNIT_FACTOR = 200.0
"""Measured over predicted step time above which the column cannot be seconds."""

FEWEST_GPUS_OF_TOTAL = 8
"""Fewer GPUs do not tell the throughput of all of them from a fast run."""


@dataclass(frozen=True)
class Part:
    """Scores of one part of the rows."""

    name: str
    rows: int
    time: ErrorScore
    memory: ErrorScore
    verdicts: VerdictScore
    ranking: RankingScore


@dataclass(frozen=True)
class Validation:
    """All rows of the tables, in order."""

    rows: tuple[ScoredRow, ...]
    tables: tuple[str, ...] = field(default=())

    @property
    def scored(self) -> tuple[ScoredRow, ...]:
        """Rows of the main report."""
        return tuple(row for row in self.rows if row.is_scored and not row.is_apart)

    @property
    def apart(self) -> tuple[ScoredRow, ...]:
        """Rows that are reported in a separate block."""
        return tuple(row for row in self.rows if row.is_apart)

    @property
    def skipped(self) -> Mapping[str, int]:
        """Rows without score by reason, the most frequent first."""
        return dict(Counter(row.reason for row in self.rows if not row.is_scored).most_common())

    def by_group(self, rows: Sequence[ScoredRow]) -> list[Part]:
        """Scores of each family, and inside those with both, of one node and of several nodes."""
        parts = []
        for name, index in grouped([row.family for row in rows]).items():
            members = [rows[i] for i in index]
            parts.append(part(str(name), members))
            scopes = grouped([_scope(row) for row in members])
            if len(scopes) > 1 and all(len(inside) >= SMALLEST_SET for inside in scopes.values()):
                for scope in sorted(scopes, key=str, reverse=True):
                    parts.append(part(f"  {scope}", [members[i] for i in scopes[scope]]))
        return parts

    def family_mean(self, rows: Sequence[ScoredRow]) -> tuple[int, float, float]:
        """(families, unweighted mean of their step-time MAPEs, of their medians)."""
        scores = [p.time for p in self.by_group(rows) if not p.name.startswith(" ") and p.time.n]
        if not scores:
            return 0, float("nan"), float("nan")
        return (
            len(scores),
            float(np.mean([score.mape for score in scores])),
            float(np.mean([score.median for score in scores])),
        )


def part(name: str, rows: Sequence[ScoredRow]) -> Part:
    """Scores of some scored rows."""
    timed = [row for row in rows if row.run.step_time_s is not None]
    weighed = [row for row in rows if row.run.peak_memory_bytes is not None and not row.run.oom]
    judged = [row for row in rows if row.run.oom is not None and row.is_judged]
    return Part(
        name,
        len(rows),
        error_score([r.step_time_s for r in timed], [r.run.step_time_s or 0.0 for r in timed]),
        error_score(
            [r.peak_memory_bytes for r in weighed],
            [r.run.peak_memory_bytes or 0.0 for r in weighed],
        ),
        verdict_score([r.memory_use_frac for r in judged], [bool(r.run.oom) for r in judged]),
        ranking_score([(each.predicted_s, each.measured_s) for each in ranked_groups(timed)]),
    )


def validate(tables: Sequence[str | os.PathLike[str]], framework: str | None = None) -> Validation:
    """Predict every run of the tables that has enough facts.

    Args:
        tables: CSV files of measurements.
        framework: name or path of the software to predict for, instead of the rows' own.

    Raises:
        ParallelSimError: a table cannot be read or is no table of measurements; times in another
        unit.
    """
    builder = CaseBuilder(framework)
    rows: list[ScoredRow] = []
    cases: list[tuple[int, Case]] = []
    for run in read_tables(tables):
        try:
            case = _case(run, builder)
        except RowError as error:
            rows.append(ScoredRow(run.id, run.group, printable(str(error), 1000)))
            continue
        cases.append((len(rows), case))
        rows.append(ScoredRow(case.run.id, case.run.group, ""))
    for (index, _), row in zip(cases, predict([case for _, case in cases]), strict=True):
        rows[index] = row
    _check_units(rows, [os.fspath(table) for table in tables])
    return Validation(tuple(rows), tuple(os.fspath(table) for table in tables))


def _case(run: Run | BadRow, builder: CaseBuilder) -> Case:
    if isinstance(run, BadRow):
        raise RowError(run.reason)
    if run.is_dropped:
        raise RowError(run.flag)
    if run.step_time_s is None and run.peak_memory_bytes is None and not run.oom:
        raise RowError("no step time, memory or failure measured")
    return builder.build(run)


def predict(cases: Sequence[Case]) -> list[ScoredRow]:
    """A row for each case: simulated in batches of one model, cluster and framework.

    A run that states no recompute and would not fit is predicted again with heavier kinds,
    lightest first, whatever was measured.
    """
    current = list(cases)
    results: list[ScoredRow | None] = [None] * len(current)
    pending = list(range(len(current)))
    while pending:
        again = []
        batches = grouped(
            [
                (id(current[i].model), id(current[i].cluster), id(current[i].framework))
                for i in pending
            ]
        )
        for members in batches.values():
            index = [pending[k] for k in members]
            first = current[index[0]]
            plans = PlanBatch.from_plans([current[i].plan for i in index])
            simulation = simulate(first.model, first.cluster, first.framework, plans)
            shares = cause_shares(simulation.time)
            for position, i in enumerate(index):
                case = current[i]
                use = float(simulation.memory_use_frac[position])
                if use > TIGHT_LIMIT and case.recomputes:
                    current[i] = _heavier(case)
                    again.append(i)
                    continue
                results[i] = _row(
                    case,
                    float(simulation.step_time_s[position]),
                    float(simulation.peak_memory_bytes[position]),
                    use,
                    simulation.reasons[position],
                    tuple(shares[position].tolist()),
                )
            tell(len(results) - results.count(None), len(results), "runs")
        pending = again
    return [row for row in results if row is not None]


def _heavier(case: Case) -> Case:
    """The case with the next kind of recompute."""
    kind, *rest = case.recomputes
    assumed = tuple(
        f"recompute={kind}" if text.startswith("recompute=") else text for text in case.assumed
    )
    graphs = case.plan.cuda_graphs and kind != "full"
    plan = replace(case.plan, recompute=kind, cuda_graphs=graphs)
    return replace(case, plan=plan, assumed=assumed, recomputes=tuple(rest))


def _row(
    case: Case,
    step_time_s: float,
    peak: float,
    use: float,
    broken: ByteArray,
    shares: tuple[float, ...],
) -> ScoredRow:
    run = case.run
    names = [name for name in reasons(broken) if name not in LAYOUT_RULES]
    if names:
        why = explain(case.model, case.cluster, case.framework, case.plan, LAYOUT_RULES)
        if "framework-runs-on-accelerator" in names:
            others = _frameworks_for(case.cluster.accelerator.compute_capability or 0.0)
            why.append(f"on this GPU run {', '.join(others) or 'none of the catalogue'}")
        return ScoredRow(run.id, run.group, f"cannot run: {'; '.join(why)}")
    if not (np.isfinite(step_time_s) and np.isfinite(use)):
        return ScoredRow(run.id, run.group, "no finite prediction: an efficiency is not known")
    notes = [run.flag] if run.flag else []
    if run.has_unknown_flag:
        notes = [f"unknown flag {run.flag!r}, kept apart; expected 'drop: why' or 'apart: why'"]
    if not case.cluster.accelerator.measured:
        notes.append(f"{case.cluster.accelerator.name} was not measured: its family's efficiencies")
    notes += ["assumed " + ", ".join(case.assumed)] if case.assumed else []
    return ScoredRow(run.id, run.group, "; ".join(notes), case, step_time_s, peak, use, shares)


@cache
def _frameworks_for(compute_capability: float) -> tuple[str, ...]:
    """The catalogue's software that has kernels for such a GPU."""
    loaded = [load_framework(name) for name in framework_names()]
    return tuple(
        framework.name
        for framework in loaded
        if framework.capabilities.min_compute_capability <= compute_capability
    )


def _check_units(rows: Sequence[ScoredRow], tables: Sequence[str]) -> None:
    """Refuse a table whose times or bytes are all far beyond anything physical.

    Raises:
        SpecError: with the unit that the column probably has.
    """
    _check_small_times(rows, tables)
    timed = [r.run.step_time_s / r.step_time_s for r in rows if r.is_scored and r.run.step_time_s]
    if timed and float(np.median(timed)) > WRONG_UNIT_FACTOR:
        raise SpecError(
            f"step_time_s is about {np.median(timed):.0f} times the predictions; are these "
            f"milliseconds? "
            "The column holds seconds",
            file=", ".join(tables),
        )
    weighed = [
        (r.run.peak_memory_bytes or 0.0) / r.case.cluster.accelerator.memory_bytes
        for r in rows
        if r.case is not None and r.run.peak_memory_bytes
    ]
    if weighed and float(np.median(weighed)) > 10:
        raise SpecError(
            f"peak_memory_gb is about {np.median(weighed):.0f} times the GPU's memory; are these "
            f"MB? "
            "The column holds GB of 10^9 bytes",
            file=", ".join(tables),
        )


def _check_small_times(rows: Sequence[ScoredRow], tables: Sequence[str]) -> None:
    """Refuse times in minutes, and throughput of all GPUs in the column for one.

    Raises:
        SpecError: nearly all rows are as far below their predictions as that makes them.
    """
    timed = [row for row in rows if row.is_scored and row.run.step_time_s]
    stated = [row.run.facts.text("step_time_s") != "" for row in timed]
    ratio = np.array([(row.run.step_time_s or 0.0) / row.step_time_s for row in timed])
    num_gpus = np.array([row.case.cluster.num_gpus for row in timed if row.case], dtype=float)
    typed = np.array(stated, dtype=bool)
    minutes, total = typed, ~typed & (num_gpus >= FEWEST_GPUS_OF_TOTAL)
    if _nearly_all(ratio[minutes] * 60):
        raise SpecError(
            "step_time_s is about 1/60 of the predictions; are these minutes? The column holds "
            "seconds",
            file=", ".join(tables),
        )
    if _nearly_all((ratio * num_gpus)[total]):
        raise SpecError(
            "tokens_per_s_per_gpu is about num_gpus times the predictions; is it the throughput "
            "of all GPUs? The column holds that of one",
            file=", ".join(tables),
        )


def _nearly_all(ratio: NDArray[np.float64]) -> bool:
    """Four in five are 1 within a factor of 2."""
    return ratio.size > 0 and float(np.mean((ratio > 0.5) & (ratio < 2))) >= 0.8


def _scope(row: ScoredRow) -> str:
    """One node or several: which network the run used."""
    assert row.case is not None
    return "one node" if row.case.cluster.num_nodes == 1 else "several nodes"
