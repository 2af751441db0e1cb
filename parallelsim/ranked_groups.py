"""Measured plans of one task, against the order in which they were predicted.

A task: the same source, model, sequence length, accelerator, GPUs, global batch and precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from parallelsim.causes import other_frac
from parallelsim.correlation import DRAWS, interval_covariance, joint_draws, p_best
from parallelsim.measured_cases import Case
from parallelsim.scored_row import ScoredRow
from parallelsim.scores import (
    SMALLEST_SET,
    FloatArray,
    ReliabilityBin,
    grouped,
    reliability,
)
from parallelsim.uncertainty import interval_factor, regime_of


@dataclass(frozen=True)
class RankedGroup:
    """The measured plans of one task, ``SMALLEST_SET`` or more, in the order of the table."""

    rows: tuple[ScoredRow, ...]

    @property
    def case(self) -> Case:
        """What all of them have in common, in the case of the first."""
        case = self.rows[0].case
        assert case is not None
        return case

    @property
    def predicted_s(self) -> FloatArray:
        """Step times, shape [P]."""
        return np.array([row.step_time_s for row in self.rows])

    @property
    def measured_s(self) -> FloatArray:
        """Step times, shape [P]."""
        return np.array([row.run.step_time_s or np.nan for row in self.rows])

    @property
    def first(self) -> int:
        """Position of the plan predicted fastest."""
        return int(self.predicted_s.argmin())

    @property
    def top1_regret(self) -> float:
        """Measured time of the plan predicted fastest over the best measured, minus one."""
        measured = self.measured_s
        return float(measured[self.first] / measured.min() - 1)

    @property
    def predicted_rank_of_best(self) -> int:
        """Place, from 1, of the best measured plan in the predicted order."""
        best = self.predicted_s[self.measured_s.argmin()]
        return int((self.predicted_s < best).sum()) + 1

    def p_best(self) -> FloatArray:
        """P(a plan is the fastest of the group) as it was predicted, shape [P]."""
        case = self.case
        regime = regime_of(case.model, case.cluster, case.framework)
        shares = np.array([row.cause_shares for row in self.rows])
        factor = interval_factor(regime, other_frac(shares))
        errors = interval_covariance(shares, factor)
        return p_best(np.log(self.predicted_s) + joint_draws(errors, DRAWS))


def ranked_groups(rows: Sequence[ScoredRow]) -> list[RankedGroup]:
    """The tasks of which enough plans were timed."""
    timed = [row for row in rows if row.case is not None and row.run.step_time_s is not None]
    keys = [_task(row) for row in timed]
    return [
        RankedGroup(tuple(timed[i] for i in index))
        for index in grouped(keys).values()
        if len(index) >= SMALLEST_SET
    ]


def _task(row: ScoredRow) -> tuple[str | int, ...]:
    case = row.case
    assert case is not None
    model, cluster, plan = replace(case.model, name=""), case.cluster, case.plan
    hardware = (cluster.accelerator.name, cluster.num_gpus)
    return (row.group, repr(model), *hardware, plan.global_batch_size, plan.precision)


def p_best_reliability(groups: Sequence[RankedGroup]) -> list[ReliabilityBin]:
    """P(best) of every plan of the groups against whether it was the best measured; weighted so
    that each model of a source counts once: its tasks repeat the same errors.
    """
    if not groups:
        return []
    tasks = grouped([_task(group.rows[0])[:2] for group in groups]).values()
    weight = np.concatenate([np.full(len(index), 1 / len(index)) for index in tasks])
    weight = weight[np.argsort(np.concatenate(list(tasks)))]
    said = np.concatenate([group.p_best() for group in groups])
    measured = [group.measured_s for group in groups]
    happened = np.concatenate([seconds == seconds.min() for seconds in measured])
    return reliability(said, happened, np.repeat(weight, [len(group.rows) for group in groups]))
