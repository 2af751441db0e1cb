"""What is trained: a transformer as a list of blocks, with its parameter and FLOP counts.

A :class:`ModelSpec` is a tuple of :class:`Block`; a block repeats a short tuple of :class:`Layer`
(one layer for most models, a local and a global one for Gemma 2); a layer is an attention and an
MLP. Numbers are those of the unsharded model; what a GPU holds is computed in ``operators`` and
``memory``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from parallelsim.errors import SpecError

VOCAB_PADDING = 128
"""Megatron pads the vocabulary to a multiple of this times tp
(``--make-vocab-size-divisible-by``).
"""

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
    "num_norms": (0, 8),
    "global_batch_tokens": (0, 10**12),
}
"""Smallest and largest value of each size: beyond any model, and far inside int64 and float64."""
MAX_PARAMETERS = 10**15


@dataclass(frozen=True, slots=True)
class Attention:
    """Softmax attention with full, grouped or multi-query heads."""

    num_heads: int
    """Query heads."""
    num_query_groups: int
    """Key/value heads; equal to ``num_heads`` for multi-head, 1 for multi-query attention."""
    head_dim: int
    """Width of one head; need not be hidden_size / num_heads."""
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    """RMSNorm on each query and key head (Qwen3): 2 * head_dim parameters."""
    causal: bool = True
    window: int | None = None
    """Sliding window in tokens (each token sees itself and the ``window - 1`` before it); None is
    full.
    """

    @property
    def query_width(self) -> int:
        """Columns of the query projection, num_heads * head_dim."""
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Columns of the key projection, num_query_groups * head_dim."""
        return self.num_query_groups * self.head_dim

    def num_parameters(self, hidden_size: int) -> int:
        """Weights and biases of the QKV and output projections, and of the query/key norms."""
        qkv_width = self.query_width + 2 * self.kv_width
        weights = hidden_size * qkv_width + self.query_width * hidden_size
        biases = self.qkv_bias * qkv_width + self.output_bias * hidden_size
        return weights + biases + self.qk_norm * 2 * self.head_dim

    def pairs_per_sequence(self, seq_length: int) -> float:
        """Query-key pairs that one head scores in one sequence.

        Full: s^2. Causal: s^2 / 2 (the convention of MFU; exactly s (s + 1) / 2). Causal with a
        window w < s: w s - w^2 / 2. Bidirectional with a window: min(2 w, s) s.
        """
        s = float(seq_length)
        if self.window is None or self.window >= seq_length:
            return s * s / 2 if self.causal else s * s
        w = float(self.window)
        return w * s - w * w / 2 if self.causal else min(2 * w, s) * s


@dataclass(frozen=True, slots=True)
class MLP:
    """A feed-forward network: two matrices, or three when gated (SwiGLU, GeGLU)."""

    ffn_hidden_size: int
    gated: bool
    bias: bool = False
    activation: str = "silu"
    """silu, gelu or squared-relu: decides the export's flag; their run times do not differ here."""

    def num_parameters(self, hidden_size: int) -> int:
        """Weights and biases."""
        num_up = 2 if self.gated else 1
        weights = (num_up + 1) * hidden_size * self.ffn_hidden_size
        return weights + self.bias * (num_up * self.ffn_hidden_size + hidden_size)


@dataclass(frozen=True, slots=True)
class Layer:
    """One transformer layer."""

    attention: Attention
    mlp: MLP
    num_norms: int = 2
    """Normalisations over the hidden size: 2, or 4 where the sub-layer outputs are normalised too
    (Gemma 2).
    """
    parallel: bool = False
    """Attention and MLP read the same input (Falcon, GPT-NeoX): one tensor-parallel reduction
    instead of two.
    """


@dataclass(frozen=True, slots=True)
class Block:
    """``repeat`` copies of a short sequence of layers."""

    repeat: int
    layers: tuple[Layer, ...]


@dataclass(frozen=True)
class ModelSpec:
    """A transformer and how it is trained by default."""

    name: str
    hidden_size: int
    vocab_size: int
    """Rows of the embedding in the published checkpoint, before any padding for tensor
    parallelism.
    """
    seq_length: int
    """Tokens of a training sequence; ``with_seq_length`` changes it. 0: not stated (a config.json
    tells the architecture, not the training), so that a caller has to give it."""
    max_seq_length: int
    """Longest sequence that the architecture (positions) allows."""
    default_global_batch_tokens: int
    """Tokens of one optimizer step as the model was trained; 0: not stated by any source."""
    blocks: tuple[Block, ...]
    tied_embeddings: bool = False
    position_embedding: str = "rope"
    """rope, learned, alibi or none."""
    rotary_base: float = 10_000.0
    """Base of the RoPE frequencies; only exported."""
    rotary_percent: float = 1.0
    """Share of each head that RoPE turns (Nemotron-4: 0.5); only exported."""
    norm: str = "rmsnorm"
    """rmsnorm or layernorm."""
    norm_bias: bool = False
    embedding_norm: bool = False
    """A norm after the embedding (BLOOM, BERT)."""
    final_norm: bool = True
    num_token_types: int = 0
    """Rows of BERT's token-type embedding."""
    output_bias: bool = False
    """A bias on the vocabulary logits."""
    head_transform: bool = False
    """BERT's masked-language-model transform before the decoder: a dense h x h with bias and a
    norm.
    """
    pooler: bool = False
    """BERT's pooler: a dense h x h with bias."""
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0

    def __post_init__(self) -> None:
        for key in ("hidden_size", "vocab_size", "max_seq_length"):
            _check_range(key, getattr(self, key))
        for kind, _ in self.layer_kinds:
            _check_layer(kind)
        _check_range("num_layers", self.num_layers)
        if min(block.repeat for block in self.blocks) < 1:
            raise SpecError("every block is repeated at least once", key="repeat")
        if not 0 <= self.seq_length <= self.max_seq_length:
            raise SpecError(
                f"expected at most max_seq_length={self.max_seq_length}, got {self.seq_length}",
                key="seq_length",
            )
        _check_range("global_batch_tokens", self.default_global_batch_tokens)
        if self.num_parameters > MAX_PARAMETERS:
            raise SpecError(
                f"{self.num_parameters:.3g} parameters; at most {MAX_PARAMETERS:.0e} are accepted",
                key="num_parameters",
            )

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """Every layer in order, length ``num_layers``."""
        repeated = (block.layers * block.repeat for block in self.blocks)
        return tuple(layer for layers in repeated for layer in layers)

    @cached_property
    def num_layers(self) -> int:
        """Layers of the whole model."""
        return sum(block.repeat * len(block.layers) for block in self.blocks)

    @cached_property
    def layer_kinds(self) -> tuple[tuple[Layer, int], ...]:
        """The distinct layers with their counts, in order of first appearance."""
        counts: dict[Layer, int] = {}
        for block in self.blocks:
            for layer in block.layers:
                counts[layer] = counts.get(layer, 0) + block.repeat
        return tuple(counts.items())

    def norm_parameters(self) -> int:
        """Parameters of one normalisation over the hidden size."""
        return self.hidden_size * (2 if self.norm_bias else 1)

    def layer_parameters(self, layer: Layer) -> int:
        """Parameters of one layer."""
        h = self.hidden_size
        return (
            layer.attention.num_parameters(h)
            + layer.mlp.num_parameters(h)
            + layer.num_norms * self.norm_parameters()
        )

    def embedding_parameters(self) -> int:
        """Token, position and token-type embeddings with their norm."""
        h = self.hidden_size
        positions = self.max_seq_length * h if self.position_embedding == "learned" else 0
        norm = self.norm_parameters() if self.embedding_norm else 0
        return self.vocab_size * h + positions + self.num_token_types * h + norm

    def head_parameters(self) -> int:
        """Final norm, head transform, logits bias, and the output matrix where it is not tied."""
        h = self.hidden_size
        total = 0 if self.tied_embeddings else self.vocab_size * h
        total += self.norm_parameters() if self.final_norm else 0
        total += h * h + h + self.norm_parameters() if self.head_transform else 0
        total += h * h + h if self.pooler else 0
        return total + (self.vocab_size if self.output_bias else 0)

    @cached_property
    def num_parameters(self) -> int:
        """Parameters of the published model; a tied embedding counts once.

        >>> from parallelsim import load_model
        >>> load_model("llama3-70b").num_parameters
        70553706496
        """
        layers = sum(count * self.layer_parameters(layer) for layer, count in self.layer_kinds)
        return self.embedding_parameters() + layers + self.head_parameters()

    def flops_per_sequence(self) -> float:
        """Model FLOPs of forward and backward for one sequence: 3 x (2 per multiply-add of every
        GEMM).

        6 s (sum of layer GEMM weights + h V) + 12 q pairs for each layer, with causal pairs s^2 / 2
        (Megatron's ``num_floating_point_operations``). Not counted: recompute, norms, embedding
        look-up, vocabulary padding.
        """
        h, s = self.hidden_size, self.seq_length
        total = 6.0 * s * h * self.vocab_size
        total += 6.0 * s * h * h if self.head_transform else 0.0
        for layer, count in self.layer_kinds:
            attention, mlp = layer.attention, layer.mlp
            gemm_weights = h * (2 * attention.query_width + 2 * attention.kv_width)
            gemm_weights += (3 if mlp.gated else 2) * h * mlp.ffn_hidden_size
            core = 12.0 * attention.query_width * attention.pairs_per_sequence(s)
            total += count * (6.0 * s * gemm_weights + core)
        return total

    def with_seq_length(self, seq_length: int) -> ModelSpec:
        """The same model trained on sequences of ``seq_length`` tokens.

        Raises:
            SpecError: above the model's maximum, or below 1.
        """
        if seq_length < 1:
            message = f"a sequence needs at least 1 token, got {seq_length}"
            raise SpecError(message, key="seq_length")
        if seq_length > self.max_seq_length:
            raise SpecError(
                f"{self.name} has positions for {self.max_seq_length} tokens, got {seq_length}; "
                f"use at most that, or raise it with --set max_seq_length={seq_length}",
                key="seq_length",
            )
        return replace(self, seq_length=seq_length)


def _check_range(key: str, value: int) -> None:
    low, high = LIMITS[key]
    if not low <= value <= high:
        raise SpecError(f"expected {low} to {high}, got {value}", key=key)


def _check_layer(layer: Layer) -> None:
    attention = layer.attention
    _check_range("num_attention_heads", attention.num_heads)
    _check_range("num_query_groups", attention.num_query_groups)
    _check_range("head_dim", attention.head_dim)
    _check_range("ffn_hidden_size", layer.mlp.ffn_hidden_size)
    _check_range("num_norms", layer.num_norms)
    if attention.window is not None:
        _check_range("window", attention.window)
    if attention.num_heads % attention.num_query_groups:
        raise SpecError(
            f"{attention.num_heads} heads cannot share {attention.num_query_groups} key/value "
            "groups evenly",
            key="num_query_groups",
        )
