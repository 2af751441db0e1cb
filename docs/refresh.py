"""Runs every command of the pages and keeps the shown output current.

    python docs/refresh.py             rewrite what is no longer so
    python docs/refresh.py --check     show it as a diff and exit 1 where there is any
    python docs/refresh.py --slow      also the blocks behind a line <!-- slow -->

In README.md and docs/*.md a fenced block is

- ```console          commands behind ``$ `` with what they print, at 80 columns
- ```bash             commands that succeed; what they print is not shown
- ```bash title="F"   the file F, which later commands of the page read (any language)
- ```python           code that runs; behind ``>>> `` with what it prints

and one behind a line ``<!-- not run: reason -->`` is left alone, as are those in text,
yaml and json. The commands of a page run one after another in one empty folder. Generated parts
stand between ``<!-- NAME -->`` and ``<!-- end NAME -->``. Wall times may differ.
"""

from __future__ import annotations

import contextlib
import difflib
import doctest
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner
from generated import PARTS

ROOT = Path(__file__).resolve().parent.parent
WRITTEN_BY_OTHERS = ("accuracy.md", "accuracy_leave_out.md")
"""Pages of ``benchmarks/accuracy.py`` and ``benchmarks/refit.py``."""
WIDTH = 80
HOW = "python docs/refresh.py"
NOT_RUN = ("text", "yaml", "json")
"""Languages of blocks that are only read, unless they have a title."""

FENCE = re.compile(
    r"^(?P<mark>(?:<!-- (?:slow|not run: [^\n]*) -->\n)?)"
    r"(?P<open>```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?\n)"
    r"(?P<body>.*?)^```$",
    re.M | re.S,
)
PART = re.compile(r"<!-- (?P<name>[A-Z0-9-]+) -->\n(?P<body>.*?)<!-- end (?P=name) -->", re.S)
WALL_TIME = re.compile(r';\s+[\d.,]+\s+(?:ms|s|min)$|(?<="elapsed_s": )[\d.e+-]+', re.M)


class BrokenPageError(Exception):
    """A command of a page fails, or a block cannot be run."""


def pages() -> list[Path]:
    """The pages whose commands are run."""
    found = [path for path in sorted((ROOT / "docs").glob("*.md"))]
    return [ROOT / "README.md", *(path for path in found if path.name not in WRITTEN_BY_OTHERS)]


def refreshed(page: Path, *, slow: bool = False) -> str:
    """The text of a page with what its commands print today.

    Raises:
        BrokenPageError: a command that fails.
    """
    namespace: dict[str, Any] = {}

    def current(block: re.Match[str]) -> str:
        mark, body = block["mark"], block["body"]
        if "not run" in mark or ("slow" in mark and not slow):
            return block[0]
        line = block.string.count("\n", 0, block.start("open")) + 1
        try:
            new = _current_body(block["language"], block["title"], body, namespace)
        except BrokenPageError as error:
            raise BrokenPageError(f"{page.name}, block at line {line}: {error}") from None
        return block[0] if _same(body, new) else f"{mark}{block['open']}{new}```"

    with tempfile.TemporaryDirectory(prefix="parallelsim-docs-") as folder:
        with contextlib.chdir(folder):
            text = FENCE.sub(current, page.read_text(encoding="utf-8"))
        return PART.sub(_current_part, text)


def difference(page: Path, new: str) -> str:
    """What is no longer so on a page, as a diff; empty where all is current."""
    old = page.read_text(encoding="utf-8")
    lines = difflib.unified_diff(
        old.splitlines(), new.splitlines(), page.name, "today", lineterm=""
    )
    return "\n".join(lines)


def _same(old: str, new: str) -> bool:
    return WALL_TIME.sub("; T", old) == WALL_TIME.sub("; T", new)


def _current_part(part: re.Match[str]) -> str:
    """A generated part; a benchmark writes those that PARTS does not have."""
    name = part["name"]
    if name not in PARTS:
        return part[0]
    return f"<!-- {name} -->\n{PARTS[name]()}\n<!-- end {name} -->"


def _current_body(language: str, title: str | None, body: str, namespace: dict[str, Any]) -> str:
    if title:
        path = Path(title)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(body, encoding="utf-8")
    elif language == "console":
        return "".join(_session(body))
    elif language == "bash":
        for command in _commands(body.splitlines()):
            output(command)
    elif language == "python":
        return _python(body, namespace)
    elif language not in NOT_RUN:
        raise BrokenPageError(f"```{language} is none of the kinds that {HOW} knows")
    return body


def _commands(lines: list[str]) -> Iterator[str]:
    """Commands, each with the lines that a backslash joins to it."""
    held: list[str] = []
    for line in lines:
        held.append(line)
        if not line.endswith("\\"):
            yield "\n".join(held)
            held = []


def _session(body: str) -> Iterator[str]:
    """Commands and what they print."""
    lines = iter(body.splitlines())
    prompts: list[str] = []
    for line in lines:
        if not line.startswith("$ "):
            continue
        prompts.append(line)
        while prompts[-1].endswith("\\"):
            prompts[-1] += "\n" + next(lines)
    for index, prompt in enumerate(prompts):
        printed = output(prompt.removeprefix("$ ").replace("\n> ", "\n"))
        blank = "\n" if printed and index + 1 < len(prompts) else ""
        yield f"{prompt}\n{printed}{blank}"


def output(command: str) -> str:
    """What a command prints to a terminal; parallelsim runs in this process, others in a shell.

    Raises:
        BrokenPageError: it fails, and no ``# exits with N`` says so.
    """
    said = re.search(r"# exits with (\d+)$", command)
    first, pipe, rest = re.split(" ([|>]) |$", command.replace("\\\n", " "), maxsplit=1)
    rest = f"cat > {rest}" if pipe == ">" else rest
    words = shlex.split(first, comments=True)
    settings = dict(_settings(words))
    words = words[len(settings) :]
    redirected = words.pop() if words and words[-1] in ("2>/dev/null", "2>&1") else ""
    if words[:1] != ["parallelsim"]:
        return _shell(command, "") if words else ""
    from parallelsim.cli import main

    # Fenced text has no colours, and docs are read at one width.
    surroundings = {"COLUMNS": str(WIDTH), "NO_COLOR": "1"} | settings
    result = CliRunner().invoke(main, words[1:], env=surroundings, prog_name="parallelsim")
    if result.exception and not isinstance(result.exception, SystemExit):
        raise BrokenPageError(f"$ {command}\n{result.exception!r}") from result.exception
    if result.exit_code != int(said[1] if said else 0):
        raise BrokenPageError(f"$ {command}\nexit code {result.exit_code}: {result.output}")
    printed = result.stdout if redirected == "2>/dev/null" else result.output
    if not pipe:
        return printed
    if redirected:
        return _shell(rest, printed)
    return result.stderr + _shell(rest, result.stdout)


def _settings(words: list[str]) -> Iterator[tuple[str, str]]:
    """Leading ``NAME=value`` words."""
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            return
        yield name, value


def _shell(command: str, given: str) -> str:
    done = subprocess.run(
        ["sh", "-c", command], input=given, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise BrokenPageError(f"$ {command}\nexit code {done.returncode}: {done.stderr}")
    return done.stdout


def _python(body: str, namespace: dict[str, Any]) -> str:
    """The code with what it prints; all blocks of a page share their names."""
    if ">>> " not in body:
        exec(compile(body, "page", "exec"), namespace)  # the pages are ours
        return body
    shown = []
    for piece in doctest.DocTestParser().parse(body):
        if isinstance(piece, str):
            shown.append(piece)
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            try:
                exec(compile(piece.source, "page", "single"), namespace)
            except Exception as error:
                if not piece.exc_msg:
                    raise BrokenPageError(f"{piece.source}{error!r}") from error
                kind = f"{type(error).__module__}.{type(error).__qualname__}"
                kind = kind.removeprefix("builtins.")
                print(f"Traceback (most recent call last):\n    ...\n{kind}: {error}")
        lines = piece.source.splitlines()
        shown.append("\n".join([f">>> {lines[0]}", *(f"... {line}" for line in lines[1:])]) + "\n")
        shown.append(printed.getvalue())
    return "".join(shown)


@click.command(help=__doc__)
@click.option("--check", is_flag=True, help="Change nothing; exit 1 where a page is not current.")
@click.option("--slow", is_flag=True, help="Also what takes long.")
@click.argument("names", nargs=-1, metavar="[PAGE]...")
def program(check: bool, slow: bool, names: tuple[str, ...]) -> None:
    """Refresh the pages."""
    os.environ.pop("COLUMNS", None)
    outdated = False
    for page in [Path(name).resolve() for name in names] or pages():
        try:
            new = refreshed(page, slow=slow)
        except BrokenPageError as error:
            raise click.ClickException(str(error)) from None
        diff = difference(page, new)
        outdated |= bool(diff)
        if diff and not check:
            page.write_text(new, encoding="utf-8")
            click.echo(f"wrote {page.name}")
        elif diff:
            click.echo(diff)
    if check and outdated:
        raise click.ClickException(f"these pages are not current: run {HOW}")


if __name__ == "__main__":
    sys.exit(program())
