"""Long work says how far it is, on a terminal alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from parallelsim import catalog
from parallelsim.fit import Task
from parallelsim.progress import part, tell, watched
from parallelsim.sweep import points, run

pty = pytest.importorskip("pty", reason="terminals of Unix")

PROGRAM = """
import sys
from parallelsim import cli_progress
cli_progress.WAIT_S = cli_progress.REDRAW_S = 0.0
from parallelsim.cli import main
main(sys.argv[1:])
"""
PLAN = ("plan", "-m", "gpt2-xl", "-n", "8", "--limit", "tp=1..2")


def on_terminal(*args: str, **environment: str) -> tuple[str, str]:
    """(stdout in a pipe, what a terminal behind stderr gets) of a program that does not wait."""
    ours, theirs = pty.openpty()
    variables = {**os.environ, "TERM": "xterm", "COLUMNS": "80", **environment}
    done = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *args],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=variables,
        text=True,
    )
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 65536):
            shown += piece
    except OSError:  # the other side is closed
        pass
    os.close(ours)
    printed, _ = done.communicate()
    assert done.returncode == 0, shown
    return printed, shown.decode()


def test_a_search_draws_a_bar_with_the_time_left_and_removes_it() -> None:
    printed, shown = on_terminal(*PLAN)
    assert "searching" in shown
    assert "100%" in shown
    assert "left" in shown
    assert shown.rindex("\x1b[2K") > shown.rindex("left")  # the line is erased
    assert "%" not in shown[shown.rindex("\x1b[2K") :].replace("batch", "")
    assert "\x1b" not in printed


@pytest.mark.parametrize(
    ("args", "environment"), [((*PLAN, "--json"), {}), (PLAN, {"TERM": "dumb"})]
)
def test_programs_and_dumb_terminals_see_none(
    args: tuple[str, ...], environment: dict[str, str]
) -> None:
    _, shown = on_terminal(*args, **environment)
    assert "\x1b" not in shown
    assert "searching" not in shown


def test_a_bar_without_colours_has_none() -> None:
    _, shown = on_terminal(*PLAN, NO_COLOR="1")
    assert "searching" in shown
    assert "\x1b[38;5" not in shown
    assert "\x1b[35m" not in shown


def told(work: Callable[[], object]) -> list[tuple[float, str]]:
    shares: list[tuple[float, str]] = []
    with watched(lambda share, words: shares.append((share, words))):
        work()
    return shares


def test_parts_share_out_the_whole() -> None:
    def work() -> None:
        for index, name in enumerate(("first", "second")):
            with part(name, index, 2):
                tell(1, 2, "within")

    assert told(work) == [(0.0, "first"), (0.25, "first"), (0.5, "second"), (0.75, "second")]
    with part("nobody watches"):
        tell(1)


def test_a_forked_process_tells_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> None:
        tell(1, 4)
        monkeypatch.setattr(os, "getpid", lambda: -1)  # as after a fork
        tell(1, 2)

    assert told(work) == [(0.25, "")]


def test_searches_of_a_sweep_count_up_to_the_whole() -> None:
    task = Task(
        catalog.load_model("gpt2-xl"),
        catalog.load_cluster("hgx-h100"),
        catalog.load_framework("megatron-core"),
        fixed={"tp": 1, "cp": 1},
    )
    wanted = points([4, 8], [1024], [64])
    shares = told(lambda: list(run(task, wanted, 1)))
    assert [share for share, _ in shares] == sorted(share for share, _ in shares)
    assert shares[-1][0] == 1.0
    assert {words for _, words in shares} == {"4 GPUs, 1024 tokens", "8 GPUs, 1024 tokens"}
