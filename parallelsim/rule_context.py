"""What the rules read, and what they are made of.

A :class:`Rule` asks a batch of plans one question, given a :class:`Context`. Integer arithmetic
only. Fields may be as large as a :class:`Plan` allows, 2^31, so factors are clipped before they are
multiplied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallelsim.cluster import ClusterSpec
from parallelsim.framework import FrameworkSpec
from parallelsim.layers import (
    MLP,
    Attention,
    LatentAttention,
    Layer,
    MixtureOfExperts,
    SelectiveScan,
    StateSpace,
)
from parallelsim.model import ModelSpec
from parallelsim.plan import IntArray, Plan
from parallelsim.plan_batch import PlanBatch

BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ExpertFacts:
    """Of a model's mixtures of experts; greatest common divisors where layers differ."""

    num_experts: int
    ffn: int
    top_k: int
    """The largest."""
    has_biases: bool
    has_capacity: bool
    is_balanced: bool
    """Every expert gets as many tokens."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What rules read of a model; numbers are 0, and tuples empty, where it has no such part."""

    num_layers: int
    num_mtp_layers: int
    num_trainable_parameters: int
    seq_length: int
    """That has to divide: the greatest common divisor where layers see sequences of their own."""
    heads: int
    """Query heads; the greatest common divisor where layers differ (tp divides it or not)."""
    groups: tuple[int, ...]
    """Key/value heads of each kind of softmax attention, without latent attention."""
    ffn: int
    """Feed-forward width, shared experts included; the greatest common divisor."""
    window: int | None
    """The shortest sliding window that is shorter than the sequence."""
    has_latent_attention: bool
    has_sinks: bool
    has_cross_attention: bool
    """Or layers over another sequence: an encoder."""
    scan_heads: int
    """Heads of state-space layers; the greatest common divisor."""
    scan_groups: int
    experts: ExpertFacts | None
    custom_splits_over_tp: bool
    """Every layer of custom operators says what tp divides (or there is none)."""
    has_alike_inputs: bool
    """No layer of custom operators states an input of its own, or all state the same."""
    kinds: tuple[str, ...]
    """Of sub-layers, by the names of ``Capabilities.sublayers``."""


@dataclass(frozen=True, slots=True)
class Context:
    """What rules read besides the plans: facts of the inputs, and arrays [P] that rules share."""

    model: ModelFacts
    cluster: ClusterSpec
    framework: FrameworkSpec
    tp_cp: IntArray
    chunks: IntArray
    """Virtual stages pp * vpp."""
    samples: IntArray
    """Sequences that one micro-batch of all replicas takes: micro_batch_size * dp."""
    num_micro_batches: IntArray
    """Rounded down; 0 where the global batch is smaller than one micro-batch of all replicas."""

    @property
    def num_gpus(self) -> int:
        """Of the cluster."""
        return self.cluster.num_gpus


@dataclass(frozen=True, slots=True)
class Rule:
    """One reason for which a plan cannot run."""

    name: str
    summary: str
    """What must hold, in one line."""
    broken: Callable[[Context, PlanBatch], BoolArray | bool]
    """Which plans break it, shape [P]; plain False where no plan of the batch can."""
    explain: Callable[[Context, Plan], str]
    """For a plan that breaks it: the numbers, and what to do."""
    reads_staging: bool = False
    """Depends on layout, virtual stages, schedule or recompute."""
    reads_plan: bool = True
    """False where model, cluster and framework alone decide."""


def model_facts(model: ModelSpec) -> ModelFacts:
    """The facts of one model."""
    layers = [*(layer for layer, _ in model.layer_kinds), *model.mtp_layers]
    parts = [part for layer in layers for part in layer.sublayers]
    softmax = [part for part in parts if isinstance(part, Attention)]
    latent = [part for part in parts if isinstance(part, LatentAttention)]
    scans = [part for part in parts if isinstance(part, StateSpace | SelectiveScan)]
    windows = [a.window for a in softmax if a.window is not None and a.window < model.seq_length]
    own = [layer.seq_length for layer in layers if layer.seq_length]
    others = own + [a.kv_seq_length for a in softmax if a.kv_seq_length]
    return ModelFacts(
        num_layers=model.num_layers,
        num_mtp_layers=model.num_mtp_layers,
        num_trainable_parameters=model.num_trainable_parameters,
        seq_length=math.gcd(model.seq_length, *others),
        heads=math.gcd(*(a.num_heads for a in softmax), *(a.num_heads for a in latent)),
        groups=tuple(sorted({a.num_query_groups for a in softmax})),
        ffn=math.gcd(*(_dense_width(part) for part in parts)),
        window=min(windows, default=None),
        has_latent_attention=bool(latent),
        has_sinks=any(a.sinks for a in softmax),
        has_cross_attention=any(n != model.seq_length for n in others)
        or any(layer.cross_attention is not None for layer in layers),
        scan_heads=math.gcd(*(part.num_heads for part in scans)),
        scan_groups=math.gcd(*(part.num_groups for part in scans)),
        experts=_expert_facts([p for p in parts if isinstance(p, MixtureOfExperts)]),
        custom_splits_over_tp=all(
            layer.custom.splits_over("tp") for layer in layers if layer.custom
        ),
        has_alike_inputs=len({layer.custom and layer.custom.input_values for layer in layers}) == 1,
        kinds=_kinds(layers, bool(model.customs)),
    )


def _dense_width(part: object) -> int:
    """Feed-forward width that tensor parallelism splits; 0: none."""
    if isinstance(part, MLP):
        return part.ffn_hidden_size
    return part.shared_ffn_hidden_size if isinstance(part, MixtureOfExperts) else 0


def _expert_facts(parts: Sequence[MixtureOfExperts]) -> ExpertFacts | None:
    if not parts:
        return None
    return ExpertFacts(
        num_experts=math.gcd(*(part.num_experts for part in parts)),
        ffn=math.gcd(*(part.ffn_hidden_size for part in parts)),
        top_k=max(part.top_k for part in parts),
        has_biases=any(part.bias for part in parts),
        has_capacity=any(part.capacity_factor is not None for part in parts),
        is_balanced=not any(part.load_cv for part in parts),
    )


def _kinds(layers: Sequence[Layer], has_customs: bool) -> tuple[str, ...]:
    """In the order of :data:`parallelsim.framework.SUBLAYERS`."""
    softmax = [layer.attention for layer in layers if isinstance(layer.attention, Attention)]
    has = {
        "attention": bool(softmax),
        "attention-sinks": any(a.sinks for a in softmax),
        "latent-attention": any(isinstance(layer.attention, LatentAttention) for layer in layers),
        "cross-attention": any(layer.cross_attention is not None for layer in layers),
        "state-space": any(isinstance(layer.state_space, StateSpace) for layer in layers),
        "selective-scan": any(isinstance(layer.state_space, SelectiveScan) for layer in layers),
        "mlp": any(layer.mlp is not None for layer in layers),
        "experts": any(layer.experts is not None for layer in layers),
        "custom": has_customs,
    }
    return tuple(name for name, found in has.items() if found)


def context_of(
    model: ModelSpec, cluster: ClusterSpec, framework: FrameworkSpec, plans: PlanBatch
) -> Context:
    """The context of one batch."""
    samples = plans.micro_batch_size * plans.dp
    return Context(
        model=model_facts(model),
        cluster=cluster,
        framework=framework,
        tp_cp=plans.tp * plans.cp,
        chunks=plans.pp * plans.vpp,
        samples=samples,
        num_micro_batches=_micro_batches(plans.global_batch_size, samples),
    )


def _micro_batches(global_batch_size: IntArray, samples: IntArray) -> IntArray:
    quotient: IntArray = global_batch_size // np.maximum(samples, 1)
    return quotient


def by_value(values: IntArray, predicate: Callable[[IntArray], BoolArray]) -> BoolArray:
    """``predicate(values)``, by a table where values are small: a gather beats a division."""
    top = int(values.max(initial=0))
    if top >= values.size:
        return predicate(np.maximum(values, 1))
    return predicate(np.maximum(np.arange(top + 1), 1))[values]


def is_everywhere(column: IntArray, value: int) -> bool:
    """Whether the column is one number seen P times, namely this one: no plan need be asked."""
    return column.strides == (0,) and len(column) > 0 and int(column[0]) == value


def does_not_divide(divisors: IntArray, number: int) -> BoolArray:
    """Where ``number`` is no multiple of the divisor."""

    def predicate(divisor: IntArray) -> BoolArray:
        broken: BoolArray = number % divisor != 0
        return broken

    return by_value(divisors, predicate)


def unsupported(
    codes: IntArray, names: Sequence[str | int], supported: Iterable[str | int]
) -> BoolArray | bool:
    """Where the name behind the code is not among the supported ones."""
    known = set(supported)
    refused = np.array([name not in known for name in names])
    return refused[codes] if refused.any() else False


def all_plans(p: PlanBatch) -> BoolArray:
    """Every plan of the batch, for rules that the plans do not decide."""
    return np.ones(len(p), bool)


def choices(names: Iterable[Any]) -> str:
    """The names in words."""
    return ", ".join(str(name) for name in names) or "none"
