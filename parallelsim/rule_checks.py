"""The vectorised half of the rules: which plans of a batch break which one.

Every function takes a :class:`Context` and a :class:`PlanBatch` and returns bool[P], True where the
plan breaks the rule, or plain False where no plan of the batch can. Integer arithmetic only. Fields
may be as large as a :class:`Plan` allows, 2^31, so factors are clipped before they are multiplied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parallelsim.cluster import ClusterSpec
from parallelsim.framework import FrameworkSpec
from parallelsim.model import ModelSpec
from parallelsim.plan import CP_COMM_TYPES, MAX_DEGREE, IntArray, PlanBatch, code

BoolArray = NDArray[np.bool_]

SWITCHES = (
    "sequence_parallel",
    "tp_comm_overlap",
    "overlap_grad_reduce",
    "overlap_param_gather",
    "cross_entropy_fusion",
    "cuda_graphs",
)
"""Plan switches that a framework may not have (fields of ``Capabilities`` under the same names)."""
RECOMPUTE_KINDS = ("none", "selective", "full", "block")
"""``block`` is ``full`` with a number of layers."""
EXTRA_LAYERS = (0, 1, 1, 2, 0, 0)
"""By layout: how many of embedding and loss count as a layer when layers are cut into stages."""

NONE, INTERLEAVED = code("schedule", "none"), code("schedule", "interleaved-1f1b")
EVEN, FIRST_LAST = code("layout", "even"), code("layout", "first-last")
FREE = code("layout", "free")
EMBEDDING_LOSS = code("layout", "embedding-loss")
FULL = code("recompute", "full")
P2P, A2A = code("cp_comm_type", "p2p"), code("cp_comm_type", "a2a")
FP32, FP32_GRADS = code("precision", "fp32"), code("grad_dtype", "fp32")


@dataclass(frozen=True, slots=True)
class Context:
    """What rules read besides the plans: facts of the inputs, and arrays [P] that rules share."""

    num_gpus: int
    seq_length: int
    num_layers: int
    heads: int
    """Query heads; the greatest common divisor where layers differ (tp divides it or not)."""
    groups: tuple[int, ...]
    """Key/value heads of each kind of layer."""
    ffn: int
    """Feed-forward width; the greatest common divisor where layers differ."""
    window: int | None
    """The shortest sliding window that is shorter than the sequence."""
    cluster: ClusterSpec
    framework: FrameworkSpec
    tp_cp: IntArray
    chunks: IntArray
    """Virtual stages pp * vpp."""
    samples: IntArray
    """Sequences that one micro-batch of all replicas takes: micro_batch_size * dp."""
    num_micro_batches: IntArray
    """Rounded down; 0 where the global batch is smaller than one micro-batch of all replicas."""


def context_of(
    model: ModelSpec, cluster: ClusterSpec, framework: FrameworkSpec, plans: PlanBatch
) -> Context:
    """The context of one batch."""
    attentions = [layer.attention for layer, _ in model.layer_kinds]
    windows = [a.window for a in attentions if a.window is not None and a.window < model.seq_length]
    samples = plans.micro_batch_size * plans.dp
    return Context(
        num_gpus=cluster.num_gpus,
        seq_length=model.seq_length,
        num_layers=model.num_layers,
        heads=math.gcd(*(a.num_heads for a in attentions)),
        groups=tuple(sorted({a.num_query_groups for a in attentions})),
        ffn=math.gcd(*(layer.mlp.ffn_hidden_size for layer, _ in model.layer_kinds)),
        window=min(windows, default=None),
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


def _one_if_equal(values: IntArray) -> IntArray:
    """The first value alone where all are equal: numpy divides far faster by one number."""
    return values[:1] if (values == values[0]).all() else values


def does_not_divide(divisors: IntArray, number: int) -> BoolArray:
    """Where ``number`` is no multiple of the divisor."""

    def predicate(divisor: IntArray) -> BoolArray:
        broken: BoolArray = number % divisor != 0
        return broken

    return by_value(divisors, predicate)


def uses_other_gpus(c: Context, p: PlanBatch) -> BoolArray:
    """The product of the degrees is not the cluster's size."""
    # A factor above num_gpus is wrong at any size: clipping keeps the product inside int64.
    limit = min(c.num_gpus + 1, MAX_DEGREE)
    broken: BoolArray = np.minimum(c.tp_cp, limit) * np.minimum(p.pp * p.dp, limit) != c.num_gpus
    return broken


def splits_groups(c: Context, p: PlanBatch) -> BoolArray:
    """Key/value heads neither divide over tp nor are replicated evenly."""
    replicates = c.framework.capabilities.kv_replication

    def predicate(tp: IntArray) -> BoolArray:
        broken = np.zeros(tp.shape, np.bool_)
        for groups in c.groups:
            uneven = groups % tp != 0
            broken |= uneven & (tp % groups != 0) if replicates else uneven
        return broken

    return by_value(p.tp, predicate)


def cp_splits_sequence(c: Context, p: PlanBatch) -> BoolArray | bool:
    """The sequence does not divide into the 2 cp pieces that balance causal attention."""
    on = p.cp > 1
    if not on.any():
        return False

    def predicate(cp: IntArray) -> BoolArray:
        uneven: BoolArray = c.seq_length % (2 * cp) != 0
        return uneven

    broken: BoolArray = on & by_value(p.cp, predicate)
    return broken


def tp_splits_sequence(c: Context, p: PlanBatch) -> BoolArray | bool:
    """With sequence parallelism, a rank's tokens do not divide over tp."""
    on = p.sequence_parallel != 0
    if not on.any():
        return False
    broken: BoolArray = on & does_not_divide(c.tp_cp, c.seq_length)
    return broken


def a2a_splits_heads(c: Context, p: PlanBatch) -> BoolArray | bool:
    """All-to-all context parallelism cannot give each rank whole heads."""
    on = (p.cp > 1) & (p.cp_comm_type == A2A)
    if not on.any():
        return False
    broken: BoolArray = on & does_not_divide(c.tp_cp, math.gcd(c.heads, *c.groups))
    return broken


def window_in_ring(c: Context, p: PlanBatch) -> BoolArray | bool:
    """The context-parallel ring would have to run sliding-window attention."""
    return False if c.window is None else (p.cp > 1) & (p.cp_comm_type == P2P)


def batch_splits(c: Context, p: PlanBatch) -> BoolArray:
    """The global batch is no whole number (at least 1) of micro-batches of all replicas."""
    whole = c.num_micro_batches * c.samples == p.global_batch_size
    broken: BoolArray = ~(whole & (c.num_micro_batches > 0))
    return broken


def layers_uneven(c: Context, p: PlanBatch) -> BoolArray:
    """Layers, counted as the layout says, do not divide over the virtual stages."""
    extra = np.array(EXTRA_LAYERS)[p.layout]
    # One key for (chunks, extra): chunks beyond num_layers + 2 are all alike, they never divide.
    key = np.minimum(c.chunks, c.num_layers + 3) * 3 + extra

    def predicate(k: IntArray) -> BoolArray:
        uneven: BoolArray = (c.num_layers + k % 3) % np.maximum(k // 3, 1) != 0
        return uneven

    broken: BoolArray = by_value(key, predicate) & (p.layout < FIRST_LAST)
    return broken


def first_last_wrong(c: Context, p: PlanBatch) -> BoolArray:
    """Layout first-last leaves unequal or empty stages; another layout names a stage's layers."""
    chosen = p.layout == FIRST_LAST
    broken: BoolArray = ~chosen & ((p.first_stage_layers | p.last_stage_layers) != 0)
    index = np.flatnonzero(chosen)
    if index.size:
        first, last = p.first_stage_layers[index], p.last_stage_layers[index]
        vpp = _one_if_equal(np.maximum(p.vpp[index], 1))
        between = _one_if_equal(p.pp[index] - 2)
        rest = c.num_layers - first - last
        each = rest // np.maximum(between, 1)
        fits = (first > 0) & (last > 0) & ((rest > 0) == (between > 0)) & (rest >= 0)
        fits &= each * np.maximum(between, 1) == rest
        for layers in (first, last, each):
            fits &= layers // vpp * vpp == layers
        broken[index] = ~fits
    return broken


def chunk_layers_wrong(c: Context, p: PlanBatch) -> BoolArray | bool:
    """Layout free does not cut all layers into pp * vpp chunks; another layout lists chunks."""
    chosen: BoolArray = p.layout == FREE
    if len(p.cuts) == 1:
        return chosen
    sizes, sums = (np.array([count(cut) for cut in p.cuts]) for count in (len, sum))
    filled = np.array([min(cut, default=0) > 0 or _ends_alone_empty(cut) for cut in p.cuts])
    at = p.chunk_layers
    whole = (sizes[at] == c.chunks) & (sums[at] == c.num_layers) & filled[at]
    broken: BoolArray = np.where(chosen, ~whole, at != 0)
    return broken


def _ends_alone_empty(cut: tuple[int, ...]) -> bool:
    """The first chunk has the embedding, the last one the loss: they may do without layers."""
    return len(cut) > 1 and min(cut[1:-1], default=1) > 0 and min(cut, default=0) >= 0


def recompute_beyond_chunk(c: Context, p: PlanBatch) -> BoolArray | bool:
    """More layers to recompute than the fullest virtual stage has, or a number without ``full``."""
    broken: BoolArray = p.recompute_num_layers != 0
    index = np.flatnonzero(broken)
    if not index.size:
        return False
    layout, asked = p.layout[index], p.recompute_num_layers[index]
    chunks = np.minimum(c.chunks[index], MAX_DEGREE)
    layers = c.num_layers + np.array(EXTRA_LAYERS)[layout]
    # With two virtual stages, embedding and loss leave each of them one layer short.
    layers -= 2 * ((layout == EMBEDDING_LOSS) & (chunks == 2))
    beyond = asked * chunks > layers
    uneven = layout == FIRST_LAST
    if uneven.any():
        first, last = p.first_stage_layers[index], p.last_stage_layers[index]
        between = _one_if_equal(np.maximum(p.pp[index] - 2, 1))
        middle = np.maximum(c.num_layers - first - last, 0) // between
        largest = np.maximum(np.maximum(first, last), middle)
        beyond = np.where(uneven, asked * p.vpp[index] > largest, beyond)
    if len(p.cuts) > 1:
        most = np.array([max(cut, default=0) for cut in p.cuts])[p.chunk_layers[index]]
        beyond = np.where(layout == FREE, asked > most, beyond)
    broken[index] = beyond | (p.recompute[index] != FULL)
    return broken


def unsupported(
    codes: IntArray, names: Sequence[str | int], supported: Iterable[str | int]
) -> BoolArray | bool:
    """Where the name behind the code is not among the supported ones."""
    known = set(supported)
    refused = np.array([name not in known for name in names])
    return refused[codes] if refused.any() else False


def recompute_unsupported(c: Context, p: PlanBatch) -> BoolArray | bool:
    """The framework lacks the kind of recompute."""
    kinds = p.recompute + ((p.recompute == FULL) & (p.recompute_num_layers > 0))
    return unsupported(kinds, RECOMPUTE_KINDS, c.framework.capabilities.recomputes)


def cp_unsupported(c: Context, p: PlanBatch) -> BoolArray | bool:
    """The framework lacks the kind of context parallelism."""
    known = c.framework.capabilities.cp_comm_types
    return (p.cp > 1) & unsupported(p.cp_comm_type, CP_COMM_TYPES, known)


def switch_unsupported(c: Context, p: PlanBatch) -> BoolArray | bool:
    """The framework lacks an overlap, fusion or graph that the plan turns on."""
    refused = [s for s in SWITCHES if not getattr(c.framework.capabilities, s)]
    if not refused:
        return False
    broken: BoolArray = np.logical_or.reduce([getattr(p, name) != 0 for name in refused])
    return broken


def accelerator_too_old(c: Context, p: PlanBatch) -> BoolArray | bool:
    """The framework's kernels do not run on this generation; the same for every plan."""
    capability = c.cluster.accelerator.compute_capability
    needed = c.framework.capabilities.min_compute_capability
    if capability is None or capability >= needed:
        return False
    return np.ones(len(p), bool)
