"""The program: every command, and the one place where errors become messages and exit codes.

Exit codes: 0 answered (an infeasible ``simulate`` is an answer), 1 a stated problem, 2 wrong usage,
3 no feasible plan, 130 interrupted. Data go to stdout, notes and errors to stderr. A reader that
closes the pipe ends the program quietly.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

import click

from parallelsim.cli_help import add_examples, print_help_all
from parallelsim.errors import EXIT_INTERRUPTED, ParallelSimError

EXIT_USAGE = 2

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


COMMANDS = {
    "calibrate": "cli_calibrate:calibrate",
    "clusters": "cli_catalog:clusters",
    "compare": "cli_simulate:compare",
    "completion": "cli_completion:completion",
    "doctor": "cli_doctor:doctor",
    "elastic": "cli_elastic:elastic",
    "explain": "cli_explain:explain",
    "export": "cli_simulate:export",
    "fit": "cli_fit:fit",
    "frameworks": "cli_catalog:frameworks",
    "import": "cli_import:import_run",
    "models": "cli_catalog:models",
    "plan": "cli_plan:plan",
    "report": "cli_report:report",
    "schema": "cli_schema:schema",
    "simulate": "cli_simulate:simulate",
    "sweep": "cli_sweep:sweep",
    "timeline": "cli_timeline:timeline",
    "tune": "cli_tune:tune",
    "validate": "cli_validate:validate",
}
"""Module and function of every command; only the one that is asked for is imported."""


class Program(click.Group):
    """The command group with parallelsim's exit codes and one-line errors."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name, with examples in its help."""
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            module, _, function = COMMANDS[cmd_name].partition(":")
            command = getattr(import_module(f"parallelsim.{module}"), function)
            self.add_command(add_examples(command, cmd_name), cmd_name)
        return super().get_command(ctx, cmd_name)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> NoReturn:
        """Run the command line and exit; never a traceback for bad input."""
        _open_closed_streams()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, OSError):
                stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        sys.exit(self._exit_code(args, complete_var, **extra))

    def _exit_code(self, args: Sequence[str] | None, complete_var: str | None, **extra: Any) -> int:
        try:
            extra.setdefault("obj", tuple(sys.argv[1:] if args is None else args))
            code = super().main(args, "parallelsim", complete_var, standalone_mode=False, **extra)
            sys.stdout.flush()
        except click.UsageError as error:
            if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help text
                click.echo(error.format_message(), err=True)
                return EXIT_USAGE
            context = error.ctx.command_path if error.ctx else "parallelsim"
            return _fail(f"{error.format_message()} (see '{context} --help')", EXIT_USAGE)
        except click.ClickException as error:
            return _fail(error.format_message(), error.exit_code)
        except ParallelSimError as error:
            return _fail(str(error), error.exit_code)
        except (KeyboardInterrupt, click.Abort):
            return _fail("interrupted", EXIT_INTERRUPTED)
        except (BrokenPipeError, SystemExit):  # the latter is click's answer to a closed pipe
            _silence_stdout()
            return 0
        except OSError as error:
            _silence_stdout()
            return _fail(f"cannot write the output: {error.strerror or error}", 1)
        except MemoryError:
            return _fail("out of memory on this machine; ask for less with --limit or --top", 1)
        except RecursionError:
            return _fail("the input is nested too deeply", 1)
        return code if isinstance(code, int) else 0


def _open_closed_streams() -> None:
    """Output that nobody reads (``>&-``) goes nowhere; file descriptors 1 and 2 are taken by it."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def _fail(message: str, exit_code: int) -> int:
    """Say what is wrong in one printable line."""
    line = " ".join(message.split())
    line = line if line.isprintable() else line.encode("unicode_escape").decode("ascii")
    with contextlib.suppress(OSError):
        click.echo(f"parallelsim: error: {line}", err=True)
    return exit_code


def _silence_stdout() -> None:
    """Let the interpreter's last flush go nowhere instead of failing again."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_version(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        from importlib.metadata import version  # slow: only when asked

        click.echo(f"parallelsim {version('parallelsim')}")
        context.exit()


@click.group(cls=Program, context_settings=_CONTEXT)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version.",
)
@click.option(
    "--help-all",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=print_help_all,
    help="Show the help of every command.",
)
def main() -> None:
    """Find the fastest way to train a model on a cluster, and the flags that launch it.

    Start with: parallelsim plan --model llama3-70b --gpus 256

    Every command's --help ends with examples.
    """
