"""Sizes that a model may have: the checks behind :class:`ModelSpec`, one line for each mistake."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from parallelsim.custom_layers import Custom
from parallelsim.errors import SpecError
from parallelsim.layers import (
    MLP,
    Attention,
    LatentAttention,
    Layer,
    MixtureOfExperts,
    SelectiveScan,
    StateSpace,
    SubLayer,
)

LIMITS: Mapping[str, tuple[int, int]] = {
    "num_layers": (1, 10_000),
    "hidden_size": (1, 10**6),
    "vocab_size": (1, 10**8),
    "max_seq_length": (1, 10**8),
    "num_attention_heads": (1, 10**5),
    "num_query_groups": (1, 10**5),
    "head_dim": (1, 10**5),
    "ffn_hidden_size": (1, 10**7),
    "window": (1, 10**8),
    "inner_width": (1, 10**7),
    "dt_rank": (1, 10**6),
    "num_norms": (0, 8),
    "num_experts": (1, 10**5),
    "top_k": (1, 10**5),
    "shared_ffn_hidden_size": (0, 10**7),
    "num_groups": (1, 10**5),
    "group_top_k": (1, 10**5),
    "latent_size": (1, 10**6),
    "kv_lora_rank": (1, 10**6),
    "q_lora_rank": (1, 10**6),
    "qk_nope_head_dim": (1, 10**5),
    "qk_rope_head_dim": (0, 10**5),
    "v_head_dim": (1, 10**5),
    "num_heads": (1, 10**5),
    "state_size": (1, 10**5),
    "conv_kernel": (1, 1000),
    "chunk_size": (1, 10**6),
    "seq_length": (1, 10**8),
    "kv_seq_length": (1, 10**8),
    "kv_hidden_size": (1, 10**6),
    "num_mtp_layers": (0, 100),
    "relative_position_buckets": (0, 10**5),
    "rank": (1, 10**5),
    "global_batch_tokens": (0, 10**12),
}
"""Smallest and largest value of each size: beyond any model, and far inside int64 and float64."""
MAX_CAPACITY_FACTOR = 1e5
MAX_LOAD_CV = 100.0
MAX_SCORE_SCALE = 1e5


def check_range(key: str, value: int) -> None:
    """Refuse a value outside its limits.

    Raises:
        SpecError: what was expected.
    """
    low, high = LIMITS[key]
    if not low <= value <= high:
        raise SpecError(f"expected {low} to {high}, got {value}", key=key)


def check_edges(vocab_size: int, before: Custom | None, after: Custom | None) -> None:
    """Refuse a model without a vocabulary whose input or output nothing makes.

    Raises:
        SpecError: what is missing.
    """
    if vocab_size == 0 and before and after:
        return
    if vocab_size == 0 and (before or after):
        missing = "input_operators" if after else "output_operators"
        raise SpecError(f"a model without a vocabulary needs {missing}", key="vocab_size")
    check_range("vocab_size", vocab_size)


def check_layer(layer: Layer) -> None:
    """Refuse a layer whose sub-layers do not go together or are out of range.

    Raises:
        SpecError: the first mistake.
    """
    if not layer.sublayers:
        raise SpecError("a layer needs at least one sub-layer", key="layers")
    if layer.mlp is not None and layer.experts is not None:
        raise SpecError("a layer has an mlp or experts, not both", key="experts")
    if isinstance(layer.attention, Attention) and layer.attention.kv_seq_length is not None:
        message = "keys of another sequence are cross-attention; write them under cross_attention"
        raise SpecError(message, key="kv_seq_length")
    if layer.cross_attention is not None and layer.cross_attention.kv_seq_length is None:
        message = "cross-attention needs the tokens of the other sequence"
        raise SpecError(message, key="kv_seq_length")
    check_range("num_norms", layer.num_norms)
    if layer.num_norms and not layer.num_streams:
        message = "custom operators have no norms of their own: write them out, and num_norms: 0"
        raise SpecError(message, key="num_norms")
    _check_optional(layer, "seq_length")
    for part in layer.sublayers:
        _check_sublayer(part)


def _check_sublayer(part: SubLayer) -> None:
    if isinstance(part, Attention):
        _check_attention(part)
    elif isinstance(part, LatentAttention):
        _check_latent_attention(part)
    elif isinstance(part, StateSpace):
        _check_state_space(part)
    elif isinstance(part, SelectiveScan):
        _check_fields(part, "inner_width", "state_size", "dt_rank", "conv_kernel")
    elif isinstance(part, MLP):
        check_range("ffn_hidden_size", part.ffn_hidden_size)
    elif isinstance(part, MixtureOfExperts):
        _check_experts(part)


def _check_fields(part: object, *keys: str) -> None:
    for key in keys:
        check_range(key, getattr(part, key))


def _check_optional(part: object, *keys: str) -> None:
    for key in keys:
        value = getattr(part, key)
        if value is not None:
            check_range(key, value)


def _check_attention(attention: Attention) -> None:
    check_range("num_attention_heads", attention.num_heads)
    _check_fields(attention, "num_query_groups", "head_dim")
    _check_optional(attention, "window", "kv_seq_length", "kv_hidden_size")
    if attention.num_heads % attention.num_query_groups:
        raise SpecError(
            f"{attention.num_heads} heads cannot share {attention.num_query_groups} key/value "
            "groups evenly",
            key="num_query_groups",
        )
    if attention.chunked and attention.window is None:
        raise SpecError("chunked attention needs a window, the size of a chunk", key="window")
    if attention.kv_hidden_size is not None and attention.kv_seq_length is None:
        raise SpecError("only cross-attention has keys of another width", key="kv_hidden_size")


def check_windows(layers: Iterable[Layer], max_seq_length: int) -> None:
    """Refuse windows that no sequence of the model fills: a digit too many, most likely.

    Raises:
        SpecError: a window longer than ``max_seq_length``.
    """
    for layer in layers:
        window = layer.attention.window if isinstance(layer.attention, Attention) else None
        if window is not None and window > max_seq_length:
            message = f"{window} tokens are more than the longest sequence, {max_seq_length}"
            raise SpecError(f"{message}; leave it out for full attention", key="window")


def _check_latent_attention(attention: LatentAttention) -> None:
    check_range("num_attention_heads", attention.num_heads)
    _check_fields(attention, "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    _check_optional(attention, "q_lora_rank")


def _check_state_space(mixer: StateSpace) -> None:
    _check_fields(mixer, "num_heads", "head_dim", "state_size", "num_groups")
    _check_fields(mixer, "conv_kernel", "chunk_size")
    if mixer.num_heads % mixer.num_groups:
        raise SpecError(
            f"{mixer.num_heads} heads cannot share {mixer.num_groups} groups of states evenly",
            key="num_groups",
        )


def _check_experts(experts: MixtureOfExperts) -> None:
    _check_fields(experts, "num_experts", "ffn_hidden_size", "shared_ffn_hidden_size")
    _check_fields(experts, "num_groups", "group_top_k")
    _check_optional(experts, "latent_size")
    total, groups = experts.num_experts, experts.num_groups
    if not 1 <= experts.top_k <= total:
        raise SpecError(f"expected 1 to num_experts={total}, got {experts.top_k}", key="top_k")
    if total % groups:
        raise SpecError(f"{groups} groups do not divide {total} experts", key="num_groups")
    if experts.group_top_k > groups:
        message = f"expected 1 to num_groups={groups}, got {experts.group_top_k}"
        raise SpecError(message, key="group_top_k")
    eligible = total // groups * experts.group_top_k
    if experts.top_k > eligible:
        message = f"{experts.group_top_k} of {groups} groups hold {eligible} experts"
        raise SpecError(f"{message}, too few for {experts.top_k}", key="top_k")
    if experts.router not in ("softmax", "sigmoid"):
        raise SpecError(f"expected softmax or sigmoid, got {experts.router!r}", key="router")
    if experts.shared_gate and not experts.shared_ffn_hidden_size:
        raise SpecError("there is no shared expert to gate", key="shared_gate")
    if not 0 <= experts.load_cv <= MAX_LOAD_CV:
        message = f"expected 0 to {MAX_LOAD_CV:g}, got {experts.load_cv:g}"
        raise SpecError(message, key="load_cv")
    if not 0 < experts.score_scale <= MAX_SCORE_SCALE:
        message = f"expected above 0 and at most {MAX_SCORE_SCALE:.0e}, got {experts.score_scale:g}"
        raise SpecError(message, key="score_scale")
    if experts.router_pre_softmax and experts.router != "softmax":
        message = f"needs router softmax, got {experts.router}"
        raise SpecError(message, key="router_pre_softmax")
    factor = experts.capacity_factor
    if factor is not None and not 0 < factor <= MAX_CAPACITY_FACTOR:
        message = f"expected above 0 and at most {MAX_CAPACITY_FACTOR:.0e}, got {factor:g}"
        raise SpecError(message, key="capacity_factor")
