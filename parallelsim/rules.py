"""What makes a plan invalid: one bit and one reason for each rule.

:data:`RULES` is the list; bit i of a mask stands for ``RULES[i]``. A search asks
:func:`broken_rules` for millions of plans, a person asks :func:`explain` for one. The divisibility
rules are Megatron-LM's (``validate_args``, ``TransformerConfig``, ``get_num_layers_to_build`` and
what its interleaved schedule checks); what the software cannot run comes from
``framework.capabilities``, what the hardware cannot from ``accelerator.precisions``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass

import numpy as np

from parallelsim import rule_checks as check
from parallelsim import rule_schedules as schedules
from parallelsim.cluster import ClusterSpec
from parallelsim.framework import FrameworkSpec
from parallelsim.model import ModelSpec
from parallelsim.plan import (
    GRAD_DTYPES,
    LAYOUTS,
    PRECISIONS,
    SCHEDULES,
    IntArray,
    Plan,
    PlanBatch,
    code,
)
from parallelsim.rule_checks import EXTRA_LAYERS, SWITCHES, BoolArray, Context
from parallelsim.rule_sharding import SHARDING_RULES


@dataclass(frozen=True, slots=True)
class Rule:
    """One reason for which a plan cannot run."""

    name: str
    summary: str
    """What must hold, in one line."""
    broken: Callable[[Context, PlanBatch], BoolArray | bool]
    """Which plans break it, shape [P]; plain False where no plan of the batch can."""
    explain: Callable[[Context, Plan], str]
    """For a plan that breaks it: the numbers, and what to do."""
    reads_staging: bool = False
    """Depends on layout, virtual stages, schedule or recompute."""


def _choices(names: Iterable[object]) -> str:
    return ", ".join(str(name) for name in names) or "none"


def _explain_groups(c: Context, p: Plan) -> str:
    groups = _choices(c.groups)
    replication = c.framework.capabilities.kv_replication
    advice = f"use a divisor of {groups}" + (" or a multiple of it" if replication else "")
    why = "" if replication else f" ({c.framework.name} does not replicate key/value heads)"
    return f"{groups} key/value heads do not split over tp={p.tp}{why}; {advice}"


def _explain_layers(c: Context, p: Plan) -> str:
    extra = EXTRA_LAYERS[code("layout", p.layout)]
    counted = f"{c.num_layers} layers" + (f" + {extra} for the {p.layout}" if extra else "")
    return (
        f"{counted} do not divide by pp={p.pp} x vpp={p.vpp} = {p.pp * p.vpp} virtual stages; "
        f"use divisors of {c.num_layers + extra} or another layout"
    )


def _explain_first_last(c: Context, p: Plan) -> str:
    first, last = p.first_stage_layers, p.last_stage_layers
    if p.layout != "first-last":
        given = f"first_stage_layers={first}, last_stage_layers={last}"
        return f"{given} need layout first-last, got {p.layout}; use it, or leave them at 0"
    rest = c.num_layers - first - last
    return (
        f"{first} + {last} layers on the first and last stage leave {rest} of {c.num_layers} "
        f"for {max(p.pp - 2, 0)} stages between; each of the three must be above 0 (with pp=2 the "
        f"rest is 0) and every stage's layers a multiple of vpp={p.vpp}"
    )


def _explain_recompute(c: Context, p: Plan) -> str:
    if p.recompute != "full":
        return (
            f"recompute_num_layers={p.recompute_num_layers} needs recompute full, got {p.recompute}"
        )
    return (
        f"recomputing {p.recompute_num_layers} layers is more than a virtual stage holds "
        f"({c.num_layers} layers over pp={p.pp} x vpp={p.vpp}); use a smaller number or full"
    )


def _explain_gather_overlap(c: Context, p: Plan) -> str:
    return (
        f"overlap_param_gather needs zero >= 1 and overlap_grad_reduce, got zero={p.zero}, "
        f"overlap_grad_reduce={str(p.overlap_grad_reduce).lower()}; turn both on or the gather off"
    )


def _explain_switches(c: Context, p: Plan) -> str:
    missing = [s for s in SWITCHES if getattr(p, s) and not getattr(c.framework.capabilities, s)]
    return f"{c.framework.name} does not have {_choices(missing)}; turn it off"


def _framework_message(what: str, field: str, supported: str) -> Callable[[Context, Plan], str]:
    def explain(c: Context, p: Plan) -> str:
        known = getattr(c.framework.capabilities, supported)
        value = p.recompute_label if field == "recompute" else getattr(p, field)
        return f"{c.framework.name} does not run {what} {value}; it has {_choices(known)}"

    return explain


RULES: tuple[Rule, ...] = (
    Rule(
        "uses-all-gpus",
        "tp * cp * pp * dp is the number of GPUs",
        check.uses_other_gpus,
        lambda c, p: (
            f"tp={p.tp} x cp={p.cp} x pp={p.pp} x dp={p.dp} = {p.num_gpus} GPUs, "
            f"the cluster has {c.num_gpus}; change a degree"
        ),
    ),
    Rule(
        "heads-divide-by-tp",
        "tp divides the query heads",
        lambda c, p: check.does_not_divide(p.tp, c.heads),
        lambda c, p: (
            f"{c.heads} query heads do not divide by tp={p.tp}; use a divisor of {c.heads}"
        ),
    ),
    Rule(
        "kv-heads-split-over-tp",
        "tp divides the key/value heads, or replicates them where the framework can",
        check.splits_groups,
        _explain_groups,
    ),
    Rule(
        "ffn-divides-by-tp",
        "tp divides the feed-forward width",
        lambda c, p: check.does_not_divide(p.tp, c.ffn),
        lambda c, p: (
            f"a feed-forward width of {c.ffn} does not divide by tp={p.tp}; "
            f"use a divisor of {c.ffn}"
        ),
    ),
    Rule(
        "sequence-divides-by-cp",
        "2 cp divides the sequence: each rank holds an early and a late piece of it",
        check.cp_splits_sequence,
        lambda c, p: (
            f"a sequence of {c.seq_length} tokens does not divide by 2 x cp={p.cp}; "
            "use a smaller cp or another sequence length"
        ),
    ),
    Rule(
        "sequence-divides-by-tp",
        "with sequence parallelism, tp divides the tokens of a context-parallel rank",
        check.tp_splits_sequence,
        lambda c, p: (
            f"{c.seq_length} tokens over cp={p.cp} do not divide by tp={p.tp}; "
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
        check.a2a_splits_heads,
        lambda c, p: (
            f"cp_comm_type a2a gives each of tp={p.tp} x cp={p.cp} ranks whole heads, the model "
            f"has {c.heads} query and {_choices(c.groups)} key/value heads; use a smaller cp or p2p"
        ),
    ),
    Rule(
        "window-needs-a2a-or-all-gather",
        "the context-parallel ring does not run sliding-window attention",
        check.window_in_ring,
        lambda c, p: (
            f"cp={p.cp} with cp_comm_type p2p cannot run a sliding window of {c.window} tokens "
            f"in {c.seq_length}; use a2a, all-gather, or cp=1"
        ),
    ),
    Rule(
        "batch-divides-by-replicas",
        "micro_batch_size * dp divides the global batch",
        check.batch_splits,
        lambda c, p: (
            f"a global batch of {p.global_batch_size} does not divide by micro-batch "
            f"{p.micro_batch_size} x dp={p.dp} = {p.micro_batch_size * p.dp}; "
            "change one of the three"
        ),
    ),
    Rule(
        "schedule-matches-stages",
        "schedule none where pp = 1, else one that runs on such stages and virtual stages",
        schedules.wrong_stages,
        schedules.explain_stages,
        reads_staging=True,
    ),
    Rule(
        "interleaving-needs-micro-batches",
        "with the interleaved schedule, pp divides the number of micro-batches",
        schedules.wrong_groups,
        schedules.explain_micro_batches,
        reads_staging=True,
    ),
    Rule(
        "schedule-has-micro-batches",
        "enough micro-batches for the schedule, in both directions where it has two",
        schedules.wrong_micro_batches,
        schedules.explain_micro_batches,
        reads_staging=True,
    ),
    Rule(
        "layers-divide-by-stages",
        "pp * vpp divides the layers (embedding and loss counted as the layout says)",
        check.layers_uneven,
        _explain_layers,
        reads_staging=True,
    ),
    Rule(
        "layout-needs-stages",
        "a layout other than even needs pp > 1",
        lambda c, p: (p.layout != check.EVEN) & (p.pp == 1),
        lambda c, p: f"layout {p.layout} needs pp > 1, got pp={p.pp}; use layout even",
        reads_staging=True,
    ),
    Rule(
        "layout-fits-schedule",
        "layout first-last needs both ends of the model on ranks of their own",
        schedules.wrong_layout,
        schedules.explain_layout,
        reads_staging=True,
    ),
    Rule(
        "first-last-fits",
        "layout first-last leaves the stages between equal, in whole virtual stages",
        check.first_last_wrong,
        _explain_first_last,
        reads_staging=True,
    ),
    Rule(
        "recompute-within-stage",
        "recompute at most the layers of a virtual stage",
        check.recompute_beyond_chunk,
        _explain_recompute,
        reads_staging=True,
    ),
    Rule(
        "cuda-graphs-without-full-recompute",
        "CUDA graphs of layers do not go with full recompute",
        lambda c, p: (p.cuda_graphs != 0) & (p.recompute == check.FULL),
        lambda c, p: (
            f"cuda_graphs capture single layers, got recompute {p.recompute_label}; "
            "use selective or none, or turn cuda_graphs off"
        ),
        reads_staging=True,
    ),
    Rule(
        "tp-overlap-needs-sequence-parallel",
        "user-buffer overlap works on the sequence-parallel collectives",
        lambda c, p: (p.tp_comm_overlap != 0) & (p.sequence_parallel == 0),
        lambda c, p: f"tp_comm_overlap needs sequence_parallel (tp={p.tp}); turn both on or off",
    ),
    Rule(
        "param-gather-overlap-needs-zero",
        "overlapping the parameter gather needs a sharded optimizer and overlapped gradients",
        lambda c, p: (p.overlap_param_gather != 0) & ((p.zero == 0) | (p.overlap_grad_reduce == 0)),
        _explain_gather_overlap,
    ),
    Rule(
        "zero-2-needs-one-stage",
        "sharded gradients need pp = 1: a pipeline accumulates whole ones over micro-batches",
        lambda c, p: (p.zero >= 2) & (p.pp > 1),
        lambda c, p: f"zero={p.zero} shards gradients and needs pp=1, got pp={p.pp}; use zero=1",
    ),
    Rule(
        "fp32-needs-fp32-gradients",
        "fp32 training keeps fp32 gradients",
        lambda c, p: (p.precision == check.FP32) & (p.grad_dtype != check.FP32_GRADS),
        lambda c, p: f"precision fp32 needs grad_dtype fp32, got {p.grad_dtype}",
    ),
    Rule(
        "precision-on-accelerator",
        "the accelerator runs the precision",
        lambda c, p: check.unsupported(p.precision, PRECISIONS, c.cluster.accelerator.precisions),
        lambda c, p: (
            f"{c.cluster.accelerator.name} does not run {p.precision}; "
            f"it has {_choices(c.cluster.accelerator.precisions)}"
        ),
    ),
    Rule(
        "framework-runs-on-accelerator",
        "the accelerator has the compute capability that the framework's kernels need",
        check.accelerator_too_old,
        lambda c, p: (
            f"{c.framework.name} needs compute capability "
            f"{c.framework.capabilities.min_compute_capability:g}, "
            f"{c.cluster.accelerator.name} has {c.cluster.accelerator.compute_capability:g}; "
            "use another framework"
        ),
    ),
    Rule(
        "framework-has-schedule",
        "the framework runs the schedule",
        lambda c, p: check.unsupported(
            p.schedule, SCHEDULES, ("none", *c.framework.capabilities.schedules)
        ),
        _framework_message("the schedule", "schedule", "schedules"),
        reads_staging=True,
    ),
    Rule(
        "framework-has-zero-stage",
        "the framework runs the ZeRO stage",
        lambda c, p: check.unsupported(p.zero, range(4), c.framework.capabilities.zero_stages),
        _framework_message("ZeRO stage", "zero", "zero_stages"),
    ),
    Rule(
        "framework-has-cp-type",
        "the framework runs the kind of context parallelism",
        check.cp_unsupported,
        _framework_message("context parallelism by", "cp_comm_type", "cp_comm_types"),
    ),
    Rule(
        "framework-has-precision",
        "the framework trains in the precision",
        lambda c, p: check.unsupported(
            p.precision, PRECISIONS, c.framework.capabilities.precisions
        ),
        _framework_message("precision", "precision", "precisions"),
    ),
    Rule(
        "framework-has-grad-dtype",
        "the framework accumulates gradients in the format",
        lambda c, p: check.unsupported(
            p.grad_dtype, GRAD_DTYPES, c.framework.capabilities.grad_dtypes
        ),
        _framework_message("gradients in", "grad_dtype", "grad_dtypes"),
    ),
    Rule(
        "framework-has-layout",
        "the framework cuts layers into stages that way",
        lambda c, p: check.unsupported(p.layout, LAYOUTS, c.framework.capabilities.layouts),
        _framework_message("layout", "layout", "layouts"),
        reads_staging=True,
    ),
    Rule(
        "framework-has-recompute",
        "the framework has the kind of recompute",
        check.recompute_unsupported,
        _framework_message("recompute", "recompute", "recomputes"),
        reads_staging=True,
    ),
    Rule(
        "framework-has-switches",
        "the framework has every overlap, fusion and graph that the plan turns on",
        check.switch_unsupported,
        _explain_switches,
    ),
    *(Rule(*parts) for parts in SHARDING_RULES),
)


def broken_rules(
    model: ModelSpec, cluster: ClusterSpec, framework: FrameworkSpec, plans: PlanBatch
) -> IntArray:
    """Which rules each plan breaks: bit i for ``RULES[i]``, int64, shape [P]; 0 is a valid plan."""
    return _mask(check.context_of(model, cluster, framework, plans), plans)


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
    context = check.context_of(model, cluster, framework, plans)
    mask = int(_mask(context, plans)[0])
    return [
        rule.explain(context, plan)
        for i, rule in enumerate(RULES)
        if mask >> i & 1 and rule.name not in ignored
    ]
