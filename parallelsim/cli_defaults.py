"""Plan fields that ``simulate`` is not given: what ``plan`` would search first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parallelsim.framework import FrameworkSpec
from parallelsim.model import ModelSpec
from parallelsim.plan import Plan


def with_searched_defaults(
    fields: Mapping[str, Any], model: ModelSpec, framework: FrameworkSpec
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields with those that are left out filled in, and what was filled in.

    Degrees are given or 1. Switches are on where the search has only their on position: where the
    degrees and the framework allow them. Only what differs from a bare :class:`Plan` is named.
    """
    can = framework.capabilities
    tp, cp, dp = (int(fields.get(name, 1)) for name in ("tp", "cp", "dp"))
    assumed: dict[str, Any] = {}

    def assume(name: str, value: Any) -> Any:
        if name not in fields and value != getattr(_BARE, name):
            assumed[name] = value
        return fields.get(name, value)

    tokens = model.seq_length // cp
    sharded = tp > 1 and can.sequence_parallel and tokens % tp == 0
    sequence_parallel = assume("sequence_parallel", sharded)
    many = dp * cp > 1
    zero = assume("zero", (1 if 1 in can.zero_stages else can.zero_stages[-1]) if many else 0)
    reduce = assume("overlap_grad_reduce", many and can.overlap_grad_reduce)
    assume("overlap_param_gather", bool(zero and reduce and can.overlap_param_gather))
    assume("tp_comm_overlap", bool(sequence_parallel and can.tp_comm_overlap))
    assume("cross_entropy_fusion", can.cross_entropy_fusion)
    assume("compile", can.compile)
    assume("grad_dtype", can.grad_dtypes[0])
    if cp > 1 and can.cp_comm_types:
        assume("cp_comm_type", can.cp_comm_types[0])
    return {**fields, **assumed}, assumed


_BARE = Plan()


def assumed_words(assumed: Mapping[str, Any]) -> str:
    """``sequence_parallel on, zero 1``; empty where nothing was filled in."""
    words = [
        f"{name} {'on' if value is True else 'off' if value is False else value}"
        for name, value in assumed.items()
    ]
    return ", ".join(words)
