"""What is trained: a transformer as a list of blocks, with its parameter and FLOP counts.

A :class:`ModelSpec` is a tuple of :class:`Block`; a block repeats a short tuple of :class:`Layer`
(one layer for most models, a local and a global one for Gemma 2); ``layers`` says what a layer is
made of. Numbers are those of the unsharded model; what a GPU holds is computed in ``operators`` and
``memory``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from parallelsim.custom_layers import Custom
from parallelsim.errors import SpecError
from parallelsim.layer_checks import check_edges, check_layer, check_range
from parallelsim.layers import (
    Attention,
    Block,
    LatentAttention,
    Layer,
    SelectiveScan,
    StateSpace,
)
from parallelsim.lora import LoRA

VOCAB_PADDING = 128
"""Megatron pads the vocabulary to a multiple of this times tp
(``--make-vocab-size-divisible-by``).
"""

MAX_PARAMETERS = 10**15


@dataclass(frozen=True)
class ModelSpec:
    """A transformer and how it is trained by default."""

    name: str
    hidden_size: int
    vocab_size: int
    """Rows of the embedding in the published checkpoint, before any padding for tensor
    parallelism; 0: no vocabulary, ``input_operators`` and ``output_operators`` instead.
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
    """rope, learned, alibi, relative or none."""
    relative_position_buckets: int = 0
    """Rows of the learnt bias on attention scores, one column a head, that the layers of a stack
    share (T5: 32 for the encoder and 32 for the decoder)."""
    rotary_base: float = 10_000.0
    """Base of the RoPE frequencies; only exported."""
    rotary_percent: float = 1.0
    """Share of each head that RoPE turns (Nemotron-4: 0.5); only exported."""
    norm: str = "rmsnorm"
    """rmsnorm or layernorm."""
    norm_bias: bool = False
    norm_affine: bool = True
    """Norms have parameters; diffusion transformers' have none, scale and shift are computed."""
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
    num_mtp_layers: int = 0
    """Multi-token-prediction modules after the last layer (arXiv:2412.19437 section 2.2); not in
    ``num_parameters``.
    """
    mtp_layers: tuple[Layer, ...] = ()
    """Layers of one such module; empty: one as the last layer."""
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    input_operators: Custom | None = None
    """What makes the first layer's input, beside or in place of a vocabulary table: an image's
    patches, a convolutional stem, a diffusion model's conditioning.
    """
    output_operators: Custom | None = None
    """What follows the last layer, beside or in place of vocabulary logits: a classifier."""
    lora: LoRA | None = None
    """Adapters that are trained in place of the model's own parameters; None: all are trained."""

    def __post_init__(self) -> None:
        for key in ("hidden_size", "max_seq_length"):
            check_range(key, getattr(self, key))
        check_edges(self.vocab_size, self.input_operators, self.output_operators)
        for kind, _ in self.layer_kinds:
            check_layer(kind)
        for custom in self.customs:
            custom.check(self.hidden_size)
        check_range("num_layers", self.num_layers)
        check_range("num_mtp_layers", self.num_mtp_layers)
        for layer in self.mtp_layers:
            check_layer(layer)
        if self.mtp_layers and not self.num_mtp_layers:
            raise SpecError("needs num_mtp_layers, how many modules there are", key="mtp_layers")
        check_range("relative_position_buckets", self.relative_position_buckets)
        if self.relative_position_buckets and not isinstance(
            self.blocks[0].layers[0].attention, Attention
        ):
            message = "needs attention heads in the first layer"
            raise SpecError(message, key="relative_position_buckets")
        if min(block.repeat for block in self.blocks) < 1:
            raise SpecError("every block is repeated at least once", key="repeat")
        if not 0 <= self.seq_length <= self.max_seq_length:
            raise SpecError(
                f"expected at most max_seq_length={self.max_seq_length}, got {self.seq_length}",
                key="seq_length",
            )
        check_range("global_batch_tokens", self.default_global_batch_tokens)
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
        return _count_kinds(self.blocks)

    @cached_property
    def num_leading_blocks(self) -> int:
        """Blocks before the longest one, where they have few layers (at most an eighth, of dense
        layers before mixtures of experts a quarter): on the first pipeline stages.
        """
        lengths = [block.repeat * len(block.layers) for block in self.blocks]
        longest = lengths.index(max(lengths))
        before = any(layer.experts for block in self.blocks[:longest] for layer in block.layers)
        after = all(layer.experts for layer in self.blocks[longest].layers)
        few = self.num_layers // (4 if after and not before else 8)
        return longest if sum(lengths[:longest]) <= few else 0

    @cached_property
    def leading_kinds(self) -> tuple[tuple[Layer, int], ...]:
        """Kinds of the layers in the leading blocks, with their counts."""
        return _count_kinds(self.blocks[: self.num_leading_blocks])

    @cached_property
    def num_leading_layers(self) -> int:
        """Layers in the leading blocks."""
        return sum(count for _, count in self.leading_kinds)

    @cached_property
    def main_kinds(self) -> tuple[tuple[Layer, int], ...]:
        """The other kinds: those that every stage holds in about the same proportion."""
        return _count_kinds(self.blocks[self.num_leading_blocks :])

    @cached_property
    def num_stacks(self) -> int:
        """2 for an encoder and a decoder (layers with cross-attention), else 1."""
        return 2 if any(layer.cross_attention for layer, _ in self.layer_kinds) else 1

    @cached_property
    def customs(self) -> tuple[Custom, ...]:
        """The distinct lists of custom operators, those of the edges first."""
        parts = [self.input_operators, self.output_operators]
        parts += [layer.custom for layer, _ in self.layer_kinds]
        return tuple(dict.fromkeys(part for part in parts if part is not None))

    @cached_property
    def alike_inputs(self) -> bool:
        """Every layer's input has the model's tokens and width."""
        return all(
            layer.seq_length in (None, self.seq_length)
            and (layer.custom is None or layer.custom.input_values is None)
            for layer, _ in self.layer_kinds
        )

    @cached_property
    def embedded_seq_length(self) -> int:
        """Tokens of one sample that the vocabulary table embeds: the encoder's and the decoder's
        where there are both.
        """
        own = {layer.seq_length or 0 for layer, _ in self.layer_kinds}
        return self.seq_length + (sum(own) if self.num_stacks > 1 else 0)

    def norm_parameters(self) -> int:
        """Parameters of one normalisation over the hidden size."""
        return self.norm_affine * self.hidden_size * (2 if self.norm_bias else 1)

    def layer_parameters(self, layer: Layer) -> int:
        """Parameters of one layer."""
        parts = sum(part.num_parameters(self.hidden_size) for part in layer.sublayers)
        return parts + layer.num_norms * self.norm_parameters()

    @property
    def mtp_module(self) -> tuple[Layer, ...]:
        """Layers of one multi-token-prediction module: those stated, or one as the last."""
        return self.mtp_layers or self.layers[-1:]

    def mtp_parameters(self) -> int:
        """Parameters of the multi-token-prediction modules: each one its layers, a projection of
        2 h columns, norms of both inputs and of the output. Embedding and head are shared.
        """
        layers = sum(self.layer_parameters(layer) for layer in self.mtp_module)
        each = layers + 2 * self.hidden_size**2 + 3 * self.norm_parameters()
        return self.num_mtp_layers * each

    def embedding_parameters(self) -> int:
        """Token, position and token-type embeddings with their norm, tables of relative positions,
        input operators.

        An encoder and its decoder share the token embedding.
        """
        h = self.hidden_size
        positions = self.max_seq_length * h if self.position_embedding == "learned" else 0
        norm = self.norm_parameters() if self.embedding_norm else 0
        first = self.blocks[0].layers[0].attention
        heads = first.num_heads if first is not None else 0
        relative = self.num_stacks * self.relative_position_buckets * heads
        table = self.vocab_size * h + self.num_token_types * h
        return table + positions + norm + relative + self._custom_parameters(self.input_operators)

    def head_parameters(self) -> int:
        """Final norm of each stack, head transform, logits bias, output operators, and the output
        matrix where it is not tied.
        """
        h = self.hidden_size
        total = 0 if self.tied_embeddings else self.vocab_size * h
        total += self.num_stacks * self.norm_parameters() if self.final_norm else 0
        total += h * h + h + self.norm_parameters() if self.head_transform else 0
        total += h * h + h if self.pooler else 0
        total += self._custom_parameters(self.output_operators)
        return total + (self.vocab_size if self.output_bias else 0)

    def _custom_parameters(self, custom: Custom | None) -> int:
        return custom.num_parameters(self.hidden_size) if custom else 0

    @cached_property
    def num_parameters(self) -> int:
        """Parameters of the published model; a tied embedding counts once.

        >>> from parallelsim import load_model
        >>> load_model("llama3-70b").num_parameters
        70553706496
        """
        layers = sum(count * self.layer_parameters(layer) for layer, count in self.layer_kinds)
        return self.embedding_parameters() + layers + self.head_parameters()

    @cached_property
    def has_experts(self) -> bool:
        """Some layer is a mixture of experts."""
        return any(layer.experts is not None for layer, _ in self.layer_kinds)

    @cached_property
    def num_active_parameters(self) -> int:
        """Parameters that one token passes: of routed experts, the ``top_k`` it is sent to.

        >>> from parallelsim import load_model
        >>> model = load_model("llama3-70b")
        >>> model.num_active_parameters == model.num_parameters
        True
        """
        idle = 0
        for layer, count in self.layer_kinds:
            if layer.experts is not None:
                experts, h = layer.experts, self.hidden_size
                idle += count * (experts.num_parameters(h) - experts.active_parameters(h))
        return self.num_parameters - idle

    @cached_property
    def num_trainable_parameters(self) -> int:
        """Those that the optimizer updates: all, or the adapters alone.

        Llama 2 70B with rank 16 on QKV and projection: 80 * 16 * (8192 + 10240 + 2 * 8192).

        >>> from parallelsim import load_model
        >>> from parallelsim.lora import LoRA
        >>> from dataclasses import replace
        >>> lora = LoRA(rank=16, targets=("linear_qkv", "linear_proj"))
        >>> replace(load_model("llama2-70b"), lora=lora).num_trainable_parameters
        44564480
        """
        if self.lora is None:
            return self.num_parameters + self.mtp_parameters()
        lora, h = self.lora, self.hidden_size
        adapters = sum(n * lora.layer_parameters(layer, h) for layer, n in self.layer_kinds)
        in_a_module = sum(lora.layer_parameters(layer, h) for layer in self.mtp_module)
        return adapters + self.num_mtp_layers * in_a_module

    def flops_per_sequence(self) -> float:
        """Model FLOPs of forward and backward for one sequence of s tokens.

        F = 3 * 2 s (sum of W + h V (1 + M) + 2 h^2 M) + 12 sum of a d P + 3 * 7 s sum of i n

        W: weights of a layer's GEMMs; of experts, those of the top_k that a token is sent to and
        of shared ones, without the router. V: vocabulary. M: multi-token-prediction modules, each
        its own layers, a projection of 2 h columns and a head. a, d, P: heads, their width
        (latent attention: the mean of the query's and the value's) and query-key pairs, s^2 / 2
        where causal. i, n: inner width and states of a scan. Layers of another sequence length
        (an encoder) count with theirs, custom operators with three times their forward products.

        Equal to Megatron's ``num_floating_point_operations`` but for its norms of latents and of
        multi-token prediction (below 1e-5), and for what it ignores: windows (it counts the full
        triangle), encoders and bidirectional attention. Not counted here nor there: recompute,
        norms, routers, the embedding. Megatron counts the padded vocabulary, this the published.
        """
        h, s = self.hidden_size, self.seq_length
        heads = 1 + self.num_mtp_layers
        total = 6.0 * s * h * self.vocab_size * heads
        total += 6.0 * s * h * h if self.head_transform else 0.0
        for edge in (self.input_operators, self.output_operators):
            total += 3.0 * edge.flops_per_sequence(h, s) if edge else 0.0
        total += sum(count * self.layer_flops(layer) for layer, count in self.layer_kinds)
        if self.num_mtp_layers:
            each = sum(self.layer_flops(layer) for layer in self.mtp_module)
            total += self.num_mtp_layers * (each + 6.0 * s * 2 * h * h)
        return total

    def layer_flops(self, layer: Layer) -> float:
        """Model FLOPs of one layer, forward and backward, for one sequence."""
        h, s = self.hidden_size, layer.seq_length or self.seq_length
        total = 0.0
        for part in layer.sublayers:
            if isinstance(part, Custom):
                total += 3.0 * part.flops_per_sequence(h, s)
                continue
            total += 6.0 * s * part.gemm_weights(h)
            if isinstance(part, Attention | LatentAttention):
                total += 12.0 * part.num_heads * part.core_width * part.pairs_per_sequence(s)
            if isinstance(part, Attention) and part.kv_seq_length:
                total += 6.0 * part.kv_seq_length * part.cross_weights(h)
            if isinstance(part, StateSpace | SelectiveScan):
                total += 3.0 * s * part.scan_flops_per_token()
        return total

    def with_load_quantile(self, quantile: float) -> ModelSpec:
        """The same model with experts loaded as at this quantile, in (0, 1), of their spread."""

        def loaded(layer: Layer) -> Layer:
            if layer.experts is None:
                return layer
            return replace(layer, experts=replace(layer.experts, load_quantile=quantile))

        blocks = (Block(b.repeat, tuple(loaded(layer) for layer in b.layers)) for b in self.blocks)
        return replace(self, blocks=tuple(blocks))

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


def _count_kinds(blocks: Sequence[Block]) -> tuple[tuple[Layer, int], ...]:
    counts: dict[Layer, int] = {}
    for block in blocks:
        for layer in block.layers:
            counts[layer] = counts.get(layer, 0) + block.repeat
    return tuple(counts.items())
