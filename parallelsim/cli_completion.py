"""Shell completion: the script that a shell sources, and the names that it completes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

COMPLETE_VARIABLE = "_PARALLELSIM_COMPLETE"
SHELLS = ("bash", "zsh", "fish")
Complete = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]


def names_or_files(kind: Literal["model", "cluster", "framework"]) -> Complete:
    """Completes the names that the catalogue has; where none begins so, files."""

    def complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        from parallelsim import catalog

        names = getattr(catalog, f"{kind}_names")()
        found = [CompletionItem(name) for name in names if name.startswith(incomplete)]
        return found or [CompletionItem(incomplete, type="file")]

    return complete


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes commands, options and names in SHELL.

    Write it to a file and source that in the shell's startup file.
    """
    from click.shell_completion import get_completion_class

    complete = get_completion_class(shell)
    assert complete is not None
    program = context.find_root().command
    click.echo(complete(program, {}, "parallelsim", COMPLETE_VARIABLE).source())
