"""benchmarks/refit.py: planted constants are found, and a left-out source never enters its fit."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from parallelsim import compute, sublayer_seconds
from parallelsim.scored_row import ScoredRow
from parallelsim.validation import validate

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "benchmarks"))

import refit  # noqa: E402
from refit_constants import CONSTANTS  # noqa: E402
from refit_fit import most_probable  # noqa: E402
from refit_model import patched  # noqa: E402
from refit_page import page, resolved  # noqa: E402

FEW = ("sustained efficiency", "memory-bound efficiency", "bandwidth of plain streaming kernels")
TABLES = ("narayanan_2021", "korthikanti_2022", "simumax_2025")


@pytest.fixture(scope="module")
def rows() -> tuple[ScoredRow, ...]:
    return validate([str(ROOT / f"tests/published/{name}.csv") for name in TABLES]).scored[::2]


@pytest.fixture(scope="module")
def table(rows: tuple[ScoredRow, ...]) -> refit.Table:
    return refit.table_of(rows, [c for c in CONSTANTS if c.name in FEW])


def index_of(table: refit.Table, name: str) -> int:
    return next(i for i, c in enumerate(table.predictor.constants) if c.name == name)


def test_planted_constants_are_recovered(table: refit.Table) -> None:
    predictor = table.predictor
    planted = np.resize([-1.5, -0.5], len(predictor.parameters))
    measured = predictor.step_times(planted)
    found = most_probable(predictor, measured, [str(i) for i in range(predictor.size)])
    before = np.abs(np.log(predictor.step_times(np.zeros_like(planted)) / measured))
    after = np.abs(np.log(predictor.step_times(found.z) / measured))
    assert before.mean() > 0.03
    assert after.mean() < 0.01
    sustained = index_of(table, "sustained efficiency")
    for accelerator, architecture in (("a100-80gb-sxm", "ampere"), ("b200-180gb-sxm", "blackwell")):
        kind = {"accelerator": accelerator, "architecture": architecture}
        true = predictor.value(sustained, planted, kind)
        assert predictor.value(sustained, found.z, kind) == pytest.approx(true, rel=0.03)


def test_a_wild_run_moves_nothing_far(table: refit.Table) -> None:
    predictor = table.predictor
    planted = np.full(len(predictor.parameters), 0.5)
    measured = predictor.step_times(planted)
    good = most_probable(predictor, measured, table.groups)
    measured[0] *= 5
    pulled = most_probable(predictor, measured, table.groups)
    moved = predictor.step_times(pulled.z) / predictor.step_times(good.z)
    assert np.abs(moved - 1).max() < 0.02  # of the 500 % that the run is wrong


def test_without_evidence_a_constant_keeps_its_prior(table: refit.Table) -> None:
    predictor = table.predictor
    held = table.members(["simumax"])
    start = most_probable(
        predictor.only(~held), table.measured[~held], [g for g in table.groups if g != "simumax"]
    )
    of_blackwell = [p for p, q in enumerate(predictor.parameters) if q.value == "blackwell"]
    assert len(of_blackwell) == 1
    assert start.z[of_blackwell] == pytest.approx(0, abs=1e-12)
    assert start.covariance[of_blackwell[0], of_blackwell[0]] == pytest.approx(1)


def test_the_left_out_source_never_enters_its_fit(table: refit.Table) -> None:
    wrong = table.measured.copy()
    held = table.members(["korthi"])
    wrong[held] *= 1.7
    true, changed = refit.study(table), refit.study(replace(table, measured=wrong))
    np.testing.assert_array_equal(true.left_out[held], changed.left_out[held])
    np.testing.assert_array_equal(true.related_left_out[held], changed.related_left_out[held])
    assert np.abs(changed.left_out / true.left_out - 1)[table.members(["sc21"])].max() > 0.01
    assert np.abs(changed.fitted / true.fitted - 1)[held].max() > 0.01
    assert np.isfinite(true.left_out).all()
    text, document = page(true)
    assert document["families"]["korthi"]["rows"] == int(held.sum())
    assert f"**{document['mean_over_families']['left_out']['mape']:.1f} %**" in text


def test_at_the_catalogues_value_the_predictions_are_the_catalogues(
    rows: tuple[ScoredRow, ...],
) -> None:
    """And a tenth more changes them: paths and units are right."""
    moved = []
    for constant in CONSTANTS:
        table = refit.table_of(rows, [replace(constant, varies=())])
        found = resolved(table.predictor, np.zeros(1), np.eye(1), {})
        if len(constant.paths) > 1 or not found:
            continue
        for factor in (1.0, 0.9):
            prior = factor * found[0].today
            there = refit.table_of(rows, [replace(constant, varies=(), prior=prior)])
            batch = next(b for b in there.predictor.batches if b.constants or constant.is_global)
            seconds = there.predictor.step_times(np.zeros(1))[batch.rows]
            if factor == 1.0:
                np.testing.assert_allclose(seconds, there.today[batch.rows], rtol=1e-9)
            elif np.abs(seconds / there.today[batch.rows] - 1).max() > 1e-6:
                moved.append(constant.name)
    assert {"sustained efficiency", "memory-bound efficiency", "seconds of a step"} <= set(moved)


def test_numbers_of_the_equations_are_patched_where_they_are_used_and_restored() -> None:
    before = compute.STREAM_EFFICIENCY
    with patched({"parallelsim.compute:STREAM_EFFICIENCY": 0.5}):
        assert compute.STREAM_EFFICIENCY == sublayer_seconds.STREAM_EFFICIENCY == 0.5
    assert compute.STREAM_EFFICIENCY == sublayer_seconds.STREAM_EFFICIENCY == before


def test_fitted_runs_are_spread_over_the_rows_of_a_source() -> None:
    mask = refit.spread(["a"] * 10 + ["b"] * 3, largest=5)
    assert mask.tolist() == [True, False] * 5 + [True] * 3
