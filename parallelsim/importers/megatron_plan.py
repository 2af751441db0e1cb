"""The fields of a plan in Megatron-LM's flags; defaults are Megatron-LM's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from parallelsim.errors import PlanError
from parallelsim.exporters.megatron_experts import DISPATCHER_FLAGS
from parallelsim.exporters.megatron_flags import CP_COMM_FLAGS, LAYOUT_FLAGS
from parallelsim.exporters.megatron_hybrid import LETTERS, chunk_layers
from parallelsim.exporters.megatron_states import FSDP_STRATEGIES
from parallelsim.importers.arguments import Arguments
from parallelsim.importers.megatron_model import hybrid_pattern
from parallelsim.model import ModelSpec
from parallelsim.plan import MODULES, Plan
from parallelsim.search.partition_layouts import read_megatron_layout

_SHARDING = {"no_shard": 0, "optim": 1} | {name: zero for zero, name in FSDP_STRATEGIES.items()}
_FP8 = {"delayed": "fp8-delayed", "tensorwise": "fp8-current", "blockwise": "fp8-blockwise"}
_FP8 |= {"mxfp8": "mxfp8"}
_SWITCHES = {
    "--sequence-parallel": "sequence_parallel",
    "--overlap-grad-reduce": "overlap_grad_reduce",
    "--overlap-param-gather": "overlap_param_gather",
    "--tp-comm-overlap": "tp_comm_overlap",
    "--cross-entropy-loss-fusion": "cross_entropy_fusion",
    "--overlap-moe-expert-parallel-comm": "ep_comm_overlap",
    "--fp8-param-gather": "fp8_param_gather",
}
_WITHOUT_FIELD = (
    *("--attention-backend", "--cross-entropy-fusion-impl", "--moe-grouped-gemm"),
    *("--moe-permute-fusion", "--moe-router-padding-for-fp8", "--use-flash-attn"),
    *("--moe-router-padding-for-quantization", "--reuse-grad-buf-for-mxfp8-param-ag"),
    *("--cuda-graph-scope", "--cuda-graph-modules", "--manual-gc", "--manual-gc-interval"),
)
"""Flags whose effect is always part of a prediction, or follows from other fields."""
_GRAPHS = ("none", "local", "transformer_engine", "full_iteration")


def plan_fields(arguments: Arguments, model: ModelSpec) -> dict[str, Any]:
    """Fields of the plan but for dp; ``global_batch_size`` None where left to dp."""
    whole = arguments.whole
    tp = whole("--tensor-model-parallel-size", 1)
    pp, cp = whole("--pipeline-model-parallel-size", 1), whole("--context-parallel-size", 1)
    fields: dict[str, Any] = {"tp": tp, "cp": cp, "pp": pp}
    fields |= {"micro_batch_size": whole("--micro-batch-size", 1)}
    fields |= {"global_batch_size": whole("--global-batch-size") or None}
    for flag, name in _SWITCHES.items():
        fields[name] = arguments.has(flag)
    if arguments.choice("--DDP-impl", ("local", "torch"), "local") == "torch":
        fields["overlap_grad_reduce"] = True
    if tp == 1 and fields["sequence_parallel"]:
        fields["sequence_parallel"] = False
        arguments.notes.append("--sequence-parallel does nothing with tp=1, as in Megatron-LM")
    fields |= _stages(arguments, model, pp)
    fields |= _precision(arguments)
    fields |= _sharding(arguments, fields["precision"])
    fields |= _context(arguments, cp) | _recompute(arguments, model, fields)
    fields |= _experts(arguments, model, tp)
    graphs = arguments.choice("--cuda-graph-impl", _GRAPHS, "none") != "none"
    older = [arguments.has(f) for f in ("--enable-cuda-graph", "--external-cuda-graph")]
    fields["cuda_graphs"] = graphs or any(older)
    for flag in _WITHOUT_FIELD:
        arguments.has(flag)
    return fields | _optimizer(arguments) | _activation_offload(arguments, model)


def _optimizer(arguments: Arguments) -> dict[str, Any]:
    """What the optimizer keeps, and the share of it that the host steps."""
    name = arguments.text("--optimizer", "adam").removeprefix("dist_")
    if name not in ("adam", "sgd", "muon"):
        raise arguments.error("--optimizer", f"expected adam, sgd or muon, got {name[:40]!r}")
    moments = {arguments.text(f"--exp-avg{of}-dtype", "fp32") for of in ("", "-sq")}
    if name == "adam" and moments == {"bf16"}:
        name = "adam-bf16"
    elif moments != {"fp32"}:
        words = " and ".join(sorted(moments))
        arguments.notes.append(f"--exp-avg-dtype: moments in {words} are taken as fp32")
    for flag in ("--use-precision-aware-optimizer", "--overlap-cpu-optimizer-d2h-h2d"):
        arguments.has(flag)
    share = arguments.number("--optimizer-offload-fraction", 1.0)
    offloads = arguments.has("--optimizer-cpu-offload")
    return {"optimizer": name, "optimizer_offload_pct": round(100 * share) if offloads else 0}


def _activation_offload(arguments: Arguments, model: ModelSpec) -> dict[str, Any]:
    layers = arguments.whole("--cpu-offloading-num-layers")
    return {"activation_offload_pct": round(100 * layers / model.num_layers)}


def _precision(arguments: Arguments) -> dict[str, Any]:
    """Formats of the GEMMs and of the gradients."""
    arguments.conflict("--fp16", "--bf16")
    fp16, bf16 = arguments.has("--fp16"), arguments.has("--bf16")
    fp8, fp4 = arguments.text("--fp8-format"), arguments.text("--fp4-format")
    recipe = arguments.choice("--fp8-recipe", tuple(_FP8), "delayed")
    arguments.given("--fp4-recipe")
    name = "fp16" if fp16 else "bf16" if bf16 else "fp32"
    name = "nvfp4" if fp4 else _FP8[recipe] if fp8 else name
    if (fp8 or fp4) and not bf16:
        raise arguments.error("--fp8-format" if fp8 else "--fp4-format", "needs --bf16 as well")
    reduced = arguments.has("--grad-reduce-in-bf16")
    whole = arguments.has("--accumulate-allreduce-grads-in-fp32")
    half = reduced if name != "fp16" else not whole
    return {"precision": name, "grad_dtype": "bf16" if half else "fp32"}


def _sharding(arguments: Arguments, precision: str) -> dict[str, Any]:
    if arguments.has("--deepspeed"):
        return {"zero": _deepspeed_stage(arguments, precision)}
    if arguments.has("--use-torch-fsdp2"):  # shards what "not modelled" would take as replicated
        raise arguments.error("--use-torch-fsdp2", "is not modelled; --use-megatron-fsdp is")
    zero = int(arguments.has("--use-distributed-optimizer"))
    strategy = arguments.choice("--data-parallel-sharding-strategy", tuple(_SHARDING), "no_shard")
    if arguments.has("--use-megatron-fsdp"):
        zero = _SHARDING[strategy]
    replicas = arguments.whole("--num-distributed-optimizer-instances", 1)
    return {"zero": zero, "dp_replicate": replicas if zero > 1 else 1}


def _deepspeed_stage(arguments: Arguments, precision: str) -> int:
    """ZeRO's stage as Megatron-DeepSpeed passes it on.

    Its bf16 optimizer shards its states as stage 1 does (DeepSpeed runtime/bf16_optimizer.py).
    """
    arguments.has("--deepspeed-activation-checkpointing")
    arguments.has("--no-pipeline-parallel")
    stage = arguments.number("--zero-stage", 1.0)
    if stage not in (0, 1, 2, 3):
        raise arguments.error("--zero-stage", f"expected 0 to 3, got {stage:g}")
    return max(int(stage), int(precision == "bf16"))


def _context(arguments: Arguments, cp: int) -> dict[str, Any]:
    names = {flag: name for name, flag in CP_COMM_FLAGS.items()}
    kinds = set(arguments.given("--cp-comm-type") or ["p2p"])
    sizes = arguments.given("--hierarchical-context-parallel-sizes")
    if len(kinds) > 1:
        raise arguments.error("--cp-comm-type", "layers of several kinds; a plan has one")
    kind = kinds.pop()
    if kind not in names:
        raise arguments.error("--cp-comm-type", f"expected {', '.join(names)}, got {kind[:40]!r}")
    if cp == 1:
        return {"cp_comm_type": "p2p", "cp_a2a": 1}
    is_hybrid = names[kind] == "a2a+p2p"
    if is_hybrid and (not sizes or not sizes[0].isdigit()):
        message = "needed with --cp-comm-type a2a+p2p, as 2 4"
        raise arguments.error("--hierarchical-context-parallel-sizes", message)
    return {"cp_comm_type": names[kind], "cp_a2a": int(sizes[0]) if is_hybrid and sizes else 1}


def _stages(arguments: Arguments, model: ModelSpec, pp: int) -> dict[str, Any]:
    """Layout and virtual stages."""
    per_rank = "--num-virtual-stages-per-pipeline-rank"
    per_stage = "--num-layers-per-virtual-pipeline-stage"
    layout_flag = "--pipeline-model-parallel-layout"
    arguments.conflict(per_rank, per_stage)
    arguments.conflict(per_stage, layout_flag)
    ends = [arguments.whole(f"--decoder-{end}-pipeline-num-layers") for end in ("first", "last")]
    vpp = arguments.whole(per_rank, 1)
    names = {flags: name for name, flags in LAYOUT_FLAGS.items()}
    given = tuple(flag for flag in LAYOUT_FLAGS["embedding-loss"] if arguments.has(flag))
    if pattern := hybrid_pattern(arguments):
        return _hybrid_stages(arguments, model, pattern, pp)
    if text := arguments.text(layout_flag):
        try:
            chunks = read_megatron_layout(text)[0]
        except PlanError as error:
            raise arguments.error(layout_flag, str(error)) from None
        return _free(arguments, layout_flag, chunks, pp)
    if arguments.has(per_stage):
        size = arguments.whole(per_stage)
        slots = model.num_layers + len(given)
        if size < 1 or slots % (pp * size):
            raise arguments.error(per_stage, f"{size} x pp={pp} does not divide {slots} layers")
        vpp = slots // pp // size
    if any(ends):
        return {"vpp": vpp} | _uneven(arguments, model, pp, ends)
    layout = names[given]
    if "embedding" in arguments.text("--pp-partition-method"):  # type:transformer|embedding
        layout = "embedding-loss"
    return {"vpp": vpp, "layout": layout if pp > 1 else "even"}


def _uneven(arguments: Arguments, model: ModelSpec, pp: int, ends: list[int]) -> dict[str, Any]:
    """First and last stage; where one of them is left out it is as the others."""
    known = sum(1 for end in ends if end)
    others = (model.num_layers - sum(ends)) // max(pp - known, 1)
    first, last = (end or others for end in ends)
    return {"layout": "first-last", "first_stage_layers": first, "last_stage_layers": last}


def _free(arguments: Arguments, flag: str, chunks: Sequence[int], pp: int) -> dict[str, Any]:
    if len(chunks) % pp:
        raise arguments.error(flag, f"{len(chunks)} chunks are no multiple of pp={pp}")
    return {"vpp": len(chunks) // pp, "layout": "free", "chunk_layers": list(chunks)}


def _hybrid_stages(arguments: Arguments, model: ModelSpec, pattern: str, pp: int) -> dict[str, Any]:
    """The pattern's ``|`` cut a hybrid into chunks, each of whole layers."""
    segments = pattern.split("|")
    if len(segments) == 1:
        return {"vpp": 1, "layout": "even"}
    letters = ["".join(LETTERS[type(p)] for p in layer.sublayers) for layer in model.layers]
    chunks, at = list[int](), 0
    for segment in segments:
        start, rest = at, segment
        while at < len(letters) and rest:
            rest = rest[len(letters[at]) :]
            at += 1
        chunks.append(at - start)
    free = _free(arguments, "--hybrid-layer-pattern", chunks, pp)
    for layout in ("even", "embedding", "loss", "embedding-loss"):
        plan = Plan(pp=pp, vpp=free["vpp"], layout=layout)
        if chunk_layers(model.num_layers, plan) == chunks:
            return {"vpp": free["vpp"], "layout": layout}
    return free


def _recompute(arguments: Arguments, model: ModelSpec, fields: Mapping[str, Any]) -> dict[str, Any]:
    granularity = (
        arguments.choice("--recompute-granularity", ("full", "selective"), "none")
        if (arguments.has("--recompute-granularity"))
        else "none"
    )
    if arguments.has("--recompute-activations"):
        if granularity == "full":
            raise arguments.error("--recompute-activations", "contradicts granularity full")
        granularity = "selective"
    methods = ("uniform", "block", "")
    method = arguments.choice("--recompute-method", methods, "")
    older = arguments.choice("--activations-checkpoint-method", methods, "")
    older = older or ("all" if arguments.has("--checkpoint-activations") else "")
    number = arguments.whole("--recompute-num-layers")
    modules = arguments.given("--recompute-modules") or ["core_attn"]
    if older:
        method = older if older in methods else method
        granularity = "full"
    if granularity == "full":
        return _full(arguments, model, fields, method, number)
    if method:
        raise arguments.error("--recompute-method", "needs --recompute-granularity full")
    if granularity == "none":
        return {"recompute": "none"}
    known = [name for name in MODULES if name in modules]
    if others := [name for name in modules if name not in MODULES]:
        words = ", ".join(others)[:80]
        arguments.notes.append(
            f"--recompute-modules {words}: not modelled, taken as not recomputed"
        )
    if not known:
        return {"recompute": "none"}
    return {"recompute": "selective", "recompute_modules": "+".join(known)}


def _full(
    arguments: Arguments,
    model: ModelSpec,
    fields: Mapping[str, Any],
    method: str,
    number: int,
) -> dict[str, Any]:
    """``full`` where every layer is recomputed, else ``full:N``."""
    if method == "block":
        names = ("layout", "first_stage_layers", "last_stage_layers", "chunk_layers", "pp", "vpp")
        cut = Plan(**{name: fields[name] for name in names if name in fields})
        largest = max(chunk_layers(model.num_layers, cut))
        if number < 1:
            raise arguments.error("--recompute-num-layers", "needed with --recompute-method block")
        return {"recompute": "full" if number >= largest else f"full:{number}"}
    if number > 1:
        arguments.notes.append(
            f"--recompute-num-layers {number} with uniform: taken as 1, a checkpoint a layer"
        )
    return {"recompute": "full"}


def _experts(arguments: Arguments, model: ModelSpec, tp: int) -> dict[str, Any]:
    """Where experts are and how tokens reach them."""
    ep = arguments.whole("--expert-model-parallel-size", 1)
    etp = arguments.whole("--expert-tensor-parallel-size", tp if model.has_experts else 1)
    kinds = {flags[0].split()[1]: name for name, flags in DISPATCHER_FLAGS.items()}
    kind = arguments.choice("--moe-token-dispatcher-type", tuple(kinds), "allgather")
    arguments.has("--moe-enable-deepep")
    arguments.choice("--moe-flex-dispatcher-backend", ("deepep", "hybridep"), "deepep")
    if not model.has_experts:
        return {}
    return {"ep": ep, "etp": etp, "moe_dispatcher": kinds[kind] if ep * etp > 1 else "all-to-all"}
