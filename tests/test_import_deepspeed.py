"""DeepSpeed's JSON is read as the plan that it says; what it leaves to the program is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from random_exports import some_plans

from parallelsim.catalog import load_cluster, load_framework, load_model
from parallelsim.cli import main
from parallelsim.errors import SpecError
from parallelsim.exporters.deepspeed import export_deepspeed
from parallelsim.importers.readers import reader_of
from parallelsim.importers.run import ImportedRun

LLAMA = load_model("llama3-8b")
WRITTEN: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 8,
    "steps_per_print": 10,
    "zero_optimization": {
        "stage": 3,
        "offload_param": {"device": "none"},
        "stage3_max_live_parameters": 1e9,
        "reduce_bucket_size": 5e8,
        "stage3_gather_16bit_weights_on_model_save": True,
    },
    "bf16": {"enabled": True},
    "activation_checkpointing": {"cpu_checkpointing": True, "number_checkpoints": 32},
    "colour": "red",
}


def read(data: Any, model: Any = LLAMA) -> ImportedRun:
    text = data if isinstance(data, str) else json.dumps(data)
    reader = reader_of(text)
    assert reader.title == "DeepSpeed JSON"
    return reader.read(text, "ds.json", {}, model)


def test_defaults_of_deepspeed_hold_and_what_is_passed_over_is_listed() -> None:
    run = read(WRITTEN)
    assert run.ignored == (
        "steps_per_print",
        "zero_optimization.offload_param.device",
        "zero_optimization.stage3_gather_16bit_weights_on_model_save",
    )
    assert run.not_modelled == (
        "zero_optimization.stage3_max_live_parameters",
        "zero_optimization.reduce_bucket_size",
        "activation_checkpointing.cpu_checkpointing",
    )
    assert run.unknown == ("colour",)
    assert run.notes == ("optimizer.type is the program's: taken as Adam",)
    plan = run.plan(16)
    assert (plan.dp, plan.micro_batch_size, plan.global_batch_size) == (16, 2, 256)
    assert (plan.zero, plan.overlap_grad_reduce, plan.overlap_param_gather) == (3, True, True)
    assert (plan.precision, plan.grad_dtype, plan.recompute) == ("bf16", "bf16", "full")


def test_a_bf16_pipeline_shards_its_optimizer_without_zero() -> None:
    run = read({"train_batch_size": 32, "bf16": {"enabled": True}, "pipeline": {"stages": 4}})
    plan = run.plan(16)
    assert (plan.pp, plan.dp, plan.zero, plan.micro_batch_size) == (4, 4, 1, 8)
    assert "taken as ZeRO 1" in " ".join(run.notes)


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("name", ["llama3-8b", "gpt3-175b"])
def test_a_configuration_is_read_as_the_plan_that_it_was_written_from(
    name: str, precision: str
) -> None:
    model = load_model(name)
    inputs = (model, load_cluster("hgx-h100", 64), load_framework("deepspeed"))
    limits: dict[str, Any] = {
        **{"overlap_grad_reduce": (False, True), "overlap_param_gather": (False, True)},
        **{"grad_dtype": ("fp32", "bf16"), "optimizer_offload_pct": (0, 100)},
    }
    options = {"count": 5, "seed": name, "precision": precision, "limits": limits}
    for plan, text in some_plans(export_deepspeed, inputs, 256, **options):
        run = read(text, model)
        assert run.plan(64) == plan
        assert (run.framework, run.unknown, run.not_modelled) == ("deepspeed", (), ())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_batch_size": 100}, "train_batch_size: 100 contradicts 2 a GPU x 8 steps x 16"),
        ({"fp16": {"enabled": True}}, "fp16.enabled: contradicts bf16.enabled"),
        ({"gradient_accumulation_steps": "auto"}, "got 'auto'; write what the"),
        ({"zero_optimization": {"stage": 4}}, "zero_optimization.stage: expected 0 to 3, got 4"),
        ({"zero_optimization": 3}, "zero_optimization: expected a section, got 3"),
        ({"train_micro_batch_size_per_gpu": None}, "train_batch_size: is needed, or"),
        ('{"train_batch_size": 1, "train_batch_size": 2}', "train_batch_size: duplicate key"),
        ('{"train_batch_size": 1', "not valid JSON"),
        ('{"zero_optimization": ' + "[" * 99999, "nested deeper"),
    ],
)
def test_a_configuration_that_cannot_be_read_is_one_line(changes: Any, message: str) -> None:
    data = changes if isinstance(changes, str) else {**WRITTEN, **changes}
    with pytest.raises(SpecError) as caught:
        read(data).plan(16)
    assert str(caught.value).startswith("ds.json: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_model_is_named_and_its_length_is_open(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text(json.dumps(WRITTEN))
    run = CliRunner(env={"COLUMNS": "80"}).invoke
    plan = str(tmp_path / "plan.yaml")
    args = ["import", str(file), "--gpus", "16", "--model", "llama3-8b"]
    done = run(main, [*args, "--seq-length", "4k", "--output", plan])
    assert done.exit_code == 0, done.stderr
    assert "batch 256 x 4096" in done.stdout
    assert run(main, ["explain", plan]).exit_code == 0
    file.write_text(json.dumps({**WRITTEN, "\x1b[31m\nred": 1}))
    assert "passed over: colour, ?[31m?red" in run(main, args).stderr
    file.write_text(json.dumps(WRITTEN))
    explained = run(main, ["explain", *args[1:], "--json"])
    assert json.loads(explained.stdout)["import"]["unknown"] == ["colour"]
    unnamed = run(main, args[:4])
    assert unnamed.exit_code == 1
    assert unnamed.stderr.strip().endswith("the program builds it; name it with --model")
    stated = run(main, [*args, "--global-batch-size", "8"])
    assert stated.exit_code == 2
