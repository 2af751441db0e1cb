"""Every command of the documentation runs, and prints what the pages show."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import fields
from pathlib import Path

import click
import pytest

from parallelsim.cli import main
from parallelsim.cli_help import EXAMPLES
from parallelsim.memory import MemoryBreakdown
from parallelsim.step import StepBreakdown

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "docs"))

import generated  # noqa: E402
import help_examples  # noqa: E402
import refresh  # noqa: E402


@pytest.mark.parametrize("page", refresh.pages(), ids=lambda page: page.stem)
def test_commands_of_the_page_print_what_it_shows(page: Path) -> None:
    found = refresh.difference(page, refresh.refreshed(page))
    assert not found, f"{page.name} is not current; run {refresh.HOW}\n{found}"


def test_examples_of_every_help_are_right_usage() -> None:
    program = click.Context(main, **main.context_settings)
    for name, line in help_examples.examples():
        words = shlex.split(line.partition(" > ")[0])
        command: click.Command = main
        for part in name.split():
            assert isinstance(command, click.Group)
            inner = command.get_command(program, part)
            assert inner is not None
            command = inner
        command.make_context(name, words[len(name.split()) :], parent=program)


def test_every_command_has_examples() -> None:
    program = click.Context(main, **main.context_settings)

    def paths(group: click.Group, above: str = "") -> list[str]:
        found = []
        for name in group.list_commands(program):
            found.append(above + name)
            command = group.get_command(program, name)
            if isinstance(command, click.Group):
                found += paths(command, f"{above}{name} ")
        return found

    assert set(paths(main)) == set(EXAMPLES)


def test_generated_parts_stand_on_a_page() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in refresh.pages())
    assert {name for name in generated.PARTS if f"<!-- {name} -->" not in text} == set()


def test_the_page_of_equations_names_every_term_and_has_its_equations() -> None:
    page = (ROOT / "docs" / "equations.md").read_text(encoding="utf-8")
    terms = {field.name for part in (StepBreakdown, MemoryBreakdown) for field in fields(part)}
    assert {name for name in terms if f"`{name}`" not in page} == set()
    cited = set(re.findall(r"\bT\d+\b", page))
    for file in (*ROOT.glob("parallelsim/**/*.py"), *ROOT.glob("search/*.py")):
        for line in file.read_text(encoding="utf-8").splitlines():
            if "docs/equations.md" in line:
                cited |= set(re.findall(r"\bT\d+\b", line))
    assert {label for label in cited if f"**{label} " not in page} == set()


def test_the_site_lists_every_page() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    missing = [p.name for p in (ROOT / "docs").glob("*.md") if p.name not in nav]
    assert not missing, f"mkdocs.yml: nav lacks {missing}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("```console\n$ parallelsim plan --gpus 8\n```\n", "exit code 2"),
        ("```console\n$ false\n```\n", "exit code 1"),
        ("```\n$ parallelsim models\n```\n", "none of the kinds"),
        ("```python\n>>> 1 / 0\n```\n", "ZeroDivisionError"),
    ],
)
def test_a_page_that_cannot_be_run_is_refused(text: str, said: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(refresh.BrokenPageError, match=said):
        refresh.refreshed(page)


def test_only_what_changed_is_rewritten(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        '```yaml title="a.yaml"\nx: 1\n```\n'
        "```console\n$ cat a.yaml\nx: 2\n$ printf 'done; 7 s\\n'\ndone; 9 ms\n```\n"
        "```console\n$ printf 'done; 7 s\\n'\ndone; 9 ms\n```\n"
        "```python\n>>> a = 1\n>>> a + 1\n3\n```\n"
    )
    new = refresh.refreshed(page)
    assert "x: 1\n\n$ printf" in new
    assert new.count("done; 9 ms") == 1  # a wall time alone is no change
    assert ">>> a + 1\n2\n" in new
