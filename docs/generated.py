"""The parts of the pages that are generated: ``docs/refresh.py`` writes them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parent.parent

SOURCES = {
    "dgxc-benchmarking": ("NVIDIA DGX Cloud benchmarking 25.02-25.05", "H100"),
    "megatron-bridge": ("Megatron-Bridge 25.09-26.04", "H100, B200, GB200"),
    "nemo-docs": ("NeMo documentation", "H100"),
    "mlperf-v4.0": ("MLPerf Training v4.0, GPT-3 175B", "H100"),
    "simumax": ("SimuMax, cut Llama-3 70B", "B200"),
    "megatron-kwai": ("Kuaishou Megatron-Kwai", "H800, A800"),
    "korthi": ("Korthikanti et al., arXiv:2205.05198", "A100"),
    "sc21": ("Narayanan et al., arXiv:2104.04473", "A100"),
    "megascale": ("MegaScale, Megatron baseline, arXiv:2402.15627", "A100"),
    "zb": ("Zero Bubble, arXiv:2401.10241", "A100"),
    "vocabpp": ("Vocabulary Parallelism, arXiv:2411.05288", "A100"),
}
"""Groups of tests/published whose step times the README shows: their title and GPUs."""


def accuracy() -> str:
    """Errors of the step time on the published tables, as a Markdown table."""
    from parallelsim.validation import validate

    tables = sorted((ROOT / "tests" / "published").glob("*.csv"))
    validation = validate([str(table) for table in tables])
    found = {part.name: part.time for part in validation.by_group(validation.scored)}
    lines = ["| source | GPUs | runs | mean error | median | bias |", "|---|---|---|---|---|---|"]
    for name, (title, gpus) in SOURCES.items():
        error = found[name]
        figures = f"{error.mape:.1%} | {error.median:.1%} | {error.bias:+.1%} |"
        lines.append(f"| {title} | {gpus} | {error.n} | {figures.replace('%', ' %')}")
    return "\n".join(lines)


def commands() -> str:
    """Every command with every option, from the program itself."""
    from parallelsim.cli import main

    context = click.Context(main, info_name="parallelsim", **main.context_settings)
    return "\n".join(line for part in _parts(context) for line in part)


def _parts(context: click.Context) -> Iterator[list[str]]:
    """The lines about a command, then those about its own commands."""
    command = context.command
    if context.parent:
        yield _section(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner and not inner.hidden:
                yield from _parts(click.Context(inner, info_name=name, parent=context))


def _section(context: click.Context) -> list[str]:
    command = context.command
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    lines = [f"## {context.command_path.partition(' ')[2]}\n", f"`{usage}`\n"]
    lines.append(" ".join((command.help or "").replace("\b", "").split()) + "\n")
    examples = [line for line in (command.epilog or "").splitlines() if line.startswith("  ")]
    if examples:
        lines += ["```text", *(line.strip() for line in examples), "```\n"]
    records = [param.get_help_record(context) for param in command.get_params(context)]
    lines += ["| option | |", "|---|---|"]
    lines += [f"| `{_cell(name)}` | {_cell(text)} |" for name, text in filter(None, records)]
    return [*lines, ""]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def public_names() -> str:
    """What ``import parallelsim`` offers, each with the first sentence of its docstring."""
    import parallelsim

    lines = ["| name | |", "|---|---|"]
    for name in parallelsim.__all__:
        paragraph = (inspect.getdoc(getattr(parallelsim, name)) or "").partition("\n\n")[0]
        lines.append(f"| `{name}` | {_cell(_MARKUP.sub(_plain, paragraph))} |")
    return "\n".join(lines)


_MARKUP = re.compile(r":\w+:`~?([\w.]+)`|``(.*?)``")


def _plain(marked: re.Match[str]) -> str:
    """A reference or literal of a docstring as Markdown code."""
    name = marked[1].rpartition(".")[2] if marked[1] else marked[2]
    return f"`{name}`"


PARTS: dict[str, Callable[[], str]] = {
    "ACCURACY": accuracy,
    "API": public_names,
    "COMMANDS": commands,
}
"""How each part is made."""
