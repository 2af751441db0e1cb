"""The exported script is valid bash that says what the plan says, or is refused with the reason."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from parallelsim.catalog import load_cluster, load_framework, load_model, model_names
from parallelsim.errors import ExportError
from parallelsim.exporters import EXPORTERS
from parallelsim.exporters.megatron import DEFAULT_VERSION, export_megatron
from parallelsim.exporters.megatron_flags import (
    CP_COMM_FLAGS,
    PRECISION_FLAGS,
    VERSIONS,
)
from parallelsim.exporters.megatron_model import ACTIVATION_FLAGS, model_refusals
from parallelsim.layers import Attention, Block, Layer
from parallelsim.model import ModelSpec
from parallelsim.plan import CP_COMM_TYPES, PRECISIONS, Plan

LLAMA = load_model("llama3-70b").with_seq_length(8192)
H100 = load_cluster("hgx-h100", 256)
MEGATRON = load_framework("megatron-core")
PLAN = Plan(
    tp=8,
    pp=4,
    vpp=5,
    dp=8,
    micro_batch_size=2,
    global_batch_size=512,
    schedule="interleaved-1f1b",
    sequence_parallel=True,
    zero=1,
    recompute="selective",
    overlap_grad_reduce=True,
    overlap_param_gather=True,
)
SMALL = Plan(tp=2, dp=4, global_batch_size=8)
NODE = load_cluster("hgx-h100", 8)


def export(plan=PLAN, model=LLAMA, cluster=H100, framework=MEGATRON, version=DEFAULT_VERSION):
    return export_megatron(model, cluster, framework, plan, version=version)


def arguments(script: str, tmp_path: Path, **env: str) -> tuple[list[str], dict[str, str]]:
    """What bash starts torchrun with: its arguments and the environment."""
    out = tmp_path / "out.json"
    stub = tmp_path / "torchrun"
    stub.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        f"json.dump([sys.argv[1:], dict(os.environ)], open({str(out)!r}, 'w'))\n"
    )
    stub.chmod(0o755)
    (tmp_path / "run.sh").write_text(script)
    clean = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    many_nodes = {"NODE_RANK": "0", "MASTER_ADDR": "node0"}
    subprocess.run(
        ["bash", str(tmp_path / "run.sh")], check=True, env=clean | many_nodes | env, cwd=tmp_path
    )
    argv, started = json.loads(out.read_text())
    return argv, started


def value(argv: list[str], flag: str) -> str:
    assert argv.count(flag) == 1, flag
    return argv[argv.index(flag) + 1]


def with_layers(model: ModelSpec, **changes: object) -> ModelSpec:
    layer = replace(model.layers[0], **changes)
    return replace(model, blocks=(Block(model.num_layers, (layer,)),))


def with_attention(model: ModelSpec, **changes: object) -> ModelSpec:
    return with_layers(model, attention=replace(model.layers[0].attention, **changes))


def with_mlp(model: ModelSpec, **changes: object) -> ModelSpec:
    return with_layers(model, mlp=replace(model.layers[0].mlp, **changes))


def test_megatron_is_an_export_target():
    assert EXPORTERS["megatron"] is export_megatron


def test_the_plan_is_what_torchrun_gets(tmp_path):
    argv, env = arguments(export(), tmp_path)
    expected = {
        "--nnodes": "32",
        "--nproc_per_node": "8",
        "--node_rank": "0",
        "--master_addr": "node0",
        "--tensor-model-parallel-size": "8",
        "--context-parallel-size": "1",
        "--pipeline-model-parallel-size": "4",
        "--num-virtual-stages-per-pipeline-rank": "5",
        "--micro-batch-size": "2",
        "--global-batch-size": "512",
        "--num-layers": "80",
        "--hidden-size": "8192",
        "--ffn-hidden-size": "28672",
        "--num-attention-heads": "64",
        "--num-query-groups": "8",
        "--kv-channels": "128",
        "--seq-length": "8192",
        "--vocab-size": "128256",
        "--normalization": "RMSNorm",
        "--position-embedding-type": "rope",
        "--tokenizer-type": "NullTokenizer",
        "--recompute-granularity": "selective",
    }
    assert {flag: value(argv, flag) for flag in expected} == expected
    for switch in (
        "--sequence-parallel",
        "--use-distributed-optimizer",
        "--overlap-grad-reduce",
        "--overlap-param-gather",
        "--bf16",
        "--swiglu",
        "--disable-bias-linear",
        "--untie-embeddings-and-output-weights",
        "--group-query-attention",
        "--mock-data",
    ):
        assert switch in argv
    for absent in ("--cp-comm-type", "--grad-reduce-in-bf16", "--tp-comm-overlap", "--save"):
        assert absent not in argv
    assert env["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    world = int(value(argv, "--nnodes")) * int(value(argv, "--nproc_per_node"))
    degrees = [value(argv, f"--{name}-size") for name in ("tensor-model-parallel",)]
    degrees += [value(argv, "--context-parallel-size")]
    degrees += [value(argv, "--pipeline-model-parallel-size"), str(PLAN.dp)]
    product = 1
    for degree in degrees:
        product *= int(degree)
    assert product == world == PLAN.num_gpus


def test_flags_are_never_repeated(tmp_path):
    argv, _ = arguments(export(), tmp_path)
    flags = [word for word in argv if word.startswith("--")]
    assert len(flags) == len(set(flags))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", model_names())
def test_every_catalogue_model_exports_or_is_refused_with_a_reason(name, version):
    model = load_model(name)
    small = replace(SMALL, sequence_parallel=True)  # as mixtures of experts need it
    if list(model_refusals(model)):
        with pytest.raises(ExportError, match=name):
            export(small, model, NODE, version=version)
        return
    heads = {layer.attention.num_heads for layer in model.layers if layer.attention}
    plan = small if all(count % 2 == 0 for count in heads) else replace(SMALL, tp=1, dp=8)
    script = export(plan, model, NODE, version=version)
    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert version in script.splitlines()[2]


@pytest.mark.parametrize("name", ["bloom-176b", "falcon-180b", "gemma2-27b", "bert-large"])
def test_architectures_that_megatron_cannot_build_are_refused(name):
    assert list(model_refusals(load_model(name)))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"position_embedding": "alibi"}, "alibi"),
        ({"embedding_norm": True}, "norm after the embedding"),
        ({"output_bias": True}, "output layer has no bias"),
        ({"final_norm": False}, "ends in a norm"),
        ({"norm": "layernorm"}, "layernorm without bias"),
        ({"pooler": True}, "BERT"),
        ({"num_token_types": 2}, "BERT"),
    ],
)
def test_model_that_is_no_plain_decoder_is_refused(change, reason):
    with pytest.raises(ExportError, match=reason):
        export(model=replace(LLAMA, **change))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (with_layers(LLAMA, parallel=True), "parallel"),
        (with_layers(LLAMA, num_norms=4), "2 norms, not 4"),
        (with_attention(LLAMA, causal=False), "bidirectional"),
        (with_attention(LLAMA, output_bias=True), "biases"),
        (with_mlp(LLAMA, activation="gelu"), "no exact gated gelu"),
        (with_mlp(LLAMA, gated=False), "no exact plain silu"),
        (with_attention(replace(LLAMA, norm="layernorm", norm_bias=True), qk_norm=True), "queries"),
    ],
)
def test_layer_that_megatron_cannot_build_is_refused(model, reason):
    with pytest.raises(ExportError, match=reason):
        export(model=model)


def test_layers_of_different_width_are_refused():
    wide = replace(LLAMA.layers[0], mlp=replace(LLAMA.layers[0].mlp, ffn_hidden_size=57344))
    model = replace(LLAMA, blocks=(Block(40, (LLAMA.layers[0], wide)),))
    with pytest.raises(ExportError, match="differ only in the attention window"):
        export(model=model)


def windowed(model: ModelSpec, *windows: int | None) -> ModelSpec:
    layer = model.layers[0]
    layers = tuple(replace(layer, attention=replace(layer.attention, window=w)) for w in windows)
    return replace(model, blocks=(Block(model.num_layers // len(windows), layers),))


def test_window_counts_the_tokens_before_each_and_names_the_layers(tmp_path):
    argv, _ = arguments(export(model=windowed(LLAMA, 4096, None)), tmp_path)
    assert value(argv, "--window-size") == "4095,0"
    assert json.loads(value(argv, "--window-attn-skip-freq")) == [1, 0] * 40


def test_window_of_all_layers_needs_no_pattern(tmp_path):
    argv, _ = arguments(export(model=windowed(LLAMA, 4096)), tmp_path)
    assert "--window-attn-skip-freq" not in argv


def test_window_beyond_the_sequence_is_left_out():
    assert "--window" not in export(model=windowed(LLAMA, 8192))


def test_two_window_sizes_are_refused():
    with pytest.raises(ExportError, match="one size of attention window"):
        export(model=windowed(LLAMA, 4096, 1024))


def test_biases_and_norms_have_their_flags():
    qwen = export(SMALL, load_model("qwen2.5-72b"), NODE)
    assert "--add-qkv-bias" in qwen
    assert "--disable-bias-linear" in qwen
    assert "--qk-layernorm" in export(SMALL, load_model("qwen3-32b"), NODE)
    gpt3 = export(SMALL, load_model("gpt3-175b"), NODE)
    assert "bias-linear" not in gpt3
    assert "--normalization LayerNorm" in gpt3
    assert "--position-embedding-type learned_absolute" in gpt3
    assert "--rotary-base" not in gpt3
    assert "--rotary-base 1000000" in qwen
    assert "--group-query-attention" not in gpt3
    assert "--untie" not in gpt3
    nemotron = export(SMALL, load_model("nemotron4-15b"), NODE)
    assert "--squared-relu" in nemotron
    assert "--rotary-percent 0.5" in nemotron


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        (
            {"pp": 2, "dp": 16, "vpp": 1, "layout": "embedding-loss", "schedule": "1f1b"},
            ["account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split"],
        ),
        (
            {"layout": "first-last", "first_stage_layers": 15, "last_stage_layers": 15},
            ["decoder-first-pipeline-num-layers 15", "decoder-last-pipeline-num-layers 15"],
        ),
        (
            {"recompute": "full"},
            ["recompute-method uniform", "recompute-num-layers 1", "recompute-granularity full"],
        ),
        (
            {"recompute": "full", "recompute_num_layers": 3},
            ["recompute-method block", "recompute-num-layers 3"],
        ),
        ({"recompute": "none"}, []),
        ({"grad_dtype": "bf16"}, ["bf16", "grad-reduce-in-bf16"]),
        ({"precision": "fp16"}, ["fp16", "accumulate-allreduce-grads-in-fp32"]),
        ({"precision": "fp8-current"}, ["bf16", "fp8-format hybrid", "fp8-recipe tensorwise"]),
        ({"precision": "fp8-delayed", "fp8_param_gather": True}, ["fp8-param-gather"]),
        ({"tp_comm_overlap": True}, ["tp-comm-overlap"]),
        ({"cross_entropy_fusion": True}, ["cross-entropy-loss-fusion"]),
        ({"cuda_graphs": True}, ["cuda-graph-impl transformer_engine", "te-rng-tracker"]),
        ({"cp": 2, "dp": 4, "cp_comm_type": "all-gather"}, ["cp-comm-type all_gather"]),
    ],
)
def test_each_choice_has_its_flags(changes, lines):
    script = export(replace(PLAN, **changes)).splitlines()
    assert [line for line in lines if f"  --{line}" not in script] == []


def test_mxfp8_weights_are_made_from_the_gradient_buffer():
    plan = replace(PLAN, precision="mxfp8", fp8_param_gather=True)
    script = export(plan, cluster=load_cluster("hgx-b200", 256))
    assert "--fp8-param-gather" in script
    assert "--reuse-grad-buf-for-mxfp8-param-ag" in script
    assert "--reuse" not in export(replace(PLAN, precision="fp8-current", fp8_param_gather=True))


def test_no_recompute_leaves_no_recompute_flag():
    assert "--recompute" not in export(replace(PLAN, recompute="none"))


def test_tables_of_flags_cover_every_value():
    assert set(PRECISION_FLAGS) == set(PRECISIONS)
    assert set(CP_COMM_FLAGS) == set(CP_COMM_TYPES)
    assert {activation for _, activation in ACTIVATION_FLAGS} == {
        "silu",
        "clamped-silu",
        "gelu",
        "squared-relu",
    }


@pytest.mark.parametrize(
    ("cluster", "plan", "is_set"),
    [
        ("hgx-h100", SMALL, True),
        ("hgx-h100", replace(SMALL, tp=1, cp=2), True),
        ("hgx-h100", replace(SMALL, tp=1, dp=8), False),
        ("hgx-b200", SMALL, False),
        ("mi300x", SMALL, True),
    ],
)
def test_one_hardware_queue_is_set_where_megatron_demands_it(cluster, plan, is_set):
    script = export(plan, cluster=load_cluster(cluster, 8))
    assert ("export CUDA_DEVICE_MAX_CONNECTIONS=1" in script) is is_set


@pytest.mark.parametrize(
    ("cluster", "precision", "backend"),
    [
        ("hgx-h100", "bf16", "fused"),
        ("hgx-b200", "mxfp8", "fused"),
        ("dgx-a100-80gb", "bf16", "flash"),
        ("hgx-h100", "fp32", "auto"),
    ],
)
def test_attention_backend_is_what_the_hardware_prefers(cluster, precision, backend):
    plan = replace(SMALL, precision=precision)
    assert f"--attention-backend {backend}\n" in export(plan, cluster=load_cluster(cluster, 8))


def test_transformer_engine_is_refused_before_ampere():
    with pytest.raises(ExportError, match="compute capability"):
        export(replace(SMALL, precision="fp16"), cluster=load_cluster("dgx-v100", 8))


def test_one_node_needs_no_settings_and_many_ask_for_theirs(tmp_path):
    script = export(SMALL, cluster=NODE)
    argv, _ = arguments(script, tmp_path, MASTER_ADDR="", NODE_RANK="")
    assert value(argv, "--nnodes") == "1"
    assert value(argv, "--master_addr") == "localhost"
    (tmp_path / "many.sh").write_text(export())
    clean = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", str(tmp_path / "many.sh")], env=clean, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "NODE_RANK" in done.stderr


def test_fewer_gpus_than_a_node_start_that_many_processes(tmp_path):
    plan = Plan(tp=2, global_batch_size=8)
    argv, _ = arguments(export(plan, cluster=load_cluster("hgx-h100", 2)), tmp_path)
    assert (value(argv, "--nnodes"), value(argv, "--nproc_per_node")) == ("1", "2")


def test_settings_come_from_the_environment_and_arguments_are_passed_on(tmp_path):
    odd = "a b'c\"$(touch pwned)"
    script = export()
    (tmp_path / "x").mkdir()
    argv, _ = arguments(
        script, tmp_path, DATA_PATH=odd, TOKENIZER_MODEL=odd, CHECKPOINT_PATH=odd, TRAIN_ITERS="7"
    )
    for flag in ("--data-path", "--tokenizer-model", "--save", "--load"):
        assert value(argv, flag) == odd
    assert value(argv, "--train-iters") == "7"
    assert "--mock-data" not in argv
    assert not (tmp_path / "pwned").exists()


def test_null_tokenizer_adds_a_token_in_older_versions():
    assert "--vocab-size 128255)" in export(version="core_v0.15.0")
    assert "--vocab-size 128256)" in export(version="main-2026-08")


def test_cuda_graph_scope_is_named_where_the_version_needs_it():
    graphs = replace(PLAN, cuda_graphs=True, recompute="none")
    assert "--cuda-graph-scope full" in export(graphs, version="core_v0.15.0")
    assert "--cuda-graph-scope" not in export(graphs, version="main-2026-08")


def test_older_version_refuses_graphs_with_recompute():
    with pytest.raises(ExportError, match="no CUDA graphs with recompute"):
        export(replace(PLAN, cuda_graphs=True), version="core_v0.15.0")


def test_unknown_version_names_the_known():
    with pytest.raises(ExportError, match="main-2026-08"):
        export(version="core_v9")


def test_framework_that_megatron_does_not_launch_is_refused():
    with pytest.raises(ExportError, match="not launched by Megatron-LM"):
        export(framework=replace(MEGATRON, name="nanotron", launches=()))


def test_plan_that_breaks_a_rule_is_refused_with_its_numbers():
    with pytest.raises(ExportError, match="tp=8 x cp=1 x pp=4 x dp=4 = 128 GPUs"):
        export(replace(PLAN, dp=4))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"zero": 3, "optimizer_offload_pct": 50}, "goes with zero=1, not zero=3"),
        ({"zero": 3, "optimizer": "muon"}, "adam and sgd, not muon"),
        ({"zero": 0, "optimizer": "adam-bf16"}, "distributed optimizer"),
        ({"activation_offload_pct": 100}, "whole layers, 1 to 79 of 80: .*=100 is 80"),
        ({"activation_offload_pct": 50, "recompute": "full"}, "or recomputes them"),
        ({"schedule": "gpipe", "pp": 2, "dp": 2}, "gpipe"),
        ({"precision": "fp32", "cp": 2, "dp": 2}, "fp32"),
    ],
)
def test_plan_that_another_framework_allows_but_megatron_does_not_is_refused(changes, reason):
    able = replace(MEGATRON.capabilities, zero_stages=(0, 1, 2, 3), schedules=("gpipe", "1f1b"))
    framework = replace(MEGATRON, capabilities=able)
    with pytest.raises(ExportError, match=reason):
        export(replace(SMALL, **changes), LLAMA, NODE, framework)


@pytest.mark.parametrize(
    ("changes", "flags"),
    [
        (
            {"zero": 3, "dp_replicate": 2, "overlap_grad_reduce": True},
            "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params "
            "--ckpt-format fsdp_dtensor --num-distributed-optimizer-instances 2",
        ),
        ({"zero": 2}, "--data-parallel-sharding-strategy optim_grads"),
        (
            {"optimizer_offload_pct": 50},
            "--optimizer-cpu-offload --optimizer-offload-fraction 0.5 "
            "--overlap-cpu-optimizer-d2h-h2d --use-precision-aware-optimizer",
        ),
        ({"activation_offload_pct": 50}, "--cpu-offloading-num-layers 40"),
        ({"optimizer": "adam-bf16"}, "--exp-avg-dtype bf16 --exp-avg-sq-dtype bf16"),
        ({"optimizer": "muon"}, "--optimizer muon"),
    ],
)
def test_sharding_offload_and_optimizers_are_written(changes, flags):
    script = export(replace(SMALL, **{"zero": 1, **changes}), LLAMA, NODE)
    words = flags.split(" --")
    for flag in (words[0], *(f"--{word}" for word in words[1:])):
        assert f"  {flag}\n" in script
    assert ("unset CUDA_DEVICE_MAX_CONNECTIONS" in script) == (changes.get("zero", 1) >= 2)
    assert ("OMP_NUM_THREADS=1\n" in script) == ("optimizer_offload_pct" not in changes)


def test_attention_dropout_in_graphs_with_recompute_is_refused():
    plan = replace(PLAN, cuda_graphs=True)
    with pytest.raises(ExportError, match="dropout"):
        export(plan, replace(LLAMA, attention_dropout=0.1))


@pytest.mark.parametrize(
    "name",
    [
        "a\nrm -rf x",
        "$(touch pwned)",
        "`touch pwned`",
        "'\"; touch pwned #",
        "\r\x1b[31m",
        "x" * 999,
    ],
)
def test_names_cannot_inject_commands(name, tmp_path):
    script = export(
        SMALL,
        replace(LLAMA, name=name),
        replace(NODE, name=name),
        replace(MEGATRON, name=name),
    )
    plain = export(SMALL, cluster=NODE)
    code = [line for line in script.splitlines() if not line.startswith("#")]
    assert code == [line for line in plain.splitlines() if not line.startswith("#")]
    assert script.isascii()
    assert all(len(line) < 400 for line in script.splitlines())
    arguments(script, tmp_path)
    assert not (tmp_path / "pwned").exists()


def test_refusals_are_one_printable_line_whatever_the_name():
    with pytest.raises(ExportError) as caught:
        export(model=replace(LLAMA, name="a\nb\x1b", embedding_norm=True))
    assert str(caught.value).isprintable()


def test_script_words_survive_the_shell():
    # Every word of every array is a plain word, a quoted variable or a quoted list.
    for line in export(model=windowed(LLAMA, 4096, None)).splitlines():
        if line.startswith("  --") and "{" not in line:
            assert len(shlex.split(line.rstrip("\\"))) <= 6


def test_a_small_model_written_in_code_exports():
    layer = Layer(Attention(8, 8, 64), replace(LLAMA.layers[0].mlp, ffn_hidden_size=2048))
    model = ModelSpec(
        name="tiny",
        hidden_size=512,
        vocab_size=1000,
        seq_length=1024,
        max_seq_length=1024,
        default_global_batch_tokens=8192,
        blocks=(Block(4, (layer,)),),
    )
    assert "--num-layers 4" in export(SMALL, model, NODE)
