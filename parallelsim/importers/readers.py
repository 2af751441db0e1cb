"""Which reader a file is for, by what it holds; the readers themselves load when they read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from parallelsim.importers import marks

if TYPE_CHECKING:
    from parallelsim.importers.run import ImportedRun
    from parallelsim.model import ModelSpec


@dataclass(frozen=True)
class Reader:
    """One kind of file."""

    title: str
    reads: Callable[[str], bool]
    """Whether a text is of this kind."""
    function: str
    """Of :mod:`parallelsim.importers`, as ``module.name``."""
    leaves_open: tuple[str, ...] = ()
    """Options that the file does not state."""

    def read(
        self, text: str, file: str, environment: Mapping[str, str], model: ModelSpec | None = None
    ) -> ImportedRun:
        """The run that a text describes.

        Args:
            text: of the file.
            file: its name in messages.
            environment: variables that a script finds when it starts.
            model: what is trained, in place of what the file says.

        Raises:
            SpecError: it cannot be read.
        """
        module, _, name = self.function.partition(".")
        function = getattr(import_module(f"parallelsim.importers.{module}"), name)
        run: ImportedRun = function(text, file, environment, model)
        return run

    @property
    def is_log(self) -> bool:
        """The file goes on after what is read, as long as the run did."""
        return self.title.endswith("log")


_PROGRAMS = ("seq_length",)
"""What a configuration leaves to the program that it configures."""
CONFIGURATIONS = (
    Reader("torchtitan TOML", marks.is_torchtitan, "torchtitan.import_torchtitan"),
    Reader("DeepSpeed JSON", marks.is_deepspeed, "deepspeed.import_deepspeed", _PROGRAMS),
    Reader("accelerate YAML", marks.is_accelerate, "accelerate.import_accelerate", _PROGRAMS),
    Reader("nanotron YAML", marks.is_nanotron, "nanotron.import_nanotron"),
    Reader("Megatron-Bridge program", marks.is_bridge, "bridge.import_bridge"),
)
_LOGS = (
    Reader("Megatron-LM log", marks.is_megatron_log, "logs.import_megatron_log"),
    Reader("torchtitan log", marks.is_torchtitan_log, "logs.import_torchtitan_log"),
    Reader("DeepSpeed log", marks.is_deepspeed_log, "logs.import_deepspeed_log", _PROGRAMS),
)
_SCRIPT = Reader("script or arguments", lambda text: True, "scripts.import_script")


def reader_of(text: str) -> Reader:
    """The reader of a text: the first one that knows its marks, else that of scripts."""
    if text.startswith("#!"):
        return _SCRIPT
    return next((reader for reader in (*_LOGS, *CONFIGURATIONS) if reader.reads(text)), _SCRIPT)


def is_configuration(text: str) -> bool:
    """A reader knows the text by its own marks: it is no plan file."""
    return any(reader.reads(text) for reader in (*_LOGS, *CONFIGURATIONS))
