"""Journals of studies, safe after a process was killed while it wrote.

A journal is a file with one record a line, which Optuna appends under a lock. A process that is
killed in the middle leaves half a line, to which the next record would be glued, and the lock.
"""

from __future__ import annotations

import logging
import os
from threading import Timer

from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

BEGIN = b'{"op_code":'
"""Of every record."""
GRACE_S = 10
"""A lock that is held longer, for one record, was left by a process that died."""
SILENT_S = 1.0
"""A wait for the lock that takes longer is said."""

_log = logging.getLogger(__name__)


def journal_storage(path: str) -> JournalStorage:
    """The studies of a journal, a new one where there is none.

    Raises:
        OSError: it cannot be opened.
        ValueError: the file is something else.
    """
    backend = JournalFileBackend(path, JournalLock(path, GRACE_S))
    with open(path, "rb") as journal:
        begin = journal.read(len(BEGIN))
    if begin != BEGIN[: len(begin)]:
        raise ValueError("it is no journal of studies; choose another file")
    return JournalStorage(backend)


class JournalLock(JournalFileOpenLock):
    """Whoever holds it appends to whole lines.

    A file, not a symbolic link to the journal: of a link left behind by a dead process Optuna never
    finds the age where the path is relative to another folder than the link's, and waits forever.
    """

    def __init__(self, path: str, grace_s: int) -> None:
        super().__init__(path, grace_s)
        self._path = path

    def acquire(self) -> bool:
        """Wait for the lock, take it, and set half a line aside."""
        waiting = Timer(SILENT_S, self._say_waiting) if os.path.exists(self._lock_file) else None
        if waiting:
            waiting.start()
        try:
            super().acquire()
        finally:
            if waiting:
                waiting.cancel()
        try:
            self._set_torn_line_aside()
        except BaseException:
            self.release()
            raise
        return True

    def _say_waiting(self) -> None:
        _log.warning(
            "note: waiting for %s; unless released, it is taken over after %d s, as left by a "
            "process that died",
            self._lock_file,
            self.grace_period,
        )

    def _set_torn_line_aside(self) -> None:
        with open(self._path, "r+b") as journal:
            size = journal.seek(0, os.SEEK_END)
            if not size:
                return
            journal.seek(size - 1)
            if journal.read() == b"\n":
                return
            journal.seek(0)
            content = journal.read()
            whole = content.rfind(b"\n") + 1
            aside = self._path + ".torn"
            with open(aside, "ab") as torn:
                torn.write(content[whole:] + b"\n")
                torn.flush()
                os.fsync(torn.fileno())
            journal.truncate(whole)
        _log.warning(
            "note: %s ended in half a record, of a process that was killed: its %d bytes are now "
            "the last line of %s; the %d complete records are kept",
            *(self._path, size - whole, aside, content.count(b"\n")),
        )
