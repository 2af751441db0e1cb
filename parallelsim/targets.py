"""The software that plans are exported to: names, files, and how a file is started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_TORCHRUN = (
    'torchrun --nnodes "${NODES}" --nproc_per_node "${GPUS}" --node_rank "${NODE_RANK}" '
    '--master_addr "${MASTER_ADDR}" --master_port "${MASTER_PORT}"'
)


@dataclass(frozen=True)
class Target:
    """Software that a plan can be written for; ``exporters`` has the writers under its name."""

    name: str
    title: str
    suffix: str
    """Of the file's name."""
    start: str
    """What starts the file on one node, in bash; FILE, NODES, NODE_RANK, GPUS (of a node),
    MASTER_ADDR and MASTER_PORT are set."""

    @property
    def is_script(self) -> bool:
        """The file is run, not read by the software."""
        return self.suffix == ".sh"


_ALL = (
    Target("megatron", "Megatron-LM", ".sh", 'bash "${FILE}"'),
    Target(
        "torchtitan",
        "torchtitan",
        ".toml",
        f'{_TORCHRUN} -m torchtitan.train --job.config_file "${{FILE}}"',
    ),
)
TARGETS: Mapping[str, Target] = {target.name: target for target in _ALL}
"""By name."""
