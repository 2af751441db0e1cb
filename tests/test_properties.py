"""What must hold for every plan, whatever the constants are."""

from dataclasses import fields, replace
from functools import cache

import numpy as np
import pytest
from random_plans import valid_plans

from parallelsim.catalog import load_cluster, load_framework, load_model
from parallelsim.cluster import ClusterSpec
from parallelsim.costs import CostTable
from parallelsim.framework import FrameworkSpec
from parallelsim.model import ModelSpec
from parallelsim.plan import CHOICES, Plan
from parallelsim.plan_batch import PlanBatch
from parallelsim.rules import obeys_rules
from parallelsim.simulate import Simulation, simulate

MODELS = ("megatron-22b", "llama3-8b", "llama3-70b", "gpt3-6.7b")
FRAMEWORKS = ("megatron-core", "megatron-lm-2022")
ROUNDING = 1e-12
STAGED = 15
"""Plans of a setting whose stages are looked at one by one: a plan's take milliseconds."""
OUTPUTS = (
    "step_time_s",
    "tokens_per_s",
    "tokens_per_s_per_gpu",
    "mfu",
    "hfu",
    "peak_memory_bytes",
    "memory_use_frac",
    "p_fits",
    "reasons",
    "feasible",
    "zone",
    "fullest_stage",
)

Setting = tuple[ModelSpec, ClusterSpec, FrameworkSpec, tuple[Plan, ...]]
SETTINGS = [(model, framework) for model in MODELS for framework in FRAMEWORKS]
each_setting = pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: f"{s[0]}-{s[1]}")


@cache
def setting_of(name: tuple[str, str]) -> Setting:
    """A model, 64 H100 or A100 GPUs, a framework, and random plans that break no rule."""
    model, framework = load_model(name[0]), load_framework(name[1])
    kind = "hgx-h100" if name[1] == "megatron-core" else "dgx-a100-80gb"
    cluster = load_cluster(kind, num_gpus=64)
    plans = tuple(valid_plans(model, cluster, framework, 60, seed=f"properties {name}"))
    return model, cluster, framework, plans


def changed(setting: Setting, **changes: object) -> tuple[Simulation, Simulation]:
    """Simulations without and with the changes, of the plans that break no rule in either form."""
    model, cluster, framework, plans = setting
    pairs = [(plan, replace(plan, **changes)) for plan in plans]
    obey = [
        obeys_rules(model, cluster, framework, PlanBatch.from_plans(side))
        for side in zip(*pairs, strict=True)
    ]
    keep = [
        pair for pair, *good in zip(pairs, *obey, strict=True) if pair[0] != pair[1] and all(good)
    ]
    if not keep:
        pytest.skip(f"no plan of {framework.name} can be changed so: {changes}")
    before, after = zip(*keep, strict=True)
    return (
        simulate(model, cluster, framework, before),
        simulate(model, cluster, framework, after),
    )


def _arrays(simulation: Simulation) -> dict[str, np.ndarray]:
    found = {name: np.asarray(getattr(simulation, name)) for name in OUTPUTS}
    for part in ("time", "memory"):
        breakdown = getattr(simulation, part)
        for field in fields(breakdown):
            found[f"{part}.{field.name}"] = np.asarray(getattr(breakdown, field.name))
    return found


@each_setting
def test_batch_equals_singles_bit_for_bit(setting: tuple[str, str]) -> None:
    model, cluster, framework, plans = setting_of(setting)
    batch = _arrays(simulate(model, cluster, framework, plans))
    for i, plan in enumerate(plans):
        single = _arrays(simulate(model, cluster, framework, plan))
        for name, values in batch.items():
            assert values[i].tobytes() == single[name][0].tobytes(), (name, plan)


@each_setting
def test_a_plan_does_not_depend_on_its_neighbours(setting: tuple[str, str]) -> None:
    model, cluster, framework, plans = setting_of(setting)
    whole = _arrays(simulate(model, cluster, framework, plans))
    part = _arrays(simulate(model, cluster, framework, plans[::-3]))
    for name, values in whole.items():
        assert values[::-3].tobytes() == part[name].tobytes(), name


def test_every_combination_of_shapes_has_its_row_of_costs() -> None:
    """Also where the values' product is far more than the plans: 2 million for 300."""
    random, size = np.random.default_rng(1), 300
    keys = {
        "tp": random.choice([1, 2, 4, 8], size),
        "cp": random.choice([1, 2, 4, 8, 16], size),
        "micro_batch_size": random.integers(1, 17, size),
        "ep": random.choice([1, 2, 4, 8], size),
        "etp": random.choice([1, 2, 4, 8], size),
        "moe_dispatcher": random.integers(0, 3, size),
        "recompute": random.integers(0, 2, size),
        "recompute_modules": random.integers(0, 8, size),
        **{
            switch: random.integers(0, 2, size)
            for switch in ("cuda_graphs", "compile", "sequence_parallel", "ep_comm_overlap")
        },
    }
    plans = PlanBatch.from_columns(size, keys)
    inputs = load_model("mixtral-8x7b"), load_cluster("hgx-h100", 64), load_framework("nanotron")
    table = CostTable(*inputs, plans)
    keys["recompute_modules"] *= keys["recompute"] == CHOICES["recompute"].index("selective")
    known: dict[tuple[int, ...], int] = {}
    for key, row in zip(zip(*keys.values(), strict=True), table.rows(plans), strict=True):
        assert known.setdefault(key, row) == row
    assert sorted(known.values()) == list(range(len(table)))


@each_setting
def test_totals_are_the_sums_of_their_fields(setting: tuple[str, str]) -> None:
    simulation = simulate(*setting_of(setting))
    for part, total, answer in (
        (simulation.time, simulation.time.total_s, simulation.step_time_s),
        (simulation.memory, simulation.memory.total_bytes, simulation.peak_memory_bytes),
    ):
        summed = sum(getattr(part, field.name) for field in fields(part))
        assert np.allclose(summed, total, rtol=ROUNDING, atol=0)
        assert np.array_equal(total, answer)


@each_setting
def test_no_term_is_negative_and_every_answer_is_finite(setting: tuple[str, str]) -> None:
    simulation = simulate(*setting_of(setting))
    for name, values in _arrays(simulation).items():
        assert np.isfinite(values).all(), name
        assert (values >= 0).all(), name
    assert (simulation.mfu <= 1).all()
    assert (simulation.mfu <= simulation.hfu * (1 + ROUNDING)).all()
    assert (simulation.p_fits <= 1).all()


@each_setting
def test_rates_follow_from_the_step_time(setting: tuple[str, str]) -> None:
    model, cluster, framework, plans = setting_of(setting)
    simulation = simulate(model, cluster, framework, plans)
    tokens = np.array([plan.global_batch_size * model.seq_length for plan in plans], np.float64)
    assert np.allclose(simulation.tokens_per_s * simulation.step_time_s, tokens, rtol=1e-12)
    per_gpu = simulation.tokens_per_s_per_gpu * cluster.num_gpus
    assert np.allclose(per_gpu, simulation.tokens_per_s, rtol=1e-12)


@each_setting
def test_a_degree_of_one_pays_nothing_for_it(setting: tuple[str, str]) -> None:
    model, cluster, framework, plans = setting_of(setting)
    simulation = simulate(model, cluster, framework, plans)
    free = {
        "tp": (simulation.time.tp_exposed_s,),
        "cp": (simulation.time.cp_exposed_s,),
        "pp": (simulation.time.p2p_exposed_s, simulation.time.bubble_s),
    }
    for degree, terms in free.items():
        alone = np.array([getattr(plan, degree) == 1 for plan in plans])
        assert alone.any()
        for term in terms:
            assert (term[alone] == 0).all(), degree
    replicas = np.array([plan.dp * plan.cp for plan in plans])
    assert (simulation.time.dp_exposed_s[replicas == 1] == 0).all()
    kept = np.array([plan.recompute == "none" for plan in plans])
    assert (simulation.time.recompute_s[kept] == 0).all()


@each_setting
def test_full_recompute_costs_time_and_at_most_the_forward(setting: tuple[str, str]) -> None:
    """The forward is at most half of forward and backward: every GEMM has two backward GEMMs."""
    without, with_all = changed(setting_of(setting), recompute="full", recompute_num_layers=0)
    kept = np.array([plan.recompute == "none" for plan in without.plans])
    extra = (with_all.step_time_s - without.step_time_s)[kept]
    assert (extra > 0).all()
    time = without.time
    layer_work = time.gemm_s + time.attention_s + time.memory_bound_s + time.host_s
    layer_work = layer_work + time.tp_exposed_s + time.cp_exposed_s
    recompute_s = with_all.time.recompute_s[kept]
    assert (recompute_s > 0).all()
    assert (recompute_s <= 0.5 * layer_work[kept] * (1 + ROUNDING)).all()


@each_setting
def test_recompute_never_needs_more_activations(setting: tuple[str, str]) -> None:
    for changes in (
        {"recompute": "full", "recompute_num_layers": 0},
        {"recompute": "full", "recompute_num_layers": 1},
        {"recompute": "selective", "recompute_num_layers": 0},
    ):
        without, recomputed = changed(setting_of(setting), **changes)
        kept = np.array([plan.recompute == "none" for plan in without.plans])
        before = _stage_terms(without, "activations_bytes", kept)
        after = _stage_terms(recomputed, "activations_bytes", kept)
        for old, new in zip(before, after, strict=True):
            assert (new <= old * (1 + ROUNDING)).all()


@each_setting
@pytest.mark.parametrize(
    "switch", ["tp_comm_overlap", "overlap_grad_reduce", "cross_entropy_fusion"]
)
def test_overlap_and_fusion_are_never_worse_than_none(
    setting: tuple[str, str], switch: str
) -> None:
    *facts, plans = setting_of(setting)
    off = tuple(replace(p, **{switch: False}) for p in plans)
    without, switched_on = changed((*facts, off), **{switch: True})
    assert (switched_on.step_time_s <= without.step_time_s * (1 + ROUNDING)).all()
    assert (switched_on.peak_memory_bytes <= without.peak_memory_bytes).all()


@each_setting
def test_overlapped_parameter_gathers_are_never_worse_than_none(setting: tuple[str, str]) -> None:
    *facts, plans = setting_of(setting)
    off = tuple(replace(p, overlap_grad_reduce=True, overlap_param_gather=False) for p in plans)
    without, overlapped = changed((*facts, off), overlap_param_gather=True)
    assert (overlapped.step_time_s <= without.step_time_s * (1 + ROUNDING)).all()


def test_weights_kept_in_fp8_are_never_worse_and_spare_the_16_bit_copy() -> None:
    facts = (load_model("llama3-8b"), load_cluster("hgx-h100", 64), load_framework("megatron-core"))
    for precision in ("fp8-delayed", "fp8-current", "fp8-blockwise", "mxfp8"):
        plan = Plan(tp=2, dp=32, zero=1, global_batch_size=256, precision=precision)
        copied, alone = (
            simulate(*facts, replace(plan, fp8_param_gather=on)) for on in (False, True)
        )
        assert (copied.obeys_rules & alone.obeys_rules)[0] or precision == "mxfp8"  # not on Hopper
        spared = copied.memory.parameters_bytes - alone.memory.parameters_bytes
        narrow = 33 / 32 if precision == "mxfp8" else 1.0
        of_copied = copied.memory.parameters_bytes[0] / (1 + narrow)
        assert spared[0] == pytest.approx(of_copied, rel=1e-12)
        assert alone.peak_memory_bytes[0] < copied.peak_memory_bytes[0]
        if precision == "mxfp8":  # gathered in 16 bits all the same
            assert alone.time.dp_exposed_s[0] == copied.time.dp_exposed_s[0]
        else:
            assert alone.time.dp_exposed_s[0] < copied.time.dp_exposed_s[0]
            assert alone.time.optimizer_s[0] < copied.time.optimizer_s[0]


def test_reducing_tensor_by_tensor_costs_with_layers_and_ranks() -> None:
    """nanotron: 27 us (ZeRO 1: 48 us) for each of 32 layers and each rank, none for one replica."""
    nanotron = load_framework("nanotron")
    overlap = replace(nanotron.overlap, dp_rank_s=0.0, zero_rank_s=0.0)
    in_buckets = replace(nanotron, overlap=overlap)
    for dp in (1, 8, 64):
        facts = (load_model("llama3-8b"), load_cluster("hgx-h100", 8 * dp))
        for zero, seconds in ((0, 27e-6), (1, 48e-6))[: 1 + (dp > 1)]:
            plan = Plan(tp=8, dp=dp, zero=zero, global_batch_size=dp, sequence_parallel=True)
            slow, fast = (simulate(*facts, f, plan) for f in (nanotron, in_buckets))
            difference = (slow.time.dp_exposed_s - fast.time.dp_exposed_s)[0]
            expected = seconds * 32 * dp if dp > 1 else 0.0
            assert difference == pytest.approx(expected, rel=1e-9, abs=1e-12)


@each_setting
def test_sharding_the_optimizer_never_needs_more_state(setting: tuple[str, str]) -> None:
    *facts, plans = setting_of(setting)
    off = tuple(replace(p, zero=0) for p in plans)
    replicated, sharded = changed((*facts, off), zero=1)
    ranks = np.array([plan.dp * plan.cp for plan in replicated.plans])
    states = ("parameters_bytes", "gradients_bytes", "optimizer_bytes")
    for i, count in enumerate(ranks[:STAGED]):
        before, after = (
            [sum(stage[name] for name in states) for stage in s.row(i)["memory_per_stage"]]
            for s in (replicated, sharded)
        )
        for old, new in zip(before, after, strict=True):
            assert new <= old * (1 + ROUNDING)
            if count >= 2:
                assert new < old


@each_setting
def test_sixteen_bit_gradients_never_need_more_memory_or_time(setting: tuple[str, str]) -> None:
    *facts, plans = setting_of(setting)
    off = tuple(replace(p, grad_dtype="fp32", precision="bf16") for p in plans)
    wide, narrow = changed((*facts, off), grad_dtype="bf16")
    assert (narrow.peak_memory_bytes <= wide.peak_memory_bytes).all()
    assert (narrow.time.dp_exposed_s <= wide.time.dp_exposed_s * (1 + ROUNDING)).all()


def test_fp32_training_keeps_four_bytes_where_sixteen_bits_keep_two() -> None:
    """fp32 has no separate master weights; its parameters and saved tensors are twice as wide."""
    model, cluster, framework, plans = setting_of(("llama3-8b", "megatron-core"))
    half = tuple(replace(p, precision="bf16", grad_dtype="fp32") for p in plans)
    narrow, wide = changed((model, cluster, framework, half), precision="fp32")
    for i in range(len(wide.plans)):
        rows = (narrow.row(i)["memory_per_stage"], wide.row(i)["memory_per_stage"])
        for before, after in zip(*rows, strict=True):
            assert after["parameters_bytes"] == pytest.approx(2 * before["parameters_bytes"])
            assert after["activations_bytes"] > 1.5 * before["activations_bytes"]
            assert after["optimizer_bytes"] < before["optimizer_bytes"]


@each_setting
def test_sequence_parallelism_never_needs_more_saved_tensors(setting: tuple[str, str]) -> None:
    *facts, plans = setting_of(setting)
    off = tuple(
        replace(p, sequence_parallel=False, tp_comm_overlap=False) for p in plans if p.tp > 1
    )
    replicated, sharded = changed((*facts, off), sequence_parallel=True)
    everything = np.ones(len(replicated.plans), bool)
    before = _stage_terms(replicated, "activations_bytes", everything)
    after = _stage_terms(sharded, "activations_bytes", everything)
    for old, new in zip(before, after, strict=True):
        assert (new < old).all()


@each_setting
def test_more_micro_batches_never_raise_the_bubble_share(setting: tuple[str, str]) -> None:
    model, cluster, framework, plans = setting_of(setting)
    plans = tuple(plan for plan in plans if plan.pp > 1)
    shares = []
    for factor in (1, 2, 4, 16):
        larger = [replace(p, global_batch_size=p.global_batch_size * factor) for p in plans]
        simulation = simulate(model, cluster, framework, larger)
        shares.append(simulation.time.bubble_s / simulation.step_time_s)
    assert (np.diff(shares, axis=0) <= ROUNDING).all()


@each_setting
def test_a_larger_global_batch_never_takes_less_time(setting: tuple[str, str]) -> None:
    model, cluster, framework, plans = setting_of(setting)
    larger = [replace(p, global_batch_size=p.global_batch_size * 2) for p in plans]
    before = simulate(model, cluster, framework, plans)
    after = simulate(model, cluster, framework, larger)
    assert (after.step_time_s > before.step_time_s).all()
    assert (after.tokens_per_s >= before.tokens_per_s * (1 - ROUNDING)).all()


@each_setting
def test_a_tighter_memory_limit_never_makes_a_plan_safe(setting: tuple[str, str]) -> None:
    model, cluster, framework, plans = setting_of(setting)
    zones = [
        simulate(model, cluster, framework, plans, memory_limit=limit).zone
        for limit in (1.0, 0.8, 0.5, 0.1)
    ]
    assert (np.diff(zones, axis=0) >= 0).all()


def _stage_terms(simulation: Simulation, name: str, mask: np.ndarray) -> list[np.ndarray]:
    """One array [stages] for each of the first plans that the mask selects."""
    return [
        np.array([stage[name] for stage in simulation.row(i)["memory_per_stage"]])
        for i in np.flatnonzero(mask)[:STAGED].tolist()
    ]
