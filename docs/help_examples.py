"""Runs the examples of every ``--help``, in the order of their table, in one empty folder."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from refresh import ROOT, output

from parallelsim.cli_help import EXAMPLES


def examples() -> Iterator[tuple[str, str]]:
    """The name of a command and an example of it, without ``parallelsim``."""
    for name, lines in EXAMPLES.items():
        yield from ((name, line) for line in lines if not line.startswith("#"))


def write_inputs(folder: Path) -> None:
    """The files that the examples read."""
    script = (ROOT / "docs" / "explain.md").read_text(encoding="utf-8")
    (folder / "run.sh").write_text(script.split('title="run.sh"\n')[1].split("```")[0])
    config = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    small = config.split('config.json"\n')[1].split("```")[0]
    (folder / "config.json").write_text(small.replace('embeddings": 2048', 'embeddings": 4096'))
    table = ROOT / "tests" / "published" / "korthikanti_2022.csv"
    (folder / "runs.csv").write_text(table.read_text(encoding="utf-8"))
    steps = (
        f" iteration {i}/ 100 | elapsed time per iteration (ms): 13{i}00.0 | "
        "global batch size: 512 |\n"
        for i in range(1, 9)
    )
    (folder / "train.log").write_text("".join(steps))
    (folder / ".config" / "fish" / "completions").mkdir(parents=True)


def run_all() -> None:
    """Run them; ``~`` is the folder.

    Raises:
        refresh.BrokenPageError: one fails.
    """
    with tempfile.TemporaryDirectory(prefix="parallelsim-help-") as folder:
        os.environ["HOME"] = folder
        write_inputs(Path(folder))
        with contextlib.chdir(folder):
            for _, line in examples():
                output(f"parallelsim {line}")


if __name__ == "__main__":
    run_all()
