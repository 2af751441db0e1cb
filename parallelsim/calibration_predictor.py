"""Predictions of measured runs under any correction factors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parallelsim.calibration_overlay import Factors, apply_factors
from parallelsim.cluster import ClusterSpec
from parallelsim.costs import CostTable
from parallelsim.framework import FrameworkSpec
from parallelsim.model import ModelSpec
from parallelsim.plan import Plan
from parallelsim.plan_batch import PlanBatch
from parallelsim.scores import grouped
from parallelsim.simulate import screen

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class MeasuredRun:
    """One run with its specifications; what was not measured is None."""

    name: str
    model: ModelSpec
    cluster: ClusterSpec
    framework: FrameworkSpec
    plan: Plan
    step_time_s: float | None
    peak_memory_bytes: float | None


class Predictor:
    """Step times and peaks of runs under any factors, in batches of equal specifications."""

    def __init__(self, runs: Sequence[MeasuredRun]) -> None:
        self.size = len(runs)
        keys = [(id(run.model), id(run.cluster), id(run.framework)) for run in runs]
        self._batches = [
            (runs[int(index[0])], index, PlanBatch.from_plans([runs[int(i)].plan for i in index]))
            for index in grouped(keys).values()
        ]

    def __call__(self, factors: Factors) -> tuple[FloatArray, FloatArray]:
        """(seconds, bytes), shape [P] each."""
        seconds, peak = np.empty(self.size), np.empty(self.size)
        for first, index, plans in self._batches:
            cluster, framework = apply_factors(first.cluster, first.framework, factors)
            table = CostTable(first.model, cluster, framework, plans)
            seconds[index], peak[index] = screen(table, plans)
        return seconds, peak
