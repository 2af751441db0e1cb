"""Seconds and bytes of one layer, mean over kinds of layers, on one rank."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

import numpy as np

from parallelsim.collectives import Network
from parallelsim.compute import (
    GemmRates,
    gemm_backward_time,
    gemm_rates,
    gemm_time,
    weight_gradient_time,
)
from parallelsim.exposure import (
    Exposed,
    collective_exposed,
    context_parallel_exposed,
    expert_exchange,
    tensor_parallel_exposed,
)
from parallelsim.framework import FrameworkSpec
from parallelsim.layers import Layer
from parallelsim.model import ModelSpec
from parallelsim.operators import (
    FloatArray,
    Gemm,
    OperatorKeys,
)
from parallelsim.selective import repeated_seconds, selective_bytes
from parallelsim.sublayer_seconds import (
    attention,
    launches,
    memory_bound,
    products,
    repeats,
    stall,
)
from parallelsim.sublayers import Work, work


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
            f.name: summed(share * getattr(c, f.name) for share, c in parts)
            for f in fields(LayerCosts)
        }
    )
    largest = functools.reduce(np.maximum, (c.saved_bytes for _, c in parts))
    return replace(mean, largest_saved_bytes=largest)


def leading_costs(
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


def prediction_costs(
    model: ModelSpec, network: Network, framework: FrameworkSpec, keys: OperatorKeys
) -> LayerCosts:
    """The layers of all multi-token-prediction modules with their projections (T, h, 2 h), which
    tensor parallelism splits by columns. Their heads are in :func:`edge_costs`.
    """
    rates = gemm_rates(network.cluster.accelerator, framework)
    module = model.mtp_module
    layer = layer_costs([(each, 1) for each in module], model, network, framework, keys)
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
            f.name: model.num_mtp_layers
            * (len(module) * getattr(layer, f.name) + added.get(f.name, 0.0))
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
        launch_f, launch_b = launches(framework, asked, keys)
        host_f, host_b = host_f + launch_f, host_b + launch_b
    p = framework.host.overlap_exponent
    stall_f = stall(total["forward_s"], host_f, p)
    total["host_s"] = stall_f + stall(backward, host_b, p)
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
    gemm_f, gemm_b, gemm_w = products(asked, network.cluster.accelerator, framework, rates, keys)
    memory_f, memory_b = memory_bound(asked, network, framework, keys)
    attention_f, attention_b = zeros, zeros
    tensor = keys.element_bytes * keys.tokens(model, layer) * model.hidden_size
    tp = tensor_parallel_exposed(tensor, asked.tp_regions, framework.overlap, network, keys)
    for collective in asked.collectives:
        tp = tp.plus(collective_exposed(collective, framework.overlap, network, keys))
    cp = Exposed(zeros, zeros)
    if asked.core is not None:
        attention_f, attention_b = attention(asked.core, model, network, framework, keys)
        cp = context_parallel_exposed(
            asked.core, framework.overlap, network, keys, (attention_f, attention_b)
        )
    repeated, spared = repeats(asked, network, framework, rates, keys)
    again = repeated + repeated_seconds(framework, keys, gemm_f, attention_f, memory_f)
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


def summed(terms: Iterable[FloatArray]) -> FloatArray:
    """The sum of one or more arrays."""
    return functools.reduce(operator.add, terms)
