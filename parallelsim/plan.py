"""How it is trained: one :class:`Plan`; many are a :class:`~parallelsim.plan_batch.PlanBatch`.

The field names are Megatron's where Megatron has one. A plan holds whatever changes time or
memory, so that the launched run is the predicted run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallelsim.errors import PlanError, none_of

IntArray = NDArray[np.int64]

SCHEDULES = (
    "none",
    "1f1b",
    "interleaved-1f1b",
    "gpipe",
    "pipedream-2bw",
    "breadth-first",
    "chimera",
    "hanayo",
    "zb-h1",
    "zb-h2",
    "zb-v",
    "v-half",
    "v-min",
    "dualpipe",
    "dualpipe-v",
)
"""Pipeline schedules; ``none`` where pp = 1. Described in :mod:`parallelsim.timeline.schedules`."""

ASYNCHRONOUS = ("pipedream-2bw",)
"""Schedules that change the training: weights lag by a step. Never ranked among the others."""

UNSYNCHRONIZED = ("zb-h2",)
"""Schedules published without a barrier between steps: a rank starts the next one when it has
ended its own, and the gradient norm is checked afterwards (arXiv:2401.10241 section 4)."""

WAVES = ("hanayo", "zb-v", "v-half", "v-min", "dualpipe-v")
"""Schedules whose chunks go down the ranks and up again: the first rank holds both ends."""

TWO_WAY = ("chimera", "dualpipe")
"""Schedules with two copies of the model in opposite directions."""

LAYOUTS = ("even", "embedding", "loss", "embedding-loss", "first-last", "free")
"""How layers are cut into stages: evenly; with the embedding, the loss or both counted as a layer;
with the number of layers of the first and last stage given and the rest even; or with that of every
chunk given."""

RECOMPUTES = ("none", "selective", "full")

MODULES = ("core_attn", "layernorm", "mla_up_proj", "mlp", "moe_act")
"""Parts of a layer that selective recompute can run again: the attention core, the norms, latent
attention's up projections, the dense MLP, the experts' activation (Megatron's names)."""

RECOMPUTE_MODULES = tuple(
    "+".join(some) for count in range(1, len(MODULES) + 1) for some in combinations(MODULES, count)
)
"""Every choice of them, joined by ``+`` in that order."""

PRECISIONS = (
    "fp32",
    "bf16",
    "fp16",
    "fp8-delayed",
    "fp8-current",
    "fp8-blockwise",
    "mxfp8",
    "nvfp4",
)

GRAD_DTYPES = ("fp32", "bf16")

CP_COMM_TYPES = ("p2p", "all-gather", "a2a", "a2a+p2p")
"""Ring of keys and values, gathered keys and values, heads dealt out (Ulysses), and the hybrid:
heads dealt out inside groups of cp_a2a ranks, a ring over the groups (arXiv:2405.07719)."""

MOE_DISPATCHERS = ("all-to-all", "all-gather", "deepep")
"""How tokens reach their experts: NCCL all-to-all; every rank gathers all tokens; kernels that send
a token to each node once (DeepEP, HybridEP)."""

OPTIMIZERS = ("adam", "adam-bf16", "adam-8bit", "muon", "sgd")
"""What the optimizer keeps for a parameter beside its fp32 master copy: two moments in fp32, 16 or
8 bits (Adam); one momentum (SGD; Muon, which keeps Adam's two for embedding and head)."""

CHOICES: Mapping[str, tuple[str, ...]] = {
    "schedule": SCHEDULES,
    "layout": LAYOUTS,
    "recompute": RECOMPUTES,
    "recompute_modules": RECOMPUTE_MODULES,
    "precision": PRECISIONS,
    "grad_dtype": GRAD_DTYPES,
    "cp_comm_type": CP_COMM_TYPES,
    "moe_dispatcher": MOE_DISPATCHERS,
    "optimizer": OPTIMIZERS,
}
"""Fields that are names in a :class:`Plan` and codes (positions here) in a :class:`PlanBatch`."""

MAX_DEGREE = 2**31
"""No field may exceed this: products of a few degrees stay far inside int64."""

MAX_CHUNKS = 4096
"""Chunks of which a plan may name the layers."""

Cuts = tuple[tuple[int, ...], ...]
"""The distinct ``chunk_layers`` of a batch, ascending; the first is the empty one."""

NO_CUTS: Cuts = ((),)


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to run the training step. All fields are checked by :meth:`validate`."""

    tp: int = 1
    """Tensor-parallel ranks."""
    cp: int = 1
    """Context-parallel ranks: each holds seq_length / cp tokens."""
    pp: int = 1
    """Pipeline stages (ranks)."""
    vpp: int = 1
    """Virtual stages (chunks) of each pipeline rank."""
    dp: int = 1
    """Data-parallel replicas, without cp."""
    ep: int = 1
    """Ranks that a layer's experts are dealt to; they may span tp, cp and dp."""
    etp: int = 1
    """Tensor-parallel ranks of one expert."""
    micro_batch_size: int = 1
    """Sequences of one micro-batch."""
    global_batch_size: int = 1
    """Sequences of one optimizer step."""
    schedule: str = "none"
    layout: str = "even"
    first_stage_layers: int = 0
    """Layers of the first stage with layout ``first-last``, else 0."""
    last_stage_layers: int = 0
    chunk_layers: tuple[int, ...] = ()
    """Layers of each of the pp * vpp chunks in the order of the model with layout ``free``, else
    empty. Chunk k * pp + s is virtual stage k of rank s."""
    sequence_parallel: bool = False
    zero: int = 0
    """0: all replicated; 1: optimizer sharded over dp * cp; 2: gradients too; 3: parameters too."""
    recompute: str = "none"
    recompute_num_layers: int = 0
    """With ``full``: layers recomputed in each virtual stage; 0 means all of them."""
    recompute_modules: str = "core_attn"
    """With ``selective``: what is recomputed, one of ``RECOMPUTE_MODULES``."""
    precision: str = "bf16"
    grad_dtype: str = "fp32"
    """Format in which gradients are accumulated and reduced."""
    cp_comm_type: str = "p2p"
    cp_a2a: int = 1
    """With ``a2a+p2p``: neighbouring context-parallel ranks that deal out heads among them."""
    tp_comm_overlap: bool = False
    """User-buffer overlap of tensor-parallel collectives with the GEMMs."""
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    cross_entropy_fusion: bool = False
    cuda_graphs: bool = False
    moe_dispatcher: str = "all-to-all"
    ep_comm_overlap: bool = False
    """Tokens of one micro-batch travel to their experts while another one computes."""
    fp8_param_gather: bool = False
    """Weights of the fp8 GEMMs are kept in fp8 alone, without a 16-bit copy, and gathered so."""
    dp_replicate: int = 1
    """Replicas of the groups that states are sharded over (HSDP; with zero 1 Megatron's optimizer
    instances): a group has dp * cp / dp_replicate ranks."""
    reshard_after_forward: bool = True
    """With zero 3: gathered parameters are freed after the forward pass and gathered again."""
    compile: bool = False
    """Layers run through a compiler that fuses their memory-bound kernels (torch.compile)."""
    optimizer: str = "adam"
    activation_offload_pct: int = 0
    """Percent of the saved activations that wait in host memory between forward and backward."""
    optimizer_offload_pct: int = 0
    """Percent of the sharded optimizer (master weights, moments) that lives in host memory and
    steps on the CPU."""

    @property
    def num_gpus(self) -> int:
        """Tp * cp * pp * dp."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches that each pipeline runs in a step."""
        return self.global_batch_size // (self.micro_batch_size * self.dp)

    @property
    def recompute_label(self) -> str:
        """``none``, ``selective``, ``full`` or ``full:N``, as it is written in files."""
        return f"full:{self.recompute_num_layers}" if self.recompute_num_layers else self.recompute

    def validate(self) -> Plan:
        """Return the plan itself if every field has its type and range.

        Raises:
            PlanError: the first field that has not, with what was expected.
        """
        for field in fields(self):
            check_field(field.name, getattr(self, field.name))
        if self.recompute_num_layers and self.recompute != "full":
            raise PlanError(
                f"recompute_num_layers={self.recompute_num_layers} needs recompute=full"
            )
        if self.recompute_modules != MODULES[0] and self.recompute != "selective":
            raise PlanError(f"recompute_modules={self.recompute_modules} needs recompute=selective")
        self._check_chunks()
        return self

    def _check_chunks(self) -> None:
        given, chunks = len(self.chunk_layers), self.pp * self.vpp
        if (self.layout == "free") != (given > 0):
            what = "lists the layers of every chunk" if given else "is empty"
            raise PlanError(
                f"layout {self.layout}, but chunk_layers {what}; give both layout=free and "
                "chunk_layers, or neither"
            )
        if given and given != chunks:
            raise PlanError(
                f"chunk_layers must list pp * vpp = {self.pp} * {self.vpp} = {chunks} chunks, "
                f"got {given}"
            )

    def to_dict(self) -> dict[str, int | bool | str | list[int]]:
        """Every field under its name; ``recompute`` as ``full:N`` where N layers are recomputed."""
        data = {field.name: getattr(self, field.name) for field in fields(self)}
        data["chunk_layers"] = list(self.chunk_layers)
        data["recompute"] = self.recompute_label
        del data["recompute_num_layers"]
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Plan:
        """A validated plan from :meth:`to_dict`'s form; missing fields take their defaults.

        ``schedule`` may be left out: it follows from pp and vpp.

        Raises:
            PlanError: unknown fields, wrong types, values out of range.
        """
        values = dict(data)
        unknown = sorted(str(key) for key in values if key not in FIELD_TYPES)
        if unknown:
            raise PlanError(
                f"unknown plan field {unknown[0][:80]!r}; the fields are {', '.join(FIELD_TYPES)}"
            )
        if "recompute" in values:
            name, layers = parse_recompute(values["recompute"])
            values["recompute"] = name
            if layers:
                values["recompute_num_layers"] = layers
        if isinstance(values.get("chunk_layers"), list):
            values["chunk_layers"] = tuple(values["chunk_layers"])
        if "schedule" not in values:
            pp, vpp = values.get("pp", 1), values.get("vpp", 1)
            values["schedule"] = "none" if pp == 1 else "1f1b" if vpp == 1 else "interleaved-1f1b"
        return cls(**values).validate()


FIELD_TYPES: dict[str, type] = {
    field.name: {"int": int, "bool": bool, "str": str, "tuple[int, ...]": tuple}[str(field.type)]
    for field in fields(Plan)
}
"""Type of every plan field."""

PLAN_FIELDS: tuple[str, ...] = tuple(FIELD_TYPES)
"""Names of all plan fields, in order: the tie-break order of rankings."""

_ZERO_ALLOWED = frozenset(
    {
        "first_stage_layers",
        "last_stage_layers",
        "recompute_num_layers",
        "zero",
        "activation_offload_pct",
        "optimizer_offload_pct",
    }
)


def parse_recompute(text: object) -> tuple[str, int]:
    """``full:N`` -> ("full", N); the other names come back with 0.

    Raises:
        PlanError: anything else.
    """
    if isinstance(text, str):
        if text in RECOMPUTES:
            return text, 0
        match = re.fullmatch(r"full:([1-9][0-9]{0,8})", text)
        if match:
            return "full", int(match[1])
    raise PlanError(f"recompute must be none, selective, full or full:N, got {str(text)[:80]!r}")


def check_field(name: str, value: object) -> None:
    """Check one field of a plan alone.

    Raises:
        PlanError: its type or range is wrong, with what was expected.
    """
    kind = FIELD_TYPES[name]
    if kind is int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise PlanError(f"{name} must be a whole number, got {str(value)[:80]!r}")
        low = 0 if name in _ZERO_ALLOWED else 1
        high = 3 if name == "zero" else 100 if name.endswith("_pct") else MAX_DEGREE
        if not low <= value <= high:
            bounded = high < MAX_DEGREE or value > high
            expected = f"between {low} and {high}" if bounded else f"at least {low}"
            raise PlanError(f"{name} must be {expected}, got {str(value)[:80]}")
    elif kind is bool:
        if not isinstance(value, bool):
            raise PlanError(f"{name} must be true or false, got {str(value)[:80]!r}")
    elif name == "recompute_modules" and value not in RECOMPUTE_MODULES:
        raise PlanError(
            f"recompute_modules must be some of {', '.join(MODULES)} in this order, joined by +, "
            f"got {str(value)[:80]!r}"
        )
    elif kind is tuple:
        _check_list(name, value)
    elif value not in CHOICES[name]:
        raise PlanError(none_of(name, value, CHOICES[name]))


def _check_list(name: str, value: object) -> None:
    if not isinstance(value, tuple):
        raise PlanError(f"{name} must be a list of whole numbers, got {str(value)[:80]!r}")
    if len(value) > MAX_CHUNKS:
        raise PlanError(f"{name} may list at most {MAX_CHUNKS} chunks, got {len(value)}")
    for number in value:
        if not isinstance(number, int) or isinstance(number, bool):
            raise PlanError(f"{name} must list whole numbers, got {str(number)[:80]!r}")
        if not 0 <= number <= MAX_DEGREE:
            raise PlanError(f"{name} must list numbers from 0, got {str(number)[:80]}")


def code(name: str, value: str) -> int:
    """The code of a named value: ``code("schedule", "1f1b")`` is 1."""
    return CHOICES[name].index(value)
