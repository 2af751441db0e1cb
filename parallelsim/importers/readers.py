"""Which reader a file is for, by what it holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from parallelsim.importers.accelerate import import_accelerate, is_accelerate
from parallelsim.importers.deepspeed import import_deepspeed, is_deepspeed
from parallelsim.importers.logs import (
    import_deepspeed_log,
    import_megatron_log,
    import_torchtitan_log,
    is_deepspeed_log,
    is_megatron_log,
    is_torchtitan_log,
)
from parallelsim.importers.nanotron import import_nanotron, is_nanotron
from parallelsim.importers.run import ImportedRun
from parallelsim.importers.scripts import import_script
from parallelsim.importers.torchtitan import import_torchtitan, is_torchtitan


@dataclass(frozen=True)
class Reader:
    """One kind of file."""

    title: str
    reads: Callable[[str, str], bool]
    """(text, file name) -> whether the file is of this kind."""
    read: Callable[..., ImportedRun]
    """(text, file name, environment, model) -> the run."""
    leaves_open: tuple[str, ...] = ()
    """Options that the file does not state."""

    @property
    def is_log(self) -> bool:
        """The file goes on after what is read, as long as the run did."""
        return self.title.endswith("log")


READERS = (
    Reader("Megatron-LM log", is_megatron_log, import_megatron_log),
    Reader("torchtitan log", is_torchtitan_log, import_torchtitan_log),
    Reader("DeepSpeed log", is_deepspeed_log, import_deepspeed_log, ("seq_length",)),
    Reader("torchtitan TOML", is_torchtitan, import_torchtitan),
    Reader("DeepSpeed JSON", is_deepspeed, import_deepspeed, ("seq_length",)),
    Reader("accelerate YAML", is_accelerate, import_accelerate, ("seq_length",)),
    Reader("nanotron YAML", is_nanotron, import_nanotron),
    Reader("script or arguments", lambda text, file: True, import_script),
)
"""The first one that reads a file counts; the last one reads every text that is left."""


def reader_of(text: str, file: str) -> Reader:
    """The reader of a text."""
    if text.startswith("#!"):
        return READERS[-1]
    return next(reader for reader in READERS if reader.reads(text, file))


def is_configuration(text: str, file: str) -> bool:
    """A reader knows the text by its own marks: it is no plan file."""
    return any(reader.reads(text, file) for reader in READERS[:-1])
