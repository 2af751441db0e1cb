"""Where a layer's experts are dealt to, and what that asks of the rest of the plan.

From Megatron-LM d98e8a64: ``parallel_state.py`` (the experts' ranks fold over tp, cp and dp),
``transformer_config.py`` (biases, overlap), ``moe/moe_layer.py`` (sequence parallelism),
``moe/token_dispatcher.py`` (DeepEP).
"""

from __future__ import annotations

import numpy as np

from parallelsim.plan import MAX_DEGREE, MOE_DISPATCHERS, IntArray, Plan, code
from parallelsim.plan_batch import PlanBatch
from parallelsim.rule_context import (
    BoolArray,
    Context,
    Rule,
    choices,
    does_not_divide,
    is_everywhere,
    unsupported,
)
from parallelsim.rule_stages import FULL

ALL_TO_ALL = code("moe_dispatcher", "all-to-all")
ALL_GATHER = code("moe_dispatcher", "all-gather")
DEEPEP = code("moe_dispatcher", "deepep")
FP32 = code("precision", "fp32")


def _folds(p: PlanBatch) -> BoolArray:
    """Experts are spread: ep or etp above 1."""
    folds: BoolArray = (p.ep > 1) | (p.etp > 1)
    return folds


def spread_without_experts(c: Context, p: PlanBatch) -> BoolArray | bool:
    """Degrees of experts for a model that has none."""
    if c.model.experts or (is_everywhere(p.ep, 1) and is_everywhere(p.etp, 1)):
        return False
    return _folds(p)


def experts_split(c: Context, p: PlanBatch) -> BoolArray | bool:
    """Experts do not divide over their ranks."""
    return does_not_divide(p.ep, c.model.experts.num_experts) if c.model.experts else False


def expert_ffn_splits(c: Context, p: PlanBatch) -> BoolArray | bool:
    """The width of an expert does not divide over its tensor-parallel ranks."""
    return does_not_divide(p.etp, c.model.experts.ffn) if c.model.experts else False


def does_not_fold(c: Context, p: PlanBatch) -> BoolArray | bool:
    """The ranks of experts are no whole part of a stage's ranks, tp * cp * dp."""
    if is_everywhere(p.ep, 1) and is_everywhere(p.etp, 1):
        return False
    index = np.flatnonzero(_folds(p))
    if not index.size:
        return False
    stage: IntArray = np.minimum(c.tp_cp[index], MAX_DEGREE) * p.dp[index]
    broken = np.zeros(len(p), bool)
    broken[index] = stage % np.maximum(p.ep[index] * p.etp[index], 1) != 0
    return broken


def deepep_without_ranks(c: Context, p: PlanBatch) -> BoolArray | bool:
    """No ranks to send tokens to."""
    if is_everywhere(p.moe_dispatcher, ALL_TO_ALL):
        return False
    broken: BoolArray = (p.moe_dispatcher == DEEPEP) & ~_folds(p)
    return broken


def biases_split(c: Context, p: PlanBatch) -> BoolArray | bool:
    """Tensor parallelism inside experts that have biases."""
    return p.etp > 1 if c.model.experts and c.model.experts.has_biases else False


def tp_without_sequence(c: Context, p: PlanBatch) -> BoolArray | bool:
    """Tensor-parallel ranks would each send the same tokens to experts."""
    return (p.tp > 1) & (p.sequence_parallel == 0) if c.model.experts else False


def overlap_without_exchange(c: Context, p: PlanBatch) -> BoolArray | bool:
    """Nothing to overlap, or not in a way that can be."""
    if is_everywhere(p.ep_comm_overlap, 0):
        return False
    on = p.ep_comm_overlap != 0
    lacking = (p.ep == 1) | (p.moe_dispatcher == ALL_GATHER) | (p.precision == FP32)
    broken: BoolArray = on & (lacking | (c.model.num_mtp_layers > 1))
    return broken


def _explain_overlap(c: Context, p: Plan) -> str:
    mtp = c.model.num_mtp_layers
    also = f", and one multi-token-prediction layer at most (the model has {mtp})"
    return (
        "ep_comm_overlap needs ep > 1, a dispatcher other than all-gather and 16-bit training"
        f"{also if mtp > 1 else ''}; got ep={p.ep}, {p.moe_dispatcher}, {p.precision}; turn it off"
    )


def overlap_of_whole_graphs(c: Context, p: PlanBatch) -> BoolArray | bool:
    """Fixed shapes: a graph holds a whole layer, and its exchange with it."""
    if not c.model.experts or not c.model.experts.has_capacity:
        return False
    broken: BoolArray = (p.ep_comm_overlap != 0) & (p.cuda_graphs != 0)
    return broken


def overlap_without_pairs(c: Context, p: PlanBatch) -> BoolArray | bool:
    """No other micro-batch is at hand, or its layers are run again whole."""
    if is_everywhere(p.ep_comm_overlap, 0):
        return False
    on = p.ep_comm_overlap != 0
    broken: BoolArray = on & (((p.pp > 1) & (p.vpp == 1)) | (p.recompute == FULL))
    return broken


def dispatcher_unsupported(c: Context, p: PlanBatch) -> BoolArray | bool:
    """The framework lacks the way to experts."""
    if not c.model.experts:
        return False
    known = c.framework.capabilities.moe_dispatchers
    return _folds(p) & unsupported(p.moe_dispatcher, MOE_DISPATCHERS, known)


def expert_tp_unsupported(c: Context, p: PlanBatch) -> BoolArray | bool:
    """The framework does not split single experts."""
    can = c.framework.capabilities.expert_tensor_parallel
    return False if can or not c.model.experts else p.etp > 1


def _num_experts(c: Context) -> int:
    return c.model.experts.num_experts if c.model.experts else 0


def _expert_ffn(c: Context) -> int:
    return c.model.experts.ffn if c.model.experts else 0


EXPERT_RULES: tuple[Rule, ...] = (
    Rule(
        "expert-degrees-need-experts",
        "ep and etp are 1 for a model without experts",
        spread_without_experts,
        lambda c, p: f"the model has no experts, got ep={p.ep}, etp={p.etp}; leave both at 1",
    ),
    Rule(
        "experts-divide-by-ep",
        "ep divides the experts of a layer",
        experts_split,
        lambda c, p: (
            f"{_num_experts(c)} experts do not divide by ep={p.ep}; "
            f"use a divisor of {_num_experts(c)}"
        ),
    ),
    Rule(
        "expert-ffn-divides-by-etp",
        "etp divides the width of an expert",
        expert_ffn_splits,
        lambda c, p: (
            f"an expert's width of {_expert_ffn(c)} does not divide by etp={p.etp}; "
            f"use a divisor of {_expert_ffn(c)}, or etp=1"
        ),
    ),
    Rule(
        "expert-ranks-divide-stage",
        "ep * etp divides the ranks of a stage, tp * cp * dp",
        does_not_fold,
        lambda c, p: (
            f"ep={p.ep} x etp={p.etp} = {p.ep * p.etp} ranks of experts do not divide the "
            f"tp={p.tp} x cp={p.cp} x dp={p.dp} = {p.tp * p.cp * p.dp} ranks of a stage; "
            "use a smaller ep or etp"
        ),
    ),
    Rule(
        "etp-without-biases",
        "experts with biases need etp = 1",
        biases_split,
        lambda c, p: f"the experts have biases and need etp=1, got etp={p.etp}; use ep instead",
    ),
    Rule(
        "experts-with-tp-need-sequence-parallel",
        "a mixture of experts with tp > 1 needs sequence parallelism",
        tp_without_sequence,
        lambda c, p: (
            f"with tp={p.tp} every rank would send the same tokens to experts; "
            "turn sequence_parallel on, or use tp=1"
        ),
    ),
    Rule(
        "deepep-needs-expert-ranks",
        "the dispatcher deepep needs ep * etp > 1",
        deepep_without_ranks,
        lambda c, p: (
            f"moe_dispatcher deepep needs ep x etp > 1, got {p.ep} x {p.etp}; use all-to-all"
        ),
    ),
    Rule(
        "ep-overlap-needs-exchange",
        "overlapping experts' exchange needs ep > 1, no all-gather, and 16-bit training",
        overlap_without_exchange,
        _explain_overlap,
    ),
    Rule(
        "ep-overlap-without-whole-graphs",
        "CUDA graphs hold whole layers of experts with a capacity, their exchange too",
        overlap_of_whole_graphs,
        lambda c, p: (
            "cuda_graphs hold whole layers of experts with a capacity_factor, which leaves nothing "
            "for ep_comm_overlap to interleave; turn one of them off"
        ),
    ),
    Rule(
        "ep-overlap-needs-interleaving",
        "overlapping experts' exchange needs vpp > 1 where pp > 1, and no full recompute",
        overlap_without_pairs,
        lambda c, p: (
            f"ep_comm_overlap needs vpp > 1 where pp > 1, and no full recompute; got pp={p.pp}, "
            f"vpp={p.vpp}, recompute {p.recompute_label}; change them or turn it off"
        ),
        reads_staging=True,
    ),
    Rule(
        "framework-has-dispatcher",
        "the framework brings tokens to experts that way",
        dispatcher_unsupported,
        lambda c, p: (
            f"{c.framework.name} does not dispatch tokens by {p.moe_dispatcher}; it has "
            f"{choices(c.framework.capabilities.moe_dispatchers)}"
        ),
    ),
    Rule(
        "framework-has-expert-tp",
        "the framework splits single experts",
        expert_tp_unsupported,
        lambda c, p: f"{c.framework.name} does not split an expert, got etp={p.etp}; use etp=1",
    ),
)
