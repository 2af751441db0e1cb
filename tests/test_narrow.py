"""Terminals of 40 columns: no line is wider, and no figure is parted from its name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from parallelsim.cli import main
from parallelsim.report.tables import Column, print_table

PUBLISHED = Path(__file__).resolve().parent / "published"
COLUMNS = 40
SPACE = "-m gpt2-xl -n 8 --limit tp=1..2"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("narrow")
    shutil.copy(PUBLISHED / "korthikanti_2022.csv", path / "runs.csv")
    printed(path, f"plan {SPACE} -o plans.yaml")
    return path


def printed(folder: Path, line: str) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for command in ("sweep", "elastic"):
            patch.setattr(f"parallelsim.cli_{command}.num_cores", lambda: 1)
        result = CliRunner(env={"COLUMNS": str(COLUMNS)}).invoke(main, line.split())
    assert result.exit_code == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"plan {SPACE} --memory-limit 0.2", "# TP CP PP DP MB"),
        ("simulate -m mixtral-8x7b -n 64 -b 512 --tp 2 --pp 4 --ep 8", "stage *0, params "),
        ("explain plans.yaml --rank 2", "\nGEMMs, "),
        ("compare plans.yaml", "plan 2"),
        (f"sweep {SPACE.replace('-n 8', '-n 4,8')} --tokens 1T", "GPUs 8, tokens 1024, "),
        (f"elastic {SPACE}", "GPUs left "),
        (f"fit {SPACE.replace('-n 8', '-n 1')}", "Smallest: "),
        ("models", "model            parameters active\n"),
        ("clusters", "cluster          GPU              memory\n"),
        ("frameworks", "framework          ZeRO       calibrated\n"),
        ("validate runs.csv", "group overall, times 9, "),
        ("timeline plans.yaml", "F forward"),
    ],
)
def test_no_line_is_wider_than_the_terminal(line: str, words: str, folder: Path) -> None:
    text = printed(folder, line)
    assert words in text
    assert [each for each in text.splitlines() if len(each) > COLUMNS] == []


def test_rows_that_do_not_fit_are_stacked_with_their_headers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = [
        Column("", "left"),
        Column("GPUs"),
        Column("software", "left"),
        Column("pays after"),
        Column("more", priority=1),
    ]
    rows = [["*", "1024", "one of the longer names", "12.9 min", "a"], ["", "16", "x", "-", "b"]]
    monkeypatch.setenv("COLUMNS", "60")
    assert print_table(columns, rows) == []
    assert capsys.readouterr().out.splitlines()[1].split()[0] == "*"
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    assert print_table(columns, rows) == ["more"]
    assert capsys.readouterr().out.splitlines() == [
        "*, GPUs 1024, software one of the longer",
        "  names, pays after 12.9 min",
        "GPUs 16, software x, pays after -",
    ]
