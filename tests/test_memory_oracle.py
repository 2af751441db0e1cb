"""Every stage's predicted memory equals an independent scalar restatement of the equations."""

import itertools
import random
from dataclasses import replace

import pytest
from oracle_memory import StageMemory, stage_memories
from random_plans import valid_plans

from parallelsim.catalog import load_cluster, load_framework, load_model
from parallelsim.simulate import simulate

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
