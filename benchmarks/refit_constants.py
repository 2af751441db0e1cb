"""The constants that runs may move, each with a prior that knows no run.

Priors come from physics, data sheets, kernel counts and measurements of single kernels. Constants
that measured tables of GEMMs, attention and collectives determine (shapes, saturation, curves) are
not here: no training run was used for them. Widths are standard deviations of the log.
"""

from __future__ import annotations

from refit_model import Constant

BY_FRAMEWORK = "framework"
BY_ACCELERATOR = "accelerator"
BY_ARCHITECTURE = "architecture"
BY_KERNELS = "kernels"

FLASH_1_OVER_2, FLASH_2_OVER_3 = 0.60, 0.57
"""Kernels of FlashAttention over those of the next generation, on A100 (arXiv:2307.08691) and on
H100 (arXiv:2407.08608: 1.5 to 2.0 times slower)."""

COMPUTE = (
    Constant(
        "sustained efficiency",
        ("cluster.accelerator.sustained_efficiency",),
        prior=0.90,
        width=0.05,
        varies=((BY_ARCHITECTURE, 0.06), (BY_ACCELERATOR, 0.04)),
        upper=1.05,
        why="clocks under a power limit over boost clocks of a burst: 0.8 to 1.0",
    ),
    Constant(
        "GEMM efficiency of the software",
        ("framework.compute.gemm_efficiency",),
        prior=1.0,
        width=0.02,
        varies=((BY_FRAMEWORK, 0.08),),
        upper=1.1,
        why="the same cuBLAS everywhere; layouts, unfused epilogues and gaps differ",
    ),
    Constant(
        "attention over the measured table",
        ("framework.compute.attention_efficiency.{architecture}",),
        prior=1.0,
        width=0.10,
        varies=((BY_ARCHITECTURE, 0.15), (BY_KERNELS, 0.25)),
        factors={
            "llm-foundry on ampere": FLASH_1_OVER_2,
            "nanotron on hopper": FLASH_2_OVER_3,
            "torchtitan on hopper": FLASH_2_OVER_3,
        },
        why="the table is of a serving kernel, FlashAttention-2 on Ampere and -3 on Hopper; those "
        "of a software differ by up to two; llm-foundry of 2023 has FlashAttention-1, PyTorch-only "
        "software FlashAttention-2 on Hopper too",
    ),
    Constant(
        "FlashAttention-1 over -2",
        ("framework.compute.attention_efficiency.{architecture}",),
        prior=FLASH_1_OVER_2,
        width=0.20,
        where={"flash": "fa1"},
        today="parallelsim.measured_text:FLASH_ATTENTION_1_EFFICIENCY",
        why="arXiv:2307.08691: 1.5 to 2 times slower on A100, 25-40 % against 50-73 % of the peak",
    ),
    Constant(
        "fp8 delayed over 16-bit rate",
        ("cluster.accelerator.fp8_sustained_ratio.fp8-delayed",),
        prior=1.0,
        width=0.06,
        varies=((BY_ARCHITECTURE, 0.04),),
        why="the same clocks; the table of fp8 GEMMs has its own efficiency",
    ),
    Constant(
        "fp8 current over 16-bit rate",
        ("cluster.accelerator.fp8_sustained_ratio.fp8-current",),
        prior=1.0,
        width=0.06,
        varies=((BY_ARCHITECTURE, 0.04), (BY_ACCELERATOR, 0.04)),
        why="the same",
    ),
    Constant(
        "mxfp8 over 16-bit rate",
        ("cluster.accelerator.fp8_sustained_ratio.mxfp8",),
        prior=0.97,
        width=0.06,
        varies=((BY_ACCELERATOR, 0.04),),
        why="the same, with scale factors beside the operands (3 % of the bytes)",
    ),
    Constant(
        "nvfp4 over 16-bit rate",
        ("cluster.accelerator.fp8_sustained_ratio.nvfp4",),
        prior=0.85,
        width=0.15,
        varies=((BY_ACCELERATOR, 0.04),),
        why="power limits and quantisation bite at twice the rate; no table of GEMMs",
    ),
    Constant(
        "memory-bound efficiency",
        ("framework.compute.memory_bound_efficiency",),
        prior=0.65,
        width=0.15,
        varies=((BY_FRAMEWORK, 0.08),),
        upper=0.95,
        why="chains of elementwise and norm kernels; streaming alone reaches 0.8 to 0.9",
    ),
    Constant(
        "unfused loss, passes over the logits",
        ("framework.compute.cross_entropy_passes",),
        prior=6.0,
        width=0.25,
        varies=((BY_FRAMEWORK, 0.10),),
        why="Megatron's cross_entropy.py: cast, maximum, subtract, exponential, sum, gradient",
    ),
    Constant(
        "fused loss, passes over the logits",
        ("framework.compute.fused_cross_entropy_passes",),
        prior=2.5,
        width=0.25,
        where={"framework": "megatron-core"},
        why="16-bit logits read twice and their gradient written, with intermediate reductions",
    ),
    Constant(
        "optimizer's share of bandwidth",
        ("framework.compute.optimizer_efficiency",),
        prior=0.65,
        width=0.25,
        varies=((BY_FRAMEWORK, 0.20),),
        upper=0.95,
        why="multi-tensor Adam streams at 0.7 to 0.85; casts, norms and clipping come on top",
    ),
    Constant(
        "gradient accumulation, share of the bytes",
        ("parallelsim.sublayer_seconds:GRADIENT_ACCUMULATION_SHARE",),
        prior=1.0,
        width=0.15,
        why="every byte counts unless a cache holds it",
    ),
    Constant(
        "unfused attention, GEMM efficiency",
        ("parallelsim.compute:UNFUSED_GEMM_EFFICIENCY",),
        prior=0.60,
        width=0.20,
        upper=1.0,
        why="batched GEMMs with an inner size of one head, by the separable form at k = 64 to 128",
    ),
    Constant(
        "bandwidth of plain streaming kernels",
        ("parallelsim.compute:STREAM_EFFICIENCY",),
        prior=0.80,
        width=0.08,
        upper=0.95,
        why="STREAM on A100 and H100: 0.8 to 0.92",
    ),
    Constant(
        "eager softmax bytes over the count",
        ("parallelsim.compute:SOFTMAX_BYTES.eager",),
        units=((28.0, 28.0),),
        prior=1.0,
        width=0.20,
        why="count of PyTorch's kernels: scale, mask, softmax in fp32, casts",
    ),
    Constant(
        "fp8 casts over the counted bytes",
        ("parallelsim.sublayer_seconds:FP8_CAST_FACTOR",),
        prior=1.0,
        width=0.15,
        why="a count",
    ),
)

HOST = (
    Constant(
        "seconds to launch a kernel",
        ("framework.host.layer_forward_s", "framework.host.layer_backward_s"),
        units=(19.0, 19.0 * 1.6),
        prior=25e-6,
        width=0.40,
        varies=((BY_FRAMEWORK, 0.40),),
        factors={"nanotron": 24 / 19},
        why="PyTorch dispatches a small kernel in 10 to 50 us; 19 kernels a layer forward, 24 in "
        "nanotron (0e0a27ea models/llama.py: queries, keys and values copied and joined, lengths "
        "of sequences in every layer)",
    ),
    Constant(
        "launches added by tensor parallelism",
        ("framework.host.tp_factor",),
        prior=0.20,
        width=0.40,
        why="4 collectives beside 19 kernels",
    ),
    Constant(
        "host and GPU time, exponent",
        ("framework.host.overlap_exponent",),
        prior=6.0,
        width=0.40,
        varies=((BY_FRAMEWORK, 0.30),),
        why="between a sum (1) and the larger of the two (infinity)",
    ),
    Constant(
        "seconds of a micro-batch",
        ("framework.host.micro_batch_s",),
        prior=1.5e-3,
        width=0.60,
        varies=((BY_FRAMEWORK, 0.40),),
        why="Python of the schedule and the data loader",
    ),
    Constant(
        "seconds of a step",
        ("framework.host.step_s",),
        prior=20e-3,
        width=0.60,
        varies=((BY_FRAMEWORK, 0.40),),
        why="logging, gradient norms, learning rate, a synchronisation",
    ),
)

NETWORK = (
    Constant(
        "share of the NICs' bandwidth",
        ("cluster.tiers.1.efficiency",),
        prior=0.80,
        width=0.12,
        varies=((BY_ARCHITECTURE, 0.15),),
        where={"network": "catalogue"},
        upper=0.97,
        why="NCCL alone reaches 0.9 and more; contention and congestion in training",
    ),
    Constant(
        "latency of a hop between nodes",
        ("cluster.tiers.1.latency_s",),
        prior=10e-6,
        width=0.40,
        where={"network": "catalogue"},
        why="NCCL over InfiniBand, 5 to 15 us a step",
    ),
    Constant(
        "NICs that tensor parallelism keeps busy",
        ("parallelsim.exposure:TP_NIC_SHARE",),
        prior=0.80,
        width=0.20,
        upper=1.0,
        why="few channels for tensors of some megabytes",
    ),
    Constant(
        "tensor parallelism, exposed share",
        ("framework.overlap.tp_exposed",),
        prior=0.95,
        width=0.15,
        varies=((BY_FRAMEWORK, 0.10),),
        upper=1.5,
        why="little is hidden, and ranks wait for each other, as in no test of a collective alone",
    ),
    Constant(
        "the same with user buffers",
        ("framework.overlap.tp_exposed_user_buffers",),
        prior=0.30,
        width=0.40,
        where={"framework": "megatron-core"},
        upper=1.0,
        why="a pipelined GEMM hides all but the first or last of 4 to 8 pieces, and slows down",
    ),
    Constant(
        "context-parallel ring, share that always shows",
        ("framework.overlap.cp_exposed_floor",),
        prior=0.10,
        width=0.70,
        where={"framework": "megatron-core"},
        why="one of cp steps, and contention for SMs",
    ),
    Constant(
        "a ring's hop",
        ("parallelsim.exposure:RING_HOP_S",),
        prior=15e-6,
        width=0.50,
        why="a launch and a synchronisation",
    ),
    Constant(
        "interleaved transfers, exposed share",
        ("framework.overlap.p2p_exposed_interleaved",),
        prior=0.50,
        width=0.40,
        where={"framework": "megatron-core"},
        upper=1.0,
        why="half of them have a computation to hide behind",
    ),
    Constant(
        "latency of a stage transfer",
        ("framework.overlap.p2p_latency_s",),
        prior=60e-6,
        width=0.70,
        varies=((BY_FRAMEWORK, 0.50),),
        why="a launch, a hop, and batched send and receive with a synchronisation",
    ),
    Constant(
        "data parallelism, usable share of the window",
        ("framework.overlap.dp_overlap_efficiency",),
        absent=0.0,
        prior=0.60,
        width=0.25,
        varies=((BY_FRAMEWORK, 0.15),),
        upper=1.0,
        why="collectives take SMs and bandwidth from the computation that hides them",
    ),
    Constant(
        "data parallelism, share that always shows",
        ("framework.overlap.dp_exposed_floor",),
        absent=1.0,
        prior=0.25,
        width=0.50,
        varies=((BY_FRAMEWORK, 0.25),),
        upper=1.0,
        why="the last bucket, the first gather, contention",
    ),
    Constant(
        "slowdown for each doubling of the GPUs",
        (
            "framework.overlap.straggler_per_doubling",
            "framework.overlap.straggler_per_doubling_fp8",
        ),
        units=(1.0, 1.0),
        prior=0.004,
        width=0.50,
        varies=((BY_FRAMEWORK, 0.25),),
        why="the largest of n normal step times of 0.5 % spread",
    ),
)

EXPERTS = (
    Constant(
        "seconds to launch a kernel of experts",
        ("framework.host.experts_forward_s", "framework.host.experts_backward_s"),
        units=(45.0, 63.0),
        prior=25e-6,
        width=0.40,
        where={"framework": "megatron-core", "experts": "True"},
        why="PyTorch dispatches a small kernel in 10 to 50 us; 45 kernels a layer forward",
    ),
    Constant(
        "seconds to launch a local expert",
        ("framework.host.local_expert_s",),
        prior=60e-6,
        width=0.50,
        where={"framework": "megatron-core", "experts": "True"},
        why="two or three kernels each",
    ),
    Constant(
        "wait for the tokens' counts",
        ("framework.host.dropless_sync_s",),
        prior=0.3e-3,
        width=0.50,
        where={"framework": "megatron-core", "experts": "True"},
        why="a copy to the host, a collective of counts, an empty queue",
    ),
    Constant(
        "experts' launches that graphs leave",
        ("framework.host.experts_graph_factor",),
        prior=0.60,
        width=0.30,
        upper=1.0,
        where={"framework": "megatron-core", "experts": "True"},
        why="a graph holds the routing, not the experts",
    ),
    Constant(
        "overlapped exchange of tokens, exposed share",
        ("framework.overlap.ep_exposed_overlapped",),
        prior=0.40,
        width=0.40,
        upper=1.0,
        where={"framework": "megatron-core", "experts": "True"},
        why="two micro-batches at once: what one computes is shorter than what the other sends",
    ),
    Constant(
        "all-to-all, share of the rings' bandwidth",
        ("parallelsim.collectives:ALL_TO_ALL_SHARE",),
        prior=0.70,
        width=0.25,
        upper=1.0,
        why="NCCL sends to many peers at once: incast, small messages",
    ),
    Constant(
        "kernels that send a token to a node once, the same",
        ("parallelsim.collectives:PER_NODE_SHARE",),
        prior=0.95,
        width=0.20,
        upper=1.0,
        why="DeepEP's own tests reach 0.9 of the NICs",
    ),
    Constant(
        "bandwidth of the experts' weights and tokens",
        ("parallelsim.compute:GROUPED_MEMORY_EFFICIENCY",),
        prior=0.80,
        width=0.15,
        upper=1.0,
        why="streams of megabytes: STREAM",
    ),
    Constant(
        "bytes of the router for each token and expert",
        ("parallelsim.sublayers.experts:ROUTER_BYTES",),
        prior=40.0,
        width=0.40,
        why="softmax, top-k, sort and auxiliary loss in fp32",
    ),
)

CONSTANTS = COMPUTE + HOST + NETWORK + EXPERTS
