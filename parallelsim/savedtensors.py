"""Tensors of the embedding, the loss and the transients, in bytes of one micro-batch on one rank.

What layers save is in :mod:`parallelsim.sublayers`. sigma = 1/tp with sequence parallelism, else 1
(docs/equations.md M).
"""

from __future__ import annotations

import numpy as np

from parallelsim.framework import FrameworkSpec
from parallelsim.layers import Attention
from parallelsim.model import ModelSpec
from parallelsim.operators import FloatArray, OperatorKeys, rank_vocab
from parallelsim.plan import code

ALL_GATHER = code("cp_comm_type", "all-gather")


def embedding_bytes(model: ModelSpec, keys: OperatorKeys) -> FloatArray:
    """Output of the embedding on the first stage: 2 h sigma a token, and a dropout mask."""
    per_hidden = keys.element_bytes + (1.0 if model.hidden_dropout > 0 else 0.0)
    tokens = keys.tokens(model) * (model.embedded_seq_length / model.seq_length)
    return per_hidden * tokens * model.hidden_size / keys.sequence_shards


def checkpoint_bytes(model: ModelSpec, keys: OperatorKeys, inputs: FloatArray | None) -> FloatArray:
    """Input of one layer, 2 h sigma a token; where layers' inputs differ, the mean of ``inputs``
    elements.
    """
    if inputs is None:
        inputs = keys.tokens(model) * model.hidden_size / keys.sequence_shards
    return keys.element_bytes * inputs


def gathered_bytes(model: ModelSpec, keys: OperatorKeys) -> FloatArray:
    """Transients of one layer: the gathered input of sequence parallelism and its gradient, 4 h a
    token, and what all-gather context parallelism gathers.
    """
    sharded = keys.sequence_parallel > 0
    longest = max(layer.seq_length or model.seq_length for layer, _ in model.layer_kinds)
    tokens = keys.tokens(model) * (longest / model.seq_length)
    hidden = 2 * keys.element_bytes * np.where(sharded, model.hidden_size, 0.0) * tokens
    return hidden + _gathered_keys_bytes(model, keys, longest)


def asynchronous_bytes(
    model: ModelSpec, framework: FrameworkSpec, keys: OperatorKeys
) -> FloatArray:
    """Whole tensors of sequence parallelism, of one micro-batch, that the allocator cannot use
    again before the collectives have read them, while the host allocates further ones.
    """
    each = framework.memory.asynchronous_hidden_bytes * model.hidden_size * keys.tokens(model)
    return np.where(keys.sequence_parallel > 0, keys.element_bytes / 2 * each, 0.0)


def _gathered_keys_bytes(model: ModelSpec, keys: OperatorKeys, seq_length: int) -> FloatArray:
    """Keys and values of the whole sequence with their gradients, 8 k s / tp, with all-gather
    context parallelism; those of one layer at a time.
    """
    widths = [
        part.kv_width
        for layer, _ in model.layer_kinds
        for part in layer.sublayers
        if isinstance(part, Attention)
    ]
    widths += [custom.kv_width(model.hidden_size) for custom in model.customs]
    gathers = (keys.cp > 1) & (keys.cp_comm_type == ALL_GATHER)
    whole = 4 * keys.element_bytes * keys.micro_batch_size * float(seq_length)
    return np.where(gathers, whole * max(widths, default=0) / keys.tp, 0.0)


def loss_bytes(model: ModelSpec, framework: FrameworkSpec, keys: OperatorKeys) -> FloatArray:
    """Logits, their fp32 copy and gradient at the loss, on the last stage."""
    memory = framework.memory
    fused = keys.cross_entropy_fusion > 0
    per_entry = np.where(fused, memory.logits_bytes_fused, memory.logits_bytes)
    if memory.logits_bytes_sharded:
        per_entry = np.where(keys.tp > 1, memory.logits_bytes_sharded, per_entry)
    vocab = rank_vocab(model, keys.tp) * (keys.tp if memory.logits_gathered else 1)
    return per_entry * keys.tokens(model) * vocab
