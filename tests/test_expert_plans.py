"""What must hold for every plan of a mixture of experts, whatever the constants are."""

from dataclasses import fields, replace

import numpy as np
import pytest
from moe_models import DEEPSEEK, MIXTRAL, SINKS
from parallelsim.search.grid import grid_search
from parallelsim.search.space import SearchSpace

from parallelsim.catalog import load_cluster, load_framework
from parallelsim.compute import memory_bound_time
from parallelsim.costs import CostTable
from parallelsim.layers import MLP, Block, Layer
from parallelsim.memory import lowest_memory
from parallelsim.model import ModelSpec
from parallelsim.plan import MOE_DISPATCHERS, Plan, code
from parallelsim.plan_batch import PlanBatch
from parallelsim.rules import obeys_rules
from parallelsim.simulate import Simulation, screen, simulate
from parallelsim.sublayers.experts import ROUTER_BYTES

CLUSTER = load_cluster("hgx-h100", 64)
MEGATRON = load_framework("megatron-core")
UNEVEN = replace(
    MIXTRAL,
    name="uneven",
    blocks=(
        Block(
            32,
            (
                Layer(
                    MIXTRAL.layers[0].attention,
                    experts=replace(MIXTRAL.layers[0].experts, load_cv=0.4),
                ),
            ),
        ),
    ),
)
MODELS = (MIXTRAL, DEEPSEEK, SINKS, UNEVEN)
each_model = pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
ROUNDING = 1e-12


def some_plans(model: ModelSpec, count: int, **limits: object) -> PlanBatch:
    """Plans of the search space that break no rule, drawn at random."""
    space = SearchSpace(model, CLUSTER, MEGATRON, 128, limits=limits)
    rng, found = np.random.default_rng(0), []
    for block in space.blocks():
        few = block.take(rng.integers(0, len(block), min(len(block), 4 * count)))
        found.append(few.take(obeys_rules(model, CLUSTER, MEGATRON, few)))
    plans = PlanBatch.concatenate(found)
    return plans.take(rng.permutation(len(plans))[:count])


def simulated(model: ModelSpec, plans: PlanBatch) -> Simulation:
    return simulate(model, CLUSTER, MEGATRON, plans)


def changed(plans: PlanBatch, **columns: object) -> PlanBatch:
    """The same plans with other values in some columns."""
    values = {f.name: getattr(plans, f.name) for f in fields(PlanBatch)}
    return PlanBatch.from_columns(len(plans), values | columns)


def obeying(model: ModelSpec, *batches: PlanBatch) -> list[PlanBatch]:
    """The rows in which no batch breaks a rule."""
    good = np.logical_and.reduce([obeys_rules(model, CLUSTER, MEGATRON, p) for p in batches])
    assert good.sum() >= 20, "too few plans to say anything"
    return [plans.take(good) for plans in batches]


@each_model
def test_batch_equals_singles_bit_for_bit(model: ModelSpec) -> None:
    plans = some_plans(model, 40)
    together = simulated(model, plans)
    for i in range(len(plans)):
        alone = simulated(model, plans.take(slice(i, i + 1)))
        for name in ("step_time_s", "peak_memory_bytes", "p_fits", "mfu", "reasons"):
            same = getattr(alone, name)[0] == getattr(together, name)[i]
            assert np.all(same), (name, plans.plan(i))
        for name in together.time.__dataclass_fields__:
            assert getattr(alone.time, name)[0] == getattr(together.time, name)[i], name
        for name in together.memory.__dataclass_fields__:
            pair = [np.broadcast_to(getattr(s.memory, name), len(s)) for s in (alone, together)]
            assert pair[0][0] == pair[1][i], name


@each_model
def test_without_expert_parallelism_no_token_travels(model: ModelSpec) -> None:
    plans = some_plans(model, 200, ep=(1,), etp=(1,))
    assert (simulated(model, plans).time.ep_exposed_s == 0).all()
    (spread,) = obeying(model, some_plans(model, 200, ep=(2, 4, 8)))
    assert (simulated(model, spread).time.ep_exposed_s > 0).all()


@pytest.mark.parametrize("model", [MIXTRAL, DEEPSEEK, SINKS], ids=lambda model: model.name)
def test_more_ranks_of_experts_never_need_more_memory(model: ModelSpec) -> None:
    plans = some_plans(model, 400, ep=(1, 2, 4))
    fewer, more = obeying(model, plans, changed(plans, ep=2 * plans.ep))
    low, high = simulated(model, more).memory, simulated(model, fewer).memory
    for name in ("parameters_bytes", "gradients_bytes", "optimizer_bytes"):
        assert (getattr(low, name) <= getattr(high, name) * (1 + ROUNDING)).all(), name
    assert (low.parameters_bytes < high.parameters_bytes).all()
    assert (low.total_bytes <= high.total_bytes * (1 + ROUNDING)).all()


@each_model
def test_overlapped_exchange_is_never_slower(model: ModelSpec) -> None:
    plans = changed(some_plans(model, 600), ep_comm_overlap=0)
    off, on = obeying(model, plans, changed(plans, ep_comm_overlap=1))
    pair = simulated(model, on), simulated(model, off)
    assert (pair[0].step_time_s < pair[1].step_time_s).all()
    assert (pair[0].peak_memory_bytes == pair[1].peak_memory_bytes).all()


@each_model
def test_sending_a_token_to_each_node_once_is_never_slower(model: ModelSpec) -> None:
    plans = changed(some_plans(model, 400, ep=(2, 4, 8, 16, 32)), moe_dispatcher=0)
    once = changed(plans, moe_dispatcher=code("moe_dispatcher", "deepep"))
    each, once = obeying(model, plans, once)
    slow, fast = (simulated(model, plans).time.ep_exposed_s for plans in (each, once))
    assert (fast <= slow * (1 + ROUNDING)).all()


@pytest.mark.parametrize("model", [MIXTRAL, DEEPSEEK], ids=lambda model: model.name)
def test_whole_experts_beat_split_ones_where_there_are_enough(model: ModelSpec) -> None:
    """What lets the search leave out etp > 1 where ep * etp divides the experts."""
    plans = some_plans(model, 600, ep=(1, 2, 4), etp=(2, 4))
    split, whole = obeying(model, plans, changed(plans, ep=plans.ep * plans.etp, etp=1))
    pair = simulated(model, whole), simulated(model, split)
    assert (pair[0].step_time_s <= pair[1].step_time_s * (1 + ROUNDING)).all()
    assert (pair[0].peak_memory_bytes <= pair[1].peak_memory_bytes * (1 + ROUNDING)).all()


@pytest.mark.parametrize(("model", "num_gpus"), [(MIXTRAL, 32), (SINKS, 64), (UNEVEN, 32)])
def test_what_the_search_leaves_out_does_not_win(model: ModelSpec, num_gpus: int) -> None:
    """The best plan of the space is the best of one with every split and dispatcher."""
    inputs = (model, load_cluster("hgx-h100", num_gpus), MEGATRON, 64)
    every = {"etp": (1, 2, 4, 8), "moe_dispatcher": MOE_DISPATCHERS}
    spaces = SearchSpace(*inputs), SearchSpace(*inputs, limits=every)
    usual, whole = (grid_search(space, top_k=1) for space in spaces)
    assert whole.num_candidates > usual.num_candidates
    assert usual.plans.step_time_s[0] == whole.plans.step_time_s[0]


@each_model
def test_no_staging_needs_less_memory_than_the_bound(model: ModelSpec) -> None:
    """What lets the search drop a plan before it is staged."""
    space = SearchSpace(model, CLUSTER, MEGATRON, 128)
    table = CostTable(model, CLUSTER, MEGATRON, space.shapes())
    rng = np.random.default_rng(0)
    for pp in space.pipeline_degrees:
        rows = space.unstaged(pp)
        for i in rng.integers(0, len(rows), 12).tolist():
            bound = lowest_memory(table, rows.take(slice(i, i + 1)))[0]
            for block in space.expand(pp, slice(i, i + 1)):
                good = block.take(obeys_rules(model, CLUSTER, MEGATRON, block))
                if len(good):
                    _, peak = screen(table, good)
                    assert peak.min() >= bound * (1 - ROUNDING), good.plan(int(peak.argmin()))


# ------------------------------------------------------------------- one expert is a dense network

DENSE = replace(
    MIXTRAL, blocks=(Block(32, (Layer(MIXTRAL.layers[0].attention, MLP(14_336, gated=True)),)),)
)
ONE = replace(
    MIXTRAL,
    blocks=(
        Block(
            32,
            (
                Layer(
                    MIXTRAL.layers[0].attention,
                    experts=replace(MIXTRAL.layers[0].experts, num_experts=1, top_k=1),
                ),
            ),
        ),
    ),
)
PLAN = Plan(
    tp=2,
    pp=2,
    dp=16,
    sequence_parallel=True,
    schedule="1f1b",
    zero=1,
    global_batch_size=128,
)


def test_one_expert_has_the_parameters_of_a_dense_layer_and_a_router() -> None:
    assert ONE.num_parameters == DENSE.num_parameters + 32 * 4096
    assert ONE.num_active_parameters == ONE.num_parameters
    assert ONE.flops_per_sequence() == DENSE.flops_per_sequence()


@pytest.mark.parametrize(
    "plan",
    [
        replace(PLAN, tp=1, pp=1, dp=64, schedule="none", sequence_parallel=False),
        replace(PLAN, tp=1, pp=4, sequence_parallel=False),
        replace(PLAN, tp=1, cp=2, pp=4, dp=8, sequence_parallel=False),
    ],
)
def test_one_expert_costs_what_a_dense_layer_does_and_the_stated_extras(plan: Plan) -> None:
    """Extras of each layer and micro-batch: the router's parameters; 6 h bytes a token of permuted
    copies and 8 of the router, saved; 200 rows of the grouped product; moved bytes of permutation
    and routing (docs/equations.md T15).
    """
    batch = PlanBatch.from_plans([plan])
    one, dense = simulated(ONE, batch), simulated(DENSE, batch)
    layers, tokens, h = 32 // plan.pp, 4096 // plan.cp, 4096
    stage = layers * h
    for name, each in (("parameters_bytes", 2.0), ("gradients_bytes", 4.0)):
        more = getattr(one.memory, name) - getattr(dense.memory, name)
        assert more == pytest.approx(each * stage, rel=1e-6), name
    in_flight = layers * min(plan.pp, plan.num_micro_batches)
    saved = one.memory.activations_bytes - dense.memory.activations_bytes
    assert saved == pytest.approx(in_flight * tokens * (2 * h + 8), rel=1e-9)

    gemms = one.time.gemm_s / dense.time.gemm_s
    assert 1 < gemms[0] < 1 + 200 / tokens + 0.01
    passes = layers * plan.num_micro_batches
    moved = 2 * 4 * h * 2 * tokens + 2.5 * ROUTER_BYTES * tokens
    extra = passes * memory_bound_time(CLUSTER.accelerator, MEGATRON, np.array([moved]))
    more = one.time.memory_bound_s - dense.time.memory_bound_s
    assert more == pytest.approx(extra, rel=1e-6)
    for name in ("attention_s", "head_s", "tp_exposed_s", "cp_exposed_s", "ep_exposed_s"):
        assert getattr(one.time, name) == pytest.approx(getattr(dense.time, name), rel=1e-9), name
