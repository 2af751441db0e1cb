"""Models of every kind of sub-layer for the tests, in the shapes of published ones."""

from dataclasses import replace

from parallelsim.layers import (
    MLP,
    Attention,
    Block,
    LatentAttention,
    Layer,
    MixtureOfExperts,
    StateSpace,
)
from parallelsim.model import ModelSpec

_ATTENTION = Attention(num_heads=32, num_query_groups=8, head_dim=128)
_MIXTURE = MixtureOfExperts(num_experts=8, top_k=2, ffn_hidden_size=14_336, gated=True)

MIXTRAL = ModelSpec(
    name="mixtral-like",
    hidden_size=4096,
    vocab_size=32_000,
    seq_length=4096,
    max_seq_length=32_768,
    default_global_batch_tokens=4_194_304,
    blocks=(Block(32, (Layer(_ATTENTION, experts=_MIXTURE),)),),
)
"""8 experts of which a token passes 2, as in Mixtral 8x7B: 46.7 billion parameters."""

DROPPING = replace(
    MIXTRAL,
    name="dropping-like",
    blocks=(Block(32, (Layer(_ATTENTION, experts=replace(_MIXTURE, capacity_factor=1.25)),)),),
)
"""The same with experts that drop and pad to a capacity."""

_FINE = MixtureOfExperts(
    num_experts=256, top_k=8, ffn_hidden_size=2048, gated=True, shared_ffn_hidden_size=2048
)
_LATENT = LatentAttention(128, 512, 128, 64, 128, q_lora_rank=1536)
DEEPSEEK = ModelSpec(
    name="deepseek-like",
    hidden_size=7168,
    vocab_size=129_280,
    seq_length=4096,
    max_seq_length=163_840,
    default_global_batch_tokens=62_914_560,
    blocks=(
        Block(3, (Layer(_LATENT, mlp=MLP(18_432, gated=True)),)),
        Block(58, (Layer(_LATENT, experts=_FINE),)),
    ),
    num_mtp_layers=1,
)
"""256 small experts and a shared one behind latent attention, three dense layers first, as in
DeepSeek-V3."""

_SINKS = replace(_ATTENTION, num_heads=64, head_dim=64, qkv_bias=True, sinks=True)
_BIASED = MixtureOfExperts(128, 4, 2880, gated=True, bias=True, router_bias=True)
SINKS = ModelSpec(
    name="gpt-oss-like",
    hidden_size=2880,
    vocab_size=201_088,
    seq_length=8192,
    max_seq_length=131_072,
    default_global_batch_tokens=4_194_304,
    blocks=(
        Block(
            18,
            (
                Layer(replace(_SINKS, window=128), experts=_BIASED),
                Layer(_SINKS, experts=_BIASED),
            ),
        ),
    ),
)
"""Attention sinks, alternating windows and experts with biases, as in GPT-OSS-120B."""

_SCAN = StateSpace(num_heads=128, head_dim=64, state_size=128, num_groups=8)
HYBRID = ModelSpec(
    name="hybrid-like",
    hidden_size=4096,
    vocab_size=131_072,
    seq_length=8192,
    max_seq_length=131_072,
    default_global_batch_tokens=4_194_304,
    blocks=(
        Block(
            12,
            (
                Layer(state_space=_SCAN, num_norms=1),
                Layer(mlp=MLP(21_504, gated=False), num_norms=1),
                Layer(state_space=_SCAN, num_norms=1),
                Layer(_ATTENTION, num_norms=1),
            ),
        ),
    ),
)
"""State-space, attention and feed-forward layers of one sub-layer each, as in Nemotron-H."""

SCANS = replace(
    HYBRID, name="mamba-like", blocks=(Block(48, (Layer(state_space=_SCAN, num_norms=1),)),)
)
"""State-space layers alone: no attention, no feed-forward network."""

_PAIR = Attention(32, 32, 128)
CROSS = replace(
    MIXTRAL,
    name="cross-like",
    blocks=(
        Block(
            24,
            (
                Layer(
                    _PAIR,
                    MLP(16_384, gated=False),
                    cross_attention=replace(_PAIR, causal=False, kv_seq_length=1536),
                    num_norms=3,
                ),
            ),
        ),
    ),
)
"""A decoder that attends to 1,536 tokens of another sequence."""

MODELS = {m.name: m for m in (MIXTRAL, DROPPING, DEEPSEEK, SINKS, HYBRID, SCANS, CROSS)}
