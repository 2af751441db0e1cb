"""Plans side by side: the terms add up and the sentence says what they say."""

from __future__ import annotations

import numpy as np
import pytest

import parallelsim as ps
from parallelsim.plan import Plan

PLANS = [
    Plan(tp=4, dp=2, global_batch_size=32, sequence_parallel=True, zero=1),
    Plan(tp=2, dp=4, global_batch_size=32, sequence_parallel=True, zero=1),
    Plan(tp=4, dp=2, global_batch_size=32, sequence_parallel=True, zero=1, recompute="full"),
]


@pytest.fixture(scope="module")
def simulation() -> ps.Simulation:
    cluster = ps.load_cluster("hgx-h100", num_gpus=8)
    return ps.simulate(
        ps.load_model("llama3-8b"), cluster, ps.load_framework("megatron-core"), PLANS
    )


def test_terms_add_up_to_step_and_peak(simulation: ps.Simulation) -> None:
    comparison = ps.compare(simulation)
    for i in range(len(PLANS)):
        time = sum(values[i] for values in comparison.time.values())
        memory = sum(values[i] for values in comparison.memory.values())
        assert time == pytest.approx(comparison.step_time_s[i], rel=1e-12)
        assert memory == pytest.approx(comparison.peak_memory_bytes[i], rel=1e-9)


def test_the_sentence_names_the_recompute_that_the_first_saves(simulation: ps.Simulation) -> None:
    why = ps.compare(simulation).why[1]
    assert "faster than plan 3" in why
    assert "of recompute" in why
    assert "recompute none (not full)" in why


def test_swapping_the_plans_swaps_the_verdict(simulation: ps.Simulation) -> None:
    forward = ps.compare(simulation.take(np.array([0, 2]))).why[0]
    backward = ps.compare(simulation.take(np.array([2, 0]))).why[0]
    assert "faster" in forward
    assert "slower" in backward


def test_plans_keep_the_ranks_they_are_given(simulation: ps.Simulation) -> None:
    comparison = ps.compare(simulation.take(np.array([0, 2])), ranks=(1, 8))
    assert comparison.ranks == (1, 8)
    assert "plan 8" in comparison.why[0]


def test_equal_plans_are_called_equal(simulation: ps.Simulation) -> None:
    assert "same plan" in ps.compare(simulation.take(np.array([0, 0]))).why[0]


def test_a_plan_that_cannot_run_never_wins() -> None:
    cluster = ps.load_cluster("hgx-h100", num_gpus=8)
    plans = [Plan(tp=4, dp=4, global_batch_size=32, zero=1), PLANS[0]]
    simulation = ps.simulate(
        ps.load_model("llama3-8b"), cluster, ps.load_framework("megatron-core"), plans
    )
    comparison = ps.compare(simulation)
    assert comparison.cannot_run == (("uses-all-gpus",), ())
    assert comparison.why == ("Plan 1 cannot run, so its times are no answer; plan 2 can.",)
