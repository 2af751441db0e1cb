"""How ranked plans fare where something is otherwise."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from parallelsim import (
    SearchSpace,
    grid_search,
    load_cluster,
    load_framework,
    load_model,
    replayed,
    simulate,
)
from parallelsim.cli import main
from parallelsim.robustness import Case, Robustness, _cases, robustness


@pytest.fixture(scope="module")
def space() -> SearchSpace:
    cluster = load_cluster("hgx-h100", num_gpus=16)
    inputs = (load_model("llama3-8b"), cluster, load_framework("megatron-core"))
    return SearchSpace(*inputs, 64, limits={"layout": ("even",), "vpp": (1,), "cp": (1,)})


def test_losses_are_those_of_a_search_and_a_simulation_of_the_case(space: SearchSpace) -> None:
    plans = grid_search(space, 4).plans
    found = robustness(space, plans)
    names = [case.name for case in found.cases]
    assert len(names) == len(set(names)) == 6
    assert all((case.loss_frac >= 0).all() for case in found.cases)
    for case, (name, other) in zip(found.cases, _cases(space), strict=True):
        assert case.name == name
        searched = grid_search(other, 1).plans
        assert case.best == searched.plans.plan(0)
        there = replayed(simulate(other.model, other.cluster, other.framework, plans.plans))
        loss = there.step_time_s / float(searched.step_time_s[0]) - 1
        loss[there.zone > 0] = np.inf
        assert case.loss_frac == pytest.approx(loss, abs=1e-9)
    slow = next(case for case in found.cases if case.name == "GEMM efficiency -20%")
    assert slow.best_step_time_s > float(plans.step_time_s[0])
    for step in found.steps:
        near = grid_search(replace(space, fixed={step.axis: step.value}), 1).plans
        fastest = float(near.step_time_s[0]) if len(near) else np.inf
        assert step.loss_frac == pytest.approx(fastest / float(plans.step_time_s[0]) - 1)
    assert "cp" not in {step.axis for step in found.steps}
    assert {"tp", "dp", "micro_batch_size"} <= {step.axis for step in found.steps}


def test_the_most_robust_plan_fails_least_and_then_loses_least(space: SearchSpace) -> None:
    plan = grid_search(space, 1).plans.plans.plan(0)
    losses = ([0.0, 0.01, 0.05], [np.inf, 0.04, 0.01], [0.0, 0.02, 0.02])
    cases = tuple(Case(str(i), plan, 1.0, np.array(row)) for i, row in enumerate(losses))
    found = Robustness(cases, ())
    assert found.num_failed.tolist() == [1, 0, 0]
    assert found.worst_frac.tolist() == [0.0, 0.04, 0.05]
    assert found.most_robust == 1


def test_plan_prints_it_and_json_has_it() -> None:
    small = ["plan", "--model", "mixtral-8x7b", "--gpus", "16", "-b", "64", "--top", "2"]
    small += ["--fix", "vpp=1,cp=1,pp=2,layout=even,micro_batch_size=1", "--robustness"]
    result = CliRunner(env={"COLUMNS": "80"}).invoke(main, small)
    assert result.exit_code == 0, result.output
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    for words in ("experts loaded unevenly", "is the most robust", "One step from plan 1"):
        assert words in result.stdout
    data = json.loads(CliRunner().invoke(main, [*small, "--json"]).stdout)["robustness"]
    assert len(data["cases"]) == 7
    assert all(len(case["loss_frac"]) == 2 for case in data["cases"])
    assert data["most_robust_rank"] in (1, 2)
