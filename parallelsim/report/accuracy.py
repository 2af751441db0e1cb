"""The report of ``validate``: tables, rows as CSV, and the same numbers as a document."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from parallelsim.ranked_groups import RankedGroup, p_best_reliability, ranked_groups
from parallelsim.report.tables import Column
from parallelsim.scored_row import ScoredRow
from parallelsim.scores import FITS_BELOW, NEAR, SAFE_BELOW, TOP, ErrorScore, ReliabilityBin
from parallelsim.validation import Part, Validation, part

ROW_COLUMNS = (
    "id",
    "status",
    "reason",
    "measured_step_time_s",
    "predicted_step_time_s",
    "measured_peak_memory_bytes",
    "predicted_peak_memory_bytes",
    "measured_oom",
    "predicted_fits",
    "memory_use_frac",
)
ERROR_COLUMNS = (
    Column("group", "left"),
    *(Column(name) for name in ("times", "MAPE", "med.", "bias", "p90")),
    *(Column(name) for name in ("peaks", "MAPE", "med.", "bias", "p90")),
)
VERDICT_COLUMNS = (
    Column("group", "left"),
    Column("n"),
    Column("ran"),
    Column("FAILED"),
    Column("ran"),
    Column("failed"),
    Column("right"),
    Column("AUC"),
    Column("near"),
    Column("right"),
    Column("safe!"),
)
RANKING_NOTE = (
    "Plans of one task (source, model, GPUs, batch, sequence, precision; 5 or more): mean over "
    "tasks of "
    "Kendall's tau, of the measured loss of the plan predicted fastest, and how often the best "
    "is among "
    f"the {TOP} predicted fastest"
)
RANKING_COLUMNS = (
    Column("group", "left"),
    Column("sets"),
    Column("plans"),
    Column("tau"),
    Column("regret %"),
    Column("worst %"),
    Column(f"top {TOP} %"),
)
GROUP_COLUMNS = (
    Column("group", "left"),
    Column("model", "left"),
    Column("GPUs"),
    Column("batch"),
    Column("seq", priority=1),
    Column("plans"),
    Column("regret %"),
    Column("best was #"),
    Column("P(best)"),
)
GROUP_NOTE = (
    "Top-1 regret: what the plan predicted fastest measured above the best measured of its task; "
    "the place that the best had in the predicted order; P(best) said of the plan predicted fastest"
)
RELIABILITY_COLUMNS = (
    Column("P(best) said", "left"),
    Column("plans"),
    Column("mean said %"),
    Column("were best"),
    Column("happened %"),
    Column("per model %"),
)
RELIABILITY_NOTE = (
    "P(best) of every plan of these tasks: what was said, how many were the best measured, and "
    "their share where each model of a group counts once, however many tasks it has"
)
VERDICT_NOTE = (
    f"Predicted to fit (up to {FITS_BELOW:.0%} of the memory): ran, FAILED; predicted not to: "
    f"ran, failed; "
    f"share of right verdicts; near: rows with a predicted use of {NEAR[0]} to {NEAR[1]}, and the "
    f"share right "
    f"among them; safe!: failed runs predicted at {SAFE_BELOW:.0%} or less"
)


def error_rows(parts: Sequence[Part]) -> list[list[str]]:
    """One line a part: errors of time and memory in percent."""
    return [[p.name, *_errors(p.time), *_errors(p.memory)] for p in parts if p.time.n or p.memory.n]


def verdict_rows(parts: Sequence[Part]) -> list[list[str]]:
    """One line for each part in which a run failed."""
    return [
        [
            p.name,
            str(v.n),
            str(v.fits_and_ran),
            str(v.fits_but_failed),
            str(v.refused_but_ran),
            str(v.refused_and_failed),
            _ratio(v.accuracy),
            _ratio(v.auc),
            str(v.near_n),
            _ratio(v.near_accuracy),
            str(v.failed_below_safe),
        ]
        for p in parts
        if (v := p.verdicts).failed
    ]


def ranking_rows(parts: Sequence[Part]) -> list[list[str]]:
    """One line for each part that has sets to rank."""
    return [
        [
            p.name,
            str(r.sets),
            str(r.plans),
            _ratio(r.kendall_tau),
            _percent(r.top1_regret),
            _percent(r.worst_regret),
            _percent(r.best_in_top),
        ]
        for p in parts
        if (r := p.ranking).sets
    ]


def group_rows(groups: Sequence[RankedGroup]) -> list[list[str]]:
    """One line a task, the largest regret first."""
    return [
        [
            group.case.run.group,
            group.case.model.name,
            str(group.case.cluster.num_gpus),
            str(group.case.plan.global_batch_size),
            str(group.case.model.seq_length),
            str(len(group.rows)),
            _percent(group.top1_regret),
            str(group.predicted_rank_of_best),
            f"{float(group.p_best()[group.first]):.0%}",
        ]
        for group in sorted(groups, key=lambda group: -group.top1_regret)
    ]


def reliability_rows(bins: Sequence[ReliabilityBin]) -> list[list[str]]:
    """One line a bin."""
    return [
        [
            f"{each.low:.0%} - {each.high:.0%}",
            str(each.n),
            _percent(each.mean_said),
            str(each.happened),
            _percent(each.happened / each.n),
            _percent(each.happened_frac),
        ]
        for each in bins
    ]


def _group_document(group: RankedGroup) -> dict[str, Any]:
    case, said = group.case, group.p_best()
    best = int(group.measured_s.argmin())
    return {
        "group": case.run.group,
        "model": case.model.name,
        "accelerator": case.cluster.accelerator.name,
        "num_gpus": case.cluster.num_gpus,
        "global_batch_size": case.plan.global_batch_size,
        "seq_length": case.model.seq_length,
        "precision": case.plan.precision,
        "num_plans": len(group.rows),
        "top1_regret": group.top1_regret,
        "predicted_rank_of_best": group.predicted_rank_of_best,
        "predicted_first": group.rows[group.first].id,
        "best_measured": group.rows[best].id,
        "p_best_of_predicted_first": float(said[group.first]),
        "p_best_of_best_measured": float(said[best]),
    }


def document(validation: Validation) -> dict[str, Any]:
    """All scores as plain numbers; NaN (nothing to score) becomes None."""
    families, mape, median = validation.family_mean(validation.scored)
    groups = ranked_groups(validation.scored)
    return {
        "tables": list(validation.tables),
        "num_rows": len(validation.rows),
        "num_scored": len(validation.scored),
        "num_apart": len(validation.apart),
        "skipped": dict(validation.skipped),
        "overall": _part_document(part("overall", validation.scored)),
        "families": {
            "n": families,
            "step_time_mape": _number(mape),
            "step_time_median": _number(median),
        },
        "groups": _groups(validation, validation.scored),
        "apart": _groups(validation, validation.apart),
        "ranked_groups": [_group_document(group) for group in groups],
        "p_best_reliability": [asdict(each) for each in p_best_reliability(groups)],
    }


def rows_csv(validation: Validation) -> str:
    """Every row of the tables as CSV under :data:`ROW_COLUMNS`."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(ROW_COLUMNS)
    for row in validation.rows:
        writer.writerow(_cells(row))
    return stream.getvalue()


def _cells(row: ScoredRow) -> list[str]:
    if not row.is_scored:
        return [row.id, "skipped", row.reason, *[""] * 7]
    run = row.run
    return [
        row.id,
        "scored",
        row.reason,
        _optional(run.step_time_s),
        f"{row.step_time_s:.6g}",
        _optional(run.peak_memory_bytes),
        f"{row.peak_memory_bytes:.0f}",
        "" if run.oom is None else str(run.oom),
        str(row.predicted_fits),
        f"{row.memory_use_frac:.4f}",
    ]


def _groups(validation: Validation, rows: Sequence[ScoredRow]) -> dict[str, Any]:
    """Documents by group; the parts of a group under its name and scope."""
    groups: dict[str, Any] = {}
    name = ""
    for each in validation.by_group(rows):
        name = name if each.name.startswith(" ") else each.name
        key = f"{name}, {each.name.strip()}" if each.name.startswith(" ") else each.name
        groups[key] = _part_document(each)
    return groups


def _part_document(p: Part) -> dict[str, Any]:
    verdicts = asdict(p.verdicts) | {"n": p.verdicts.n, "accuracy": p.verdicts.accuracy}
    return {
        "rows": p.rows,
        "step_time": _clean(asdict(p.time)),
        "peak_memory": _clean(asdict(p.memory)),
        "oom_verdicts": _clean(verdicts),
        "ranking": _clean(asdict(p.ranking)),
    }


def _clean(values: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _number(value) if isinstance(value, float) else value for key, value in values.items()
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _errors(score: ErrorScore) -> list[str]:
    if not score.n:
        return ["0", "-", "-", "-", "-"]
    signed = f"{100 * score.bias:+.1f}"
    return [str(score.n), _percent(score.mape), _percent(score.median), signed, _percent(score.p90)]


def _percent(value: float) -> str:
    return f"{100 * value:.1f}" if math.isfinite(value) else "-"


def _ratio(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "-"


def _optional(value: float | None) -> str:
    return "" if value is None else f"{value:.12g}"
