"""A row of measurements becomes the plan that it states, and says what it assumes."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import pytest

from parallelsim.catalog import load_framework
from parallelsim.errors import OutputError, SpecError
from parallelsim.layers import MLP, Attention, Block, Layer
from parallelsim.measured_cases import CaseBuilder
from parallelsim.measured_text import (
    FLASH_ATTENTION_1_EFFICIENCY,
    framework_variant,
    stated_offload_pct,
    stated_switches,
)
from parallelsim.measurements import BadRow, Facts, RowError, Run, read_tables
from parallelsim.model import ModelSpec
from parallelsim.stage_split import balanced, by_cost, stage_split

ROW: Mapping[str, str] = {
    "id": "a",
    "group": "mine",
    "framework": "megatron-core",
    "gpu": "h100-80gb-sxm",
    "num_gpus": "64",
    "gpus_per_node": "8",
    "inter_node_gb_per_s_per_gpu": "25",
    "num_layers": "80",
    "hidden_size": "8192",
    "num_attention_heads": "64",
    "num_query_groups": "8",
    "ffn_hidden_size": "28672",
    "vocab_size": "128256",
    "seq_length": "8192",
    "gated_mlp": "True",
    "tp": "4",
    "cp": "1",
    "pp": "4",
    "vpp": "5",
    "dp": "4",
    "micro_batch_size": "1",
    "global_batch_size": "128",
    "schedule": "interleaved-1f1b",
    "sequence_parallel": "True",
    "zero_stage": "1",
    "recompute": "none",
    "recompute_detail": "",
    "overlap": "",
    "flash_attention": "True",
    "precision": "bf16",
    "step_time_s": "10.0",
    "tokens_per_s_per_gpu": "",
    "peak_memory_gb": "",
    "oom": "False",
    "flag": "",
    "notes": "",
    "num_experts": "",
    "mla": "",
    "offload": "",
    "fsdp": "",
    "task": "pretrain",
    "grad_dtype": "",
    "tied_embeddings": "",
    "head_dim": "",
    "layer_split": "",
    "source": "",
    "memory_kind": "",
}


def write_table(path: Path, *rows: Mapping[str, str], header: list[str] | None = None) -> Path:
    """A table of rows, each over ROW."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, header or list(ROW), extrasaction="ignore")
        writer.writeheader()
        writer.writerows({**ROW, **row} for row in rows)
    return path


def case(tmp_path: Path, **changes: str):  # type: ignore[no-untyped-def]
    """The case of one changed row."""
    (run,) = read_tables([write_table(tmp_path / "t.csv", changes)])
    assert isinstance(run, Run), run
    return CaseBuilder().build(run)


def reason(tmp_path: Path, **changes: str) -> str:
    """Why one changed row cannot be predicted."""
    (run,) = read_tables([write_table(tmp_path / "t.csv", changes)])
    if isinstance(run, BadRow):
        return run.reason
    with pytest.raises(RowError) as error:
        CaseBuilder().build(run)
    return str(error.value)


def test_a_full_row_becomes_exactly_its_plan(tmp_path: Path) -> None:
    plan = case(tmp_path).plan
    assert (plan.tp, plan.cp, plan.pp, plan.vpp, plan.dp) == (4, 1, 4, 5, 4)
    assert (plan.schedule, plan.layout, plan.recompute) == ("interleaved-1f1b", "even", "none")
    assert plan.sequence_parallel
    assert plan.zero == 1
    assert plan.precision == "bf16"


def test_the_group_changes_nothing_but_the_report(tmp_path: Path) -> None:
    one, other = case(tmp_path), case(tmp_path, group="another", id="b")
    assert (one.plan, one.framework, one.cluster, one.model) == (
        other.plan,
        other.framework,
        other.cluster,
        other.model,
    )


def test_the_model_has_the_rows_sizes(tmp_path: Path) -> None:
    model = case(tmp_path).model
    assert model.num_parameters == 70_553_706_496
    assert model.seq_length == 8192
    assert not model.tied_embeddings


def test_the_network_follows_the_row(tmp_path: Path) -> None:
    cluster = case(tmp_path, gpus_per_node="4").cluster
    assert cluster.tiers[1].bandwidth_bytes_per_s == 25e9
    assert cluster.domain_size == cluster.gpus_per_node == 4
    assert cluster.num_gpus == 64


def test_a_rack_domain_is_not_cut_to_the_node(tmp_path: Path) -> None:
    cluster = case(tmp_path, gpu="gb200-186gb", gpus_per_node="4").cluster
    assert (cluster.domain_size, cluster.gpus_per_node) == (64, 4)


def test_a_gpu_without_cluster_borrows_the_network_of_its_architecture(tmp_path: Path) -> None:
    cluster = case(tmp_path, gpu="h100-96gb-hbm2e-500w").cluster
    assert cluster.accelerator.name == "h100-96gb-hbm2e-500w"
    assert cluster.accelerator.architecture == "hopper"
    assert len(cluster.tiers) == 2


def test_what_is_not_stated_takes_a_default_that_is_named(tmp_path: Path) -> None:
    built = case(tmp_path, zero_stage="", recompute="", sequence_parallel="", precision="fp8")
    assert built.plan.zero == 1
    assert built.plan.sequence_parallel
    assert built.plan.precision == "fp8-delayed"
    for text in ("zero=1", "recompute=none", "sequence_parallel=True", "fp8 recipe=fp8-delayed"):
        assert text in built.assumed


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ({"fsdp": "FULL_SHARD"}, {"zero": 3, "dp_replicate": 1, "reshard_after_forward": True}),
        ({"fsdp": "SHARD_GRAD_OP"}, {"zero": 3, "reshard_after_forward": False}),
        ({"fsdp": "NO_SHARD", "zero_stage": "0"}, {"zero": 0}),
        ({"fsdp": "HSDP"}, {"dp_replicate": 8, "grad_dtype": "bf16"}),
        ({"fsdp": "FSDP2 shard degree 16"}, {"dp_replicate": 4, "grad_dtype": "fp32"}),
        ({"zero_stage": "3"}, {"zero": 3, "compile": False}),
        (
            {"framework": "internevo", "zero_stage": "1", "overlap": "shard group = 8 ranks"},
            {"zero": 1, "dp_replicate": 8},
        ),
        (
            {"framework": "internevo", "zero_stage": "1", "overlap": "shard group = all ranks"},
            {"zero": 1, "dp_replicate": 1},
        ),
        ({"fsdp": "FSDP2", "overlap": "torch.compile"}, {"compile": True}),
        ({"fsdp": "FSDP2", "precision": "fp8-current"}, {"compile": True}),
        (
            {"fsdp": "FSDP2", "overlap": "torch.compile", "source": "benchmarks/h100_202501.md"},
            {"compile": True, "cross_entropy_fusion": False},
        ),
        (
            {"fsdp": "FSDP2", "overlap": "torch.compile", "source": "benchmarks/h100_2025-06.md"},
            {"compile": True, "cross_entropy_fusion": True},
        ),
        (
            {"recompute": "selective", "recompute_detail": "selective layer"},
            {"recompute": "full", "recompute_num_layers": 40},
        ),
        ({"recompute": "selective"}, {"recompute": "selective", "recompute_num_layers": 0}),
        ({"offload": "0.35"}, {"activation_offload_pct": 35}),
        (
            {"recompute_detail": "cpu_offloading=True;cpu_offloading_num_layers=20"},
            {"activation_offload_pct": 25},
        ),
    ],
)
def test_sharded_runs_are_read_from_their_cells(
    tmp_path: Path, cells: dict[str, str], expected: dict[str, object]
) -> None:
    whole = {"framework": "torchtitan", "tp": "1", "pp": "1", "dp": "64", "cp": "1", "vpp": "1"}
    plan = case(tmp_path, schedule="none", micro_batch_size="1", **whole | cells).plan
    assert {name: getattr(plan, name) for name in expected} == expected


def test_fine_tuning_runs_have_adapters_and_packed_examples(tmp_path: Path) -> None:
    model = case(tmp_path, task="lora", notes="SQuAD packed to 4096 tokens").model
    assert model.lora is not None
    assert 0 < model.num_trainable_parameters < 0.001 * model.num_parameters
    assert model.layers[0].attention.window == 100
    assert model.lora.targets == ("linear_qkv",)
    exchanging = case(tmp_path, task="lora", overlap="TP_COMM_OVERLAP=True;LORA_A2A=1").model
    assert exchanging.lora.targets == ("linear_qkv", "linear_proj")
    plain = case(tmp_path, task="sft").model
    assert plain.lora is None
    assert plain.layers[0].attention.window is None


def test_adapters_have_no_user_buffers_unless_stated(tmp_path: Path) -> None:
    assert case(tmp_path, task="sft", overlap="").plan.tp_comm_overlap
    assert not case(tmp_path, task="lora", overlap="").plan.tp_comm_overlap
    assert case(tmp_path, task="lora", overlap="TP_COMM_OVERLAP=True").plan.tp_comm_overlap


def test_a_row_without_precision_follows_no_recipe(tmp_path: Path) -> None:
    plan = case(tmp_path, precision="", gated_mlp="False").plan
    assert plan.precision == "fp16"
    assert plan.grad_dtype == "bf16"
    assert not plan.cross_entropy_fusion
    assert not plan.tp_comm_overlap


def test_stated_absence_of_overlap_turns_all_of_it_off(tmp_path: Path) -> None:
    plan = case(tmp_path, overlap="none (stated off)").plan
    assert not (plan.tp_comm_overlap)
    assert not (plan.overlap_grad_reduce)
    assert not (plan.overlap_param_gather)
    assert plan.grad_dtype == "fp32"


def test_launch_settings_in_text_are_read() -> None:
    text = (
        "ub_tp_comm_overlap=false;overlap_grad_sync=true;"
        "overlap_param_gather_with_optimizer_step=true"
    )
    detail = "settings.model.cuda_graph_impl=local;tp_comm_overlap_cfg=userbuffers_bf16"
    assert stated_switches(Facts({"overlap": text, "recompute_detail": detail})) == {
        "tp_comm_overlap": False,
        "overlap_grad_reduce": True,
        "cuda_graphs": True,
    }


def test_columns_say_it_better_than_text(tmp_path: Path) -> None:
    """A switch or a kernel in a column of its own needs no notes, and overrules them."""
    facts = Facts({"overlap": "overlap_grad_sync=true", "overlap_grad_reduce": "False"})
    assert stated_switches(facts) == {"overlap_grad_reduce": False}
    deepspeed = load_framework("deepspeed")
    assert not deepspeed.compute.fused_rmsnorm
    stated = framework_variant(deepspeed, Facts({"fused_rmsnorm": "True"}))
    noted = framework_variant(deepspeed, Facts({"notes": "kernel=flash_attention2 + RMS kernel"}))
    assert stated.compute.fused_rmsnorm
    assert stated == noted
    overruled = {"notes": "kernel=torch", "fused_softmax": "True", "flash_attention": "False"}
    assert framework_variant(deepspeed, Facts(overruled)).compute.fused_softmax


def test_recomputed_layers_are_read_from_the_detail(tmp_path: Path) -> None:
    plan = case(tmp_path, recompute="full", recompute_detail="recompute_num_layers=3").plan
    assert plan.recompute_label == "full:3"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", 0), ("False", 0), ("0.0", 0), ("0.302", 30), ("1.0", 100)],
)
def test_offload_is_a_share_of_the_activations(text: str, expected: int) -> None:
    assert stated_offload_pct(Facts({"offload": text}), 80) == expected


def test_kernels_of_the_row_replace_those_of_the_framework(tmp_path: Path) -> None:
    unfused = case(
        tmp_path, framework="deepspeed", flash_attention="False", notes="kernel=fused"
    ).framework
    assert not unfused.compute.flash_attention
    assert unfused.compute.fused_softmax
    fa1 = case(
        tmp_path, framework="deepspeed", flash_attention="fa1", gpu="a100-80gb-sxm"
    ).framework
    assert fa1.compute.flash_attention
    assert fa1.compute.attention_efficiency["ampere"] == pytest.approx(
        FLASH_ATTENTION_1_EFFICIENCY
        * load_framework("deepspeed").compute.attention_efficiency["ampere"]
    )
    norm = case(
        tmp_path, framework="deepspeed", notes="kernel=flash_attention2 + RMS kernel"
    ).framework
    assert norm.compute.fused_rmsnorm
    assert norm.memory.unfused_norm_bytes == 0


def test_equal_rows_share_one_model_cluster_and_framework(tmp_path: Path) -> None:
    rows = [{"id": str(i), "micro_batch_size": str(2**i)} for i in range(3)]
    builder = CaseBuilder()
    runs = read_tables([write_table(tmp_path / "t.csv", *rows)])
    cases = [builder.build(run) for run in runs if isinstance(run, Run)]
    assert len(cases) == 3
    assert len({(id(c.model), id(c.cluster), id(c.framework)) for c in cases}) == 1


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"num_experts": "8"}, "moe_top_k is not stated"),
        ({"mla": "q_lora_rank=1536"}, "kv_lora_rank"),
        ({"task": "distillation"}, "task distillation"),
        ({"schedule": "vocab-1"}, "schedule vocab-1"),
        ({"offload": "weights"}, "offload=weights: expected the share"),
        ({"sequence_parallel": "DeepSpeed-Ulysses (all-to-all) 16"}, "all-to-all"),
        ({"framework": "", "group": "x"}, "--framework"),
        ({"framework": "oneflow"}, "oneflow"),
        ({"gpu": "tpu-v5"}, "tpu-v5"),
        ({"dp": "3"}, "tp=4 x cp=1 x pp=4 x dp=3 is not num_gpus=64"),
        ({"num_gpus": "nan"}, "num_gpus is no number: 'nan'"),
        ({"hidden_size": "inf"}, "hidden_size is no number"),
        ({"hidden_size": "-8"}, "hidden_size must be a whole number"),
        ({"tp": "2.5"}, "tp must be a whole number"),
        ({"global_batch_size": "130"}, "global_batch_size=130 is no multiple"),
        ({"num_layers": ""}, "num_layers is not stated"),
        ({"num_query_groups": "7"}, "cannot share 7"),
        ({"step_time_s": "nan"}, "step_time_s is no number"),
        ({"step_time_s": "0"}, "step_time_s must be above 0"),
        ({"oom": "maybe"}, "oom must be True or False"),
        ({"precision": "int4"}, "precision int4"),
        ({"step_time_s": "10000", "tokens_per_s_per_gpu": "1638.4"}, "milliseconds?"),
        ({"step_time_s": "0.1667", "tokens_per_s_per_gpu": "1638.4"}, "minutes?"),
        ({"step_time_s": "10", "tokens_per_s_per_gpu": "104857.6"}, "tokens/s of all GPUs?"),
        ({"schedule": "gpipe"}, "schedule gpipe has one stage a rank, got vpp=5"),
        ({"fsdp": "SDPA"}, "fsdp='SDPA': expected True"),
        ({"gpu": "A100-80GB"}, "may be a100-80gb-pcie, a100-80gb-sxm"),
        ({"gpu": "H100"}, "may be h100-80gb-sxm, h100-96gb-hbm2e-500w"),
        ({"step_time_s": "1e400"}, "step_time_s is no number"),
        ({"num_gpus": "1,024"}, "num_gpus is no number"),
        ({"step_time_s": "10%"}, "step_time_s is no number"),
    ],
)
def test_a_row_that_cannot_be_scored_says_why(
    tmp_path: Path, changes: dict[str, str], why: str
) -> None:
    text = reason(tmp_path, **changes)
    assert why in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("column", "text", "plain"),
    [
        ("precision", "bfloat16", "bf16"),
        ("precision", "BF16", "bf16"),
        ("precision", "half", "fp16"),
        ("precision", "fp8_tensorwise", "fp8-current"),
        ("precision", "TF32", "fp32"),
        ("schedule", "Interleaved", "interleaved-1f1b"),
        ("schedule", "interleaved_1F1B", "interleaved-1f1b"),
        ("framework", "Megatron-LM", "megatron-core"),
        ("framework", "Megatron_Core", "megatron-core"),
        ("framework", "NeMo", "megatron-core"),
        ("framework", "TorchTitan", "torchtitan"),
        ("gpu", "B200", "b200-180gb-sxm"),
        ("gpu", "A100 SXM 80GB", "a100-80gb-sxm"),
        ("gpu", "NVIDIA A100-SXM4-80GB", "a100-80gb-sxm"),
        ("gpu", "NVIDIA H100 80GB HBM3", "h100-80gb-sxm"),
        ("sequence_parallel", "yes", "True"),
        ("num_gpus", "\N{NO-BREAK SPACE}64.0", "64"),
    ],
)
def test_names_are_read_as_people_write_them(
    tmp_path: Path, column: str, text: str, plain: str
) -> None:
    read, meant = case(tmp_path, **{column: text}), case(tmp_path, **{column: plain})
    assert (read.plan, read.assumed) == (meant.plan, meant.assumed)
    assert read.cluster == meant.cluster
    assert read.framework == meant.framework


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_gradients_of_fp32_are_fp32(tmp_path: Path, precision: str) -> None:
    for software in ("megatron-core", "deepspeed", "llm-foundry"):
        found = case(tmp_path, precision=precision, framework=software, vpp="1", pp="1", dp="16")
        assert (found.plan.precision, found.plan.grad_dtype) == ("fp32", "fp32")


def test_step_time_follows_from_throughput(tmp_path: Path) -> None:
    table = write_table(tmp_path / "t.csv", {"step_time_s": "", "tokens_per_s_per_gpu": "1638.4"})
    (run,) = read_tables([table])
    assert isinstance(run, Run)
    assert run.step_time_s == pytest.approx(128 * 8192 / (1638.4 * 64))


@pytest.mark.parametrize(
    ("kind", "unit"),
    [("", 1e9), ("torch max reserved, GiB converted to GB", 1e9), ("GB or GiB as printed", 2**30)],
)
def test_memory_of_an_open_unit_is_binary(tmp_path: Path, kind: str, unit: float) -> None:
    cells = {"peak_memory_gb": "40", "memory_kind": kind}
    (run,) = read_tables([write_table(tmp_path / "t.csv", cells)])
    assert isinstance(run, Run)
    assert run.peak_memory_bytes == 40 * unit
    assert ("memory in GiB" in case(tmp_path, **cells).assumed) == (unit != 1e9)


def test_duplicate_ids_are_scored_once_also_across_tables(tmp_path: Path) -> None:
    one = write_table(tmp_path / "a.csv", {}, {})
    two = write_table(tmp_path / "b.csv", {})
    rows = read_tables([one, two])
    assert [isinstance(row, BadRow) for row in rows] == [False, True, True]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "empty"),
        (b"\n\n", "empty"),
        (b"\x00\x01\x02", "not a text file"),
        (b"\xff\xfe\x41", "not UTF-8"),
        (b"id,tp,tp\n", "twice"),
        (b"id,step_time_s\na,1\n", "missing columns gpu, num_gpus"),
        (b'id,"gpu\n' + b"x" * 200_000, "not a CSV table"),
    ],
)
def test_a_file_that_is_no_table_is_one_line_of_error(
    tmp_path: Path, content: bytes, why: str
) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(SpecError) as error:
        read_tables([path])
    assert why in str(error.value)
    assert "\n" not in str(error.value)


def test_another_unit_in_the_header_is_pointed_out(tmp_path: Path) -> None:
    header = [
        name
        for name in ROW
        if name not in ("step_time_s", "tokens_per_s_per_gpu", "peak_memory_gb", "oom")
    ]
    table = write_table(tmp_path / "t.csv", {"step_time_ms": "1"}, header=[*header, "step_time_ms"])
    with pytest.raises(
        SpecError, match=r"'step_time_ms' is in another unit: convert it to 'step_time_s'"
    ):
        read_tables([table])


def test_a_misspelt_column_is_recognised(tmp_path: Path) -> None:
    header = [name if name != "hidden_size" else "hiden_size" for name in ROW]
    with pytest.raises(SpecError, match=r"missing column hidden_size; is 'hiden_size' meant"):
        read_tables([write_table(tmp_path / "t.csv", {}, header=header)])


def test_a_missing_file_is_an_output_error(tmp_path: Path) -> None:
    with pytest.raises(OutputError):
        read_tables([tmp_path / "none.csv"])


def test_a_ragged_row_is_skipped(tmp_path: Path) -> None:
    table = write_table(tmp_path / "t.csv", {})
    table.write_text(table.read_text() + "b,mine\n")
    assert isinstance(read_tables([table])[1], BadRow)


def _model(num_layers: int, vocab_size: int) -> ModelSpec:
    layer = Layer(Attention(32, 32, 128), MLP(11008, True))
    return ModelSpec("m", 4096, vocab_size, 4096, 4096, 0, (Block(num_layers, (layer,)),))


def test_even_layers_need_no_layout() -> None:
    assert stage_split(_model(32, 32000), 4, 2, "even") == {"layout": "even"}


def test_two_missing_layers_are_embedding_and_loss() -> None:
    assert stage_split(_model(126, 128256), 16, 8, "even") == {"layout": "embedding-loss"}


def test_a_remainder_stays_on_the_last_stage() -> None:
    split = stage_split(_model(31, 32000), 4, 1, "even")
    assert split == {"layout": "first-last", "first_stage_layers": 8, "last_stage_layers": 7}


@pytest.mark.parametrize("pp", [2, 4, 8])
@pytest.mark.parametrize("vocab_size", [32_000, 256_000])
def test_every_split_keeps_all_layers(pp: int, vocab_size: int) -> None:
    model = _model(32, vocab_size)
    for counts in (by_cost(model, pp), balanced(model, pp)):
        assert sum(counts) == 32
        assert len(counts) == pp
        assert min(counts) >= 0


def test_a_large_vocabulary_takes_layers_from_the_last_stage() -> None:
    assert balanced(_model(32, 256_000), 4)[-1] < 8
    assert by_cost(_model(32, 256_000), 4)[-1] < 8


def test_more_stages_than_layers_is_refused() -> None:
    with pytest.raises(SpecError, match="2 layers do not fill 4 stages"):
        stage_split(_model(2, 32000), 4, 1, "even")


def test_unstated_settings_of_experts_follow_the_release(tmp_path: Path) -> None:
    """Megatron's own defaults, or the recipes that came with a vendor's container."""
    experts = {"num_experts": "8", "moe_top_k": "2", "moe_ffn_hidden_size": "8192", "ep": "4"}
    released, quoted = "container NeMo 25.11", "settings.model.recompute_modules=['mlp']"
    rack = {"gpu": "gb200-186gb", "gpus_per_node": "4", "notes": released}
    rows = [
        experts | {"id": "own"},
        experts | {"id": "nodes", "tp": "2", "ep": "16", "num_experts": "16", "notes": released},
        experts | {"id": "rack"} | rack,
        experts | {"id": "quoted", "recompute_detail": quoted} | rack,
        experts | {"id": "first"} | rack | {"notes": "container NeMo 25.09"},
        experts | {"id": "drops", "tp": "2", "ep": "16", "num_experts": "16"},
    ]
    rows[5]["notes"] = "token drop; container NeMo 25.09"
    rows[1]["dp"] = rows[5]["dp"] = "8"
    header = [*ROW, *(name for name in experts if name not in ROW)]
    runs = read_tables([write_table(tmp_path / "t.csv", *rows, header=header)])
    plans = [CaseBuilder().build(run).plan for run in runs if isinstance(run, Run)]
    assert [(p.etp, p.moe_dispatcher, p.ep_comm_overlap, p.cuda_graphs) for p in plans] == [
        (4, "all-to-all", False, False),
        (1, "all-to-all", True, False),
        (1, "deepep", False, True),
        (1, "deepep", False, False),
        (1, "all-to-all", False, True),
        (1, "all-to-all", False, False),
    ]
    latent = "q_lora_rank=64;kv_lora_rank=64;qk_nope_head_dim=32;qk_rope_head_dim=16;v_head_dim=32"
    plan = case(tmp_path, mla=latent, notes="container NeMo 25.09").plan
    assert (plan.recompute, plan.recompute_modules) == ("none", "core_attn")  # stated
    plan = case(tmp_path, mla=latent, notes="container NeMo 25.09", recompute="").plan
    assert (plan.recompute, plan.recompute_modules) == ("selective", "mla_up_proj")


def test_a_named_model_of_the_catalogue_fills_what_the_row_leaves_out(tmp_path: Path) -> None:
    (run,) = read_tables(
        [
            write_table(
                tmp_path / "t.csv",
                {"model": "Llama3 70B pretraining", "vocab_size": "", "ffn_hidden_size": ""},
                header=[*ROW, "model"],
            )
        ]
    )
    assert isinstance(run, Run)
    model = CaseBuilder().build(run).model
    assert (model.name, model.seq_length) == ("llama3-70b", 8192)
    assert reason(tmp_path, vocab_size="") == "vocab_size is not stated"
