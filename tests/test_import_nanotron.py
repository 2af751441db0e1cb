"""nanotron's YAML: its defaults hold, and what cannot be read is one line."""

from __future__ import annotations

import re

import pytest
from test_launch_scripts import FOLDER

from parallelsim.errors import SpecError
from parallelsim.importers.nanotron import import_nanotron
from parallelsim.importers.run import ImportedRun

WRITTEN = (FOLDER / "nanotron-1.2b.yaml").read_text()


def changed(**values: str) -> ImportedRun:
    text = WRITTEN
    for key, value in values.items():
        text, count = re.subn(rf"(?m)^(\s+){key}: .*\n", rf"\1{key}: {value}\n", text)
        assert count == 1, key
    return import_nanotron(text, "run.yaml")


def test_stages_are_those_that_nanotron_cuts_and_its_engine_is_gpipe_by_default() -> None:
    plan = changed(pp="2", pp_engine="null", dp="4").plan(32)
    assert (plan.schedule, plan.layout) == ("gpipe", "first-last")
    assert (plan.first_stage_layers, plan.last_stage_layers) == (10, 6)
    run = changed(pp="6", tp="1", tp_mode="null")
    assert run.notes == (
        "stages of 4 + 3 + 3 + 4 + 2 + 0 layers: those between the ends taken as equal",
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"is_llama_config": "false"}, "model.model_config.is_llama_config: only Llama's are read"),
        ({"num_attention_heads": "30"}, "model.model_config.num_attention_heads: 30 do not divide"),
        ({"tp_mode": "MAYBE"}, "parallelism.tp_mode: expected ALL_REDUCE, REDUCE_SCATTER"),
        ({"pp": "17"}, "parallelism.pp: 17 stages of 16 layers"),
        ({"tp": ".nan"}, "parallelism.tp: not a finite number"),
        ({"micro_batch_size": "null"}, "tokens.micro_batch_size: is needed"),
        ({"dtype": "[bfloat16"}, "not valid YAML"),
    ],
)
def test_a_configuration_that_cannot_be_read_is_one_line(
    values: dict[str, str], message: str
) -> None:
    with pytest.raises(SpecError) as caught:
        changed(**values)
    assert str(caught.value).startswith("run.yaml: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
