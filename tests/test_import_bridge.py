"""Programs of Megatron-Bridge: overrides are read, nothing is run, other recipes are refused."""

from __future__ import annotations

import pytest

from parallelsim.errors import SpecError
from parallelsim.importers.readers import reader_of
from parallelsim.importers.run import ImportedRun

WRITTEN = """\
from megatron.bridge.recipes.gpt.vanilla_gpt import vanilla_gpt_pretrain_config
raise SystemExit("never run")
cfg = vanilla_gpt_pretrain_config()
cfg.mixed_precision = bf16_mixed()
cfg.model.num_layers = 24
cfg.model.hidden_size = 2048
cfg.model.num_attention_heads = 16
cfg.model.seq_length = 2048
cfg.tokenizer.vocab_size = 50257
cfg.model.tensor_model_parallel_size = 2
cfg.train.micro_batch_size = 4
cfg.train.global_batch_size = 64
cfg.train.train_iters = 50
cfg.model.colour = "red"
"""


def read(text: str) -> ImportedRun:
    reader = reader_of(text)
    assert reader.title == "Megatron-Bridge program"
    return reader.read(text, "run.py", {})


def test_overrides_are_read_and_what_is_passed_over_is_listed() -> None:
    run = read(WRITTEN)
    plan = run.plan(16)
    assert (plan.tp, plan.dp, plan.micro_batch_size, plan.precision) == (2, 8, 4, "bf16")
    assert (run.model.num_layers, run.model.vocab_size) == (24, 50257)
    assert (run.ignored, run.unknown) == (("train.train_iters",), ("model.colour",))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "cfg = vanilla_gpt_",
            "cfg = llama3_8b_",
            "cfg: only vanilla_gpt_pretrain_config is known",
        ),
        ("hidden_size = 2048", "hidden_size = width()", "--hidden-size: expected a whole number"),
        ("num_layers = 24", "num_layers = 24)", "not valid Python"),
        ("num_layers = 24", "num_layers = " + "(" * 9999, "not valid Python"),
    ],
)
def test_a_program_that_cannot_be_read_is_one_line(old: str, new: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        read(WRITTEN.replace(old, new))
    assert str(caught.value).startswith("run.py: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
