"""Flags that spoil an exported script: Megatron-LM must refuse each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from parallelsim.exporters.megatron_experts import experts_of
from parallelsim.exporters.megatron_hybrid import mixer_of
from parallelsim.model import ModelSpec
from parallelsim.plan import Plan


@dataclass(frozen=True)
class Break:
    """Flags that spoil an accepted script."""

    name: str
    applies: Callable[[ModelSpec, Plan], bool]
    flags: str
    says: str
    """What the refusal must say."""
    env: tuple[tuple[str, str], ...] = ()


def _softmax_router(m: ModelSpec, p: Plan) -> bool:
    return m.has_experts and experts_of(m).router == "softmax"


def _sends(p: Plan) -> bool:
    return p.ep > 1 and p.moe_dispatcher != "all-gather"


BREAKS = (
    Break("unknown flag", lambda m, p: True, "--no-such-flag", "unrecognized arguments"),
    Break("batch", lambda m, p: p.dp > 1, "--global-batch-size 7", "divisible"),
    Break(
        "heads over tp", lambda m, p: p.tp == 1, "--tensor-model-parallel-size 3", "not divisible"
    ),
    Break(
        "experts over ep",
        lambda m, p: m.has_experts,
        "--expert-model-parallel-size 7",
        "multiple of expert model parallel",
    ),
    Break(
        "ranks of experts",
        lambda m, p: m.has_experts and not experts_of(m).bias,
        "--expert-tensor-parallel-size 4096",
        "not divisible",
    ),
    Break(
        "experts of none",
        lambda m, p: not m.has_experts,
        "--expert-model-parallel-size 2",
        "num_experts must be non None",
    ),
    Break("top-k", lambda m, p: m.has_experts, "--moe-router-topk 99999", "moe_router_topk"),
    Break(
        "dispatcher",
        lambda m, p: m.has_experts,
        "--moe-token-dispatcher-type alltoall_seq",
        "invalid choice",
    ),
    Break("bias of softmax", _softmax_router, "--moe-router-enable-expert-bias", "Expert bias"),
    Break(
        "groups",
        lambda m, p: m.has_experts,
        "--moe-router-num-groups 7 --moe-router-group-topk 3",
        "moe_router_num_groups",
    ),
    Break(
        "biased experts over etp",
        lambda m, p: m.has_experts and experts_of(m).bias,
        "--expert-tensor-parallel-size 2",
        "Bias in Moe",
    ),
    Break(
        "overlap with whole recompute",
        lambda m, p: _sends(p) and p.recompute == "full" and (p.pp == 1 or p.vpp > 1),
        "--overlap-moe-expert-parallel-comm",
        "disable full recomputation",
    ),
    Break(
        "overlap without virtual stages",
        lambda m, p: _sends(p) and p.recompute != "full" and p.pp > 1 and p.vpp == 1,
        "--overlap-moe-expert-parallel-comm",
        "virtual_pipeline_model_parallel_size",
    ),
    Break(
        "padding in 16 bits",
        lambda m, p: m.has_experts and p.precision == "bf16",
        "--moe-router-padding-for-fp8",
        "must be specified",
    ),
    Break(
        "positions of multi-token prediction",
        lambda m, p: m.num_mtp_layers > 0,
        "--position-embedding-type learned_absolute",
        "Multi-Token Prediction",
    ),
    Break(
        "one hardware queue",
        lambda m, p: p.tp > 1 and not p.ep_comm_overlap,
        "",
        "CUDA_DEVICE_MAX_CONNECTIONS",
        (("CUDA_DEVICE_MAX_CONNECTIONS", "8"),),
    ),
)
LATER_BREAKS = (
    Break(
        "groups of latent attention",
        lambda m, p: not hasattr(m.layers[0].attention, "head_dim") and not mixer_of(m),
        "--group-query-attention --num-query-groups 8",
        "mutually exclusive",
    ),
    Break(
        "one communication for each layer",
        lambda m, p: not mixer_of(m) and p.cp > 1,
        "--cp-comm-type p2p p2p p2p",
        "Length of cp_comm_type",
    ),
    Break(
        "layers of a pattern",
        lambda m, p: bool(mixer_of(m)),
        "--hybrid-layer-pattern=MXM",
        "not a valid layer symbol",
    ),
    Break(
        "stages of a pattern",
        lambda m, p: bool(mixer_of(m)) and p.pp > 1,
        "--hybrid-layer-pattern=M-M-M|*-M-|M-*-|M-M-M|M-",
        "pipeline segments",
    ),
    Break(
        "virtual stages of a pattern",
        lambda m, p: bool(mixer_of(m)) and p.pp > 1,
        "--num-virtual-stages-per-pipeline-rank 2",
        "should not be used",
    ),
)
"""What core_v0.15.0 does not check, or not so."""
