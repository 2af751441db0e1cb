"""Degrees against the sizes of the model, the batch and the cluster.

Divisibility is Megatron-LM's (``validate_args``, ``TransformerConfig``); what context parallelism
asks of attention is Transformer Engine's (``attn_forward_func_with_cp``), and of a state-space
layer Megatron-LM's (``ssm/mamba_mixer.py``, ``ssm/mamba_context_parallel.py``).
"""

from __future__ import annotations

import math

import numpy as np

from parallelsim.plan import MAX_DEGREE, IntArray, Plan, code
from parallelsim.plan_batch import PlanBatch
from parallelsim.rule_context import (
    BoolArray,
    Context,
    Rule,
    by_value,
    choices,
    does_not_divide,
)

P2P, A2A = code("cp_comm_type", "p2p"), code("cp_comm_type", "a2a")


def uses_other_gpus(c: Context, p: PlanBatch) -> BoolArray:
    """The product of the degrees is not the cluster's size."""
    # A factor above num_gpus is wrong at any size: clipping keeps the product inside int64.
    limit = min(c.num_gpus + 1, MAX_DEGREE)
    broken: BoolArray = np.minimum(c.tp_cp, limit) * np.minimum(p.pp * p.dp, limit) != c.num_gpus
    return broken


def splits_groups(c: Context, p: PlanBatch) -> BoolArray | bool:
    """Key/value heads neither divide over tp nor are replicated evenly."""
    if not c.model.groups:
        return False
    replicates = c.framework.capabilities.kv_replication

    def predicate(tp: IntArray) -> BoolArray:
        broken = np.zeros(tp.shape, np.bool_)
        for groups in c.model.groups:
            uneven = groups % tp != 0
            broken |= uneven & (tp % groups != 0) if replicates else uneven
        return broken

    return by_value(p.tp, predicate)


def _explain_groups(c: Context, p: Plan) -> str:
    groups = choices(c.model.groups)
    replication = c.framework.capabilities.kv_replication
    advice = f"use a divisor of {groups}" + (" or a multiple of it" if replication else "")
    why = "" if replication else f" ({c.framework.name} does not replicate key/value heads)"
    return f"{groups} key/value heads do not split over tp={p.tp}{why}; {advice}"


def splits_scan(c: Context, p: PlanBatch) -> BoolArray | bool:
    """Tensor parallelism cannot give each rank whole heads and groups of a state-space layer."""
    if not c.model.scan_heads:
        return False
    return does_not_divide(p.tp, math.gcd(c.model.scan_heads, c.model.scan_groups))


def cp_splits_scan(c: Context, p: PlanBatch) -> BoolArray | bool:
    """Context parallelism cannot give each rank whole heads of a state-space layer, or whole or
    evenly replicated groups.
    """
    heads, groups = c.model.scan_heads, c.model.scan_groups
    on = p.cp > 1
    if not heads or not on.any():
        return False
    local = np.maximum(groups // np.maximum(p.tp, 1), 1)
    cp = np.maximum(p.cp, 1)
    uneven = (local % cp != 0) & (cp % local != 0)
    broken: BoolArray = on & (uneven | does_not_divide(c.tp_cp, heads))
    return broken


def cp_splits_sequence(c: Context, p: PlanBatch) -> BoolArray | bool:
    """The sequence does not divide into the 2 cp pieces that balance causal attention."""
    on = p.cp > 1
    if not on.any():
        return False

    def predicate(cp: IntArray) -> BoolArray:
        uneven: BoolArray = c.model.seq_length % (2 * cp) != 0
        return uneven

    broken: BoolArray = on & by_value(p.cp, predicate)
    return broken


def tp_splits_sequence(c: Context, p: PlanBatch) -> BoolArray | bool:
    """With sequence parallelism, a rank's tokens do not divide over tp."""
    on = p.sequence_parallel != 0
    if not on.any():
        return False
    broken: BoolArray = on & does_not_divide(c.tp_cp, c.model.seq_length)
    return broken


def a2a_splits_heads(c: Context, p: PlanBatch) -> BoolArray | bool:
    """All-to-all context parallelism cannot give each rank whole heads."""
    on = (p.cp > 1) & (p.cp_comm_type == A2A)
    if not on.any():
        return False
    broken: BoolArray = on & does_not_divide(c.tp_cp, math.gcd(c.model.heads, *c.model.groups))
    return broken


def window_in_ring(c: Context, p: PlanBatch) -> BoolArray | bool:
    """The context-parallel ring would have to run sliding-window attention."""
    return False if c.model.window is None else (p.cp > 1) & (p.cp_comm_type == P2P)


def latent_without_ring(c: Context, p: PlanBatch) -> BoolArray | bool:
    """Values narrower than keys: only the ring of context parallelism runs them."""
    return (p.cp > 1) & (p.cp_comm_type != P2P) if c.model.has_latent_attention else False


def sinks_without_a2a(c: Context, p: PlanBatch) -> BoolArray | bool:
    """Partial softmaxes with a sink logit cannot be merged: each rank has to see whole rows."""
    return (p.cp > 1) & (p.cp_comm_type != A2A) if c.model.has_sinks else False


def batch_splits(c: Context, p: PlanBatch) -> BoolArray:
    """The global batch is no whole number (at least 1) of micro-batches of all replicas."""
    whole = c.num_micro_batches * c.samples == p.global_batch_size
    broken: BoolArray = ~(whole & (c.num_micro_batches > 0))
    return broken


SHAPE_RULES: tuple[Rule, ...] = (
    Rule(
        "uses-all-gpus",
        "tp * cp * pp * dp is the number of GPUs",
        uses_other_gpus,
        lambda c, p: (
            f"tp={p.tp} x cp={p.cp} x pp={p.pp} x dp={p.dp} = {p.num_gpus} GPUs, "
            f"the cluster has {c.num_gpus}; change a degree"
        ),
    ),
    Rule(
        "heads-divide-by-tp",
        "tp divides the query heads",
        lambda c, p: does_not_divide(p.tp, c.model.heads) if c.model.heads else False,
        lambda c, p: (
            f"{c.model.heads} query heads do not divide by tp={p.tp}; "
            f"use a divisor of {c.model.heads}"
        ),
    ),
    Rule(
        "kv-heads-split-over-tp",
        "tp divides the key/value heads, or replicates them where the framework can",
        splits_groups,
        _explain_groups,
    ),
    Rule(
        "state-space-splits-over-tp",
        "tp divides the heads and the groups of state-space layers",
        splits_scan,
        lambda c, p: (
            f"{c.model.scan_heads} heads and {c.model.scan_groups} groups of the state-space "
            f"layers do not both divide by tp={p.tp}; use a common divisor"
        ),
    ),
    Rule(
        "ffn-divides-by-tp",
        "tp divides the feed-forward width",
        lambda c, p: does_not_divide(p.tp, c.model.ffn) if c.model.ffn else False,
        lambda c, p: (
            f"a feed-forward width of {c.model.ffn} does not divide by tp={p.tp}; "
            f"use a divisor of {c.model.ffn}"
        ),
    ),
    Rule(
        "sequence-divides-by-cp",
        "2 cp divides the sequence: each rank holds an early and a late piece of it",
        cp_splits_sequence,
        lambda c, p: (
            f"a sequence of {c.model.seq_length} tokens does not divide by 2 x cp={p.cp}; "
            "use a smaller cp or another sequence length"
        ),
    ),
    Rule(
        "sequence-divides-by-tp",
        "with sequence parallelism, tp divides the tokens of a context-parallel rank",
        tp_splits_sequence,
        lambda c, p: (
            f"{c.model.seq_length} tokens over cp={p.cp} do not divide by tp={p.tp}; "
            "use a smaller tp, or turn sequence_parallel off"
        ),
    ),
    Rule(
        "sequence-parallel-needs-tp",
        "sequence parallelism needs tp > 1",
        lambda c, p: (p.sequence_parallel != 0) & (p.tp == 1),
        lambda c, p: f"sequence_parallel needs tp > 1, got tp={p.tp}; turn it off",
    ),
    Rule(
        "a2a-heads-divide-by-cp",
        "all-to-all context parallelism: tp * cp divides query and key/value heads",
        a2a_splits_heads,
        lambda c, p: (
            f"cp_comm_type a2a gives each of tp={p.tp} x cp={p.cp} ranks whole heads, the model "
            f"has {c.model.heads} query and {choices(c.model.groups or [c.model.heads])} "
            "key/value heads; use a smaller cp or p2p"
        ),
    ),
    Rule(
        "state-space-splits-over-cp",
        "tp * cp divides the heads of state-space layers; their groups divide or are replicated",
        cp_splits_scan,
        lambda c, p: (
            f"{c.model.scan_heads} heads or {c.model.scan_groups} groups of the state-space layers "
            f"do not split over tp={p.tp} x cp={p.cp} ranks; use a smaller cp"
        ),
    ),
    Rule(
        "window-needs-a2a-or-all-gather",
        "the context-parallel ring does not run sliding-window attention",
        window_in_ring,
        lambda c, p: (
            f"cp={p.cp} with cp_comm_type p2p cannot run a sliding window of {c.model.window} "
            f"tokens in {c.model.seq_length}; use a2a, all-gather, or cp=1"
        ),
    ),
    Rule(
        "latent-attention-needs-p2p",
        "only the context-parallel ring runs attention with values narrower than keys",
        latent_without_ring,
        lambda c, p: (
            f"cp={p.cp} with cp_comm_type {p.cp_comm_type} cannot run latent attention; "
            "use p2p, or cp=1"
        ),
    ),
    Rule(
        "sinks-need-a2a",
        "attention sinks run in all-to-all context parallelism alone",
        sinks_without_a2a,
        lambda c, p: (
            f"cp={p.cp} with cp_comm_type {p.cp_comm_type} cannot run attention with sinks; "
            "use a2a, or cp=1"
        ),
    ),
    Rule(
        "cross-attention-needs-one-stage",
        "models with an encoder, or attention to another sequence, need pp = 1",
        lambda c, p: p.pp > 1 if c.model.has_cross_attention else False,
        lambda c, p: f"stages pass on one sequence, the model has two: pp must be 1, got pp={p.pp}",
    ),
    Rule(
        "batch-divides-by-replicas",
        "micro_batch_size * dp divides the global batch",
        batch_splits,
        lambda c, p: (
            f"a global batch of {p.global_batch_size} does not divide by micro-batch "
            f"{p.micro_batch_size} x dp={p.dp} = {p.micro_batch_size * p.dp}; "
            "change one of the three"
        ),
    ),
)
