"""Seconds and bytes of one layer, the embedding and the head, tabulated over the distinct shapes.

Operators depend on few plan fields (:class:`~parallelsim.operators.OperatorKeys`). A table over the
distinct combinations is computed once; each plan then looks up its row. That is what makes
millions of plans a second possible.

Layer kinds (sliding and full attention, say) are averaged by their share of the model: exact where
every stage holds them in that proportion, as alternating layers do on stages with an even number
of layers.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

import numpy as np

from parallelsim.cluster import AcceleratorSpec, ClusterSpec
from parallelsim.collectives import Network
from parallelsim.compute import (
    FP8_CAST_FACTOR,
    STREAM_EFFICIENCY,
    GemmRates,
    attention_time,
    gemm_backward_time,
    gemm_rates,
    gemm_time,
    grouped_gemm_time,
    grouped_weight_gradient_time,
    memory_bound_time,
    weight_gradient_time,
)
from parallelsim.exposure import (
    Exposed,
    collective_exposed,
    context_parallel_exposed,
    expert_exchange,
    head_tensor_parallel_exposed,
    tensor_parallel_exposed,
)
from parallelsim.framework import FrameworkSpec
from parallelsim.layers import Layer
from parallelsim.model import ModelSpec
from parallelsim.operators import (
    IS_FP8,
    AttentionCore,
    FloatArray,
    Gemm,
    IntArray,
    OperatorKeys,
    rank_embedding_parameters,
    rank_head_parameters,
    rank_vocab,
)
from parallelsim.plan import PlanBatch, code
from parallelsim.savedtensors import (
    checkpoint_bytes,
    embedding_bytes,
    gathered_bytes,
    loss_bytes,
)
from parallelsim.selective import repeated_seconds, selective_bytes
from parallelsim.sublayers import Repeat, Work, mean_input, work

GRADIENT_ACCUMULATION_BYTES = (10.0, 6.0)
"""Moved for each parameter and micro-batch where weight gradients are added outside the GEMM, with
fp32 and with 16-bit gradients (T5)."""
GRADIENT_ACCUMULATION_SHARE = 0.9
"""Of those bytes that the clock shows (T5)."""
FP32_GRADIENTS = code("grad_dtype", "fp32")
LOSS_FORWARD_SHARE = 0.4
"""Of the passes over the logits (T8)."""
SELECTIVE = code("recompute", "selective")


@dataclass(frozen=True, slots=True, eq=False)
class LayerCosts:
    """Of one layer and micro-batch on one rank, mean over the layer kinds; float64 of shape [K]."""

    gemm_s: FloatArray
    attention_s: FloatArray
    memory_bound_s: FloatArray
    host_s: FloatArray
    tp_exposed_s: FloatArray
    """With the collectives that custom operators name."""
    cp_exposed_s: FloatArray
    ep_exposed_s: FloatArray
    """Dispatch and combine of experts' tokens."""
    selective_s: FloatArray
    """Attention core run again, with recompute = selective."""
    forward_s: FloatArray
    """The forward pass alone, with its communication: what full recompute repeats."""
    weight_s: FloatArray
    """Of the backward, the weight gradients' GEMMs: what split-backward schedules put off."""
    saved_bytes: FloatArray
    restored_bytes: FloatArray
    """Saved tensors that selective recompute brings back for the backward pass."""
    largest_saved_bytes: FloatArray
    """Of the kind of layer that saves most."""
    parameters: FloatArray
    """Without routed experts."""
    expert_parameters: FloatArray
    trainable_parameters: FloatArray
    """Of ``parameters``, those that the optimizer updates."""

    @property
    def total_s(self) -> FloatArray:
        """Forward and backward, shape [K]."""
        return (
            self.gemm_s
            + self.attention_s
            + self.memory_bound_s
            + self.host_s
            + self.tp_exposed_s
            + self.cp_exposed_s
            + self.ep_exposed_s
            + self.selective_s
        )


@dataclass(frozen=True, slots=True, eq=False)
class EdgeCosts:
    """Of the embedding and the head, for one micro-batch on one rank; float64 of shape [K]."""

    embedding_s: FloatArray
    """Forward and backward."""
    embedding_forward_s: FloatArray
    head_s: FloatArray
    """Forward and backward, with the loss."""
    head_forward_s: FloatArray
    head_weight_s: FloatArray
    """Of the head's backward, the output matrix's weight gradient."""
    embedding_parameters: FloatArray
    output_parameters: FloatArray
    """Output matrix, tied or not."""
    head_parameters: FloatArray
    """Final norm and other parameters of the head."""
    checkpoint_bytes: FloatArray
    """Input of one layer: all that full recompute keeps of it, and what stages send each other."""
    embedding_bytes: FloatArray
    gathered_bytes: FloatArray
    loss_bytes: FloatArray


def layer_costs(
    layers: Iterable[tuple[Layer, int]],
    model: ModelSpec,
    network: Network,
    framework: FrameworkSpec,
    keys: OperatorKeys,
) -> LayerCosts:
    """The mean of the layers with their counts: seconds by cause, saved bytes, parameters."""
    kinds = list(layers)
    total = sum(count for _, count in kinds)
    rates = gemm_rates(network.cluster.accelerator, framework)
    parts = [
        (count / total, _one_layer(model, layer, network, framework, rates, keys))
        for layer, count in kinds
    ]
    mean = LayerCosts(
        **{
            f.name: _sum(share * getattr(c, f.name) for share, c in parts)
            for f in fields(LayerCosts)
        }
    )
    largest = functools.reduce(np.maximum, (c.saved_bytes for _, c in parts))
    return replace(mean, largest_saved_bytes=largest)


def _leading_costs(
    main: LayerCosts,
    model: ModelSpec,
    network: Network,
    framework: FrameworkSpec,
    keys: OperatorKeys,
) -> LayerCosts:
    """All leading layers, minus as many of the others."""
    leading = layer_costs(model.leading_kinds, model, network, framework, keys)
    count = sum(n for _, n in model.leading_kinds)
    return LayerCosts(
        **{
            f.name: count * (getattr(leading, f.name) - getattr(main, f.name))
            for f in fields(LayerCosts)
        }
    )


def _prediction_costs(
    model: ModelSpec, network: Network, framework: FrameworkSpec, keys: OperatorKeys
) -> LayerCosts:
    """The layers of all multi-token-prediction modules with their projections (T, h, 2 h), which
    tensor parallelism splits by columns. Their heads are in :func:`edge_costs`.
    """
    rates = gemm_rates(network.cluster.accelerator, framework)
    layer = layer_costs([(model.layers[-1], 1)], model, network, framework, keys)
    tokens, h = keys.tokens(model), model.hidden_size
    projection = Gemm(tokens, h / keys.tp.astype(np.float64), np.full_like(tokens, 2.0 * h))
    accelerator = network.cluster.accelerator
    forward = gemm_time(accelerator, rates, keys.precision, projection)
    both = forward + gemm_backward_time(accelerator, rates, keys.precision, projection)
    added = {
        "gemm_s": both,
        "forward_s": forward,
        "weight_s": weight_gradient_time(accelerator, rates, keys.precision, projection),
        "saved_bytes": keys.element_bytes * tokens * 4 * h / keys.sequence_shards,
        "parameters": 2.0 * h * projection.n + 3 * model.norm_parameters(),
        "trainable_parameters": 2.0 * h * projection.n + 3 * model.norm_parameters(),
    }
    return LayerCosts(
        **{
            f.name: model.num_mtp_layers * (getattr(layer, f.name) + added.get(f.name, 0.0))
            for f in fields(LayerCosts)
        }
    )


def _one_layer(
    model: ModelSpec,
    layer: Layer,
    network: Network,
    framework: FrameworkSpec,
    rates: GemmRates,
    keys: OperatorKeys,
) -> LayerCosts:
    """The sum over the layer's sub-layers, and the launches of them all."""
    zeros = np.zeros(len(keys.tp))
    total = {f.name: zeros for f in fields(LayerCosts)}
    backward, host_f, host_b = zeros, zeros, zeros
    for part in layer.sublayers:
        asked = work(model, layer, part, framework, network.cluster.accelerator, keys)
        one, one_b = _sublayer_costs(model, layer, asked, network, framework, rates, keys)
        total = {name: value + one[name] for name, value in total.items()}
        backward = backward + one_b
        launch_f, launch_b = _launches(framework, asked, keys)
        host_f, host_b = host_f + launch_f, host_b + launch_b
    p = framework.host.overlap_exponent
    stall_f = _stall(total["forward_s"], host_f, p)
    total["host_s"] = stall_f + _stall(backward, host_b, p)
    total["forward_s"] = total["forward_s"] + stall_f
    return LayerCosts(**total)


def _sublayer_costs(
    model: ModelSpec,
    layer: Layer,
    asked: Work,
    network: Network,
    framework: FrameworkSpec,
    rates: GemmRates,
    keys: OperatorKeys,
) -> tuple[dict[str, FloatArray], FloatArray]:
    """(columns of :class:`LayerCosts` without launches, backward seconds) of one sub-layer."""
    zeros = np.zeros(len(keys.tp))
    gemm_f, gemm_b, gemm_w = _products(asked, network.cluster.accelerator, framework, rates, keys)
    memory_f, memory_b = _memory_bound(asked, network, framework, keys)
    attention_f, attention_b = zeros, zeros
    tensor = keys.element_bytes * keys.tokens(model, layer) * model.hidden_size
    tp = tensor_parallel_exposed(tensor, asked.tp_regions, framework.overlap, network, keys)
    for collective in asked.collectives:
        tp = tp.plus(collective_exposed(collective, framework.overlap, network, keys))
    cp = Exposed(zeros, zeros)
    if asked.core is not None:
        attention_f, attention_b = _attention(asked.core, model, network, framework, keys)
        cp = context_parallel_exposed(
            asked.core, framework.overlap, network, keys, (attention_f, attention_b)
        )
    again = repeated_seconds(framework, keys, gemm_f, attention_f, memory_f)
    spared = zeros
    for repeat in asked.repeats:
        chosen = keys.recomputes(repeat.module)
        if chosen.any():
            once = _repeat_time(repeat, network, framework, rates, keys)
            again = again + np.where(chosen, once, 0.0)
            spared = spared + np.where(chosen, repeat.saved_bytes, 0.0)
    ep = zeros
    if asked.exchange is not None:
        ep = expert_exchange(asked.exchange, framework.overlap, network, keys)
    backward = gemm_b + attention_b + memory_b + tp.backward_s + cp.backward_s + ep
    kept, restored = selective_bytes(model, framework, asked, keys)
    costs = {
        "gemm_s": gemm_f + gemm_b,
        "attention_s": attention_f + attention_b,
        "memory_bound_s": memory_f + memory_b,
        "host_s": zeros,
        "tp_exposed_s": tp.forward_s + tp.backward_s,
        "cp_exposed_s": cp.forward_s + cp.backward_s,
        "ep_exposed_s": 2 * ep,
        "selective_s": again,
        "forward_s": gemm_f + attention_f + memory_f + tp.forward_s + cp.forward_s + ep,
        "weight_s": gemm_w,
        "saved_bytes": kept - spared,
        "largest_saved_bytes": kept - spared,
        "restored_bytes": restored,
        "parameters": asked.parameters,
        "expert_parameters": asked.expert_parameters + zeros,
        "trainable_parameters": (
            asked.parameters if asked.trainable_parameters is None else asked.trainable_parameters
        ),
    }
    return costs, backward


def _products(
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


def _repeat_time(
    repeat: Repeat,
    network: Network,
    framework: FrameworkSpec,
    rates: GemmRates,
    keys: OperatorKeys,
) -> FloatArray:
    """Seconds of one part of the forward pass run again; neglects its launches."""
    accelerator = network.cluster.accelerator
    time = memory_bound_time(accelerator, framework, repeat.forward_bytes)
    for gemm in repeat.gemms:
        time = time + gemm_time(accelerator, rates, keys.precision, gemm)
    return time


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


def _attention(
    core: AttentionCore,
    model: ModelSpec,
    network: Network,
    framework: FrameworkSpec,
    keys: OperatorKeys,
) -> tuple[FloatArray, FloatArray]:
    core = core._replace(local_seq_length=core.local_seq_length * keys.dealt)
    steps = keys.ring
    dropout = model.attention_dropout > 0
    return attention_time(
        network.cluster.accelerator, framework, core, steps, dropout=dropout
    )


def _memory_bound(
    asked: Work, network: Network, framework: FrameworkSpec, keys: OperatorKeys
) -> tuple[FloatArray, FloatArray]:
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


def _launches(
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


def _stall(gpu_s: FloatArray, cpu_s: FloatArray, p: float) -> FloatArray:
    """(gpu^p + cpu^p)^(1/p) - gpu, scaled so that no power overflows."""
    larger = np.maximum(gpu_s, cpu_s)
    return larger * ((gpu_s / larger) ** p + (cpu_s / larger) ** p) ** (1 / p) - gpu_s


def edge_costs(
    model: ModelSpec, network: Network, framework: FrameworkSpec, keys: OperatorKeys
) -> EdgeCosts:
    """Embedding and head, the head once more for each multi-token-prediction module.

    head = logits GEMM (T, V/tp, h) forward and backward in 16 bits + kappa passes over 4 T V/tp
    bytes + exposed collectives; embedding = 4 T h bytes and a reduce-scatter forward, 10 T h
    backward (docs/equations.md T8)
    """
    accelerator, compute = network.cluster.accelerator, framework.compute
    rates = gemm_rates(accelerator, framework)
    tokens, h = keys.tokens(model), np.full(len(keys.tp), float(model.hidden_size))
    vocab = rank_vocab(model, keys.tp)
    head_precision = sixteen_bit(keys)
    gemms = [Gemm(tokens, vocab, h)]
    if model.head_transform:
        gemms.append(Gemm(tokens, h, h))
    passes = np.where(
        keys.cross_entropy_fusion > 0,
        compute.fused_cross_entropy_passes,
        compute.cross_entropy_passes,
    )
    forward = _sum(gemm_time(accelerator, rates, head_precision, g) for g in gemms)
    backward = _sum(gemm_backward_time(accelerator, rates, head_precision, g) for g in gemms)
    weight = _sum(weight_gradient_time(accelerator, rates, head_precision, g) for g in gemms)
    if model.lora is not None:
        backward, weight = backward - weight, np.zeros_like(weight)
    loss = memory_bound_time(accelerator, framework, passes * 4.0 * tokens * vocab)
    exposed = head_tensor_parallel_exposed(model, framework.overlap, network, keys)
    group = network.group(keys.tp, np.ones(len(keys.tp)))
    tensor = keys.element_bytes * tokens * h * (model.embedded_seq_length / model.seq_length)
    embedding_forward = memory_bound_time(accelerator, framework, 2.0 * tensor)
    embedding_forward = embedding_forward + network.reduce_scatter(tensor, group)
    output_parameters, head_parameters = rank_head_parameters(model, keys)
    heads = 1 + model.num_mtp_layers
    return EdgeCosts(
        embedding_s=embedding_forward
        + (0.0 if model.lora else 1.0) * memory_bound_time(accelerator, framework, 5.0 * tensor),
        embedding_forward_s=embedding_forward,
        head_s=heads * (forward + backward + loss + exposed),
        head_forward_s=heads * (forward + LOSS_FORWARD_SHARE * loss + exposed / 3),
        head_weight_s=heads * weight,
        embedding_parameters=rank_embedding_parameters(model, keys),
        output_parameters=output_parameters,
        head_parameters=head_parameters,
        checkpoint_bytes=checkpoint_bytes(
            model, keys, mean_input(model, framework, accelerator, keys)
        ),
        embedding_bytes=embedding_bytes(model, keys),
        gathered_bytes=gathered_bytes(model, keys),
        loss_bytes=heads * loss_bytes(model, framework, keys),
    )


def _with_custom_edges(
    edge: EdgeCosts,
    model: ModelSpec,
    network: Network,
    framework: FrameworkSpec,
    keys: OperatorKeys,
) -> EdgeCosts:
    """The input and output operators beside the vocabulary's table and logits, or in their place.

    What output operators save lives while the loss is computed, as logits do.
    """
    before, after = (
        layer_costs([(Layer(custom=part, num_norms=0), 1)], model, network, framework, keys)
        if part
        else None
        for part in (model.input_operators, model.output_operators)
    )
    zeros = np.zeros(len(keys.tp))
    if not model.vocab_size:
        names = ["embedding_s", "embedding_forward_s", "head_s", "head_forward_s"]
        names += ["head_weight_s", "embedding_bytes", "loss_bytes"]
        edge = replace(edge, **dict.fromkeys(names, zeros))
    if before:
        edge = replace(
            edge,
            embedding_s=edge.embedding_s + before.total_s,
            embedding_forward_s=edge.embedding_forward_s + before.forward_s,
            embedding_parameters=edge.embedding_parameters + before.parameters,
            embedding_bytes=edge.embedding_bytes + before.saved_bytes,
        )
    if after:
        edge = replace(
            edge,
            head_s=edge.head_s + after.total_s,
            head_forward_s=edge.head_forward_s + after.forward_s,
            head_weight_s=edge.head_weight_s + after.weight_s,
            head_parameters=edge.head_parameters + after.parameters,
            loss_bytes=edge.loss_bytes + after.saved_bytes,
        )
    return edge


def _sum(terms: Iterable[FloatArray]) -> FloatArray:
    return functools.reduce(operator.add, terms)


class CostTable:
    """Layer and edge costs over the distinct keys of a set of plans; :meth:`rows` finds each
    plan's row.
    """

    def __init__(
        self, model: ModelSpec, cluster: ClusterSpec, framework: FrameworkSpec, plans: PlanBatch
    ) -> None:
        self.model, self.cluster, self.framework = model, cluster, framework
        self.network = Network(cluster)
        columns = _key_columns(plans)
        self._values = [_distinct(column) for column in columns]
        self._strides = _strides([len(values) for values in self._values])
        self._luts = [
            _lookup(v, stride) for v, stride in zip(self._values, self._strides, strict=True)
        ]
        codes = self._codes(columns)
        self._present = _distinct(codes)
        self._compact = _lookup(self._present, 1)
        digits = [
            values[self._present // stride % len(values)]
            for values, stride in zip(self._values, self._strides, strict=True)
        ]
        keys = OperatorKeys(*digits)
        inputs = (model, self.network, framework, keys)
        self.layer = layer_costs(model.main_kinds, *inputs)
        self.edge = _with_custom_edges(edge_costs(*inputs), *inputs)
        self.layer_total_s = self.layer.total_s
        self.first = _leading_costs(self.layer, *inputs) if model.leading_kinds else None
        """What the leading layers cost beyond as many others; on the first stage."""
        self.last = _prediction_costs(*inputs) if model.num_mtp_layers else None
        """The layers of the multi-token-prediction modules; on the last stage."""
        self.first_total_s, self.last_total_s = (
            np.zeros(1) if more is None else more.total_s for more in (self.first, self.last)
        )

    def __len__(self) -> int:
        return len(self._present)

    def rows(self, plans: PlanBatch) -> IntArray:
        """Row of each plan, shape [P]; every plan's key must have been among the constructor's."""
        return _find(self._compact, self._codes(_key_columns(plans)))

    def _codes(self, columns: list[IntArray]) -> IntArray:
        total = _find(self._luts[0], columns[0])
        for lut, column in zip(self._luts[1:], columns[1:], strict=True):
            if len(lut[0]) > 1:
                total = total + _find(lut, column)
        return total


Lookup = tuple[IntArray, IntArray | None, int]
"""(distinct values, position by value where that is small, stride)."""
SMALL = 1 << 20


def _key_columns(plans: PlanBatch) -> list[IntArray]:
    return [
        plans.tp,
        plans.cp,
        plans.micro_batch_size,
        plans.sequence_parallel,
        plans.precision,
        plans.cp_comm_type,
        plans.cp_a2a,
        plans.tp_comm_overlap,
        plans.cross_entropy_fusion,
        plans.cuda_graphs,
        plans.grad_dtype,
        plans.ep,
        plans.etp,
        plans.moe_dispatcher,
        plans.ep_comm_overlap,
        plans.compile,
        np.where(plans.recompute == SELECTIVE, 1 + plans.recompute_modules, 0),
    ]


def _distinct(column: IntArray) -> IntArray:
    """Sorted distinct values; by marking where the values are small, which is far faster than
    sorting.
    """
    if len(column) == 0:
        return column
    top = int(column.max())
    if top >= SMALL:
        return np.unique(column)
    mark = np.zeros(top + 1, bool)
    mark[column] = True
    return np.flatnonzero(mark)


def _lookup(values: IntArray, stride: int) -> Lookup:
    if len(values) == 0 or int(values[-1]) >= SMALL:
        return values, None, stride
    table = np.zeros(int(values[-1]) + 1, np.int64)
    table[values] = np.arange(len(values)) * stride
    return values, table, stride


def _find(lookup: Lookup, column: IntArray) -> IntArray:
    values, table, stride = lookup
    if table is None:
        return np.searchsorted(values, column) * stride
    return table[column]


def _strides(sizes: list[int]) -> list[int]:
    strides, total = [], 1
    for size in sizes:
        strides.append(total)
        total *= size
    return strides
