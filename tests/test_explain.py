"""Explanations are checked against every plan of a small space, simulated and replayed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from parallelsim.search.grid import grid_search
from parallelsim.search.neighbours import GROUPS
from parallelsim.search.place import place
from parallelsim.search.refine import rounded
from parallelsim.search.result import SearchResult
from parallelsim.search.space import SearchSpace

from parallelsim.catalog import load_cluster, load_framework, load_model
from parallelsim.cli import main
from parallelsim.explain import best_changes
from parallelsim.plan import Plan
from parallelsim.plan_batch import PlanBatch
from parallelsim.replay import replayed
from parallelsim.rules import explain, obeys_rules
from parallelsim.simulate import Simulation, simulate
from parallelsim.units import format_bytes
from parallelsim.why_not import fewest_broken, why_not

MODEL = load_model("llama3-8b", overrides={"num_layers": 8}).with_seq_length(4096)
INPUTS = (MODEL, load_cluster("hgx-h100", 8), load_framework("megatron-core"))
LIMIT = 0.3
"""So that some plans do not fit."""
LIMITS: dict[str, tuple[Any, ...]] = {
    "layout": ("even", "loss"),
    "recompute_num_layers": (0, 1),
    "micro_batch_size": (1, 2, 8),
    "zero": (0, 1),
}


@pytest.fixture(scope="module")
def space() -> SearchSpace:
    return SearchSpace(*INPUTS, 16, limits=LIMITS)


@pytest.fixture(scope="module")
def found(space: SearchSpace) -> SearchResult:
    return grid_search(space, 10, LIMIT)


@pytest.fixture(scope="module")
def every(space: SearchSpace) -> Simulation:
    """Every plan of the space that obeys the rules, replayed."""
    blocks = PlanBatch.concatenate(list(space.blocks()))
    return replayed(simulate(*INPUTS, blocks.take(obeys_rules(*INPUTS, blocks)), LIMIT))


def one(simulation: Simulation, index: int) -> Simulation:
    return simulation.take([index])


def groups_that_differ(first: Plan, second: Plan) -> list[tuple[str, ...]]:
    groups = (*GROUPS, ("tp", "cp", "pp", "dp"))
    return [g for g in groups if any(getattr(first, n) != getattr(second, n) for n in g)]


def test_the_rank_is_the_number_of_better_plans(
    space: SearchSpace, found: SearchResult, every: Simulation
) -> None:
    safe = every.take(every.zone == 0)
    numbers = np.stack([rounded(safe.step_time_s), rounded(safe.peak_memory_bytes)], axis=1)
    distinct = np.unique(numbers, axis=0).tolist()
    assert len(safe) == found.num_feasible
    free = [p for p in found.plans.plans if p.layout == "free"]
    assert not free  # the limits leave out the cuts that are beside the space
    for index in np.random.default_rng(1).integers(0, len(safe), 6).tolist():
        where = place(space, found, one(safe, index), LIMIT)
        assert where.exact
        assert where.rank == 1 + distinct.index(numbers[index].tolist())
        assert where.num_safe == len(safe)


def test_the_best_single_change_is_the_best_plan_that_differs_in_one_thing(
    space: SearchSpace, every: Simulation
) -> None:
    safe = every.take(every.zone == 0)
    for index in np.random.default_rng(2).integers(0, len(safe), 4).tolist():
        plan = safe.plans.plan(index)
        tried, number = best_changes(space, one(safe, index), LIMIT)
        assert number >= len(tried) > 0
        by_group: dict[tuple[str, ...], float] = {}
        for other, step in zip(safe.plans, safe.step_time_s.tolist(), strict=True):
            differing = groups_that_differ(plan, other)
            if len(differing) == 1 and "tp" not in differing[0]:
                by_group[differing[0]] = min(by_group.get(differing[0], np.inf), step)
        ours = {t.fields: float(t.simulation.step_time_s[0]) for t in tried}
        assert {f: ours[f] for f in by_group} == pytest.approx(by_group, rel=1e-12)
        for change in tried:
            again = replayed(simulate(*INPUTS, change.simulation.plans.plan(0), LIMIT))
            assert again.feasible[0]
            assert float(again.step_time_s[0]) == ours[change.fields]
            assert change.gain_frac == pytest.approx(
                1 - ours[change.fields] / safe.step_time_s[index]
            )


def test_a_degree_moves_with_no_more_changes_than_it_needs(
    space: SearchSpace, every: Simulation
) -> None:
    safe = every.take(every.zone == 0)
    plan = safe.plans.plan(0)
    tried, _ = best_changes(space, one(safe, 0), LIMIT)
    moves = [t for t in tried if set(t.fields) <= {"tp", "cp", "pp", "dp"}]
    assert moves
    for move in moves:
        after = move.simulation.plans.plan(0)
        degrees = [getattr(after, name) for name in ("tp", "cp", "pp", "dp")]
        fewest = min(
            len(groups_that_differ(plan, other))
            for other in every.plans
            if [getattr(other, name) for name in ("tp", "cp", "pp", "dp")] == degrees
        )
        assert len(groups_that_differ(plan, after)) == fewest


def part(**fixed: Any) -> SearchSpace:
    limits = {name: values for name, values in LIMITS.items() if name not in fixed}
    return SearchSpace(*INPUTS, 16, fixed=fixed, limits=limits)


def test_a_slower_part_is_answered_with_its_fastest_plan(
    found: SearchResult, every: Simulation
) -> None:
    winner = found.plans.take([0])
    tp = 8 if winner.plans.tp[0] != 8 else 4
    answer = why_not(part(tp=tp), f"tp={tp}", winner, LIMIT)
    own = every.take((every.plans.tp == tp) & (every.zone == 0))
    assert answer.best is not None
    assert float(answer.best.step_time_s[0]) == own.step_time_s.min()
    assert answer.verdict == "slower"
    assert answer.result is not None
    assert answer.result.num_feasible == len(own)
    more = float(own.step_time_s.min() / winner.step_time_s[0]) - 1
    assert f"{100 * more:.1f} % more than plan 1" in answer.sentences[1]
    assert "it pays" in answer.sentences[1]


def test_a_part_that_holds_the_winner_says_so(found: SearchResult) -> None:
    winner = found.plans.take([0])
    tp = int(winner.plans.tp[0])
    answer = why_not(part(tp=tp), f"tp={tp}", winner, LIMIT)
    assert answer.verdict == "first"
    assert "It holds plan 1" in answer.sentences[1]


def test_a_part_that_does_not_fit_is_answered_with_what_it_lacks(found: SearchResult) -> None:
    model = load_model("llama3-70b")
    space = SearchSpace(model, *INPUTS[1:], 16, fixed={"tp": 1}, limits=LIMITS)
    answer = why_not(space, "tp=1", found.plans.take([0]), LIMIT)
    blocks = PlanBatch.concatenate(list(space.blocks()))
    obeying = blocks.take(obeys_rules(model, *INPUTS[1:], blocks))
    all_of_them = simulate(model, *INPUTS[1:], obeying, LIMIT)
    assert answer.verdict == "out of memory"
    assert answer.best is not None
    least = all_of_them.peak_memory_bytes.min()
    assert float(answer.best.peak_memory_bytes[0]) == least
    over = format_bytes(least - all_of_them.memory_capacity_bytes)
    assert f"{over} too much" in answer.sentences[1]


def test_a_part_that_breaks_rules_is_answered_with_the_nearest_plan(found: SearchResult) -> None:
    model = load_model("gpt2-xl")  # 25 heads
    space = SearchSpace(model, *INPUTS[1:], 16, fixed={"tp": 2}, limits=LIMITS)
    plans = PlanBatch.concatenate(list(space.blocks()))
    assert not obeys_rules(model, *INPUTS[1:], plans).any()
    answer = why_not(space, "tp=2", found.plans.take([0]), LIMIT)
    assert answer.verdict == "rejected"
    assert answer.result is not None
    assert answer.result.reasons["heads-divide-by-tp"] == len(plans)
    assert f"{len(plans):,} plans, 0 safe, 0 tight; rejected by" in answer.sentences[0]
    assert f"heads-divide-by-tp {len(plans):,}" in answer.sentences[0]
    nearest = fewest_broken(space)
    broken = [len(explain(model, *INPUTS[1:], plan)) for plan in plans]
    assert len(explain(model, *INPUTS[1:], nearest)) == min(broken)
    assert "25 query heads do not divide by tp=2" in answer.sentences[1]


def run(*args: str) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(main, list(args))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("explain")
    args = ("--model", "gpt2-xl", "--gpus", "8", "--global-batch-size", "64", "--top", "4")
    plans, script = str(folder / "plans.yaml"), f"megatron:{folder / 'run.sh'}"
    done = run("plan", *args, "--output", plans, "--export", script)
    assert done.exit_code == 0, done.stderr
    return folder


def test_a_plan_file_and_its_script_are_explained_alike(files: Path) -> None:
    documents = []
    for name in ("plans.yaml", "run.sh"):
        done = run("explain", str(files / name), "--json", "--why-not", "tp=2")
        assert done.exit_code == 0, done.stderr
        documents.append(json.loads(done.stdout))
    for key in ("rank", "plan", "step_time_s", "changes", "why_not", "num_gpus", "model"):
        assert documents[0][key] == documents[1][key], key
    assert documents[0]["rank"] == 1
    assert documents[0]["import"] is None
    assert "--lr" in documents[1]["import"]["ignored"]
    assert set(documents[0]["time_origins"]) == set(documents[0]["time"])


def test_ranks_are_those_of_the_plan_file(files: Path) -> None:
    done = run("explain", str(files / "plans.yaml"), "--rank", "3")
    assert done.exit_code == 0, done.stderr
    rank = re.search(r"Rank (\d+) of ", done.stdout)
    assert rank, done.stdout
    assert int(rank[1]) >= 3, "variants of the rows above it come before it"
    assert "What limits it" in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines())


def test_freely_cut_layers_are_a_part_of_the_space() -> None:
    args = ("plan", "--model", "llama3-8b", "--gpus", "8", "--why-not", "layout=free")
    assert "Its best (" in (text := run(*args).stdout) or "It holds plan 1" in text
    assert "no plan here has both" in " ".join(run(*args, "--fix", "pp=1").stdout.split())


def test_plan_answers_why_not(files: Path) -> None:
    args = ("--model", "gpt2-xl", "--gpus", "8", "--global-batch-size", "64", "--top", "1")
    parts = ("pp=2", "tp=2", "tp=3", "pp=2,vpp=7,layout=even")
    asked = [word for part in parts for word in ("--why-not", part)]
    done = run("plan", *args, *asked)
    assert done.exit_code == 0, done.stderr
    printed = " ".join(done.stdout.split())
    assert "Why not pp=2: " in printed
    assert "% more than plan 1" in printed
    assert "25 query heads do not divide by tp=2" in printed
    assert "Why not tp=3: tp=3 is not possible on 8 GPUs" in printed
    assert "Why not pp=2,vpp=7,layout=even: 48 layers do not divide" in printed
    row = json.loads(run("plan", *args, "--why-not", "pp=2", "--json").stdout)["why_not"][0]
    assert row["verdict"] == "slower"
    assert row["best"][0]["plan"]["pp"] == 2


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("--why-not", "colour=red"), 2, "unknown plan field 'colour'"),
        (("--why-not", "tp"), 2, "expected field=value"),
        (("--why-not", "tp=8..2"), 2, "the range '8..2' is empty"),
        (("--why-not", ""), 2, "expected field=value"),
        (("--rank", "9"), 1, "no plan of rank 9"),
    ],
)
def test_bad_questions_are_one_line(
    files: Path, args: tuple[str, ...], code: int, message: str
) -> None:
    done = run("explain", str(files / "plans.yaml"), *args)
    assert done.exit_code == code
    errors = [line for line in done.stderr.splitlines() if "error: " in line]
    assert len(errors) == 1
    assert message in errors[0]


def test_a_script_without_its_number_of_gpus_asks_for_it(files: Path) -> None:
    text = (files / "run.sh").read_text().replace("--nproc_per_node 8", "")
    (files / "bare.sh").write_text(text)
    done = run("explain", str(files / "bare.sh"))
    assert done.exit_code == 1
    assert "does not say on how many GPUs it runs; give --gpus" in done.stderr
    assert run("explain", str(files / "missing.sh")).exit_code == 1
    given = run("explain", str(files / "run.sh"), "--seq-length", "512")
    assert given.exit_code == 2
    assert "states it" in given.stderr
