"""What layers are made of: attention, state space, feed-forward and mixture-of-experts sub-layers.

A :class:`Layer` names its sub-layers; each is a small record with its parameter count, its active
parameters and the multiply-adds of its matrices for a token. Numbers are those of the unsharded
model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from parallelsim.custom_layers import Custom


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
    chunked: bool = False
    """The window is the aligned block that a token lies in (Llama 4), not the tokens before it."""
    sinks: bool = False
    """One learnt logit a head that every softmax includes (GPT-OSS)."""
    kv_seq_length: int | None = None
    """Cross-attention: keys and values come from this many tokens of another sequence."""
    kv_hidden_size: int | None = None
    """Width of those tokens where it differs from the model's."""
    rope: bool = True
    """RoPE turns queries and keys where the model has it (not in all layers of Llama 4); only
    exported.
    """
    qk_l2_norm: bool = False
    """Queries and keys are divided by their length, without parameters (Llama 4 Scout); only
    exported.
    """

    @property
    def query_width(self) -> int:
        """Columns of the query projection, num_heads * head_dim."""
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Columns of the key projection, num_query_groups * head_dim."""
        return self.num_query_groups * self.head_dim

    @property
    def core_width(self) -> float:
        """Width d of the score and value products, mean of both: 4 d flops a pair and head."""
        return float(self.head_dim)

    def num_parameters(self, hidden_size: int) -> int:
        """Weights and biases of the QKV and output projections, query/key norms, sinks."""
        kv_width = 2 * self.kv_width
        weights = 2 * hidden_size * self.query_width + self._kv_hidden(hidden_size) * kv_width
        biases = self.qkv_bias * (self.query_width + kv_width) + self.output_bias * hidden_size
        extra = self.qk_norm * 2 * self.head_dim + self.sinks * self.num_heads
        return weights + biases + extra

    def gemm_weights(self, hidden_size: int) -> int:
        """Weights that multiply every token of the sequence; keys and values of cross-attention
        are counted by :meth:`cross_weights`.
        """
        own = 2 * hidden_size * self.query_width
        return own if self.kv_seq_length else own + 2 * hidden_size * self.kv_width

    def cross_weights(self, hidden_size: int) -> int:
        """Weights that multiply every token of the other sequence of a cross-attention."""
        return 2 * self._kv_hidden(hidden_size) * self.kv_width if self.kv_seq_length else 0

    def pairs_per_sequence(self, seq_length: int) -> float:
        """Query-key pairs that one head scores in one sequence.

        Full: s^2. Causal: s^2 / 2 (the convention of MFU; exactly s (s + 1) / 2). Causal with a
        window w < s: w s - w^2 / 2. Bidirectional with a window: min(2 w, s) s. In blocks of w
        tokens: w s, causal w s / 2. Cross: s s_kv.
        """
        s = float(seq_length)
        if self.kv_seq_length is not None:
            return s * self.kv_seq_length
        if self.window is None or self.window >= seq_length:
            return s * s / 2 if self.causal else s * s
        w = float(self.window)
        if self.chunked:
            return w * s / 2 if self.causal else w * s
        return w * s - w * w / 2 if self.causal else min(2 * w, s) * s

    def _kv_hidden(self, hidden_size: int) -> int:
        return self.kv_hidden_size or hidden_size


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention: queries and keys/values through low-rank latents
    (arXiv:2405.04434 section 2.1).
    """

    num_heads: int
    kv_lora_rank: int
    """Width of the key/value latent."""
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    """Rotary part of a head; its key is shared by all heads."""
    v_head_dim: int
    q_lora_rank: int | None = None
    """Width of the query latent; None: queries are projected directly."""
    causal: bool = True

    @property
    def qk_head_dim(self) -> int:
        """Width of a query or key head."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def core_width(self) -> float:
        """Width d of the score and value products, mean of both: 4 d flops a pair and head."""
        return (self.qk_head_dim + self.v_head_dim) / 2

    @property
    def query_width(self) -> int:
        """Columns of all query heads."""
        return self.num_heads * self.qk_head_dim

    def num_parameters(self, hidden_size: int) -> int:
        """Down and up projections with their norms, and the output projection; no biases."""
        norms = self.kv_lora_rank + (self.q_lora_rank or 0)
        return self.gemm_weights(hidden_size) + norms

    def gemm_weights(self, hidden_size: int) -> int:
        """Weights that multiply every token."""
        h, a = hidden_size, self.num_heads
        rank = self.q_lora_rank
        query = h * self.query_width if rank is None else rank * (h + self.query_width)
        down = h * (self.kv_lora_rank + self.qk_rope_head_dim)
        up = self.kv_lora_rank * a * (self.qk_nope_head_dim + self.v_head_dim)
        return query + down + up + a * self.v_head_dim * h

    def pairs_per_sequence(self, seq_length: int) -> float:
        """Query-key pairs that one head scores in one sequence: s^2, or s^2 / 2 causal."""
        s = float(seq_length)
        return s * s / 2 if self.causal else s * s


@dataclass(frozen=True, slots=True)
class StateSpace:
    """A Mamba-2 mixer (arXiv:2405.21060): input projection, short convolution, scan, gated norm,
    output projection.
    """

    num_heads: int
    head_dim: int
    state_size: int
    num_groups: int
    conv_kernel: int = 4
    chunk_size: int = 256
    """Tokens of a block of the scan: attention-like products inside, a recurrence between."""
    conv_bias: bool = True

    @property
    def inner_width(self) -> int:
        """Columns of the gate and of the scanned values."""
        return self.num_heads * self.head_dim

    @property
    def conv_width(self) -> int:
        """Channels of the convolution: values, B and C."""
        return self.inner_width + 2 * self.num_groups * self.state_size

    def num_parameters(self, hidden_size: int) -> int:
        """Projections, convolution, A, D and dt bias of each head, and the gated norm."""
        conv = self.conv_width * (self.conv_kernel + self.conv_bias)
        return self.gemm_weights(hidden_size) + conv + 3 * self.num_heads + self.inner_width

    def gemm_weights(self, hidden_size: int) -> int:
        """Weights that multiply every token: in (gate, values, B, C, dt) and out."""
        into = self.inner_width + self.conv_width + self.num_heads
        return hidden_size * into + self.inner_width * hidden_size

    def scan_flops_per_token(self) -> float:
        """Forward, as Megatron counts a scan: 7 multiply-add steps a value and state."""
        return 7.0 * self.inner_width * self.state_size


@dataclass(frozen=True, slots=True)
class SelectiveScan:
    """A Mamba-1 mixer (arXiv:2312.00752): input projection, short convolution, projection to dt, B
    and C, scan of every channel by itself, gate, output projection.
    """

    inner_width: int
    state_size: int
    dt_rank: int
    """Columns from which the step sizes of all channels are projected."""
    conv_kernel: int = 4
    conv_bias: bool = True
    inner_norms: bool = False
    """dt, B and C are normed with weights (Jamba)."""

    num_heads: ClassVar[int] = 1
    num_groups: ClassVar[int] = 1
    """What tensor and context parallelism could split: no software here splits its channels."""

    def num_parameters(self, hidden_size: int) -> int:
        """Projections, convolution, bias of dt, A, D, and the norms of dt, B and C."""
        channel = self.conv_kernel + self.conv_bias + 1 + self.state_size + 1
        norms = (self.dt_rank + 2 * self.state_size) * self.inner_norms
        return self.gemm_weights(hidden_size) + self.inner_width * channel + norms

    def gemm_weights(self, hidden_size: int) -> int:
        """Weights that multiply every token: in (values, gate), to dt, B and C, dt, and out."""
        into_and_out = 3 * hidden_size * self.inner_width
        return into_and_out + 2 * self.inner_width * (self.dt_rank + self.state_size)

    def scan_flops_per_token(self) -> float:
        """Forward, counted as :class:`StateSpace` counts its scan."""
        return 7.0 * self.inner_width * self.state_size


@dataclass(frozen=True, slots=True)
class MLP:
    """A feed-forward network: two matrices, or three when gated (SwiGLU, GeGLU)."""

    ffn_hidden_size: int
    gated: bool
    bias: bool = False
    activation: str = "silu"
    """silu, clamped-silu, gelu, relu or squared-relu: decides the export's flag; their run times
    do not differ here.
    """

    def num_parameters(self, hidden_size: int) -> int:
        """Weights and biases."""
        num_up = 2 if self.gated else 1
        biases = self.bias * (num_up * self.ffn_hidden_size + hidden_size)
        return self.gemm_weights(hidden_size) + biases

    def gemm_weights(self, hidden_size: int) -> int:
        """Weights that multiply every token."""
        return (3 if self.gated else 2) * hidden_size * self.ffn_hidden_size


@dataclass(frozen=True, slots=True)
class MixtureOfExperts:
    """A router and feed-forward experts, of which every token passes ``top_k``, with an optional
    dense expert that every token passes.
    """

    num_experts: int
    top_k: int
    ffn_hidden_size: int
    """Of one expert."""
    gated: bool
    activation: str = "silu"
    bias: bool = False
    """On the experts' matrices (GPT-OSS)."""
    shared_ffn_hidden_size: int = 0
    """Total width of the shared experts; 0: none."""
    shared_gate: bool = False
    """A sigmoid gate on the shared expert: hidden_size parameters (Qwen2-MoE)."""
    router: str = "softmax"
    """softmax or sigmoid."""
    router_bias: bool = False
    """A bias for each expert on the router's logits (GPT-OSS) or scores (DeepSeek-V3)."""
    num_groups: int = 1
    """Groups that the router chooses among first (DeepSeek-V3: 8)."""
    group_top_k: int = 1
    capacity_factor: float | None = None
    """Tokens an expert takes over its even share, the rest is dropped; None: dropless."""
    load_cv: float = 0.0
    """Spread of the tokens that experts get: standard deviation over mean; 0: balanced."""
    load_quantile: float = 0.5
    """Of the busiest rank's load: what times are computed at."""
    latent_size: int | None = None
    """Experts work on tokens projected to this width; None: on the hidden size."""
    router_pre_softmax: bool = False
    """Softmax over all experts before ``top_k`` are chosen, whose shares then do not add up to 1
    (DeepSeek-V2); only exported.
    """
    score_scale: float = 1.0
    """Scores of the chosen experts are multiplied by it (DeepSeek-V3: 2.5); only exported."""
    scales_input: bool = False
    """Scores multiply what an expert reads, not what it returns (Llama 4); only exported."""

    def expert_width(self, hidden_size: int) -> int:
        """Width of the tokens that experts see."""
        return self.latent_size or hidden_size

    def expert_parameters(self, hidden_size: int) -> int:
        """Of one routed expert."""
        return MLP(self.ffn_hidden_size, self.gated, self.bias).num_parameters(
            self.expert_width(hidden_size)
        )

    def dense_parameters(self, hidden_size: int) -> int:
        """Everything outside the routed experts: router, shared expert, latent projections."""
        router = self.num_experts * (hidden_size + self.router_bias)
        shared = self.shared.num_parameters(hidden_size) if self.shared else 0
        latent = 2 * hidden_size * self.latent_size if self.latent_size else 0
        return router + shared + self.shared_gate * hidden_size + latent

    @property
    def shared(self) -> MLP | None:
        """The shared experts as one dense network."""
        if not self.shared_ffn_hidden_size:
            return None
        return MLP(self.shared_ffn_hidden_size, self.gated, self.bias, self.activation)

    def num_parameters(self, hidden_size: int) -> int:
        """All experts, routed and shared, and the router."""
        experts = self.num_experts * self.expert_parameters(hidden_size)
        return experts + self.dense_parameters(hidden_size)

    def active_parameters(self, hidden_size: int) -> int:
        """Those that one token passes."""
        return self.top_k * self.expert_parameters(hidden_size) + self.dense_parameters(hidden_size)

    def gemm_weights(self, hidden_size: int) -> int:
        """Weights that multiply a token, without the router (as Megatron counts FLOPs)."""
        width = self.expert_width(hidden_size)
        routed = self.top_k * MLP(self.ffn_hidden_size, self.gated).gemm_weights(width)
        shared = self.shared.gemm_weights(hidden_size) if self.shared else 0
        latent = 2 * hidden_size * self.latent_size if self.latent_size else 0
        return routed + shared + latent


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: the sub-layers that it has, each with its residual connection.

    Most have attention and an MLP; hybrids have layers of one sub-layer alone.
    """

    attention: Attention | LatentAttention | None = None
    mlp: MLP | None = None
    experts: MixtureOfExperts | None = None
    """In place of ``mlp``."""
    cross_attention: Attention | None = None
    state_space: StateSpace | SelectiveScan | None = None
    custom: Custom | None = None
    """Operators that the file lists, after the other sub-layers."""
    num_norms: int = 2
    """Normalisations over the hidden size: one for each sub-layer, or two where the outputs are
    normalised too (Gemma 2).
    """
    parallel: bool = False
    """Attention and MLP read the same input (Falcon, GPT-NeoX): one tensor-parallel reduction
    instead of two.
    """
    seq_length: int | None = None
    """Tokens of a sequence that this layer processes where not the model's (an encoder)."""

    @property
    def sublayers(self) -> tuple[SubLayer, ...]:
        """Those that it has, in the order in which they run."""
        parts = (self.attention, self.state_space, self.cross_attention, self.mlp, self.experts)
        return tuple(part for part in (*parts, self.custom) if part is not None)

    @property
    def num_streams(self) -> int:
        """Sub-layers with a residual connection and norms: all but custom operators."""
        return len(self.sublayers) - (self.custom is not None)


SubLayer = (
    Attention | LatentAttention | StateSpace | SelectiveScan | MLP | MixtureOfExperts | Custom
)


@dataclass(frozen=True, slots=True)
class Block:
    """``repeat`` copies of a short sequence of layers."""

    repeat: int
    layers: tuple[Layer, ...]
