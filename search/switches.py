"""Canonical combinations of the switches that do not depend on how layers are staged."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from parallelsim.search.asked import Asked
from parallelsim.search.shardings import Shardings

from parallelsim.framework import Capabilities
from parallelsim.plan import code
from parallelsim.rule_context import ModelFacts
from parallelsim.rule_software import KEEPS_FP8

HYBRID = "a2a+p2p"
SWITCHES = (
    "sequence_parallel",
    "zero",
    "cp_comm_type",
    "cp_a2a",
    "tp_comm_overlap",
    "cross_entropy_fusion",
    "cuda_graphs",
    "fp8_param_gather",
    "grad_dtype",
    "overlap_grad_reduce",
    "overlap_param_gather",
    "dp_replicate",
    "reshard_after_forward",
    "compile",
    "optimizer",
    "activation_offload_pct",
    "optimizer_offload_pct",
)
"""Fields of a row, in order."""
WITHOUT_SHAPE = (
    "zero",
    "overlap_grad_reduce",
    "overlap_param_gather",
    "dp_replicate",
    "reshard_after_forward",
    "optimizer",
    "activation_offload_pct",
    "optimizer_offload_pct",
)
"""Switches that no operator's shape depends on."""


def switch_rows(
    can: Capabilities,
    asked: Asked,
    *,
    many_tp: bool,
    cp: int,
    cp_a2a: int | None,
    many_shards: bool,
    shardings: Shardings,
    model: ModelFacts,
    precision: str,
) -> Iterator[tuple[int, ...]]:
    """Values of :data:`SWITCHES`, given which degrees are above 1.

    A mixture of experts needs sequence parallelism wherever tp > 1; latent attention and sinks
    have one kind of context parallelism. ``cp_a2a``: of the hybrid kind, None where it is left out.
    """
    sharding = (False, True) if many_tp and can.sequence_parallel else (False,)
    only = "p2p" if model.has_latent_attention else "a2a" if model.has_sinks else None
    fusion = (False, True) if can.cross_entropy_fusion else (False,)
    graphs = (False, True) if can.cuda_graphs else (False,)
    compiles = (False, True) if can.compile else (False,)
    offloads = range(101) if can.activation_offload else (0,)
    steps_on_host = range(101) if can.optimizer_offload else (0,)
    can_keep_fp8 = can.fp8_param_gather and KEEPS_FP8[code("precision", precision)]
    for (zero, replicas, reshards), (kind, dealt), fused, graph, dtype, *rest in itertools.product(
        shardings,
        _cp_kinds(can, asked, cp, cp_a2a, only),
        asked.allowed("cross_entropy_fusion", fusion[-1:], fusion),
        asked.allowed("cuda_graphs", graphs if model.experts else graphs[:1], graphs),
        asked.allowed("grad_dtype", can.grad_dtypes[:1], can.grad_dtypes),
        asked.allowed("compile", compiles[-1:], compiles),
        asked.allowed("optimizer", can.optimizers[:1], can.optimizers),
        asked.allowed("activation_offload_pct", (0,), offloads),
        asked.allowed("optimizer_offload_pct", (0,), steps_on_host),
    ):
        usual = sharding[-1:] if model.experts else sharding
        for sp in asked.allowed("sequence_parallel", usual, sharding):
            buffers = (False, True) if sp and can.tp_comm_overlap else (False,)
            fp8 = (False, True) if zero and can_keep_fp8 and not rest[-1] else (False,)
            for user_buffers, fp8_weights, overlaps in itertools.product(
                asked.allowed("tp_comm_overlap", buffers[-1:], buffers),
                asked.allowed("fp8_param_gather", fp8[-1:], fp8),
                _overlap_rows(can, asked, many_shards, zero),
            ):
                switches = (user_buffers, fused, graph, fp8_weights)
                chosen = (sp, zero, kind, dealt, *switches, dtype, *overlaps)
                yield (*chosen, replicas, reshards, *rest)


def _cp_kinds(
    can: Capabilities, asked: Asked, cp: int, cp_a2a: int | None, only: str | None
) -> list[tuple[int, int]]:
    """(cp_comm_type, cp_a2a): of the hybrid, the given split alone, or every one where the caller
    asks for the kind or for a split.
    """
    if cp == 1:
        ones = asked.allowed("cp_comm_type", ("p2p",), ("p2p",))
        return [(kind, dealt) for kind in ones for dealt in asked.allowed("cp_a2a", (1,), (1,))]
    usual = [k for k in can.cp_comm_types if only in (None, k)]
    is_asked = "cp_a2a" in asked.values or HYBRID in asked.values.get("cp_comm_type", ())
    splits = [n for n in range(2, cp) if cp % n == 0] if is_asked else [cp_a2a] if cp_a2a else []
    hybrid = code("cp_comm_type", HYBRID)
    return [
        (kind, dealt)
        for kind in asked.allowed("cp_comm_type", usual, can.cp_comm_types)
        for dealt in asked.allowed("cp_a2a", *((splits,) * 2 if kind == hybrid else ((1,),) * 2))
    ]


def hybrid_split(tp: int, cp: int, domain_size: int, heads: int) -> int | None:
    """The cp_a2a to search: the largest that keeps heads whole and the exchange inside the
    innermost tier; None where the whole group fits into that tier, or there is none.
    """
    if tp * cp <= domain_size or not heads:
        return None
    fits = [n for n in range(2, domain_size // tp + 1) if cp % n == 0 and heads % (tp * n) == 0]
    return max((n for n in fits if n < cp), default=None)


def _overlap_rows(
    can: Capabilities, asked: Asked, many_shards: bool, zero: int
) -> Iterator[tuple[int, int]]:
    """Positions of overlap_grad_reduce and overlap_param_gather."""
    reduce = (False, True) if many_shards and can.overlap_grad_reduce else (False,)
    for overlap in asked.allowed("overlap_grad_reduce", reduce[-1:], reduce):
        gather = (False, True) if overlap and zero and can.overlap_param_gather else (False,)
        for gathers in asked.allowed("overlap_param_gather", gather[-1:], gather):
            yield overlap, gathers
