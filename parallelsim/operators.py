"""Shapes of operators on one rank, and what the embedding and the head hold.

The operators of each kind of sub-layer are in :mod:`parallelsim.sublayers`. All functions take
:class:`OperatorKeys`, the few plan fields that shapes depend on, as arrays of shape [K], and return
arrays of shape [K]. Nothing here knows a clock; ``compute`` turns shapes into seconds.

Symbols: T = micro_batch_size * seq_length / cp tokens of a rank; sp = tp with sequence parallelism,
else 1; h hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallelsim.layers import Layer
from parallelsim.model import VOCAB_PADDING, ModelSpec
from parallelsim.plan import MODULES, PRECISIONS, RECOMPUTE_MODULES, code

FloatArray = NDArray[np.float64]
FP32 = code("precision", "fp32")
IS_FP8 = np.array([name.startswith(("fp8", "mxfp8", "nvfp4")) for name in PRECISIONS])
"""By precision code: GEMMs run in 8 bits or fewer."""
_SCALED = {"mxfp8": 1 + 1 / 32, "nvfp4": 1 / 2 + 1 / 16}
NARROW_BYTES = np.array([_SCALED.get(name, 1.0) for name in PRECISIONS])
"""By precision code: of an element in 8 bits or fewer, with a byte of scale for each 32 (mxfp8) or
16 (nvfp4) of them (Transformer Engine documentation, low-precision recipes)."""
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
RECOMPUTES_MODULE = {
    module: np.array([False] + [module in some.split("+") for some in RECOMPUTE_MODULES])
    for module in MODULES
}
"""By module: whether it is recomputed, by ``OperatorKeys.selective``."""
P2P, A2A, HYBRID = (code("cp_comm_type", name) for name in ("p2p", "a2a", "a2a+p2p"))


@dataclass(frozen=True, slots=True, eq=False)
class OperatorKeys:
    """Plan fields that decide the shapes on one rank; int64 arrays of shape [K], codes as in
    ``plan``.
    """

    tp: IntArray
    cp: IntArray
    micro_batch_size: IntArray
    sequence_parallel: IntArray
    precision: IntArray
    cp_comm_type: IntArray
    cp_a2a: IntArray
    tp_comm_overlap: IntArray
    cross_entropy_fusion: IntArray
    cuda_graphs: IntArray
    grad_dtype: IntArray
    ep: IntArray
    etp: IntArray
    moe_dispatcher: IntArray
    ep_comm_overlap: IntArray
    compile: IntArray
    selective: IntArray
    """1 + the code of ``recompute_modules`` with recompute = selective, else 0."""

    def recomputes(self, module: str) -> BoolArray:
        """Whether selective recompute runs a part of the layer again."""
        again: BoolArray = RECOMPUTES_MODULE[module][self.selective]
        return again

    @property
    def sequence_shards(self) -> FloatArray:
        """sp: what divides tensors outside the tensor-parallel regions."""
        return np.where(self.sequence_parallel > 0, self.tp, 1).astype(np.float64)

    @property
    def ring(self) -> FloatArray:
        """Ranks, or groups of them, that keys and values travel round: cp for p2p, cp / cp_a2a for
        the hybrid, else 1.
        """
        groups = np.where(self.cp_comm_type == HYBRID, self.cp / self.cp_a2a, 1.0)
        return np.where(self.cp_comm_type == P2P, self.cp, groups).astype(np.float64)

    @property
    def dealt(self) -> FloatArray:
        """Ranks that heads are dealt out to: cp for a2a, cp_a2a for the hybrid, else 1."""
        part = np.where(self.cp_comm_type == HYBRID, self.cp_a2a, 1)
        return np.where(self.cp_comm_type == A2A, self.cp, part).astype(np.float64)

    @property
    def element_bytes(self) -> FloatArray:
        """Bytes of an activation or parameter outside the 8-bit GEMMs: 4 in fp32, else 2."""
        return np.where(self.precision == FP32, 4.0, 2.0)

    def tokens(self, model: ModelSpec, layer: Layer | None = None) -> FloatArray:
        """T, tokens of one micro-batch on one rank; of a layer with a sequence of its own, those
        of that sequence.
        """
        own = layer.seq_length if layer is not None else None
        return self.micro_batch_size * float(own or model.seq_length) / self.cp


class Gemm(NamedTuple):
    """C[m, n] = A[m, k] B[k, n] of the forward pass; one entry for each key."""

    m: FloatArray
    n: FloatArray
    k: FloatArray
    reads: FloatArray | float = 1.0
    """Entries of A that are the same number in memory: those that the windows of a convolution
    share."""


class GroupedGemm(NamedTuple):
    """Products of one shape, those of a rank's experts; one entry for each key."""

    num_products: FloatArray
    m: FloatArray
    n: FloatArray
    k: FloatArray


class AttentionCore(NamedTuple):
    """softmax(Q K^T) V of one layer on one rank."""

    head_dim: float
    """Mean width of the score and value products."""
    flops: FloatArray
    """Forward: 4 d for each query-key pair and head (two products, a multiply and an add each)."""
    query_bytes: FloatArray
    kv_bytes: FloatArray
    """Of keys and values together."""
    output_bytes: FloatArray
    scores: FloatArray
    """Entries of the score matrix that an unfused implementation stores."""
    local_seq_length: FloatArray
    """Tokens of a sequence that the rank holds."""
    seq_length: int
    """Tokens of a whole sequence."""

    @property
    def io_bytes(self) -> FloatArray:
        """Q, K, V read and the output written."""
        return self.query_bytes + self.kv_bytes + self.output_bytes


def rank_vocab(model: ModelSpec, tp: IntArray) -> FloatArray:
    """Rows of the padded vocabulary on one rank, V / tp."""
    multiple = VOCAB_PADDING * tp
    return (-(-model.vocab_size // multiple) * multiple / tp).astype(np.float64)


def rank_embedding_parameters(model: ModelSpec, keys: OperatorKeys) -> FloatArray:
    """Embedding on the first stage: vocabulary rows over tp, positions and token types on every
    rank; without those of input operators.
    """
    replicated = model.embedding_parameters() - model.vocab_size * model.hidden_size
    if model.input_operators:
        replicated -= model.input_operators.num_parameters(model.hidden_size)
    return rank_vocab(model, keys.tp) * model.hidden_size + replicated


def rank_head_parameters(model: ModelSpec, keys: OperatorKeys) -> tuple[FloatArray, FloatArray]:
    """(output matrix over tp, final norm and other replicated parameters of the head) on the last
    stage.

    The output matrix is counted whether tied or not: with pp > 1 a tied embedding exists on both
    stages. Without output operators.
    """
    tied = 0 if model.tied_embeddings else model.vocab_size * model.hidden_size
    if model.output_operators:
        tied += model.output_operators.num_parameters(model.hidden_size)
    replicated = np.full(len(keys.tp), float(model.head_parameters() - tied))
    return rank_vocab(model, keys.tp) * model.hidden_size, replicated


def distinct_copies(places: FloatArray, copies: float) -> FloatArray:
    """Different ones of n places that K random choices hit: n (1 - (1 - 1/n)^K)."""
    hit: FloatArray = places * (1 - (1 - 1 / places) ** copies)
    return hit
