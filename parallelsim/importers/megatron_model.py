"""The model that Megatron-LM's flags describe, and its name where the catalogue has it.

Defaults are Megatron-LM's (``arguments.py``, ``transformer_config.py`` of main, August 2026).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any

from parallelsim.alike import known_as, with_length_of
from parallelsim.errors import SpecError
from parallelsim.exporters.megatron_hybrid import CHUNK_SIZE, CONV_KERNEL, LETTERS
from parallelsim.exporters.megatron_model import (
    ACTIVATION_FLAGS,
    BIAS_FLAGS,
    NORM_FLAGS,
    POSITION_FLAGS,
)
from parallelsim.importers.arguments import Arguments
from parallelsim.importers.megatron_encoders import (
    DECODER_LENGTH,
    bert_edges,
    encoder,
    encoder_decoder,
)
from parallelsim.layers import (
    MLP,
    Attention,
    Block,
    LatentAttention,
    Layer,
    MixtureOfExperts,
    StateSpace,
    SubLayer,
)
from parallelsim.model import ModelSpec

HYBRID_PATTERNS = ("--hybrid-layer-pattern", "--hybrid-override-pattern")
VOCABULARIES = {
    "GPT2BPETokenizer": 50257,
    "BertWordPieceLowerCase": 30522,
    "BertWordPieceCase": 28996,
    "Llama2Tokenizer": 32000,
}
"""Of tokenizers with one published vocabulary (megatron/core/tokenizers/text/libraries)."""
MAX_PERIOD = 16
"""Layers after which a model may repeat itself."""
NAME = "imported"
"""Of a model that the catalogue does not have."""


def hybrid_pattern(arguments: Arguments) -> str:
    """Letters of a hybrid's sub-layers with ``|`` between stages; empty for transformers."""
    return next((arguments.text(flag) for flag in HYBRID_PATTERNS if arguments.text(flag)), "")


def model_from_arguments(arguments: Arguments, *, is_bert: bool = False) -> ModelSpec:
    """The model; one of the catalogue, at the run's sequence length, where the flags agree.

    Args:
        arguments: the flags.
        is_bert: the program that they are for trains an encoder alone.

    Raises:
        SpecError: what is missing, contradicts, or cannot be described.
    """
    layers = list(_hybrid_layers(arguments) if hybrid_pattern(arguments) else _layers(arguments))
    normalization = arguments.choice("--normalization", tuple(NORM_FLAGS.values()), "LayerNorm")
    norm, norm_bias = next(key for key, name in NORM_FLAGS.items() if name == normalization)
    length, edges = _required(arguments, "--seq-length"), dict[str, Any]()
    if is_bert:
        layers, edges = encoder(arguments, layers, None), bert_edges(arguments)
    elif arguments.has(DECODER_LENGTH):
        layers, edges = encoder_decoder(arguments, layers), {"output_bias": True}
        length = arguments.whole(DECODER_LENGTH)
    vocabulary = _vocabulary(arguments)
    model = ModelSpec(
        name=NAME,
        hidden_size=_required(arguments, "--hidden-size"),
        vocab_size=vocabulary or 1,
        seq_length=length,
        max_seq_length=max(arguments.whole("--max-position-embeddings", length), length),
        default_global_batch_tokens=0,
        blocks=_blocks(layers),
        tied_embeddings=not arguments.has("--untie-embeddings-and-output-weights"),
        position_embedding=_positions(arguments),
        rotary_base=arguments.number("--rotary-base", 10_000),
        rotary_percent=arguments.number("--rotary-percent", 1.0),
        norm=norm,
        norm_bias=norm_bias,
        embedding_norm=arguments.has("--embed-layernorm"),
        num_mtp_layers=arguments.whole("--mtp-num-layers"),
        hidden_dropout=arguments.number("--hidden-dropout", 0.1),
        attention_dropout=arguments.number("--attention-dropout", 0.1),
        **edges,
    )
    return _named(arguments, model, has_vocabulary=vocabulary > 0)


def _vocabulary(arguments: Arguments) -> int:
    """Its size as stated, else that of the tokenizer; 0 where that reads it from a file."""
    flags = ("--pad-vocab-size-to", "--vocab-size", "--padded-vocab-size")
    stated = next(filter(None, [arguments.whole(flag) for flag in flags]), 0)
    kind = arguments.text("--tokenizer-type")
    if stated or kind not in VOCABULARIES:
        return stated
    size = VOCABULARIES[kind] + arguments.whole("--vocab-extra-ids")
    arguments.notes.append(f"no --vocab-size: {size}, as {kind} was published")
    return size


def _required(arguments: Arguments, flag: str) -> int:
    value = arguments.whole(flag)
    if not value:
        raise SpecError(f"states no {flag}, which every run needs", file=arguments.file)
    return value


def _positions(arguments: Arguments) -> str:
    names = {flag: name for name, flag in POSITION_FLAGS.items()} | {"alibi": "alibi"}
    flag = "--position-embedding-type"
    name = names[arguments.choice(flag, tuple(names), POSITION_FLAGS["learned"])]
    return "rope" if arguments.has("--use-rotary-position-embeddings") else name


def _activation(arguments: Arguments) -> tuple[bool, str]:
    """(gated, activation)."""
    switches = {flags[0]: key for key, flags in ACTIVATION_FLAGS.items() if flags}
    arguments.conflict(*switches)
    for flags in ACTIVATION_FLAGS.values():
        for flag in flags:
            arguments.has(flag.split()[0])
    arguments.has("--no-bias-gelu-fusion")
    return next((key for flag, key in switches.items() if arguments.has(flag)), (False, "gelu"))


def _biases(arguments: Arguments) -> tuple[bool, bool, bool]:
    """Of (query/key/value, attention output, feed-forward)."""
    bare, qkv = (arguments.has(flag) for flag in ("--disable-bias-linear", "--add-qkv-bias"))
    return next(key for key in BIAS_FLAGS if key == (qkv or not bare, not bare, not bare))


def _layers(arguments: Arguments) -> Iterator[Layer]:
    """Of a transformer."""
    number = _required(arguments, "--num-layers")
    experts = _experts(arguments)
    has_experts = [1] * number if experts else [0] * number
    if experts and arguments.given("--moe-layer-freq") is not None:
        text = arguments.text("--moe-layer-freq")
        if text.isdigit() and int(text):
            has_experts = [int(i % int(text) == 0) for i in range(number)]
        else:
            has_experts = arguments.pattern("--moe-layer-freq", number, 1) or has_experts
    attention, mlp = _attention(arguments), _mlp(arguments)
    turned = arguments.pattern("--no-rope-freq", number, 1) or [0] * number
    windows = arguments.given("--window-size")
    skips = arguments.pattern("--window-attn-skip-freq", number, 0) or [1] * number
    window = int(_first_number(arguments, windows)) + 1 if windows else None
    for i in range(number):
        mixed = attention
        if isinstance(attention, Attention):
            mixed = replace(attention, rope=not turned[i], window=window if skips[i] else None)
        own = experts if has_experts[i] else None
        yield Layer(attention=mixed, mlp=None if own else mlp, experts=own)


def _first_number(arguments: Arguments, values: list[str]) -> str:
    """Of ``127,0``, ``(127, 0)`` or ``127 0``."""
    text = " ".join(values).strip("()").replace(",", " ").split()[:1]
    if not text or not text[0].isdigit():
        raise arguments.error("--window-size", "expected tokens to the left and right, as 127,0")
    return text[0]


def _attention(arguments: Arguments) -> Attention | LatentAttention:
    heads = _required(arguments, "--num-attention-heads")
    hidden = _required(arguments, "--hidden-size")
    width = arguments.whole("--kv-channels", hidden // heads)
    qkv_bias, output_bias, _ = _biases(arguments)
    normed = arguments.has("--qk-layernorm")
    arguments.has("--no-rope-fusion")
    if arguments.has("--multi-latent-attention"):
        return LatentAttention(
            num_heads=heads,
            kv_lora_rank=arguments.whole("--kv-lora-rank", 32),
            qk_nope_head_dim=arguments.whole("--qk-head-dim", 128),
            qk_rope_head_dim=arguments.whole("--qk-pos-emb-head-dim", 64),
            v_head_dim=arguments.whole("--v-head-dim", 128),
            q_lora_rank=arguments.whole("--q-lora-rank") or None,
        )
    grouped = arguments.has("--group-query-attention")
    groups = arguments.whole("--num-query-groups", 1)
    return Attention(
        num_heads=heads,
        num_query_groups=groups if grouped else heads,
        head_dim=width,
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        qk_norm=normed,
        qk_l2_norm=arguments.has("--qk-l2-norm"),
        sinks=arguments.text("--softmax-type") == "learnable",
    )


def _mlp(arguments: Arguments) -> MLP:
    gated, activation = _activation(arguments)
    hidden = _required(arguments, "--hidden-size")
    default = int(4 * hidden * 2 / 3 / 64) * 64 if activation == "silu" else 4 * hidden
    width = arguments.whole("--ffn-hidden-size", default)
    return MLP(width, gated, _biases(arguments)[2], activation)


def _experts(arguments: Arguments) -> MixtureOfExperts | None:
    number = arguments.whole("--num-experts")
    if not number:
        return None
    mlp, given = _mlp(arguments), arguments.whole
    router = arguments.choice("--moe-router-score-function", ("softmax", "sigmoid"), "softmax")
    chooses_before = arguments.has("--moe-router-pre-softmax")
    biased = arguments.has("--moe-router-enable-expert-bias")
    capacity = arguments.number("--moe-expert-capacity-factor", 0) or None
    top_k = given("--moe-router-topk", 2)
    for flag in ("--moe-router-dtype", "--moe-pad-expert-input-to-capacity"):
        arguments.has(flag)
    if mlp.bias:  # grouped experts with biases have no such fusion
        arguments.has("--no-bias-dropout-fusion")
    return MixtureOfExperts(
        num_experts=number,
        top_k=top_k,
        ffn_hidden_size=given("--moe-ffn-hidden-size", mlp.ffn_hidden_size),
        gated=mlp.gated,
        activation=mlp.activation,
        bias=mlp.bias,
        shared_ffn_hidden_size=given("--moe-shared-expert-intermediate-size"),
        shared_gate=arguments.has("--moe-shared-expert-gate"),
        router=router,
        router_bias=biased if router == "sigmoid" else mlp.bias,
        num_groups=given("--moe-router-num-groups", 1),
        group_top_k=given("--moe-router-group-topk", 1),
        capacity_factor=capacity,
        latent_size=given("--moe-latent-size") or None,
        router_pre_softmax=chooses_before and router == "softmax",
        score_scale=arguments.number("--moe-router-topk-scaling-factor", 1.0),
        scales_input=arguments.has("--moe-apply-probs-on-input"),
    )


def _hybrid_layers(arguments: Arguments) -> Iterator[Layer]:
    """One sub-layer a letter."""
    hidden = _required(arguments, "--hidden-size")
    head_dim = arguments.whole("--mamba-head-dim", 64)
    mixer = StateSpace(
        num_heads=arguments.whole("--mamba-num-heads", 2 * hidden // max(head_dim, 1)),
        head_dim=head_dim,
        state_size=arguments.whole("--mamba-state-dim", 128),
        num_groups=arguments.whole("--mamba-num-groups", 8),
        conv_kernel=CONV_KERNEL,
        chunk_size=CHUNK_SIZE,
    )
    for flag in ("--is-hybrid-model", "--num-layers"):
        arguments.has(flag)
    built: dict[type[SubLayer], dict[str, object]] = {
        StateSpace: {"state_space": mixer},
        Attention: {"attention": _attention(arguments)},
        MLP: {"mlp": _mlp(arguments)},
        MixtureOfExperts: {"experts": _experts(arguments)},
    }
    parts = {letter: built[kind] for kind, letter in LETTERS.items()}
    for letter in hybrid_pattern(arguments).replace("|", ""):
        part = parts.get(letter)
        if part is None or None in part.values():
            message = f"cannot describe a layer {letter!r}; known are {', '.join(parts)}"
            raise arguments.error(HYBRID_PATTERNS[0], message)
        yield Layer(num_norms=1, **part)  # type: ignore[arg-type]


def _blocks(layers: list[Layer]) -> tuple[Block, ...]:
    """Runs of equal layers; where there are many, one repeated group of layers if there is one."""
    runs = tuple(Block(len(list(group)), (layer,)) for layer, group in groupby(layers))
    if len(runs) > 4:
        for period in range(2, MAX_PERIOD + 1):
            number, rest = divmod(len(layers), period)
            if rest == 0 and layers == layers[:period] * number:
                return (Block(number, tuple(layers[:period])),)
    return runs


def _named(arguments: Arguments, model: ModelSpec, *, has_vocabulary: bool) -> ModelSpec:
    """The catalogue's model that trains as this one does, else the model itself.

    Raises:
        SpecError: the vocabulary is not stated, and no model of the catalogue is alike.
    """
    closest = known_as(model, has_vocabulary=has_vocabulary)
    names = [known.name for known in closest]
    if not has_vocabulary and len({known.vocab_size for known in closest}) != 1:
        which = " and ".join(names) + " have" if names else "no model of the catalogue has"
        raise SpecError(
            f"states no --vocab-size (its tokenizer has it), and {which} the same layers; name the "
            "model with --model",
            file=arguments.file,
        )
    if not closest:
        return model
    if not has_vocabulary:
        arguments.notes.append(f"no --vocab-size: that of {names[0]}, which has the same layers")
    return with_length_of(closest[0], model)
