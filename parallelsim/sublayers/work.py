"""The record that every kind of sub-layer fills, and the residual stream that all of them share.

Symbols: T = micro_batch_size * s / cp tokens of a rank; sp = tp with sequence parallelism, else 1;
h hidden size. Byte counts are those of 16-bit tensors, doubled in fp32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from parallelsim.cluster import AcceleratorSpec
from parallelsim.framework import FrameworkSpec
from parallelsim.layers import Layer
from parallelsim.model import ModelSpec
from parallelsim.operators import (
    IS_FP8,
    NARROW_BYTES,
    AttentionCore,
    FloatArray,
    Gemm,
    GroupedGemm,
    OperatorKeys,
)


@dataclass(frozen=True, slots=True, eq=False)
class Exchange:
    """Tokens sent to their experts and back, once forward and once backward each; shape [K]."""

    token_bytes: FloatArray
    """Of the tokens of this rank, one copy of each."""
    busiest: FloatArray
    """Load of the busiest rank over the mean: all wait until it has received its share."""
    copies: float
    """Experts that each token is sent to."""
    node_share: float
    """Of the groups of experts, those that one token may be sent to: where groups are nodes, the
    share of the nodes that it reaches at most.
    """
    expert_copies_bytes: FloatArray
    """Of the copies that the rank's experts take, before they are split over etp."""


@dataclass(frozen=True, slots=True, eq=False)
class Repeat:
    """A part of the forward pass that selective recompute can run again; shape [K]."""

    module: str
    """One of ``plan.MODULES``."""
    forward_bytes: FloatArray
    """Moved again by memory-bound kernels."""
    saved_bytes: FloatArray
    """Not kept for the backward pass then."""
    gemms: tuple[Gemm, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Collective:
    """A collective that a custom operator names; its counterpart runs backward."""

    kind: str
    """all-reduce, all-gather or reduce-scatter."""
    num_bytes: FloatArray
    """Of the whole tensor."""
    group: str
    """tp, or dp: the ranks outside tp and cp."""


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """What one sub-layer asks of one rank for one micro-batch; float64 arrays of shape [K]."""

    forward_bytes: FloatArray
    """Moved by norms, residuals, activations, RoPE and the like."""
    backward_bytes: FloatArray
    cast_forward_bytes: FloatArray
    """Moved by casts to fp8, where the precision has them."""
    cast_backward_bytes: FloatArray
    parameters: FloatArray
    """On the rank, without routed experts."""
    saved_bytes: FloatArray
    """Kept from forward to backward."""
    gemms: tuple[Gemm, ...] = ()
    gemms_16_bit: tuple[Gemm, ...] = ()
    """Those that never run in fp8."""
    grouped_gemms: tuple[GroupedGemm, ...] = ()
    core: AttentionCore | None = None
    expert_parameters: FloatArray | float = 0.0
    """Of routed experts: other ranks hold copies of them than of the rest."""
    tp_regions: float = 0.0
    """Tensor-parallel regions: an input gathered, an output reduced; half of one where attention
    and MLP share it.
    """
    host_share: float = 0.5
    """Launches, as a share of those of a dense layer."""
    num_local_experts: FloatArray | float = 0.0
    """Whose kernels are launched one by one."""
    exchange: Exchange | None = None
    fixed_shapes: bool = True
    """Known before the step: not where each expert takes as many tokens as are sent to it."""
    repeats: tuple[Repeat, ...] = ()
    collectives: tuple[Collective, ...] = ()
    """Beside those of the tensor-parallel regions."""
    adapters: tuple[Gemm, ...] = ()
    """GEMMs of adapters beside frozen matrices."""
    trainable_parameters: FloatArray | None = None
    """On the rank; None: all of them. Frozen ones need no weight gradients."""


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Where a sub-layer stands: its model, layer, software, and the plan fields of the shapes."""

    model: ModelSpec
    layer: Layer
    framework: FrameworkSpec
    accelerator: AcceleratorSpec
    keys: OperatorKeys

    @property
    def seq_length(self) -> int:
        """Tokens of a sequence in this layer."""
        return self.layer.seq_length or self.model.seq_length

    @property
    def tokens(self) -> FloatArray:
        """T, tokens of one micro-batch on one rank."""
        return self.keys.micro_batch_size * float(self.seq_length) / self.keys.cp

    @property
    def tp(self) -> FloatArray:
        """Tensor-parallel ranks, as floats."""
        tp: FloatArray = self.keys.tp.astype(np.float64)
        return tp

    @property
    def tp_region(self) -> float:
        """One region, or half of one where attention and MLP share it."""
        return 0.5 if self.layer.parallel else 1.0

    @property
    def width(self) -> FloatArray:
        """Bytes of an element over 2: 1, or 2 in fp32."""
        return self.keys.element_bytes / 2

    @property
    def dropout(self) -> float:
        """1.0 where the sub-layer's output is dropped out."""
        return float(self.model.hidden_dropout > 0)


def residual_stream(place: Place) -> Work:
    """Norm, residual addition and dropout around a sub-layer; its parameters are the norms'.

    Moved forward T h (6 + 4 n + [dropout])/sp, backward T h (7 + 4 n + [dropout])/sp bytes with n
    norms; an unfused RMSNorm adds 44 and 72. Saved 4 n h/sp bytes a token, fp32 copies of an eager
    RMSNorm, and a dropout mask (arXiv:2205.05198 section 4.1, docs/equations.md T4 and M).
    """
    model, layer, memory = place.model, place.layer, place.framework.memory
    norms = layer.num_norms / layer.num_streams
    hidden = place.tokens * model.hidden_size / place.keys.sequence_shards
    moved = 4.0 * norms + place.dropout
    eager = model.norm == "rmsnorm"
    unfused: FloatArray | float = float(eager and not place.framework.compute.fused_rmsnorm)
    if unfused:
        unfused = np.where(place.keys.compile > 0, 0.0, unfused)
    copies = np.where(place.keys.compile > 0, 0.0, eager * memory.unfused_norm_bytes / 2)
    kept = 4.0 * norms + place.dropout + copies
    zeros = np.zeros_like(hidden)
    # In fp8 the GEMM keeps its quantised input, not the norm's output.
    output = 1.0 - spared_bytes(place, np.ones_like(hidden)) / 2
    normed = Repeat(
        "layernorm", place.width * hidden * 4.0 * norms, place.width * hidden * 2.0 * norms * output
    )
    return Work(
        forward_bytes=place.width * hidden * (6.0 + moved + 44.0 * unfused),
        backward_bytes=place.width * hidden * (7.0 + moved + 72.0 * unfused),
        cast_forward_bytes=zeros,
        cast_backward_bytes=zeros,
        parameters=np.full_like(hidden, norms * model.norm_parameters()),
        saved_bytes=place.width * hidden * kept,
        repeats=(normed,),
    )


def with_own(stream: Work, place: Place, saved_bytes: FloatArray, **own: object) -> Work:
    """The sub-layer's own work on top of its residual stream; ``saved_bytes`` of 16-bit tensors."""
    added = {
        name: getattr(stream, name) + value
        for name, value in own.items()
        if name in ("forward_bytes", "backward_bytes", "parameters", "repeats")
    }
    kept = stream.saved_bytes + place.width * saved_bytes
    return replace(stream, saved_bytes=kept, **{**own, **added})


def cast_bytes(place: Place, columns: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Bytes that casts to fp8 move in one tensor-parallel region, forward and backward, before the
    factor of ``compute`` (docs/equations.md T4).

    forward  2 h [tp > 1, transposes]
    backward c x + c h/sp + the same transpose

    with x ``columns`` of the first GEMM's output, whose gradient is cast, and c of :func:`cast_of`.
    Hopper's fp8 GEMMs want the gathered input of a weight gradient transposed; frozen weights have
    none. Current scaling takes a tensor's maximum in the kernel that writes it (Transformer Engine
    pull requests 2004 and 2013, 2025); before, one more pass read it.
    """
    keys, h = place.keys, place.model.hidden_size
    hidden = h / keys.sequence_shards
    transposes = place.accelerator.architecture == "hopper" and place.model.lora is None
    transposed = 2.0 * h * ((keys.tp > 1) & transposes)
    backward = cast_of(place) * (columns + hidden) + transposed
    return place.tokens * transposed, place.tokens * backward


def cast_of(place: Place) -> float:
    """Bytes that the cast of one element moves: 2 read and 1 written, 1 more for the weight
    gradient, which frozen weights have none of (Transformer Engine pytorch/module/linear.py:
    ``columnwise=backward_needs_input``, that is ``weight.requires_grad``).
    """
    return 4.0 if place.model.lora is None else 3.0


def spared_bytes(place: Place, elements: FloatArray) -> FloatArray:
    """Bytes that fp8 GEMM inputs save over 16-bit ones; ``elements`` of one micro-batch."""
    precision, stated = place.keys.precision, place.framework.memory.fp8_input_bytes
    kept = np.minimum(stated * NARROW_BYTES[precision], 2.0)
    return np.where(IS_FP8[precision], 2.0 - kept, 0.0) * elements


def gathered_input_bytes(place: Place) -> FloatArray:
    """Whole tensors of one of a layer's two tensor-parallel regions kept for the backward pass."""
    each = place.framework.memory.gathered_layer_bytes / 2 * place.model.hidden_size
    return place.tokens * np.where(place.keys.sequence_parallel > 0, each, 0.0)
