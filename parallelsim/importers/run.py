"""A run that some file describes: a model, the fields of a plan, and what was passed over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from parallelsim.errors import PlanError
from parallelsim.model import ModelSpec
from parallelsim.plan import Plan, check_field

Fields = dict[str, Any]
Settled = Callable[[Fields, int], Fields]
"""(fields, dp) -> fields with those that depend on the number of replicas."""


@dataclass(frozen=True)
class ImportedRun:
    """What a script or a configuration trains and how."""

    model: ModelSpec
    is_known: bool
    """The catalogue has the model under its name."""
    fields: Mapping[str, Any]
    """Of the plan, as a plan file states them, but for ``dp``."""
    num_gpus: int | None
    """Nodes times processes of a node; None where the script does not say."""
    ignored: tuple[str, ...]
    """Flags that change nothing that is predicted."""
    not_modelled: tuple[str, ...]
    """Flags that may change time or memory, and that predictions do not know."""
    unknown: tuple[str, ...]
    """Flags that are none of those that are read or passed over here."""
    notes: tuple[str, ...]
    """What was taken otherwise than it is written, or not followed."""
    framework: str = "megatron-core"
    """Whose facts predict it best."""
    settled: Settled = lambda fields, dp: fields

    def plan(self, num_gpus: int) -> Plan:
        """The plan on so many GPUs.

        Raises:
            PlanError: the degrees do not divide them, or a field is malformed.
        """
        used = 1
        for name in ("tp", "cp", "pp"):
            check_field(name, self.fields[name])
            used *= int(self.fields[name])
        if num_gpus % used:
            words = " x ".join(f"{name}={self.fields[name]}" for name in ("tp", "cp", "pp"))
            raise PlanError(f"{words} = {used} does not divide {num_gpus} GPUs (--gpus)")
        dp = num_gpus // used
        fields = self.settled(dict(self.fields), dp)
        batch = fields.pop("global_batch_size") or fields["micro_batch_size"] * dp
        return Plan.from_dict(fields | {"dp": dp, "global_batch_size": batch})
