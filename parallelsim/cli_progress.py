"""A bar with the time left for work that takes longer than a second, on a terminal alone."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

WAIT_S = 1.0
"""Work that is done by then shows nothing, and does not load what draws."""
REDRAW_S = 0.1


@contextmanager
def shown_progress(*, quiet: bool = False) -> Iterator[None]:
    """Show on stderr how far the work inside is.

    Args:
        quiet: nobody looks: the answer is for a program.
    """
    if quiet or not sys.stderr.isatty() or os.environ.get("TERM") in ("dumb", "unknown"):
        yield
        return
    from parallelsim.progress import watched

    bar = _Bar()
    try:
        with watched(bar.show):
            yield
    finally:
        bar.close()


class _Bar:
    """Draws what it is told; without a thread, beside which no search would fork."""

    def __init__(self) -> None:
        self._begin_s = self._next_s = time.monotonic() + WAIT_S
        self._share, self._words = 0.0, ""
        self._drawn: tuple[Progress, TaskID] | None = None

    def show(self, share: float, words: str) -> None:
        """Draw, other words at once and other shares every ``REDRAW_S``."""
        now = time.monotonic()
        if now < (self._next_s if words == self._words else self._begin_s):
            return
        self._next_s, self._words = now + REDRAW_S, words
        bar, task = self._drawn = self._drawn or _begun(words)
        if share < self._share:  # other work has begun: its time left is another
            bar.reset(task)
        self._share = share
        bar.update(task, completed=share, description=words)
        bar.refresh()

    def close(self) -> None:
        """Remove it."""
        if self._drawn:
            self._drawn[0].stop()


def _begun(words: str) -> tuple[Progress, TaskID]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        TaskProgressColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("left"),
        console=Console(stderr=True),
        transient=True,
        auto_refresh=False,
    )
    task = bar.add_task(words, total=1.0)
    bar.start()
    return bar, task
