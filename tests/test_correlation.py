"""Errors that plans share, and how sure the order of plans therefore is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from parallelsim import Plan, Simulation, load_cluster, load_framework, load_model, simulate
from parallelsim.causes import CAUSES, cause_seconds, cause_shares
from parallelsim.cli import main
from parallelsim.correlation import (
    LAUNCH_FACTOR,
    OWN_SD,
    covariance,
    interval_covariance,
    joint_draws,
    p_best,
    trust,
)
from parallelsim.ranked_groups import p_best_reliability, ranked_groups
from parallelsim.replay import replayed
from parallelsim.report.trust import rank_words
from parallelsim.scored_row import ScoredRow
from parallelsim.scores import reliability
from parallelsim.uncertainty import NORMAL_QUANTILE
from parallelsim.validation import validate

PUBLISHED = Path(__file__).parent / "published"


def simulation(model: str, plans: list[Plan], num_gpus: int = 32) -> Simulation:
    cluster = load_cluster("hgx-h100", num_gpus=num_gpus)
    return simulate(load_model(model), cluster, load_framework("megatron-core"), plans)


@pytest.fixture(scope="module")
def dense() -> Simulation:
    shared = {"global_batch_size": 128}
    tensor = [Plan(tp=8, dp=4, zero=1, sequence_parallel=True, **shared)]
    tensor += [replace(tensor[0], micro_batch_size=2)]
    pipeline = Plan(
        tp=1, pp=4, vpp=8, dp=8, zero=1, schedule="interleaved-1f1b", recompute="full", **shared
    )
    return simulation("llama3-8b", [*tensor, pipeline])


def correlations(result: Simulation) -> np.ndarray:
    factor = result.step_time_high_s / result.step_time_s
    found = interval_covariance(cause_shares(result.time), factor)
    spread = np.sqrt(np.diag(found))
    assert spread == pytest.approx(np.log(factor) / NORMAL_QUANTILE)
    return np.asarray(found / spread[:, None] / spread[None, :])


def test_causes_sum_to_the_step_and_are_what_a_plan_pays_for(dense: Simulation) -> None:
    mixture = simulation("mixtral-8x7b", [Plan(tp=2, ep=8, dp=16, global_batch_size=256)])
    for result in (dense, replayed(dense), mixture):
        seconds = cause_seconds(result.time)
        assert seconds.sum(axis=1) == pytest.approx(result.step_time_s, rel=1e-12)
        assert (seconds >= 0).all()
    share = dict(zip(CAUSES, cause_shares(dense.time).T, strict=True))
    assert share["tp"][0] > 0.02
    assert share["tp"][2] == share["cp"].max() == share["ep"].max() == 0
    assert share["pp"][0] == 0 < share["pp"][2]
    assert cause_shares(mixture.time)[0, CAUSES.index("ep")] > 0.02


def test_plans_that_share_causes_are_wrong_together(dense: Simulation) -> None:
    found = correlations(dense)
    assert found[0, 1] > found[0, 2] + 0.03
    assert (found > 0).all()


def test_a_plan_far_behind_is_no_tie_and_one_at_the_front_is(dense: Simulation) -> None:
    order = np.argsort(dense.step_time_s)
    ranked = dense.take(order)
    close = Simulation.concatenate([ranked.take([0]), ranked.take([0]), ranked.take([2])])
    far = replace(close, step_time_s=close.step_time_s * np.array([1, 1.001, 2.0]))
    found = trust(far)
    assert found.tied.tolist() == [False, True, False]
    assert found.p_best[2] < 0.001
    assert found.p_best[:2] == pytest.approx(0.5, abs=0.05)
    assert found.p_best.sum() == pytest.approx(1)
    assert 0 < found.regret_frac < 0.05
    alone = trust(far.take([0]))
    assert (alone.p_best.tolist(), alone.regret_frac) == ([1.0], 0.0)


def test_draws_have_the_covariance_and_are_the_same_every_time() -> None:
    wanted = np.array([[2.0, 1.5], [1.5, 2.0]])
    draws = joint_draws(wanted, 20_000)
    assert np.cov(draws.T) == pytest.approx(wanted, abs=0.1)
    assert (draws == joint_draws(wanted, 20_000)).all()
    four = np.array([[1.0, 2.0], [3.0, 2.0], [1.0, 5.0], [1.0, 9.0]])
    assert p_best(four).tolist() == [0.75, 0.25]


def test_plan_marks_ties_and_json_has_the_probabilities() -> None:
    arguments = ["plan", "--model", "llama3-8b", "--gpus", "8", "--top", "4"]
    text = CliRunner(env={"COLUMNS": "200"}).invoke(main, [*arguments, "--all-variants"]).stdout
    data = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).stdout)
    assert sum(plan["p_best"] for plan in data["plans"]) == pytest.approx(1)
    assert data["expected_regret_frac"] > 0
    tied = [plan["rank"] for plan in data["plans"] if plan["tied_with_first"]]
    assert tied, "the case shows nothing without a tie"
    table = [line.split()[0] for line in text.splitlines() if line.rstrip().endswith("%")]
    shown = [f"{n}=" if n == 1 or n in tied else str(n) for n in range(1, 5)]
    assert [cell for cell in table if cell.rstrip("=").isdigit()][:4] == shown
    assert f"{rank_words(tied)} tie" in text
    assert "P(best)" in text


def test_plans_that_wait_for_the_cpu_differ_more_in_their_errors() -> None:
    """Of two plans with the same shares only what is their own differs."""
    spread = []
    for waiting in (0.0, 0.1):
        shares = np.zeros((2, len(CAUSES)))
        shares[:, CAUSES.index("launch")] = waiting
        shares[:, CAUSES.index("gemm")] = 1 - waiting
        errors = covariance(shares)
        spread.append(errors[0, 0] + errors[1, 1] - 2 * errors[0, 1])
    own = OWN_SD * np.array([1.0, 1 + 0.1 * LAUNCH_FACTOR])
    assert spread == pytest.approx(2 * own**2)


def test_rank_words_join_neighbours() -> None:
    assert rank_words([2, 3, 4, 7, 9, 10]) == "2-4, 7, 9-10"


@pytest.fixture(scope="module")
def rows() -> list[ScoredRow]:
    return list(validate(sorted(str(path) for path in PUBLISHED.glob("*.csv"))).scored)


def test_regret_of_a_group_is_what_the_plan_predicted_fastest_lost(rows: list[ScoredRow]) -> None:
    groups = ranked_groups(rows)
    assert groups
    for group in groups:
        assert len(group.rows) >= 5
        assert len({row.run.group for row in group.rows}) == 1
        best, chosen = group.measured_s.min(), group.measured_s[group.predicted_s.argmin()]
        assert group.top1_regret == pytest.approx(chosen / best - 1)
        assert (group.top1_regret == 0) == (group.predicted_rank_of_best == 1)


def test_p_best_is_right_where_the_errors_are_as_said(dense: Simulation) -> None:
    """Runs drawn from the very covariance that P(best) rests on, by another generator."""
    ranked = dense.take(np.argsort(dense.step_time_s))
    ranked = replace(ranked, step_time_s=ranked.step_time_s[0] * np.array([1.0, 1.01, 1.03]))
    factor = ranked.step_time_high_s / ranked.step_time_s
    errors = interval_covariance(cause_shares(ranked.time), factor)
    root = np.linalg.cholesky(errors)
    drawn = np.random.default_rng(1).standard_normal((20_000, 3)) @ root.T
    fastest = np.bincount((np.log(ranked.step_time_s) + drawn).argmin(axis=1), minlength=3)
    assert trust(ranked).p_best == pytest.approx(fastest / 20_000, abs=0.03)


def test_reliability_has_every_plan_and_one_best_a_group(rows: list[ScoredRow]) -> None:
    groups = ranked_groups(rows)
    bins = p_best_reliability(groups)
    assert sum(each.n for each in bins) == sum(len(group.rows) for group in groups)
    assert sum(each.happened for each in bins) == len(groups)
    assert p_best_reliability([]) == []


def test_reliability_counts_by_bin() -> None:
    found = reliability(
        np.array([0.0, 0.05, 0.3, 0.39, 1.0]),
        np.array([False, True, True, False, True]),
        np.array([1.0, 1.0, 0.25, 1.0, 0.5]),
    )
    assert [(each.low, each.high, each.n, each.happened, each.happened_frac) for each in found] == [
        (0.0, 0.02, 1, 0, 0.0),
        (0.05, 0.1, 1, 1, 1.0),
        (0.2, 0.4, 2, 1, 0.2),
        (0.8, 1.0, 1, 1, 1.0),
    ]
    assert found[2].mean_said == pytest.approx(0.345)
