"""The search with the exact engine: bounds, replayed rankings, and layers cut by programming."""

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from parallelsim.search.bounds import IS_BOUNDED, least_step_time
from parallelsim.search.cuts import best_of_families, family, fastest_cuts, find_cuts
from parallelsim.search.grid import grid_search
from parallelsim.search.partition import partition
from parallelsim.search.partition_inputs import layer_tables, partition_problem
from parallelsim.search.refine import Replays
from parallelsim.search.space import SearchSpace

from parallelsim.catalog import load_cluster, load_framework, load_model
from parallelsim.costs import CostTable
from parallelsim.errors import NoFeasiblePlanError
from parallelsim.plan import LAYOUTS, SCHEDULES, Plan
from parallelsim.plan_batch import PlanBatch
from parallelsim.replay import least_replays_s, replayed, same_schedules
from parallelsim.rules import obeys_rules
from parallelsim.simulate import by_block, simulate

MEGATRON = load_framework("megatron-core")
REGULAR = {"layout": LAYOUTS[:-1]}
SPACES = (("llama3-70b", 64, 128), ("gemma2-27b", 32, 256), ("gpt2-xl", 16, 64))


def space_of(name: str, num_gpus: int, batch: int, **options: object) -> SearchSpace:
    cluster = load_cluster("hgx-h100", num_gpus=num_gpus)
    return SearchSpace(load_model(name), cluster, MEGATRON, batch, **options)  # type: ignore[arg-type]


def some_plans(space: SearchSpace, count: int) -> PlanBatch:
    """Plans of the space that obey the rules, drawn at random."""
    inputs = (space.model, space.cluster, space.framework)
    blocks = [block.take(obeys_rules(*inputs, block)) for block in space.blocks()]
    plans = PlanBatch.concatenate(blocks)
    return plans.take(np.random.default_rng(0).permutation(len(plans))[:count])


@pytest.mark.parametrize(("name", "num_gpus", "batch"), SPACES)
def test_no_replay_is_below_its_bound(name: str, num_gpus: int, batch: int) -> None:
    space = space_of(name, num_gpus, batch)
    inputs = (space.model, space.cluster, space.framework)
    plans = some_plans(space, 400)
    table = CostTable(*inputs, plans)
    (least,) = by_block(table, plans, least_step_time)
    exact = replayed(simulate(*inputs, plans), table)
    assert exact.replayed.all()
    assert (exact.step_time_s >= least).all()
    # Tight enough to be of use: the exact engine has few plans to replay.
    assert np.median(exact.step_time_s / least) < 1.005


def test_no_replay_of_a_cut_is_below_its_bound_and_the_fastest_of_each_family_is_found() -> None:
    space = space_of("gemma2-27b", 32, 256)
    inputs = (space.model, space.cluster, space.framework)
    table = CostTable(*inputs, space.shapes())
    rows = {pp: space.unstaged(pp) for pp in space.pipeline_degrees}
    plans = find_cuts(space, table, rows, {}, np.inf, 0.8).plans
    exact = replayed(simulate(*inputs, plans), table)
    tight: list[bool] = []
    for index in same_schedules(plans, np.arange(len(plans))):
        least = least_replays_s(table, plans.take(index))
        assert (least <= exact.step_time_s[index]).all()
        tight += (least >= 0.99 * exact.step_time_s[index]).tolist()
    assert np.mean(tight) > 0.5  # of use: many need not be replayed
    best: dict[tuple[int, ...], float] = {}
    for i in np.flatnonzero(exact.obeys_rules & (exact.zone == 0)).tolist():
        key = family(plans, i)
        best[key] = min(best.get(key, np.inf), float(exact.step_time_s[i]))
    replays = Replays(space, table, 0.8, all_variants=True)
    found = fastest_cuts(replays, plans, np.inf)
    fastest = {family(found.plans, i): float(t) for i, t in enumerate(found.step_time_s)}
    assert fastest == best
    assert replays.num_replayed < len(plans)


def test_bounds_of_schedules_with_tested_forms_hold_on_plans_as_they_occur() -> None:
    others = tuple(np.array(SCHEDULES)[~IS_BOUNDED].tolist())
    limits = {"schedule": others, "pp": (4, 8), "micro_batch_size": (1,)}
    space = space_of("llama3-70b", 64, 256, all_schedules=True, limits=limits)
    inputs = (space.model, space.cluster, space.framework)
    plans = some_plans(space, 300)
    assert len({plan.schedule for plan in plans}) > 7
    table = CostTable(*inputs, plans)
    (least,) = by_block(table, plans, least_step_time)
    exact = replayed(simulate(*inputs, plans), table)
    assert (exact.step_time_s >= least)[exact.replayed].all()


def test_a_search_over_tested_forms_does_not_call_itself_proven() -> None:
    some = {"pp": (2, 4), "tp": (4,), "micro_batch_size": (1,)}
    space = space_of("llama3-70b", 32, 64, all_schedules=True, limits=some)
    assert not grid_search(space, top_k=3).proven


def test_the_ranking_is_that_of_the_replay_and_says_how_it_came_about() -> None:
    result = grid_search(space_of("gemma2-27b", 32, 256), top_k=10)
    plans = result.plans
    again = replayed(simulate(plans.model, plans.cluster, plans.framework, plans.plans))
    assert np.array_equal(again.step_time_s, plans.step_time_s)
    assert plans.replayed.all()
    assert result.proven
    assert 10 <= result.num_replayed < result.num_candidates / 100
    assert result.num_cut > 0
    assert len(result.cut_gain_frac) == 10
    total = plans.time.total_s
    assert np.array_equal(total, plans.step_time_s)
    terms = [getattr(plans.time, name) for name in plans.time.__dataclass_fields__]
    assert all((term >= -1e-9 * total).all() for term in terms)


def test_the_replay_scales_rates_with_the_step() -> None:
    result = grid_search(space_of("gemma2-27b", 32, 256), top_k=5).plans
    tokens = result.plans.global_batch_size * result.model.seq_length
    assert result.tokens_per_s == pytest.approx(tokens / result.step_time_s, rel=1e-12)
    assert result.mfu[0] * result.step_time_s[0] == pytest.approx(
        result.mfu[1] * result.step_time_s[1], rel=1e-12
    )


@pytest.mark.parametrize(("name", "num_gpus", "batch"), SPACES)
def test_cut_plans_are_never_slower_than_the_best_of_the_other_layouts(
    name: str, num_gpus: int, batch: int
) -> None:
    regular = grid_search(space_of(name, num_gpus, batch, limits=REGULAR), top_k=1)
    with_cuts = grid_search(space_of(name, num_gpus, batch), top_k=1)
    assert with_cuts.plans.step_time_s[0] <= regular.plans.step_time_s[0] * (1 + 1e-9)


def test_a_vocabulary_heavy_model_gains_and_says_how_much() -> None:
    """Gemma 2 27B: its 256,000 words weigh as much as two and a half of 46 layers."""
    space = space_of("gemma2-27b", 64, 512)
    result = grid_search(space, top_k=1)
    regular = grid_search(replace(space, limits=REGULAR), top_k=1)
    (plan,) = result.plans.plans
    assert plan.layout == "free"
    assert plan.chunk_layers[-1] < max(plan.chunk_layers)
    saved = 1 - result.plans.step_time_s[0] / regular.plans.step_time_s[0]
    assert saved > 0.005
    gain = result.cut_gain_frac[0]
    assert gain is not None
    assert gain >= saved - 1e-9


@pytest.mark.parametrize("name", ["llama3-70b", "gemma2-27b", "mixtral-8x7b"])
def test_tables_of_many_plans_make_the_problems_of_each(name: str) -> None:
    space = space_of(name, 64, 128, limits={"recompute": ("none",)})
    inputs = (space.model, space.cluster, space.framework)
    plans = some_plans(space, 20)
    tables = layer_tables(*inputs, plans)
    alone = [repr(partition_problem(*inputs, plan)) for plan in plans]
    assert [repr(partition_problem(*inputs, plan, tables=tables)) for plan in plans] == alone
    assert len(set(alone)) > 10


LLAMA_405B = space_of("llama3.1-405b", 16_384, 2048)
STAGES_16 = Plan(
    tp=8,
    cp=2,
    pp=16,
    dp=64,
    global_batch_size=2048,
    schedule="1f1b",
    sequence_parallel=True,
    zero=1,
    overlap_grad_reduce=True,
    overlap_param_gather=True,
    tp_comm_overlap=True,
    cross_entropy_fusion=True,
)


@pytest.mark.parametrize("vpp", [4, 7])
def test_llama_405b_has_its_first_and_last_stage_lightened(vpp: int) -> None:
    """arXiv:2407.21783 section 3.3.2: one layer less on the first and the last of 16 stages."""
    plan = replace(STAGES_16, vpp=vpp, schedule="interleaved-1f1b")
    space = LLAMA_405B
    problem = partition_problem(space.model, space.cluster, space.framework, plan)
    found = partition(replace(problem, recompute="same"))
    stages = found.stage_layers
    assert found.proven
    assert (stages[0], stages[-1]) == (7, 7)
    assert set(stages[1:-1]) == {8}
    assert found.gain_frac > 0.005
    assert "% faster than the even cut" in found.describe()


def test_plan_ranks_llama_405b_with_light_ends_first() -> None:
    result = grid_search(replace(LLAMA_405B, fixed={"pp": 16, "tp": 8, "cp": 2}), top_k=3)
    assert result.proven
    for plan in result.plans.plans:
        assert plan.layout in ("embedding-loss", "free")


def test_a_cut_that_another_layout_makes_is_not_shown_again() -> None:
    """126 layers and two more over 16 or 64 chunks: what the search cuts is embedding-loss."""
    fixed = {"pp": 16, "tp": 8, "cp": 2, "vpp": 4}
    result = grid_search(replace(LLAMA_405B, fixed=fixed), top_k=20)
    cut = [p.chunk_layers for p in result.plans.plans if p.layout == "free"]
    assert (1, *[2] * 62, 1) not in cut
    numbers = [
        (f"{t:.9e}", f"{m:.9e}", plan.recompute_label)
        for t, m, plan in zip(
            result.plans.step_time_s,
            result.plans.peak_memory_bytes,
            result.plans.plans,
            strict=True,
        )
    ]
    switches = [(p.zero, p.cp_comm_type, p.sequence_parallel) for p in result.plans.plans]
    pairs = list(zip(numbers, switches, strict=True))
    assert len(set(pairs)) == len(pairs)


def test_cuts_respect_what_is_fixed() -> None:
    fixed = {"layout": "free", "pp": 4, "vpp": 3, "recompute": "none"}
    result = grid_search(space_of("gemma2-27b", 32, 256, fixed=fixed), top_k=5)
    assert len(result.plans) > 0
    for plan in result.plans.plans:
        assert (plan.layout, plan.pp, plan.vpp, plan.recompute) == ("free", 4, 3, "none")
    assert result.num_candidates == 0
    assert not result.proven
    first = {"layout": "first-last", "first_stage_layers": 10}
    space = space_of("gemma2-27b", 32, 256, fixed=first)
    assert grid_search(space, top_k=5).num_cut == 0


def test_numbers_of_recomputed_layers_that_all_turn_out_slow_are_left() -> None:
    """Here every number of a later batch is slower than a cut of an earlier one."""
    space = space_of("gemma2-27b", 64, 512)
    plan = Plan(
        tp=2,
        cp=8,
        pp=4,
        global_batch_size=512,
        schedule="1f1b",
        layout="free",
        sequence_parallel=True,
        cp_comm_type="a2a",
        tp_comm_overlap=True,
        overlap_grad_reduce=True,
        cross_entropy_fusion=True,
    )
    problem = partition_problem(space.model, space.cluster, space.framework, plan, 0.8)
    best = partition(replace(problem, recompute="same"))
    times = []
    for number in range(43):
        with suppress(NoFeasiblePlanError):
            times.append(partition(replace(problem, recompute=number)).time_s)
    assert best.time_s == pytest.approx(min(times), rel=1e-9)


def test_frameworks_without_free_layouts_get_no_cuts() -> None:
    space = space_of("gpt2-xl", 16, 64)
    space = replace(space, framework=load_framework("nanotron"))
    result = grid_search(space, top_k=5)
    assert result.num_cut == result.num_uncut == 0
    assert all(plan.layout != "free" for plan in result.plans.plans)


def test_cuts_rescue_pipelines_that_no_other_layout_divides() -> None:
    """91 layers, and one or two more, divide over no 5 x 2 chunks; with equal chunks on each stage
    their number would be even.
    """
    model = load_model("llama3-70b", overrides={"num_layers": 91})
    cluster = load_cluster("hgx-h100", num_gpus=40)
    space = SearchSpace(model, cluster, MEGATRON, 40, fixed={"pp": 5, "vpp": 2, "tp": 8})
    layouts = {plan.layout for plan in grid_search(space, top_k=3, memory_limit=1.0).plans.plans}
    assert layouts == {"free"}


def test_a_cut_uses_no_more_memory_than_allowed() -> None:
    space = space_of("llama3-70b", 64, 128)
    for limit in (0.55, 0.65, 0.8):
        result = grid_search(space, top_k=20, memory_limit=limit)
        assert (result.plans.memory_use_frac <= limit).all()


def test_only_promising_families_are_cut() -> None:
    space = space_of("gpt2-xl", 16, 64)
    table = CostTable(space.model, space.cluster, space.framework, space.shapes())
    rows = {pp: space.unstaged(pp) for pp in space.pipeline_degrees}
    assert find_cuts(space, table, rows, {}, 0.0, 0.8).num_cut == 0
    plans = some_plans(space, 50)
    simulation = Replays(space, table, 0.8).run(plans)
    known = best_of_families(simulation)
    assert min(known.values()) == simulation.step_time_s.min()
    assert set(known) == {family(plans, i) for i in range(len(plans))}
    # Families that are as fast as can be already have nothing to gain.
    best = {key: 1e-6 for key in known}
    found = find_cuts(space, table, rows, best, np.inf, 0.8)
    assert found.num_cut > 0
    assert all(family(found.plans, i) not in best for i in range(len(found.plans)))
