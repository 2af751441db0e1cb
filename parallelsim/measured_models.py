"""The model of a measured run, from the facts of its row."""

from __future__ import annotations

import re
from dataclasses import replace

from parallelsim.catalog import load_model, model_names
from parallelsim.layers import (
    MLP,
    Attention,
    Block,
    LatentAttention,
    Layer,
    MixtureOfExperts,
)
from parallelsim.lora import LoRA
from parallelsim.measured_text import adapts_row_parallel, drops_tokens
from parallelsim.measurements import Facts, RowError
from parallelsim.model import ModelSpec
from parallelsim.run_defaults import RunDefaults

GPT2_VOCAB_SIZE = 50_257
"""Rows of the GPT-2 tokenizer, Megatron's default for GPT models (GPT2BPETokenizer)."""
RECENT_VOCAB_SIZE = 128_256
"""Rows of the Llama 3 tokenizer, for mixtures of experts whose source states none."""
ADAPTERS = LoRA(16, ("linear_qkv",))
"""Of runs that do not state them: NVIDIA's recipes adapt linear_qkv alone (Megatron-Bridge 067f987d
perf_recipes/llama; NeMo 2 finetune_recipe with performance_mode)."""
OF_ATTENTION = LoRA(16, ("linear_qkv", "linear_proj"))
"""Of runs whose adapters exchange by all-to-all, beside a row-parallel matrix: MLPerf's fine-tuning
of Llama-2-70B (NeMo 8cfedd72 scripts/performance/llm/mlperf_lora_llama2_70b.py)."""
EXAMPLE_TOKENS = 200
"""Mean length of a SQuAD example (question, context and answer), which NeMo's fine-tuning recipes
pack into sequences (NeMo packed_sequence.py; arXiv:1606.05250)."""
NEEDED = ("hidden_size", "num_attention_heads", "ffn_hidden_size", "vocab_size", "gated_mlp")
"""Cells without which a dense model is not known."""
_PACKED = re.compile(r"\b(?:packed|finetuning)\b", re.I)
_SIZE = re.compile(r"\b(\w+)\s*=\s*(\d+)")
_ALTERNATE = re.compile(r"(\d+) on alternate layers")


def measured_model(facts: Facts, defaults: RunDefaults, assumed: list[str]) -> ModelSpec:
    """The model, whose experts take their even share alone where the row drops tokens.

    Raises:
        RowError: a size that is needed is missing or of a kind that no formula covers.
        SpecError: sizes that contradict each other.
    """
    model = _stated_model(facts, defaults, assumed)
    if not (model.has_experts and drops_tokens(facts)):
        return model
    return replace(model, blocks=tuple(_with_capacity(block) for block in model.blocks))


def _with_capacity(block: Block) -> Block:
    return replace(block, layers=tuple(_capped(layer) for layer in block.layers))


def _capped(layer: Layer) -> Layer:
    if layer.experts is None:
        return layer
    return replace(layer, experts=replace(layer.experts, capacity_factor=1.0))


def _stated_model(facts: Facts, defaults: RunDefaults, assumed: list[str]) -> ModelSpec:
    """The model; what the row leaves out is appended to ``assumed`` as ``name=value``.

    Raises:
        RowError: a size that is needed is missing or of a kind that no formula covers.
        SpecError: sizes that contradict each other.
    """
    if (published := _published(facts)) is not None:
        return published
    gated = facts.switch("gated_mlp")
    if gated is None:
        raise RowError("gated_mlp is not stated")
    vocab = facts.count("vocab_size")
    if vocab is None:
        if gated and not _has_experts(facts):
            raise RowError("vocab_size is not stated")
        vocab = RECENT_VOCAB_SIZE if gated else GPT2_VOCAB_SIZE
        assumed.append(f"vocab_size={vocab}")
    tied = facts.switch("tied_embeddings")
    if tied is None:
        tied = not gated
        assumed.append(f"tied_embeddings={tied}")
    dropout = 0.0 if gated else defaults.dropout
    seq_length = facts.required("seq_length")
    return ModelSpec(
        name=facts.text("model")[:80] or "model",
        hidden_size=facts.required("hidden_size"),
        vocab_size=vocab,
        seq_length=seq_length,
        max_seq_length=seq_length,
        default_global_batch_tokens=0,
        blocks=_blocks(facts, gated),
        tied_embeddings=tied,
        position_embedding="rope" if gated else defaults.plain_positions,
        norm="rmsnorm" if gated else "layernorm",
        norm_bias=not gated,
        num_mtp_layers=facts.count_or_zero("mtp_layers"),
        hidden_dropout=dropout,
        attention_dropout=dropout,
    )


def fine_tuned(model: ModelSpec, facts: Facts, assumed: list[str]) -> ModelSpec:
    """The model as a fine-tuning run trains it: packed short examples, adapters; else itself."""
    task = facts.word("task")
    if task in ("sft", "lora") and _PACKED.search(facts.text("notes")):
        assumed.append(f"examples of {EXAMPLE_TOKENS} tokens, packed")
        model = replace(model, blocks=tuple(_packed(block) for block in model.blocks))
    if task != "lora":
        return model
    adapters = OF_ATTENTION if adapts_row_parallel(facts) else ADAPTERS
    assumed.append(f"lora_rank={adapters.rank}, lora_targets={'+'.join(adapters.targets)}")
    return replace(model, lora=adapters)


def _packed(block: Block) -> Block:
    """Packed examples of n tokens score as many pairs as a causal window of n / 2."""
    layers = []
    for layer in block.layers:
        if isinstance(layer.attention, Attention):
            attention = replace(layer.attention, window=EXAMPLE_TOKENS // 2)
            layer = replace(layer, attention=attention)
        layers.append(layer)
    return replace(block, layers=tuple(layers))


def _published(facts: Facts) -> ModelSpec | None:
    """The catalogue's model that the row names, where no stated size contradicts it.

    Of mixtures of experts rows name what no column holds (interleaved dense layers, sinks, biases,
    multi-token prediction); of other models the name counts where a size is left out.
    """
    is_mixture = bool(facts.feature("moe_top_k"))
    if not is_mixture and all(facts.text(name) for name in NEEDED):
        return None
    stated = _letters(facts.text("model"))
    names = [name for name in model_names() if stated.startswith(_letters(name))]
    if not names:
        return None
    model = load_model(max(names, key=len))
    if model.has_experts != is_mixture or any(
        facts.text(name) and facts.count(name) != value for name, value in _sizes(model).items()
    ):
        return None
    model = replace(model, max_seq_length=max(model.max_seq_length, facts.required("seq_length")))
    return model.with_seq_length(facts.required("seq_length"))


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _sizes(model: ModelSpec) -> dict[str, int]:
    """Sizes by the names of their columns: of the model, and of its first attention and experts."""
    sizes = {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "vocab_size": model.vocab_size,
    }
    layers = model.layers
    attention = next((a for layer in layers if isinstance(a := layer.attention, Attention)), None)
    if attention is not None:
        sizes["num_attention_heads"] = attention.num_heads
    if (mlp := next((layer.mlp for layer in layers if layer.mlp), None)) and not model.has_experts:
        sizes["ffn_hidden_size"] = mlp.ffn_hidden_size
    if experts := next((layer.experts for layer in layers if layer.experts), None):
        sizes["num_experts"] = experts.num_experts
        sizes["moe_top_k"] = experts.top_k
        sizes["moe_ffn_hidden_size"] = experts.ffn_hidden_size
    return sizes


def is_gated(model: ModelSpec) -> bool:
    """The model's feed-forward networks are gated."""
    parts = [part for layer, _ in model.layer_kinds for part in (layer.mlp, layer.experts) if part]
    return all(part.gated for part in parts)


def _has_experts(facts: Facts) -> bool:
    return bool(facts.feature("num_experts"))


def _blocks(facts: Facts, gated: bool) -> tuple[Block, ...]:
    """Dense layers, then mixtures of experts where the row has experts."""
    num_layers, attentions = facts.required("num_layers"), _attentions(facts)
    if not _has_experts(facts):
        if (facts.count("ep", 1) or 1) > 1:
            raise RowError("num_experts is not stated, but ep is above 1")
        mlp = MLP(facts.required("ffn_hidden_size"), gated)
        return (_block(num_layers, [Layer(a, mlp) for a in attentions]),)
    width = facts.count("moe_ffn_hidden_size") or facts.required("ffn_hidden_size")
    experts = MixtureOfExperts(
        num_experts=facts.required("num_experts"),
        top_k=facts.required("moe_top_k"),
        ffn_hidden_size=width,
        gated=gated,
        shared_ffn_hidden_size=facts.count_or_zero("num_shared_experts") * width,
    )
    dense = facts.count_or_zero("first_dense_layers")
    if dense >= num_layers:
        raise RowError(f"first_dense_layers={dense} of {num_layers} layers leaves no experts")
    mixed = _block(num_layers - dense, [Layer(a, experts=experts) for a in attentions])
    if not dense:
        return (mixed,)
    mlp = MLP(facts.required("ffn_hidden_size"), gated)
    return _block(dense, [Layer(attentions[0], mlp)]), mixed


def _block(num_layers: int, pattern: list[Layer]) -> Block:
    if num_layers % len(pattern):
        raise RowError(f"{num_layers} layers are no multiple of a pattern of {len(pattern)}")
    return Block(num_layers // len(pattern), tuple(pattern))


def _attentions(facts: Facts) -> list[Attention | LatentAttention]:
    """The attention of each layer of the repeated pattern."""
    heads = facts.required("num_attention_heads")
    if facts.feature("mla"):
        return [_latent_attention(facts.text("mla"), heads)]
    window = facts.feature("sliding_window")
    groups = facts.count("num_query_groups", heads) or heads
    head_dim = facts.count("head_dim") or facts.required("hidden_size") // heads
    full = Attention(heads, groups, head_dim)
    if not window:
        return [full]
    if window.isdecimal():
        return [Attention(heads, groups, head_dim, window=int(window))]
    match = _ALTERNATE.fullmatch(window)
    if match is None:
        raise RowError(f"not supported yet: sliding window {window[:40]!r}")
    return [Attention(heads, groups, head_dim, window=int(match[1])), full]


def _latent_attention(text: str, heads: int) -> LatentAttention:
    """From ``q_lora_rank=1536;kv_lora_rank=512;...``."""
    sizes = {name: int(value) for name, value in _SIZE.findall(text)}
    needed = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    missing = [name for name in needed if name not in sizes]
    if missing:
        raise RowError(f"{missing[0]} of the multi-head latent attention is not stated")
    return LatentAttention(
        heads,
        kv_lora_rank=sizes["kv_lora_rank"],
        qk_nope_head_dim=sizes["qk_nope_head_dim"],
        qk_rope_head_dim=sizes["qk_rope_head_dim"],
        v_head_dim=sizes["v_head_dim"],
        q_lora_rank=sizes.get("q_lora_rank"),
    )
