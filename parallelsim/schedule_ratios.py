"""Ratios between pipeline schedules on the same case: predicted against measured.

A planner that compares schedules needs their ratios; what all of them share (kernels, network)
cancels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from parallelsim.scored_row import ScoredRow
from parallelsim.scores import grouped

REFERENCE = "1f1b"


@dataclass(frozen=True)
class ScheduleRatio:
    """Step time of a run over that of the same case under another schedule."""

    id: str
    group: str
    schedule: str
    reference: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Relative error of the predicted ratio."""
        return self.predicted / self.measured - 1


def schedule_ratios(rows: Sequence[ScoredRow]) -> list[ScheduleRatio]:
    """The ratio of every timed run to the 1F1B run of its case, or to the case's first other run.

    A case: all but the schedule, virtual stages and layout are the same, the model's layers too.
    """
    timed = [row for row in rows if row.case is not None and row.run.step_time_s]
    ratios = []
    for members in grouped([_case(row) for row in timed]).values():
        found = [timed[i] for i in members]
        base = next((row for row in found if _schedule(row) == REFERENCE), found[0])
        for row in found:
            if _schedule(row) != _schedule(base):
                ratios.append(
                    ScheduleRatio(
                        row.id,
                        row.group,
                        _schedule(row),
                        _schedule(base),
                        row.step_time_s / base.step_time_s,
                        (row.run.step_time_s or 0.0) / (base.run.step_time_s or 1.0),
                    )
                )
    return ratios


def _schedule(row: ScoredRow) -> str:
    assert row.case is not None
    return row.case.plan.schedule


def _case(row: ScoredRow) -> tuple[str, ...]:
    case = row.case
    assert case is not None
    plan = replace(
        case.plan, schedule="none", vpp=1, layout="even", first_stage_layers=0, last_stage_layers=0
    )
    names = (case.framework.name, case.cluster.name, str(case.cluster.num_gpus))
    split = case.run.facts.text("layer_split")
    return (row.group, repr(replace(case.model, name="")), *names, repr(plan), split)
