"""What the training software keeps, fuses, gathers, overlaps, and can run at all.

The fourth input beside model, cluster and plan: the same plan under two frameworks differs by
gigabytes and tens of percent. A framework is data (``frameworks/*.yaml``), never a branch on its
name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SUBLAYERS = (
    "attention",
    "attention-sinks",
    "latent-attention",
    "cross-attention",
    "state-space",
    "selective-scan",
    "mlp",
    "experts",
    "custom",
)
"""Kinds of sub-layers that software may run or not."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the software can run; the search is masked with it and the rules refuse the rest."""

    schedules: tuple[str, ...]
    zero_stages: tuple[int, ...]
    zero_on_request: tuple[int, ...] = field(default=(), kw_only=True)
    """Of these, what a search leaves out unless it is asked for."""
    cp_comm_types: tuple[str, ...]
    """Context-parallel communication: p2p (ring), all-gather, a2a (Ulysses); empty: no context
    parallelism.
    """
    precisions: tuple[str, ...]
    grad_dtypes: tuple[str, ...]
    layouts: tuple[str, ...]
    recomputes: tuple[str, ...]
    """none, selective, full, block (a number of layers for each virtual stage), modules (selective
    of others than the attention core).
    """
    sequence_parallel: bool
    tp_comm_overlap: bool
    """User-buffer overlap of tensor-parallel collectives with GEMMs."""
    overlap_grad_reduce: bool
    overlap_param_gather: bool
    cross_entropy_fusion: bool
    cuda_graphs: bool
    fp8_param_gather: bool
    """Keeps the weights of fp8 GEMMs in fp8 alone, beside sharded fp32 master weights."""
    kv_replication: bool
    """Tensor parallelism above the number of key/value heads replicates them (else it is
    refused).
    """
    min_compute_capability: float
    """CUDA compute capability that the kernels need; 0: any. GPUs without CUDA are not refused."""
    moe_dispatchers: tuple[str, ...] = ()
    """How tokens reach experts; empty: no expert parallelism."""
    expert_tensor_parallel: bool = False
    ep_comm_overlap: bool = False
    """Tokens of one micro-batch travel while another computes."""
    hybrid_sharding: bool = False
    """ZeRO 2 and 3 inside groups of which several replicas exist (dp_replicate > 1)."""
    optimizer_replicas: bool = False
    """ZeRO 1 inside such groups."""
    sharded_stages: bool = False
    """ZeRO 3 inside the stages of a pipeline: parameters are gathered and gradients scattered once
    a step, and both are whole between.
    """
    reshard_choice: bool = False
    """With ZeRO 3, gathered parameters can stay until the backward pass."""
    compile: bool = False
    optimizers: tuple[str, ...] = ("adam",)
    activation_offload: bool = False
    """Saved activations can wait in host memory."""
    optimizer_offload: bool = False
    """A part of the sharded optimizer can live in host memory and step on the CPU."""
    sublayers: tuple[str, ...] = ("attention", "mlp")
    """Kinds of sub-layers that it runs, as far as its file describes them."""


@dataclass(frozen=True, slots=True)
class ComputeFacts:
    """Kernels and fusions."""

    flash_attention: bool
    attention_efficiency: Mapping[str, float]
    """By accelerator architecture: this software's attention kernel over the measured table's."""
    gemm_efficiency: float
    """This software's GEMMs over the accelerator's sustained rate (1 for cuBLAS through
    Transformer Engine).
    """
    memory_bound_efficiency: float
    """Share of memory bandwidth that norms, activations, residuals and RoPE reach."""
    fused_rmsnorm: bool
    fused_softmax: bool
    """Scale, mask and softmax in one kernel; matters only without flash attention."""
    fused_grad_accumulation: bool
    """Weight gradients accumulate inside the GEMM."""
    cross_entropy_passes: float
    """Passes over the fp32 logits, forward and backward."""
    fused_cross_entropy_passes: float
    optimizer_efficiency: float
    """Share of memory bandwidth that the optimizer step reaches."""
    compiled_memory_bound_frac: float = 1.0
    """Time of norms, activations and the like that a compiler leaves."""
    selective_core_frac: float = 1.0
    """Of the forward attention core, run again with recompute = selective."""
    selective_gemm_frac: float = 0.0
    """Of the forward GEMMs."""
    selective_memory_bound_frac: float = 0.0
    """Of the other forward kernels."""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """CPU time that the GPU waits for."""

    overlap_exponent: float
    """p of (gpu^p + cpu^p)^(1/p): large where the slower of the two alone counts."""
    layer_forward_s: float
    """Launching one layer's forward kernels."""
    layer_backward_s: float
    tp_factor: float
    """Added share with tp > 1."""
    cp_factor: float
    """Added share with cp > 1."""
    cuda_graph_factor: float
    """What CUDA graphs leave of it."""
    micro_batch_s: float
    step_s: float
    experts_forward_s: float = 0.0
    """Launching one mixture-of-experts sub-layer's kernels, without those of single experts."""
    experts_backward_s: float = 0.0
    local_expert_s: float = 0.0
    """Added forward for each expert of the rank; twice that backward."""
    dropless_sync_s: float = 0.0
    """The host waits for the number of tokens that each expert gets, once forward."""
    experts_graph_factor: float = 1.0
    """What CUDA graphs leave of the experts' launches."""
    compile_factor: float = 1.0
    """What a compiler leaves of the launches."""


@dataclass(frozen=True, slots=True)
class OverlapFacts:
    """What communication the critical path pays for."""

    tp_exposed: float
    tp_exposed_user_buffers: float
    cp_exposed_floor: float
    """Share of the ring's transfers that is never hidden."""
    p2p_exposed: float
    """Share of the steady state's pipeline transfers that is not hidden, plain 1F1B."""
    p2p_exposed_interleaved: float
    p2p_latency_s: float
    scatter_gather_p2p: bool
    """Stage boundaries send 1/tp of the activations from each rank even without sequence
    parallelism.
    """
    ep_exposed_overlapped: float = field(default=1.0, kw_only=True)
    """Share of the experts' exchange that still shows while another micro-batch computes."""
    zero_all_reduces: bool = field(default=False, kw_only=True)
    """With ZeRO 1 every rank gets the sum of all gradients, not a share of it."""
    dp_overlap_efficiency: float
    """Share of the overlap window that data-parallel collectives can use."""
    dp_exposed_floor: float
    """Share of each data-parallel collective that is never hidden."""
    dp_rank_s: float
    """Seconds that one layer's gradients take for each data-parallel rank, whatever their bytes:
    where every tensor is reduced by a ring of its own, one more step of each. 0 with buckets.
    """
    zero_rank_s: float
    """The same with a sharded optimizer, gradients and parameters together: where tensors are cut
    into a slice for each rank.
    """
    straggler_per_doubling: float
    """Relative slowdown for each doubling of the GPUs beyond 8."""
    straggler_per_doubling_fp8: float
    shard_contention: float = field(default=0.12, kw_only=True)
    """Of overlapped gathers and scatters of layers (ZeRO 2 and 3), what they slow computation by.
    """


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """Bytes that the software keeps."""

    param_bytes: float
    """Resident copy of a parameter for the GEMMs."""
    fp8_weight_bytes: float
    """Cached fp8 weight and its transpose, beside the 16-bit parameter, with an fp8 precision."""
    grad_bytes_fp32: float
    grad_bytes_bf16: float
    master_bytes: float
    """fp32 master weights, beside the 16-bit ones."""
    optimizer_bytes: float
    """Adam's two moments."""
    optimizer_step_bytes_per_param: float
    """Transient of the optimizer step for each resident parameter with ZeRO 1 (not divided by the
    group).
    """
    optimizer_step_bytes_per_owned_param: float = field(default=0.0, kw_only=True)
    """Transient of the optimizer step for each parameter whose optimizer state the rank owns."""
    stage_buffers_kept: bool = field(default=False, kw_only=True)
    """Pipeline stages have buffers of their own for what every micro-batch of a step receives, and
    keep what the micro-batches in flight sent."""
    score_bytes: float = field(default=2.0, kw_only=True)
    """Of each attention score without flash attention: what softmax keeps. Dropout adds 3."""
    unfused_norm_bytes: float
    """fp32 copies that the two eager RMSNorms of a layer keep, for each token and hidden unit;
    none where they are compiled."""
    param_gather_buffer: float
    """ZeRO-3: 16-bit parameters and gradients of whole layers alive at once in the backward pass,
    in layers: two of parameters, the rest gradients (an fp32 copy counts twice)."""
    mlp_bytes_gated: float
    """Saved bytes for each token and ffn unit: 6 with fused SwiGLU, 8 without."""
    mlp_bytes_gated_compiled: float = field(default=0.0, kw_only=True)
    """The same where a compiler fuses the activation; 0: as without."""
    mlp_bytes_plain: float
    fp8_input_bytes: float
    """Of a GEMM input saved for the weight gradient, with an fp8 precision: 1 where it is kept in
    fp8.
    """
    logits_bytes: float
    """Bytes for each token and (sharded) vocabulary entry at the loss."""
    logits_bytes_fused: float
    logits_bytes_sharded: float = field(default=0.0, kw_only=True)
    """The same where tensor parallelism shards the rows and the loss takes other kernels then,
    compiled or not; 0: as without.
    """
    logits_gathered: bool
    """The loss sees whole rows: not divided by tp."""
    gathered_layer_bytes: float = field(default=0.0, kw_only=True)
    """Of each layer, token and hidden unit, in whole tensors around the tensor-parallel collectives
    of sequence parallelism that last until the backward pass; 4 where both gathered inputs are
    kept.
    """
    asynchronous_hidden_bytes: float = field(default=0.0, kw_only=True)
    """Of each token and hidden unit, in blocks that asynchronous collectives of sequence
    parallelism still hold while the host runs ahead: of up to two micro-batches.
    """
    backward_working_set: float
    """Of one layer's saved tensors, transient in backward."""
    fragmentation: float
    """phi: reserved over allocated activations, minus one."""
    eager_hidden_bytes: float = field(default=0.0, kw_only=True)
    """Of each layer, token and hidden unit, what recompute by operators keeps besides without a
    compiler: outputs that the backward pass does not need."""
    selective_outputs_kept: float = field(default=0.0, kw_only=True)
    """With recompute = selective, the share of GEMM outputs that is kept; 0: selective is the
    attention core's recompute, and keeps all else."""
    constant_bytes: float
    """Workspaces, NCCL buffers, CUDA context: on every rank."""
    cuda_graph_bytes: float = 0.0
    """Buffers that CUDA graphs pin for their lifetime, on every rank."""


@dataclass(frozen=True)
class FrameworkSpec:
    """Training software of one era."""

    name: str
    title: str
    calibrated: bool
    """Compared with measured runs; False means that intervals are wider."""
    launches: tuple[str, ...]
    """Export targets that run its plans as they are predicted; the first is the usual one."""
    capabilities: Capabilities
    compute: ComputeFacts
    host: HostFacts
    overlap: OverlapFacts
    memory: MemoryFacts
