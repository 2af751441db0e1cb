"""Calibrating on a few published runs of one source helps on its other runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from parallelsim.calibration_overlay import Factors
from parallelsim.calibration_predictor import MeasuredRun
from parallelsim.validation import validate

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "benchmarks"))

import calibration as benchmark  # noqa: E402

DRAWS = 2


@pytest.fixture(scope="module")
def groups() -> dict[str, list[MeasuredRun]]:
    tables = sorted(str(path) for path in (ROOT / "tests" / "published").glob("*.csv"))
    return benchmark.groups_of(validate(tables).scored)


def test_published_tables_have_sources_enough(groups: dict[str, list[MeasuredRun]]) -> None:
    assert len(groups) >= 8


def test_constants_that_saw_a_source_are_left_alone(groups: dict[str, list[MeasuredRun]]) -> None:
    tally = benchmark.Tally()
    lines = [tally.add(name, runs, DRAWS, 0) for name, runs in groups.items()]
    assert not tally.risen, lines


def test_wrong_constants_are_corrected(groups: dict[str, list[MeasuredRun]]) -> None:
    tally, factors = benchmark.Tally(), benchmark.WRONG["all 1.1 times as fast"]
    lines = [
        tally.add(name, benchmark.assumed(runs, factors), 1, 0) for name, runs in groups.items()
    ]
    assert tally.biased >= len(groups) - 1, lines
    assert tally.improved >= benchmark.MUST_IMPROVE * tally.biased, lines
    assert not tally.risen, lines


def test_no_correction_fails_the_limits(
    groups: dict[str, list[MeasuredRun]], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Kept:
        factors = Factors()

    monkeypatch.setattr(benchmark, "calibrate", lambda runs: Kept)
    tally = benchmark.Tally()
    for name, runs in groups.items():
        wrong = benchmark.assumed(runs, benchmark.WRONG["all 1.3 times as slow"])
        tally.add(name, wrong, 1, 0)
    assert tally.fails
