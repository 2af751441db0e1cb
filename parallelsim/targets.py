"""The software that plans are exported to: names and files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SBATCH = ".sbatch"


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
        return self.suffix in (".sh", SBATCH)


_SOFTWARE = (
    Target("megatron", "Megatron-LM", ".sh"),
    Target("megatron-bridge", "Megatron-Bridge", ".py"),
    Target("torchtitan", "torchtitan", ".toml"),
    Target("deepspeed", "DeepSpeed", ".json"),
    Target("accelerate", "Hugging Face accelerate", ".yaml"),
    Target("nanotron", "nanotron", ".yaml"),
)
_UNDER_SLURM = (Target(f"slurm-{t.name}", f"{t.title} under Slurm", SBATCH) for t in _SOFTWARE)
TARGETS: Mapping[str, Target] = {target.name: target for target in (*_SOFTWARE, *_UNDER_SLURM)}
"""By name."""

WORDS = f"{', '.join(target.name for target in _SOFTWARE)}; slurm-NAME: any of them under sbatch"
"""The names, for help texts."""
