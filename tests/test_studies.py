"""Studies that several processes share, that go on, and that refuse what they were not made for."""

import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from click.testing import CliRunner
from optuna.trial import TrialState
from parallelsim.search.bayesian import CLAIM, BayesianSearcher
from parallelsim.search.bayesian import _Worker as Worker
from parallelsim.search.objective import Objective
from parallelsim.search.searcher import Meter, Request
from parallelsim.search.space import SearchSpace
from parallelsim.search.study import shown

from parallelsim.catalog import load_cluster, load_framework, load_model
from parallelsim.cli import main
from parallelsim.errors import OutputError, PlanError
from parallelsim.plan import Plan

SPACE = SearchSpace(
    load_model("gpt2-xl"), load_cluster("hgx-h100", num_gpus=8), load_framework("megatron-core"), 24
)
BUDGET = 16
"""Of each process: databases take some 0.1 s a trial."""
WORKER = """
import sys
from parallelsim.cli import main
main(["plan", "--model", "gpt2-xl", "--gpus", "8", "--global-batch-size", "24", "--json",
      "--searcher", "bayesian", "--budget", "16", "--study", "both", "--storage", *sys.argv[1:]])
"""


def work_together(storage: str) -> None:
    """Two processes work on one study at once."""
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, storage, "--seed", str(seed)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for seed in (1, 2)
    ]
    for worker in workers:
        _, errors = worker.communicate(timeout=120)
        assert worker.returncode == 0, errors.decode()


def check_shared(opened: optuna.storages.BaseStorage) -> None:
    """Every trial is done, and every plan once."""
    trials = optuna.load_study(study_name="both", storage=opened).trials
    assert [trial.number for trial in trials] == list(range(2 * BUDGET))
    assert {trial.state.name for trial in trials} == {"COMPLETE"}
    plans = {tuple(trial.user_attrs["plan"]) for trial in trials}
    assert len(plans) == 2 * BUDGET


def test_two_processes_share_a_journal_file(tmp_path: Path) -> None:
    path = str(tmp_path / "study.log")
    work_together(path)
    backend = optuna.storages.journal.JournalFileBackend(path)
    check_shared(optuna.storages.JournalStorage(backend))


@pytest.fixture
def postgresql(tmp_path: Path) -> Iterator[str]:
    """A server of its own; PostgreSQL does not run as root."""
    pytest.importorskip("psycopg", reason="needs parallelsim[postgresql]")
    folders = sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")))  # Debian's, off the path
    path = os.pathsep.join([os.environ.get("PATH", ""), *folders])
    programs = [shutil.which(name, path=path) for name in ("initdb", "postgres")]
    if not all(programs):
        pytest.skip("no initdb and postgres here (Debian: postgresql)")
    runas: dict[str, Any] = {"cwd": "/"}
    if os.geteuid() == 0:
        import pwd

        try:
            runas |= {"user": pwd.getpwnam("postgres").pw_uid, "extra_groups": []}
        except KeyError:
            pytest.skip("PostgreSQL does not run as root, and there is no user postgres")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    home = subprocess.check_output(["mktemp", "-d"], text=True, **runas).strip()
    subprocess.run(
        [str(programs[0]), "-D", f"{home}/data", "-A", "trust", "-U", "planner", "--no-sync"],
        check=True,
        stdout=subprocess.DEVNULL,
        **runas,
    )
    options = ["-D", f"{home}/data", "-k", home, "-p", str(port), "-h", "127.0.0.1", "-F"]
    server = subprocess.Popen([str(programs[1]), *options], stderr=subprocess.DEVNULL, **runas)
    try:
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"postgresql://planner@127.0.0.1:{port}/postgres"
    finally:
        server.terminate()
        server.wait(30)
        shutil.rmtree(home, ignore_errors=True)


def test_two_processes_share_a_postgresql_study(postgresql: str) -> None:
    url = postgresql.replace("postgresql://", "postgresql+psycopg://")
    work_together(postgresql)
    opened = optuna.storages.RDBStorage(url)
    try:
        check_shared(opened)
    finally:
        opened.remove_session()
        opened.engine.dispose()


def test_a_study_goes_on_and_remembers_its_best(tmp_path: Path) -> None:
    storage = str(tmp_path / "study.log")
    first = BayesianSearcher(storage=storage).search(SPACE, Request(budget=40, seed=1))
    again = BayesianSearcher(storage=storage).search(SPACE, Request(budget=10, seed=2))
    assert again.num_evaluated == 10
    assert again.plans.step_time_s[0] <= first.plans.step_time_s[0]


def test_half_a_record_is_set_aside_and_the_study_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "study.log"
    search = BayesianSearcher(storage=str(path), study="one")
    search.search(SPACE, Request(budget=4, seed=1))
    *whole, last = path.read_bytes().splitlines(keepends=True)
    torn = last[: len(last) // 2]
    path.write_bytes(b"".join([*whole, torn]))
    search.search(SPACE, Request(budget=3, seed=2))
    search.search(SPACE, Request(budget=2, seed=3))
    assert path.read_bytes().startswith(b"".join(whole))
    assert (tmp_path / "study.log.torn").read_bytes() == torn + b"\n"
    assert len(caplog.messages) == 1
    assert f"{len(torn)} bytes" in caplog.text
    assert f"{len(whole)} complete records" in caplog.text
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
    states = [
        trial.state.name for trial in optuna.load_study(study_name="one", storage=storage).trials
    ]
    assert states == ["COMPLETE"] * 3 + ["RUNNING"] + ["COMPLETE"] * 5


@pytest.mark.filterwarnings("ignore:The value of `grace_period`")
def test_a_lock_of_a_dead_process_is_taken_over_and_the_wait_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("parallelsim.search.journal.GRACE_S", 1)
    monkeypatch.setattr("parallelsim.search.journal.SILENT_S", 0.1)
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    Path("runs/study.log.lock").touch()
    found = BayesianSearcher(storage="runs/study.log").search(SPACE, Request(budget=2))
    assert found.num_evaluated == 2
    assert len(caplog.messages) == 1
    assert "waiting for runs/study.log.lock" in caplog.text
    assert not Path("runs/study.log.lock").exists()


def test_ctrl_c_prints_the_best_so_far_and_the_study_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "study.log"
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(path), "--budget", "1000000"],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    signal.signal(signal.SIGINT, before)
    deadline = time.monotonic() + 60
    while b'"values"' not in path.read_bytes() if path.exists() else True:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    answer, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    document = json.loads(answer)
    best = document["plans"][0]["step_time_s"]
    assert document["stopped"] == "interrupted"
    assert document["num_evaluated"] > 0
    again = BayesianSearcher(storage=str(path), study="both").search(
        SPACE, Request(budget=1, seed=2)
    )
    assert again.num_evaluated == 1
    assert again.plans.step_time_s[0] <= best


def test_a_study_made_for_another_search_is_refused_unharmed(tmp_path: Path) -> None:
    storage = str(tmp_path / "study.log")
    BayesianSearcher(storage=storage, study="one").search(SPACE, Request(budget=10))
    before = Path(storage).read_bytes()
    other = replace(SPACE, global_batch_size=48)
    with pytest.raises(PlanError, match="'one'.*batch 24 x 1024.*not .*batch 48.*--study"):
        BayesianSearcher(storage=storage, study="one").search(other, Request(budget=10))
    assert Path(storage).read_bytes()[: len(before)] == before


@pytest.mark.parametrize(
    "storage",
    ["postgresql://planner:secret@127.0.0.1:1/x", "sqlite:////no/such/folder/x.db", "/no/x.log"],
)
def test_a_storage_that_is_down_is_one_line_without_the_password(storage: str) -> None:
    with pytest.raises(OutputError) as caught:
        BayesianSearcher(storage=storage).search(SPACE, Request(budget=10))
    message = str(caught.value)
    assert shown(storage) in message
    assert "\n" not in message
    assert "secret" not in message


def test_a_locked_storage_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parallelsim.search.study.CONNECT_TIMEOUT_S", 0.2)
    storage = f"sqlite:///{tmp_path}/study.db"
    BayesianSearcher(storage=storage).search(SPACE, Request(budget=5))
    holder = sqlite3.connect(tmp_path / "study.db", isolation_level=None)
    holder.execute("begin exclusive")
    with pytest.raises(OutputError, match="locked"):
        BayesianSearcher(storage=storage).search(SPACE, Request(budget=5))
    holder.close()
    BayesianSearcher(storage=storage).search(SPACE, Request(budget=5))


def test_a_file_that_is_no_study_is_one_line(tmp_path: Path) -> None:
    for name, storage in (("a.log", "{}"), ("a.db", "sqlite:///{}")):
        path = tmp_path / name
        path.write_text("precious\n" * 200)
        with pytest.raises(OutputError, match=name):
            BayesianSearcher(storage=storage.format(path)).search(SPACE, Request(budget=5))


def test_a_plan_stays_taken_when_another_that_claimed_it_too_gives_way() -> None:
    study = optuna.create_study()
    request = Request(budget=40)
    worker = Worker(study, Objective(SPACE, Meter(request)), 0, (8, 40), 0.25)
    worker.run_batch(8)
    kept = sorted(worker.kept)
    assert len(kept) == 8
    for claim, state in ((kept[0], TrialState.RUNNING), (kept[1], TrialState.FAIL)):
        attrs = {CLAIM: list(claim)}
        study.add_trial(optuna.trial.create_trial(state=state, user_attrs=attrs))
    worker.run_batch(8)
    study.tell(8, state=TrialState.FAIL)  # the other process has another plan instead
    while len(worker.kept) < 40:
        worker.run_batch(8)
    plans = [tuple(t.user_attrs[CLAIM]) for t in study.trials if t.state.name == "COMPLETE"]
    assert len(plans) == len(set(plans)) == 40
    assert not any(worker.encoding.is_new(worker.encoding.point(plan)) for plan in kept)


@pytest.mark.parametrize("storage", ["sqlite://", "sqlite:///:memory:", "mysql://host/base"])
def test_a_storage_that_keeps_nothing_is_refused(storage: str) -> None:
    with pytest.raises(PlanError, match="expected sqlite:///FILE, postgresql"):
        BayesianSearcher(storage=storage).search(SPACE, Request(budget=1))


def test_a_warm_start_is_tried_first() -> None:
    best = Plan(dp=8, zero=1, micro_batch_size=1, global_batch_size=24)
    searcher = BayesianSearcher(warm_start=[best])
    result = searcher.search(SPACE, Request(budget=1))
    found = result.plans.plans.plan(0)
    assert (found.dp, found.pp, found.micro_batch_size, found.zero) == (8, 1, 1, 1)


def test_the_front_holds_no_plan_that_another_beats() -> None:
    result = BayesianSearcher(pareto=True).search(SPACE, Request(budget=150))
    front = result.front
    assert front is not None
    assert len(front) > 1
    steps, peaks = front.step_time_s, front.peak_memory_bytes
    assert (steps[1:] >= steps[:-1]).all()
    assert (peaks[1:] < peaks[:-1]).all()
    assert steps[0] == result.plans.step_time_s[0]


@pytest.mark.parametrize(
    ("options", "exit_code", "words"),
    [
        (("--budget", "0"), 2, "--budget"),
        (("--timeout", "0"), 2, "--timeout"),
        (("--storage", "x.log"), 2, "--storage needs --searcher bayesian"),
        (("--seed", "1"), 2, "--seed needs --searcher bayesian"),
        (("--searcher", "bayesian", "--storage", ""), 2, "--storage is empty"),
        (("--searcher", "bayesian", "--study", ""), 2, "--study is empty"),
        (("--searcher", "bayesian", "--objective", "cost", "--tokens", "1T"), 2, "grid alone"),
        (("--searcher", "bayesian", "--storage", "postgresql://x:y@127.0.0.1:1/z"), 1, "storage"),
    ],
)
def test_options_that_cannot_be_are_one_line(
    options: tuple[str, ...], exit_code: int, words: str
) -> None:
    result = CliRunner().invoke(main, ["plan", "--model", "gpt2-xl", "--gpus", "8", *options])
    assert result.exit_code == exit_code
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_the_program_says_how_many_plans_it_evaluated() -> None:
    asked = ["plan", "--model", "gpt2-xl", "--gpus", "8", "--searcher", "bayesian"]
    result = CliRunner().invoke(main, [*asked, "--budget", "30", "--json"])
    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert (answer["searcher"], answer["num_evaluated"]) == ("bayesian", 30)
    assert answer["proven"] is False
