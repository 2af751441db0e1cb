"""Rules of hybrid context parallelism and of layers that list their own operators.

Hybrid context parallelism (``a2a+p2p``) deals heads out inside groups of cp_a2a ranks and passes
keys and values round a ring of cp / cp_a2a such groups (Megatron-LM's
``--hierarchical-context-parallel-sizes``; arXiv:2405.07719). What it asks of attention is
Transformer Engine's (``attn_forward_func_with_cp``).
"""

from __future__ import annotations

import math

import numpy as np

from parallelsim.plan import Plan, code
from parallelsim.plan_batch import PlanBatch
from parallelsim.rule_context import BoolArray, Context, Rule, choices

HYBRID = code("cp_comm_type", "a2a+p2p")


def wrong_hybrid_sizes(c: Context, p: PlanBatch) -> BoolArray | bool:
    """cp_a2a without the hybrid, or one that leaves no ring or no exchange."""
    broken: BoolArray = p.cp_a2a != 1
    hybrid = np.flatnonzero((p.cp_comm_type == HYBRID) & (p.cp > 1))
    if not hybrid.size:
        return broken if broken.any() else False
    cp, inside = p.cp.take(hybrid), np.maximum(p.cp_a2a.take(hybrid), 1)
    broken[hybrid] = (inside == 1) | (inside >= cp) | (cp % inside != 0)
    return broken


def _explain_sizes(c: Context, p: Plan) -> str:
    if p.cp_comm_type != "a2a+p2p" or p.cp == 1:
        return (
            f"cp_a2a={p.cp_a2a} needs cp_comm_type a2a+p2p and cp > 1, got {p.cp_comm_type} and "
            f"cp={p.cp}; leave it at 1"
        )
    return (
        f"cp_a2a={p.cp_a2a} must divide cp={p.cp} and lie between 1 and it; use a2a or p2p for "
        "the whole group, or another cp_a2a"
    )


def hybrid_splits_heads(c: Context, p: PlanBatch) -> BoolArray | bool:
    """The exchange of the hybrid cannot give each rank whole heads."""
    on = (p.cp > 1) & (p.cp_comm_type == HYBRID)
    heads = math.gcd(c.model.heads, *c.model.groups)
    if not on.any() or not heads:
        return False
    # A product above the heads divides them at no size: clipping keeps it inside int64.
    ranks = np.minimum(p.tp, heads + 1) * np.minimum(p.cp_a2a, heads + 1)
    broken: BoolArray = on & (heads % np.maximum(ranks, 1) != 0)
    return broken


def hybrid_with_window(c: Context, p: PlanBatch) -> BoolArray | bool:
    """The hybrid's ring would have to run sliding-window attention."""
    return False if c.model.window is None else (p.cp > 1) & (p.cp_comm_type == HYBRID)


SEQUENCE_RULES: tuple[Rule, ...] = (
    Rule(
        "hybrid-cp-sizes",
        "hybrid context parallelism: 1 < cp_a2a < cp, a divisor of cp; else cp_a2a is 1",
        wrong_hybrid_sizes,
        _explain_sizes,
    ),
    Rule(
        "hybrid-cp-heads",
        "hybrid context parallelism: tp * cp_a2a divides query and key/value heads",
        hybrid_splits_heads,
        lambda c, p: (
            f"tp={p.tp} x cp_a2a={p.cp_a2a} ranks cannot each have whole heads of "
            f"{c.model.heads} query and {choices(c.model.groups or [c.model.heads])} key/value "
            "heads; use a smaller cp_a2a or p2p"
        ),
    ),
    Rule(
        "hybrid-cp-without-window",
        "hybrid context parallelism does not run sliding-window attention",
        hybrid_with_window,
        lambda c, p: (
            f"cp={p.cp} with cp_comm_type a2a+p2p cannot run a sliding window of "
            f"{c.model.window} tokens in {c.model.seq_length}; use a2a, all-gather, or cp=1"
        ),
    ),
    Rule(
        "custom-layers-split-over-tp",
        "tp > 1 needs custom layers whose operators say what it divides",
        lambda c, p: False if c.model.custom_splits_over_tp else p.tp > 1,
        lambda c, p: (
            f"the operators of some custom layer name no tp, got tp={p.tp}: every rank would do "
            "all of its work; use tp=1, or write the sizes of one rank"
        ),
    ),
    Rule(
        "stages-exchange-one-shape",
        "pp > 1 needs layers whose inputs are alike",
        lambda c, p: False if c.model.has_alike_inputs else p.pp > 1,
        lambda c, p: (
            f"layers state inputs of different sizes (input_values), got pp={p.pp}: stages "
            "exchange tensors of one shape; use pp=1"
        ),
    ),
)
