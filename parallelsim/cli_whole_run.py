"""``--tokens``: what the whole training takes, and how it fails and recovers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from parallelsim.cli_options import Command
from parallelsim.cli_values import number_up_to, shown
from parallelsim.cluster import ClusterSpec

if TYPE_CHECKING:
    from parallelsim.whole_run import Budget

_SUFFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
MINUTE_S, GB = 60.0, 1e9


def token_count(text: str | float) -> float:
    """``15T``, ``300B`` or ``1.5e12`` tokens."""
    match = re.fullmatch(r"([0-9.]+(?:e[0-9]+)?)([kmbt]?)", str(text).lower(), re.ASCII)
    try:
        tokens = float(match[1]) * _SUFFIXES[match[2]] if match else math.nan
    except ValueError:
        tokens = math.nan
    if not 0 < tokens <= 1e18:
        raise click.BadParameter(f"{shown(text)} is no number of tokens (as 15T, 300B or 1.5e12)")
    return tokens


@dataclass(frozen=True)
class RunOptions:
    """The whole training; None: not given."""

    tokens: float | None
    deadline_days: float | None
    price_per_gpu_hour: float | None
    mtbf_gpu_hours: float | None
    restart_minutes: float | None
    storage_gb_per_s: float | None
    checkpoint: str | None
    pue: float | None

    def check(self) -> None:
        """Refuse options that need tokens without them.

        Raises:
            click.UsageError: the first one.
        """
        for field in fields(self):
            if getattr(self, field.name) is not None and self.tokens is None:
                raise click.UsageError(f"--{field.name.replace('_', '-')} needs --tokens")

    def budget(self, cluster: ClusterSpec) -> Budget:
        """The tokens with price, failures and storage: as given, else of the cluster's file.

        Raises:
            SpecError: asynchronous checkpoints from a GPU whose link to the host is not known.
        """
        from parallelsim.whole_run import PUE, Budget, Faults, default_faults, host_rate

        if self.checkpoint == "async":
            host_rate(cluster)
        usual = default_faults(cluster)
        restart, storage = self.restart_minutes, self.storage_gb_per_s
        faults = Faults(
            self.mtbf_gpu_hours or usual.gpu_hours_between_failures,
            usual.restart_s if restart is None else restart * MINUTE_S,
            usual.storage_bytes_per_s_per_node if storage is None else storage * GB,
            self.checkpoint == "async",
        )
        price = self.price_per_gpu_hour or cluster.dollars_per_gpu_hour
        return Budget(self.tokens, self.deadline_days, price, faults, self.pue or PUE)


_OPTIONS: Mapping[str, Callable[[Any], Any]] = {
    "tokens": click.option(
        "--tokens",
        type=token_count,
        metavar="N",
        help="Tokens of the whole training, as 15T: prints its days, GPU-hours, price and energy,"
        " with checkpoints and failures.",
    ),
    "deadline_days": click.option(
        "--deadline-days",
        type=number_up_to(1e6, low=1e-3),
        metavar="X",
        help="Days by which all --tokens are trained.",
    ),
    "price_per_gpu_hour": click.option(
        "--price-per-gpu-hour",
        type=number_up_to(1e4, low=1e-4),
        metavar="X",
        help="Dollars.  [default: of the cluster's file, if it states a price]",
    ),
    "mtbf_gpu_hours": click.option(
        "--mtbf-gpu-hours",
        type=number_up_to(1e12, low=1.0),
        metavar="X",
        help="GPU-hours for each failure that stops the run.  [default: of the cluster's file, else"
        " 50676, Llama-3's]",
    ),
    "restart_minutes": click.option(
        "--restart-minutes",
        type=number_up_to(1e5, low=1e-3),
        metavar="X",
        help="From a failure until training goes on, without reading the checkpoint."
        "  [default: 10]",
    ),
    "storage_gb_per_s": click.option(
        "--storage-gb-per-s",
        type=number_up_to(1e5, low=1e-4),
        metavar="X",
        help="Rate at which each node writes checkpoints.  [default: of the cluster's file, else"
        " 0.98, Llama-3's]",
    ),
    "checkpoint": click.option(
        "--checkpoint",
        type=click.Choice(("blocking", "async")),
        help="Whether training waits for checkpoints to be written.  [default: blocking]",
    ),
    "pue": click.option(
        "--pue",
        type=number_up_to(10.0, low=1.0),
        metavar="X",
        help="Power of the building over that of its computers.  [default: 1.58]",
    ),
}
FAULTS = ("mtbf_gpu_hours", "restart_minutes", "storage_gb_per_s", "checkpoint")
"""Options that say how a run fails and recovers."""


def run_options(command: Command) -> Command:
    """Add the options of :class:`RunOptions`; the command receives them as ``run``."""
    return _with_options(command, tuple(_OPTIONS), check=True)


def fault_options(command: Command) -> Command:
    """Add those of :class:`RunOptions` that say how a run fails; they need no tokens."""
    return _with_options(command, FAULTS, check=False)


def _with_options(command: Command, names: Sequence[str], *, check: bool) -> Command:
    @wraps(command)
    def with_run(*args: Any, **options: Any) -> Any:
        run = RunOptions(**{name: options.pop(name, None) for name in _OPTIONS})
        if check:
            run.check()
        return command(*args, run=run, **options)

    for name in reversed(names):
        with_run = _OPTIONS[name](with_run)
    return with_run
