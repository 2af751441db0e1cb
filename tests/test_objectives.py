"""Objectives beside the step time: each choice is the best of an exhaustive look."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from parallelsim.search.grid import grid_search
from parallelsim.search.least_memory import least_memory
from parallelsim.search.space import SearchSpace
from parallelsim.search.variants import way

from parallelsim.catalog import load_cluster, load_framework, load_model
from parallelsim.cli import main
from parallelsim.cli_whole_run import token_count
from parallelsim.fit import Task, allowed_sizes
from parallelsim.objectives import choose_size, with_costs, with_goodput
from parallelsim.plan_batch import PlanBatch
from parallelsim.replay import replayed
from parallelsim.rules import obeys_rules
from parallelsim.simulate import simulate
from parallelsim.sweep import Point, search_point
from parallelsim.whole_run import Budget

MODEL = load_model("gpt2-xl")
TASK = Task(MODEL, load_cluster("hgx-h100"), load_framework("megatron-core"), 512, fixed={"pp": 1})
MOST = 48


@pytest.fixture(autouse=True)
def _one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting processes would take most of the time."""
    monkeypatch.setattr("parallelsim.processes.num_cores", lambda: 1)


@pytest.fixture(scope="module")
def rates() -> dict[int, float]:
    """Tokens/s of the best plan at every size, after checkpoints and failures."""
    found = {}
    for size in allowed_sizes(TASK.cluster, 1, MOST):
        row = search_point(TASK, Point(MODEL.seq_length, 512, size))
        if row["tokens_per_s"] is not None:
            found[size] = with_goodput(TASK, Budget(), row)["kept_tokens_per_s"]
    return found


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_the_fewest_gpus_are_the_smallest_size_that_meets_the_deadline(
    rates: dict[int, float], share: float
) -> None:
    tokens, wanted = 1e12, share * max(rates.values())
    budget = Budget(tokens, deadline_days=tokens / wanted / 86400)
    choice = choose_size(TASK, "fewest-gpus", budget, MOST, 1)
    assert choice.best is not None
    assert choice.best["num_gpus"] == min(n for n, rate in rates.items() if rate >= wanted)
    assert budget.is_met(choice.best["kept_tokens_per_s"])


@pytest.mark.parametrize("objective", ["cost", "tokens-per-gpu"])
def test_the_cheapest_size_has_the_most_tokens_of_a_gpu(
    rates: dict[int, float], objective: str
) -> None:
    cheapest = max(rates, key=lambda n: rates[n] / n)
    choice = choose_size(TASK, objective, Budget(), MOST, 1)
    assert choice.best is not None
    assert choice.best["num_gpus"] == cheapest
    slow = Budget(1e12, deadline_days=1e12 / (0.9 * max(rates.values())) / 86400)
    choice = choose_size(TASK, objective, slow, MOST, 1)
    meeting = {n: rate / n for n, rate in rates.items() if slow.is_met(rate)}
    assert choice.best is not None
    assert choice.best["num_gpus"] == max(meeting, key=lambda n: meeting[n])


def test_the_front_is_of_sizes_that_none_beats_in_time_and_gpu_hours(
    rates: dict[int, float],
) -> None:
    rows = [search_point(TASK, Point(MODEL.seq_length, 512, size)) for size in rates]
    budget = Budget(1e12, dollars_per_gpu_hour=2.0)
    on_front = []
    for row in with_costs(TASK, budget, [*rows, search_point(TASK, Point(512, 512, 8))])[:-1]:
        size, rate = row["num_gpus"], rates[row["num_gpus"]]
        beaten = any(r > rate and r / n > rate / size for n, r in rates.items())
        on_front.append(row["on_front"])
        assert row["on_front"] == (not beaten)
        assert row["days"] == pytest.approx(1e12 / rate / 86400)
        assert row["dollars"] == pytest.approx(2 * row["days"] * 24 * size)
    assert set(on_front) == {True, False}


def test_a_budget_is_tokens_over_rate() -> None:
    budget = Budget(tokens=8.64e9, deadline_days=0.5, dollars_per_gpu_hour=3.0)
    assert budget.days(2e5) == pytest.approx(0.5)
    assert budget.gpu_hours(1e5) == pytest.approx(24)
    assert budget.dollars(1e5) == pytest.approx(72)
    assert budget.is_met(2e5)
    assert not budget.is_met(1.9e5)
    assert Budget().days(1.0) is None


@pytest.mark.parametrize("slowdown", [0.02, 0.1, math.inf])
def test_the_least_memory_is_that_of_every_plan_that_is_fast_enough(slowdown: float) -> None:
    cluster = load_cluster("hgx-h100", 8)
    space = SearchSpace(MODEL, cluster, TASK.framework, 64, limits={"micro_batch_size": (1, 2)})
    fastest = grid_search(space, 1).plans
    ranked = least_memory(space, 5, fastest, slowdown)
    plans = PlanBatch.concatenate(list(space.blocks()))
    plans = plans.take(obeys_rules(MODEL, cluster, TASK.framework, plans))
    every = simulate(MODEL, cluster, TASK.framework, plans)
    limit = float(fastest.step_time_s[0]) * (1 + slowdown)
    exact = replayed(every.take((every.zone == 0) & (every.step_time_s < 1.3 * limit)))
    exact = exact.take(exact.step_time_s <= limit)
    of_way: dict[tuple[int, ...], float] = {}
    for i, peak in enumerate(exact.peak_memory_bytes.tolist()):
        key = way(exact.plans, i)
        of_way[key] = min(of_way.get(key, math.inf), peak)
    assert ranked.peak_memory_bytes.tolist() == sorted(of_way.values())[: len(ranked)]
    assert len(ranked) == min(5, len(of_way))
    assert (ranked.step_time_s <= limit).all()


@pytest.mark.parametrize(
    ("text", "tokens"), [("15T", 15e12), ("300b", 3e11), ("1.5e12", 1.5e12), ("2k", 2000)]
)
def test_tokens_are_read(text: str, tokens: float) -> None:
    assert token_count(text) == tokens


@pytest.mark.parametrize("text", ["", "0", "-1T", "T", "1.2.3B", "nan", "1e30", "15 T"])
def test_other_text_is_no_number_of_tokens(text: str) -> None:
    with pytest.raises(click.BadParameter):
        token_count(text)


SMALL = ("plan", "--model", "gpt2-xl", "--fix", "pp=1", "--top", "2")


def run(*args: str) -> Result:
    return CliRunner(env={"COLUMNS": "100"}).invoke(main, list(args))


def answer(*args: str) -> dict[str, Any]:
    done = run(*SMALL, *args, "--json")
    assert done.exit_code == 0, done.stderr
    data = json.loads(done.stdout)
    assert isinstance(data, dict)
    return data


def test_a_deadline_gives_the_size_and_its_plans() -> None:
    args = ("--objective", "fewest-gpus", "--gpus", "8", "--tokens", "100B")
    data = answer(*args, "--deadline-days", "10")
    asked = data["objective"]
    assert data["num_gpus"] < 8
    assert asked["meets_deadline"]
    best = data["plans"][0]
    kept = data["whole_run"]["plans"][0]["goodput"]
    assert 0.9 < kept < 1
    assert asked["days"] == pytest.approx(100e9 / best["tokens_per_s"] / kept / 86400)
    sizes = {size["num_gpus"]: size for size in asked["sizes"]}
    smaller = [size["days"] for n, size in sizes.items() if n < data["num_gpus"]]
    assert smaller
    assert all(days is None or days > 10 for days in smaller)
    late = run(*SMALL, *args, "--deadline-days", "0.1")
    assert late.exit_code == 3
    assert "no size up to 8 GPUs trains all tokens in 0.1 days: the fastest, 8" in late.stderr


def test_tokens_alone_are_priced_with_plan_1() -> None:
    data = answer("--gpus", "8", "--tokens", "1B", "--price-per-gpu-hour", "2")
    hours = 1e9 / data["plans"][0]["tokens_per_s_per_gpu"] / 3600
    hours /= data["whole_run"]["plans"][0]["goodput"]
    assert data["objective"]["gpu_hours"] == pytest.approx(hours)
    assert data["objective"]["dollars"] == pytest.approx(2 * hours)
    assert "sizes" not in data["objective"]
    printed = run(*SMALL, "--gpus", "8", "--tokens", "1B", "--deadline-days", "9").stdout
    assert "1.00 B tokens with plan 1: " in printed
    assert "that meets the deadline of 9 days" in " ".join(printed.split())


def test_memory_ranks_by_memory() -> None:
    done = run(*SMALL, "--gpus", "8", "--objective", "memory")
    assert done.exit_code == 0, done.stderr
    assert "the least memory of all plans at most 10% slower than the" in done.stdout
    wide = ("--gpus", "8", "--objective", "memory", "--max-slowdown", "1")
    peaks = [[p["peak_memory_bytes"] for p in answer(*a)["plans"]] for a in (wide[:4], wide)]
    assert all(ranked == sorted(ranked) for ranked in peaks)
    assert peaks[1][0] < peaks[0][0]
    alone = run(*SMALL, "--gpus", "8", "--max-slowdown", "1")
    assert alone.exit_code == 2
    assert "--max-slowdown belongs to --objective memory" in alone.stderr


def test_a_price_in_the_cluster_file_is_named_with_its_date(tmp_path: Path) -> None:
    source = Path(str(load_cluster.__code__.co_filename)).parent.parent / "clusters/hgx-b300.yaml"
    text = source.read_text().replace("hgx-b300", "mine", 1)
    price = 'price:\n  dollars_per_gpu_hour: 2.5\n  date: "2026-05"\n  source: a price list\n'
    mine = tmp_path / "mine.yaml"
    mine.write_text(text + price)
    cluster = ("--cluster", str(mine), "--gpus", "1", "--tokens", "1B")
    done = run(*SMALL, *cluster, "--objective", "cost")
    assert done.exit_code == 0, done.stderr
    assert "(2.5 $ a GPU-hour, mine as of 2026-05)" in " ".join(done.stdout.split())
    for wrong, message in (
        (price.replace("  source: a price list\n", ""), "price.source: this key is missing"),
        (price.replace("2026-05", "2026-13"), "price.date: "),
        (price.replace("2.5", "-2.5"), "price.dollars_per_gpu_hour: "),
    ):
        mine.write_text(text + wrong)
        done = run(*SMALL, *cluster)
        assert done.exit_code == 1
        (error,) = done.stderr.splitlines()
        assert message in error


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (
            ("--objective", "cost", "--tokens", "1B", "--cluster", "hgx-b300"),
            1,
            "states no price; give --price-per-gpu-hour",
        ),
        (("--objective", "cost"), 2, "--objective cost needs --tokens"),
        (("--objective", "fewest-gpus", "--tokens", "1B"), 2, "needs --deadline-days"),
        (("--deadline-days", "10"), 2, "--deadline-days needs --tokens"),
        (("--price-per-gpu-hour", "3"), 2, "--price-per-gpu-hour needs --tokens"),
        (("--tokens", "0"), 2, "'0' is no number of tokens"),
        (("--tokens", "1B", "--deadline-days", "0"), 2, "'0' is no number from 0.001"),
        (("--objective", "luck"), 2, "'luck' is not one of"),
        (
            ("--objective", "tokens-per-gpu", "--compare-with", "run.sh"),
            2,
            "chooses the number of GPUs",
        ),
    ],
)
def test_bad_objectives_are_one_line(args: tuple[str, ...], code: int, message: str) -> None:
    done = run(*SMALL, "--gpus", "8", *args)
    assert done.exit_code == code
    (error,) = (line for line in done.stderr.splitlines() if "error: " in line)
    assert message in error
