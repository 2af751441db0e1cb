"""Models that train alike: the same layers under whatever name."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from parallelsim.catalog import load_model, model_names
from parallelsim.layers import Attention, Layer
from parallelsim.model import ModelSpec


def known_as(model: ModelSpec, *, has_vocabulary: bool = True) -> list[ModelSpec]:
    """The models of the catalogue that train as this one does; those with its base of RoPE where
    there are such, and first those for sequences as long as its.
    """
    alike = [known for known in _catalogue() if are_alike(known, model, has_vocabulary)]
    alike.sort(key=lambda known: known.max_seq_length < model.seq_length)
    return [known for known in alike if known.rotary_base == model.rotary_base] or alike


def with_length_of(known: ModelSpec, model: ModelSpec) -> ModelSpec:
    """A model at the sequence length of another one, with its dropout."""
    return replace(
        known,
        seq_length=model.seq_length,
        max_seq_length=max(known.max_seq_length, model.max_seq_length),
        hidden_dropout=model.hidden_dropout,
        attention_dropout=model.attention_dropout,
    )


def are_alike(known: ModelSpec, model: ModelSpec, has_vocabulary: bool = True) -> bool:
    """Predictions read the same of both.

    A tokenizer may add a token for the end to the vocabulary that is stated.
    """
    same = known.hidden_size == model.hidden_size and _essence(known, model) == _essence(model)
    return same and (not has_vocabulary or known.vocab_size - model.vocab_size in (0, 1))


@cache
def _catalogue() -> tuple[ModelSpec, ...]:
    return tuple(load_model(name) for name in model_names())


def _essence(model: ModelSpec, at: ModelSpec | None = None) -> tuple[object, ...]:
    """What predictions read of a model, but for its vocabulary; at the sequence length of ``at``.

    Left out: what only exports read, and what flags do not say (how unevenly experts are loaded).
    """
    length = (at or model).seq_length
    table = model.max_seq_length if model.position_embedding == "learned" else 0
    layers = tuple(_bare(layer, length) for layer in model.layers)
    kinds = (model.norm, model.norm_bias, model.tied_embeddings, model.num_mtp_layers)
    others = (model.embedding_norm, model.head_transform, model.output_bias, model.num_token_types)
    edges = (model.input_operators, model.output_operators, model.lora, model.final_norm)
    return (model.hidden_size, table, layers, kinds, others, edges)


def _bare(layer: Layer, length: int) -> Layer:
    attention, experts = layer.attention, layer.experts
    if isinstance(attention, Attention):
        window = attention.window if attention.window and attention.window < length else None
        chunked = attention.chunked and window is not None
        attention = replace(attention, rope=True, qk_l2_norm=False, window=window, chunked=chunked)
    if experts:
        experts = replace(experts, router_pre_softmax=False, score_scale=1.0, scales_input=False)
        experts = replace(experts, load_cv=0.0, load_quantile=0.5)
    return replace(layer, attention=attention, experts=experts)
