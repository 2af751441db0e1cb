"""Which reader a file is for, by what it holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from parallelsim.importers.megatron import import_megatron
from parallelsim.importers.run import ImportedRun
from parallelsim.importers.torchtitan import import_torchtitan, is_torchtitan


@dataclass(frozen=True)
class Reader:
    """One kind of file."""

    title: str
    reads: Callable[[str, str], bool]
    """(text, file name) -> whether the file is of this kind."""
    read: Callable[..., ImportedRun]
    """(text, file name, environment, model) -> the run."""


READERS = (
    Reader("torchtitan TOML", is_torchtitan, import_torchtitan),
    Reader("Megatron-LM script or arguments", lambda text, file: True, import_megatron),
)
"""The first one that reads a file counts; the last one reads every text that is left."""


def reader_of(text: str, file: str) -> Reader:
    """The reader of a text."""
    return next(reader for reader in READERS if reader.reads(text, file))
