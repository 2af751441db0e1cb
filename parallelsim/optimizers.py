"""Optimizers by the bytes that they keep and move: Adam in several widths, Muon, SGD."""

from __future__ import annotations

import numpy as np

from parallelsim.cluster import ClusterSpec
from parallelsim.compute import gemm_rates
from parallelsim.costs import CostTable
from parallelsim.framework import MemoryFacts
from parallelsim.operators import FP32, IS_FP8, FloatArray
from parallelsim.plan import code
from parallelsim.plan_batch import PlanBatch, by_code, largest, scaled

MXFP8 = code("precision", "mxfp8")
MUON = code("optimizer", "muon")
FP32_GRADS = code("grad_dtype", "fp32")
OPTIMIZER_STATE_FRAC = np.array([1.0, 0.5, (1 + 4 / 256) / 4, 0.5, 0.5])
"""By optimizer code: bytes of its state over Adam's two fp32 moments. 8-bit Adam keeps a byte and,
for each 256 of them, an fp32 scale (arXiv:2110.02861 section 2)."""
ADAM_BYTES = 30.0
"""Read and written for each optimizer element: fp32 gradient, master weight and both moments."""
ADAM_STATE_BYTES = 16.0
"""Of those, both moments read and written."""
NEWTON_SCHULZ_STEPS = 5
HOST_ADAM_BYTES = 28.0
"""Read and written on the host for each offloaded parameter: gradient, master weight and moments
read, all but the gradient written."""
HOST_MEMORY_EFFICIENCY = 0.43
"""Share of the CPUs' peak memory rate that their Adam reaches: 10 B parameters in 2.57 s on two
Xeon Platinum 8168 of 256 GB/s (arXiv:2101.06840 section 6, CPU-Adam). The paper's table was not
checked again: an assumption."""
CAST_BYTES = 4.0
"""For each resident parameter: the 16-bit copy and its source."""
CAST_BYTES_FP8 = 6.0
CAST_BYTES_FP8_GATHERED = 2.0
"""Where the fp8 weight itself arrives: its transpose is read and written."""


def owners(plans: PlanBatch, shards: FloatArray) -> FloatArray:
    """Ranks that share the optimizer's states of a parameter: ``shards`` with ZeRO, else 1."""
    return np.asarray(np.maximum((plans.zero > 0) * shards, 1.0))


def shard_ranks(plans: PlanBatch, ranks: FloatArray) -> FloatArray:
    """Of ``ranks`` that hold the same parameters, those that states are sharded over: a group of
    which ``dp_replicate`` replicas exist.
    """
    return ranks / plans.dp_replicate if largest(plans.dp_replicate) > 1 else ranks


def edge_optimizer_bytes(
    facts: MemoryFacts, plans: PlanBatch, shards: FloatArray, copies: FloatArray | float
) -> FloatArray | float:
    """Bytes that Muon adds for a parameter of embedding and head, which keep Adam's moments."""
    if not largest(plans.optimizer):
        return 0.0
    added = facts.optimizer_bytes * (1 - by_code(OPTIMIZER_STATE_FRAC, plans.optimizer))
    added = added / owners(plans, scaled(shard_ranks(plans, shards), copies))
    return np.where(plans.optimizer == MUON, added, 0.0)


def _cast_bytes(plans: PlanBatch) -> FloatArray:
    """Moved for each resident parameter when the optimizer has stepped, shape [P]."""
    cast = by_code(np.where(IS_FP8, CAST_BYTES_FP8, CAST_BYTES), plans.precision)
    if not largest(plans.fp8_param_gather):
        return cast
    arrives_in_fp8 = (plans.fp8_param_gather != 0) & (plans.precision != MXFP8)
    return np.where(arrives_in_fp8, CAST_BYTES_FP8_GATHERED, cast)


def host_step_time(
    cluster: ClusterSpec, parameters: FloatArray | float, plans: PlanBatch
) -> FloatArray | float:
    """Seconds in which the host steps N offloaded parameters of each GPU (docs/equations.md T25).

    max( g N / B_link, 28 N / (0.43 B_host) + w N / B_link )

    Gradients of g bytes go down while the CPU steps those that have arrived; weights of w bytes
    return after each tensor's step. B_host is a GPU's share of the CPUs' memory. Neglects: the
    first tensor's way down, and gradients that leave during the backward pass already.
    """
    link, memory = cluster.accelerator.host_bytes_per_s, cluster.host_bytes_per_s_per_gpu
    if not largest(plans.optimizer_offload_pct) or link is None or memory is None:
        return 0.0
    gradients = np.where(plans.grad_dtype == FP32_GRADS, 4.0, 2.0) * parameters / link
    weights = np.where(plans.precision == FP32, 4.0, 2.0) * parameters / link
    stepped = HOST_ADAM_BYTES * parameters / (HOST_MEMORY_EFFICIENCY * memory)
    return np.asarray(np.maximum(gradients, stepped + weights))


def optimizer_time(
    table: CostTable, parameters: FloatArray, shards: FloatArray, plans: PlanBatch
) -> FloatArray:
    """Seconds of the optimizer step: (30 N_opt + (4 | 6 fp8 | 2 gathered in fp8) N) bytes at the
    bandwidth it reaches (T14).

    30 bytes with Adam; smaller states move less. Muon orthogonalises each matrix of min side d <= h
    by five Newton-Schulz steps of at most 6 d FLOPs a parameter (arXiv:2502.16982 section 2.1).
    What is offloaded steps on the host meanwhile (:func:`host_step_time`).
    """
    accelerator = table.cluster.accelerator
    rate = accelerator.memory_bandwidth_bytes_per_s * table.framework.compute.optimizer_efficiency
    owned, resident = parameters / owners(plans, shards), parameters
    if largest(plans.zero) == 3:
        resident = np.where(plans.zero == 3, owned, parameters)
    on_host: FloatArray | float = 0.0
    if largest(plans.optimizer_offload_pct):
        on_host = owned * plans.optimizer_offload_pct / 100
        owned = owned - on_host
    moved = ADAM_BYTES * owned + _cast_bytes(plans) * resident
    if not largest(plans.optimizer):
        return np.maximum(moved / rate, host_step_time(table.cluster, on_host, plans))
    moved = moved - ADAM_STATE_BYTES * (1 - by_code(OPTIMIZER_STATE_FRAC, plans.optimizer)) * owned
    flops = NEWTON_SCHULZ_STEPS * 6.0 * table.model.hidden_size * owned
    sustained = gemm_rates(accelerator, table.framework).flops[code("precision", "bf16")]
    return np.asarray(moved / rate + np.where(plans.optimizer == MUON, flops / sustained, 0.0))
