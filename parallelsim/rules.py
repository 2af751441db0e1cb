"""What makes a plan invalid: one bit and one reason for each rule.

:data:`RULES` is the list. A search asks :func:`obeys_rules` or :func:`each_rule` of millions of
plans, :func:`broken_rules` keeps the answers in bits, a person asks :func:`explain` for one. The
rules themselves are in ``rule_shapes``, ``rule_sequences``, ``rule_stages``, ``rule_experts``,
``rule_software`` and ``rule_sharding``.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from parallelsim.cluster import ClusterSpec
from parallelsim.framework import FrameworkSpec
from parallelsim.model import ModelSpec
from parallelsim.plan import Plan
from parallelsim.plan_batch import PlanBatch
from parallelsim.rule_context import BoolArray, Context, Rule, context_of
from parallelsim.rule_experts import EXPERT_RULES
from parallelsim.rule_sequences import SEQUENCE_RULES
from parallelsim.rule_shapes import SHAPE_RULES
from parallelsim.rule_sharding import SHARDING_RULES
from parallelsim.rule_software import SOFTWARE_RULES, SWITCH_RULES
from parallelsim.rule_stages import STAGE_RULES

ByteArray = NDArray[np.uint8]

RULES: tuple[Rule, ...] = (
    *SHAPE_RULES,
    *SEQUENCE_RULES,
    *STAGE_RULES,
    *SWITCH_RULES,
    *EXPERT_RULES,
    *SOFTWARE_RULES,
    *SHARDING_RULES,
)
MASK_BYTES = -(-len(RULES) // 8)
"""Of one plan's mask."""


def each_rule(
    model: ModelSpec,
    cluster: ClusterSpec,
    framework: FrameworkSpec,
    plans: PlanBatch,
    rules: Sequence[Rule] = RULES,
) -> Iterator[tuple[Rule, BoolArray]]:
    """The rules that plans of this kind can break, and which plans break them, shape [P] each."""
    return _each(context_of(model, cluster, framework, plans), plans, rules)


def _each(
    context: Context, plans: PlanBatch, rules: Sequence[Rule]
) -> Iterator[tuple[Rule, BoolArray]]:
    for rule in rules:
        broken = rule.broken(context, plans)
        if isinstance(broken, np.ndarray):
            whole = broken.shape == (len(plans),)
            yield rule, broken if whole else np.broadcast_to(broken, len(plans))


def obeys_rules(
    model: ModelSpec,
    cluster: ClusterSpec,
    framework: FrameworkSpec,
    plans: PlanBatch,
    rules: Sequence[Rule] = RULES,
) -> BoolArray:
    """Which plans break none of the rules, shape [P]."""
    obeys = np.ones(len(plans), np.bool_)
    for _, broken in each_rule(model, cluster, framework, plans, rules):
        obeys &= ~broken
    return obeys


def broken_rules(
    model: ModelSpec, cluster: ClusterSpec, framework: FrameworkSpec, plans: PlanBatch
) -> ByteArray:
    """Which rules each plan breaks, shape [P, ``MASK_BYTES``]: a mask of bytes for each plan, bit i
    of its byte b for ``RULES[8 * b + i]``.
    """
    return _masks(context_of(model, cluster, framework, plans), plans)


def _masks(context: Context, plans: PlanBatch) -> ByteArray:
    masks = np.zeros((len(plans), MASK_BYTES), np.uint8)
    for place in range(MASK_BYTES):
        byte = np.zeros(len(plans), np.uint8)  # contiguous while its eight rules are gathered
        rules = RULES[8 * place : 8 * place + 8]
        for rule, broken in _each(context, plans, rules):
            byte |= broken.view(np.uint8) << np.uint8(rules.index(rule))
        masks[:, place] = byte
    return masks


def reasons(mask: ByteArray) -> list[str]:
    """Names of the rules of one mask, in order."""
    return [RULES[i].name for i in _bits(mask)]


def _bits(mask: ByteArray) -> list[int]:
    positions: list[int] = np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist()
    return positions


def explain(
    model: ModelSpec,
    cluster: ClusterSpec,
    framework: FrameworkSpec,
    plan: Plan,
    ignored: Container[str] = (),
) -> list[str]:
    """One message for each rule that the plan breaks: the numbers, and what to do.

    Rules named in ``ignored`` are left out.
    """
    plans = PlanBatch.from_plans([plan])
    context = context_of(model, cluster, framework, plans)
    return [
        RULES[i].explain(context, plan)
        for i in _bits(_masks(context, plans)[0])
        if RULES[i].name not in ignored
    ]
