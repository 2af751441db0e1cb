"""What stays in memory between steps: parameters, gradients and optimizer, and who shares them.

S of docs/equations.md M.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from parallelsim.costs import CostTable
from parallelsim.framework import MemoryFacts
from parallelsim.operators import IS_FP8, NARROW_BYTES, FloatArray, IntArray
from parallelsim.optimizers import (
    OPTIMIZER_STATE_FRAC,
    edge_optimizer_bytes,
    owners,
    shard_ranks,
)
from parallelsim.pipeline import PIPEDREAM_2BW
from parallelsim.plan import GRAD_DTYPES, PRECISIONS, code
from parallelsim.plan_batch import PlanBatch, by_code, largest, plus_scaled, scaled
from parallelsim.stages import Columns, leading_at_ends

FP32 = code("grad_dtype", "fp32")

MXFP8 = code("precision", "mxfp8")

IS_FP32 = np.arange(len(PRECISIONS)) == code("precision", "fp32")


PARAMETER_WIDTH = np.where(IS_FP32, 4.0, 2.0)
"""Bytes of a parameter by code of the precision: fp32, or 16 bits."""
GRADIENT_WIDTH = np.where(np.arange(len(GRAD_DTYPES)) == FP32, 4.0, 2.0)
"""Bytes of a gradient by its code."""


class States(NamedTuple):
    """Parameters of the edges and resident bytes for each parameter; shape [P]."""

    layer_parameters: FloatArray
    """Without routed experts."""
    first_parameters: FloatArray
    """Embedding, leading layers beyond as many others, and the head where one stage holds both."""
    last_parameters: FloatArray
    """Output matrix, head and leading layers where a last stage is apart, else 0."""
    parameter_bytes: FloatArray
    gradient_bytes: FloatArray
    optimizer_bytes: FloatArray
    gathered_bytes: FloatArray | float
    """With ZeRO 3, whole parameters and gradients at once in the backward pass of a layer."""
    gathered_at_loss_bytes: FloatArray | float
    """The same at the loss."""
    edge_optimizer_bytes: FloatArray | float
    """Added for each parameter of embedding and head."""
    experts: ExpertStates | None
    """Where the model has routed experts."""
    adapter_parameters: FloatArray | None
    """Of a layer, where they alone are trained: the rest has no gradients nor optimizer."""


class ExpertStates(NamedTuple):
    """Of the routed experts, which other ranks hold copies of than of the rest; shape [P]."""

    layer_parameters: FloatArray
    first_parameters: FloatArray | float
    """Of the first stage beyond those of its layers (fewer, where leading layers are dense)."""
    last_parameters: FloatArray | float
    """Of the last stage beyond those of its layers: multi-token prediction."""
    replicas: FloatArray
    """Ranks that hold the same experts: dp cp tp / (ep etp)."""
    parameter_bytes: FloatArray
    gradient_bytes: FloatArray
    optimizer_bytes: FloatArray


def states(table: CostTable, rows: IntArray, plans: PlanBatch, columns: Columns) -> States:
    """S of the module's equation: 2 + 4 + 12 bytes a parameter (fp32: 4 + 4 + 8), sharded by ZeRO.

    A tied output matrix is one with the embedding where a single stage holds both, a copy
    otherwise. Two copies of the model share the optimizer's shards; PipeDream-2BW keeps a second
    version of the weights. Routed experts are sharded over the ranks that hold the same ones.
    """
    facts, edge, ends = table.framework.memory, table.edge, columns.ends
    head, output = edge.head_parameters.take(rows), edge.output_parameters.take(rows)
    if table.model.tied_embeddings:
        output = output * (ends.head_first < 1)
    last = head + output
    layer_parameters = table.layer.parameters.take(rows)
    frozen = table.model.lora is not None
    resident = _state_bytes(facts, plans, columns.shards, ends.copies, frozen=frozen)
    on_first, on_last = (0.0, 0.0) if table.first is None else leading_at_ends(table.model, plans)
    experts = None
    if table.model.has_experts:
        replicas = columns.shards * plans.tp / (plans.ep * plans.etp)
        held = _state_bytes(facts, plans, replicas, ends.copies, frozen=frozen)
        of_leading, of_last = (
            0.0 if more is None else more.expert_parameters.take(rows)
            for more in (table.first, table.last)
        )
        experts = ExpertStates(
            table.layer.expert_parameters.take(rows),
            of_leading * on_first + of_last * ends.holds_head_first,
            of_leading * on_last + of_last * ends.holds_head_last,
            replicas,
            *held,
        )
    first = edge.embedding_parameters.take(rows)
    leading = 0.0 if table.first is None else table.first.parameters.take(rows)
    if table.last is not None:
        last = last + table.last.parameters.take(rows)
    gathered: tuple[FloatArray | float, FloatArray | float] = (0.0, 0.0)
    if largest(plans.zero) == 3:
        at_once = layer_parameters if experts is None else layer_parameters + experts[0]
        head_gradient = 0.0 if frozen else edge.output_parameters.take(rows)
        gathered = _alive_bytes(facts, plans, columns, at_once, first + last, head_gradient)
    return States(
        layer_parameters,
        plus_scaled(first, leading, on_first) + last * ends.holds_head_first,
        plus_scaled(
            plus_scaled(last * ends.holds_head_last, leading, on_last),
            first,
            np.ceil(ends.embedding_last),
        ),
        *resident,
        *gathered,
        edge_optimizer_bytes(facts, plans, columns.shards, ends.copies),
        experts,
        table.layer.trainable_parameters.take(rows) if table.model.lora else None,
    )


def _alive_bytes(
    facts: MemoryFacts,
    plans: PlanBatch,
    columns: Columns,
    layer_parameters: FloatArray,
    edge_parameters: FloatArray,
    head_gradient: FloatArray | float,
) -> tuple[FloatArray, FloatArray]:
    """What ZeRO 3 holds of gathered parameters and of gradients not yet scattered, in the backward
    pass of a layer and at the loss.

    w (g N_l + N_e + N_o) bytes: the layer and the one prefetched, their gradients, and what is
    being scattered, g layers in all; embedding and head N_e, which are gathered once; and the
    output matrix's gradient N_o, which waits for the embedding's. At the loss w (2 N_l + N_e).
    Gradients alone where what was gathered stays (:func:`_kept_bytes`); 0 where one rank holds
    everything.
    """
    freed = plans.reshard_after_forward > 0
    width = by_code(PARAMETER_WIDTH, plans.precision)
    width = np.where((plans.zero == 3) & (columns.shards > plans.dp_replicate), width, 0.0)
    gathered = np.minimum(columns.layers.first, 2) * layer_parameters + edge_parameters
    gathered = np.where(freed, gathered, 0.0)
    scattered = (facts.param_gather_buffer - 2) * layer_parameters
    scattered = scattered + np.where(freed | (plans.pp == 1), head_gradient, 0.0)
    return width * (gathered + scattered), width * gathered


def _kept_bytes(
    plans: PlanBatch, shards: FloatArray
) -> tuple[FloatArray | float, FloatArray | float]:
    """(of a gathered parameter, of its whole gradient) beside their shards: those that ZeRO 3 does
    not free after the forward pass, and in a pipeline all gradients until the last micro-batch.
    """
    stay = (plans.zero == 3) & (plans.reshard_after_forward == 0) & (shards > plans.dp_replicate)
    if not stay.any():
        return 0.0, 0.0
    wide = by_code(PARAMETER_WIDTH, plans.precision)
    gradient = by_code(GRADIENT_WIDTH, plans.grad_dtype)
    return np.where(stay, wide, 0.0), np.where(stay & (plans.pp > 1), gradient, 0.0)


def _state_bytes(
    facts: MemoryFacts,
    plans: PlanBatch,
    shards: FloatArray,
    copies: FloatArray | float,
    *,
    frozen: bool,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Resident bytes of a parameter, its gradient and its optimizer, sharded over ``shards``."""
    parameter_bytes = by_code(_parameter_bytes(facts, frozen=frozen), plans.precision)
    if largest(plans.fp8_param_gather) and not frozen:
        spared = parameter_bytes - _spared_bytes(facts)
        parameter_bytes = np.where(plans.fp8_param_gather != 0, spared, parameter_bytes)
    if largest(plans.schedule) >= PIPEDREAM_2BW:
        parameter_bytes = parameter_bytes * (1 + (plans.schedule == PIPEDREAM_2BW))
    gradient_bytes = by_code(_gradient_bytes(facts), plans.grad_dtype)
    if largest(plans.zero) >= 2:
        kept = _kept_bytes(plans, shards)
        group = shard_ranks(plans, shards)
        gradient_bytes = gradient_bytes / np.where(plans.zero >= 2, group, 1.0) + kept[1]
        parameter_bytes = parameter_bytes / np.where(plans.zero == 3, group, 1.0) + kept[0]
    optimizer_bytes = by_code(_optimizer_bytes(facts), plans.precision)
    if largest(plans.optimizer):
        saved = facts.optimizer_bytes * (1 - by_code(OPTIMIZER_STATE_FRAC, plans.optimizer))
        optimizer_bytes = optimizer_bytes - saved
    if largest(plans.optimizer_offload_pct):
        optimizer_bytes = optimizer_bytes * (1 - plans.optimizer_offload_pct / 100)
    optimizer_bytes = optimizer_bytes / owners(plans, scaled(shard_ranks(plans, shards), copies))
    return parameter_bytes, gradient_bytes, optimizer_bytes


def _parameter_bytes(facts: MemoryFacts, *, frozen: bool) -> FloatArray:
    """Resident bytes of a parameter by precision code: fp32, 16-bit, or 16-bit and cached fp8;
    frozen ones that are cached in fp8 need no 16-bit copy.
    """
    beside = 0.0 if frozen and facts.fp8_weight_bytes else facts.param_bytes
    cached = facts.fp8_weight_bytes * NARROW_BYTES
    with_fp8 = np.where(IS_FP8, beside + cached, facts.param_bytes)
    return np.where(IS_FP32, 2 * facts.param_bytes, with_fp8)


def _gradient_bytes(facts: MemoryFacts) -> FloatArray:
    """Bytes of a gradient by the code of its type."""
    return np.where(GRADIENT_WIDTH == 4, facts.grad_bytes_fp32, facts.grad_bytes_bf16)


def _spared_bytes(facts: MemoryFacts) -> float:
    """Of a parameter that is kept in fp8 alone: the 16-bit copy, where fp8 ones stand beside it.

    Neglects that embedding and output matrix stay in 16 bits: their two bytes are as many as those
    of an fp8 weight with its transpose.
    """
    return min(facts.param_bytes, facts.fp8_weight_bytes)


def _optimizer_bytes(facts: MemoryFacts) -> FloatArray:
    """Bytes of the optimizer for a parameter by precision code; fp32 needs no master copy."""
    return facts.optimizer_bytes + np.where(IS_FP32, 0.0, facts.master_bytes)


def step_bytes(facts: MemoryFacts, plans: PlanBatch, columns: Columns) -> FloatArray:
    """T: transient of the optimizer step for each trained parameter of a rank.

    Of a parameter that the rank holds, with ZeRO 1, and of one whose optimizer state it owns.
    """
    group = shard_ranks(plans, columns.shards)
    owned = facts.optimizer_step_bytes_per_owned_param / owners(plans, group)
    step: FloatArray = facts.optimizer_step_bytes_per_param * (plans.zero == 1) + owned
    return step


def most_parameters(held: States, columns: Columns) -> FloatArray:
    """Trained parameters of the rank that holds most, before sharding over data parallelism."""
    if held.adapter_parameters is not None:
        first, middle, last = columns.layers
        most = np.maximum(np.maximum(first, last), middle)
        return scaled(most * held.adapter_parameters, columns.ends.copies)
    each, layers = scaled(held.layer_parameters, columns.ends.copies), columns.layers
    first = layers.first * each + held.first_parameters
    last = layers.last * each + held.last_parameters
    middle = layers.middle * each
    return np.maximum(np.maximum(first, middle), last)


def most_expert_parameters(experts: ExpertStates, columns: Columns) -> FloatArray:
    """Trained parameters of routed experts on the rank that holds most of them."""
    layers = columns.layers
    each = scaled(experts.layer_parameters, columns.ends.copies)
    first = layers.first * each + experts.first_parameters
    last = layers.last * each + experts.last_parameters
    return np.maximum(np.maximum(first, last), layers.middle * each)


def gathered_parameter_bytes(
    held: States, plans: PlanBatch, columns: Columns, most: FloatArray
) -> FloatArray:
    """Bytes of all parameters of the rank that holds most, of :func:`most_parameters`, in the
    format in which they are gathered, shape [P].

    16 bits (fp32: 32). Layers whose weights are kept in fp8 alone: one byte, the embedding and the
    output matrix still two. mxfp8 is scaled along rows and along columns, so it gathers 16 bits and
    quantizes them afterwards (Megatron-LM d98e8a64, core/distributed/param_and_grad_buffer.py
    _post_param_sync with reuse_grad_buf_for_mxfp8_param_ag).
    """
    wide = by_code(PARAMETER_WIDTH, plans.precision)
    if not largest(plans.fp8_param_gather):
        return wide * most
    narrow = gathered_width(plans)
    in_bytes = held._replace(
        layer_parameters=narrow * held.layer_parameters,
        first_parameters=wide * held.first_parameters,
        last_parameters=wide * held.last_parameters,
    )
    return most_parameters(in_bytes, columns)


def gathered_width(plans: PlanBatch) -> FloatArray:
    """Bytes in which a parameter of a layer is gathered."""
    wide = by_code(PARAMETER_WIDTH, plans.precision)
    if not largest(plans.fp8_param_gather):
        return wide
    narrow = (plans.fp8_param_gather != 0) & (plans.precision != MXFP8)
    return np.where(narrow, 1.0, wide)
