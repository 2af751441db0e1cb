"""Seconds of one sub-layer on one rank: its products, attention core, memory passes and launches.

All functions return arrays of shape [K], one entry for each key.
"""

from __future__ import annotations

import numpy as np

from parallelsim.cluster import AcceleratorSpec
from parallelsim.collectives import Network
from parallelsim.compute import (
    FP8_CAST_FACTOR,
    STREAM_EFFICIENCY,
    GemmRates,
    attention_time,
    gemm_backward_time,
    gemm_time,
    grouped_gemm_time,
    grouped_weight_gradient_time,
    memory_bound_time,
    weight_gradient_time,
)
from parallelsim.framework import FrameworkSpec
from parallelsim.model import ModelSpec
from parallelsim.operators import (
    IS_FP8,
    AttentionCore,
    FloatArray,
    Gemm,
    IntArray,
    OperatorKeys,
)
from parallelsim.plan import code
from parallelsim.sublayers import Work

GRADIENT_ACCUMULATION_BYTES = (10.0, 6.0)
"""Moved for each parameter and micro-batch where weight gradients are added outside the GEMM, with
fp32 and with 16-bit gradients (T5)."""

GRADIENT_ACCUMULATION_SHARE = 1.0
"""Of those bytes that the clock shows (T5)."""

FP32_GRADIENTS = code("grad_dtype", "fp32")


def products(
    asked: Work,
    accelerator: AcceleratorSpec,
    framework: FrameworkSpec,
    rates: GemmRates,
    keys: OperatorKeys,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Seconds of all GEMMs: forward, backward, and the weight gradients' part of backward.

    Frozen weights have none; their adapters do.
    """
    forward = backward = weight = np.zeros(len(keys.tp))
    if asked.trainable_parameters is not None:
        return _frozen_products(asked, accelerator, rates, keys)
    plain = [(gemm, keys.precision) for gemm in asked.gemms]
    plain += [(gemm, sixteen_bit(keys)) for gemm in asked.gemms_16_bit]
    for gemm, precision in plain:
        forward = forward + gemm_time(accelerator, rates, precision, gemm)
        backward = backward + gemm_backward_time(accelerator, rates, precision, gemm)
        weight = weight + weight_gradient_time(accelerator, rates, precision, gemm)
    for grouped in asked.grouped_gemms:
        inputs = grouped._replace(n=grouped.k, k=grouped.n)
        once = grouped_weight_gradient_time(
            accelerator, rates, keys.precision, grouped, _gradient_traffic(framework, keys)
        )
        forward = forward + grouped_gemm_time(accelerator, rates, keys.precision, grouped)
        backward = backward + once
        backward = backward + grouped_gemm_time(accelerator, rates, keys.precision, inputs)
        weight = weight + once
    return forward, backward, weight


def _frozen_products(
    asked: Work, accelerator: AcceleratorSpec, rates: GemmRates, keys: OperatorKeys
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The same where the weights are frozen: backward is (m, k, n) alone, for adapters both."""
    forward = backward = weight = np.zeros(len(keys.tp))
    in_16_bit = sixteen_bit(keys)
    frozen = [(gemm, keys.precision) for gemm in asked.gemms]
    frozen += [(gemm, in_16_bit) for gemm in asked.gemms_16_bit]
    for gemm, precision in frozen:
        forward = forward + gemm_time(accelerator, rates, precision, gemm)
        turned = Gemm(gemm.m, gemm.k, gemm.n)
        backward = backward + gemm_time(accelerator, rates, precision, turned)
    for grouped in asked.grouped_gemms:
        inputs = grouped._replace(n=grouped.k, k=grouped.n)
        forward = forward + grouped_gemm_time(accelerator, rates, keys.precision, grouped)
        backward = backward + grouped_gemm_time(accelerator, rates, keys.precision, inputs)
    for gemm in asked.adapters:
        forward = forward + gemm_time(accelerator, rates, in_16_bit, gemm)
        backward = backward + gemm_backward_time(accelerator, rates, in_16_bit, gemm)
        weight = weight + weight_gradient_time(accelerator, rates, in_16_bit, gemm)
    return forward, backward, weight


def repeats(
    asked: Work,
    network: Network,
    framework: FrameworkSpec,
    rates: GemmRates,
    keys: OperatorKeys,
) -> tuple[FloatArray, FloatArray]:
    """(seconds, bytes not kept) of the parts of the forward pass that selective recompute runs
    again; neglects their launches.
    """
    accelerator = network.cluster.accelerator
    seconds = spared = np.zeros(len(keys.tp))
    for repeat in asked.repeats:
        chosen = keys.recomputes(repeat.module)
        if not chosen.any():
            continue
        once = memory_bound_time(accelerator, framework, repeat.forward_bytes)
        for gemm in repeat.gemms:
            once = once + gemm_time(accelerator, rates, keys.precision, gemm)
        seconds = seconds + np.where(chosen, once, 0.0)
        spared = spared + np.where(chosen, repeat.saved_bytes, 0.0)
    return seconds, spared


def _gradient_traffic(framework: FrameworkSpec, keys: OperatorKeys) -> FloatArray:
    """Bytes of a weight's gradient that its GEMM moves: read, added to and written in the type of
    the gradients, or written alone in 16 bits where the addition is a pass of its own.
    """
    if not framework.compute.fused_grad_accumulation:
        return np.full(len(keys.tp), 2.0)
    memory = framework.memory
    held = np.where(
        keys.grad_dtype == FP32_GRADIENTS, memory.grad_bytes_fp32, memory.grad_bytes_bf16
    )
    return 2.0 * held


def sixteen_bit(keys: OperatorKeys) -> IntArray:
    """Precision codes of what stays in 16 bits where the blocks' GEMMs run in fp8."""
    return np.where(IS_FP8[keys.precision], code("precision", "bf16"), keys.precision)


def attention(
    core: AttentionCore,
    model: ModelSpec,
    network: Network,
    framework: FrameworkSpec,
    keys: OperatorKeys,
) -> tuple[FloatArray, FloatArray]:
    """Seconds of the attention core, forward and backward, in as many kernels as the ring has
    steps.
    """
    core = core._replace(local_seq_length=core.local_seq_length * keys.dealt)
    dropout = model.attention_dropout > 0
    accelerator = network.cluster.accelerator
    return attention_time(accelerator, framework, core, keys.ring, dropout=dropout)


def memory_bound(
    asked: Work, network: Network, framework: FrameworkSpec, keys: OperatorKeys
) -> tuple[FloatArray, FloatArray]:
    """Seconds of memory passes, casts and separate gradient accumulation, forward and backward."""
    accelerator = network.cluster.accelerator
    is_fp8 = np.where(IS_FP8[keys.precision], FP8_CAST_FACTOR, 0.0)
    forward = asked.forward_bytes + is_fp8 * asked.cast_forward_bytes
    backward = asked.backward_bytes + is_fp8 * asked.cast_backward_bytes
    left = np.where(keys.compile > 0, framework.compute.compiled_memory_bound_frac, 1.0)
    forward_s = left * memory_bound_time(accelerator, framework, forward)
    backward_s = left * memory_bound_time(accelerator, framework, backward)
    if not framework.compute.fused_grad_accumulation:
        stream = STREAM_EFFICIENCY * accelerator.memory_bandwidth_bytes_per_s
        added = np.where(keys.grad_dtype == FP32_GRADIENTS, *GRADIENT_ACCUMULATION_BYTES)
        parameters = asked.parameters + asked.expert_parameters
        if asked.trainable_parameters is not None:
            parameters = asked.trainable_parameters
        backward_s = backward_s + GRADIENT_ACCUMULATION_SHARE * added * parameters / stream
    return forward_s, backward_s


def launches(
    framework: FrameworkSpec, asked: Work, keys: OperatorKeys
) -> tuple[FloatArray, FloatArray]:
    """CPU seconds to launch one sub-layer, forward and backward (docs/equations.md T6, T15).

    c share (1 + a [tp > 1] + b [cp > 1]), and for experts their own: c_e + n_local c_1 (twice that
    backward) and, unless a capacity fixes the shapes, the wait for the tokens' counts. Graphs hold
    a whole layer of fixed shapes, else not its experts. The layer's stall is (gpu^p + cpu^p)^(1/p)
    - gpu.
    """
    host = framework.host
    factor = 1 + host.tp_factor * (keys.tp > 1) + host.cp_factor * (keys.cp > 1)
    graphs = keys.cuda_graphs > 0
    factor = factor * np.where(graphs, host.cuda_graph_factor, 1.0)
    factor = factor * np.where(keys.compile > 0, host.compile_factor, 1.0)
    forward = asked.host_share * host.layer_forward_s * factor
    backward = asked.host_share * host.layer_backward_s * factor
    if asked.exchange is not None:
        fixed = asked.fixed_shapes
        left = host.cuda_graph_factor if fixed else host.experts_graph_factor
        kept = np.where(graphs, left, 1.0)
        sync = 0.0 if fixed else host.dropless_sync_s
        each = host.local_expert_s * asked.num_local_experts
        each = each * np.where(graphs & fixed, left, 1.0)
        forward = forward + kept * host.experts_forward_s + each + sync
        backward = backward + kept * host.experts_backward_s + 2 * each
    return forward, backward


def stall(gpu_s: FloatArray, cpu_s: FloatArray, p: float) -> FloatArray:
    """(gpu^p + cpu^p)^(1/p) - gpu, scaled so that no power overflows."""
    larger = np.maximum(gpu_s, cpu_s)
    return larger * ((gpu_s / larger) ** p + (cpu_s / larger) ** p) ** (1 / p) - gpu_s
