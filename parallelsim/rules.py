"""What makes a plan invalid: one bit and one reason for each rule.

:data:`RULES` is the list; bit i of a mask stands for ``RULES[i]``. A search asks
:func:`broken_rules` for millions of plans, a person asks :func:`explain` for one. The rules
themselves are in ``rule_shapes``, ``rule_sequences``, ``rule_stages``, ``rule_experts``,
``rule_software`` and ``rule_sharding``.
"""

from __future__ import annotations

import sys
from collections.abc import Container

import numpy as np

from parallelsim.cluster import ClusterSpec
from parallelsim.framework import FrameworkSpec
from parallelsim.model import ModelSpec
from parallelsim.plan import IntArray, Plan
from parallelsim.plan_batch import PlanBatch
from parallelsim.rule_context import Context, Rule, context_of
from parallelsim.rule_experts import EXPERT_RULES
from parallelsim.rule_sequences import SEQUENCE_RULES
from parallelsim.rule_shapes import SHAPE_RULES
from parallelsim.rule_sharding import SHARDING_RULES
from parallelsim.rule_software import SOFTWARE_RULES, SWITCH_RULES
from parallelsim.rule_stages import STAGE_RULES

RULES: tuple[Rule, ...] = (
    *SHAPE_RULES,
    *SEQUENCE_RULES,
    *STAGE_RULES,
    *SWITCH_RULES,
    *EXPERT_RULES,
    *SOFTWARE_RULES,
    *SHARDING_RULES,
)


def broken_rules(
    model: ModelSpec, cluster: ClusterSpec, framework: FrameworkSpec, plans: PlanBatch
) -> IntArray:
    """Which rules each plan breaks: bit i for ``RULES[i]``, int64, shape [P]; 0 is a valid plan."""
    return _mask(context_of(model, cluster, framework, plans), plans)


def _mask(context: Context, plans: PlanBatch) -> IntArray:
    # Eight rules share a byte while they are gathered: byte arrays are eight times smaller.
    columns = np.zeros((len(plans), 8), np.uint8)
    for start in range(0, len(RULES), 8):
        byte = np.zeros(len(plans), np.uint8)
        for bit, rule in enumerate(RULES[start : start + 8]):
            broken = rule.broken(context, plans)
            if isinstance(broken, np.ndarray):
                byte |= broken.view(np.uint8) << np.uint8(bit)
        place = start // 8
        columns[:, place if sys.byteorder == "little" else 7 - place] = byte
    return columns.view(np.int64).reshape(len(plans))


def reasons(mask: int) -> list[str]:
    """Names of the rules of one mask, in order."""
    return [rule.name for i, rule in enumerate(RULES) if int(mask) >> i & 1]


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
    mask = int(_mask(context, plans)[0])
    return [
        rule.explain(context, plan)
        for i, rule in enumerate(RULES)
        if mask >> i & 1 and rule.name not in ignored
    ]
