"""Configurations with any values are read or refused in one line, never with a traceback."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import pytest
import test_import_accelerate
import test_import_deepspeed
import yaml
from mutations import assert_readable, mutated
from test_launch_scripts import FOLDER

from parallelsim.catalog import load_model
from parallelsim.errors import ParallelSimError
from parallelsim.importers.accelerate import run_of_accelerate
from parallelsim.importers.deepspeed import run_of_deepspeed
from parallelsim.importers.nanotron import run_of_nanotron
from parallelsim.importers.run import ImportedRun
from parallelsim.importers.settings import Settings
from parallelsim.importers.torchtitan import run_of_torchtitan

MODEL = load_model("llama3-8b")
TITAN = (FOLDER / "torchtitan-llama3-70b.toml").read_text()
FSDP = test_import_accelerate.WRITTEN
KINDS: dict[str, tuple[Mapping[str, Any], Callable[[Settings], ImportedRun]]] = {
    "torchtitan": (tomllib.loads(TITAN), lambda data: run_of_torchtitan(data, None)),
    "deepspeed": (test_import_deepspeed.WRITTEN, lambda data: run_of_deepspeed(data, MODEL)),
    "accelerate": (yaml.safe_load(FSDP), lambda data: run_of_accelerate(data, MODEL)),
    "nanotron": (
        yaml.safe_load((FOLDER / "nanotron-1.2b.yaml").read_text()),
        lambda data: run_of_nanotron(data, None),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_any_values_are_read_or_refused(kind: str) -> None:
    data, read = KINDS[kind]
    random, refused = Random(kind), 0
    for _ in range(100):
        spoiled = mutated(dict(data), random)
        try:
            run = read(Settings("file", spoiled, FSDP))
            run.plan(random.choice((1, 32, 96, 256)))
        except ParallelSimError as error:
            refused += 1
            assert_readable(error)
    assert refused
