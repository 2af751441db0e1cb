"""Every stage's predicted memory equals an independent scalar restatement of the equations."""

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
from oracle_memory import StageMemory, stage_memories
from parallelsim.search.space import SearchSpace
from random_plans import valid_plans

from parallelsim.catalog import load_cluster, load_framework, load_model
from parallelsim.costs import CostTable
from parallelsim.memory import lowest_memory
from parallelsim.rules import obeys_rules
from parallelsim.simulate import screen_memory, simulate

MODELS = (
    "gpt2-xl",
    "megatron-22b",
    "gpt3-175b",
    "llama3-70b",
    "qwen2.5-72b",
    "gemma2-27b",
    "bloom-176b",
)
CASES = [
    *itertools.product(MODELS, ("megatron-core", "megatron-lm-2022")),
    *itertools.product(("llama3-70b", "qwen2.5-72b"), ("nanotron", "torchtitan", "internevo")),
]
PLANS_EACH = 25


def _differences(row: dict, expected: list[StageMemory]) -> list[str]:
    stages = row["memory_per_stage"]
    assert [stage["stage"] for stage in stages] == list(range(len(expected)))
    assert [stage["layers"] for stage in stages] == [stage.layers for stage in expected]
    pairs = {
        "parameters_bytes": "parameters",
        "gradients_bytes": "gradients",
        "optimizer_bytes": "optimizer",
        "activations_bytes": "activations",
        "total_bytes": "total",
    }
    return [
        f"stage {stage['stage']} {key}: {stage[key]:.6e}, the oracle says {getattr(want, name):.6e}"
        for stage, want in zip(stages, expected, strict=True)
        for key, name in pairs.items()
        if stage[key] != pytest.approx(getattr(want, name), rel=1e-9, abs=1.0)
    ]


@pytest.mark.parametrize(("model_name", "framework_name"), CASES)
def test_memory_of_every_stage_equals_the_scalar_oracle(
    model_name: str, framework_name: str
) -> None:
    model, framework = load_model(model_name), load_framework(framework_name)
    rng = random.Random(model_name)
    cluster = load_cluster(rng.choice(["hgx-h100", "dgx-a100-80gb"]), num_gpus=rng.choice([48, 64]))
    plans = list(valid_plans(model, cluster, framework, PLANS_EACH, seed=model_name))
    if framework.capabilities.compile:
        plans = [replace(plan, compile=i % 2 > 0) for i, plan in enumerate(plans)]
    simulation = simulate(model, cluster, framework, plans)
    for i, plan in enumerate(plans):
        expected = stage_memories(model, framework, plan)
        row = simulation.row(i)
        assert not _differences(row, expected), plan
        fullest = max(stage.total for stage in expected)
        assert row["peak_memory_bytes"] == pytest.approx(fullest, rel=1e-9)


@pytest.mark.parametrize("framework_name", ["torchtitan", "nanotron", "deepspeed", "internevo"])
def test_no_staging_needs_less_memory_than_the_bound(framework_name: str) -> None:
    """What lets the search drop a plan before its stages are cut, in software with ZeRO 3,
    asynchronous collectives, kept gathers or large optimizer steps."""
    model, framework = load_model("llama3-8b"), load_framework(framework_name)
    cluster = load_cluster("hgx-h100", num_gpus=16)
    space = SearchSpace(model, cluster, framework, 64)
    table = CostTable(model, cluster, framework, space.shapes())
    rng = np.random.default_rng(0)
    for pp in space.pipeline_degrees:
        rows = space.unstaged(pp)
        for i in rng.integers(0, len(rows), 6).tolist():
            row = rows.take(slice(i, i + 1))
            bound = lowest_memory(table, row)[0]
            for block in space.expand(pp, slice(i, i + 1)):
                good = block.take(obeys_rules(model, cluster, framework, block))
                if len(good):
                    assert screen_memory(table, good).min() >= bound * (1 - 1e-9)
