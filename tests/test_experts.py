"""Mixtures of experts: products, permutation, saved tensors, launches, and partial recompute."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from parallelsim.search.space import SearchSpace

from parallelsim.catalog import load_cluster, load_framework, load_model
from parallelsim.collectives import KERNEL_SPEEDUP, Network
from parallelsim.compute import gemm_rates, grouped_gemm_time, grouped_weight_gradient_time
from parallelsim.costs import CostTable
from parallelsim.errors import PlanError
from parallelsim.exporters.megatron_flags import VERSIONS, plan_refusals
from parallelsim.exporters.megatron_flags import memory as memory_flags
from parallelsim.layer_costs import LayerCosts
from parallelsim.layers import MLP, Attention, Block, LatentAttention, Layer, MixtureOfExperts
from parallelsim.measured_text import drops_tokens, stated_modules, stated_switches
from parallelsim.measurements import Facts
from parallelsim.model import ModelSpec
from parallelsim.operators import GroupedGemm, OperatorKeys, distinct_copies
from parallelsim.plan import CHOICES, RECOMPUTE_MODULES, Plan, code
from parallelsim.plan_batch import PlanBatch
from parallelsim.rules import explain
from parallelsim.simulate import simulate
from parallelsim.sublayers import Work, work

B200 = load_cluster("hgx-b200").accelerator
MEGATRON = load_framework("megatron-core")
TOKENS, HIDDEN, WIDTH, EXPERTS, TOP_K = 4096.0, 1024, 512, 64, 8
COPIES = TOKENS * TOP_K

# Transformer Engine's grouped GEMMs on a B200 (SimuMax, configs/system/b200_bf16_ceperm.json):
# products, m, n, k, bytes of the gradient that a weight gradient is added to (0: another pass),
# measured share of 2250 TFLOP/s.
MEASURED = (
    (256, 128, 4096, 7168, 0, 0.208),
    (256, 128, 4096, 7168, 4, 0.0775),
    (256, 128, 4096, 7168, 2, 0.1416),
    (128, 256, 7168, 2048, 0, 0.303),
    (128, 256, 7168, 2048, 4, 0.1409),
    (40, 616, 3072, 5120, 0, 0.462),
    (40, 616, 3072, 5120, 4, 0.258),
    (32, 1024, 4096, 7168, 0, 0.457),
    (32, 1024, 4096, 7168, 4, 0.289),
    (40, 2460, 5120, 1536, 0, 0.496),
    (40, 9832, 3072, 5120, 4, 0.4186),
)


def array(value: float) -> np.ndarray:
    return np.array([float(value)])


def product(count: int, m: int, n: int, k: int) -> GroupedGemm:
    return GroupedGemm(array(count), array(m), array(n), array(k))


def keys(**changes: int) -> OperatorKeys:
    """One key of a plan on one GPU in bf16."""
    values = {name: 0 for name in OperatorKeys.__dataclass_fields__}
    values |= dict.fromkeys(("tp", "cp", "ep", "etp", "micro_batch_size"), 1)
    values |= {"precision": code("precision", "bf16")} | changes
    return OperatorKeys(**{name: np.array([value]) for name, value in values.items()})


def mixture(**changes: object) -> MixtureOfExperts:
    """A small one, balanced."""
    sizes = {"num_experts": EXPERTS, "top_k": TOP_K, "ffn_hidden_size": WIDTH, "gated": True}
    return MixtureOfExperts(**(sizes | changes))  # type: ignore[arg-type]


def model(layers: tuple[Layer, ...], repeat: int = 4, **changes: object) -> ModelSpec:
    base = load_model("mixtral-8x7b")
    sizes = {
        "name": "small",
        "hidden_size": HIDDEN,
        "seq_length": int(TOKENS),
        "max_seq_length": int(TOKENS),
        "blocks": (Block(repeat, layers),),
    }
    return replace(base, **(sizes | changes))  # type: ignore[arg-type]


def asked(experts: MixtureOfExperts, **changes: int) -> Work:
    layer = Layer(Attention(16, 16, 64), experts=experts)
    return work(model((layer,)), layer, experts, MEGATRON, B200, keys(**changes))


def costs(spec: ModelSpec, *, cluster: str = "hgx-b200", **fields: object) -> LayerCosts:
    plans = PlanBatch.from_plans([Plan(**fields)])  # type: ignore[arg-type]
    return CostTable(spec, load_cluster(cluster), MEGATRON, plans).layer


def test_grouped_products_join_compute_and_traffic() -> None:
    rates, bf16 = gemm_rates(B200, MEGATRON), np.array([code("precision", "bf16")])
    fit = B200.gemm
    time = grouped_gemm_time(B200, rates, bf16, product(3, 100, 200, 400))
    compute = 2 * 100 * (200 + fit.n0) * (400 + fit.k0) / rates.flops[bf16]
    moved = 2.0 * (100 * 400 + 200 * 400 + 100 * 200)
    traffic = moved / (0.8 * B200.memory_bandwidth_bytes_per_s)
    expected = 3 * ((compute**1.5 + traffic**1.5) ** (2 / 3) + fit.launch_s)
    assert time == pytest.approx(expected, rel=1e-12)


def test_a_weight_gradient_of_few_tokens_waits_for_the_gradient() -> None:
    rates, bf16 = gemm_rates(B200, MEGATRON), np.array([code("precision", "bf16")])
    few = product(1, 1, 8192, 8192)
    whole, half = (
        grouped_weight_gradient_time(B200, rates, bf16, few, array(num_bytes))
        for num_bytes in (8.0, 4.0)
    )
    traffic = 8.0 * 8192**2 / (0.8 * B200.memory_bandwidth_bytes_per_s)
    assert whole - B200.gemm.launch_s == pytest.approx(traffic, rel=2e-3)
    assert (whole - B200.gemm.launch_s) / (half - B200.gemm.launch_s) == pytest.approx(2, rel=5e-3)


@pytest.mark.parametrize(("count", "m", "n", "k", "grad", "share"), MEASURED)
def test_grouped_products_are_within_a_fifth_of_the_measured_ones(
    count: int, m: int, n: int, k: int, grad: int, share: float
) -> None:
    rates, bf16 = gemm_rates(B200, MEGATRON), np.array([code("precision", "bf16")])
    shape = product(count, m, n, k)
    if grad:
        time = grouped_weight_gradient_time(B200, rates, bf16, shape, array(2.0 * grad))
    else:
        time = grouped_gemm_time(B200, rates, bf16, shape)
    measured = 2.0 * count * m * n * k / (share * 2250e12)
    assert time / measured == pytest.approx(1.0, abs=0.2)


def test_experts_keep_what_their_products_and_activation_see() -> None:
    saved = asked(mixture()).saved_bytes
    stream = 4.0 * HIDDEN * TOKENS
    products = COPIES * (2 * HIDDEN + 4 * WIDTH + 2 * WIDTH)
    assert saved == pytest.approx(stream + products + 8.0 * TOKENS * EXPERTS, rel=1e-12)


def test_all_to_all_sorts_what_arrives_once_more() -> None:
    everyone = {"ep": 8, "moe_dispatcher": code("moe_dispatcher", "all-to-all")}
    once = everyone | {"moe_dispatcher": code("moe_dispatcher", "deepep")}
    more = asked(mixture(), **everyone).forward_bytes - asked(mixture(), **once).forward_bytes
    ranks = 8 * (1 - (7 / 8) ** TOP_K)
    assert more == pytest.approx(8.0 * HIDDEN * COPIES - 4.0 * HIDDEN * TOKENS * (ranks - 1))


@pytest.mark.parametrize(
    ("dispatcher", "capacity", "copies"),
    [("all-to-all", None, 8.0), ("deepep", None, 0.0), ("all-to-all", 1.0, 0.0)],
)
def test_fp8_pads_rows_unless_shapes_are_fixed_or_the_kernel_pads(
    dispatcher: str, capacity: float | None, copies: float
) -> None:
    experts = mixture(capacity_factor=capacity)
    place = {"ep": 8, "moe_dispatcher": code("moe_dispatcher", dispatcher)}
    wide = asked(experts, **place).forward_bytes
    narrow = asked(experts, precision=code("precision", "mxfp8"), **place).forward_bytes
    assert narrow - wide == pytest.approx(copies * HIDDEN * COPIES)


def test_distinct_copies_of_two_random_choices() -> None:
    places = np.array([1.0, 2.0, 4.0])
    assert distinct_copies(places, 2).tolist() == pytest.approx([1.0, 1.5, 1.75])


def test_a_token_goes_to_each_rank_once_with_deepep() -> None:
    network = Network(load_cluster("hgx-b200"))
    group = network.group(np.array([8]), np.array([1]))
    all_to_all, once = (
        network.expert_all_to_all(array(1e9), 8.0, group, np.array([per_node]), array(1.0))
        for per_node in (False, True)
    )
    sent = 1 - (7 / 8) ** 8
    assert once / all_to_all == pytest.approx(sent / KERNEL_SPEEDUP, rel=1e-3)


def test_fixed_shapes_need_no_counts_and_go_into_the_graph() -> None:
    slow = replace(MEGATRON, host=replace(MEGATRON.host, local_expert_s=1.0, overlap_exponent=8))
    times = {}
    for capacity in (None, 1.0):
        layer = Layer(Attention(16, 16, 64), experts=mixture(capacity_factor=capacity))
        for graphs in (False, True):
            plans = PlanBatch.from_plans([Plan(cuda_graphs=graphs)])
            table = CostTable(model((layer,)), load_cluster("hgx-b200"), slow, plans)
            times[capacity, graphs] = float(table.layer.forward_s[0])
    each = 64.0
    host = slow.host
    assert times[None, False] - times[1.0, False] == pytest.approx(host.dropless_sync_s, rel=1e-6)
    assert times[None, True] == pytest.approx(each, rel=1e-3)
    assert times[1.0, True] == pytest.approx(host.cuda_graph_factor * each, rel=1e-3)


def test_up_projections_run_again_keep_no_queries_keys_and_values() -> None:
    attention = LatentAttention(
        16, kv_lora_rank=128, qk_nope_head_dim=64, qk_rope_head_dim=32, v_head_dim=64
    )
    spec = model((Layer(attention, MLP(2048, gated=True)),))
    kept = costs(spec)
    again = costs(spec, recompute="selective", recompute_modules="mla_up_proj")
    spared = TOKENS * 2 * 16 * (2 * 96 + 64 + 64)
    assert kept.saved_bytes - again.saved_bytes == pytest.approx(spared)
    assert 0 < again.selective_s < kept.forward_s
    assert again.forward_s == kept.forward_s


def test_modules_add_up() -> None:
    spec = model((Layer(Attention(16, 16, 64), experts=mixture()),))
    kept = costs(spec)
    apart = [
        costs(spec, recompute="selective", recompute_modules=name)
        for name in ("core_attn", "layernorm", "moe_act")
    ]
    joined = costs(spec, recompute="selective", recompute_modules="core_attn+layernorm+moe_act")
    assert joined.selective_s == pytest.approx(sum(c.selective_s for c in apart))
    spared = sum(kept.saved_bytes - c.saved_bytes for c in apart)
    assert kept.saved_bytes - joined.saved_bytes == pytest.approx(spared)
    assert spared == pytest.approx(4.0 * HIDDEN * TOKENS + 2.0 * COPIES * WIDTH)


def test_recompute_modules_of_a_plan() -> None:
    plan = Plan(recompute="selective", recompute_modules="mla_up_proj+moe_act").validate()
    assert Plan.from_dict(plan.to_dict()) == plan
    group = memory_flags(plan)
    assert group is not None
    assert "--recompute-modules mla_up_proj moe_act" in group.flags
    with pytest.raises(PlanError, match="needs recompute=selective"):
        Plan(recompute_modules="moe_act").validate()
    with pytest.raises(PlanError, match="core_attn, layernorm, mla_up_proj, mlp, moe_act"):
        Plan(recompute="selective", recompute_modules="moe_act+core_attn").validate()


def test_a_leading_dense_layer_of_four_is_on_the_first_stage() -> None:
    attention = Attention(16, 16, 64)
    dense, mixed = Layer(attention, MLP(2048, gated=True)), Layer(attention, experts=mixture())
    spec = model((), blocks=(Block(1, (dense,)), Block(3, (mixed,))))
    assert spec.num_leading_blocks == 1
    alike = model((), blocks=(Block(1, (dense,)), Block(3, (replace(dense, num_norms=4),))))
    assert alike.num_leading_blocks == 0


@pytest.mark.parametrize(
    ("detail", "expected"),
    [
        ("", "core_attn"),
        ("recompute_modules=['mla_up_proj', 'mlp']", "mla_up_proj+mlp"),
        ("selective (norm, act)", "layernorm+moe_act"),
        ("recompute_modules=['moe']", ""),
        ("MLP activation function + norm recompute (--norm)", "layernorm"),
    ],
)
def test_modules_of_a_row(detail: str, expected: str) -> None:
    assert stated_modules(Facts({"recompute_detail": detail})) == expected


@pytest.mark.parametrize(
    ("notes", "expected"), [("(tokendrop)", True), ("Token drop: 1.0", True), ("dropless", False)]
)
def test_token_drop_of_a_row(notes: str, expected: bool) -> None:
    assert drops_tokens(Facts({"notes": notes})) is expected


@pytest.mark.parametrize(
    ("scope", "expected"),
    [("['attn', 'moe_router']", True), ("['moe_router']", False), ("['full_iteration']", True)],
)
def test_graphs_of_bookkeeping_alone_are_none(scope: str, expected: bool) -> None:
    detail = f"cuda_graph_impl=transformer_engine; cuda_graph_scope={scope}"
    assert stated_switches(Facts({"recompute_detail": detail}))["cuda_graphs"] is expected


def test_a_search_over_given_modules_recomputes_them_alone() -> None:
    space = SearchSpace(
        load_model("llama3-8b"),
        load_cluster("hgx-h100").with_num_gpus(8),
        MEGATRON,
        global_batch_size=8,
        fixed={"recompute_modules": "layernorm+mlp"},
    )
    seen = {
        (CHOICES["recompute"][kind], RECOMPUTE_MODULES[modules])
        for block in space.blocks()
        for kind, modules in zip(
            block.recompute.tolist(), block.recompute_modules.tolist(), strict=True
        )
    }
    assert seen == {("none", "core_attn"), ("selective", "layernorm+mlp"), ("full", "core_attn")}


# Step time without over with forced balance of Qwen3-235B on 256 H100 (megatron-moe-model-zoo,
# from its TFLOP/s of both): sequence length, cp, dp, ratio.
ROUTING = ((16384, 1, 8, 1.245), (32768, 2, 4, 1.209), (65536, 4, 2, 1.150), (131072, 8, 1, 1.090))


@pytest.mark.parametrize(("seq_length", "cp", "dp", "ratio"), ROUTING)
def test_one_spread_of_loads_explains_four_sequence_lengths(
    seq_length: int, cp: int, dp: int, ratio: float
) -> None:
    base = load_model("qwen3-235b-a22b")
    base = replace(base, max_seq_length=2**17).with_seq_length(seq_length)
    skewed = replace(
        base,
        blocks=tuple(
            replace(
                block,
                layers=tuple(
                    replace(layer, experts=replace(layer.experts, load_cv=2.25))
                    for layer in block.layers
                    if layer.experts
                ),
            )
            for block in base.blocks
        ),
    )
    plan = Plan(
        tp=4,
        cp=cp,
        pp=8,
        vpp=4,
        dp=dp,
        ep=8,
        global_batch_size=256,
        schedule="interleaved-1f1b",
        layout="embedding-loss",
        sequence_parallel=True,
        zero=1,
        recompute="selective",
        recompute_modules="layernorm",
        grad_dtype="bf16",
        tp_comm_overlap=True,
        overlap_grad_reduce=True,
        overlap_param_gather=True,
        cross_entropy_fusion=True,
        moe_dispatcher="deepep",
    )
    cluster = load_cluster("azure-nd-h100-v5").with_num_gpus(256)
    plans = PlanBatch.from_plans([plan])
    balanced, real = (simulate(m, cluster, MEGATRON, plans) for m in (base, skewed))
    assert real.step_time_s / balanced.step_time_s == pytest.approx(ratio, rel=0.01)


@pytest.mark.parametrize(
    ("name", "modules", "precision", "expected"),
    [
        ("llama3-8b", "mla_up_proj", "bf16", "multi-head latent attention alone"),
        ("llama3-8b", "moe_act", "bf16", "mixtures of experts alone"),
        ("deepseek-v3", "layernorm+moe_act", "fp8-delayed", "layernorm or moe_act"),
        ("deepseek-v3", "mla_up_proj+moe_act", "mxfp8", ""),
    ],
)
def test_megatron_refuses_modules_that_it_asserts_against(
    name: str, modules: str, precision: str, expected: str
) -> None:
    version = next(iter(VERSIONS.values()))
    plan = Plan(recompute="selective", recompute_modules=modules, precision=precision)
    refusals = [
        text for text in plan_refusals(load_model(name), plan, version) if "recompute" in text
    ]
    assert [text for text in refusals if expected in text] == refusals
    assert bool(refusals) is bool(expected)


def test_other_software_has_no_modules() -> None:
    plan = Plan(recompute="selective", recompute_modules="layernorm", grad_dtype="fp32")
    spec, cluster = load_model("llama3-8b"), load_cluster("hgx-h100").with_num_gpus(1)
    why = explain(spec, cluster, load_framework("torchtitan"), plan)
    assert any("selective of layernorm" in text for text in why)
    assert not any("selective of" in text for text in explain(spec, cluster, MEGATRON, plan))
