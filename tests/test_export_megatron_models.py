"""Scripts of mixtures of experts and latent attention: the exact flags, or the refusal."""

from __future__ import annotations

from dataclasses import replace

import pytest
from megatron_scripts import DATA_PARALLEL as PLAN
from megatron_scripts import array, export
from parallelsim.search.grid import grid_search
from parallelsim.search.space import SearchSpace

from parallelsim.catalog import load_cluster, load_framework, load_model
from parallelsim.errors import ExportError
from parallelsim.exporters.megatron import DEFAULT_VERSION
from parallelsim.exporters.megatron_flags import LOW_PRECISIONS
from parallelsim.layers import Block
from parallelsim.model import ModelSpec

OLD = "core_v0.15.0"
MIXTRAL = load_model("mixtral-8x7b")
DEEPSEEK = load_model("deepseek-v3")
GPT_OSS = load_model("gpt-oss-20b")


def with_experts(model: ModelSpec, **changes: object) -> ModelSpec:
    """The model with all mixtures of experts changed."""

    def changed(layer):
        return replace(layer, experts=replace(layer.experts, **changes)) if layer.experts else layer

    blocks = (Block(b.repeat, tuple(map(changed, b.layers))) for b in model.blocks)
    return replace(model, blocks=tuple(blocks))


def test_mixtral():
    script = export(MIXTRAL, replace(PLAN, ep=8))
    assert array(script, "MOE_ARGS") == [
        "--num-experts 8",
        "--moe-router-topk 2",
        "--moe-ffn-hidden-size 14336",
        "--moe-router-score-function softmax",
        "--moe-router-dtype fp32",
    ]
    assert array(script, "EXPERT_ARGS") == [
        "--expert-model-parallel-size 8",
        "--expert-tensor-parallel-size 1",
        "--moe-token-dispatcher-type alltoall",
        "--moe-grouped-gemm",
        "--moe-permute-fusion",
    ]


def test_deepseek_v3():
    script = export(DEEPSEEK, replace(PLAN, ep=8))
    dense_first = "[" + ",".join(["0"] * 3 + ["1"] * 58) + "]"
    assert array(script, "MOE_ARGS") == [
        "--num-experts 256",
        "--moe-router-topk 8",
        "--moe-ffn-hidden-size 2048",
        f"--moe-layer-freq '{dense_first}'",
        "--moe-router-score-function sigmoid",
        "--moe-router-dtype fp32",
        "--moe-router-topk-scaling-factor 2.5",
        "--moe-router-enable-expert-bias",
        "--moe-router-num-groups 8",
        "--moe-router-group-topk 4",
        "--moe-shared-expert-intermediate-size 2048",
    ]
    assert array(script, "MODEL_ARGS") == [
        "--num-layers 61",
        "--hidden-size 7168",
        "--ffn-hidden-size 18432",
        "--num-attention-heads 128",
        "--multi-latent-attention",
        "--q-lora-rank 1536",
        "--kv-lora-rank 512",
        "--qk-head-dim 128",
        "--qk-pos-emb-head-dim 64",
        "--v-head-dim 128",
        "--rope-type rope",
        "--no-rope-fusion",
        "--seq-length 4096",
        "--max-position-embeddings 163840",
        "--position-embedding-type rope",
        "--rotary-base 10000",
        "--normalization RMSNorm",
        "--swiglu",
        "--disable-bias-linear",
        "--qk-layernorm",
        "--untie-embeddings-and-output-weights",
        "--mtp-num-layers 1",
        "--hidden-dropout 0.0",
        "--attention-dropout 0.0",
    ]


def test_deepseek_v2_scores_before_it_chooses():
    flags = array(export(load_model("deepseek-v2"), replace(PLAN, ep=8)), "MOE_ARGS")
    assert "--moe-router-pre-softmax" in flags
    assert "--moe-router-topk-scaling-factor 16" in flags
    lite = array(export(load_model("deepseek-v2-lite"), replace(PLAN, ep=8)), "MOE_ARGS")
    assert "--moe-router-pre-softmax" in lite
    assert not any("scaling-factor" in flag for flag in lite)
    assert not any("pre-softmax" in f for f in array(export(MIXTRAL), "MOE_ARGS"))


def test_one_expert_of_a_softmax_is_scored_before_it_is_chosen():
    assert "--moe-router-pre-softmax" in export(with_experts(MIXTRAL, top_k=1))


def test_gpt_oss_is_biased_everywhere_clamped_and_has_sinks():
    script = export(GPT_OSS, replace(PLAN, ep=8))
    model = array(script, "MODEL_ARGS")
    for flag in (
        "--softmax-type learnable",
        "--quick-geglu",
        "--glu-linear-offset 1.0",
        "--activation-func-clamp-value 7.0",
        "--window-size 127,0",
        "--kv-channels 64",
        "--num-query-groups 8",
    ):
        assert flag in model
    pattern = "[" + ",".join(["1,0"] * 12) + "]"
    assert f"--window-attn-skip-freq '{pattern}'" in model
    # The router's bias comes with the biases of all linear layers.
    assert "bias-linear" not in script
    assert "--moe-router-enable-expert-bias" not in script
    assert "--no-bias-dropout-fusion" in array(script, "MOE_ARGS")


def test_sinks_take_the_kernels_that_have_them():
    for cluster in ("hgx-h100", "dgx-a100-80gb"):
        assert "--attention-backend fused\n" in export(GPT_OSS, cluster=cluster)
    assert "--attention-backend auto\n" in export(DEEPSEEK, cluster="dgx-a100-80gb")
    assert "--attention-backend fused\n" in export(DEEPSEEK)


def test_llama4_has_layers_without_rope_and_scores_what_experts_read():
    script = export(load_model("llama4-maverick"), replace(PLAN, ep=8))
    pattern = "[" + ",".join(["0,0,0,1"] * 12) + "]"
    assert f"--no-rope-freq '{pattern}'" in array(script, "MODEL_ARGS")
    assert "--window" not in script
    assert "--moe-apply-probs-on-input" in array(script, "MOE_ARGS")
    assert "--moe-layer-freq" in script


def test_llama4_beyond_a_chunk_and_with_norms_in_some_layers_is_refused():
    with pytest.raises(ExportError, match="chunks .8192 tokens of a sequence of 16384"):
        export(load_model("llama4-maverick").with_seq_length(16384))
    with pytest.raises(ExportError, match="by their length in all layers or in none"):
        export(load_model("llama4-scout"))


def test_norm_by_length_in_all_layers_has_its_flag():
    layer = MIXTRAL.layers[0]
    normed = replace(layer, attention=replace(layer.attention, qk_l2_norm=True))
    script = export(replace(MIXTRAL, blocks=(Block(32, (normed,)),)))
    assert "--qk-l2-norm" in array(script, "MODEL_ARGS")
    assert "--qk-layernorm" not in script


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("t5-11b", "trains no encoder with a decoder"),
        ("switch-c-2048", "trains no encoder with a decoder"),
        ("grok-1", "gated gelu"),
        ("grok-1", "2 norms, not 4"),
    ],
)
def test_what_no_script_trains_is_refused(name, reason):
    with pytest.raises(ExportError, match=reason):
        export(load_model(name))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"router_bias": True}, "softmax router has a bias where all"),
        ({"bias": True}, "puts biases in all"),
        ({"activation": "relu"}, "no exact gated relu"),
    ],
)
def test_experts_that_cannot_be_built_are_refused(changes, reason):
    with pytest.raises(ExportError, match=reason):
        export(with_experts(MIXTRAL, **changes))


def test_two_kinds_of_experts_are_refused():
    layer = MIXTRAL.layers[0]
    other = replace(layer, experts=replace(layer.experts, num_experts=16))
    with pytest.raises(ExportError, match="mixtures of experts are alike"):
        export(replace(MIXTRAL, blocks=(Block(16, (layer, other)),)))


@pytest.mark.parametrize(
    ("dispatcher", "version", "flags"),
    [
        ("all-to-all", DEFAULT_VERSION, ["--moe-token-dispatcher-type alltoall"]),
        ("all-gather", DEFAULT_VERSION, ["--moe-token-dispatcher-type allgather"]),
        (
            "deepep",
            DEFAULT_VERSION,
            ["--moe-token-dispatcher-type flex", "--moe-flex-dispatcher-backend deepep"],
        ),
        ("deepep", OLD, ["--moe-token-dispatcher-type flex", "--moe-enable-deepep"]),
    ],
)
def test_tokens_reach_experts_as_planned(dispatcher, version, flags):
    script = export(MIXTRAL, replace(PLAN, ep=4, etp=2, moe_dispatcher=dispatcher), version)
    found = array(script, "EXPERT_ARGS")
    assert found[:2] == ["--expert-model-parallel-size 4", "--expert-tensor-parallel-size 2"]
    assert found[2 : 2 + len(flags)] == flags


@pytest.mark.parametrize("precision", sorted(LOW_PRECISIONS))
@pytest.mark.parametrize("version", [OLD, DEFAULT_VERSION])
def test_low_precision_fills_up_the_experts_tokens(precision, version):
    flag = {OLD: "--moe-router-padding-for-fp8"}.get(
        version, "--moe-router-padding-for-quantization"
    )
    plan = replace(PLAN, ep=8, precision=precision)
    if (precision, version) == ("nvfp4", OLD):
        with pytest.raises(ExportError, match="does not run experts in nvfp4"):
            export(MIXTRAL, plan, version, "hgx-b200")
        return
    assert flag in array(export(MIXTRAL, plan, version, "hgx-b200"), "EXPERT_ARGS")
    gathers = replace(plan, moe_dispatcher="all-gather")
    assert "--moe-router-padding" not in export(MIXTRAL, gathers, version, "hgx-b200")
    assert "--moe-router-padding" not in export(MIXTRAL, replace(PLAN, ep=8), version)


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_older_version_groups_experts_in_bf16_alone(precision):
    plan = replace(PLAN, ep=8, precision=precision)
    with pytest.raises(ExportError, match=f"does not run experts in {precision}"):
        export(MIXTRAL, plan, OLD)
    export(MIXTRAL, plan)


@pytest.mark.parametrize("version", [OLD, DEFAULT_VERSION])
def test_overlapped_exchange_has_its_flag_and_hardware_queues(version):
    plan = replace(PLAN, tp=2, dp=4, sequence_parallel=True, ep=8, ep_comm_overlap=True)
    script = export(MIXTRAL, plan, version)
    assert "--overlap-moe-expert-parallel-comm" in array(script, "EXPERT_ARGS")
    assert "export CUDA_DEVICE_MAX_CONNECTIONS=32" in script
    assert "CUDA_DEVICE_MAX_CONNECTIONS=1\n" not in script


def test_capacity_drops_and_pads_with_the_all_to_all_alone():
    model = with_experts(MIXTRAL, capacity_factor=1.25)
    flags = array(export(model, replace(PLAN, ep=8)), "MOE_ARGS")
    assert flags[-2:] == ["--moe-expert-capacity-factor 1.25", "--moe-pad-expert-input-to-capacity"]
    with pytest.raises(ExportError, match="capacity need the dispatcher all-to-all, not deepep"):
        export(model, replace(PLAN, ep=8, moe_dispatcher="deepep"))


def test_the_first_plan_of_experts_with_a_capacity_is_one_that_megatron_runs():
    model = with_experts(MIXTRAL, capacity_factor=1.25)
    space = SearchSpace(model, load_cluster("hgx-h100", 32), load_framework("megatron-core"), 64)
    first = grid_search(space, top_k=1).plans.plans.plan(0)
    assert first.ep > 1
    assert "--moe-token-dispatcher-type alltoall" in array(export(model, first), "EXPERT_ARGS")


@pytest.mark.parametrize(
    ("model", "changes", "modules"),
    [
        (MIXTRAL, {}, "attn moe_router moe_preprocess"),
        (DEEPSEEK, {}, "attn mlp moe_router moe_preprocess"),
        (DEEPSEEK, {"ep_comm_overlap": True}, "attn moe_router moe_preprocess"),
        (MIXTRAL, {"precision": "fp8-current"}, "attn moe_router"),
        (
            MIXTRAL,
            {"precision": "fp8-current", "moe_dispatcher": "deepep"},
            "attn moe_router moe_preprocess",
        ),
    ],
)
def test_graphs_stop_where_the_host_counts_tokens(model, changes, modules):
    script = export(model, replace(PLAN, ep=8, cuda_graphs=True, **changes))
    assert f"--cuda-graph-modules {modules}" in array(script, "KERNEL_ARGS")


def test_graphs_of_experts_with_a_capacity_hold_whole_layers():
    model = with_experts(MIXTRAL, capacity_factor=1.0)
    plan = replace(PLAN, ep=8, cuda_graphs=True)
    assert "--cuda-graph-modules" not in export(model, plan)
    with pytest.raises(ExportError, match="nothing for ep_comm_overlap"):
        export(model, replace(plan, ep_comm_overlap=True))


def test_older_version_has_no_graphs_of_routers_nor_latent_experts():
    with pytest.raises(ExportError, match="no CUDA graphs of routers"):
        export(MIXTRAL, replace(PLAN, ep=8, cuda_graphs=True), OLD)
    with pytest.raises(ExportError, match="latent size"):
        export(with_experts(MIXTRAL, latent_size=1024), PLAN, OLD)
    assert "--moe-latent-size 1024" in export(with_experts(MIXTRAL, latent_size=1024))


def test_older_version_does_not_replicate_key_and_value_heads():
    qwen = load_model("qwen3-30b-a3b")
    plan = replace(PLAN, tp=8, dp=1, sequence_parallel=True)
    with pytest.raises(ExportError, match="does not replicate 4 key/value heads over tp=8"):
        export(qwen, plan, OLD)
    export(qwen, plan)


def test_balance_is_a_placeholder_and_is_never_forced():
    for model in (MIXTRAL, DEEPSEEK):
        script = export(model, replace(PLAN, ep=8))
        assert "PLACEHOLDERS, edit them. Predicted for even load" in script
        forced = [line for line in script.splitlines() if "force-load-balancing" in line]
        assert [line.lstrip()[0] for line in forced] == ["#"]
    assert "Predicted for a spread of load_cv=0.3" in export(with_experts(MIXTRAL, load_cv=0.3))
    assert "seq_aux_loss" in export(DEEPSEEK)


def test_dense_models_have_no_flag_of_experts():
    script = export(load_model("llama3-8b"))
    assert "moe" not in script.replace("--moe-router-force", "")
    assert "expert" not in script


@pytest.mark.parametrize("name", ["$(touch pwned)", "a'b\nc", "`x`", '"; x #'])
@pytest.mark.parametrize("model", [MIXTRAL, load_model("nemotron-h-8b")])
def test_names_stay_out_of_the_code(model, name):
    def code(script):
        return [line for line in script.splitlines() if not line.startswith("#")]

    assert code(export(replace(model, name=name))) == code(export(model))
