"""For every rule a plan that breaks it and the nearest that does not."""

from dataclasses import replace

from moe_models import CROSS, DEEPSEEK, DROPPING, HYBRID, MIXTRAL, SINKS

from parallelsim.catalog import load_cluster, load_framework, load_model
from parallelsim.plan import Plan

LLAMA = load_model("llama3-70b").with_seq_length(8192)  # 80 layers, 64 heads, 8 groups, ffn 28672
MISTRAL = load_model("mistral-7b-v0.1").with_seq_length(8192)  # window 4096
RESNET = load_model("resnet-50")  # 16 blocks of custom operators
CLUSTER = load_cluster("hgx-h100", 256)
MEGATRON = load_framework("megatron-core")
PIPE = Plan(tp=8, pp=4, dp=8, global_batch_size=256, schedule="1f1b")
GOOD = Plan(
    tp=8,
    pp=4,
    vpp=5,
    dp=8,
    micro_batch_size=1,
    global_batch_size=256,
    schedule="interleaved-1f1b",
    sequence_parallel=True,
    zero=1,
    overlap_grad_reduce=True,
    overlap_param_gather=True,
    tp_comm_overlap=True,
    cross_entropy_fusion=True,
)
MOE = Plan(
    tp=2,
    pp=4,
    dp=32,
    ep=8,
    global_batch_size=256,
    schedule="1f1b",
    sequence_parallel=True,
)
OVERLAPPED = replace(MOE, vpp=2, schedule="interleaved-1f1b", ep_comm_overlap=True)
OF_ALL_PLANS = {"framework-runs-on-accelerator", "framework-has-sublayers"}
BARE = replace(
    MEGATRON,
    name="bare",
    capabilities=replace(
        MEGATRON.capabilities,
        schedules=("1f1b",),
        zero_stages=(0,),
        cp_comm_types=(),
        precisions=("fp16",),
        grad_dtypes=("bf16",),
        layouts=("even",),
        recomputes=("none",),
        sequence_parallel=False,
        cuda_graphs=False,
        kv_replication=False,
        moe_dispatchers=("all-gather",),
        expert_tensor_parallel=False,
        hybrid_sharding=False,
        optimizers=("adam",),
        activation_offload=False,
        optimizer_offload=False,
    ),
)

# rule -> (a plan that breaks it, the nearest that does not, words of the message, other inputs)
CASES = {
    "uses-all-gpus": (replace(PIPE, dp=4), PIPE, ["tp=8", "pp=4", "dp=4", "128", "256"], {}),
    "heads-divide-by-tp": (replace(PIPE, tp=3), replace(PIPE, tp=4), ["64", "tp=3"], {}),
    "kv-heads-split-over-tp": (
        replace(PIPE, tp=12),
        replace(PIPE, tp=16),
        ["8 key/value", "tp=12"],
        {},
    ),
    "state-space-splits-over-tp": (
        replace(PIPE, tp=16),
        replace(PIPE, tp=8),
        ["128 heads", "8 groups", "tp=16"],
        {"model": HYBRID},
    ),
    "ffn-divides-by-tp": (replace(PIPE, tp=3), replace(PIPE, tp=7), ["28672", "tp=3"], {}),
    "sequence-divides-by-cp": (replace(PIPE, cp=3), replace(PIPE, cp=2), ["8192", "cp=3"], {}),
    "sequence-divides-by-tp": (
        replace(PIPE, tp=3, sequence_parallel=True),
        replace(PIPE, tp=3),
        ["8192", "tp=3"],
        {},
    ),
    "sequence-parallel-needs-tp": (
        replace(PIPE, tp=1, sequence_parallel=True),
        replace(PIPE, tp=2, sequence_parallel=True),
        ["tp=1"],
        {},
    ),
    "a2a-heads-divide-by-cp": (
        replace(PIPE, cp=2, cp_comm_type="a2a"),
        replace(PIPE, tp=4, cp=2, cp_comm_type="a2a"),
        ["tp=8", "cp=2", "64", "8 key/value"],
        {},
    ),
    "state-space-splits-over-cp": (
        replace(PIPE, tp=8, cp=32),
        replace(PIPE, tp=8, cp=16),
        ["128 heads", "8 groups", "cp=32"],
        {"model": HYBRID},
    ),
    "window-needs-a2a-or-all-gather": (
        replace(PIPE, cp=2),
        replace(PIPE, cp=2, cp_comm_type="all-gather"),
        ["cp=2", "4096", "8192"],
        {"model": MISTRAL},
    ),
    "latent-attention-needs-p2p": (
        replace(PIPE, cp=2, cp_comm_type="all-gather"),
        replace(PIPE, cp=2),
        ["cp=2", "all-gather", "p2p"],
        {"model": DEEPSEEK},
    ),
    "sinks-need-a2a": (
        replace(PIPE, cp=2, cp_comm_type="all-gather"),
        replace(PIPE, cp=2, cp_comm_type="a2a"),
        ["cp=2", "all-gather", "a2a"],
        {"model": SINKS},
    ),
    "cross-attention-needs-one-stage": (PIPE, replace(PIPE, pp=1), ["pp=4"], {"model": CROSS}),
    "batch-divides-by-replicas": (
        replace(PIPE, micro_batch_size=3),
        replace(PIPE, micro_batch_size=4),
        ["256", "3", "dp=8", "24"],
        {},
    ),
    "hybrid-cp-sizes": (
        replace(PIPE, tp=2, cp=8, cp_comm_type="a2a+p2p", cp_a2a=8),
        replace(PIPE, tp=2, cp=8, cp_comm_type="a2a+p2p", cp_a2a=4),
        ["cp_a2a=8", "cp=8"],
        {},
    ),
    "hybrid-cp-heads": (
        replace(PIPE, tp=4, cp=8, cp_comm_type="a2a+p2p", cp_a2a=4),
        replace(PIPE, tp=4, cp=8, cp_comm_type="a2a+p2p", cp_a2a=2),
        ["tp=4", "cp_a2a=4", "64", "8 key/value"],
        {},
    ),
    "hybrid-cp-without-window": (
        replace(PIPE, tp=2, cp=4, cp_comm_type="a2a+p2p", cp_a2a=2),
        replace(PIPE, tp=2, cp=4, cp_comm_type="a2a"),
        ["cp=4", "4096", "8192"],
        {"model": MISTRAL},
    ),
    "custom-layers-split-over-tp": (
        replace(PIPE, tp=2, pp=1, schedule="none"),
        replace(PIPE, tp=1, pp=1, schedule="none"),
        ["tp=2"],
        {"model": RESNET},
    ),
    "stages-exchange-one-shape": (
        replace(PIPE, tp=1, pp=2),
        replace(PIPE, tp=1, pp=1),
        ["pp=2"],
        {"model": RESNET},
    ),
    "schedule-matches-stages": (
        replace(PIPE, schedule="none"),
        replace(PIPE, schedule="gpipe"),
        ["none", "pp=4", "vpp=1"],
        {},
    ),
    "interleaving-needs-micro-batches": (
        replace(GOOD, global_batch_size=240),
        replace(GOOD, global_batch_size=32),
        ["pp=4", "30", "240"],
        {},
    ),
    "schedule-has-micro-batches": (
        replace(PIPE, schedule="dualpipe", global_batch_size=48),
        replace(PIPE, schedule="dualpipe", global_batch_size=64),
        ["dualpipe", "pp=4", "8 micro-batches", "6", "48"],
        {},
    ),
    "layers-divide-by-stages": (
        replace(PIPE, layout="loss"),
        replace(PIPE, pp=3, layout="loss"),
        ["80", "+ 1", "pp=4", "vpp=1"],
        {},
    ),
    "layout-needs-stages": (
        replace(PIPE, pp=1, layout="embedding"),
        replace(PIPE, pp=3, layout="embedding"),
        ["embedding", "pp=1"],
        {},
    ),
    "layout-fits-schedule": (
        replace(
            PIPE,
            schedule="zb-v",
            vpp=2,
            layout="first-last",
            first_stage_layers=20,
            last_stage_layers=20,
        ),
        replace(PIPE, schedule="zb-v", vpp=2),
        ["zb-v", "pp=4", "first-last"],
        {},
    ),
    "first-last-fits": (
        replace(PIPE, layout="first-last", first_stage_layers=19, last_stage_layers=18),
        replace(PIPE, layout="first-last", first_stage_layers=19, last_stage_layers=19),
        ["19", "18", "43", "80"],
        {},
    ),
    "chunk-layers-fit": (
        replace(PIPE, layout="free", chunk_layers=(19, 21, 21, 18)),
        replace(PIPE, layout="free", chunk_layers=(19, 21, 21, 19)),
        ["79", "80", "4 chunks"],
        {},
    ),
    "recompute-within-stage": (
        replace(PIPE, recompute="full", recompute_num_layers=21),
        replace(PIPE, recompute="full", recompute_num_layers=20),
        ["21", "80", "pp=4"],
        {},
    ),
    "cuda-graphs-without-full-recompute": (
        replace(PIPE, recompute="full", cuda_graphs=True),
        replace(PIPE, recompute="selective", cuda_graphs=True),
        ["full"],
        {},
    ),
    "tp-overlap-needs-sequence-parallel": (
        replace(PIPE, tp_comm_overlap=True),
        replace(PIPE, tp_comm_overlap=True, sequence_parallel=True),
        ["tp=8"],
        {},
    ),
    "param-gather-overlap-needs-zero": (
        replace(PIPE, zero=1, overlap_param_gather=True),
        replace(PIPE, zero=1, overlap_param_gather=True, overlap_grad_reduce=True),
        ["zero=1", "false"],
        {},
    ),
    "fp8-param-gather-needs-fp8-and-zero": (
        replace(PIPE, zero=1, fp8_param_gather=True),
        replace(PIPE, zero=1, fp8_param_gather=True, precision="fp8-current"),
        ["bf16", "zero=1"],
        {},
    ),
    "zero-2-with-stages": (
        replace(PIPE, zero=2),
        replace(PIPE, zero=2, pp=1),
        ["zero=2", "pp=4"],
        {},
    ),
    "fp32-needs-fp32-gradients": (
        replace(PIPE, precision="fp32", grad_dtype="bf16"),
        replace(PIPE, precision="fp32"),
        ["bf16"],
        {},
    ),
    "expert-degrees-need-experts": (replace(PIPE, ep=2), PIPE, ["ep=2", "etp=1"], {}),
    "experts-divide-by-ep": (
        replace(MOE, ep=16),
        MOE,
        ["8 experts", "ep=16"],
        {"model": MIXTRAL},
    ),
    "expert-ffn-divides-by-etp": (
        replace(MOE, etp=3),
        replace(MOE, etp=7),
        ["14336", "etp=3"],
        {"model": MIXTRAL},
    ),
    "expert-ranks-divide-stage": (
        replace(MOE, etp=16),
        replace(MOE, etp=8),
        ["ep=8", "etp=16", "128", "tp=2", "dp=32", "64"],
        {"model": MIXTRAL},
    ),
    "etp-without-biases": (replace(MOE, etp=2), MOE, ["etp=2"], {"model": SINKS}),
    "experts-with-tp-need-sequence-parallel": (
        replace(MOE, sequence_parallel=False),
        replace(MOE, sequence_parallel=False, tp=1),
        ["tp=2"],
        {"model": MIXTRAL},
    ),
    "deepep-needs-expert-ranks": (
        replace(MOE, moe_dispatcher="deepep", ep=1),
        replace(MOE, moe_dispatcher="deepep", ep=1, etp=2),
        ["deepep", "1 x 1", "all-to-all"],
        {"model": MIXTRAL},
    ),
    "ep-overlap-needs-exchange": (
        replace(OVERLAPPED, moe_dispatcher="all-gather"),
        OVERLAPPED,
        ["ep=8", "all-gather", "bf16"],
        {"model": MIXTRAL},
    ),
    "ep-overlap-without-whole-graphs": (
        replace(OVERLAPPED, cuda_graphs=True),
        OVERLAPPED,
        ["capacity_factor", "cuda_graphs", "ep_comm_overlap"],
        {"model": DROPPING},
    ),
    "ep-overlap-needs-interleaving": (
        replace(OVERLAPPED, vpp=1, schedule="1f1b"),
        OVERLAPPED,
        ["pp=4", "vpp=1", "none"],
        {"model": MIXTRAL},
    ),
    "framework-has-dispatcher": (
        MOE,
        replace(MOE, moe_dispatcher="all-gather"),
        ["bare", "all-to-all", "all-gather"],
        {"model": MIXTRAL, "framework": BARE},
    ),
    "framework-has-expert-tp": (
        replace(MOE, etp=2),
        MOE,
        ["bare", "etp=2"],
        {"model": MIXTRAL, "framework": BARE},
    ),
    "precision-on-accelerator": (
        replace(PIPE, precision="mxfp8"),
        replace(PIPE, precision="fp8-current"),
        ["mxfp8", "h100-80gb-sxm", "fp8-delayed"],
        {},
    ),
    "framework-has-schedule": (
        replace(PIPE, schedule="gpipe"),
        replace(PIPE, schedule="1f1b"),
        ["gpipe", "interleaved-1f1b"],
        {},
    ),
    "framework-has-zero-stage": (
        replace(PIPE, zero=2),
        replace(PIPE, zero=0),
        ["stage 2", "has 0"],
        {"framework": BARE},
    ),
    "framework-has-cp-type": (replace(PIPE, cp=2), PIPE, ["p2p", "none"], {"framework": BARE}),
    "framework-has-precision": (
        PIPE,
        replace(PIPE, precision="fp16"),
        ["bf16", "fp16"],
        {"framework": BARE},
    ),
    "framework-has-grad-dtype": (
        PIPE,
        replace(PIPE, grad_dtype="bf16"),
        ["fp32", "bf16"],
        {"framework": BARE},
    ),
    "framework-has-layout": (
        replace(PIPE, layout="loss"),
        PIPE,
        ["loss", "even"],
        {"framework": BARE},
    ),
    "framework-has-recompute": (
        replace(PIPE, recompute="full", recompute_num_layers=2),
        PIPE,
        ["full:2", "none"],
        {"framework": BARE},
    ),
    "framework-has-switches": (
        replace(PIPE, cuda_graphs=True),
        replace(PIPE, overlap_grad_reduce=True),
        ["cuda_graphs"],
        {"framework": BARE},
    ),
    "replicas-divide-data-parallel": (
        replace(PIPE, dp_replicate=3),
        replace(PIPE, dp_replicate=2),
        ["dp_replicate=3", "dp=8"],
        {},
    ),
    "replicas-need-shards": (
        replace(PIPE, dp_replicate=2),
        replace(PIPE, dp_replicate=2, zero=3),
        ["dp_replicate=2", "zero=0"],
        {},
    ),
    "gathered-parameters-need-zero-3": (
        replace(PIPE, reshard_after_forward=False),
        replace(PIPE, reshard_after_forward=False, zero=3),
        ["zero=0"],
        {},
    ),
    "framework-has-sharding": (
        replace(PIPE, dp_replicate=2, zero=3),
        replace(PIPE, zero=3),
        ["bare", "shard groups"],
        {"framework": BARE},
    ),
    "framework-has-optimizer": (
        replace(PIPE, optimizer="sgd"),
        PIPE,
        ["sgd", "has adam"],
        {"framework": BARE},
    ),
    "offload-has-a-host": (
        replace(PIPE, activation_offload_pct=50),
        replace(PIPE, activation_offload_pct=0),
        ["activation_offload_pct=50", "bare"],
        {"framework": BARE},
    ),
}
