"""Days and prices of whole trainings: closed forms against failures that are played out."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import yaml

from parallelsim.catalog import load_cluster, load_framework, load_model
from parallelsim.errors import SpecError
from parallelsim.plan import Plan
from parallelsim.plan_batch import PlanBatch
from parallelsim.replay import replayed
from parallelsim.simulate import Simulation, simulate
from parallelsim.whole_run import (
    GPU_HOURS_BETWEEN_FAILURES,
    PUE,
    Budget,
    Faults,
    Recovery,
    checkpoint_bytes,
    daly_interval,
    default_faults,
    goodput,
    lost_time,
    recovery,
    whole_run,
)

FAILURES = 20_000
CASES = [  # seconds: between checkpoints, stall, until it can be read, restart, between failures
    (900.0, 30.0, 0.0, 600.0, 11_000.0),
    (250.0, 3.0, 0.0, 600.0, 11_000.0),
    (3000.0, 200.0, 0.0, 900.0, 2500.0),  # most segments are lost
    (120.0, 2.0, 115.0, 60.0, 1000.0),
    (400.0, 0.5, 300.0, 600.0, 900.0),
]


def played(case: tuple[float, ...], seed: int) -> tuple[float, float, float]:
    """Goodput of a run that is played failure by failure, its standard error, and the seconds that
    a failure undoes.
    """
    tau, stall, pending, restart, between = case
    random = Random(seed)
    kept, passed, undone = [], [], []
    for _ in range(FAILURES):
        elapsed, fails_at = 0.0, random.expovariate(1 / between)
        while fails_at < restart:  # fails while it restarts
            elapsed += fails_at
            fails_at = random.expovariate(1 / between)
        clock, progress, safe = restart, 0.0, 0.0
        waiting: list[tuple[float, float]] = []  # (can be read at, progress that it holds)
        while clock < fails_at:
            clock += tau + stall
            if clock <= fails_at:
                progress += tau
                waiting.append((clock + pending, progress))
            safe = max([safe] + [held for at, held in waiting if at <= fails_at])
            waiting = [entry for entry in waiting if entry[0] > fails_at]
        kept.append(safe)
        undone.append(fails_at - restart - safe)
        passed.append(elapsed + fails_at)
    share = sum(kept) / sum(passed)
    spread = np.std(np.array(kept) - share * np.array(passed)) / math.sqrt(FAILURES)
    return share, float(spread / np.mean(passed)), float(np.mean(undone))


@pytest.mark.parametrize("case", CASES)
def test_goodput_is_that_of_failures_that_are_played_out(case: tuple[float, ...]) -> None:
    share, error, undone = played(case, seed=7)
    assert error < 0.02 * share
    assert float(goodput(*case)) == pytest.approx(share, abs=3 * error)
    tau, stall, pending, restart, between = (np.array([value]) for value in case)
    kept = Recovery(tau, tau, stall, pending, restart, float(between[0]), tau, tau)
    (lost,) = lost_time(kept, np.ones(1))  # tau steps of a second each
    assert lost == pytest.approx(undone, rel=0.03)


@pytest.mark.parametrize("stall", [0.5, 30.0, 900.0, 9000.0])
def test_the_interval_wastes_least_of_all(stall: float) -> None:
    between = 11_000.0
    tau = float(daly_interval(np.array(stall), between))
    tries = np.geomspace(tau / 20, tau * 20, 40_001)
    best = float(goodput(tries, stall, 0.0, 600.0, between).max())
    assert best >= float(goodput(tau, stall, 0.0, 600.0, between)) >= 0.995 * best
    assert float(daly_interval(np.array(3 * between), between)) == between


def run_on(num_gpus: int, name: str = "llama3-8b", **plan: Any) -> Simulation:
    dp = num_gpus // plan.get("tp", 1)
    plans = [
        Plan.from_dict({"dp": dp, "global_batch_size": 4 * dp, "zero": 1, **plan, **more})
        for more in ({}, {"recompute": "full"}, {"optimizer": "adam-8bit"})
    ]
    cluster = load_cluster("hgx-h100", num_gpus)
    return simulate(load_model(name), cluster, load_framework("megatron-core"), plans)


def test_a_checkpoint_holds_weights_and_optimizer_once() -> None:
    model, framework = load_model("llama3-8b"), load_framework("megatron-core")
    plans = [
        Plan(precision=precision, optimizer=optimizer)
        for precision in ("bf16", "fp8-current", "fp32")
        for optimizer in ("adam", "sgd")
    ]
    size = checkpoint_bytes(model, framework, PlanBatch.from_plans(plans))
    assert (size / model.num_parameters).tolist() == [14, 10, 14, 10, 12, 8]
    sharded = load_framework("torchtitan")  # keeps fp32 weights alone
    assert checkpoint_bytes(model, sharded, PlanBatch.from_plans([Plan()])) == [
        12 * model.num_parameters
    ]


def test_adapters_alone_are_written() -> None:
    lora = load_model("llama2-70b", overrides={"lora_rank": 16})
    (size,) = checkpoint_bytes(
        lora, load_framework("megatron-core"), PlanBatch.from_plans([Plan()])
    )
    assert size == 14 * lora.num_trainable_parameters


def test_whole_runs_add_up_and_batches_equal_singles() -> None:
    simulation = run_on(64, tp=2)
    budget = Budget(tokens=1e12, dollars_per_gpu_hour=2.0)
    run = whole_run(simulation, budget)
    step, batch = simulation.step_time_s, 4 * 32 * 8192
    steps = 1e12 / batch
    assert run.num_steps == pytest.approx(steps)
    assert run.uninterrupted_days == pytest.approx(steps * step / 86400)
    assert run.days == pytest.approx(run.uninterrupted_days / run.recovery.goodput)
    assert run.gpu_hours == pytest.approx(64 * 24 * run.days)
    assert run.dollars == pytest.approx(2 * run.gpu_hours)
    assert run.energy_kwh == pytest.approx(PUE * 0.76 * 10.2 / 8 * run.gpu_hours)
    assert run.num_failures == pytest.approx(run.gpu_hours / GPU_HOURS_BETWEEN_FAILURES)
    assert np.all(run.days_low < run.days)
    assert np.all(run.days < run.days_high)
    for index in range(3):
        alone = whole_run(simulation.take(slice(index, index + 1)), budget)
        assert alone.days[0] == run.days[index]


def test_the_deadline_has_the_probability_of_the_interval() -> None:
    simulation = run_on(64, tp=2)
    run = whole_run(simulation, Budget(1e12))
    assert run.p_meets_deadline is None
    for days, probability in ((run.days_low, 0.1), (run.days, 0.5), (run.days_high, 0.9)):
        due = whole_run(simulation, Budget(1e12, deadline_days=float(days[0]))).p_meets_deadline
        assert due is not None
        assert due[0] == pytest.approx(probability, abs=1e-5)
    never = whole_run(simulation, Budget(1e12, deadline_days=1.0, faults=Faults(1e-6)))
    assert never.p_meets_deadline is not None
    assert never.p_meets_deadline.tolist() == [0, 0, 0]


def test_checkpoints_wait_for_the_one_before() -> None:
    cluster, size, step = load_cluster("hgx-h100", 1024), np.array([1e13]), np.array([10.0])
    blocking = recovery(cluster, Faults(), size, step)
    behind = recovery(cluster, Faults(asynchronous=True), size, step)
    assert blocking.stall_s == blocking.write_s == pytest.approx(1e13 / (128 * 2e12 / 2048))
    assert behind.stall_s == pytest.approx(1e13 / 1024 / 55.4e9)
    slow = recovery(
        cluster, Faults(asynchronous=True, storage_bytes_per_s_per_node=1e8), size, step
    )
    assert slow.steps_between * 10 + slow.stall_s >= slow.write_s
    assert behind.goodput > blocking.goodput
    few = recovery(cluster, Faults(), size, step, num_steps=3)
    assert few.steps_between == [3]
    with pytest.raises(SpecError, match="states no link to the host"):
        recovery(load_cluster("mi300x", 8), Faults(asynchronous=True), size, step)


def test_failures_that_outrun_progress_leave_no_goodput() -> None:
    run = whole_run(run_on(64, tp=2), Budget(1e12, faults=Faults(1.0)))
    assert np.all(run.recovery.goodput < 1e-3)
    never = whole_run(run_on(64, tp=2), Budget(1e12, faults=Faults(1e-6)))
    assert np.all(np.isinf(never.days))


def test_clusters_state_failures_and_power() -> None:
    a100 = load_cluster("dgx-a100-80gb")
    assert default_faults(a100).gpu_hours_between_failures == pytest.approx(
        1000 / 6.5 * 24 * 8, 1e-4
    )
    assert default_faults(load_cluster("hgx-h100")) == Faults()
    unknown = replace(load_cluster("hgx-h100"), node_power_w=None, dollars_per_gpu_hour=None)
    run = whole_run(replace(run_on(8), cluster=unknown), Budget(1e9))
    assert run.energy_kwh is None
    assert run.dollars is None


def test_no_tokens_is_an_error() -> None:
    with pytest.raises(SpecError, match="number of tokens"):
        whole_run(run_on(8), Budget())


PUBLISHED = yaml.safe_load((Path(__file__).parent / "published/whole_runs.yaml").read_text())
TOLERANCE = 0.09
"""Of hours and MFU: the mean error of step times where a source is left out of the fit."""


@pytest.fixture(scope="module")
def published() -> list[tuple[dict[str, Any], Simulation]]:
    """Each published training with the prediction of its plan."""
    pairs = []
    for row in PUBLISHED:
        model = load_model(row["model"]).with_seq_length(row["seq_length"])
        cluster = load_cluster(row["cluster"], row["num_gpus"])
        plan = Plan.from_dict(row["plan"])
        simulation = simulate(model, cluster, load_framework("megatron-core"), plan)
        pairs.append((row, replayed(simulation)))
    return pairs


def test_published_utilizations(published: list[tuple[dict[str, Any], Simulation]]) -> None:
    stated = [(row, simulation) for row, simulation in published if "mfu" in row]
    assert len(stated) == 3
    for row, simulation in stated:
        assert simulation.mfu[0] == pytest.approx(row["mfu"], rel=TOLERANCE), row["id"]
        assert simulation.obeys_rules[0], row["id"]


def test_gpu_hours_of_llama3_405b(published: list[tuple[dict[str, Any], Simulation]]) -> None:
    """Model card: 30.84 M H100 hours; the paper: more than 90 % effective training time."""
    runs = [
        whole_run(simulation, Budget(float(row["tokens"])))
        for row, simulation in published
        if row["model"] == "llama3.1-405b" and "tokens" in row
    ]
    assert sum(float(run.gpu_hours[0]) for run in runs) == pytest.approx(30.84e6, rel=TOLERANCE)
    assert all(0.90 < float(run.recovery.goodput[0]) < 0.95 for run in runs)


def test_gpu_hours_of_deepseek_v3(published: list[tuple[dict[str, Any], Simulation]]) -> None:
    row, simulation = published[-1]
    run = whole_run(simulation, Budget(float(row["tokens"])))
    assert float(run.gpu_hours[0]) == pytest.approx(float(row["gpu_hours"]), rel=TOLERANCE)
