"""Runs that lose nodes: the plans for what is left, and when switching to them pays."""

from __future__ import annotations

import json
import math

import click.testing
import pytest

from parallelsim.catalog import load_cluster, load_framework, load_model
from parallelsim.cli import main
from parallelsim.elastic import Elastic, elastic, pays_after, sizes_left
from parallelsim.fit import Task
from parallelsim.sweep import Point, Row, search_point
from parallelsim.whole_run import Budget, Faults

MODEL = load_model("gpt2-xl")
TASK = Task(MODEL, load_cluster("hgx-h100"), load_framework("megatron-core"), 60, fixed={"pp": 1})
BUDGET = Budget(faults=Faults(restart_s=300.0, storage_bytes_per_s_per_node=1e9))


@pytest.fixture(scope="module")
def rows() -> dict[int, Row]:
    """The best plan of every size, each searched alone."""
    return {n: search_point(TASK, Point(MODEL.seq_length, 60, n)) for n in range(32, 65, 8)}


@pytest.fixture(scope="module")
def found() -> Elastic:
    answer = elastic(TASK, 64, BUDGET)
    assert answer
    return answer


def test_each_size_uses_the_fastest_plan_that_is_left(rows: dict[int, Row], found: Elastic) -> None:
    assert found.full["step_time_s"] == rows[64]["step_time_s"]
    assert [size.num_gpus for size in found.sizes] == [56, 48, 40, 32]
    assert any(row["step_time_s"] is None for row in rows.values())  # 7 does not divide the batch
    for size in found.sizes:
        left = [row for n, row in rows.items() if n <= size.num_gpus and row["step_time_s"]]
        assert size.used
        assert size.used["tokens_per_s"] == max(row["tokens_per_s"] for row in left)
        assert size.used["global_batch_size"] == 60


def test_switching_pays_where_it_makes_more_progress(found: Elastic) -> None:
    for size in found.sizes:
        assert size.used
        full, rate = found.full["kept_tokens_per_s"], size.used["kept_tokens_per_s"]
        for repair, better in ((0.99 * size.pays_after_s, False), (1.01 * size.pays_after_s, True)):
            end = repair + size.back_s + found.restart_s + 3600.0
            waited = full * (end - repair - found.restart_s)
            switched = rate * (repair - size.switch_s) + full * 3600.0
            assert (switched > waited) == better
    assert pays_after(600.0, 30.0, 2.0, 1.0) == 660.0
    assert math.isinf(pays_after(600.0, 30.0, 2.0, 0.0))


def test_many_sizes_are_thinned_to_small_losses() -> None:
    sizes = sizes_left(load_cluster("hgx-h100", 1024), 1024)
    assert sizes[:17] == list(range(1024, 1024 - 17 * 8, -8))
    assert sizes[-1] == 512
    assert len(sizes) < 33
    assert sizes_left(load_cluster("hgx-h100", 8), 8) == [8, 4]
    assert sizes_left(load_cluster("gb200-nvl72", 16), 16) == [16, 12, 8]


def run(*args: str) -> click.testing.Result:
    runner = click.testing.CliRunner(env={"COLUMNS": "100"})
    return runner.invoke(main, ["elastic", "--model", "gpt2-xl", *args])


@pytest.fixture(autouse=True)
def _one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting processes would take most of the time."""
    monkeypatch.setattr("parallelsim.cli_elastic.num_cores", lambda: 1)


SMALL = ("--gpus", "32", "--fix", "pp=1", "-b", "60")


def test_the_program_says_when_to_switch() -> None:
    done = run(*SMALL, "--restart-minutes", "5")
    assert done.exit_code == 0, done.stderr
    words = " ".join(done.stdout.split())
    assert "gpt2-xl on 32 x h100-80gb-sxm" in words
    assert "pays after: switch where the repair is expected to take longer, else wait." in words
    data = json.loads(run(*SMALL, "--restart-minutes", "5", "--json").stdout)
    assert data["restart_s"] > 300
    assert [size["num_gpus"] for size in data["sizes"]] == [24, 16]
    assert all(size["pays_after_s"] > size["switch_s"] for size in data["sizes"])


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        ((), 2, "Missing option '--gpus'"),
        (("--gpus", "12"), 1, "use whole nodes"),
        (("--gpus", "8", "--mtbf-gpu-hours", "0"), 2, "'0' is no number from 1"),
        (("--gpus", "8", "--fix", "pp=1", "--memory-limit", "0.01"), 3, "no plan on 8 GPUs"),
    ],
)
def test_bad_runs_are_one_line(args: tuple[str, ...], code: int, message: str) -> None:
    done = run(*args)
    assert done.exit_code == code, done.output
    (error,) = (line for line in done.stderr.splitlines() if "error: " in line)
    assert message in error
