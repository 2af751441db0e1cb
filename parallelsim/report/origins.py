"""Where the seconds of a step come from: the numbers behind each term, in a few words."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from parallelsim.layers import Attention, LatentAttention
from parallelsim.operators import IS_FP8
from parallelsim.plan import PRECISIONS, Plan
from parallelsim.simulate import Simulation
from parallelsim.units import format_percent, format_seconds


def origins(simulation: Simulation, index: int) -> dict[str, str]:
    """By term of the step, what it is made of in this plan."""
    plan = simulation.plans.plan(index)
    return {name: words(simulation, plan) for name, words in _ORIGINS.items()}


def _work(simulation: Simulation, plan: Plan) -> str:
    model = simulation.model
    layers = f"{model.num_layers / plan.pp:.3g} of {model.num_layers} layers a GPU"
    tokens = f"{plan.micro_batch_size} x {model.seq_length // plan.cp} tokens"
    return f"{layers}, {plan.num_micro_batches} micro-batches of {tokens}"


def _gemm(simulation: Simulation, plan: Plan) -> str:
    cut = f", each product cut in {plan.tp}" if plan.tp > 1 else ""
    return f"{_work(simulation, plan)}{cut}"


def _attention(simulation: Simulation, plan: Plan) -> str:
    kinds = [layer.attention for layer, _ in simulation.model.layer_kinds if layer.attention]
    heads = max((a.num_heads for a in kinds), default=0)
    windows = {a.window for a in kinds if isinstance(a, Attention) and a.window}
    words = f"{heads / plan.tp:g} of {heads} heads, {simulation.model.seq_length} tokens"
    words += f", windows of {min(windows)}" if windows else ""
    return words + (", latent" if any(isinstance(a, LatentAttention) for a in kinds) else "")


def _head(simulation: Simulation, plan: Plan) -> str:
    return (
        f"vocabulary of {simulation.model.vocab_size} over tp {plan.tp}, where the slowest of "
        f"{plan.pp} stage{'s' if plan.pp > 1 else ''} holds it"
    )


def _recompute(simulation: Simulation, plan: Plan) -> str:
    if plan.recompute == "none":
        return ""
    if plan.recompute == "selective":
        return f"{plan.recompute_modules} of every layer run again"
    number = plan.recompute_num_layers or "all"
    return f"the forward pass of {number} layers of each virtual stage runs again"


def _host(simulation: Simulation, plan: Plan) -> str:
    host = simulation.framework.host
    launch = format_seconds(host.layer_forward_s + host.layer_backward_s)
    graphs = ", with CUDA graphs" if plan.cuda_graphs else ""
    return f"kernels are launched in {launch} a layer and micro-batch{graphs}; small ones wait"


def _tensor_parallel(simulation: Simulation, plan: Plan) -> str:
    if plan.tp == 1:
        return ""
    overlap = simulation.framework.overlap
    shown = overlap.tp_exposed_user_buffers if plan.tp_comm_overlap else overlap.tp_exposed
    kind = "gathers and reduce-scatters" if plan.sequence_parallel else "all-reduces"
    buffers = "with" if plan.tp_comm_overlap else "without"
    where = _where(simulation, plan.tp)
    return (
        f"{kind} over tp {plan.tp} {where}; {buffers} user buffers they cost the step "
        f"{shown:.0%} of their own time"
    )


def _where(simulation: Simulation, ranks: int) -> str:
    domain = simulation.cluster.domain_size
    return "inside a node" if ranks <= domain else f"across nodes of {domain}"


def _context_parallel(simulation: Simulation, plan: Plan) -> str:
    if plan.cp == 1:
        return ""
    return f"keys and values by {plan.cp_comm_type} over cp {plan.cp}, " + _where(
        simulation, plan.tp * plan.cp
    )


def _experts(simulation: Simulation, plan: Plan) -> str:
    if plan.ep * plan.etp == 1:
        return ""
    overlap = ", behind another micro-batch" if plan.ep_comm_overlap else ""
    where = _where(simulation, plan.ep * plan.etp)
    return f"tokens to experts and back by {plan.moe_dispatcher} over ep {plan.ep} {where}{overlap}"


def _transfers(simulation: Simulation, plan: Plan) -> str:
    if plan.pp == 1:
        return ""
    number = 2 * plan.num_micro_batches * plan.vpp
    return f"{number} transfers between stages on each rank, and the first and last of the step"


def _bubble(simulation: Simulation, plan: Plan) -> str:
    if plan.pp == 1:
        return ""
    if plan.schedule in ("1f1b", "interleaved-1f1b", "gpipe"):
        share = (plan.pp - 1) / (plan.vpp * plan.num_micro_batches)
        ideal = f"(pp - 1) / (vpp x micro-batches) = {plan.pp - 1} / ({plan.vpp} x "
        ideal += f"{plan.num_micro_batches}) = {format_percent(share)} of the work"
        return f"{ideal}, and what uneven stages add"
    return f"ranks that wait in the schedule {plan.schedule}, {plan.pp} stages"


def _data_parallel(simulation: Simulation, plan: Plan) -> str:
    if plan.dp * plan.cp == 1:
        return ""
    reduce = "overlapped" if plan.overlap_grad_reduce else "not overlapped"
    words = f"gradients ({plan.grad_dtype}) {reduce}"
    if plan.zero:
        gather = "overlapped" if plan.overlap_param_gather else "not overlapped"
        words += f", parameters {gather}"
    return f"{words}, over {plan.dp * plan.cp} ranks (dp x cp), zero {plan.zero}"


def _optimizer(simulation: Simulation, plan: Plan) -> str:
    ranks = plan.dp * plan.cp // plan.dp_replicate if plan.zero else 1
    share = f"1/{ranks} of" if ranks > 1 else "all of"
    return f"{plan.optimizer} on {share} a rank's parameters"


def _overhead(simulation: Simulation, plan: Plan) -> str:
    host = simulation.framework.host
    return (
        f"{format_seconds(host.micro_batch_s)} for each of {plan.num_micro_batches} micro-batches, "
        f"{format_seconds(host.step_s)} for the step"
    )


def _stragglers(simulation: Simulation, plan: Plan) -> str:
    overlap = simulation.framework.overlap
    fp8 = bool(IS_FP8[PRECISIONS.index(plan.precision)])
    each = overlap.straggler_per_doubling_fp8 if fp8 else overlap.straggler_per_doubling
    doublings = math.log2(max(plan.num_gpus / 8, 1))
    return f"{each:.2%} for each of {doublings:.3g} doublings beyond 8 GPUs"


_ORIGINS: Mapping[str, Callable[[Simulation, Plan], str]] = {
    "gemm_s": _gemm,
    "attention_s": _attention,
    "memory_bound_s": lambda s, p: "bytes of activations through memory, not FLOPs",
    "head_s": _head,
    "recompute_s": _recompute,
    "host_s": _host,
    "tp_exposed_s": _tensor_parallel,
    "cp_exposed_s": _context_parallel,
    "ep_exposed_s": _experts,
    "p2p_exposed_s": _transfers,
    "bubble_s": _bubble,
    "dp_exposed_s": _data_parallel,
    "optimizer_s": _optimizer,
    "overhead_s": _overhead,
    "straggler_s": _stragglers,
}
"""By field of ``StepBreakdown``."""
