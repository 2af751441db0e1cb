"""accelerate's YAML of either FSDP, and of DDP, is read as the plan that its program runs."""

from __future__ import annotations

import pytest

from parallelsim.catalog import load_model
from parallelsim.errors import SpecError
from parallelsim.importers.readers import reader_of
from parallelsim.importers.run import ImportedRun
from parallelsim.plan import Plan

LLAMA = load_model("llama3-8b")
WRITTEN = """\
# launched with per_device_train_batch_size=2 gradient_accumulation_steps=4
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: FSDP
fsdp_config:
  fsdp_activation_checkpointing: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_forward_prefetch: true
  fsdp_offload_params: false
  fsdp_sharding_strategy: HYBRID_SHARD
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_colour: red
machine_rank: 0
mixed_precision: bf16
num_machines: 4
num_processes: 32
"""


def read(text: str, model: object = LLAMA) -> ImportedRun:
    reader = reader_of(text)
    assert reader.title == "accelerate YAML"
    return reader.read(text, "fsdp.yaml", {}, model)


def test_the_first_fsdp_is_read_and_what_is_passed_over_is_listed() -> None:
    run = read(WRITTEN)
    plan = {
        **{"dp": 32, "micro_batch_size": 2, "global_batch_size": 256, "zero": 3},
        **{"dp_replicate": 4, "recompute": "full", "grad_dtype": "bf16"},
        **{"overlap_grad_reduce": True, "overlap_param_gather": True},
    }
    assert run.plan(run.num_gpus or 0) == Plan.from_dict(plan)
    assert run.not_modelled == ("fsdp_config.fsdp_forward_prefetch",)
    assert run.unknown == ("fsdp_config.fsdp_colour",)
    assert "fsdp_config.fsdp_auto_wrap_policy" in run.ignored
    numbered = read(WRITTEN.replace("HYBRID_SHARD", "2")).plan(32)
    assert (numbered.zero, numbered.dp_replicate, numbered.reshard_after_forward) == (3, 1, False)


def test_ddp_replicates_everything() -> None:
    run = read(WRITTEN.replace("type: FSDP", "type: MULTI_GPU").replace(" gradient_acc", " acc"))
    plan = run.plan(32)
    assert (plan.zero, plan.global_batch_size, plan.grad_dtype) == (0, 64, "fp32")
    assert run.notes == ("gradient_accumulation_steps is the program's: taken as 1",)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("type: FSDP", "type: TPU", "distributed_type: expected FSDP, MULTI_GPU, got 'TPU'"),
        (
            "per_device",
            "a",
            "per_device_train_batch_size: is the program's: write it into the file",
        ),
        ("HYBRID_SHARD", "HALF", "fsdp_sharding_strategy: expected FULL_SHARD, SHARD_GRAD_OP"),
        ("bf16", "fp8", "mixed_precision: expected bf16, no, fp16, got 'fp8'"),
        ("num_processes: 32", "num_processes: many", "num_processes: expected a whole number"),
    ],
)
def test_a_configuration_that_cannot_be_read_is_one_line(old: str, new: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        read(WRITTEN.replace(old, new))
    assert str(caught.value).startswith("fsdp.yaml: ")
    assert message in str(caught.value)


def test_the_model_has_to_be_named() -> None:
    with pytest.raises(SpecError, match="the program has it; name it with --model"):
        read(WRITTEN, None)
