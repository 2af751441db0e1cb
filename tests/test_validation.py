"""Scores of predictions against measurements, and the command that prints them."""

from __future__ import annotations

import csv
import json
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from test_measurements import write_table

from parallelsim.cli import main
from parallelsim.errors import SpecError
from parallelsim.framework import FrameworkSpec
from parallelsim.plan import Plan
from parallelsim.report.accuracy import ROW_COLUMNS, document, rows_csv
from parallelsim.scores import (
    area_under_curve,
    error_score,
    kendall_tau,
    ranking_score,
    verdict_score,
)
from parallelsim.validation import validate

PLANS = [
    {"id": f"tp{tp}-mb{mb}", "tp": str(tp), "dp": str(16 // tp), "micro_batch_size": str(mb)}
    for tp in (2, 4, 8)
    for mb in (1, 2)
]
"""Six plans of one task."""


def invoke(*args: str | Path) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


def test_errors_of_known_numbers() -> None:
    score = error_score([1.1, 0.8, 1.0], [1.0, 1.0, 1.0])
    assert score.n == 3
    assert score.mape == pytest.approx(0.1)
    assert score.median == pytest.approx(0.1)
    assert score.bias == pytest.approx(-0.1 / 3)
    assert score.p90 == pytest.approx(0.18)


def test_nothing_to_score_is_nan_and_no_warning() -> None:
    assert np.isnan(error_score([], []).mape)
    assert np.isnan(verdict_score([], []).accuracy)
    assert np.isnan(ranking_score([]).kendall_tau)


def test_verdicts_count_all_four_cells() -> None:
    score = verdict_score([0.5, 0.7, 0.85, 0.95, 1.1, 2.0], [False, True, False, False, True, True])
    assert (score.fits_and_ran, score.fits_but_failed) == (2, 1)
    assert (score.refused_but_ran, score.refused_and_failed) == (1, 2)
    assert score.accuracy == pytest.approx(4 / 6)
    assert (score.near_n, score.near_accuracy) == (3, pytest.approx(2 / 3))
    assert (score.failed_below_safe, score.failed_below_safe_share) == (1, pytest.approx(1 / 3))


def test_the_limit_itself_still_fits() -> None:
    assert verdict_score([0.90], [False]).fits_and_ran == 1


def test_area_under_curve_counts_pairs_and_halves_ties() -> None:
    score, failed = np.array([1.0, 2.0, 2.0, 3.0, 0.5]), np.array([False, True, False, True, True])
    pairs = [(a > b) + (a == b) / 2 for a in score[failed] for b in score[~failed]]
    assert area_under_curve(score, failed) == pytest.approx(sum(pairs) / len(pairs))
    assert np.isnan(area_under_curve(score, np.ones(5, np.bool_)))


@pytest.mark.parametrize("seed", range(5))
def test_kendall_tau_b_equals_the_count_of_pairs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 6, 12).astype(float), rng.integers(0, 6, 12).astype(float)
    pairs = [(np.sign(x[i] - x[j]), np.sign(y[i] - y[j])) for i, j in combinations(range(12), 2)]
    total = sum(a * b for a, b in pairs)
    scale = np.sqrt(sum(a != 0 for a, _ in pairs) * sum(b != 0 for _, b in pairs))
    assert kendall_tau(x, y) == pytest.approx(total / scale)


def test_ranking_of_a_perfect_and_a_reversed_order() -> None:
    measured = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    perfect = ranking_score([(measured, measured)])
    assert (perfect.kendall_tau, perfect.top1_regret, perfect.best_in_top) == (1.0, 0.0, 1.0)
    reverse = ranking_score([(-measured, measured)])
    assert (reverse.kendall_tau, reverse.top1_regret, reverse.best_in_top) == (-1.0, 5.0, 0.0)


def test_rows_are_predicted_as_they_would_be_alone(tmp_path: Path) -> None:
    table = write_table(tmp_path / "t.csv", *PLANS, {"id": "other", "num_layers": "40", "vpp": "1"})
    together = {row.id: row.step_time_s for row in validate([table]).rows}
    for plan in PLANS[:3]:
        alone = validate([write_table(tmp_path / "one.csv", plan)])
        assert alone.rows[0].step_time_s == together[plan["id"]]


def test_flags_keep_rows_out_or_apart(tmp_path: Path) -> None:
    table = write_table(
        tmp_path / "t.csv",
        {"id": "a"},
        {"id": "b", "flag": "drop: broken"},
        {"id": "c", "flag": "apart: odd"},
    )
    validation = validate([table])
    assert [row.id for row in validation.scored] == ["a"]
    assert [row.id for row in validation.apart] == ["c"]
    assert validation.skipped == {"drop: broken": 1}


def test_a_row_that_ran_out_of_memory_gets_a_verdict(tmp_path: Path) -> None:
    table = write_table(
        tmp_path / "t.csv", {"step_time_s": "", "oom": "True", "micro_batch_size": "8"}
    )
    (row,) = validate([table]).scored
    assert not row.predicted_fits
    assert row.memory_use_frac > 0.9


def test_a_row_with_nothing_measured_is_skipped(tmp_path: Path) -> None:
    validation = validate([write_table(tmp_path / "t.csv", {"step_time_s": ""})])
    assert validation.skipped == {"no step time, memory or failure measured": 1}


def test_a_plan_that_the_software_cannot_run_is_skipped(tmp_path: Path) -> None:
    validation = validate([write_table(tmp_path / "t.csv", {"framework": "nanotron"})])
    (why,) = validation.skipped
    assert why == (
        "cannot run: nanotron does not run the schedule interleaved-1f1b; it has none, 1f1b, gpipe"
    )


def test_unstated_recompute_is_the_lightest_that_fits(tmp_path: Path) -> None:
    changes = {
        "framework": "megatron-lm-2022",
        "recompute": "",
        "flash_attention": "",
        "gpu": "a100-80gb-sxm",
    }
    small = {"id": "small", "num_layers": "20", "vpp": "1", "seq_length": "1024"}
    validation = validate([write_table(tmp_path / "t.csv", changes, {**changes, **small})])
    large_row, small_row = validation.scored
    assert "recompute=none" not in large_row.reason
    assert "recompute=" in large_row.reason
    assert "recompute=none" in small_row.reason


def test_milliseconds_are_suspected(tmp_path: Path) -> None:
    table = write_table(tmp_path / "t.csv", *({**plan, "step_time_s": "11000"} for plan in PLANS))
    with pytest.raises(SpecError, match="are these milliseconds"):
        validate([table])


def _own_predictions(tmp_path: Path) -> dict[str, float]:
    rows = validate([write_table(tmp_path / "own.csv", *PLANS)]).rows
    return {row.id: row.step_time_s for row in rows}


def test_minutes_are_suspected(tmp_path: Path) -> None:
    own = _own_predictions(tmp_path)
    rows = [{**plan, "step_time_s": str(own[plan["id"]] / 60)} for plan in PLANS]
    with pytest.raises(SpecError, match="are these minutes"):
        validate([write_table(tmp_path / "t.csv", *rows)])


@pytest.mark.parametrize("num_gpus", [1, 64])
def test_the_throughput_of_all_gpus_is_suspected(tmp_path: Path, num_gpus: int) -> None:
    own = _own_predictions(tmp_path)
    rows = []
    for plan in PLANS:
        rate = 128 * 8192 / own[plan["id"]] / 64
        rows.append({**plan, "step_time_s": "", "tokens_per_s_per_gpu": str(rate * num_gpus)})
    table = write_table(tmp_path / "t.csv", *rows)
    if num_gpus == 1:
        assert len(validate([table]).scored) == len(PLANS)
        return
    with pytest.raises(SpecError, match="the throughput of all GPUs"):
        validate([table])


def test_megabytes_are_suspected(tmp_path: Path) -> None:
    table = write_table(
        tmp_path / "t.csv", *({**plan, "peak_memory_gb": "61000"} for plan in PLANS)
    )
    with pytest.raises(SpecError, match="are these MB"):
        validate([table])


def test_another_framework_replaces_the_rows_own(tmp_path: Path) -> None:
    table = write_table(tmp_path / "t.csv", {"framework": "no-such-thing"})
    assert validate([table], "megatron-core").scored[0].run.id == "a"


def test_plans_of_one_task_are_ranked(tmp_path: Path) -> None:
    table = write_table(tmp_path / "t.csv", *PLANS)
    ranking = document(validate([table]))["overall"]["ranking"]
    assert (ranking["sets"], ranking["plans"]) == (1, 6)
    apart = write_table(
        tmp_path / "u.csv",
        *({**p, "global_batch_size": str(128 << i)} for i, p in enumerate(PLANS)),
    )
    assert document(validate([apart]))["overall"]["ranking"]["sets"] == 0


def test_rows_file_holds_every_row_in_order(tmp_path: Path) -> None:
    table = write_table(
        tmp_path / "t.csv",
        {"id": "a", "peak_memory_gb": "60"},
        {"id": "b", "flag": "drop: x"},
        {"id": "c"},
    )
    rows = list(csv.DictReader(rows_csv(validate([table])).splitlines()))
    assert tuple(rows[0]) == ROW_COLUMNS
    assert [(row["id"], row["status"]) for row in rows] == [
        ("a", "scored"),
        ("b", "skipped"),
        ("c", "scored"),
    ]
    assert float(rows[0]["measured_peak_memory_bytes"]) == 60e9
    assert float(rows[0]["measured_step_time_s"]) == 10
    assert float(rows[0]["predicted_step_time_s"]) > 0
    assert rows[0]["predicted_fits"] == str(float(rows[0]["memory_use_frac"]) <= 0.9)
    assert rows[1]["predicted_step_time_s"] == ""
    assert rows[1]["reason"] == "drop: x"
    assert rows[2]["measured_peak_memory_bytes"] == ""
    assert rows[2]["measured_oom"] == "False"


def test_json_and_tables_tell_the_same(tmp_path: Path) -> None:
    table = write_table(tmp_path / "t.csv", *PLANS, {"id": "moe", "num_experts": "8"})
    answer: dict[str, Any] = json.loads(invoke("validate", table, "--json").stdout)
    assert (answer["num_rows"], answer["num_scored"], answer["num_apart"]) == (7, 6, 0)
    assert answer["skipped"] == {"moe_top_k is not stated": 1}
    shown = invoke("validate", table).stdout
    assert "7 rows: 6 scored, 0 apart, 1 skipped" in shown
    assert f"{100 * answer['groups']['mine']['step_time']['mape']:.1f}" in shown


def test_json_has_no_nan(tmp_path: Path) -> None:
    table = write_table(tmp_path / "t.csv", {})
    assert "NaN" not in invoke("validate", table, "--json").stdout


def test_rows_are_not_overwritten_unasked(tmp_path: Path) -> None:
    table, out = write_table(tmp_path / "t.csv", {}), tmp_path / "out.csv"
    assert invoke("validate", table, "--rows", out).exit_code == 0
    refused = invoke("validate", table, "--rows", out)
    assert refused.exit_code == 1
    assert "--force" in refused.output
    assert invoke("validate", table, "--rows", out, "--force").exit_code == 0


def test_a_table_without_a_scorable_row_fails_and_says_why(tmp_path: Path) -> None:
    table, out = write_table(tmp_path / "t.csv", {"num_experts": "8"}), tmp_path / "rows.csv"
    result = invoke("validate", table, "--rows", out)
    assert result.exit_code == 1
    assert "0 scored" in result.stdout
    assert result.stderr.startswith("parallelsim: error: no row could be scored; the first, ")
    assert result.stderr.count("\n") == 1
    assert "moe_top_k is not stated" in out.read_text(encoding="utf-8")
    assert invoke("validate", table, "--json").exit_code == 1


def test_a_header_alone_is_an_error(tmp_path: Path) -> None:
    result = invoke("validate", write_table(tmp_path / "t.csv"))
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "a header without rows" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("content", [b"", b"\x00\x01", b"id\n1\n"])
def test_bad_tables_are_one_line_and_exit_1(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    result = invoke("validate", path)
    assert result.exit_code == 1
    assert result.output.startswith("parallelsim: error: ")
    assert result.output.count("\n") == 1


def test_unknown_framework_is_an_error_with_the_nearest(tmp_path: Path) -> None:
    result = invoke("validate", write_table(tmp_path / "t.csv", {}), "--framework", "megatron-cor")
    assert result.exit_code == 1
    assert "megatron-core" in result.output


def test_no_group_of_the_tables_is_known_to_the_package() -> None:
    """Predictions follow from a row's facts: the package must not contain the names of sources'
    groups."""
    import parallelsim

    groups = (
        "korthi",
        "hagemann",
        "hfultra",
        "vocabpp",
        "dlperf",
        "simumax",
        "dgxc-",
        "megatron-kwai",
    )
    root = Path(parallelsim.__file__).parent
    for path in (
        *root.glob("measure*.py"),
        *root.glob("run_defaults.py"),
        *root.glob("validation.py"),
    ):
        text = path.read_text().lower()
        assert not [name for name in groups if name in text], path.name


def test_frameworks_and_plans_stay_what_the_scores_assume() -> None:
    """A variant of a framework replaces fields by name: they must exist."""
    assert {"compute", "memory"} <= set(FrameworkSpec.__dataclass_fields__)
    assert {"zero", "precision", "recompute_num_layers"} <= set(Plan.__dataclass_fields__)
