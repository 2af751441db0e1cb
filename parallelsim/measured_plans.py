"""The plan of a measured run, from the facts of its row.

What the row does not state takes the framework's default (:mod:`parallelsim.run_defaults`).
"""

from __future__ import annotations

from typing import Any

from parallelsim.cluster import ClusterSpec
from parallelsim.framework import FrameworkSpec
from parallelsim.layers import LatentAttention
from parallelsim.measured_models import is_gated
from parallelsim.measured_names import PRECISION_NAMES, SCHEDULE_NAMES, plain_name
from parallelsim.measured_text import (
    Sharding,
    drops_tokens,
    quotes_recipe,
    stated_dispatcher,
    stated_grad_dtype,
    stated_layer_split,
    stated_modules,
    stated_month,
    stated_offload_pct,
    stated_optimizer_group,
    stated_recompute_layers,
    stated_sharding,
    stated_switches,
    states_some_blocks,
)
from parallelsim.measurements import Facts, RowError
from parallelsim.model import ModelSpec
from parallelsim.operators import IS_FP8
from parallelsim.plan import MODULES, PRECISIONS, RECOMPUTES, SCHEDULES, WAVES, Plan, code
from parallelsim.planfile import MAX_BATCH, with_sane_size
from parallelsim.rule_software import KEEPS_FP8
from parallelsim.run_defaults import RunDefaults
from parallelsim.stage_split import stage_split

OF_FORKS = frozenset(SCHEDULES) - {"none", "1f1b", "interleaved-1f1b", "gpipe"}
"""Schedules that a paper built into its own version of the row's software."""


def measured_plan(
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
    recompute, modules, heavier = _recompute(facts, model, framework, defaults, assumed)
    again = stated_recompute_layers(facts, model.num_layers)
    if again and recompute == "selective":
        recompute = "full"
    degrees |= _expert_degrees(facts, model, framework, defaults, degrees, assumed)
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
        grad_dtype = _default_grad_dtype(precision, defaults)
        assumed.append(f"grad_dtype={grad_dtype}")
    switches = _switches(facts, model, framework, defaults, precision, assumed)
    if model.has_experts:
        modular = recompute == "selective" and modules != MODULES[0]
        graphs = _graphs_experts(cluster, defaults) and not modular
        switches |= _expert_switches(facts, cluster, framework, defaults, degrees, graphs, assumed)
    async_tp = switches["tp_comm_overlap"]
    switches["tp_comm_overlap"] &= sequence_parallel
    switches["overlap_param_gather"] &= zero > 0
    switches["overlap_grad_reduce"] &= zero == 0 or defaults.overlap_with_zero
    switches["cuda_graphs"] &= recompute != "full"
    if defaults.compile_with_fp8 and (IS_FP8[code("precision", precision)] or async_tp):
        switches["compile"] = True
    if _compiles_loss(facts, defaults, tp) and switches["compile"]:
        switches["cross_entropy_fusion"] = framework.capabilities.cross_entropy_fusion
    switches["ep_comm_overlap"] &= degrees["ep"] > 1
    switches["fp8_param_gather"] &= zero > 0 and bool(KEEPS_FP8[code("precision", precision)])
    fields: dict[str, Any] = degrees | switches
    if sharding is not None:
        fields |= _shard_groups(sharding, degrees, cluster)
    elif zero == 1:
        ranks = degrees["dp"] * degrees["cp"]
        fields["dp_replicate"] = max(ranks // (stated_optimizer_group(facts) or ranks), 1)
    if degrees["ep"] > 1:
        fields["moe_dispatcher"] = _dispatcher(facts, cluster, framework, defaults, assumed)
    plan = Plan(
        **fields,
        **stage_split(model, pp, degrees["vpp"], stated_layer_split(facts) or defaults.layer_split),
        schedule=_schedule(facts, pp, degrees["vpp"]),
        sequence_parallel=sequence_parallel,
        zero=int(zero),
        recompute=recompute,
        recompute_modules=modules if recompute == "selective" else MODULES[0],
        recompute_num_layers=again if recompute == "full" else 0,
        precision=precision,
        grad_dtype=grad_dtype,
        activation_offload_pct=stated_offload_pct(facts, model.num_layers),
    )
    return with_sane_size(plan.validate()), heavier


def _default_grad_dtype(precision: str, defaults: RunDefaults) -> str:
    """Gradients of fp32 weights are fp32; others are the framework's."""
    if precision == "fp32":
        return "fp32"
    return defaults.fp16_grad_dtype if precision == "fp16" else defaults.grad_dtype


def _compiles_loss(facts: Facts, defaults: RunDefaults, tp: int) -> bool:
    """A compiled model's loss is compiled too: whole rows, in software of the run's time."""
    since, date = defaults.compiles_loss_since, stated_month(facts)
    return tp == 1 and since is not None and date is not None and date >= since


def _shard_groups(
    sharding: Sharding, degrees: dict[str, int], cluster: ClusterSpec
) -> dict[str, Any]:
    """Placement of fully sharded data parallelism; hybrid groups of unstated size are nodes.

    Pipeline stages keep what they have gathered (torchtitan llama3/parallelize.py apply_fsdp).
    """
    ranks = degrees["dp"] * degrees["cp"]
    group = sharding.group or (cluster.gpus_per_node if sharding.is_hybrid else ranks)
    return {
        "dp_replicate": max(ranks // group, 1),
        "reshard_after_forward": sharding.reshard and degrees["pp"] == 1,
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
    if vpp is None and stated_schedule(facts) in WAVES:
        vpp = 2
        assumed.append("vpp=2")
    if vpp is None:
        vpp = 1
        interleaves = stated_schedule(facts) in ("", "interleaved-1f1b")
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
    defaults: RunDefaults,
    degrees: dict[str, int],
    assumed: list[str],
) -> dict[str, int]:
    """Ep and etp."""
    if not model.has_experts:
        return {"ep": 1, "etp": 1}
    ep, etp = facts.count("ep", 1) or 1, facts.count("etp")
    if etp is None:
        etp = 1
        if degrees["tp"] > 1 and framework.capabilities.expert_tensor_parallel:
            etp = degrees["tp"] if defaults.etp_is_tp else 1
            assumed.append(f"etp={etp}")
    ranks = degrees["tp"] * degrees["cp"] * degrees["dp"]
    if ranks % (ep * etp):
        raise RowError(f"ep={ep} x etp={etp} does not divide tp x cp x dp = {ranks}")
    return {"ep": ep, "etp": etp}


def _dispatcher(
    facts: Facts,
    cluster: ClusterSpec,
    framework: FrameworkSpec,
    defaults: RunDefaults,
    assumed: list[str],
) -> str:
    stated = stated_dispatcher(facts)
    if not stated:
        stated = (_in_rack(cluster) and defaults.rack_dispatcher) or defaults.moe_dispatcher
        assumed.append(f"moe_dispatcher={stated}")
    if stated not in framework.capabilities.moe_dispatchers:
        raise RowError(f"{framework.name} has no {stated} dispatcher")
    return stated


def _expert_switches(
    facts: Facts,
    cluster: ClusterSpec,
    framework: FrameworkSpec,
    defaults: RunDefaults,
    degrees: dict[str, int],
    graphs: bool,
    assumed: list[str],
) -> dict[str, bool]:
    """Graphs and overlap that the recipes of models with experts turn on, and the row leaves out.

    Overlap needs two micro-batches at once: a pipeline has to be interleaved.
    """
    if quotes_recipe(facts):
        return {}
    outside = degrees["ep"] * degrees["etp"] > cluster.domain_size
    usable = {
        "cuda_graphs": graphs,
        "ep_comm_overlap": defaults.overlaps_outer_exchange
        and outside
        and degrees["vpp"] > 1
        and (defaults.drop_overlaps or not drops_tokens(facts)),
    }
    stated = stated_switches(facts)
    taken = [
        name
        for name, on in usable.items()
        if on and name not in stated and getattr(framework.capabilities, name)
    ]
    assumed.extend(f"{name}=True" for name in taken)
    return dict.fromkeys(taken, True)


def _graphs_experts(cluster: ClusterSpec, defaults: RunDefaults) -> bool:
    rack = ("rack",) if _in_rack(cluster) else ()
    return not {cluster.accelerator.architecture, *rack}.isdisjoint(defaults.expert_graphs)


def _in_rack(cluster: ClusterSpec) -> bool:
    """Links join more GPUs than a node has."""
    return cluster.domain_size > cluster.gpus_per_node


def stated_schedule(facts: Facts) -> str:
    """The row's schedule under the name that plans use; empty where it states none."""
    return plain_name(facts.text("schedule"), SCHEDULE_NAMES)


def _schedule(facts: Facts, pp: int, vpp: int) -> str:
    stated = stated_schedule(facts)
    if pp == 1:
        return "none"
    if stated in OF_FORKS:
        return stated
    if vpp > 1:
        if stated == "gpipe":
            raise RowError(f"schedule gpipe has one stage a rank, got vpp={vpp}; use vpp=1")
        return "interleaved-1f1b"
    return "gpipe" if stated == "gpipe" else "1f1b"


def _precision(
    facts: Facts,
    model: ModelSpec,
    cluster: ClusterSpec,
    framework: FrameworkSpec,
    defaults: RunDefaults,
    assumed: list[str],
) -> str:
    stated = plain_name(facts.text("precision"), PRECISION_NAMES)
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
    facts: Facts,
    model: ModelSpec,
    framework: FrameworkSpec,
    defaults: RunDefaults,
    assumed: list[str],
) -> tuple[str, str, tuple[str, ...]]:
    """(kind, modules of the selective one, heavier kinds to try): as stated, else the module that
    recipes name for latent attention, else the lightest kind that will turn out to fit.
    """
    stated = "" if states_some_blocks(facts) else facts.word("recompute")
    if stated and not facts.feature("recompute"):
        stated = "none"
    modules = stated_modules(facts) if stated == "selective" else MODULES[0]
    if not modules:
        return "none", MODULES[0], ()
    if stated in RECOMPUTES:
        return stated, modules, ()
    if stated:
        expected = ", ".join(RECOMPUTES)
        raise RowError(f"not supported yet: recompute {stated[:30]}; expected {expected}")
    latent = any(isinstance(layer.attention, LatentAttention) for layer, _ in model.layer_kinds)
    if latent and defaults.latent_recompute and not quotes_recipe(facts):
        assumed.append(f"recompute=selective of {defaults.latent_recompute}")
        return "selective", defaults.latent_recompute, ()
    kinds = tuple(k for k in defaults.recomputes if k in framework.capabilities.recomputes)
    first, *heavier = kinds or ("none",)
    assumed.append(f"recompute={first}")
    return first, MODULES[0], tuple(heavier)


def _switches(
    facts: Facts,
    model: ModelSpec,
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
    if model.lora is not None:  # NeMo 8cfedd72 llm/recipes/llama3_70b.py: off with adapters
        switches["tp_comm_overlap"] &= "tp_comm_overlap" in stated
    keeps_fp8 = stated.get("fp8_param_gather", precision in defaults.fp8_param_gather)
    switches["fp8_param_gather"] = framework.capabilities.fp8_param_gather and keeps_fp8
    if "overlap_grad_reduce" not in stated and not facts.text("overlap"):
        assumed.append("overlap=the framework's default")
    return switches
