"""Intervals of the step time and P(fits): the packaged numbers, and how they are fitted."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from parallelsim import Plan, load_cluster, load_framework, load_model, simulate
from parallelsim.cli import main
from parallelsim.cluster import ClusterSpec
from parallelsim.framework import FrameworkSpec
from parallelsim.residuals import (
    Residuals,
    departure,
    falling,
    fit,
    fits_table,
    interval_score,
    least_score_factor,
    least_score_scale,
    residuals,
    source_quantile,
    source_weight,
)
from parallelsim.scored_row import ScoredRow
from parallelsim.simulate import Simulation
from parallelsim.uncertainty import (
    REGIMES,
    Regime,
    fits_probability,
    interval_factor,
    regime_of,
    residual_table,
    student_quantile,
)
from parallelsim.validation import validate

TABLES = sorted((Path(__file__).parent / "published").glob("*.csv"))
PLAN_ARGUMENTS = ("--model", "llama3-8b", "--gpus", "8", "--tp", "4")


@pytest.fixture(scope="module")
def published() -> list[ScoredRow]:
    return list(validate([str(table) for table in TABLES]).scored)


@pytest.fixture
def simulation() -> Simulation:
    plans = [Plan(tp=tp, dp=16 // tp, global_batch_size=64) for tp in (1, 2, 4, 8)]
    cluster = load_cluster("hgx-h100", num_gpus=16)
    return simulate(load_model("llama3-8b"), cluster, load_framework("megatron-core"), plans)


def made_up(num_sources: int, spread: float = 0.1) -> Residuals:
    """Sources of different size and bias, all in the regime that is known best."""
    generator = np.random.default_rng(0)
    sizes = generator.integers(2, 60, num_sources)
    source = np.repeat([f"s{i}" for i in range(num_sources)], sizes)
    bias = np.repeat(generator.normal(0, spread, num_sources), sizes)
    ones = np.ones(len(source), np.bool_)
    noise = generator.normal(0, spread, len(source))
    return Residuals(source, ones, ones, ones, ~ones, bias + noise, np.zeros(len(source)))


def test_interval_is_around_the_step_time_and_in_the_row(simulation: Simulation) -> None:
    assert (simulation.step_time_low_s < simulation.step_time_s).all()
    assert (simulation.step_time_high_s > simulation.step_time_s).all()
    row = simulation.row(1)
    assert row["step_time_low_s"] == float(simulation.step_time_low_s[1])
    assert row["step_time_high_s"] == float(simulation.step_time_high_s[1])
    assert row["regime"] == "measured accelerator, calibrated framework, several nodes"
    part = simulation.take([2])
    assert part.step_time_high_s[0] == simulation.step_time_high_s[2]


def test_less_knowledge_is_a_wider_interval() -> None:
    nothing = np.zeros(1)
    for regime in REGIMES:
        factor = interval_factor(regime, nothing)
        for name in ("measured", "calibrated"):
            if getattr(regime, name):
                assert interval_factor(replace(regime, **{name: False}), nothing) > factor


def test_communication_widens_the_interval(simulation: Simulation) -> None:
    shares = np.linspace(0, 1, 11)
    assert (np.diff(interval_factor(REGIMES[0], shares)) > 0).all()
    factors = simulation.step_time_high_s / simulation.step_time_s
    assert factors[3] > factors[0]


def test_regime_follows_accelerator_framework_and_domain() -> None:
    cluster, framework = load_cluster("hgx-h100", num_gpus=8), load_framework("megatron-core")
    model = load_model("llama3-8b")
    assert regime_of(model, cluster, framework) == Regime(True, True, False)
    assert regime_of(model, cluster.with_num_gpus(16), framework) == Regime(True, True, True)
    mixture = regime_of(load_model("mixtral-8x7b"), cluster, framework)
    assert mixture == Regime(True, True, False, experts=True)
    unchecked = replace(framework, calibrated=False)
    assert regime_of(model, cluster, unchecked) == Regime(True, False, False)
    assert not regime_of(model, load_cluster("mi300x", num_gpus=8), framework).measured
    in_one_domain = load_cluster("gb200-nvl72", num_gpus=64)
    assert not regime_of(model, in_one_domain, framework).several_nodes


def test_intervals_hold_published_runs(published: list[ScoredRow]) -> None:
    """Sources weigh equally; the strict test, each source left out, is benchmarks/accuracy.py."""
    data, table = residuals(published), residual_table()
    assert len(data) >= 200
    held = np.zeros(len(data), np.bool_)
    for regime in REGIMES:
        rows = data.of(regime)
        bound = np.log(interval_factor(regime, data.other_frac[rows]))
        held[rows] = np.abs(data.log_ratio[rows]) <= bound
    assert 0.70 <= np.mean([held[data.source == name].mean() for name in set(data.source)]) < 0.98
    assert table.other_factor >= 0


def test_source_quantile_weighs_sources_equally() -> None:
    values = np.array([0.1] * 1000 + [0.2] + [0.3] + [0.4])
    source = np.array(["many"] * 1000 + ["a", "b", "c"])
    assert source_quantile(values, source, 0.5) == pytest.approx(0.3)
    assert source_quantile(values, source, 0.8) == pytest.approx(0.4)


def test_source_quantile_is_infinite_for_too_few_sources() -> None:
    assert source_quantile(np.array([0.1, 0.2, 0.3]), np.array(["a", "b", "c"])) == np.inf


def test_source_quantile_covers_new_sources() -> None:
    data = made_up(400)
    sizes = np.abs(data.log_ratio)
    first = np.array([int(name[1:]) < 200 for name in data.source])
    bound = source_quantile(sizes[first], data.source[first])
    assert np.mean(sizes[~first] <= bound) == pytest.approx(0.80, abs=0.04)


def test_regime_of_few_sources_borrows_and_is_wider() -> None:
    data, few = made_up(12), made_up(2, spread=0.3)
    none = np.zeros(len(few), np.bool_)
    names = np.char.add("other-", few.source)
    few = replace(few, source=names, measured=none)
    fields = [field.name for field in dataclasses.fields(Residuals)]
    both = Residuals(*(np.concatenate([getattr(x, f) for x in (data, few)]) for f in fields))
    everywhere = replace(both, several_nodes=~both.several_nodes)
    whole = Residuals(
        *(np.concatenate([getattr(x, f) for x in (both, everywhere)]) for f in fields)
    )
    exchanged = replace(made_up(12, spread=0.2))
    exchanged = Residuals(
        *(np.concatenate([getattr(exchanged, f), getattr(exchanged, f)]) for f in fields)
    )
    half = np.arange(len(exchanged)) < len(exchanged) // 2
    widths = fit(whole, replace(exchanged, several_nodes=half)).widths
    known = widths[Regime(True, True, True)]
    unmeasured = widths[Regime(False, True, True)]
    unchecked = widths[Regime(True, False, True)]
    assert known.basis == "all rows"
    assert unmeasured.half_width > known.half_width
    assert unchecked.half_width > known.half_width
    assert widths[Regime(False, False, True)].half_width > unmeasured.half_width
    assert (unmeasured.sources, unchecked.sources) == (2, 0)


def test_least_score_factor_is_the_one_that_made_the_residuals() -> None:
    data = made_up(300)
    other = np.random.default_rng(1).uniform(0, 1, len(data))
    noise = np.random.default_rng(2).normal(0, 0.05 * np.sqrt(1 + (4 * other) ** 2))
    factor, scale = least_score_factor(replace(data, other_frac=other, log_ratio=noise))
    assert factor == pytest.approx(4, abs=0.5)
    assert scale == pytest.approx(1.2816 * 0.05, rel=0.1)


def test_least_score_scale_has_the_least_score() -> None:
    data = made_up(20)
    shape = np.random.default_rng(1).uniform(1, 3, len(data))
    found = least_score_scale(np.abs(data.log_ratio), shape, data.source)
    weight = source_weight(data.source)
    scores = [
        weight @ interval_score(data.log_ratio, factor * found * shape)
        for factor in (0.97, 1, 1.03)
    ]
    assert min(scores) == scores[1]


def test_departure_is_shrunk_where_sources_disagree() -> None:
    source = np.repeat(["a", "b", "c"], 50)
    size = np.abs(np.random.default_rng(0).normal(0, 1 / 1.2816, 150))
    ones = np.ones(150)
    agreed, torn = size * 2, size * np.repeat([0.5, 0.5, 4], 50)
    whole = np.log(least_score_scale(torn, ones, source))
    assert departure(agreed, ones, source) == pytest.approx(np.log(2), abs=0.2)
    assert 0 < departure(torn, ones, source) < 0.7 * whole
    assert departure(size / 2, ones, source) == 0


def test_interval_score_is_least_at_the_true_quantile() -> None:
    values = np.random.default_rng(0).normal(0, 1, 50_000)
    scores = [interval_score(values, np.full(len(values), w)).mean() for w in (1.0, 1.2816, 1.6)]
    assert min(scores) == scores[1]


def test_falling_pools_neighbours_that_rise() -> None:
    weights = np.array([1.0, 3, 2, 1])
    found = falling(np.array([1.0, 0.2, 0.6, 0.1]), weights)
    np.testing.assert_allclose(found, [1.0, 0.36, 0.36, 0.1])


def test_fits_table_counts_and_falls() -> None:
    generator = np.random.default_rng(1)
    use = generator.uniform(0.5, 1.4, 4000)
    failed = generator.uniform(size=4000) < np.clip((use - 0.8) / 0.3, 0, 1)
    table = fits_table(use, failed, np.repeat(["a", "b"], 2000))
    assert table.runs.sum() == 4000
    assert table.failed.sum() == failed.sum()
    assert (np.diff(table.probability) <= 0).all()
    expected = 1 - np.clip((np.linspace(0.75, 1.15, 9) - 0.8) / 0.3, 0, 1)
    np.testing.assert_allclose(table.at(np.linspace(0.75, 1.15, 9)), expected, atol=0.1)


def test_p_fits_is_not_that_of_the_source_with_most_runs() -> None:
    source, use = np.repeat(["many", "few"], [1000, 20]), np.full(1020, 0.97)
    always = fits_table(use, source == "many", source)
    assert always.probability[0] == pytest.approx(0.49, abs=0.01)
    assert (always.runs[0], always.failed[0]) == (1020, 1000)
    one = fits_table(use[:1001], source[:1001] == "many", source[:1001])
    assert one.probability[0] == pytest.approx(1 / (1 + 1000 / 400.6), abs=0.01)


def test_packaged_p_fits_falls_and_agrees_with_the_zones() -> None:
    values = fits_probability(np.linspace(0, 2, 401))
    assert (np.diff(values) <= 0).all()
    assert values[0] == 1
    safe, tight, out = fits_probability(np.array([0.80, 0.90, 1.06]))
    assert safe >= 0.85
    assert 0.2 < tight < 0.8
    assert out < 0.2


def cli_text(*arguments: str) -> str:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_simulate_prints_the_interval_and_json_has_it() -> None:
    assert ", 80 % between " in cli_text("simulate", *PLAN_ARGUMENTS)
    data = json.loads(cli_text("simulate", *PLAN_ARGUMENTS, "--json"))
    assert data["step_time_low_s"] < data["step_time_s"] < data["step_time_high_s"]
    assert data["regime"].startswith("measured accelerator")


def test_plan_prints_the_interval_and_json_has_it() -> None:
    arguments = ("plan", "--model", "llama3-8b", "--gpus", "8", "--top", "2")
    assert ", 80 % between " in cli_text(*arguments).replace("\n", " ")
    for row in json.loads(cli_text(*arguments, "--json"))["plans"]:
        assert row["step_time_low_s"] < row["step_time_s"] < row["step_time_high_s"]


def test_header_says_what_is_less_certain() -> None:
    text = cli_text("simulate", *PLAN_ARGUMENTS, "--cluster", "mi300x")
    assert "note: no measured tables of mi300x-192gb" in text
    assert "note:" not in cli_text("simulate", *PLAN_ARGUMENTS)


def test_header_names_an_uncalibrated_framework() -> None:
    from parallelsim.report.plans import header

    cluster: ClusterSpec = load_cluster("hgx-h100", num_gpus=8)
    framework: FrameworkSpec = replace(load_framework("megatron-core"), calibrated=False)
    lines = header(
        load_model("llama3-8b"),
        cluster,
        framework,
        global_batch_size=8,
        precision="bf16",
        memory_limit=0.8,
        overrides={},
    )
    assert "no measured run checked megatron-core" in lines[-1]


def test_plot_refuses_other_kinds_of_file(tmp_path: Path) -> None:
    target = str(tmp_path / "plot.pdf")
    result = CliRunner().invoke(main, ["validate", str(TABLES[0]), "--plot", target])
    assert result.exit_code == 1
    assert ".html or .png" in result.stderr


@pytest.mark.parametrize(("name", "start"), [("p.png", b"\x89PNG"), ("p.html", b"<!DOCTYPE html>")])
def test_plot_is_written(name: str, start: bytes, tmp_path: Path) -> None:
    target = tmp_path / name
    table = str(TABLES[0])
    result = CliRunner().invoke(main, ["validate", table, "--plot", str(target)])
    assert result.exit_code == 0, result.output
    assert target.read_bytes().startswith(start)
    again = CliRunner().invoke(main, ["validate", table, "--plot", str(target)])
    assert again.exit_code == 1
    assert "--force" in again.stderr


@pytest.mark.parametrize(
    ("degrees", "table"), [(3, 1.6377), (4, 1.5332), (8, 1.3968), (30, 1.3104)]
)
def test_quantiles_of_students_t_are_those_of_tables(degrees: int, table: float) -> None:
    assert student_quantile(degrees) == pytest.approx(table, rel=1e-3)
