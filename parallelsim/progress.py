"""How far long work has come, told to whoever watches.

Work tells; it does not know who watches, nor which larger work it is a part of::

    with watched(show):
        for i, size in enumerate(sizes):
            with part(f"{size} GPUs", i, len(sizes)):
                search(size)  # tells its own share, which counts for 1 / len(sizes)

The watcher belongs to the context of the caller (:mod:`contextvars`): without one, telling costs a
look-up. Processes that are forked tell nobody.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Watcher = Callable[[float, str], None]
"""Told the share of the work that is done, from 0 to 1, and at what it is."""

_WATCHER: ContextVar[Watcher | None] = ContextVar("_WATCHER", default=None)


def tell(done: float, number: float = 1.0, words: str = "") -> None:
    """So much of ``number`` is done."""
    watcher = _WATCHER.get()
    if watcher and number > 0:
        watcher(min(done / number, 1.0), words)


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Tell ``watcher`` of the work inside."""
    process = os.getpid()

    def told(share: float, words: str) -> None:
        if os.getpid() == process:
            watcher(share, words)

    yield from _set(told)


@contextmanager
def part(words: str, index: int = 0, number: int = 1) -> Iterator[None]:
    """What is told inside is of part ``index`` of ``number`` equal parts."""
    outer = _WATCHER.get()

    def told(share: float, inner: str) -> None:
        if outer:
            outer((index + share) / number, words or inner)

    told(0.0, "")
    yield from _set(told if outer else None)


def _set(watcher: Watcher | None) -> Iterator[None]:
    token = _WATCHER.set(watcher)
    try:
        yield
    finally:
        _WATCHER.reset(token)
