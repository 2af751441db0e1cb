"""The search space is complete and the search exact: nested loops over single plans say the same.

``SearchSpace`` yields each canonical plan once. Here the values of every field are looped over one
by one, the scalar rules judge each combination, and what is left is compared as a set.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
from moe_models import MODELS
from oracle_rules import broken, chunk_layers
from parallelsim.search.grid import grid_search
from parallelsim.search.result import SearchResult
from parallelsim.search.space import SearchSpace

from parallelsim.catalog import load_cluster, load_framework, load_model
from parallelsim.cluster import ClusterSpec
from parallelsim.framework import FrameworkSpec
from parallelsim.layers import Attention, LatentAttention
from parallelsim.model import ModelSpec
from parallelsim.plan import CP_COMM_TYPES, LAYOUTS, PLAN_FIELDS, SCHEDULES, Plan
from parallelsim.plan_batch import PlanBatch
from parallelsim.replay import replayed
from parallelsim.rules import RULES, each_rule, obeys_rules
from parallelsim.simulate import simulate

Staging = dict[str, int | str]

SPACES = (
    ("llama3-8b", 8, 32, "megatron-core", "hgx-h100"),
    ("llama3-8b", 16, 24, "megatron-core", "hgx-h100"),
    ("gpt2-xl", 8, 24, "megatron-core", "hgx-h100"),
    ("gpt2-xl", 8, 16, "megatron-lm-2022", "dgx-a100-80gb"),
    ("gemma2-27b", 8, 16, "megatron-core", "hgx-h100"),
    ("llama3-8b", 8, 16, "nanotron", "hgx-h100"),
    ("mixtral-like", 16, 2, "megatron-core", "hgx-h100"),
    ("mixtral-like", 8, 4, "nanotron", "hgx-h100"),
    ("deepseek-like", 16, 1, "megatron-core", "hgx-h100"),
    ("gpt-oss-like", 8, 2, "megatron-core", "hgx-h100"),
)
LARGEST_MICRO_BATCH = 64
LIGHTEST_END = 3
"""Layers that the first or last stage may have fewer than the stages between."""
each_space = pytest.mark.parametrize(
    ("model_name", "num_gpus", "global_batch_size", "framework_name", "cluster_name"), SPACES
)


def degrees(cluster: ClusterSpec) -> Iterator[dict[str, int]]:
    """tp, cp, pp, dp that fill the GPUs, tp inside the innermost tier."""
    sizes = [n for n in range(1, cluster.num_gpus + 1) if cluster.num_gpus % n == 0]
    for tp, cp, pp in product(sizes, repeat=3):
        dp, rest = divmod(cluster.num_gpus, tp * cp * pp)
        if dp and not rest and tp <= cluster.domain_size:
            yield {"tp": tp, "cp": cp, "pp": pp, "dp": dp}


def stagings(model: ModelSpec, framework: FrameworkSpec, pp: int) -> Iterator[Staging]:
    """Every way to cut the layers, schedule the chunks and recompute, once each."""
    modules, selective_helps = "core_attn", not framework.compute.flash_attention
    if model.has_experts and "modules" in framework.capabilities.recomputes:
        latent = any(isinstance(layer.attention, LatentAttention) for layer in model.layers)
        modules, selective_helps = "layernorm+moe_act", True
        modules = "layernorm+mla_up_proj+moe_act" if latent else modules
    for cut in cuts(model, framework, pp):
        largest = max(chunk_layers(model, Plan(pp=pp, **cut)) or [0])
        depths: list[tuple[str, int]] = [("none", 0), ("full", 0)]
        depths += [("selective", 0)] if selective_helps else []
        depths += [("full", n) for n in range(1, largest)]
        for schedule, (recompute, depth) in product(SCHEDULES, depths):
            plan = {"recompute": recompute, "recompute_num_layers": depth}
            plan |= {"recompute_modules": modules} if recompute == "selective" else {}
            yield {**cut, "schedule": schedule, **plan}


def cuts(model: ModelSpec, framework: FrameworkSpec, pp: int) -> Iterator[Staging]:
    """Layouts and virtual stages that cut the layers, each set of chunks once."""
    for layout in LAYOUTS if pp > 1 else ("even",):
        ends = range(1, model.num_layers) if layout == "first-last" else (0,)
        for first, last in product(ends, repeat=2):
            if layout == "first-last" and not is_slightly_uneven(model, pp, first, last):
                continue
            for vpp in range(1, model.num_layers + 3) if pp > 1 else (1,):
                fields = {"first_stage_layers": first, "last_stage_layers": last}
                cut = {"layout": layout, "vpp": vpp, **fields}
                if is_canonical_cut(model, framework, pp, cut):
                    yield cut


def is_slightly_uneven(model: ModelSpec, pp: int, first: int, last: int) -> bool:
    """Whether both ends have at most ``LIGHTEST_END`` layers fewer than the other stages."""
    rest = model.num_layers - first - last
    middle = rest // (pp - 2) if pp > 2 else max(first, last)
    return rest >= 0 and all(0 <= middle - end <= LIGHTEST_END for end in (first, last))


def is_canonical_cut(model: ModelSpec, framework: FrameworkSpec, pp: int, cut: Staging) -> bool:
    """Whether the cut exists, and no earlier layout of the framework makes the same chunks."""
    chunks = chunk_layers(model, Plan(pp=pp, **cut))
    if chunks is None:
        return False
    plain = {"vpp": cut["vpp"], "first_stage_layers": 0, "last_stage_layers": 0}
    earlier = LAYOUTS[: LAYOUTS.index(str(cut["layout"]))]
    earlier = tuple(name for name in earlier if name in framework.capabilities.layouts)
    others = (chunk_layers(model, Plan(pp=pp, **plain, layout=layout)) for layout in earlier)
    return chunks not in others


def choices(space: SearchSpace, degree: dict[str, int]) -> Iterator[dict[str, int | str]]:
    """Sequence parallelism, ZeRO, kind of context parallelism and ranks of experts, with the
    switches they decide.
    """
    can = space.framework.capabilities
    shards = degree["dp"] * degree["cp"]
    fp8 = space.precision.startswith(("fp8", "mxfp8"))
    spread = list(expert_choices(space, degree))
    tp, cp, domain = degree["tp"], degree["cp"], space.cluster.domain_size
    fits = [n for n in range(2, cp) if cp % n == 0 and tp * n <= domain and tp * cp > domain]
    heads = [
        number
        for layer, _ in space.model.layer_kinds
        if isinstance(layer.attention, Attention)
        for number in (layer.attention.num_heads, layer.attention.num_query_groups)
    ]
    dealt = [n for n in fits if heads and all(number % (tp * n) == 0 for number in heads)]
    for sequence_parallel, zero, kind in product((False, True), (0, 1, 2, 3), CP_COMM_TYPES):
        without_effect = (
            (kind == "a2a+p2p" and not dealt)
            or (sequence_parallel and degree["tp"] == 1)
            or (zero and shards == 1)
            or (degree["cp"] == 1 and kind != "p2p")
            or zero in space.framework.capabilities.zero_on_request
        )
        if not without_effect:
            reduces = can.overlap_grad_reduce and shards > 1
            switches = {
                "sequence_parallel": sequence_parallel,
                "zero": zero,
                "cp_comm_type": kind,
                "cp_a2a": max(dealt) if kind == "a2a+p2p" else 1,
                "tp_comm_overlap": can.tp_comm_overlap and sequence_parallel,
                "overlap_grad_reduce": reduces,
                "overlap_param_gather": reduces and can.overlap_param_gather and zero > 0,
                "cross_entropy_fusion": can.cross_entropy_fusion,
                "fp8_param_gather": can.fp8_param_gather and fp8 and zero > 0,
            }
            yield from ({**switches, **experts} for experts in spread)


def expert_choices(space: SearchSpace, degree: dict[str, int]) -> Iterator[dict[str, int | str]]:
    """ep and etp that deal out whole experts, with the dispatchers that can win.

    ep alone is enough wherever it divides the experts over as many ranks.
    """
    mixtures = {layer.experts for layer, _ in space.model.layer_kinds if layer.experts}
    can = space.framework.capabilities
    if not mixtures:
        yield {}
        return
    (experts,) = mixtures
    number = experts.num_experts
    for ep, etp in product(range(1, number + 1), range(1, degree["tp"] + 1)):
        if number % ep or degree["tp"] % etp or (etp > 1 and number % (ep * etp) == 0):
            continue
        ranks = ep * etp
        names = ["all-to-all"] if ranks == 1 else ["all-to-all", "deepep"]
        names = ["deepep"] if ranks > space.cluster.domain_size else names
        if 1 < ranks <= experts.top_k:
            names.append("all-gather")
        for name in names:
            overlaps = (False, True) if can.ep_comm_overlap else (False,)
            graphs = (False, True) if can.cuda_graphs else (False,)
            for overlap, graph in product(overlaps, graphs):
                chosen = {"ep": ep, "etp": etp, "moe_dispatcher": name, "cuda_graphs": graph}
                yield {**chosen, "ep_comm_overlap": overlap}


PIPELINE_RULES = {
    "schedule-matches-stages",
    "interleaving-needs-micro-batches",
    "layers-divide-by-stages",
    "first-last-fits",
    "layout-needs-stages",
    "recompute-within-stage",
    "framework-has-schedule",
    "framework-has-layout",
    "framework-has-recompute",
    "ep-overlap-needs-interleaving",
    "cuda-graphs-without-full-recompute",
}
"""They see pp, the number of micro-batches, the overlap of experts, CUDA graphs and the staging
alone; the other rules see the rest."""


def halves(space: SearchSpace) -> Iterator[tuple[dict, list[Staging]]]:
    """The fields beside the staging that obey the rules, with all stagings that go with them."""
    inputs = (space.model, space.cluster, space.framework)
    by_pp: dict[int, list[Staging]] = {}
    obeying: dict[tuple[int | bool, ...], list[Staging]] = {}
    for degree in degrees(space.cluster):
        pp = degree["pp"]
        if pp not in by_pp:
            by_pp[pp] = list(stagings(space.model, space.framework, pp))
        for micro_batch_size in range(1, LARGEST_MICRO_BATCH + 1):
            if space.global_batch_size % (micro_batch_size * degree["dp"]):
                continue  # most sizes: refused at once, as the rules do
            batch: dict[str, int | str] = {"global_batch_size": space.global_batch_size}
            batch["precision"] = space.precision
            batch["micro_batch_size"] = micro_batch_size
            for chosen in choices(space, degree):
                shared = {**degree, **batch, **chosen}
                plan = Plan(**shared)
                if broken(*inputs, plan) - PIPELINE_RULES:
                    continue
                overlapped = {**shared, "ep_comm_overlap": True}
                better = not plan.ep_comm_overlap and not (
                    broken(*inputs, Plan(**overlapped)) - PIPELINE_RULES
                )
                whole_rounds = plan.num_micro_batches % pp == 0
                key = (pp, whole_rounds, plan.ep_comm_overlap, better, plan.cuda_graphs)
                if key not in obeying:
                    obeying[key] = [
                        staging
                        for staging in by_pp[pp]
                        if not broken(*inputs, Plan(**shared, **staging)) & PIPELINE_RULES
                        and not (
                            better
                            and not broken(*inputs, Plan(**overlapped, **staging)) & PIPELINE_RULES
                        )
                    ]
                yield shared, obeying[key]


def _space(
    model_name: str,
    num_gpus: int,
    global_batch_size: int,
    framework_name: str,
    cluster_name: str,
) -> SearchSpace:
    return SearchSpace(
        MODELS[model_name] if model_name in MODELS else load_model(model_name),
        load_cluster(cluster_name, num_gpus=num_gpus),
        load_framework(framework_name),
        global_batch_size,
    )


def _valid(space: SearchSpace) -> PlanBatch:
    """What the space yields, less what the rules refuse."""
    inputs = (space.model, space.cluster, space.framework)
    blocks = [block.take(obeys_rules(*inputs, block)) for block in space.blocks()]
    return PlanBatch.concatenate(blocks)


@cache
def _searched(regular: bool, *case: str | int) -> SearchResult:
    """The best 60 plans of a case: ``regular`` ones, or with layers cut anywhere among them."""
    space = _space(*case)
    searched = replace(space, limits={"layout": LAYOUTS[:-1]}) if regular else space
    return grid_search(searched, top_k=60, all_variants=True)


@each_space
def test_space_equals_the_nested_loops(
    model_name: str, num_gpus: int, global_batch_size: int, framework_name: str, cluster_name: str
) -> None:
    space = _space(model_name, num_gpus, global_batch_size, framework_name, cluster_name)
    expected = {Plan(**shared, **staging) for shared, all_ in halves(space) for staging in all_}
    yielded = list(_valid(space))
    assert len(set(yielded)) == len(yielded), "a plan comes twice"
    missing, extra = expected - set(yielded), set(yielded) - expected
    for name, plans in (("missing", missing), ("too many", extra)):
        assert not plans, f"{len(plans)} {name} of {len(expected)}: {min(plans, key=str)}"
    assert space.num_candidates == sum(len(block) for block in space.blocks())


@pytest.mark.parametrize("precision", ["fp8-current", "fp8-delayed"])
def test_fp8_space_keeps_weights_in_fp8_wherever_it_can(precision: str) -> None:
    """The switch is on with a sharded optimizer, off without, and ``fixed`` turns it off."""
    inputs = (load_model("llama3-8b"), load_cluster("hgx-h100", 8), load_framework("megatron-core"))
    space = SearchSpace(*inputs, 8, precision)
    expected = {Plan(**shared, **staging) for shared, all_ in halves(space) for staging in all_}
    plans = list(_valid(space))
    assert set(plans) == expected
    assert len(plans) == len(expected)
    assert {plan.fp8_param_gather for plan in plans if plan.zero} == {True}
    assert {plan.fp8_param_gather for plan in plans if not plan.zero} == {False}
    off = SearchSpace(*inputs, 8, precision, fixed={"fp8_param_gather": False})
    assert {plan.fp8_param_gather for plan in _valid(off)} == {False}


def test_space_of_llama3_70b_on_256_gpus_has_as_many_plans_as_the_nested_loops() -> None:
    space = _space("llama3-70b", 256, 512, "megatron-core", "hgx-h100")
    assert len(_valid(space)) == sum(len(all_) for _, all_ in halves(space))


@each_space
def test_grid_search_equals_brute_force(
    model_name: str, num_gpus: int, global_batch_size: int, framework_name: str, cluster_name: str
) -> None:
    space = _space(model_name, num_gpus, global_batch_size, framework_name, cluster_name)
    space = replace(space, limits={"layout": LAYOUTS[:-1]})  # layers cut anywhere: the next test
    inputs = (space.model, space.cluster, space.framework)
    plans = _valid(space)
    simulation = replayed(simulate(*inputs, plans))
    order = np.lexsort(
        [
            *[getattr(plans, name) for name in reversed(PLAN_FIELDS)],
            simulation.peak_memory_bytes,
            simulation.step_time_s,
        ]
    )
    safe = [i for i in order.tolist() if simulation.zone[i] == 0]
    case = (model_name, num_gpus, global_batch_size, framework_name, cluster_name)
    result = _searched(True, *case)
    assert list(result.plans.plans)[:20] == [plans.plan(i) for i in safe[:20]]
    assert np.array_equal(result.plans.step_time_s[:20], simulation.step_time_s[safe[:20]])
    assert result.num_candidates == space.num_candidates
    assert result.num_feasible == len(safe)
    assert result.num_tight == int((simulation.zone == 1).sum())
    assert result.proven
    assert not result.partial

    best = simulation.step_time_s[safe[0]] if safe else np.inf
    tight = [
        i for i in order.tolist() if simulation.zone[i] == 1 and simulation.step_time_s[i] < best
    ]
    shown = list(result.faster_but_tight.plans)
    assert shown == [plans.plan(i) for i in tight[: len(shown)]]
    assert bool(shown) == bool(tight)


@each_space
def test_cuts_are_added_to_the_ranking_and_replace_none_that_is_faster(
    model_name: str, num_gpus: int, global_batch_size: int, framework_name: str, cluster_name: str
) -> None:
    case = (model_name, num_gpus, global_batch_size, framework_name, cluster_name)
    regular, result = _searched(True, *case), _searched(False, *case)
    assert result.proven
    if not len(result.plans):
        return
    assert (np.diff(result.plans.step_time_s) >= -1e-9 * result.plans.step_time_s[0]).all()
    others = [plan for plan in result.plans.plans if plan.layout != "free"]
    assert others == list(regular.plans.plans)[: len(others)]
    for gain, plan in zip(result.cut_gain_frac, result.plans.plans, strict=True):
        assert gain is None or (plan.layout == "free" and gain > 0)


@each_space
def test_grid_search_accounts_for_every_candidate(
    model_name: str, num_gpus: int, global_batch_size: int, framework_name: str, cluster_name: str
) -> None:
    """Plans that fit nowhere are not asked about their staging: they are out of memory alone."""
    space = _space(model_name, num_gpus, global_batch_size, framework_name, cluster_name)
    zones = simulate(space.model, space.cluster, space.framework, _valid(space)).zone
    result = _searched(False, model_name, num_gpus, global_batch_size, framework_name, cluster_name)
    counted = dict(result.reasons)
    out_of_memory = counted.pop("out of memory", 0)
    rejections = _rejections(space)
    staging = {rule.name for rule in RULES if rule.reads_staging}
    assert {name: n for name, n in counted.items() if name not in staging} == {
        name: n for name, n in rejections.items() if name not in staging
    }
    assert all(0 < n <= rejections[name] for name, n in counted.items())
    fitting = result.num_feasible + result.num_tight
    assert int((zones == 2).sum()) <= out_of_memory <= result.num_candidates - fitting
    assert out_of_memory + sum(counted.values()) >= result.num_candidates - fitting


def _rejections(space: SearchSpace) -> Counter[str]:
    """Candidates that break each rule."""
    counts: Counter[str] = Counter()
    for block in space.blocks():
        for rule, refused in each_rule(space.model, space.cluster, space.framework, block):
            counts[rule.name] += int(refused.sum())
    return +counts


@each_space
def test_no_two_rows_of_a_ranking_predict_the_same_numbers(
    model_name: str, num_gpus: int, global_batch_size: int, framework_name: str, cluster_name: str
) -> None:
    """Plans that differ only in what has no effect are one row."""
    seen: dict[str, Plan] = {}
    ranked = _searched(
        False, model_name, num_gpus, global_batch_size, framework_name, cluster_name
    ).plans
    for i, plan in enumerate(ranked.plans):
        row = ranked.row(i)
        numbers = str([row["time"], row["memory"], row["hfu"]])
        assert numbers not in seen, f"row {i} {plan} predicts what {seen[numbers]} does"
        seen[numbers] = plan


def test_grid_search_is_deterministic_and_its_top_k_are_nested() -> None:
    space = _space(*SPACES[0])
    first, second = grid_search(space, top_k=10), grid_search(space, top_k=10)
    assert list(first.plans.plans) == list(second.plans.plans)
    fewer = grid_search(space, top_k=3)
    assert list(fewer.plans.plans) == list(first.plans.plans)[:3]


def test_fixed_fields_and_limits_cut_the_space_and_nothing_else() -> None:
    whole = list(_valid(_space(*SPACES[0])))
    space = _space(*SPACES[0])
    inputs = (space.model, space.cluster, space.framework, space.global_batch_size)
    fixed = SearchSpace(*inputs, fixed={"tp": 2, "zero": 1}, limits={"cp": (1, 2)})
    expected = {p for p in whole if p.tp == 2 and p.zero == 1 and p.cp in (1, 2)}
    assert set(_valid(fixed)) == expected
