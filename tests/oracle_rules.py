"""Which rules one plan breaks, restated with plain integers: the names of ``parallelsim.rules``."""

from __future__ import annotations

import re

from sharding_rules import broken_sharding

from parallelsim.cluster import ClusterSpec
from parallelsim.custom_layers import Custom
from parallelsim.framework import FrameworkSpec
from parallelsim.layers import (
    MLP,
    Attention,
    LatentAttention,
    MixtureOfExperts,
    SelectiveScan,
    StateSpace,
)
from parallelsim.model import ModelSpec
from parallelsim.plan import Plan

NO_SUCH_KIND = {"framework-has-sublayers"}


def chunk_layers(model: ModelSpec, plan: Plan) -> list[int] | None:
    """Layers of every virtual stage, or None where the layout does not divide."""
    p, v, layers = plan.pp, plan.vpp, model.num_layers
    if plan.layout == "free":
        chunks = list(plan.chunk_layers)
        whole = len(chunks) == p * v and sum(chunks) == layers
        return chunks if whole and all(chunks[1:-1]) and (len(chunks) > 1 or chunks[0]) else None
    if plan.layout == "first-last":
        ends = [plan.first_stage_layers, plan.last_stage_layers]
        rest = layers - sum(ends)
        if min(ends) < 1 or p < 2 or (p == 2 and rest) or (p > 2 and (rest < 1 or rest % (p - 2))):
            return None
        stages = [ends[0], *[rest // max(p - 2, 1)] * (p - 2), ends[1]]
        if any(held % v for held in stages):
            return None
        return [held // v for held in stages for _ in range(v)]
    embedding = int(plan.layout in ("embedding", "embedding-loss"))
    loss = int(plan.layout in ("loss", "embedding-loss"))
    if (layers + embedding + loss) % (p * v):
        return None
    chunks = [(layers + embedding + loss) // (p * v)] * (p * v)
    chunks[0] -= embedding
    chunks[-1] -= loss
    return chunks


def broken(
    model: ModelSpec, cluster: ClusterSpec, framework: FrameworkSpec, plan: Plan
) -> set[str]:
    """Names of the rules that the plan breaks."""
    return (
        _broken_shape(model, cluster, framework, plan)
        | _broken_pipeline(model, plan)
        | _broken_switches(plan)
        | _broken_experts(model, framework, plan)
        | _broken_capabilities(cluster, framework, plan)
        | broken_sharding(model, cluster, framework, plan)
        | (set() if _kinds(model) <= set(framework.capabilities.sublayers) else NO_SUCH_KIND)
    )


def _broken_shape(
    model: ModelSpec, cluster: ClusterSpec, framework: FrameworkSpec, plan: Plan
) -> set[str]:
    found = set()
    tp, cp, seq_length = plan.tp, plan.cp, model.seq_length
    if tp * cp * plan.pp * plan.dp != cluster.num_gpus:
        found.add("uses-all-gpus")
    lengths = {seq_length}
    for layer, _ in model.layer_kinds:
        lengths |= {layer.seq_length} if layer.seq_length else set()
        for part in layer.sublayers:
            if isinstance(part, Attention):
                lengths |= {part.kv_seq_length} if part.kv_seq_length else set()
                found |= _broken_attention(part, seq_length, framework, plan)
            elif isinstance(part, LatentAttention):
                found |= {"heads-divide-by-tp"} if part.num_heads % tp else set()
                if cp > 1 and plan.cp_comm_type != "p2p":
                    found.add("latent-attention-needs-p2p")
                hybrid = cp > 1 and plan.cp_comm_type == "a2a+p2p"
                if hybrid and part.num_heads % (tp * plan.cp_a2a):
                    found.add("hybrid-cp-heads")
                if cp > 1 and plan.cp_comm_type == "a2a" and part.num_heads % (tp * cp):
                    found.add("a2a-heads-divide-by-cp")
            elif isinstance(part, StateSpace | SelectiveScan):
                found |= _broken_scan(part, plan)
            elif isinstance(part, Custom):
                texts = " ".join(size.text for each in part.operators for _, size in each.sizes)
                if tp > 1 and not re.search(r"\b(tp|sp)\b", texts):
                    found.add("custom-layers-split-over-tp")
            else:
                is_mlp = isinstance(part, MLP)
                width = part.ffn_hidden_size if is_mlp else part.shared_ffn_hidden_size
                found |= {"ffn-divides-by-tp"} if width % tp else set()
    inputs = {layer.custom and layer.custom.input_values for layer, _ in model.layer_kinds}
    if plan.pp > 1 and len(inputs) > 1:
        found.add("stages-exchange-one-shape")
    hybrid = cp > 1 and plan.cp_comm_type == "a2a+p2p"
    splits = [n for n in range(2, cp) if cp % n == 0] if hybrid else [1]
    if plan.cp_a2a not in splits:
        found.add("hybrid-cp-sizes")
    if plan.pp > 1 and len(lengths) > 1:
        found.add("cross-attention-needs-one-stage")
    if cp > 1 and any(length % (2 * cp) for length in lengths):
        found.add("sequence-divides-by-cp")
    if plan.sequence_parallel and any(length % (cp * tp) for length in lengths):
        found.add("sequence-divides-by-tp")
    if plan.sequence_parallel and tp == 1:
        found.add("sequence-parallel-needs-tp")
    if plan.global_batch_size % (plan.micro_batch_size * plan.dp):
        found.add("batch-divides-by-replicas")
    return found


def _broken_attention(
    attention: Attention, seq_length: int, framework: FrameworkSpec, plan: Plan
) -> set[str]:
    found = set()
    tp, cp, kind = plan.tp, plan.cp, plan.cp_comm_type
    heads, groups = attention.num_heads, attention.num_query_groups
    if heads % tp:
        found.add("heads-divide-by-tp")
    replicates = framework.capabilities.kv_replication and tp % groups == 0
    if groups % tp and not replicates:
        found.add("kv-heads-split-over-tp")
    if cp > 1 and kind == "a2a" and (heads % (tp * cp) or groups % (tp * cp)):
        found.add("a2a-heads-divide-by-cp")
    if cp > 1 and kind == "p2p" and attention.window and attention.window < seq_length:
        found.add("window-needs-a2a-or-all-gather")
    if cp > 1 and kind == "a2a+p2p":
        if heads % (tp * plan.cp_a2a) or groups % (tp * plan.cp_a2a):
            found.add("hybrid-cp-heads")
        if attention.window and attention.window < seq_length:
            found.add("hybrid-cp-without-window")
    if cp > 1 and kind != "a2a" and attention.sinks:
        found.add("sinks-need-a2a")
    return found


def _broken_scan(scan: StateSpace | SelectiveScan, plan: Plan) -> set[str]:
    """Megatron-LM's assertions in ssm/mamba_mixer.py and ssm/mamba_context_parallel.py."""
    found = set()
    if scan.num_heads % plan.tp or scan.num_groups % plan.tp:
        found.add("state-space-splits-over-tp")
    if plan.cp > 1:
        local = max(scan.num_groups // plan.tp, 1)
        uneven = plan.cp % local if local < plan.cp else local % plan.cp
        if uneven or scan.num_heads % (plan.tp * plan.cp):
            found.add("state-space-splits-over-cp")
    return found


def _broken_experts(model: ModelSpec, framework: FrameworkSpec, plan: Plan) -> set[str]:
    found = set()
    can, ep, etp = framework.capabilities, plan.ep, plan.etp
    mixtures = [layer.experts for layer, _ in model.layer_kinds if layer.experts]
    if not mixtures and ep * etp > 1:
        found.add("expert-degrees-need-experts")
    for experts in mixtures:
        if experts.num_experts % ep:
            found.add("experts-divide-by-ep")
        if experts.ffn_hidden_size % etp:
            found.add("expert-ffn-divides-by-etp")
        if experts.bias and etp > 1:
            found.add("etp-without-biases")
        if experts.capacity_factor is not None and plan.ep_comm_overlap and plan.cuda_graphs:
            found.add("ep-overlap-without-whole-graphs")
        if plan.tp > 1 and not plan.sequence_parallel:
            found.add("experts-with-tp-need-sequence-parallel")
        if ep * etp > 1 and plan.moe_dispatcher not in can.moe_dispatchers:
            found.add("framework-has-dispatcher")
        if etp > 1 and not can.expert_tensor_parallel:
            found.add("framework-has-expert-tp")
    if (plan.tp * plan.cp * plan.dp) % (ep * etp):
        found.add("expert-ranks-divide-stage")
    if plan.moe_dispatcher == "deepep" and ep * etp == 1:
        found.add("deepep-needs-expert-ranks")
    if plan.ep_comm_overlap:
        if ep == 1 or plan.moe_dispatcher == "all-gather" or plan.precision == "fp32":
            found.add("ep-overlap-needs-exchange")
        if model.num_mtp_layers > 1:
            found.add("ep-overlap-needs-exchange")
        if (plan.pp > 1 and plan.vpp == 1) or plan.recompute == "full":
            found.add("ep-overlap-needs-interleaving")
    return found


def _kinds(model: ModelSpec) -> set[str]:
    """Kinds of sub-layers that the model is made of."""
    names = {Attention: "attention", LatentAttention: "latent-attention", MLP: "mlp"}
    names |= {SelectiveScan: "selective-scan", StateSpace: "state-space"}
    names |= {MixtureOfExperts: "experts", Custom: "custom"}
    found = {"custom"} if model.input_operators or model.output_operators else set()
    for layer, _ in model.layer_kinds:
        own = [part for part in layer.sublayers if part is not layer.cross_attention]
        found |= {names[type(part)] for part in own}
        found |= {"cross-attention"} if layer.cross_attention else set()
        found |= {"attention-sinks" for part in own if isinstance(part, Attention) and part.sinks}
    return found


def _broken_pipeline(model: ModelSpec, plan: Plan) -> set[str]:
    found = set()
    if plan.pp == 1:
        matches = plan.schedule == "none" and plan.vpp == 1
    elif plan.schedule in ("zb-v", "v-half", "v-min", "dualpipe-v"):
        matches = plan.vpp == 2
    elif plan.schedule == "interleaved-1f1b":
        matches = plan.vpp > 1
    elif plan.schedule == "hanayo":
        matches = plan.vpp in range(2, 1000, 2)
    elif plan.schedule == "breadth-first":
        matches = True
    elif plan.schedule in ("chimera", "dualpipe"):
        matches = plan.vpp == 1 and plan.pp % 2 == 0
    else:
        matches = plan.vpp == 1 and plan.schedule != "none"
    if not matches:
        found.add("schedule-matches-stages")
    micro_batches = plan.global_batch_size // (plan.micro_batch_size * plan.dp)
    if plan.schedule in ("chimera", "dualpipe") and micro_batches % 2:
        found.add("schedule-has-micro-batches")
    if plan.schedule.startswith("dualpipe") and micro_batches < 2 * plan.pp:
        found.add("schedule-has-micro-batches")
    if plan.schedule == "pipedream-2bw" and micro_batches < plan.pp:
        found.add("schedule-has-micro-batches")
    waves = ("hanayo", "zb-v", "v-half", "v-min", "dualpipe-v")
    if plan.layout in ("first-last", "free") and plan.schedule in waves:
        found.add("layout-fits-schedule")
    if plan.layout == "free" and plan.schedule in ("chimera", "dualpipe"):
        found.add("layout-fits-schedule")
    if plan.schedule == "interleaved-1f1b" and (micro_batches == 0 or micro_batches % plan.pp):
        found.add("interleaving-needs-micro-batches")
    given = plan.first_stage_layers > 0 or plan.last_stage_layers > 0
    chunks = chunk_layers(model, plan)
    if chunks is None:
        names = {"first-last": "first-last-fits", "free": "chunk-layers-fit"}
        found.add(names.get(plan.layout, "layers-divide-by-stages"))
    if plan.chunk_layers and plan.layout != "free":
        found.add("chunk-layers-fit")
    if given and plan.layout != "first-last":
        found.add("first-last-fits")
    if plan.layout != "even" and plan.pp == 1:
        found.add("layout-needs-stages")
    if plan.recompute_num_layers and plan.recompute != "full":
        found.add("recompute-within-stage")
    if chunks is not None and plan.recompute_num_layers > max(chunks):
        found.add("recompute-within-stage")
    return found


def _broken_switches(plan: Plan) -> set[str]:
    found = set()
    if plan.cuda_graphs and plan.recompute == "full":
        found.add("cuda-graphs-without-full-recompute")
    if plan.tp_comm_overlap and not plan.sequence_parallel:
        found.add("tp-overlap-needs-sequence-parallel")
    if plan.overlap_param_gather and not (plan.zero >= 1 and plan.overlap_grad_reduce):
        found.add("param-gather-overlap-needs-zero")
    keeps_fp8 = plan.precision in ("fp8-delayed", "fp8-current", "fp8-blockwise", "mxfp8")
    returns_16_bits = plan.optimizer_offload_pct > 0 and plan.precision != "fp8-delayed"
    if plan.fp8_param_gather and not (keeps_fp8 and plan.zero >= 1 and not returns_16_bits):
        found.add("fp8-param-gather-needs-fp8-and-zero")
    if plan.precision == "fp32" and plan.grad_dtype != "fp32":
        found.add("fp32-needs-fp32-gradients")
    return found


def _broken_capabilities(cluster: ClusterSpec, framework: FrameworkSpec, plan: Plan) -> set[str]:
    can = framework.capabilities
    block = plan.recompute == "full" and plan.recompute_num_layers > 0
    modules = plan.recompute == "selective" and plan.recompute_modules != "core_attn"
    switches = (
        "sequence_parallel",
        "tp_comm_overlap",
        "overlap_grad_reduce",
        "overlap_param_gather",
        "cross_entropy_fusion",
        "cuda_graphs",
        "ep_comm_overlap",
        "compile",
        "fp8_param_gather",
    )
    checks = {
        "precision-on-accelerator": plan.precision in cluster.accelerator.precisions,
        "framework-has-schedule": plan.schedule in ("none", *can.schedules),
        "framework-has-zero-stage": plan.zero in can.zero_stages,
        "framework-has-cp-type": plan.cp == 1 or plan.cp_comm_type in can.cp_comm_types,
        "framework-has-precision": plan.precision in can.precisions,
        "framework-has-grad-dtype": plan.grad_dtype in can.grad_dtypes,
        "framework-has-layout": plan.layout in can.layouts,
        "framework-has-recompute": ("block" if block else "modules" if modules else plan.recompute)
        in can.recomputes,
        "framework-has-switches": all(getattr(can, s) for s in switches if getattr(plan, s)),
    }
    return {name for name, obeyed in checks.items() if not obeyed}
