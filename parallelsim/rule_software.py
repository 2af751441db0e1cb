"""What the software and the hardware can run, and which switches go together.

What the software cannot run comes from ``framework.capabilities``, what the hardware cannot from
``accelerator.precisions``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from parallelsim.plan import (
    CP_COMM_TYPES,
    GRAD_DTYPES,
    LAYOUTS,
    PRECISIONS,
    SCHEDULES,
    Plan,
    code,
)
from parallelsim.plan_batch import PlanBatch
from parallelsim.rule_context import (
    BoolArray,
    Context,
    Rule,
    all_plans,
    choices,
    is_everywhere,
    unsupported,
)
from parallelsim.rule_stages import FULL, SELECTIVE

SWITCHES = (
    "sequence_parallel",
    "tp_comm_overlap",
    "overlap_grad_reduce",
    "overlap_param_gather",
    "cross_entropy_fusion",
    "cuda_graphs",
    "ep_comm_overlap",
    "fp8_param_gather",
    "compile",
)
"""Plan switches that a framework may not have (fields of ``Capabilities`` under the same names)."""
RECOMPUTE_KINDS = ("none", "selective", "full", "block", "modules")
"""``block`` is ``full`` with a number of layers."""
KEEPS_FP8 = np.array([name.startswith(("fp8", "mxfp8")) for name in PRECISIONS])
"""By precision code: weights can be kept in fp8 alone."""
DELAYED = code("precision", "fp8-delayed")
FP32, FP32_GRADS = code("precision", "fp32"), code("grad_dtype", "fp32")


def recompute_unsupported(c: Context, p: PlanBatch) -> BoolArray | bool:
    """The framework lacks the kind of recompute."""
    kinds = p.recompute + ((p.recompute == FULL) & (p.recompute_num_layers > 0))
    if p.recompute_modules.any():
        kinds = kinds + 3 * ((p.recompute == SELECTIVE) & (p.recompute_modules > 0))
    return unsupported(kinds, RECOMPUTE_KINDS, c.framework.capabilities.recomputes)


def cp_unsupported(c: Context, p: PlanBatch) -> BoolArray | bool:
    """The framework lacks the kind of context parallelism."""
    known = c.framework.capabilities.cp_comm_types
    return (p.cp > 1) & unsupported(p.cp_comm_type, CP_COMM_TYPES, known)


def switch_unsupported(c: Context, p: PlanBatch) -> BoolArray | bool:
    """The framework lacks an overlap, fusion or graph that the plan turns on."""
    refused = [s for s in SWITCHES if not getattr(c.framework.capabilities, s)]
    if not refused:
        return False
    broken: BoolArray = np.logical_or.reduce([getattr(p, name) != 0 for name in refused])
    return broken


def fp8_gather_alone(c: Context, p: PlanBatch) -> BoolArray | bool:
    """Weights in fp8 alone without fp8 GEMMs, without a sharded optimizer to master them, or with
    one on the host, which returns 16 bits unless scales are delayed.
    """
    on = p.fp8_param_gather != 0
    if not on.any():
        return False
    broken: BoolArray = on & ~(KEEPS_FP8[p.precision] & (p.zero > 0))
    if p.optimizer_offload_pct.any():
        broken = broken | (on & (p.optimizer_offload_pct > 0) & (p.precision != DELAYED))
    return broken


def stages_sharded(c: Context, p: PlanBatch) -> BoolArray | bool:
    """Sharded gradients or parameters in a pipeline, except for ZeRO 3 that keeps what it gathered
    where the framework has that.
    """
    if is_everywhere(p.pp, 1):
        return False
    broken: BoolArray = (p.zero >= 2) & (p.pp > 1)
    if c.framework.capabilities.sharded_stages:
        broken &= (p.zero == 2) | (p.reshard_after_forward != 0)
    return broken


def accelerator_too_old(c: Context, p: PlanBatch) -> BoolArray | bool:
    """The framework's kernels do not run on this generation; the same for every plan."""
    capability = c.cluster.accelerator.compute_capability
    needed = c.framework.capabilities.min_compute_capability
    return False if capability is None or capability >= needed else all_plans(p)


def _missing_kinds(c: Context) -> list[str]:
    return [kind for kind in c.model.kinds if kind not in c.framework.capabilities.sublayers]


def sublayer_unsupported(c: Context, p: PlanBatch) -> BoolArray | bool:
    """The framework does not run a kind of sub-layer that the model has; the same for every
    plan.
    """
    return all_plans(p) if _missing_kinds(c) else False


def _explain_gather_overlap(c: Context, p: Plan) -> str:
    return (
        f"overlap_param_gather needs zero >= 1 and overlap_grad_reduce, got zero={p.zero}, "
        f"overlap_grad_reduce={str(p.overlap_grad_reduce).lower()}; turn both on or the gather off"
    )


def _explain_stages(c: Context, p: Plan) -> str:
    if c.framework.capabilities.sharded_stages:
        return (
            f"zero={p.zero} with pp={p.pp} keeps gathered parameters until the step's last "
            "micro-batch; use zero=3 with reshard_after_forward=false"
        )
    return (
        f"zero={p.zero} shards gradients in every micro-batch, which {c.framework.name} does not "
        f"do in a pipeline (pp={p.pp}); use pp=1 or zero=1"
    )


def _explain_switches(c: Context, p: Plan) -> str:
    missing = [s for s in SWITCHES if getattr(p, s) and not getattr(c.framework.capabilities, s)]
    return f"{c.framework.name} does not have {choices(missing)}; turn it off"


def _framework_message(what: str, field: str, supported: str) -> Callable[[Context, Plan], str]:
    def explain(c: Context, p: Plan) -> str:
        known = getattr(c.framework.capabilities, supported)
        value = p.recompute_label if field == "recompute" else getattr(p, field)
        if field == "recompute" and p.recompute == "selective":
            value = f"{value} of {p.recompute_modules}"
        return f"{c.framework.name} does not run {what} {value}; it has {choices(known)}"

    return explain


SWITCH_RULES: tuple[Rule, ...] = (
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
        "fp8-param-gather-needs-fp8-and-zero",
        "keeping weights in fp8 alone needs an fp8 precision and a sharded optimizer on the GPU",
        fp8_gather_alone,
        lambda c, p: (
            f"fp8_param_gather needs an fp8 precision and zero >= 1, got {p.precision}, "
            f"zero={p.zero}; change them or turn it off"
            if not p.optimizer_offload_pct
            else f"fp8_param_gather with optimizer_offload_pct={p.optimizer_offload_pct} needs "
            f"precision fp8-delayed and zero >= 1, got {p.precision}, zero={p.zero}; turn it off"
        ),
    ),
    Rule(
        "zero-2-with-stages",
        "sharded gradients need pp = 1, or software that scatters them once a step",
        stages_sharded,
        _explain_stages,
    ),
    Rule(
        "fp32-needs-fp32-gradients",
        "fp32 training keeps fp32 gradients",
        lambda c, p: (p.precision == FP32) & (p.grad_dtype != FP32_GRADS),
        lambda c, p: f"precision fp32 needs grad_dtype fp32, got {p.grad_dtype}",
    ),
)

SOFTWARE_RULES: tuple[Rule, ...] = (
    Rule(
        "precision-on-accelerator",
        "the accelerator runs the precision",
        lambda c, p: unsupported(p.precision, PRECISIONS, c.cluster.accelerator.precisions),
        lambda c, p: (
            f"{c.cluster.accelerator.name} does not run {p.precision}; "
            f"it has {choices(c.cluster.accelerator.precisions)}"
        ),
    ),
    Rule(
        "framework-runs-on-accelerator",
        "the accelerator has the compute capability that the framework's kernels need",
        accelerator_too_old,
        lambda c, p: (
            f"{c.framework.name} needs compute capability "
            f"{c.framework.capabilities.min_compute_capability:g}, "
            f"{c.cluster.accelerator.name} has {c.cluster.accelerator.compute_capability:g}"
        ),
        reads_plan=False,
    ),
    Rule(
        "framework-has-sublayers",
        "the framework runs every kind of sub-layer that the model has",
        sublayer_unsupported,
        lambda c, p: (
            f"{c.framework.name} does not run {choices(_missing_kinds(c))}; it has "
            f"{choices(c.framework.capabilities.sublayers)}"
        ),
        reads_plan=False,
    ),
    Rule(
        "framework-has-schedule",
        "the framework runs the schedule",
        lambda c, p: unsupported(
            p.schedule, SCHEDULES, ("none", *c.framework.capabilities.schedules)
        ),
        _framework_message("the schedule", "schedule", "schedules"),
        reads_staging=True,
    ),
    Rule(
        "framework-has-zero-stage",
        "the framework runs the ZeRO stage",
        lambda c, p: unsupported(p.zero, range(4), c.framework.capabilities.zero_stages),
        _framework_message("ZeRO stage", "zero", "zero_stages"),
    ),
    Rule(
        "framework-has-cp-type",
        "the framework runs the kind of context parallelism",
        cp_unsupported,
        _framework_message("context parallelism by", "cp_comm_type", "cp_comm_types"),
    ),
    Rule(
        "framework-has-precision",
        "the framework trains in the precision",
        lambda c, p: unsupported(p.precision, PRECISIONS, c.framework.capabilities.precisions),
        _framework_message("precision", "precision", "precisions"),
    ),
    Rule(
        "framework-has-grad-dtype",
        "the framework accumulates gradients in the format",
        lambda c, p: unsupported(p.grad_dtype, GRAD_DTYPES, c.framework.capabilities.grad_dtypes),
        _framework_message("gradients in", "grad_dtype", "grad_dtypes"),
    ),
    Rule(
        "framework-has-layout",
        "the framework cuts layers into stages that way",
        lambda c, p: unsupported(p.layout, LAYOUTS, c.framework.capabilities.layouts),
        _framework_message("layout", "layout", "layouts"),
        reads_staging=True,
    ),
    Rule(
        "framework-has-recompute",
        "the framework has the kind of recompute",
        recompute_unsupported,
        _framework_message("recompute", "recompute", "recomputes"),
        reads_staging=True,
    ),
    Rule(
        "framework-has-switches",
        "the framework has every overlap, fusion and graph that the plan turns on",
        switch_unsupported,
        _explain_switches,
    ),
)
