"""``plan --compare-with``: the edits towards the best plan are what a new simulation gives."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from parallelsim.search.grid import grid_search
from parallelsim.search.neighbours import DEGREES
from parallelsim.search.space import SearchSpace

from parallelsim.catalog import load_cluster, load_framework, load_model
from parallelsim.cli import main
from parallelsim.edits import LEAST_GAIN, Edit, greedy_edits
from parallelsim.exporters.megatron import export_megatron
from parallelsim.plan import Plan
from parallelsim.planfile import read_document
from parallelsim.replay import replayed
from parallelsim.report.edits import NOTHING, Compared, compared_lines
from parallelsim.simulate import Simulation, simulate

MODEL = load_model("llama3-8b")
INPUTS = (MODEL, load_cluster("hgx-h100", 16), load_framework("megatron-core"))
RUN = Plan(
    tp=4,
    pp=2,
    dp=2,
    micro_batch_size=1,
    global_batch_size=64,
    schedule="1f1b",
    sequence_parallel=True,
    zero=1,
    recompute="full",
)


@pytest.fixture(scope="module")
def goal() -> Simulation:
    return grid_search(SearchSpace(*INPUTS, 64), 1).plans


def simulated(plan: Plan) -> Simulation:
    return replayed(simulate(*INPUTS, plan))


@pytest.fixture(scope="module")
def edits(goal: Simulation) -> list[Edit]:
    return greedy_edits(simulated(RUN), goal, 0.8)


def test_each_edit_is_what_its_plan_takes_when_simulated_alone(edits: list[Edit]) -> None:
    assert len(edits) > 2
    steps = [float(simulated(RUN).step_time_s[0])]
    for edit in edits:
        again = simulated(edit.simulation.plans.plan(0))
        assert again.feasible[0]
        assert float(again.step_time_s[0]) == float(edit.simulation.step_time_s[0])
        steps.append(float(again.step_time_s[0]))
    gains = [1 - after / before for before, after in pairwise(steps)]
    assert [edit.gain_frac for edit in edits] == pytest.approx(gains)
    assert all(gain > LEAST_GAIN for gain in gains[:-1])


def test_edits_change_only_the_fields_that_they_name_and_end_at_the_goal(
    edits: list[Edit], goal: Simulation
) -> None:
    best = goal.plans.plan(0)
    plan = RUN
    for edit in edits:
        plan = replace(plan, **{name: getattr(best, name) for name in edit.fields})
        assert edit.simulation.plans.plan(0) == plan
    last = float(edits[-1].simulation.step_time_s[0])
    assert last <= float(goal.step_time_s[0]) * (1 + 2 * LEAST_GAIN)


def test_the_first_edit_is_the_single_field_that_helps_most(
    edits: list[Edit], goal: Simulation
) -> None:
    best = goal.plans.plan(0)
    alone = ("micro_batch_size", "zero", "tp_comm_overlap", "cross_entropy_fusion")
    steps = []
    for name in alone:
        after = simulated(replace(RUN, **{name: getattr(best, name)}))
        steps += [float(after.step_time_s[0])] if after.feasible[0] and after.zone[0] == 0 else []
    degrees = simulated(replace(RUN, **{name: getattr(best, name) for name in DEGREES}))
    if degrees.feasible[0] and degrees.zone[0] == 0:
        steps.append(float(degrees.step_time_s[0]))
    assert float(edits[0].simulation.step_time_s[0]) <= np.min(steps) * (1 + 1e-12)


def test_a_run_that_does_not_fit_is_first_made_to_fit(goal: Simulation) -> None:
    run = simulated(replace(RUN, recompute="none", micro_batch_size=16, tp=1, pp=1, dp=16, zero=0))
    too_large = simulated(replace(run.plans.plan(0), global_batch_size=256, schedule="none"))
    assert too_large.zone[0] == 2
    target = grid_search(SearchSpace(*INPUTS, 256), 1).plans
    zones = [int(e.simulation.zone[0]) for e in greedy_edits(too_large, target, 0.8)]
    assert zones[0] < 2
    assert zones == sorted(zones, reverse=True)
    assert zones[-1] == 0


def test_what_a_run_has_and_plan_1_lacks_is_not_called_a_gain(goal: Simulation) -> None:
    run = simulated(replace(goal.plans.plan(0), grad_dtype="bf16", cross_entropy_fusion=False))
    edits = tuple(greedy_edits(run, goal, 0.8))
    assert [edit.fields for edit in edits] == [("cross_entropy_fusion",)]
    slower = float(goal.step_time_s[0]) / float(edits[0].simulation.step_time_s[0]) - 1
    assert slower > NOTHING
    *_, last = compared_lines(Compared("run.sh", run, (), None, edits, goal))
    left = f"(grad_dtype fp32 (not bf16)) would make it {100 * slower:.1f} % slower."
    assert last.endswith(left)


def run(*args: str) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(main, list(args))


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("runs") / "run.sh"
    path.write_text(export_megatron(*INPUTS, RUN))
    return str(path)


def test_a_script_is_ranked_and_its_edits_are_flags(script: str, edits: list[Edit]) -> None:
    done = run("plan", "--compare-with", script, "--top", "2")
    assert done.exit_code == 0, done.stderr
    assert f"Your run, {script}" in " ".join(done.stdout.split())
    assert "Edits towards plan 1" in done.stdout
    assert "note: " in done.stderr
    data = json.loads(run("plan", "--compare-with", script, "--top", "2", "--json").stdout)
    ours = data["compare_with"]
    assert ours["plan"] == RUN.to_dict()
    assert ours["rank"] > 1
    assert [row["step_time_s"] for row in ours["edits"]] == [
        float(edit.simulation.step_time_s[0]) for edit in edits
    ]
    removed = {flag for row in ours["edits"] for flag in row["flags_removed"]}
    added = {flag for row in ours["edits"] for flag in row["flags_added"]}
    assert "--recompute-granularity full" in removed
    assert "--overlap-grad-reduce" in added


def test_an_imported_script_is_a_plan_file(script: str, tmp_path: Path) -> None:
    plans = tmp_path / "plan.yaml"
    done = run("import", script, "--output", str(plans))
    assert done.exit_code == 0, done.stderr
    assert "plan: tp 4, pp 2, dp 2" in done.stdout
    assert "no effect on a step: " in done.stderr
    document = read_document(plans)
    assert (document.model, document.num_gpus) == ("llama3-8b", 16)
    assert document.plans[0].plan == RUN
    assert run("import", script, "--output", str(plans)).exit_code == 1
    assert "is an input" in run("import", script, "--output", script, "--force").stderr
    bare = tmp_path / "mine.sh"
    bare.write_text(Path(script).read_text().replace("--num-layers 32", "--num-layers 30"))
    unnamed = run("import", str(bare), "--output", str(tmp_path / "other.yaml"))
    assert unnamed.exit_code == 1
    assert "the catalogue has no model like the script's" in unnamed.stderr
    assert run("import", str(bare)).exit_code == 0


def test_a_script_takes_its_arguments_and_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    text = export_megatron(*INPUTS, RUN)
    text = text.replace("--micro-batch-size 1", "--micro-batch-size ${2}")
    file.write_text(text.replace('"$@"', '""'))
    assert "give the script its arguments" in run("import", str(file)).stderr
    called = f"'{file}' now 2"
    done = run("import", called)
    assert done.exit_code == 0, done.stderr
    assert "micro-batch 2" in done.stdout
    assert "is an input" in run("import", called, "--output", str(file), "--force").stderr
    assert "cannot read" in run("import", f"{file}.missing now 2").stderr


def test_what_the_script_states_is_not_given_again(script: str) -> None:
    done = run("plan", "--compare-with", script, "--global-batch-size", "8")
    assert done.exit_code == 2
    assert "--global-batch-size: the file" in done.stderr
