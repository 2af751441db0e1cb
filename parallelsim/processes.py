"""Calls in several processes, which leave Ctrl-C to this one and end with it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from parallelsim.errors import ParallelSimError

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

Task = TypeVar("Task")
Result = TypeVar("Result")


def num_cores() -> int:
    """That this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def can_fork() -> bool:
    """Whether a copy of this process, made in milliseconds, can go on where it is.

    Not beside other threads of Python, whose locks the copy would find taken, nor on macOS, whose
    libraries refuse it.
    """
    import threading

    return sys.platform == "linux" and threading.active_count() == 1


def as_done(
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    num_processes: int,
    *,
    method: str = "spawn",
    start: Callable[..., object] | None = None,
    shared: tuple[Any, ...] = (),
) -> Iterator[Result]:
    """The results of ``function`` of every task, as they end.

    The caller may close the iterator early: what runs is then ended, what has not begun is not.

    Args:
        function: of a module, as processes can be told.
        tasks: begun in this order.
        num_processes: at most.
        method: spawn or fork.
        start: called first in every process, with ``shared``.
        shared: what all processes are told.

    Raises:
        ParallelSimError: the system ended a process.
    """
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from concurrent.futures.process import BrokenProcessPool

    pool = ProcessPoolExecutor(
        min(num_processes, len(tasks)),
        mp_context=multiprocessing.get_context(method),
        initializer=_begin,
        initargs=(start, *shared),
    )
    try:
        with _without_interrupts():
            futures = [pool.submit(function, task) for task in tasks]
        for future in as_completed(futures):
            yield future.result()
    except BrokenProcessPool:
        raise ParallelSimError(
            "the system ended a process of the search, for its memory most likely: "
            "fewer processes need less"
        ) from None
    except BaseException:
        _end(pool)
        raise
    pool.shutdown()


def _begin(start: Callable[..., object] | None, *shared: Any) -> None:
    """First in a process."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if start:
        start(*shared)


def _end(pool: ProcessPoolExecutor) -> None:
    """End the processes in the middle of what they do."""
    processes = list((getattr(pool, "_processes", None) or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.terminate()
    for process in processes:
        process.join()


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back while processes are made, which inherit that."""
    import signal
    import warnings

    with warnings.catch_warnings():
        # Of a fork beside the threads of a numerical library, which are made for that.
        warnings.simplefilter("ignore", DeprecationWarning)
        if sys.platform == "win32":
            yield
            return
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
