"""torchtitan's files say what the plan says, are read back as the plan, or are refused."""

from __future__ import annotations

import ast
import tomllib
from dataclasses import replace
from typing import Any

import pytest
from random_exports import some_plans

from parallelsim.catalog import load_cluster, load_framework, load_model
from parallelsim.errors import ExportError, SpecError
from parallelsim.exporters.torchtitan import export_torchtitan
from parallelsim.exporters.torchtitan_models import FLAVORS, MAIN, RELEASE, registered
from parallelsim.importers.readers import reader_of
from parallelsim.importers.torchtitan import import_torchtitan
from parallelsim.plan import Plan

LLAMA = load_model("llama3-70b").with_seq_length(8192)
H100 = load_cluster("hgx-h100", 256)
TITAN = load_framework("torchtitan")
PLAN = Plan(
    *(8, 1, 4, 5, 8),
    micro_batch_size=2,
    global_batch_size=512,
    schedule="interleaved-1f1b",
    sequence_parallel=True,
    zero=3,
    reshard_after_forward=False,
    dp_replicate=2,
    compile=True,
    cross_entropy_fusion=True,
    overlap_grad_reduce=True,
    overlap_param_gather=True,
)
REPLICATED = {
    "zero": 0,
    "dp_replicate": 1,
    "reshard_after_forward": True,
    "overlap_param_gather": False,
}


def export(plan: Plan = PLAN, version: str = RELEASE, framework=TITAN, model=LLAMA) -> str:
    return export_torchtitan(model, H100, framework, plan, version=version)


def test_the_toml_says_the_plan():
    said = tomllib.loads(export())
    assert said["model"] | {"hf_assets_path": ""} == {
        "name": "llama3",
        "flavor": "70B",
        "hf_assets_path": "",
        "converters": [],
    }
    batches = {"local_batch_size": 64, "global_batch_size": 512, "seq_len": 8192}
    assert said["training"] | batches == said["training"]
    assert said["parallelism"] == {
        "data_parallel_replicate_degree": 2,
        "data_parallel_shard_degree": 4,
        "fsdp_reshard_after_forward": "never",
        "tensor_parallel_degree": 8,
        "enable_async_tensor_parallel": False,
        "pipeline_parallel_degree": 4,
        "context_parallel_degree": 1,
        "context_parallel_rotate_method": "alltoall",
        "expert_parallel_degree": 1,
        "pipeline_parallel_schedule": "Interleaved1F1B",
        "pipeline_parallel_microbatch_size": 2,
        "pipeline_parallel_layers_per_stage": 4,
        "pipeline_parallel_first_stage_less_layers": 0,
        "pipeline_parallel_last_stage_less_layers": 0,
    }
    assert said["activation_checkpoint"] == {"mode": "none"}
    assert said["compile"] == {"enable": True, "components": ["model", "loss"]}


def test_the_module_of_main_says_the_plan_in_tokens():
    tree = ast.parse(export(replace(PLAN, recompute="selective"), MAIN))
    said: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and isinstance(node.value, ast.Constant | ast.List):
            said[str(node.arg)] = ast.literal_eval(node.value)
    facts = {
        "num_tokens_per_microbatch_per_dp_rank": 2 * 8192,
        "num_tokens_per_train_step": 512 * 8192,
        "num_pp_microbatches": 32,
        "tensor_parallel_degree": 8,
        "data_parallel_shard_degree": 4,
        "disable_cuda_graphs": True,
        "enable_sequence_parallel": True,
        "components": ["model", "loss"],
    }
    assert said | facts == said
    assert "activation_checkpoint=SelectiveAC.Config()" in ast.unparse(tree)
    assert "model_registry('70B')" in ast.unparse(tree)


def test_stages_of_any_layers_list_their_modules():
    cut = replace(PLAN, vpp=1, schedule="1f1b", layout="free", chunk_layers=(19, 21, 21, 19))
    parts = tomllib.loads(export(cut))["parallelism"]["module_fqns_per_model_part"]
    assert [len(part) for part in parts] == [20, 21, 21, 21]
    assert parts[0][:2] == ["tok_embeddings", "layers.0"]
    assert parts[3][-3:] == ["layers.79", "norm", "output"]
    assert import_torchtitan(export(cut)).plan(256) == cut
    assert "'layers.79', 'norm', 'lm_head'" in export(cut, MAIN)


@pytest.mark.parametrize(
    ("changes", "version", "reason"),
    [
        (REPLICATED, RELEASE, r"zero=0 over several replicas \(DDP\) goes with no other"),
        ({"sequence_parallel": False}, RELEASE, "tp=8 is always with sequence_parallel"),
        ({"tp_comm_overlap": True, "compile": False}, RELEASE, "needs compile"),
        ({"recompute": "full", "recompute_num_layers": 3}, RELEASE, "do not divide the 4"),
        ({"recompute": "full", "recompute_num_layers": 2}, MAIN, "not 2 layers of a stage"),
        ({"cp": 2, "dp": 4, "dp_replicate": 1}, MAIN, "all-gathers keys and values, not p2p"),
        ({"precision": "fp8-current"}, MAIN, "scales rows, not whole tensors"),
        ({"overlap_grad_reduce": False, "overlap_param_gather": False}, RELEASE, "always true"),
        ({"grad_dtype": "bf16"}, RELEASE, "it has no grad_dtype"),
        ({"zero": 2, "reshard_after_forward": True}, RELEASE, "zero=2"),
        ({"dp": 4}, RELEASE, "= 128 GPUs"),
    ],
)
def test_what_torchtitan_cannot_run_is_refused(changes, version, reason):
    with pytest.raises(ExportError, match=reason):
        export(replace(PLAN, **changes), version)


def test_other_software_models_and_versions_are_refused():
    other = load_framework("megatron-core")
    with pytest.raises(ExportError, match="again with --framework torchtitan"):
        export(framework=other)
    with pytest.raises(ExportError, match="no model that it registers .* llama3 debugmodel, 1B"):
        export(model=load_model("llama2-70b").with_seq_length(4096))
    with pytest.raises(ExportError, match=r"choose from 0\.2\.2, main-2026-08"):
        export(version="0.9")
    qwen = load_model("qwen3-32b").with_seq_length(8192)
    with pytest.raises(ExportError, match="no pipeline of qwen3"):
        export(replace(PLAN, vpp=4), model=qwen)


@pytest.mark.parametrize("name", ["llama3-8b", "llama3-70b", "qwen3-32b", "qwen3-30b-a3b"])
def test_a_configuration_is_read_as_the_plan_that_it_was_written_from(name):
    model, cluster = load_model(name), load_cluster("hgx-h100", 64)
    inputs = (model, cluster, TITAN)
    for plan, text in some_plans(export_torchtitan, inputs, 256, count=6, seed=name):
        reader = reader_of(text)
        assert reader.title == "torchtitan TOML"
        run = reader.read(text, "run.toml", {})
        assert run.plan(64) == plan
        assert (run.num_gpus, run.framework, run.is_known) == (64, "torchtitan", True)
        assert (run.unknown, run.not_modelled, run.notes) == ((), (), ())
        assert (run.model.name, run.model.layers) == (name, model.layers)


def test_registered_models_count_their_parameters():
    sizes = {(f.module, f.flavor): f.model(2048).num_parameters for f in FLAVORS}
    assert sizes["llama3", "8B"] == 8_030_261_248
    assert sizes["llama3", "1B"] == 1_235_814_400
    assert sizes["qwen3", "32B"] == 32_762_123_264
    assert sizes["qwen3", "0.6B"] == 596_049_920
    assert sizes["qwen3", "235B-A22B"] == 235_093_634_560
    assert registered("llama3", "8B_flex") == registered("llama3", "8B")


WRITTEN = """
[job]
dump_folder = "./outputs"
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 2
seq_len = 8192
colour = "red"
enable_cpu_offload = true
[parallelism]
tensor_parallel_degree = 2
pipeline_parallel_degree = 2
disable_loss_parallel = true
[compile]
enable = true
components = ["loss"]
"""


def test_defaults_of_torchtitan_hold_and_what_is_passed_over_is_listed():
    run = import_torchtitan(WRITTEN)
    assert run.num_gpus is None
    assert (run.ignored, run.not_modelled, run.unknown) == (
        ("job.dump_folder",),
        ("training.enable_cpu_offload", "parallelism.disable_loss_parallel"),
        ("training.colour",),
    )
    plan = run.plan(16)
    assert (plan.tp, plan.pp, plan.dp, plan.zero) == (2, 2, 4, 3)
    assert (plan.micro_batch_size, plan.global_batch_size) == (1, 8)
    assert (plan.schedule, plan.chunk_layers) == ("1f1b", ())
    assert (plan.recompute_label, plan.reshard_after_forward) == ("full:8", False)
    assert (plan.compile, plan.cross_entropy_fusion) == (False, True)
    assert run.plan(4).zero == 0


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"8B"', '"9B"', "model.flavor: llama3 9B is not described here"),
        (
            "disable_loss_parallel = true",
            "module_fqns_per_model_part = [[]]",
            "multiple of 2 stages",
        ),
        ("seq_len = 8192", "seq_len = nan", "training.seq_len: expected a whole number, got nan"),
        ("seq_len = 8192", "seq_len = -1", "training.seq_len: expected 1 to"),
        ("= 2\npipe", "= true\npipe", "tensor_parallel_degree: expected a whole number"),
        ("[compile]\nenable = true", '[compile]\nenable = "on"', "compile.enable: expected true"),
        ("[job]", "[job", "not valid TOML"),
        ("[job]", "x = " + "[" * 9999, "not valid TOML"),
        ("disable_loss_parallel = true", "pipeline_parallel_layers_per_stage = 5", "a multiple of"),
    ],
)
def test_a_configuration_that_cannot_be_read_is_one_line(old, new, message):
    with pytest.raises(SpecError) as caught:
        import_torchtitan(WRITTEN.replace(old, new), "run.toml").plan(16)
    assert str(caught.value).startswith("run.toml: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_torchtitan_itself_reads_the_file(tmp_path):
    pytest.importorskip("torchtitan.config.job_config", reason="torchtitan is not installed")
    from torchtitan.config import ConfigManager  # type: ignore[import-not-found]

    path = tmp_path / "run.toml"
    path.write_text(export())
    job = ConfigManager().parse_args([f"--job.config_file={path}"])
    assert job.parallelism.tensor_parallel_degree == 8
