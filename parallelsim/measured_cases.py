"""From the facts of a measured run to model, cluster, framework and plan.

Everything comes from the row alone: never from the name of its group. What it does not state takes
the framework's default (:mod:`parallelsim.run_defaults`), and :attr:`Case.assumed` names it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from parallelsim.catalog import (
    cluster_names,
    framework_names,
    load_cluster,
    load_framework,
)
from parallelsim.cluster import ClusterSpec
from parallelsim.errors import PlanError, SpecError
from parallelsim.framework import FrameworkSpec
from parallelsim.measured_clusters import CLUSTER_FACTS, cluster_of
from parallelsim.measured_models import fine_tuned, is_gated, measured_model
from parallelsim.measured_text import (
    KERNEL_COLUMNS,
    Sharding,
    follows_recipe,
    framework_variant,
    stated_dispatcher,
    stated_grad_dtype,
    stated_layer_split,
    stated_modules,
    stated_offload_pct,
    stated_recompute_layers,
    stated_sharding,
    stated_switches,
    states_some_blocks,
)
from parallelsim.measurements import Facts, RowError, Run
from parallelsim.model import ModelSpec
from parallelsim.operators import IS_FP8
from parallelsim.plan import MODULES, PRECISIONS, RECOMPUTES, SCHEDULES, WAVES, Plan, code
from parallelsim.planfile import MAX_BATCH, with_sane_size
from parallelsim.rule_software import KEEPS_FP8
from parallelsim.run_defaults import RunDefaults, run_defaults
from parallelsim.stage_split import stage_split

SCHEDULE_ALIASES = {"zb-1p": "zb-h1", "zb-2p": "zb-h2"}
"""Names of measured runs: the automatic schedules with the memory of ZB-H1 and ZB-H2
(arXiv:2401.10241, section 5)."""
OF_FORKS = frozenset(SCHEDULES) - {"none", "1f1b", "interleaved-1f1b", "gpipe"}
"""Schedules that a paper built into its own version of the row's software."""
FRAMEWORK_FACTS = ("flash_attention", "notes", "schedule", *KERNEL_COLUMNS)
_T = TypeVar("_T")


@dataclass(frozen=True)
class Case:
    """A run that can be predicted."""

    run: Run
    model: ModelSpec
    cluster: ClusterSpec
    framework: FrameworkSpec
    plan: Plan
    assumed: tuple[str, ...]
    """Settings that the row does not state, as ``name=value``."""
    recomputes: tuple[str, ...]
    """Heavier kinds of recompute to fall back on, where the row states none and the plan would not
    fit."""
    recompute_is_free: bool = False
    """The row states no recompute and its software has several: the lightest that is predicted to
    fit stands in, so that whether it fits proves nothing."""


class CaseBuilder:
    """Builds cases; equal models, clusters and frameworks are one object, so that runs batch."""

    def __init__(self, framework: str | None = None) -> None:
        """With ``framework`` (name or path) every run is predicted for that software."""
        self._given = load_framework(framework) if framework else None
        self._cache: dict[Hashable, Any] = {}

    def build(self, run: Run) -> Case:
        """The case of one run.

        Raises:
            RowError: it cannot be predicted; the message is the reason.
        """
        facts = run.facts
        _refuse_unsupported(facts)
        base = self._framework(run)
        defaults = run_defaults(base.name, follows_recipe=follows_recipe(facts))
        framework: FrameworkSpec = self._once(
            ("framework", base.name, *(facts.text(k) for k in FRAMEWORK_FACTS)),
            lambda: self._interned("framework", _as_forked(framework_variant(base, facts), facts)),
        )
        assumed: list[str] = []
        try:
            trained = fine_tuned(measured_model(facts, defaults, assumed), facts, assumed)
            model = self._interned("model", trained)
            key = ("cluster", *(facts.text(name) for name in CLUSTER_FACTS))
            cluster: ClusterSpec = self._once(key, lambda: cluster_of(facts, self._clusters()))
            plan, recomputes = _plan(facts, model, cluster, framework, defaults, assumed)
        except (SpecError, PlanError) as error:
            raise RowError(str(error)) from None
        free = bool(recomputes)
        return Case(run, model, cluster, framework, plan, tuple(assumed), recomputes, free)

    def _framework(self, run: Run) -> FrameworkSpec:
        if self._given is not None:
            return self._given
        name = run.framework
        if not name:
            raise RowError("the row names no framework; give one with --framework")
        if name not in framework_names():
            raise RowError(f"no framework file for {name[:40]!r}")
        loaded: FrameworkSpec = self._once(("base", name), lambda: load_framework(name))
        return loaded

    def _clusters(self) -> tuple[ClusterSpec, ...]:
        """The whole catalogue, read once."""
        return self._once("clusters", lambda: tuple(load_cluster(name) for name in cluster_names()))

    def _once(self, key: Hashable, make: Callable[[], _T]) -> _T:
        if key not in self._cache:
            self._cache[key] = make()
        value: _T = self._cache[key]
        return value

    def _interned(self, kind: str, value: _T) -> _T:
        """The first object equal to ``value``."""
        return self._once((kind, repr(value)), lambda: value)


def _refuse_unsupported(facts: Facts) -> None:
    """Refuse what no formula covers yet.

    Raises:
        RowError: with the reason.
    """
    task = facts.word("task")
    if task not in ("", "pretrain", "sft", "lora"):
        raise RowError(f"not supported yet: task {task[:20]}")
    zero = facts.number("zero_stage")
    if zero is not None and zero not in (0, 1, 2, 3):
        raise RowError(f"zero_stage={facts.text('zero_stage')[:40]}: expected 0, 1, 2 or 3")
    schedule = _stated_schedule(facts)
    if schedule and schedule not in SCHEDULES:
        raise RowError(f"not supported yet: schedule {schedule[:30]}")
    if facts.text("sequence_parallel").lower().startswith("deepspeed-ulysses"):
        raise RowError("not supported yet: sequence parallelism by all-to-all")


def _plan(
    facts: Facts,
    model: ModelSpec,
    cluster: ClusterSpec,
    framework: FrameworkSpec,
    defaults: RunDefaults,
    assumed: list[str],
) -> tuple[Plan, tuple[str, ...]]:
    """The plan of a row, and the kinds of recompute that may replace an assumed one."""
    degrees = _degrees(facts, model, assumed)
    tp, pp = degrees["tp"], degrees["pp"]
    precision = _precision(facts, model, cluster, framework, defaults, assumed)
    recompute, heavier = _recompute(facts, framework, defaults, assumed)
    again = stated_recompute_layers(facts, model.num_layers)
    if again and recompute == "selective":
        recompute = "full"
    degrees |= _expert_degrees(facts, model, framework, degrees, assumed)
    sharding = stated_sharding(facts)
    zero = 3 if sharding else facts.number("zero_stage")
    if zero is None:
        zero = defaults.zero
        assumed.append(f"zero={zero}")
    sequence_parallel = facts.switch("sequence_parallel")
    if sequence_parallel is None and tp > 1:
        sequence_parallel = defaults.sequence_parallel and framework.capabilities.sequence_parallel
        assumed.append(f"sequence_parallel={sequence_parallel}")
    sequence_parallel = bool(sequence_parallel) and tp > 1
    grad_dtype = stated_grad_dtype(facts) or (sharding.grad_dtype if sharding else "")
    if not grad_dtype:
        grad_dtype = defaults.fp16_grad_dtype if precision == "fp16" else defaults.grad_dtype
        assumed.append(f"grad_dtype={grad_dtype}")
    switches = _switches(facts, framework, defaults, precision, assumed)
    async_tp = switches["tp_comm_overlap"]
    switches["tp_comm_overlap"] &= sequence_parallel
    switches["overlap_param_gather"] &= zero > 0
    switches["overlap_grad_reduce"] &= zero == 0 or defaults.overlap_with_zero
    switches["cuda_graphs"] &= recompute != "full"
    if defaults.compile_with_fp8 and (IS_FP8[code("precision", precision)] or async_tp):
        switches["compile"] = True
    switches["ep_comm_overlap"] &= degrees["ep"] > 1
    switches["fp8_param_gather"] &= zero > 0 and bool(KEEPS_FP8[code("precision", precision)])
    fields: dict[str, Any] = degrees | switches | _shard_groups(sharding, degrees, cluster)
    if degrees["ep"] > 1:
        fields["moe_dispatcher"] = _dispatcher(facts, framework, defaults, assumed)
    plan = Plan(
        **fields,
        **stage_split(model, pp, degrees["vpp"], stated_layer_split(facts) or defaults.layer_split),
        schedule=_schedule(facts, pp, degrees["vpp"]),
        sequence_parallel=sequence_parallel,
        zero=int(zero),
        recompute=recompute,
        recompute_modules=stated_modules(facts) if recompute == "selective" else MODULES[0],
        recompute_num_layers=again if recompute == "full" else 0,
        precision=precision,
        grad_dtype=grad_dtype,
        activation_offload_pct=stated_offload_pct(facts, model.num_layers),
    )
    return with_sane_size(plan.validate()), heavier


def _shard_groups(
    sharding: Sharding | None, degrees: dict[str, int], cluster: ClusterSpec
) -> dict[str, Any]:
    """Placement of fully sharded data parallelism; hybrid groups of unstated size are nodes."""
    if sharding is None:
        return {}
    ranks = degrees["dp"] * degrees["cp"]
    group = sharding.group or (cluster.gpus_per_node if sharding.is_hybrid else ranks)
    return {
        "dp_replicate": max(ranks // group, 1),
        "reshard_after_forward": sharding.reshard,
    }


def _degrees(facts: Facts, model: ModelSpec, assumed: list[str]) -> dict[str, int]:
    num_gpus = facts.required("num_gpus")
    tp, cp, pp = facts.required("tp"), facts.count("cp", 1) or 1, facts.required("pp")
    dp = facts.count("dp") or max(num_gpus // (tp * cp * pp), 1)
    if tp * cp * pp * dp != num_gpus:
        raise RowError(f"tp={tp} x cp={cp} x pp={pp} x dp={dp} is not num_gpus={num_gpus}")
    batch, micro = facts.required("global_batch_size"), facts.count("micro_batch_size")
    if micro is None:
        micro = 1
        assumed.append("micro_batch_size=1")
    if batch > MAX_BATCH:
        raise RowError(f"global_batch_size={batch} is above {MAX_BATCH} sequences a step")
    if batch % (micro * dp):
        raise RowError(
            f"global_batch_size={batch} is no multiple of micro_batch_size x dp = {micro * dp}"
        )
    vpp = facts.count("vpp")
    if vpp is not None and vpp > 1 and pp == 1:
        raise RowError(f"vpp={vpp} needs pipeline stages, got pp=1; use vpp=1")
    if vpp is None and _stated_schedule(facts) in WAVES:
        vpp = 2
        assumed.append("vpp=2")
    if vpp is None:
        vpp = 1
        interleaves = facts.word("schedule") in ("", "interleaved-1f1b")
        if (
            pp > 1
            and interleaves
            and model.num_layers % pp == 0
            and batch // (micro * dp) % pp == 0
        ):
            vpp = model.num_layers // pp
        if pp > 1:
            assumed.append(f"vpp={vpp}")
    if pp == 1:
        vpp = 1
    if pp * vpp > model.num_layers + 2:  # embedding and loss may stand for a layer each
        raise RowError(f"pp={pp} x vpp={vpp} are more stages than {model.num_layers} layers fill")
    return {
        "tp": tp,
        "cp": cp,
        "pp": pp,
        "vpp": vpp,
        "dp": dp,
        "micro_batch_size": micro,
        "global_batch_size": batch,
    }


def _expert_degrees(
    facts: Facts,
    model: ModelSpec,
    framework: FrameworkSpec,
    degrees: dict[str, int],
    assumed: list[str],
) -> dict[str, int]:
    """Ep and etp; an unstated etp is 1, as the recipes have it."""
    if not model.has_experts:
        return {"ep": 1, "etp": 1}
    ep, etp = facts.count("ep", 1) or 1, facts.count("etp")
    if etp is None:
        etp = 1
        if degrees["tp"] > 1 and framework.capabilities.expert_tensor_parallel:
            assumed.append("etp=1")
    ranks = degrees["tp"] * degrees["cp"] * degrees["dp"]
    if ranks % (ep * etp):
        raise RowError(f"ep={ep} x etp={etp} does not divide tp x cp x dp = {ranks}")
    return {"ep": ep, "etp": etp}


def _dispatcher(
    facts: Facts, framework: FrameworkSpec, defaults: RunDefaults, assumed: list[str]
) -> str:
    stated = stated_dispatcher(facts)
    if not stated:
        stated = defaults.moe_dispatcher
        assumed.append(f"moe_dispatcher={stated}")
    if stated not in framework.capabilities.moe_dispatchers:
        raise RowError(f"{framework.name} has no {stated} dispatcher")
    return stated


def _stated_schedule(facts: Facts) -> str:
    """The row's schedule under the name that plans use; empty where it states none."""
    stated = facts.word("schedule")
    return SCHEDULE_ALIASES.get(stated, stated)


def _schedule(facts: Facts, pp: int, vpp: int) -> str:
    stated = _stated_schedule(facts)
    if pp == 1:
        return "none"
    if stated in OF_FORKS:
        return stated
    if vpp > 1:
        return "interleaved-1f1b"
    return "gpipe" if stated == "gpipe" else "1f1b"


def _as_forked(framework: FrameworkSpec, facts: Facts) -> FrameworkSpec:
    """The framework with the schedule that the row's own version of it added."""
    stated = _stated_schedule(facts)
    if stated not in OF_FORKS:
        return framework
    can = framework.capabilities
    schedules = tuple(dict.fromkeys((*can.schedules, stated)))
    return replace(framework, capabilities=replace(can, schedules=schedules))


def _precision(
    facts: Facts,
    model: ModelSpec,
    cluster: ClusterSpec,
    framework: FrameworkSpec,
    defaults: RunDefaults,
    assumed: list[str],
) -> str:
    stated = facts.word("precision")
    if not stated:
        stated = defaults.gated_precision if is_gated(model) else defaults.plain_precision
        if stated not in cluster.accelerator.precisions:
            stated = "fp16"
        assumed.append(f"precision={stated}")
    if stated == "fp8":
        hardware = cluster.accelerator.precisions
        known = [p for p in framework.capabilities.precisions if "fp8" in p and p in hardware]
        if not known:
            raise RowError(f"{framework.name} has no fp8 recipe on {cluster.accelerator.name}")
        stated = known[0]
        assumed.append(f"fp8 recipe={stated}")
    if stated not in PRECISIONS:
        raise RowError(f"not supported yet: precision {stated[:30]}")
    return stated


def _recompute(
    facts: Facts, framework: FrameworkSpec, defaults: RunDefaults, assumed: list[str]
) -> tuple[str, tuple[str, ...]]:
    """(kind, heavier kinds to try): as stated, else the lightest that will turn out to fit."""
    stated = "" if states_some_blocks(facts) else facts.word("recompute")
    if stated and not facts.feature("recompute"):
        stated = "none"
    if stated == "selective" and not stated_modules(facts):
        return "none", ()
    if stated in RECOMPUTES:
        return stated, ()
    if stated:
        expected = ", ".join(RECOMPUTES)
        raise RowError(f"not supported yet: recompute {stated[:30]}; expected {expected}")
    kinds = tuple(k for k in defaults.recomputes if k in framework.capabilities.recomputes)
    first, *heavier = kinds or ("none",)
    assumed.append(f"recompute={first}")
    return first, tuple(heavier)


def _switches(
    facts: Facts,
    framework: FrameworkSpec,
    defaults: RunDefaults,
    precision: str,
    assumed: list[str],
) -> dict[str, bool]:
    """The plan's switches, as stated or by default; what the software lacks stays off."""
    stated = stated_switches(facts)
    names = (
        "tp_comm_overlap",
        "overlap_grad_reduce",
        "overlap_param_gather",
        "cross_entropy_fusion",
        "cuda_graphs",
        "compile",
        "ep_comm_overlap",
    )
    switches = {}
    for name in names:
        capable = getattr(framework.capabilities, name)
        switches[name] = capable and stated.get(name, getattr(defaults, name, False))
    keeps_fp8 = stated.get("fp8_param_gather", precision in defaults.fp8_param_gather)
    switches["fp8_param_gather"] = framework.capabilities.fp8_param_gather and keeps_fp8
    if "overlap_grad_reduce" not in stated and not facts.text("overlap"):
        assumed.append("overlap=the framework's default")
    return switches
