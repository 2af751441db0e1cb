"""The software that plans are exported to: names and files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """Software that a plan can be written for; ``exporters`` has the writers under its name."""

    name: str
    title: str
    suffix: str
    """Of the file's name."""

    @property
    def is_script(self) -> bool:
        """The file is run, not read by the software."""
        return self.suffix == ".sh"


_ALL = (
    Target("megatron", "Megatron-LM", ".sh"),
    Target("torchtitan", "torchtitan", ".toml"),
    Target("deepspeed", "DeepSpeed", ".json"),
)
TARGETS: Mapping[str, Target] = {target.name: target for target in _ALL}
"""By name."""
