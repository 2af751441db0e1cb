"""Low-rank adapters on a frozen model (LoRA, arXiv:2106.09685): how many parameters they train."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from parallelsim.errors import SpecError
from parallelsim.layer_checks import check_range
from parallelsim.layers import MLP, Attention, LatentAttention, Layer, MixtureOfExperts, SubLayer

TARGETS = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
"""Megatron's names of the matrices that adapters go beside, and NeMo's default choice."""


@dataclass(frozen=True, slots=True)
class LoRA:
    """Adapters of one rank beside chosen matrices; everything else is frozen."""

    rank: int
    targets: tuple[str, ...] = TARGETS

    def __post_init__(self) -> None:
        check_range("rank", self.rank)
        unknown = [target for target in self.targets if target not in TARGETS]
        if unknown or not self.targets or len(set(self.targets)) < len(self.targets):
            got = ", ".join(self.targets)[:60]
            raise SpecError(f"expected some of {', '.join(TARGETS)}, got {got!r}", key="targets")

    def layer_parameters(self, layer: Layer, hidden_size: int) -> int:
        """Adapter parameters of one layer: rank (in + out) for each targeted matrix [in, out].

        The fused matrices of Megatron count as one (queries, keys and values; gate and up). Every
        expert has its own adapters. Latent attention has no fused QKV matrix and state spaces have
        none of the targets.
        """
        found = (each for part in layer.sublayers for each in matrices(part, hidden_size))
        return self.rank * sum(
            copies * (into + out) for name, into, out, copies in found if name in self.targets
        )


def matrices(part: SubLayer, h: int) -> Iterator[tuple[str, int, int, int]]:
    """(target, input width, output width, copies) of the matrices that can have an adapter."""
    if isinstance(part, Attention):
        query, keys = part.query_width, 2 * part.kv_width
        if part.kv_seq_length is None:
            yield "linear_qkv", h, query + keys, 1
        else:  # cross-attention projects two sequences by two matrices
            yield "linear_qkv", h, query, 1
            yield "linear_qkv", part.kv_hidden_size or h, keys, 1
        yield "linear_proj", query, h, 1
    elif isinstance(part, LatentAttention):
        yield "linear_proj", part.num_heads * part.v_head_dim, h, 1
    elif isinstance(part, MLP):
        yield from _mlp_matrices(part.ffn_hidden_size, part.gated, h, 1)
    elif isinstance(part, MixtureOfExperts):
        width = part.expert_width(h)
        yield from _mlp_matrices(part.ffn_hidden_size, part.gated, width, part.num_experts)
        if part.shared_ffn_hidden_size:
            yield from _mlp_matrices(part.shared_ffn_hidden_size, part.gated, h, 1)


def _mlp_matrices(
    ffn: int, gated: bool, width: int, copies: int
) -> Iterator[tuple[str, int, int, int]]:
    yield "linear_fc1", width, (2 if gated else 1) * ffn, copies
    yield "linear_fc2", ffn, width, copies
