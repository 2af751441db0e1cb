"""Tensors of the embedding, the loss and the transients, in bytes of one micro-batch on one rank.

What layers save is in :mod:`parallelsim.sublayers`. sigma = 1/tp with sequence parallelism, else 1
(docs/equations.md M).
"""

from __future__ import annotations

import numpy as np

from parallelsim.framework import FrameworkSpec
from parallelsim.model import ModelSpec
from parallelsim.operators import FloatArray, OperatorKeys, rank_vocab


def embedding_bytes(model: ModelSpec, keys: OperatorKeys) -> FloatArray:
    """Output of the embedding on the first stage: 2 h sigma a token, and a dropout mask."""
    per_hidden = keys.element_bytes + (1.0 if model.hidden_dropout > 0 else 0.0)
    return per_hidden * keys.tokens(model) * model.hidden_size / keys.sequence_shards


def gathered_bytes(model: ModelSpec, keys: OperatorKeys) -> FloatArray:
    """Transient of sequence parallelism: the gathered input and its gradient, 4 h a token."""
    sharded = keys.sequence_parallel > 0
    return 2 * keys.element_bytes * np.where(sharded, model.hidden_size, 0.0) * keys.tokens(model)


def loss_bytes(model: ModelSpec, framework: FrameworkSpec, keys: OperatorKeys) -> FloatArray:
    """Logits, their fp32 copy and gradient at the loss, on the last stage."""
    memory = framework.memory
    fused = keys.cross_entropy_fusion > 0
    per_entry = np.where(fused, memory.logits_bytes_fused, memory.logits_bytes)
    vocab = rank_vocab(model, keys.tp) * (keys.tp if memory.logits_gathered else 1)
    return per_entry * keys.tokens(model) * vocab
