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
    env: tuple[tuple[str, str], ...] = ()


def _softmax_router(m: ModelSpec, p: Plan) -> bool:
    return m.has_experts and experts_of(m).router == "softmax"


BREAKS = (
    Break("unknown flag", lambda m, p: True, "--no-such-flag"),
    Break("batch", lambda m, p: p.dp > 1, "--global-batch-size 7"),
    Break("heads over tp", lambda m, p: p.tp == 1, "--tensor-model-parallel-size 3"),
    Break("experts over ep", lambda m, p: m.has_experts, "--expert-model-parallel-size 7"),
    Break(
        "ranks of experts",
        lambda m, p: m.has_experts and not experts_of(m).bias,
        "--expert-tensor-parallel-size 4096",
    ),
    Break("experts of none", lambda m, p: not m.has_experts, "--expert-model-parallel-size 2"),
    Break("top-k", lambda m, p: m.has_experts, "--moe-router-topk 99999"),
    Break("dispatcher", lambda m, p: m.has_experts, "--moe-token-dispatcher-type alltoall_seq"),
    Break("bias of softmax", _softmax_router, "--moe-router-enable-expert-bias"),
    Break(
        "groups", lambda m, p: m.has_experts, "--moe-router-num-groups 7 --moe-router-group-topk 3"
    ),
    Break(
        "biased experts over etp",
        lambda m, p: m.has_experts and experts_of(m).bias,
        "--expert-tensor-parallel-size 2",
    ),
    Break(
        "overlap with whole recompute",
        lambda m, p: p.ep > 1 and p.recompute == "full" and p.pp == 1,
        "--overlap-moe-expert-parallel-comm",
    ),
    Break(
        "overlap without virtual stages",
        lambda m, p: p.ep > 1 and p.recompute != "full" and p.pp > 1 and p.vpp == 1,
        "--overlap-moe-expert-parallel-comm",
    ),
    Break(
        "padding in 16 bits",
        lambda m, p: m.has_experts and p.precision == "bf16",
        "--moe-router-padding-for-fp8",
    ),
    Break(
        "groups of latent attention",
        lambda m, p: not hasattr(m.layers[0].attention, "head_dim") and not mixer_of(m),
        "--group-query-attention --num-query-groups 8",
    ),
    Break(
        "positions of multi-token prediction",
        lambda m, p: m.num_mtp_layers > 0,
        "--position-embedding-type learned_absolute",
    ),
    Break(
        "one communication for each layer",
        lambda m, p: not mixer_of(m),
        "--cp-comm-type p2p p2p p2p",
    ),
    Break(
        "one hardware queue",
        lambda m, p: p.tp > 1 and not p.ep_comm_overlap,
        "",
        (("CUDA_DEVICE_MAX_CONNECTIONS", "8"),),
    ),
)
HYBRID_BREAKS = (
    Break("layers of a pattern", lambda m, p: bool(mixer_of(m)), "--hybrid-layer-pattern=MXM"),
    Break(
        "stages of a pattern",
        lambda m, p: bool(mixer_of(m)) and p.pp > 1,
        "--hybrid-layer-pattern=M-M-M|*-M-|M-*-|M-M-M|M-",
    ),
    Break(
        "virtual stages of a pattern",
        lambda m, p: bool(mixer_of(m)) and p.pp > 1,
        "--num-virtual-stages-per-pipeline-rank 2",
    ),
)
"""Where patterns have stages."""
