"""Low-rank adapters beside frozen matrices (LoRA, arXiv:2106.09685): what they add and spare."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from parallelsim.layers import MixtureOfExperts, SubLayer
from parallelsim.lora import LoRA, matrices
from parallelsim.operators import FloatArray, Gemm
from parallelsim.sublayers.work import Collective, Place, Work

COLUMN_PARALLEL = ("linear_qkv", "linear_fc1")
"""Matrices whose output is split over tp; of the others the input is."""
KEPT_BY_OTHERS = ("linear_proj",)
"""Matrices whose input is kept anyway: flash attention's backward pass needs its own output."""


def adapted(asked: Work, part: SubLayer, lora: LoRA, place: Place) -> Work:
    """The sub-layer with its parameters frozen and adapters of rank r beside the targets.

    Each target [a, b] adds the GEMMs (T, r, a) and (T, b, r), an addition to its output of 6 T b
    bytes forward and one to its input's gradient of 6 T a backward; r (a + b) parameters are
    trained, a or b divided by tp. Dropout of the adapters' input is off by default (Megatron-Bridge
    067f987d peft/lora.py and NeMo's, dropout 0.0): its 5 T a bytes each way cost no time here, but
    memory has room for them. A frozen matrix without adapter needs no input for the backward pass:
    2 T a bytes less are saved, with one 3 T a more, over tp with sequence parallelism. That splits
    tensors that an adapter needs whole: the input beside a column-parallel matrix, unless the
    matrix's own gather returns it, which user buffers do not; the output beside a row-parallel one:
    a gather of 2 T a or 2 T b bytes each, scattered backward (Megatron-Bridge 067f987d
    peft/utils.py). Neglects: gathers of r columns, data-parallel groups of experts' adapters.
    """
    h, shards = place.model.hidden_size, place.keys.sequence_shards
    forward, backward = np.zeros_like(asked.forward_bytes), np.zeros_like(asked.forward_bytes)
    saved, trained = asked.saved_bytes, np.zeros_like(asked.forward_bytes)
    gemms: list[Gemm] = []
    gathers: list[Collective] = []
    whole = np.where(place.keys.sequence_parallel > 0, 2.0 * place.width * place.tokens, 0.0)
    whole_input = np.where(place.keys.tp_comm_overlap > 0, whole, 0.0)
    rank = np.full_like(trained, lora.rank)
    for name, into, out, copies in matrices(part, h):
        split = name in COLUMN_PARALLEL
        share = place.tp if copies == 1 else place.keys.etp.astype(np.float64)
        a = into / (1.0 if split else share) + 0.0 * rank
        b = out / (share if split else 1.0) + 0.0 * rank
        tokens = place.tokens
        if copies > 1 and isinstance(part, MixtureOfExperts):
            tokens = tokens * part.top_k
        kept = a / shards if split else a
        if name in lora.targets:
            gemms += [Gemm(tokens, rank, a), Gemm(tokens, b, rank)]
            if copies == 1:
                moved = whole_input * a if split else whole * b
                gathers.append(Collective("all-gather", moved, "tp"))
            forward = forward + place.width * tokens * 6.0 * b
            backward = backward + place.width * tokens * 6.0 * a
            saved = saved + place.width * tokens * (2.0 * rank + 3.0 * kept)
            local = copies / place.keys.ep if copies > 1 else 1.0
            trained = trained + lora.rank * (a + b) * local
        elif copies == 1 and name not in KEPT_BY_OTHERS:
            saved = saved - 2.0 * place.width * tokens * kept
    return replace(
        asked,
        adapters=tuple(gemms),
        collectives=(*asked.collectives, *gathers),
        trainable_parameters=trained,
        parameters=asked.parameters + trained,
        forward_bytes=asked.forward_bytes + forward,
        backward_bytes=asked.backward_bytes + backward,
        saved_bytes=_not_negative(saved),
    )


def _not_negative(values: FloatArray) -> FloatArray:
    return np.maximum(values, 0.0)
