"""Sweeps: every row is what a plan of that point is, tables are taken up, nothing is lost."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from parallelsim import sweep as sweeps
from parallelsim.cli import main
from parallelsim.plan import Plan

ARGS = ("sweep", "--model", "gpt2-xl", "--gpus", "4,8", "--seq-length", "512,1k", "--fix", "pp=1")
ONE = ("--processes", "1")


def run(*args: str) -> Result:
    return CliRunner(env={"COLUMNS": "100"}).invoke(main, list(args))


def table_of(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sweep") / "sweep.csv"
    done = run(*ARGS, *ONE, "--output", str(path))
    assert done.exit_code == 0, done.stderr
    assert "scaling" in done.stdout
    assert "\x1b" not in done.stderr
    return path


def test_each_row_is_the_best_plan_of_its_point(swept: Path) -> None:
    rows = table_of(swept)
    assert [(r["num_gpus"], r["seq_length"]) for r in rows] == [
        ("4", "512"), ("8", "512"), ("4", "1024"), ("8", "1024")
    ]  # fmt: skip
    row = rows[3]
    args = ("--gpus", "8", "--seq-length", "1024", "--fix", "pp=1", "--top", "1", "--json")
    best = json.loads(run("plan", "--model", "gpt2-xl", *args).stdout)["plans"][0]
    assert float(row["step_time_s"]) == best["step_time_s"]
    for name in ("tp", "dp", "micro_batch_size", "recompute", "layout"):
        assert row[name] == str(best["plan"][name])
    assert int(row["global_batch_size"]) == best["plan"]["global_batch_size"]


def test_scaling_is_throughput_of_a_gpu_over_the_smallest_cluster(swept: Path) -> None:
    rows = table_of(swept)
    for small, large in (rows[:2], rows[2:]):
        assert float(small["scaling_efficiency"]) == 1
        ratio = float(large["tokens_per_s_per_gpu"]) / float(small["tokens_per_s_per_gpu"])
        assert float(large["scaling_efficiency"]) == pytest.approx(ratio, rel=1e-15)


def test_processes_give_the_same_table_as_one(swept: Path, tmp_path: Path) -> None:
    path = tmp_path / "two.csv"
    done = run(*ARGS, "--processes", "2", "--output", str(path))
    assert done.exit_code == 0, done.stderr
    assert path.read_bytes() == swept.read_bytes()


def test_tokens_give_costs_and_the_front_and_are_no_part_of_the_search(
    swept: Path, tmp_path: Path
) -> None:
    path = tmp_path / "costs.csv"
    path.write_bytes(swept.read_bytes())
    options = ("--tokens", "100B", "--price-per-gpu-hour", "2", "--json", "--output", str(path))
    done = run(*ARGS, *ONE, *options)
    assert "4 of 4 points are in" in done.stderr
    for row, cells in zip(json.loads(done.stdout)["points"], table_of(path), strict=True):
        assert row["dollars"] == pytest.approx(2 * row["gpu_hours"]) == float(cells["dollars"])
        assert row["days"] == pytest.approx(row["gpu_hours"] / row["num_gpus"] / 24)
        assert cells["on_front"] == str(row["on_front"]).lower()
    assert "* no other size" in run(*ARGS, *ONE, "--pareto", "--output", str(path)).stdout


def test_a_table_that_was_begun_is_taken_up(swept: Path, tmp_path: Path) -> None:
    path = tmp_path / "begun.csv"
    lines = swept.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:2] + lines[4:]))
    done = run(*ARGS, *ONE, "--output", str(path), "--json")
    assert "note: 2 of 4 points are in " in done.stderr
    assert path.read_bytes() == swept.read_bytes()
    fresh = run(*ARGS, *ONE, "--json")
    assert json.loads(done.stdout) == json.loads(fresh.stdout)
    wider = run(*ARGS, *ONE, "--output", str(path), "--gpus", "2..8")
    assert "note: 4 of 6 points are in " in wider.stderr
    assert [row["num_gpus"] for row in table_of(path)] == ["2", "4", "8"] * 2
    assert [row["scaling_efficiency"] for row in table_of(path)][::3] == ["1.0", "1.0"]


def test_an_interrupt_keeps_what_was_found(
    swept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search: Callable[..., Any] = sweeps.search_point
    seen = []

    def interrupted(task: Any, point: sweeps.Point) -> Any:
        seen.append(point)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return search(task, point)

    path = tmp_path / "part.csv"
    monkeypatch.setattr(sweeps, "search_point", interrupted)
    done = run(*ARGS, *ONE, "--output", str(path))
    assert done.exit_code == 130
    assert "2 of 4 points are in" in done.stderr
    assert path.read_text().splitlines() == swept.read_text().splitlines()[:3]
    assert run(*ARGS, *ONE, "--output", str(path)).exit_code == 0
    assert len(seen) == 5
    assert path.read_bytes() == swept.read_bytes()


def test_a_point_without_a_safe_plan_says_why(tmp_path: Path) -> None:
    path = tmp_path / "large.csv"
    done = run("sweep", "--model", "llama3-8b", "--gpus", "1,8", "--output", str(path), *ONE)
    assert done.exit_code == 0
    small, large = table_of(path)
    assert small["status"].startswith("no safe plan: rejected by out of memory")
    assert (small["step_time_s"], small["scaling_efficiency"]) == ("", "")
    assert large["scaling_efficiency"] == "1.0"
    assert "1 GPUs, 8192 tokens: no safe plan" in done.stdout
    none = run("sweep", "--model", "llama3-8b", "--gpus", "1", *ONE)
    assert none.exit_code == 3
    assert "no point has a safe plan" in none.stderr


def test_plans_in_the_table_are_whole(swept: Path) -> None:
    for row in table_of(swept):
        fields = {name: row[name] for name in sweeps.PLAN_COLUMNS if name != "chunk_layers"}
        typed = {
            name: value == "true" if value in ("true", "false")
            else int(value) if value.isdigit() else value
            for name, value in fields.items()
        }  # fmt: skip
        plan = Plan.from_dict(typed | {"global_batch_size": int(row["global_batch_size"])})
        assert plan.num_gpus == int(row["num_gpus"])


def test_pictures_are_the_same_every_time(swept: Path, tmp_path: Path) -> None:
    names = ["a.svg", "b.svg", "c.png", "d.html"]
    outputs = [word for name in names for word in ("--output", str(tmp_path / name))]
    done = run(*ARGS, *ONE, "--output", str(swept), *outputs)
    assert done.exit_code == 0, done.stderr
    a, b, png, page = ((tmp_path / name).read_bytes() for name in names)
    assert a == b
    assert a.lstrip().startswith(b"<?xml")
    assert png.startswith(b"\x89PNG")
    assert b"<svg" in page
    again = run(*ARGS, *ONE, "--output", str(tmp_path / "c.png"))
    assert again.exit_code == 1
    assert "exists already" in again.stderr


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("--gpus", "4096..64"), 2, "the range '4096..64' is reversed"),
        (("--gpus", ""), 2, "'' is no whole number from 1"),
        (("--gpus", "0..8"), 2, "'0' is no whole number from 1"),
        (("--gpus", "8,"), 2, "'' is no whole number from 1"),
        (("--gpus", "12"), 1, "nodes"),
        (("--seq-length", "4x"), 2, "'4x' is no number of tokens"),
        (("--seq-length", "8k..4k"), 2, "reversed"),
        (("--seq-length", "1m"), 1, "positions for 1024 tokens"),
        (("--global-batch-size", "0"), 2, "'0' is no whole number from 1"),
        (("--output", "x.txt"), 1, "expected a name that ends in .csv"),
        (("--tokens", "1T", "--deadline-days", "9"), 2, "needs plan --objective fewest-gpus"),
        (("--processes", "0"), 2, "'0' is no whole number from 1"),
    ],
)
def test_bad_axes_are_one_line(args: tuple[str, ...], code: int, message: str) -> None:
    done = run("sweep", "--model", "gpt2-xl", "--gpus", "8", *ONE, *args)
    assert done.exit_code == code
    (error,) = (line for line in done.stderr.splitlines() if "error: " in line)
    assert message in error


def test_another_table_is_left_as_it_is(swept: Path, tmp_path: Path) -> None:
    before = swept.read_bytes()
    other = run(*ARGS, *ONE, "--memory-limit", "0.7", "--output", str(swept))
    assert other.exit_code == 1
    assert "line 2 is of another sweep (options " in other.stderr
    assert swept.read_bytes() == before
    foreign = tmp_path / "mine.csv"
    foreign.write_text("a,b\n1,2\n")
    assert "is no table of this version's sweep" in run(*ARGS, "--output", str(foreign)).stderr
    damaged = tmp_path / "damaged.csv"
    damaged.write_text(swept.read_text().replace(",ok,", ",maybe,", 1))
    assert "line 2 is damaged" in run(*ARGS, "--output", str(damaged)).stderr
    text = swept.read_text()
    for cut, words in ((text[:-5], "is cut off"), (text[:-40] + "\n", "the header's cells")):
        damaged.write_text(cut)
        assert words in run(*ARGS, "--output", str(damaged)).stderr
        assert damaged.read_text() == cut
    replaced = run(*ARGS, *ONE, "--output", str(foreign), "--force")
    assert replaced.exit_code == 0
    assert foreign.read_bytes() == before
