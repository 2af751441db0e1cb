"""What ``--help`` shows beside the options: examples of every command; and ``--help-all``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import click

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "plan": (
        "# keep the plans for the other commands",
        "plan --model llama3-70b --gpus 256 --output plans.yaml",
        "# a Hugging Face model on A100, 4k tokens",
        "plan -m config.json -n 16 -c dgx-a100-80gb -s 4k -b 256",
        "# narrow the search, and ask why not",
        "plan -m llama3-70b -n 64 --fix tp=8 --limit pp=1..4 --why-not tp=4",
        "# from a launch script of today to plan 1",
        "plan --compare-with run.sh --top 3",
        "# days, dollars and kWh of the training",
        "plan -m llama3-70b -n 256 --tokens 15T",
    ),
    "simulate": (
        "# where the time and the memory go",
        "simulate -m llama3-70b -n 256 --tp 4 --pp 8 --vpp 5",
        "# plan 2 of a file, with a change",
        "simulate --plan plans.yaml --rank 2 --recompute full:1",
    ),
    "explain": (
        "# a launch script of today",
        "explain run.sh",
        "# plan 3 of a file, and why not other degrees",
        "explain plans.yaml --rank 3 --why-not tp=4,pp=8",
    ),
    "fit": (
        "# the fewest GPUs, and what binds",
        "fit -m llama2-13b --cluster dgx-a100-80gb",
    ),
    "elastic": (
        "# a plan for every size when nodes fail",
        "elastic -m llama3-8b -n 32",
    ),
    "sweep": (
        "# sizes and lengths; goes on where it was",
        "sweep -m llama3-8b -n 8..32 -s 4k,8k -o sweep.csv",
    ),
    "tune": (
        "# a study in a folder, then runs",
        "tune init study --model llama3-8b --gpus 32",
        "tune next study",
        "tune record study --seconds 13.2 --rank 1",
        "tune status study",
    ),
    "tune init": ("tune init lab --model llama3-8b --gpus 16 --budget 4",),
    "tune next": ("tune next study",),
    "tune record": (
        "# a log, a figure, or a failure",
        "tune record study train.log --rank 1",
        "tune record study --seconds 13.2 --peak-gib 61 --rank 2",
        "tune record study --out-of-memory --rank 3",
    ),
    "tune status": ("tune status study --json",),
    "report": (
        "# one file to open, print or send",
        "report -m llama3-8b -n 32 --output report.html",
    ),
    "compare": (
        "# the first three, term by term",
        "compare plans.yaml --top 3",
    ),
    "export": (
        "# the script that launches plan 1",
        "export plans.yaml --rank 1 --to megatron --output launch.sh",
        "# the same as a Slurm job",
        "export plans.yaml --rank 1 --to slurm-megatron --output launch.sbatch",
    ),
    "import": (
        "# a launch script becomes a plan file",
        "import run.sh --output plan.yaml",
    ),
    "timeline": (
        "# letters in the terminal",
        "timeline plans.yaml",
        "# a trace for ui.perfetto.dev",
        "timeline -m llama3-70b -n 64 --tp 4 --pp 8 --schedule zb-h1 -o trace.json",
    ),
    "validate": (
        "# your own runs, row by row",
        "validate runs.csv --rows predicted.csv",
    ),
    "calibrate": (
        "# a cluster file that fits your runs",
        "calibrate runs.csv --cluster dgx-a100-80gb --output fitted.yaml",
    ),
    "models": (
        "# what it is made of, and the sources",
        "models llama3-70b",
        "# a file to change",
        "models llama3-70b --yaml > mine.yaml",
    ),
    "clusters": (
        "clusters",
        "clusters gb200-nvl72",
        "# a file to change",
        "clusters hgx-h100 --yaml > lab.yaml",
    ),
    "frameworks": (
        "frameworks torchtitan",
        "# a file to change",
        "frameworks megatron-core --yaml > fork.yaml",
    ),
    "doctor": ("doctor",),
    "schema": (
        "# what 'plan --json' holds",
        "schema plan > plan.schema.json",
    ),
    "completion": (
        "# bash, in ~/.bashrc",
        "completion bash > ~/.parallelsim.bash",
        "# zsh and fish",
        "completion zsh > ~/.parallelsim.zsh",
        "completion fish > ~/.config/fish/completions/parallelsim.fish",
    ),
}
"""Command lines by command, without ``parallelsim``, each behind what it is for; run in this
order in one folder by ``docs/help_examples.py``."""


def add_examples(command: click.Command, path: str) -> click.Command:
    """The command, whose ``--help`` ends with its examples now, and so of those below it."""
    lines = EXAMPLES.get(path, ())
    if lines:
        shown = (line if line.startswith("#") else f"parallelsim {line}" for line in lines)
        command.epilog = "\n".join(["\b", "Examples:", *(f"  {line}" for line in shown)])
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            add_examples(inner, f"{path} {name}")
    return command


def print_help_all(context: click.Context, _: click.Parameter, value: bool) -> None:
    """Callback of ``--help-all``: the help of every command, one after another."""
    if value and not context.resilient_parsing:
        click.echo("\n\n".join(_helps(context)))
        context.exit()


def _helps(context: click.Context) -> Iterator[str]:
    """Help texts of a command and of those below it."""
    yield context.get_help()
    command = context.command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _helps(click.Context(inner, info_name=name, parent=context))
