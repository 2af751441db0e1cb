"""Launch scripts in the style of public ones are read as what they train, and how."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from parallelsim.importers.readers import reader_of
from parallelsim.importers.run import ImportedRun
from parallelsim.plan import Plan

FOLDER = Path(__file__).parent / "launch_scripts"
EXPECTED: dict[str, dict[str, Any]] = yaml.safe_load((FOLDER / "expected.yaml").read_text())
UNSAID = 64
"""GPUs where the script does not say."""


def imported(name: str) -> ImportedRun:
    text = (FOLDER / name).read_text()
    return reader_of(text).read(text, name, {})


@pytest.mark.parametrize("name", EXPECTED)
def test_a_script_is_read_as_what_it_trains_and_how(name: str) -> None:
    expected, run = EXPECTED[name], imported(name)
    model, shape = run.model, expected["model"]
    if isinstance(shape, str):
        assert (model.name, run.is_known) == (shape, True)
    else:
        assert not run.is_known
        assert shape == {
            "layers": model.num_layers,
            "hidden": model.hidden_size,
            "vocab": model.vocab_size,
            "length": model.seq_length,
            "parameters": model.num_parameters,
        }
    assert run.num_gpus == expected["gpus"]
    assert run.framework == expected.get("framework", "megatron-core")
    assert run.plan(expected["gpus"] or UNSAID) == Plan.from_dict(expected["plan"])
    assert [*run.not_modelled, *run.unknown] == expected.get("passed_over", [])


def test_no_script_is_left_out() -> None:
    scripts = {path.name for path in FOLDER.iterdir()} - {"expected.yaml"}
    assert scripts == set(EXPECTED)
    assert len(scripts) >= 30


def test_an_encoder_reads_both_sides_and_a_decoder_reads_the_encoder() -> None:
    bert, t5 = imported("bert-340m.sh").model, imported("t5-220m.sh").model
    assert all(layer.attention and not layer.attention.causal for layer in bert.layers)
    assert (bert.num_token_types, bert.pooler, bert.head_transform) == (2, True, True)
    first, last = t5.layers[0], t5.layers[-1]
    assert (first.seq_length, last.seq_length, t5.seq_length) == (512, None, 128)
    assert last.cross_attention is not None
    assert last.cross_attention.kv_seq_length == 512
    assert last.attention is not None
    assert last.attention.causal
