"""Canonical combinations of the switches that do not depend on how layers are staged."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from parallelsim.search.asked import Asked
from parallelsim.search.shardings import Shardings

from parallelsim.framework import Capabilities
from parallelsim.rule_context import ModelFacts

SWITCHES = (
    "sequence_parallel",
    "zero",
    "cp_comm_type",
    "tp_comm_overlap",
    "cross_entropy_fusion",
    "cuda_graphs",
    "grad_dtype",
    "overlap_grad_reduce",
    "overlap_param_gather",
    "dp_replicate",
    "reshard_after_forward",
    "compile",
    "optimizer",
    "activation_offload_pct",
)
"""Fields of a row, in order."""


def switch_rows(
    can: Capabilities,
    asked: Asked,
    *,
    many_tp: bool,
    many_cp: bool,
    many_shards: bool,
    shardings: Shardings,
    model: ModelFacts,
) -> Iterator[tuple[int, ...]]:
    """Values of :data:`SWITCHES`, given which degrees are above 1.

    A mixture of experts needs sequence parallelism wherever tp > 1; latent attention and sinks
    have one kind of context parallelism.
    """
    sharding = (False, True) if many_tp and can.sequence_parallel else (False,)
    kinds = can.cp_comm_types if many_cp else ("p2p",)
    only = "p2p" if model.has_latent_attention else "a2a" if model.has_sinks else None
    usual_kinds = [kind for kind in kinds if only in (None, kind) or not many_cp]
    fusion = (False, True) if can.cross_entropy_fusion else (False,)
    graphs = (False, True) if can.cuda_graphs else (False,)
    compiles = (False, True) if can.compile else (False,)
    offloads = range(101) if can.activation_offload else (0,)
    for (zero, replicas), kind, fused, graph, dtype, *rest in itertools.product(
        shardings,
        asked.allowed("cp_comm_type", usual_kinds, kinds),
        asked.allowed("cross_entropy_fusion", fusion[-1:], fusion),
        asked.allowed("cuda_graphs", graphs[:1], graphs),
        asked.allowed("grad_dtype", can.grad_dtypes[:1], can.grad_dtypes),
        asked.allowed("compile", compiles[-1:], compiles),
        asked.allowed("optimizer", can.optimizers[:1], can.optimizers),
        asked.allowed("activation_offload_pct", (0,), offloads),
    ):
        usual = sharding[-1:] if model.experts else sharding
        for sp in asked.allowed("sequence_parallel", usual, sharding):
            buffers = (False, True) if sp and can.tp_comm_overlap else (False,)
            for user_buffers in asked.allowed("tp_comm_overlap", buffers[-1:], buffers):
                for overlaps in _overlap_rows(can, asked, many_shards, zero):
                    chosen = (sp, zero, kind, user_buffers, fused, graph, dtype, *overlaps)
                    for reshards in _reshard_rows(can, asked, zero):
                        yield (*chosen, replicas, reshards, *rest)


def _reshard_rows(can: Capabilities, asked: Asked, zero: int) -> list[int]:
    """Positions of reshard_after_forward."""
    positions = (True, False) if zero == 3 and can.reshard_choice else (True,)
    return asked.allowed("reshard_after_forward", positions, positions)


def _overlap_rows(
    can: Capabilities, asked: Asked, many_shards: bool, zero: int
) -> Iterator[tuple[int, int]]:
    """Positions of overlap_grad_reduce and overlap_param_gather."""
    reduce = (False, True) if many_shards and can.overlap_grad_reduce else (False,)
    for overlap in asked.allowed("overlap_grad_reduce", reduce[-1:], reduce):
        gather = (False, True) if overlap and zero and can.overlap_param_gather else (False,)
        for gathers in asked.allowed("overlap_param_gather", gather[-1:], gather):
            yield overlap, gathers
