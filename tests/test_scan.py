"""The pass over a space: pruned it finds what all plans rank, in one process and in several."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parallelsim.search import grid, scan
from parallelsim.search.grid import GridSearcher
from parallelsim.search.refine import ranking
from parallelsim.search.result import SearchResult
from parallelsim.search.searcher import Request
from parallelsim.search.space import SearchSpace

from parallelsim.catalog import load_cluster, load_framework, load_model
from parallelsim.model import ModelSpec
from parallelsim.plan import LAYOUTS
from parallelsim.plan_batch import PlanBatch
from parallelsim.replay import replayed
from parallelsim.rules import obeys_rules
from parallelsim.simulate import simulate

SHARE = load_framework("torchtitan")
"""Shards the parameters too (FSDP)."""
MEGATRON = load_framework("megatron-core")


@cache
def model(name: str, num_layers: int, lora: bool) -> ModelSpec:
    adapters = {"lora_rank": 16} if lora else {}
    return load_model(name, {"num_layers": num_layers, **adapters})


@st.composite
def spaces(draw: st.DrawFn) -> SearchSpace:
    """Some hundred plans each: dense, with experts or adapters, with and without FSDP."""
    name = draw(st.sampled_from(("llama3-8b", "gpt2-xl", "mixtral-8x7b", "deepseek-v2-lite")))
    lora = name == "llama3-8b" and draw(st.booleans())
    framework = draw(st.sampled_from((MEGATRON, SHARE)))
    sizes = {"micro_batch_size": draw(st.sampled_from((1, 2)))}
    fixed = sizes | ({"recompute": "none"} if framework is MEGATRON else {})
    return SearchSpace(
        model(name, draw(st.sampled_from((4, 7, 8))), lora),
        load_cluster("hgx-h100", num_gpus=draw(st.sampled_from((4, 8)))),
        framework,
        draw(st.sampled_from((16, 24))),
        fixed=fixed,
        limits={"layout": LAYOUTS[:-1], "zero": (0, 1, 2, 3)},
        all_schedules=framework is MEGATRON and draw(st.booleans()),
    )


def answer(result: SearchResult) -> tuple[object, ...]:
    """All that must not depend on how a space is searched."""
    found = [
        (list(s.plans), s.step_time_s.tolist(), s.peak_memory_bytes.tolist())
        for s in (result.plans, result.faster_but_tight, result.nearest_miss)
    ]
    counts = (result.num_candidates, result.num_feasible, result.num_tight, result.num_replayed)
    return (*found, *counts, list(result.reasons.items()), result.proven)


@given(
    space=spaces(),
    top_k=st.sampled_from((1, 4)),
    memory_limit=st.sampled_from((0.2, 0.5, 0.8)),
    all_variants=st.booleans(),
    each=st.sampled_from((1, 24)),
)
@settings(max_examples=10)
def test_the_pruned_ranking_is_that_of_all_plans_in_one_process_and_in_two(
    space: SearchSpace, top_k: int, memory_limit: float, all_variants: bool, each: int
) -> None:
    inputs = (space.model, space.cluster, space.framework)
    plans = PlanBatch.concatenate([PlanBatch.from_plans([]), *space.blocks()])
    plans = plans.take(obeys_rules(*inputs, plans))
    every = simulate(*inputs, plans, memory_limit)
    best = ranking(replayed(every.take(every.zone == 0)), top_k, all_variants)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "PART_PLANS", 100)
        patch.setattr(grid, "VARIANTS_KEPT", each)
        one, two = (
            GridSearcher().search(
                space, Request(top_k, memory_limit, workers=n, all_variants=all_variants)
            )
            for n in (1, 2)
        )
    assert list(one.plans.plans) == list(best.plans)
    assert np.array_equal(one.plans.step_time_s, best.step_time_s)
    assert one.num_feasible == int((every.zone == 0).sum())
    assert answer(two) == answer(one)


def test_processes_that_are_spawned_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    space = SearchSpace(model("llama3-8b", 8, False), load_cluster("hgx-h100", 8), MEGATRON, 32)
    monkeypatch.setattr(scan, "can_fork", lambda: False)
    one, two = (GridSearcher().search(space, Request(5, workers=n)) for n in (1, 2))
    assert answer(two) == answer(one)


def test_bounds_leave_a_tenth_of_the_plans_to_evaluate() -> None:
    space = SearchSpace(
        load_model("llama3-70b"), load_cluster("hgx-h100", num_gpus=256), MEGATRON, 512
    )
    result = GridSearcher().search(space, Request())
    assert result.proven
    assert result.num_feasible > 0
    assert 0 < result.num_evaluated <= result.num_candidates / 10
