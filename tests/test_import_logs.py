"""The configuration that software prints at the start of its log is read as its scripts are."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from test_launch_scripts import EXPECTED, imported

from parallelsim.catalog import load_model
from parallelsim.cli import main
from parallelsim.errors import SpecError
from parallelsim.importers.readers import reader_of
from parallelsim.importers.run import ImportedRun
from parallelsim.plan import Plan

ARGUMENTS = {
    "add_bias_linear": "False",
    "attention_backend": "AttnBackend.auto",
    "attention_dropout": "0.0",
    "bf16": "True",
    "bert_binary_head": "True",
    "cp_comm_type": "['p2p']",
    "DDP_bucket_size": "None",
    "encoder_num_layers": "61",
    "encoder_seq_length": "4096",
    "exp_avg_dtype": "torch.bfloat16",
    "exp_avg_sq_dtype": "torch.bfloat16",
    "expert_model_parallel_size": "64",
    "expert_tensor_parallel_size": "1",
    "ffn_hidden_size": "18432",
    "fp8": "e4m3",
    "fp8_param_gather": "True",
    "fp8_recipe": "blockwise",
    "fp8_wgrad": "True",
    "global_batch_size": "8192",
    "group_query_attention": "False",
    "hidden_dropout": "0.0",
    "hidden_size": "7168",
    "kv_channels": "56",
    "kv_lora_rank": "512",
    "main_grads_dtype": "torch.float32",
    "max_position_embeddings": "163840",
    "micro_batch_size": "1",
    "moe_enable_deepep": "True",
    "moe_ffn_hidden_size": "2048",
    "moe_layer_freq": str([0] * 3 + [1] * 58),
    "moe_router_enable_expert_bias": "True",
    "moe_router_group_topk": "4",
    "moe_router_num_groups": "8",
    "moe_router_score_function": "sigmoid",
    "moe_router_topk": "8",
    "moe_router_topk_scaling_factor": "2.5",
    "moe_shared_expert_intermediate_size": "2048",
    "moe_token_dispatcher_type": "flex",
    "mtp_num_layers": "1",
    "multi_latent_attention": "True",
    "no_rope_freq": "None",
    "normalization": "RMSNorm",
    "num_attention_heads": "128",
    "num_experts": "256",
    "num_layers": "61",
    "overlap_grad_reduce": "True",
    "overlap_moe_expert_parallel_comm": "True",
    "overlap_param_gather": "True",
    "pipeline_model_parallel_layout": "Et*3|(tt|)*29m|L",
    "pipeline_model_parallel_size": "16",
    "position_embedding_type": "rope",
    "q_lora_rank": "1536",
    "qk_head_dim": "128",
    "qk_layernorm": "True",
    "qk_pos_emb_head_dim": "64",
    "recompute_granularity": "selective",
    "recompute_method": "None",
    "recompute_modules": "['mla_up_proj', 'mlp']",
    "recompute_num_layers": "None",
    "rotary_base": "10000",
    "seq_length": "4096",
    "sequence_parallel": "False",
    "swiglu": "True",
    "tensor_model_parallel_size": "1",
    "untie_embeddings_and_output_weights": "True",
    "use_distributed_optimizer": "True",
    "v_head_dim": "128",
    "virtual_pipeline_model_parallel_size": "2",
    "vocab_size": "None",
    "world_size": "2048",
}
STEP = (
    " [2026-03-01 10:00:00] iteration {0:8}/ 500000 | elapsed time per iteration (ms): 9000.0 |\n"
)


def megatron(prefix: str = "", **changes: str) -> str:
    lines = [f"{'-' * 24} arguments {'-' * 24}"]
    lines += [f"  {k} {'.' * (48 - len(k))} {v}" for k, v in {**ARGUMENTS, **changes}.items()]
    lines += [f"{'-' * 20} end of arguments {'-' * 21}"]
    vocabulary = " > padded vocab (size: 129280) with 0 dummy tokens (new size: 129280)"
    said = [f"{prefix}{line}" for line in ["using world size: 2048", *lines, vocabulary]]
    return "\n".join([*said[:9], "7: warning: interleaved", *said[9:]]) + "\n"


TORCHTITAN = {
    "model": {"name": "llama3", "flavor": "70B", "converters": ["float8"]},
    "training": {
        "local_batch_size": 8,
        "global_batch_size": -1,
        "seq_len": 8192,
        "dtype": "float32",
    },
    "parallelism": {
        **{"data_parallel_shard_degree": -1, "tensor_parallel_degree": 8},
        **{"enable_async_tensor_parallel": True, "pipeline_parallel_degree": 4},
        **{"pipeline_parallel_schedule": "Interleaved1F1B"},
        **{"pipeline_parallel_layers_per_stage": 10, "disable_loss_parallel": False},
        **{f"pipeline_parallel_{end}_stage_less_layers": 0 for end in ("first", "last")},
    },
    "activation_checkpoint": {"mode": "full", "early_stop": False},
    "compile": {"enable": True, "components": ["model", "loss"]},
    "fault_tolerance": {"enable": False},
}
DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 2,
    "zero_optimization": {"stage": 1},
    "bf16": {"enabled": True},
    "pipeline": {"stages": 2, "activation_checkpoint_interval": 1},
    "optimizer": {"type": "Adam"},
}


def printed(data: Any, head: str, prefix: str, tail: str = "") -> str:
    body = f"{head}{json.dumps(data, indent=2)}".splitlines()
    return "".join(f"{prefix}{line}\n" for line in ["Starting", *body]) + tail


def read(text: str, **options: Any) -> ImportedRun:
    reader = reader_of(text)
    assert reader.is_log
    return reader.read(text, "run.log", {}, **options)


@pytest.mark.parametrize("prefix", ["", "0: ", "[default0]:", "2026-03-01T10:00:00 worker-0 | "])
def test_arguments_of_megatron_are_read_as_its_script(prefix: str) -> None:
    run, script = read(megatron(prefix) + STEP.format(1)), imported("deepseek-v3-layout.sh")
    assert run.plan(2048) == script.plan(2048)
    assert (run.num_gpus, run.model) == (2048, script.model)
    assert (run.not_modelled, run.unknown) == (
        (),
        ("--bert-binary-head", "--virtual-pipeline-model-parallel-size"),
    )


def test_the_last_start_of_a_run_counts() -> None:
    text = megatron(micro_batch_size="2") + STEP.format(1) + megatron()
    assert read(text).fields["micro_batch_size"] == 1


@pytest.mark.parametrize("prefix", ["", "[rank0]:", "3: "])
def test_the_configuration_of_torchtitan_is_read_as_its_file(prefix: str) -> None:
    mesh = "Building 3-D device mesh with ['pp', 'dp_shard', 'tp'], [4, 8, 8]\n"
    head = "[titan] 2026-03-01 10:00:00,000 - root - INFO - Running with configs: "
    run = read(mesh.replace("4", "2") + printed(TORCHTITAN, head, prefix, mesh))
    assert run.num_gpus == 256, "of the last start"
    assert run.plan(256) == Plan.from_dict(EXPECTED["torchtitan-llama3-70b.toml"]["plan"])
    assert (run.not_modelled, run.unknown, run.framework) == ((), (), "torchtitan")


def test_the_configuration_of_deepspeed_is_read_as_its_file() -> None:
    ranks = "[INFO] [config.py:1003:print]   world_size ................... 8\n"
    head = "[2026-03-01 10:00:00,000] [INFO] [config.py:989:print_user_config]   json = "
    text = ranks.replace("8", "4") + ranks + printed(DEEPSPEED, head, "worker-0: ")
    run = read(text, model=load_model("llama3-8b"))
    assert run.num_gpus == 16
    plan = run.plan(16)
    assert (plan.pp, plan.dp, plan.zero, plan.recompute) == (2, 8, 1, "full")
    with pytest.raises(SpecError, match="holds no model"):
        read(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (megatron()[-400:], "its arguments end, but do not begin"),
        (megatron(hidden_size="wide"), "--hidden-size: expected a whole number, got 'wide'"),
        (megatron(swiglu="False", squared_relu="True", quick_geglu="True"), "contradicts"),
        ("Running with configs: {'model'", "is cut off or not JSON"),
        (printed(TORCHTITAN, "Running with configs: ", "")[:300], "is cut off or not JSON"),
        ("  json = {" + "[" * 99999, "is cut off or not JSON"),
    ],
)
def test_a_log_that_cannot_be_read_is_one_line(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        read(text, model=None)
    assert str(caught.value).startswith("run.log: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_of_any_size_and_content_are_read_or_refused_at_once(tmp_path: Path) -> None:
    steps = "".join(map(STEP.format, range(120_000)))
    contents = {
        "run.log": megatron().encode() + steps.encode(),
        "steps.log": steps.encode(),
        "weights.bin": b"\x7fELF\0" + bytes(range(256)) * 4096,
        "words.txt": bytes(range(128, 256)) * 100,
        "empty.sh": b"",
        "blank.json": b" \n\n",
        "lines.sh": b"\n" * 10**6,
    }
    messages = {
        "steps.log": "no log that begins with the arguments or the configuration of its run",
        "weights.bin": "is no text (it has NUL bytes)",
        "words.txt": "starts no Python program",
        "empty.sh": "the file is empty",
        "blank.json": "the file is empty",
        "lines.sh": "the file is empty",
    }
    for name, content in contents.items():
        file = tmp_path / name
        file.write_bytes(content)
        before = time.perf_counter()
        done = CliRunner(env={"COLUMNS": "80"}).invoke(main, ["import", str(file)])
        assert time.perf_counter() - before < 2, name
        if name == "run.log":
            assert len(content) > 10**7
            assert done.exit_code == 0, done.stderr
            assert "deepseek-v3" in done.stdout
        else:
            assert done.exit_code == 1, name
            assert messages[name] in done.stderr
            assert done.stderr.count("\n") == 1, done.stderr
