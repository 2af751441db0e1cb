"""Layers of an uneven pipeline: how training software cuts them, expressed in a plan's layouts."""

from __future__ import annotations

from typing import Any

from parallelsim.errors import SpecError
from parallelsim.layers import Attention
from parallelsim.model import ModelSpec


def stage_split(model: ModelSpec, pp: int, vpp: int, split: str) -> dict[str, Any]:
    """``layout``, ``first_stage_layers`` and ``last_stage_layers`` of a plan.

    ``even``: equal stages; else embedding and loss each in a layer's place where that divides; else
    the remainder on the last stage. ``balanced``: layers moved from the last stage until the
    slowest is fastest. ``by-cost``: filled in order, each up to its share of the cumulative cost.

    Unequal middle stages are the average in the plan: only the first and last are kept as they are.

    Raises:
        SpecError: an unknown way to split, or fewer layers than stages.
    """
    layers = model.num_layers
    if pp == 1:
        return {"layout": "even"}
    if layers < pp:
        raise SpecError(f"{layers} layers do not fill {pp} stages")
    if split == "by-cost":
        return _first_last(by_cost(model, pp))
    if split == "balanced":
        return _first_last(balanced(model, pp))
    if split != "even":
        raise SpecError(f"unknown layer_split {split[:40]!r}; expected even or balanced")
    if layers % (pp * vpp) == 0:
        return {"layout": "even"}
    if (layers + 2) % (pp * vpp) == 0:
        return {"layout": "embedding-loss"}
    if layers % pp == 0:
        return {"layout": "even"}
    slots = vpp * -(-(layers + 2 + model.num_mtp_layers) // (pp * vpp))
    last = layers - (slots - vpp) - slots * (pp - 2)
    if vpp > 1 and pp > 1 and 0 < last <= slots:
        return _first_last([slots - vpp] + [slots] * (pp - 2) + [last])
    most = -(-layers // pp)
    if layers - most * (pp - 1) < 1:
        most = layers // pp
    return _first_last([most] * (pp - 1) + [layers - most * (pp - 1)])


def layer_and_head_cost(model: ModelSpec) -> tuple[float, float]:
    """Multiply-adds for each token of a layer's matrices and of the output matrix."""
    h = model.hidden_size
    weights = [
        count * sum(part.gemm_weights(h) for part in layer.sublayers)
        for layer, count in model.layer_kinds
    ]
    return sum(weights) / model.num_layers, float(h) * model.vocab_size


def by_cost(model: ModelSpec, pp: int) -> list[int]:
    """Layers of each stage where a stage closes once the cumulative cost exceeds its share.

    Source: nanotron src/nanotron/models/base.py build_model; costs are 4 heads d h + 3 f h for a
    layer (whatever the key/value heads) and V h for the output matrix, models/llama.py
    get_block_compute_costs.
    """
    h, first = model.hidden_size, model.layers[0]
    if not isinstance(first.attention, Attention) or first.mlp is None:
        raise SpecError("stages by cost are known for plain transformers alone", key="layer_split")
    layer = 4.0 * first.attention.query_width * h + 3.0 * first.mlp.ffn_hidden_size * h
    total = model.num_layers * layer + float(h) * model.vocab_size
    counts, stage, cumulative = [0] * pp, 0, 0.0
    for _ in range(model.num_layers):
        counts[stage] += 1
        cumulative += layer
        if cumulative > total * (stage + 1) / pp and stage < pp - 1:
            stage += 1
    return counts


def balanced(model: ModelSpec, pp: int) -> list[int]:
    """Layers of each stage where the costliest stage, output matrix included, costs least.

    Left-over layers go to late stages, which hold fewer micro-batches.
    """
    layer, head = layer_and_head_cost(model)
    layers = model.num_layers

    def costliest(last: int) -> float:
        return max(-(-(layers - last) // (pp - 1)) * layer, last * layer + head)

    last = min(range(layers - pp + 2), key=costliest)
    each, extra = divmod(layers - last, pp - 1)
    return [each + (stage >= pp - 1 - extra) for stage in range(pp - 1)] + [last]


def _first_last(counts: list[int]) -> dict[str, Any]:
    """The plan's fields for these stages; even ones need none."""
    if len(set(counts)) == 1:
        return {"layout": "even"}
    return {
        "layout": "first-last",
        "first_stage_layers": counts[0],
        "last_stage_layers": counts[-1],
    }
