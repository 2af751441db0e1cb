"""``parallelsim timeline``: pictures, traces, exit codes and files."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from parallelsim.cli import main

PLAN = (
    *("--model", "llama3-8b", "--gpus", "16", "--tp", "2", "--pp", "4"),
    *("--global-batch-size", "32"),
)


def run(*args: str) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(main, ["timeline", *args])


def refused(result: Result, exit_code: int = 1) -> str:
    assert result.exit_code == exit_code, result.output
    assert isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    lines = result.stderr.strip().splitlines()
    assert lines[-1].startswith("parallelsim: error: ")
    return lines[-1]


def test_without_output_the_gantt_is_letters() -> None:
    result = run(*PLAN, "--schedule", "zb-h1")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("zb-h1, pp 4, vpp 1, 16 micro-batches: replayed ")
    rows = [line for line in result.stdout.splitlines() if "|" in line]
    assert len(rows) == 4
    assert set("".join(row.split("|")[1] for row in rows)) <= set("FIW.")
    assert all(len(line) <= 120 for line in result.stdout.splitlines())
    assert "does not run the schedule zb-h1" in result.stderr


def test_a_trace_has_every_operation_and_memory(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    assert run(*PLAN, "--output", str(file)).exit_code == 0
    events = json.loads(file.read_text())["traceEvents"]
    slices = [e for e in events if e["ph"] == "X" and e["cat"] in ("forward", "backward")]
    assert len(slices) == 4 * 16 * 2
    assert max(e["args"]["bytes"] for e in events if e["ph"] == "C") > 1e8
    assert {e["cat"] for e in events if e["ph"] == "X"} >= {"transfer", "data parallel"}


@pytest.mark.parametrize(("name", "begins"), [("g.svg", "<?xml"), ("g.html", "<!DOCTYPE html>")])
def test_pictures_are_written_whole_and_not_over_a_file(
    tmp_path: Path, name: str, begins: str
) -> None:
    file = tmp_path / name
    assert run(*PLAN, "--output", str(file)).exit_code == 0
    assert file.read_text().startswith(begins)
    before = file.read_bytes()
    assert "exists already; use --force" in refused(run(*PLAN, "--output", str(file)))
    assert file.read_bytes() == before
    assert run(*PLAN, "--micro-batch-size", "2", "--output", str(file), "--force").exit_code == 0
    assert file.read_bytes() != before


def test_pixels_are_a_png_file(tmp_path: Path) -> None:
    file = tmp_path / "gantt.png"
    assert run(*PLAN, "--output", str(file)).exit_code == 0
    content = file.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(content[16:20], "big") >= 1200


def test_plans_of_a_file_are_read_by_rank(tmp_path: Path) -> None:
    file = str(tmp_path / "plans.yaml")
    search = ["plan", "--model", "llama3-8b", "--gpus", "16", "--fix", "pp=4", "--output", file]
    assert CliRunner().invoke(main, [*search, "--global-batch-size", "64"]).exit_code == 0
    result = run(file, "--rank", "2")
    assert result.exit_code == 0, result.output
    assert "pp 4" in result.stdout
    assert "no plan of rank 99" in refused(run(file, "--rank", "99"))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--pp", "1024", "--gpus", "2048"), "beyond the 512 ranks"),
        (("--pp", "64", "--gpus", "128"), "32 layers are fewer than pp=64 x vpp=1 = 64 chunks"),
        (("--global-batch-size", "1000000"), "operations"),
        (("--schedule", "zb-v"), "vpp must be 2"),
        (("--schedule", "dualpipe", "--global-batch-size", "8"), "at least 2 pp = 8"),
        (("--schedule", "chimera", "--pp", "3", "--gpus", "24"), "pp must be even"),
        (("--pp", "32", "--gpus", "64"), "more than the 16 that the terminal shows"),
    ],
)
def test_what_cannot_be_replayed_is_one_line_and_no_file(
    tmp_path: Path, args: tuple[str, ...], words: str
) -> None:
    given = dict(zip(PLAN[::2], PLAN[1::2], strict=True)) | dict(
        zip(args[::2], args[1::2], strict=True)
    )
    options = [text for pair in given.items() for text in pair]
    file = tmp_path / "trace.json"
    output = () if "terminal" in words else ("--output", str(file))
    assert words in refused(run(*options, *output))
    assert not file.exists()


@pytest.mark.parametrize("suffix", ["json", "svg", "html", "png"])
@pytest.mark.parametrize(
    "where",
    [
        "parallelsim.replay.plan_replay",
        "parallelsim.timeline.engine._run",
        "parallelsim.output_files.check_writable",
        "parallelsim.output_files.os.fsync",
        "parallelsim.output_files._put_in_place",
    ],
)
def test_an_interrupt_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, suffix: str
) -> None:
    def interrupt(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(where, interrupt)
    result = run(*PLAN, "--output", str(tmp_path / f"gantt.{suffix}"))
    assert result.exit_code == 130
    assert list(tmp_path.iterdir()) == []


def test_a_signal_at_any_moment_leaves_a_whole_file_or_none(tmp_path: Path) -> None:
    program = [sys.executable, "-c", "from parallelsim.__main__ import main; main()", "timeline"]
    folders, children = [tmp_path / name for name in "abcd"], []
    for folder in folders:
        folder.mkdir()
        plan = [*PLAN[:-1], "2048", "--output", str(folder / "trace.json")]
        children.append(subprocess.Popen([*program, *plan], stderr=subprocess.DEVNULL))
    for child, folder in zip(children, folders, strict=True):
        time.sleep(0.4)
        child.send_signal(signal.SIGINT)
        child.wait(timeout=60)
        left = list(folder.iterdir())
        assert [file.name for file in left] in ([], ["trace.json"])
        for file in left:
            assert json.loads(file.read_text())["otherData"]["num_micro_batches"] == 1024


def test_other_file_types_are_wrong_usage(tmp_path: Path) -> None:
    message = refused(run(*PLAN, "--output", str(tmp_path / "gantt.gif")), 2)
    assert "must end with .json, .svg, .html, .png" in message


@pytest.mark.parametrize(("suffix", "batch"), [("svg", 40_000), ("json", 80_000)])
def test_what_is_too_large_to_be_shown_is_not_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, batch: int
) -> None:
    def replayed(*args: object) -> None:
        raise AssertionError

    monkeypatch.setattr("parallelsim.replay.plan_replay", replayed)
    plan = ("--model", "llama3-8b", "--gpus", "64", "--pp", "16", "--dp", "4")
    file = tmp_path / f"x.{suffix}"
    result = run(*plan, "--global-batch-size", str(batch), "--output", str(file))
    assert "operations are more than the" in refused(result)
    assert not file.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--pp", "8", "--layout", "free", "--chunk-layers", "4,4,4,4,4,4,4,5"), "33 layers"),
        (("--pp", "4", "--schedule", "none"), "schedule none does not go with pp=4"),
        (("--pp", "1", "--schedule", "1f1b"), "schedule 1f1b does not go with pp=1"),
        (("--pp", "4", "--global-batch-size", "7"), "batch"),
    ],
)
def test_a_plan_that_no_software_runs_is_refused(
    tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    file = tmp_path / "x.json"
    result = run("--model", "llama3-8b", "--gpus", "64", *words, "--output", str(file))
    assert message in refused(result)
    assert not file.exists()


def test_a_schedule_that_the_software_lacks_is_shown_with_a_note(tmp_path: Path) -> None:
    words = ("--model", "llama3-8b", "--gpus", "64", "--pp", "8", "--schedule", "zb-h1")
    result = run(*words, "--output", str(tmp_path / "x.json"))
    assert result.exit_code == 0
    assert "megatron-core does not run the schedule zb-h1" in result.stderr
