"""Operators into seconds: rooflines with measured efficiency, vectorised over shapes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parallelsim.cluster import AcceleratorSpec
from parallelsim.framework import FrameworkSpec
from parallelsim.operators import IS_FP8, AttentionCore, FloatArray, Gemm, GroupedGemm, IntArray
from parallelsim.plan import PRECISIONS

WGRAD_RATIO = 1.06
"""Weight-gradient over forward GEMM time: SimuMax's paired shapes, 1.05 (A100) to 1.07 (B200)."""
FP8_K0_RATIO = 2.6
"""k0 of an fp8 GEMM over that of a 16-bit one (docs/equations.md T1)."""
FP8_CAST_FACTOR = 0.961
"""Measured over counted bytes of the casts (docs/equations.md T4); fitted: benchmarks/refit.py."""
UNFUSED_GEMM_EFFICIENCY = 0.568
"""Share of peak of the batched GEMMs of unfused attention (docs/equations.md T3); fitted:
benchmarks/refit.py."""
UNFUSED_MEMORY_EFFICIENCY = 0.8
"""Share of memory bandwidth of the same; assumed, as of plain streaming kernels."""
SOFTMAX_BYTES = {"fused": (4.0, 6.0), "fused-dropout": (9.0, 11.0), "eager": (28.0, 28.0)}
"""Bytes moved for each attention score, forward and backward, without flash attention (T3)."""
STREAM_EFFICIENCY = 0.782
"""Share of memory bandwidth of plain streaming kernels; fitted: benchmarks/refit.py."""
GROUPED_EXPONENT = 1.5
"""How far the experts' products hide the traffic of their weights: 1 not at all, infinity fully
(docs/equations.md T15)."""
GROUPED_MEMORY_EFFICIENCY = 0.8
"""Share of memory bandwidth of the experts' weights and tokens (docs/equations.md T15)."""


@dataclass(frozen=True, slots=True)
class GemmRates:
    """Sustained rates by precision code, each an array over ``PRECISIONS``; NaN where
    unsupported.
    """

    flops: FloatArray
    """P e_max g: what an infinite GEMM sustains."""
    bytes_in: FloatArray
    """Bytes of an input element."""
    bytes_out: FloatArray
    k0: FloatArray


def gemm_rates(accelerator: AcceleratorSpec, framework: FrameworkSpec) -> GemmRates:
    """P e_max g of every precision: burst efficiency times sustained clocks times the software's
    factor.
    """
    gemm = accelerator.gemm
    sustained = accelerator.sustained_efficiency * framework.compute.gemm_efficiency
    flops, k0 = [], []
    for name, fp8 in zip(PRECISIONS, IS_FP8.tolist(), strict=True):
        peak = peak_flops(accelerator, name)
        if fp8:
            e8 = accelerator.gemm_fp8_max_efficiency
            ratio = accelerator.fp8_sustained_ratio.get(name)
            known = e8 is not None and ratio is not None
            flops.append(peak * (e8 or 0.0) * sustained * (ratio or 0.0) if known else np.nan)
            k0.append(gemm.k0 * FP8_K0_RATIO)
        else:
            flops.append(peak * gemm.max_efficiency * sustained)
            k0.append(gemm.k0)
    bytes_out = np.where(np.array(PRECISIONS) == "fp32", 4.0, 2.0)
    return GemmRates(np.array(flops), np.where(IS_FP8, 1.0, bytes_out), bytes_out, np.array(k0))


def peak_flops(accelerator: AcceleratorSpec, precision: str) -> float:
    """Dense peak of the GEMMs of a precision, FLOP/s; NaN where the accelerator has none.

    nvfp4 is stated on twice the fp8 peak, the base of its measured ratio.
    """
    if precision == "nvfp4":
        return 2 * accelerator.peak_flops.get("fp8", np.nan)
    kind = "fp8" if precision.startswith(("fp8", "mxfp8")) else precision
    return accelerator.peak_flops.get(kind, np.nan)


def gemm_time(
    accelerator: AcceleratorSpec, rates: GemmRates, precision: IntArray, gemm: Gemm
) -> FloatArray:
    """Seconds of one GEMM.

    t = max( 2 (m + m0) (n + n0) (k + k0) / (P e_max g), bytes / (B b_w) ) + t0
    (docs/equations.md T1)

    Neglects: tile and wave quantisation (no gain on whole steps), layouts other than the forward's.
    """
    m, n, k, reads = gemm
    return _product_time(accelerator, rates, precision, (m, n, k), m * k / reads + n * k)


def _product_time(
    accelerator: AcceleratorSpec,
    rates: GemmRates,
    precision: IntArray,
    shape: tuple[FloatArray, FloatArray, FloatArray],
    read: FloatArray,
) -> FloatArray:
    """:func:`gemm_time` of m, n, k with ``read`` elements of both inputs in memory."""
    fit = accelerator.gemm
    m, n, k = shape
    flops = 2.0 * (m + fit.m0) * (n + fit.n0) * (k + rates.k0[precision])
    moved = rates.bytes_in[precision] * read + rates.bytes_out[precision] * m * n
    memory = accelerator.memory_bandwidth_bytes_per_s * fit.memory_efficiency
    return np.maximum(flops / rates.flops[precision], moved / memory) + fit.launch_s


def gemm_backward_time(
    accelerator: AcceleratorSpec, rates: GemmRates, precision: IntArray, gemm: Gemm
) -> FloatArray:
    """Seconds of both backward GEMMs: input gradient (m, k, n) and weight gradient 1.06 (n, k,
    m).
    """
    m, n, k, reads = gemm
    # The input gradient of a convolution is one too: k / reads values out of windows of n reads.
    turned = Gemm(m, k / reads, n * reads, reads)
    input_gradient = gemm_time(accelerator, rates, precision, turned)
    return input_gradient + weight_gradient_time(accelerator, rates, precision, gemm)


def weight_gradient_time(
    accelerator: AcceleratorSpec, rates: GemmRates, precision: IntArray, gemm: Gemm
) -> FloatArray:
    """Seconds of the weight gradient alone: what a split backward can put off."""
    m, n, k, reads = gemm
    read = n * m + k * m / reads
    return WGRAD_RATIO * _product_time(accelerator, rates, precision, (n, k, m), read)


def grouped_gemm_time(
    accelerator: AcceleratorSpec, rates: GemmRates, precision: IntArray, gemm: GroupedGemm
) -> FloatArray:
    """Seconds of c experts' products one after the other, forward or input gradient.

    t = c ( (F^p + M^p)^(1/p) + t0 ), F = 2 m (n + n0) (k + k0) / (P e_max g), M = bytes / (0.8 B)

    p = 1.5, n0 and k0 of the 16-bit GEMM (docs/equations.md T15). Neglects: experts of unequal size
    inside a rank.
    """
    m, n, k = gemm.m, gemm.n, gemm.k
    moved = rates.bytes_in[precision] * (m * k + n * k) + rates.bytes_out[precision] * m * n
    return _products_time(accelerator, rates, precision, gemm, moved)


def grouped_weight_gradient_time(
    accelerator: AcceleratorSpec,
    rates: GemmRates,
    precision: IntArray,
    gemm: GroupedGemm,
    gradient_bytes: FloatArray,
) -> FloatArray:
    """Seconds of the experts' weight gradients (n, k, m), each added to the gradient in memory.

    The form of :func:`grouped_gemm_time`; ``gradient_bytes`` of an element are read and written,
    which is what a few tokens an expert wait for.
    """
    m, n, k = gemm.m, gemm.n, gemm.k
    moved = rates.bytes_in[precision] * m * (n + k) + gradient_bytes * n * k
    return _products_time(accelerator, rates, precision, gemm, moved)


def _products_time(
    accelerator: AcceleratorSpec,
    rates: GemmRates,
    precision: IntArray,
    gemm: GroupedGemm,
    moved: FloatArray,
) -> FloatArray:
    """The form of :func:`grouped_gemm_time` with the bytes that one product moves."""
    fit, p = accelerator.gemm, GROUPED_EXPONENT
    flops = 2.0 * gemm.m * (gemm.n + fit.n0) * (gemm.k + fit.k0)
    compute = flops / rates.flops[precision]
    memory = moved / (accelerator.memory_bandwidth_bytes_per_s * GROUPED_MEMORY_EFFICIENCY)
    return gemm.num_products * ((compute**p + memory**p) ** (1 / p) + fit.launch_s)


def attention_time(
    accelerator: AcceleratorSpec,
    framework: FrameworkSpec,
    core: AttentionCore,
    steps: FloatArray,
    *,
    dropout: bool,
) -> tuple[FloatArray, FloatArray]:
    """Seconds of one attention core, forward and backward; ``steps`` kernels are launched (cp in a
    ring).
    """
    if framework.compute.flash_attention:
        return _flash_attention_time(accelerator, framework, core, steps)
    return _unfused_attention_time(accelerator, framework, core, dropout=dropout)


def _flash_attention_time(
    accelerator: AcceleratorSpec,
    framework: FrameworkSpec,
    core: AttentionCore,
    steps: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """T = max( F / (P e_d alpha s_l / (s_l + s0)), bytes / (B b_a) ) + t0   (docs/equations.md T2).

    alpha: this software's kernel over the measured one. Backward: a fixed ratio. Neglects fp8
    attention.
    """
    fit = accelerator.attention
    alpha = framework.compute.attention_efficiency.get(accelerator.architecture, 1.0)
    saturation = core.local_seq_length / (core.local_seq_length + fit.half_seq_length)
    rate = _sixteen_bit_peak(accelerator) * fit.efficiency(core.head_dim) * alpha * saturation
    memory = accelerator.memory_bandwidth_bytes_per_s * fit.memory_efficiency
    kernel = np.maximum(core.flops / rate, core.io_bytes / memory)
    launch = fit.launch_s * steps
    return kernel + launch, fit.backward_ratio * kernel + launch


def _unfused_attention_time(
    accelerator: AcceleratorSpec,
    framework: FrameworkSpec,
    core: AttentionCore,
    *,
    dropout: bool,
) -> tuple[FloatArray, FloatArray]:
    """Two batched GEMMs and the passes over the scores (docs/equations.md T3).

    t = 2 max( 2 N d / (0.57 P g), 2 N / (0.8 B) ) + 2 t0 + bytes N / b; twice the GEMMs backward.
    The full square is computed, also for causal masks.
    """
    bandwidth = accelerator.memory_bandwidth_bytes_per_s
    sustained = accelerator.sustained_efficiency * framework.compute.gemm_efficiency
    rate = UNFUSED_GEMM_EFFICIENCY * _sixteen_bit_peak(accelerator) * sustained
    memory = UNFUSED_MEMORY_EFFICIENCY * bandwidth
    product = np.maximum(2.0 * core.scores * core.head_dim / rate, 2.0 * core.scores / memory)
    kind = (
        "eager" if not framework.compute.fused_softmax else "fused-dropout" if dropout else "fused"
    )
    forward_bytes, backward_bytes = SOFTMAX_BYTES[kind]
    stream = STREAM_EFFICIENCY * bandwidth
    launch = accelerator.gemm.launch_s
    forward = 2 * (product + launch) + forward_bytes * core.scores / stream
    backward = 4 * (product + launch) + backward_bytes * core.scores / stream
    return forward, backward


def memory_bound_time(
    accelerator: AcceleratorSpec, framework: FrameworkSpec, moved: FloatArray
) -> FloatArray:
    """Seconds to move ``moved`` bytes in norms, activations and the like."""
    efficiency = framework.compute.memory_bound_efficiency
    return moved / (efficiency * accelerator.memory_bandwidth_bytes_per_s)


def _sixteen_bit_peak(accelerator: AcceleratorSpec) -> float:
    return accelerator.peak_flops.get("bf16", accelerator.peak_flops.get("fp16", np.nan))
