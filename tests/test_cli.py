"""What people and scripts rely on: output, JSON keys, exit codes, files."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from parallelsim.search.grid import GridSearcher
from parallelsim.search.result import SearchResult

from parallelsim.cli import main
from parallelsim.plan import PLAN_FIELDS

SMALL = ("--model", "gpt2-xl", "--gpus", "8")


def run(*args: str, **environment: str) -> Result:
    return CliRunner(env={"COLUMNS": "80", "NO_COLOR": None, **environment}).invoke(
        main, list(args)
    )


def error_of(result: Result) -> str:
    """The one error line; checks that it is one and that nothing leaked through."""
    assert isinstance(result.exception, SystemExit), result.exception
    lines = [line for line in result.stderr.splitlines() if line.startswith("parallelsim: error: ")]
    assert len(lines) == 1, result.stderr
    assert "Traceback" not in result.output
    return lines[0]


def answer(*args: str) -> dict[str, Any]:
    result = run(*args, "--json")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout, parse_constant=lambda text: pytest.fail(f"{text} in JSON"))
    assert isinstance(data, dict)
    return data


@pytest.fixture(scope="module")
def plans_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("cli") / "plans.yaml")
    result = run("plan", "--model", "llama3-8b", "--gpus", "16", "--top", "4", "--output", path)
    assert result.exit_code == 0, result.stderr
    return path


def test_plan_prints_a_table_that_fits_80_columns() -> None:
    result = run("plan", "--model", "llama3-70b", "--gpus", "64", "--top", "5")
    assert result.exit_code == 0
    assert all(len(line) <= 80 for line in result.stdout.splitlines()), result.stdout
    header = next(line for line in result.stdout.splitlines() if line.lstrip().startswith("#"))
    for name in ("TP", "CP", "PP", "VP", "DP", "MB", "recomp.", "step", "MFU", "mem", "loss"):
        assert name in header
    assert "70.6 B parameters" in result.stdout
    assert "plan 1 is proved the fastest safe one" in " ".join(result.stdout.split())
    assert "parallelsim compare" in result.stderr
    assert "\x1b[" not in result.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
@pytest.mark.parametrize(
    ("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colour_only_on_a_terminal_and_never_with_no_color(
    environment: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pty

    reader, writer = pty.openpty()
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "80", **environment}.items():
        monkeypatch.setenv(name, value)
    with open(writer, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        with pytest.raises(SystemExit) as end:
            main(["plan", *SMALL, "--top", "2"])
        monkeypatch.undo()
    assert end.value.code == 0
    printed = ""
    with open(reader, "rb", buffering=0) as lines, contextlib.suppress(OSError):  # EIO at its end
        while part := lines.read(65536):
            printed += part.decode()
    assert ("\x1b[1;32m" in printed) is coloured
    assert "recomp." in printed


def test_a_narrow_terminal_drops_columns_instead_of_wrapping() -> None:
    result = run("plan", *SMALL, "--top", "3", COLUMNS="50")
    header = next(line for line in result.stdout.splitlines() if line.lstrip().startswith("#"))
    assert len(header) <= 50
    assert "tok/s/GPU" not in header
    assert "step" in header


def test_plan_json_ranks_safe_plans_fastest_first() -> None:
    data = answer("plan", *SMALL, "--top", "3")
    assert [plan["rank"] for plan in data["plans"]] == [1, 2, 3]
    for plan in data["plans"]:
        assert plan["zone"] == "safe"
        assert plan["feasible"] is True
    steps = [plan["step_time_s"] for plan in data["plans"]]
    assert steps == sorted(steps)
    assert data["proven"] is True


def test_simulate_json_has_every_plan_field_and_terms_that_add_up() -> None:
    data = answer("simulate", *SMALL, "--pp", "2", "--recompute", "full:3")
    assert set(data["plan"]) == set(PLAN_FIELDS) - {"recompute_num_layers"}
    assert data["plan"]["recompute"] == "full:3"
    assert data["plan"]["dp"] == 4
    assert len(data["memory_per_stage"]) == 2
    assert sum(data["time"].values()) == pytest.approx(data["step_time_s"])


def test_simulate_prints_time_by_term_and_memory_by_stage() -> None:
    result = run("simulate", *SMALL, "--pp", "4")
    assert result.exit_code == 0
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    for words in ("GEMMs", "bubble", "stage", "fullest"):
        assert words in result.stdout


def test_an_infeasible_plan_is_an_answer() -> None:
    result = run("simulate", "--model", "gpt3-175b", "--gpus", "8", "--tp", "8")
    assert result.exit_code == 0
    assert "does not fit" in result.stdout
    result = run("simulate", *SMALL, "--tp", "8")
    assert result.exit_code == 0
    assert "cannot run" in result.stdout


def test_the_default_batch_is_printed_and_divides_well() -> None:
    result = run("plan", *SMALL, "--top", "1")
    assert "batch 512 x 1024" in result.stdout
    assert "note: batch of 512 sequences" in result.stderr


def test_a_model_without_a_stated_batch_asks_for_it() -> None:
    result = run("plan", "--model", "mistral-7b-v0.3", "--gpus", "8")
    assert result.exit_code == 1
    assert "--global-batch-size" in error_of(result)


def test_fix_and_limit_bind_the_search() -> None:
    data = answer("plan", *SMALL, "--fix", "pp=2,zero=1", "--limit", "micro_batch_size=1..2,cp=1|2")
    plans = [entry["plan"] for entry in data["plans"]]
    assert {plan["pp"] for plan in plans} == {2}
    assert {plan["zero"] for plan in plans} == {1}
    assert {plan["micro_batch_size"] for plan in plans} <= {1, 2}


def test_set_changes_the_model() -> None:
    data = answer("simulate", *SMALL, "--set", "num_layers=12")
    assert data["overrides"] == {"num_layers": 12}
    assert data["memory_per_stage"][0]["layers"] == 12
    assert "12" in run("simulate", *SMALL, "--set", "num_layers=12").stdout.splitlines()[0]
    adapters = "lora_rank=16,lora_targets=linear_qkv+linear_proj"
    overrides = answer("simulate", *SMALL, "--set", adapters)["overrides"]
    assert overrides == {"lora_rank": 16, "lora_targets": "linear_qkv+linear_proj"}


def test_sequence_lengths_may_be_written_with_k() -> None:
    assert (
        answer("simulate", "--model", "llama3-8b", "--gpus", "8", "-s", "4k")["seq_length"] == 4096
    )


@pytest.mark.parametrize(
    ("arguments", "exit_code", "words"),
    [
        (("plan", "--model", "lama3-70b", "--gpus", "8"), 1, "did you mean llama3-70b"),
        (("plan", "--model", "gpt2-xl", "--gpus", "13"), 1, "8 or 16"),
        (("plan", "--model", "gpt2-xl", "--gpus", "0"), 1, "at least 1"),
        (("plan", "--model", "gpt2-xl", "--gpus", "9" * 30), 2, "--gpus"),
        (("plan", "--model", "gpt2-xl"), 2, "--gpus"),
        (("plan", "--gpus", "8"), 2, "--model"),
        (("plan", *SMALL, "--cluster", "hgx-h10"), 1, "hgx-h100"),
        (("plan", *SMALL, "--framework", "megatron"), 1, "megatron-core"),
        (("plan", *SMALL, "--fix", "tp=3"), 1, "divisors are 1, 2, 4, 8"),
        (("plan", *SMALL, "--fix", "tp=0"), 2, "tp must be at least 1, got 0"),
        (("simulate", *SMALL, "--pp", "0"), 1, "pp must be at least 1, got 0"),
        (("simulate", *SMALL, "--pp", "9" * 12), 2, "is too large, at most"),
        (("plan", *SMALL, "--fix", "schedule=zb-1p"), 2, "did you mean zb-h1?"),
        (("plan", *SMALL, "--fix", "tp="), 2, "field=value"),
        (("plan", *SMALL, "--fix", "=="), 2, "field=value"),
        (("plan", *SMALL, "--fix", "tq=2"), 2, "did you mean"),
        (("plan", *SMALL, "--fix", "tp=2", "--fix", "tp=4"), 2, "twice"),
        (("plan", *SMALL, "--fix", "tp=2", "--limit", "tp=1|2"), 2, "give it once"),
        (("plan", *SMALL, "--fix", "precision=fp16"), 2, "--precision"),
        (("plan", *SMALL, "--limit", "cp=4..1"), 2, "empty"),
        (("plan", *SMALL, "--limit", "recompute=none..full"), 2, "no range"),
        (("plan", *SMALL, "--memory-limit", "nan"), 2, "--memory-limit"),
        (("plan", *SMALL, "--nic-gbit-per-s", "1e400"), 2, "--nic-gbit-per-s"),
        (("plan", *SMALL, "--seq-length", "8q"), 2, "tokens"),
        (("plan", *SMALL, "--seq-length", "64k"), 1, "1024"),
        (("plan", *SMALL, "--set", "num_layers=1000000000"), 1, "num_layers"),
        (("plan", *SMALL, "--precision", "int4"), 2, "--precision"),
        (("plan", *SMALL, "--export", "slurm"), 2, "megatron"),
        (("plan", *SMALL, "--export", "megatron", "--json"), 2, "TARGET:FILE"),
        (("plan", *SMALL, "--cluster", "hgx-a800", "--gpus", "16"), 1, "--nic-gbit-per-s"),
        (("simulate", *SMALL, "--plan", "missing.yaml"), 1, "missing.yaml"),
        (("simulate", *SMALL, "--tp", "3"), 1, "does not divide 8 GPUs"),
        (("simulate", *SMALL, "--recompute", "some"), 1, "recompute"),
        (("simulate", *SMALL, "--pp", "2000000000"), 1, "does not divide 8 GPUs"),
        (("simulate", "-m", "gpt2-xl", "--pp", "65536"), 1, "too large"),
        (("compare", "missing.yaml"), 1, "missing.yaml"),
        (("export", "missing.yaml", "--to", "megatron"), 1, "missing.yaml"),
        (("models", "no-such-model"), 1, "unknown model"),
        (("plann",), 2, "plann"),
    ],
)
def test_bad_input_is_one_line_with_the_right_exit_code(
    arguments: tuple[str, ...], exit_code: int, words: str
) -> None:
    result = run(*arguments)
    assert result.exit_code == exit_code, result.output
    assert words in error_of(result)
    assert result.stdout == ""


def test_no_feasible_plan_says_why_and_what_would_rescue_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("parallelsim.cli_misfit.RESCUE_S", 60.0)  # whatever else this machine does
    result = run("plan", "--model", "llama3-70b", "--gpus", "8")
    assert result.exit_code == 3
    assert "no feasible plan" in error_of(result)
    for words in ("rejected: out of memory", "nearest miss: tp 8", "optimizer state", "--gpus 24"):
        assert words in result.stderr
    result = run("plan", "--model", "llama3-8b", "--gpus", "1", "--json")
    assert result.exit_code == 3
    data = json.loads(result.stdout)
    assert data["plans"] == []
    assert data["nearest_miss"][0]["memory_use_frac"] > 1.05


def test_fit_finds_the_smallest_size_and_what_binds_below_it() -> None:
    task = ("--model", "llama3-8b", "--cluster", "rtx-4090")
    data = answer("fit", *task)
    smallest, below = data["num_gpus"], data["next_smaller"]
    assert data["exhaustive"] is True
    assert below["num_gpus"] < smallest
    assert below["nearest_miss"][0]["memory_use_frac"] > 0.8
    assert run("plan", *task, "-n", str(smallest)).exit_code == 0
    assert run("plan", *task, "-n", str(below["num_gpus"])).exit_code == 3
    assert all(change["num_gpus"] < smallest for change in data["changes"])


def test_fit_prints_sentences() -> None:
    result = run("fit", "--model", "llama3-8b")
    assert result.exit_code == 0
    assert "Smallest: " in result.stdout
    assert all(len(line) <= 80 for line in result.stdout.splitlines())


def test_written_plans_are_simulated_compared_and_exported(plans_file: str, tmp_path: Path) -> None:
    first = answer("simulate", "--plan", plans_file)
    second = answer("simulate", "--plan", plans_file, "--rank", "2")
    assert first["step_time_s"] <= second["step_time_s"]
    both = answer("compare", plans_file)
    assert [plan["step_time_s"] for plan in both["plans"]] == [
        first["step_time_s"],
        second["step_time_s"],
    ]
    text = run("compare", plans_file, "--top", "3").stdout
    assert "Plan 1 (" in text
    assert all(len(line) <= 80 for line in text.splitlines())
    script = tmp_path / "run.sh"
    result = run("export", plans_file, "--to", "megatron", "--output", str(script))
    assert result.exit_code == 0, result.stderr
    assert script.read_text() == run("export", plans_file, "--to", "megatron").stdout
    assert os.access(script, os.X_OK)


def test_options_change_what_a_plan_file_states(plans_file: str) -> None:
    stated = answer("simulate", "--plan", plans_file)
    changed = answer("simulate", "--plan", plans_file, "--gpus", "32", "--zero", "0")
    assert changed["plan"]["dp"] == 2 * stated["plan"]["dp"]
    assert changed["plan"]["zero"] == 0


def test_a_bare_plan_takes_its_inputs_from_options(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("tp: 2\nsequence_parallel: true\n")
    data = answer("simulate", "--plan", str(path), "--model", "llama3-8b", "--gpus", "8")
    assert data["plan"]["dp"] == 4
    assert data["global_batch_size"] == data["plan"]["global_batch_size"] == 512
    assert "bare plan" in error_of(run("compare", str(path)))


def test_existing_files_are_refused_before_the_search_and_kept(tmp_path: Path) -> None:
    plans, script = tmp_path / "plans.yaml", tmp_path / "run.sh"
    plans.write_text("precious")
    script.write_text("precious")
    for option, value in (("--output", str(plans)), ("--export", f"megatron:{script}")):
        result = run("plan", *SMALL, option, value)
        assert result.exit_code == 1
        assert "--force" in error_of(result)
    assert plans.read_text() == script.read_text() == "precious"
    result = run(
        "plan", *SMALL, "--output", str(plans), "--export", f"megatron:{script}", "--force"
    )
    assert result.exit_code == 0, result.stderr
    assert "plans:" in plans.read_text()
    assert "torchrun" in script.read_text()


def test_an_impossible_output_is_refused(tmp_path: Path) -> None:
    result = run("plan", *SMALL, "--output", str(tmp_path / "missing" / "plans.yaml"))
    assert result.exit_code == 1
    assert "folder does not exist" in error_of(result)


def test_export_without_a_file_prints_the_script_alone() -> None:
    result = run("plan", "--model", "llama3-8b", "--gpus", "8", "--export", "megatron")
    assert result.exit_code == 0
    assert result.stdout.startswith("#!")


def test_an_interrupted_search_prints_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    search = GridSearcher.search

    def interrupted(*args: Any) -> SearchResult:
        return replace(search(*args), stopped="interrupted", proven=False)

    monkeypatch.setattr(GridSearcher, "search", interrupted)
    result = run("plan", *SMALL)
    assert result.exit_code == 130
    assert "interrupted" in result.stdout
    assert "partial" in result.stderr
    assert json.loads(run("plan", *SMALL, "--json").stdout)["partial"] is True
    assert run("fit", "--model", "gpt2-xl").exit_code == 130


@pytest.mark.parametrize("command", ["models", "clusters", "frameworks"])
def test_catalogues_are_listed_and_shown_with_sources(command: str, tmp_path: Path) -> None:
    listed = run(command)
    assert listed.exit_code == 0
    name = listed.stdout.splitlines()[1].split()[0]
    shown = run(command, name)
    assert shown.exit_code == 0
    assert "sources:" in shown.stdout
    assert isinstance(json.loads(run(command, name, "--json").stdout), dict)
    copy = tmp_path / "mine.yaml"
    copy.write_text(run(command, name, "--yaml").stdout)
    assert run(command, str(copy)).stdout.splitlines()[0] == shown.stdout.splitlines()[0]
    assert "give the NAME" in error_of(run(command, "--yaml"))


def test_help_of_all_commands_is_one_text() -> None:
    text = run("--help-all").stdout
    for command in ("plan", "simulate", "tune record", "completion"):
        assert f"Usage: parallelsim {command} [OPTIONS]" in text
    assert "# keep the plans" in text


def test_completion_knows_commands_and_names() -> None:
    assert "_parallelsim_completion" in run("completion", "zsh").stdout
    for words, found in (("parallelsim pl", "plan"), ("parallelsim models llama3-", "llama3-70b")):
        count = str(len(words.split()) - 1)
        variables = {"_PARALLELSIM_COMPLETE": "bash_complete", "COMP_WORDS": words}
        assert f"plain,{found}" in run(COMP_CWORD=count, **variables).stdout.splitlines()


def test_version_and_no_arguments() -> None:
    assert run("--version").stdout.startswith("parallelsim ")
    result = run()
    assert result.exit_code == 2
    assert "Usage" in result.stderr


def start(*args: str, stdout: Any) -> subprocess.Popen[str]:
    """In a process group of its own, which hears Ctrl-C though the tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    command = [sys.executable, "-m", "parallelsim", *args]
    try:
        return subprocess.Popen(
            command, text=True, stdout=stdout, stderr=subprocess.PIPE, start_new_session=True
        )
    finally:
        signal.signal(signal.SIGINT, before)


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code and stderr."""
    with process:
        assert process.stderr is not None
        errors = process.stderr.read()
        return process.wait(30), errors


def test_a_closed_pipe_ends_quietly() -> None:
    reader, writer = os.pipe()
    process = start("models", stdout=writer)
    os.close(writer)
    os.close(reader)
    exit_code, errors = end(process)
    assert exit_code in (0, 141)
    assert "Traceback" not in errors
    assert "Exception" not in errors


def test_ctrl_c_prints_the_best_so_far_and_ends_with_130() -> None:
    """Every switch opened makes a long search; the signal comes while its processes run, and none
    of them is left.
    """
    switches = ("overlap_grad_reduce", "overlap_param_gather", "cross_entropy_fusion")
    switches += ("cuda_graphs", "tp_comm_overlap")
    limits = ",".join(f"{name}=true|false" for name in switches)
    process = start(
        *("plan", "--model", "llama3.1-405b", "--gpus", "20160", "--global-batch-size", "20160"),
        *("--limit", f"{limits},grad_dtype=fp32|bf16,micro_batch_size=1..20160"),
        *("--workers", "2"),
        stdout=subprocess.DEVNULL,
    )
    time.sleep(2.0)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    exit_code, errors = end(process)
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    assert exit_code == 130
    assert "Traceback" not in errors


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        exit_code, errors = end(start("models", stdout=full))
    assert exit_code == 1
    assert "No space left" in errors
    assert "Traceback" not in errors
