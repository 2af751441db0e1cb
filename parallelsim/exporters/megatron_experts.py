"""Mixtures of experts in Megatron-LM's flags: routers, experts, and how tokens reach them."""

from __future__ import annotations

from collections.abc import Iterator

from parallelsim.exporters.megatron_flags import LOW_PRECISIONS, FlagGroup, MegatronVersion
from parallelsim.layers import MixtureOfExperts
from parallelsim.model import ModelSpec
from parallelsim.plan import Plan

DISPATCHER_FLAGS = {
    "all-to-all": ("--moe-token-dispatcher-type alltoall",),
    "all-gather": ("--moe-token-dispatcher-type allgather",),
    "deepep": ("--moe-token-dispatcher-type flex",),
}


def experts_of(model: ModelSpec) -> MixtureOfExperts | None:
    """The mixture of experts that all such layers of a model share; None for dense models."""
    return next((layer.experts for layer, _ in model.layer_kinds if layer.experts), None)


def expert_model_refusals(model: ModelSpec, version: MegatronVersion) -> Iterator[str]:
    """What of the model's routers and experts cannot be built."""
    kinds = {layer.experts for layer, _ in model.layer_kinds if layer.experts}
    if len(kinds) > 1:
        yield "its mixtures of experts are alike in all layers"
    for experts in kinds:
        if experts.router == "softmax" and experts.router_bias != experts.bias:
            yield "its softmax router has a bias where all linear layers have one, and there alone"
        if experts.router == "sigmoid" and experts.bias:
            yield "its sigmoid router does not go with biases in experts"
        if experts.shared_ffn_hidden_size and experts.bias:
            yield "its shared experts have no biases"
        if experts.scales_input and experts.top_k > 1:
            yield "it scales what an expert reads for top_k 1 alone"
        if experts.latent_size and not version.expert_options:
            yield f"{version.name} has no experts on tokens of latent size"
        if experts.shared_gate and not version.expert_options:
            yield f"{version.name} has no gate on shared experts"


def expert_plan_refusals(model: ModelSpec, plan: Plan, version: MegatronVersion) -> Iterator[str]:
    """What of a valid plan the version cannot run with the model's experts."""
    experts = experts_of(model)
    if experts is None:
        return
    if experts.capacity_factor is not None and plan.moe_dispatcher != "all-to-all":
        yield f"experts with a capacity need the dispatcher all-to-all, not {plan.moe_dispatcher}"
    if plan.precision in version.no_experts_in:
        yield f"{version.name} does not run experts in {plan.precision}"
    if plan.cuda_graphs and not version.expert_options:
        yield f"{version.name} has no CUDA graphs of routers"


def mixture(model: ModelSpec) -> FlagGroup | None:
    """Routers and experts; nothing for dense models."""
    experts = experts_of(model)
    if experts is None:
        return None
    flags = [
        f"--num-experts {experts.num_experts}",
        f"--moe-router-topk {experts.top_k}",
        f"--moe-ffn-hidden-size {experts.ffn_hidden_size}",
    ]
    is_hybrid = any(layer.state_space for layer, _ in model.layer_kinds)
    if not is_hybrid and any(layer.experts is None for layer in model.layers):
        pattern = ",".join("1" if layer.experts else "0" for layer in model.layers)
        flags += [f"--moe-layer-freq '[{pattern}]'"]
    flags += _router_flags(experts)
    if experts.shared_ffn_hidden_size:
        flags += [f"--moe-shared-expert-intermediate-size {experts.shared_ffn_hidden_size}"]
        flags += ["--moe-shared-expert-gate"] if experts.shared_gate else []
    if experts.latent_size:
        flags += [f"--moe-latent-size {experts.latent_size}"]
    if experts.capacity_factor is not None:
        flags += [f"--moe-expert-capacity-factor {experts.capacity_factor:g}"]
        flags += ["--moe-pad-expert-input-to-capacity"]
    if experts.bias:
        # Grouped experts with biases refuse the fusion that is the default.
        flags += ["--no-bias-dropout-fusion"]
    return FlagGroup("MOE_ARGS", "Routers and experts", tuple(flags))


def _router_flags(experts: MixtureOfExperts) -> list[str]:
    """Scores and choice. Megatron's recipes score in fp32, which DeepEP needs.

    A bias of a softmax router comes with the biases of all linear layers.
    """
    flags = [f"--moe-router-score-function {experts.router}", "--moe-router-dtype fp32"]
    if experts.router_pre_softmax or (experts.router == "softmax" and experts.top_k == 1):
        flags += ["--moe-router-pre-softmax"]
    if experts.score_scale != 1:
        flags += [f"--moe-router-topk-scaling-factor {experts.score_scale:g}"]
    if experts.router_bias and experts.router == "sigmoid":
        flags += ["--moe-router-enable-expert-bias"]
    if experts.num_groups > 1:
        flags += [f"--moe-router-num-groups {experts.num_groups}"]
        flags += [f"--moe-router-group-topk {experts.group_top_k}"]
    return flags + (["--moe-apply-probs-on-input"] if experts.scales_input else [])


def balance(model: ModelSpec) -> FlagGroup | None:
    """How routers are kept balanced: no fact of the plan, nothing that the prediction reads."""
    experts = experts_of(model)
    if experts is None:
        return None
    if experts.router_bias and experts.router == "sigmoid":
        flags = ["--moe-router-bias-update-rate 1e-3"]
        flags += ["--moe-router-load-balancing-type seq_aux_loss", "--moe-aux-loss-coeff 1e-4"]
    else:
        flags = ["--moe-router-load-balancing-type aux_loss", "--moe-aux-loss-coeff 1e-3"]
    flags += ["# For benchmarks alone, as it ignores the router: --moe-router-force-load-balancing"]
    load = f"a spread of load_cv={experts.load_cv:g}" if experts.load_cv else "even load"
    comment = f"Balance of experts: PLACEHOLDERS, edit them. Predicted for {load}"
    return FlagGroup("BALANCE_ARGS", comment, tuple(flags))


def experts(model: ModelSpec, plan: Plan, version: MegatronVersion) -> FlagGroup | None:
    """Where experts are and how tokens reach them; nothing for dense models."""
    if not model.has_experts:
        return None
    flags = [f"--expert-model-parallel-size {plan.ep}"]
    flags += [f"--expert-tensor-parallel-size {plan.etp}"]
    flags += DISPATCHER_FLAGS[plan.moe_dispatcher]
    if plan.moe_dispatcher == "deepep":
        flags += [version.deepep]
    flags += ["--moe-grouped-gemm", "--moe-permute-fusion"]
    if plan.precision in LOW_PRECISIONS and plan.moe_dispatcher != "all-gather":
        flags += [version.router_padding]
    if plan.ep_comm_overlap:
        flags += ["--overlap-moe-expert-parallel-comm"]
    return FlagGroup("EXPERT_ARGS", "Experts on the GPUs", tuple(flags))
