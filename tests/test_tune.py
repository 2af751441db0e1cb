"""The loop with reality: proposals, records, what they teach, and a study that nothing harms."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from parallelsim import (
    SearchSpace,
    grid_search,
    load_cluster,
    load_framework,
    load_model,
)
from parallelsim.causes import CAUSES, cause_seconds
from parallelsim.cli import main
from parallelsim.correlation import CAUSE_SD
from parallelsim.tuning.advice import Candidates, Runs, advise, next_run
from parallelsim.tuning.candidates import candidates, runnable
from parallelsim.tuning.memory import fits_after, posterior_weights, prior_weights
from parallelsim.tuning.posterior import posterior
from parallelsim.uncertainty import fits_probability

REALITIES, BUDGET, MIN_GAIN = 50, 6, 0.005
MEMORY_SD, NOISE = 0.05, 0.02


class World:
    """Every runnable plan of a space, and the candidates that the loop chose, priced once."""

    def __init__(self, model: str, num_gpus: int, batch: int) -> None:
        cluster = load_cluster("hgx-h100", num_gpus=num_gpus)
        space = SearchSpace(load_model(model), cluster, load_framework("megatron-core"), batch)
        self.candidates = Candidates.of(candidates(space, grid_search(space, all_variants=True)))
        parts = [(cause_seconds(part.time), part.memory_use_frac) for part in runnable(space)]
        self.seconds = np.concatenate([seconds for seconds, _ in parts])
        self.use = np.concatenate([use for _, use in parts])


@pytest.fixture(scope="module")
def world() -> World:
    return World("llama3-70b", 128, 512)


def tuned_regrets(world: World, rng: np.random.Generator) -> tuple[float, float]:
    """(of the plan that the loop ends with, of the uncorrected top 1) against the best of all."""
    factors = np.exp(rng.standard_normal(len(CAUSES)) * CAUSE_SD)
    memory = np.exp(rng.standard_normal() * MEMORY_SD)
    times = world.candidates.seconds @ factors
    fits = world.candidates.memory_use_frac * memory <= 1
    best = min(
        (world.seconds @ factors)[world.use * memory <= 1].min(), times[fits].min()
    )  # free layouts are beside the space
    position: list[int] = []
    measured: list[float] = []
    while True:
        ran = np.array(position, np.int64)
        runs = Runs(ran, np.array(measured), np.full(len(ran), np.nan))
        advice = advise(world.candidates, runs)
        plan, _ = next_run(advice, runs, BUDGET, MIN_GAIN)
        if plan is None:
            break
        position.append(plan)
        noise = np.exp(rng.standard_normal() * NOISE)
        measured.append(times[plan] * noise if fits[plan] else np.nan)
    assert position[0] == 0
    chosen = 0 if advice.best is None else advice.best
    return times[chosen] / best - 1, times[0] / best - 1


def test_six_runs_find_a_plan_near_the_best_of_a_reality(world: World) -> None:
    rng = np.random.default_rng(100)
    regret = np.array([tuned_regrets(world, rng) for _ in range(REALITIES)])
    tuned, first = regret.T
    assert np.median(tuned) <= 0.015
    assert (tuned <= first + 1e-12).all()
    assert np.median(first) > 0.015, "the case shows nothing where the top 1 is good enough"


def test_a_run_corrects_the_plans_that_spend_their_time_as_it_does(world: World) -> None:
    given, shares = world.candidates, world.candidates.seconds
    shares = shares / shares.sum(axis=1, keepdims=True)
    tp = CAUSES.index("tp")
    most, least = int(shares[:, tp].argmax()), int(shares[:, tp].argmin())
    predicted = given.seconds.sum(axis=1)
    slow = given.seconds.copy()
    slow[:, tp] *= 1.6
    ran = np.array([most, least])
    found = posterior(given.seconds, given.plans, ran, slow.sum(axis=1)[ran])
    assert 0.05 < found.log_factor[tp] == found.log_factor.max()
    assert found.log_factor_sd[tp] < CAUSE_SD[tp]
    truth = np.log(slow.sum(axis=1))
    assert np.abs(found.log_time - truth).mean() < np.abs(np.log(predicted) - truth).mean() / 2
    spread = np.sqrt(np.diag(found.covariance))
    nothing = posterior(given.seconds, given.plans, ran[:0], np.empty(0))
    assert (spread <= np.sqrt(np.diag(nothing.covariance)) + 1e-9).all()
    assert nothing.log_time == pytest.approx(np.log(predicted))


def test_memory_learns_from_failures_successes_and_peaks() -> None:
    use = np.array([0.75, 0.95, 1.05])
    before = fits_after(prior_weights(), use)
    assert before == pytest.approx(fits_probability(use), abs=0.12)
    failed = fits_after(posterior_weights(np.array([0.9]), np.ones(1)), use)
    fitted = fits_after(posterior_weights(np.array([1.0]), np.zeros(1)), use)
    light = fits_after(posterior_weights(np.array([0.7]), np.zeros(1), np.array([0.85])), use)
    assert failed[1] < before[1] / 2
    assert fitted[1] > 0.9
    assert light[1] > before[1] + 0.2
    for found in (before, failed, fitted, light):
        assert (np.diff(found) <= 0).all()


def run(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(main, ["tune", *arguments])


def answer(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return dict(json.loads(result.stdout))


def error_of(result: Result, code: int = 1) -> str:
    assert result.exit_code == code, result.output
    errors = [x for x in result.stderr.splitlines() if x.startswith("parallelsim: error: ")]
    assert len(errors) == 1
    assert "Traceback" not in result.output
    return errors[0]


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tune") / "fresh"
    result = run("init", str(folder), "--model", "llama3-8b", "--gpus", "16", "--budget", "3")
    assert result.exit_code == 0, result.stderr
    return folder


@pytest.fixture
def study(fresh: Path, tmp_path: Path) -> str:
    folder = tmp_path / "study"
    folder.mkdir()
    for name in ("candidates.yaml", "study.json"):
        (folder / name).write_bytes((fresh / name).read_bytes())
    return str(folder)


def megatron_log(path: Path, seconds: float, batch: int) -> str:
    lines = [
        f" iteration {i:6}/ 100 | elapsed time per iteration (ms): {1000 * seconds:.1f} | "
        f"global batch size: {batch:5} | lm loss: 1.0E+01 |"
        for i in range(1, 9)
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    return str(path)


def test_the_loop_from_proposal_to_stop(study: str, tmp_path: Path) -> None:
    first = answer("next", study)
    proposal = first["proposal"]
    assert (proposal["rank"], first["best"], first["stop"]) == (1, None, None)
    script = Path(proposal["script"])
    assert f"--tensor-model-parallel-size {proposal['plan']['tp']}" in script.read_text()
    assert os.access(script, os.X_OK)
    assert answer("next", study)["proposal"]["rank"] == 1
    seconds, batch = proposal["predicted_step_time_s"], proposal["plan"]["global_batch_size"]
    log = megatron_log(tmp_path / "train.log", 1.1 * seconds, batch)
    after = answer("record", study, log)
    assert after["runs"][0]["step_time_s"] == pytest.approx(1.1 * seconds, rel=1e-3)
    assert after["best"]["rank"] == 1
    assert after["best"]["step_time_s"] == pytest.approx(1.1 * seconds, rel=0.03)
    assert after["factors"]["gemm"]["factor"] > 1.02
    assert "no plan waits" in error_of(run("record", study, "--seconds", "5"))
    failed = answer("record", study, "--out-of-memory", "--rank", "2")
    assert failed["runs"][1]["out_of_memory"]
    assert failed["best"]["rank"] == 1
    last = answer("record", study, "--seconds", str(seconds * 1.12), "--rank", "1")
    assert last["stop"] == "budget"
    text = run("status", study).stdout
    assert all(len(line) <= 80 for line in text.splitlines())
    for words in ("out of memory", "+12.0%", "Best so far: plan 1", "budget of 3 runs is spent"):
        assert words in text
    assert answer("next", study)["proposal"] is None
    assert answer("next", study, "--budget", "9")["budget"] == 9


def test_expected_gain_below_the_threshold_stops(study: str) -> None:
    path = Path(study) / "study.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"min_gain_frac": 0.9}))
    seconds = answer("next", study)["proposal"]["predicted_step_time_s"]
    after = answer("record", study, "--seconds", str(seconds))
    assert after["stop"] == "gain"
    assert "Stop: another run is expected to gain" in run("next", study).stdout


PROGRAM = """
import os, signal, sys
from parallelsim.cli import main
def die(*_, **__): os.kill(os.getpid(), signal.SIGKILL)
real = getattr(os, sys.argv[1])
def after(*args, **options):
    real(*args, **options)
    die()
setattr(os, sys.argv[1], die if sys.argv[2] == "before" else after)
sys.argv = ["parallelsim", "tune", "record", sys.argv[3], "--seconds", "25", "--rank", "1"]
main()
"""


@pytest.mark.parametrize(
    ("call", "when", "num_runs"),
    [("fsync", "before", 0), ("replace", "before", 0), ("replace", "after", 1)],
)
def test_kill_in_the_middle_of_record_loses_nothing(
    call: str, when: str, num_runs: int, study: str
) -> None:
    answer("record", study, "--seconds", "26", "--rank", "2")
    before = answer("status", study)["runs"]
    command = [sys.executable, "-c", PROGRAM, call, when, study]
    done = subprocess.run(command, capture_output=True, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr
    runs = answer("status", study)["runs"]
    assert runs[:1] == before
    assert len(runs) == 1 + num_runs
    assert len(answer("record", study, "--seconds", "25", "--rank", "1")["runs"]) == 2 + num_runs
    assert not list(Path(study).glob("*.tmp"))


def test_bad_logs_leave_the_study_as_it_was(study: str, tmp_path: Path) -> None:
    batch = answer("next", study)["proposal"]["plan"]["global_batch_size"]
    before = (Path(study) / "study.json").read_bytes()
    log = tmp_path / "train.log"
    log.write_text("starting\nnothing else\n")
    assert "no usable line" in error_of(run("record", study, str(log)))
    log.write_text(" iteration 1/ 100 | elapsed time per iteration (ms): nan | lm loss: nan |\n")
    assert "no number above 0" in error_of(run("record", study, str(log)))
    other = megatron_log(log, 5.0, batch * 2)
    assert "global batch size" in error_of(run("record", study, other))
    log.write_text("step: 1 loss: 1 memory: 47.34GiB(59.85%) tps: 6,210\n")
    assert "a log of torchtitan" in error_of(run("record", study, str(log)))
    assert "check the plan" in error_of(run("record", study, "--seconds", "9999"))
    assert "no plan of rank 999" in error_of(
        run("record", study, "--seconds", "5", "--rank", "999")
    )
    assert (Path(study) / "study.json").read_bytes() == before


@pytest.mark.parametrize(
    "arguments",
    [
        ("record", "{}"),
        ("record", "{}", "--seconds", "nan"),
        ("record", "{}", "--seconds", "5", "--out-of-memory"),
        ("record", "{}", "--out-of-memory", "--peak-gib", "5"),
        ("next", "{}", "--budget", "0"),
        ("init", "{}-new", "--model", "llama3-8b", "--gpus", "16", "--budget", "0"),
        ("init", "{}-new", "--model", "llama3-8b"),
    ],
)
def test_wrong_usage_is_one_line(arguments: tuple[str, ...], study: str) -> None:
    before = (Path(study) / "study.json").read_bytes()
    error_of(run(*(word.format(study) for word in arguments)), 2)
    assert (Path(study) / "study.json").read_bytes() == before
    assert not Path(f"{study}-new").exists()


def test_a_locked_study_is_left_alone(study: str) -> None:
    with open(Path(study) / "study.lock", "ab") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        assert "another process" in error_of(run("record", study, "--seconds", "25", "--rank", "1"))
    assert answer("status", study)["runs"] == []


def changed(**changes: Any) -> Any:
    return lambda data: json.dumps(data | changes)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: json.dumps(data)[:40], "not valid JSON"),
        (changed(format=7), "no study of this version"),
        (changed(budget="six"), "damaged: budget"),
        (changed(proposed=77), "damaged: proposed"),
        (changed(runs=[{"rank": 1}]), r"damaged: runs[0]"),
        (changed(runs=7), "damaged: runs"),
        (changed(more=1), "damaged: expected the keys"),
        (changed(model=None), "damaged: model"),
    ],
)
def test_a_damaged_study_is_named_and_kept(change: Any, words: str, study: str) -> None:
    path = Path(study) / "study.json"
    text = change(json.loads(path.read_text()))
    path.write_text(text)
    message = error_of(run("next", study))
    assert words in message
    assert "study.json" in message
    assert path.read_text() == text


def test_a_study_of_another_model_is_refused(study: str) -> None:
    plans = Path(study) / "candidates.yaml"
    was = plans.read_bytes()
    plans.write_bytes(was.replace(b"model: llama3-8b", b"model: llama3-70b"))
    assert "candidates.yaml: changed since 'tune init'" in error_of(run("status", study))
    state = Path(study) / "study.json"
    old, new = (hashlib.sha256(data).hexdigest() for data in (was, plans.read_bytes()))
    state.write_text(state.read_text().replace(old, new))
    message = error_of(run("status", study))
    assert "made for llama3-8b" in message
    assert "now names llama3-70b" in message
    assert "holds a study already" in error_of(
        run("init", study, "--model", "gpt2-xl", "--gpus", "8")
    )


def test_no_study_and_other_folders_are_named(tmp_path: Path) -> None:
    assert "no study; make one" in error_of(run("next", str(tmp_path)))
    (tmp_path / "file").write_text("mine")
    small = ("--model", "gpt2-xl", "--gpus", "8")
    assert "no empty folder" in error_of(run("init", str(tmp_path), *small))
    assert "does not exist" in error_of(run("init", str(tmp_path / "a" / "b"), *small))
