"""Seconds and bytes of what stands before and after the layers: embedding, head and loss."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from parallelsim.collectives import Network
from parallelsim.compute import (
    gemm_backward_time,
    gemm_rates,
    gemm_time,
    memory_bound_time,
    weight_gradient_time,
)
from parallelsim.exposure import (
    head_tensor_parallel_exposed,
)
from parallelsim.framework import FrameworkSpec
from parallelsim.layer_costs import layer_costs, summed
from parallelsim.layers import Layer
from parallelsim.model import ModelSpec
from parallelsim.operators import (
    FloatArray,
    Gemm,
    OperatorKeys,
    rank_embedding_parameters,
    rank_head_parameters,
    rank_vocab,
)
from parallelsim.savedtensors import (
    asynchronous_bytes,
    checkpoint_bytes,
    embedding_bytes,
    gathered_bytes,
    loss_bytes,
)
from parallelsim.sublayer_seconds import sixteen_bit
from parallelsim.sublayers import mean_input

LOSS_FORWARD_SHARE = 0.4
"""Of the passes over the logits (T8)."""


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
    asynchronous_bytes: FloatArray
    loss_bytes: FloatArray


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
    forward = summed(gemm_time(accelerator, rates, head_precision, g) for g in gemms)
    backward = summed(gemm_backward_time(accelerator, rates, head_precision, g) for g in gemms)
    weight = summed(weight_gradient_time(accelerator, rates, head_precision, g) for g in gemms)
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
        asynchronous_bytes=asynchronous_bytes(model, framework, keys),
        loss_bytes=heads * loss_bytes(model, framework, keys),
    )


def with_custom_edges(
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
