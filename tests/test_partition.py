"""Partitions against brute force over every cut and every recompute, written with plain loops."""

import itertools
import random
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parallelsim.search.partition import (
    EdgeItem,
    LayerItems,
    PartitionProblem,
    evaluate,
    partition,
)
from parallelsim.search.partition_inputs import partition_problem
from parallelsim.search.partition_layouts import megatron_layout, read_megatron_layout

from parallelsim.catalog import load_cluster, load_framework, load_model
from parallelsim.costs import CostTable
from parallelsim.errors import NoFeasiblePlanError, PlanError
from parallelsim.pipeline import pipeline_time
from parallelsim.plan import Plan
from parallelsim.plan_batch import PlanBatch
from parallelsim.simulate import memory_per_stage
from parallelsim.stage_seconds import stage_seconds as step_stage_seconds
from parallelsim.stages import plan_columns
from parallelsim.timeline import compile_graph, make_schedule, stage_costs, step_time

LAYER_FIELDS = [f.name for f in fields(LayerItems)]
EXACT = 1e-9


# --- the oracle ------------------------------------------------------------------------------


def compositions(total: int, parts: int, least: int):
    """All ways to write ``total`` as an ordered sum of ``parts`` numbers of at least ``least``."""
    if parts == 1:
        if total >= least:
            yield (total,)
        return
    for first in range(least, total + 1):
        for rest in compositions(total - first, parts - 1, least):
            yield (first, *rest)


def obeys(layout: str, counts: tuple[int, ...], p: int, v: int) -> bool:
    """Megatron's rule of a layout, on the layers of each chunk."""
    slots = list(counts)
    if layout in ("embedding", "embedding-loss"):
        slots[0] += 1
    if layout in ("loss", "embedding-loss"):
        slots[-1] += 1
    if layout == "free":
        return True
    if layout == "first-last":
        same_in_stage = all(len(set(counts[s::p])) == 1 for s in range(p))
        return p > 1 and same_in_stage and len(set(counts[1 : p - 1])) <= 1 and min(counts) > 0
    return len(set(slots)) == 1


def held_micro_batches(schedule: str, p: int, v: int, m: int, s: int) -> float:
    if schedule == "gpipe":
        return m
    if schedule == "interleaved-1f1b":
        return min((2 * (p - s - 1) + (v - 1) * p + 1) / v, m)
    return min(p - s, m)


def stage_seconds(problem: PartitionProblem, s: int, mine: list[int]) -> float | None:
    """The least seconds of a stage with these layers, over every recompute that fits."""
    x, p, n = problem.layers, problem.pp, len(mine)
    f = held_micro_batches(problem.schedule, p, problem.vpp, problem.num_micro_batches, s)
    edges = [problem.first] * (s == 0) + [problem.last] * (s == p - 1)
    if isinstance(problem.recompute, int):
        depths = [min(problem.recompute * problem.vpp, n)]
    else:
        depths = range(n + 1) if problem.recompute == "least" else sorted({0, n})
    found = []
    for r in depths:
        kept = sum(e.saved_bytes for e in edges)
        kept += sum(x.checkpoint_bytes[i] for i in mine[:r])
        kept += sum(x.saved_bytes[i] for i in mine[r:])
        transients = [e.transient_bytes for e in edges]
        if n:
            transients.append(problem.transient_bytes)
        if r:
            transients.append(problem.recompute_transient_bytes)
        step = sum(e.step_bytes for e in edges) + sum(x.step_bytes[i] for i in mine)
        memory = problem.constant_bytes + max(f * kept + max(transients, default=0.0), step)
        memory += sum(e.state_bytes for e in edges) + sum(x.state_bytes[i] for i in mine)
        if memory <= problem.capacity_bytes * (1 + 1e-9):
            seconds = sum(e.forward_s + e.backward_s for e in edges)
            seconds += sum(x.forward_s[i] + x.backward_s[i] for i in mine)
            found.append(seconds + sum(x.recompute_s[i] for i in mine[:r]))
    return min(found, default=None)


def time_of(problem: PartitionProblem, counts: tuple[int, ...]) -> tuple[float, float] | None:
    """(time, slowest stage) of one cut; None where it does not fit."""
    ends = list(itertools.accumulate(counts, initial=0))
    taus = []
    for s in range(problem.pp):
        chunks = range(s, problem.num_chunks, problem.pp)
        mine = [i for c in chunks for i in range(ends[c], ends[c + 1])]
        tau = stage_seconds(problem, s, mine)
        if tau is None:
            return None
        taus.append(tau)
    if problem.schedule == "1f1b":
        forward = [_forward_seconds(problem, s, ends) for s in range(problem.pp)]
        return one_f_one_b_time(taus, forward, problem.num_micro_batches), 0.0
    slowest = max(taus)
    rest = (sum(taus) - slowest) / problem.vpp
    return problem.num_micro_batches * slowest + rest, slowest


def _forward_seconds(problem: PartitionProblem, s: int, ends: list[int]) -> float:
    edges = [problem.first] * (s == 0) + [problem.last] * (s == problem.pp - 1)
    mine = range(ends[s], ends[s + 1])
    return sum(e.forward_s for e in edges) + sum(problem.layers.forward_s[i] for i in mine)


def one_f_one_b_time(tau: list[float], forward: list[float], m: int) -> float:
    """The formula in pipeline_time's docstring, for stages of any cost."""
    bounds = []
    for s, (t, f) in enumerate(zip(tau, forward, strict=True)):
        w, later = len(tau) - s - 1, sum(tau[s + 1 :])
        if m > w:
            idle = max(later - w * f, 0) + max(later - w * (t - f), 0)
        else:
            idle = max(later - (m - 1) * min(f, t - f), 0)
        bounds.append(sum(tau[:s]) + m * t + idle)
    return max(bounds)


def brute_force(problem: PartitionProblem) -> tuple[float, float, int] | None:
    """The least (time, slowest stage, sum of squared chunks); None where nothing fits."""
    best = None
    chunks, least = problem.num_chunks, problem.min_layers
    for counts in compositions(len(problem.layers), chunks, least):
        if not obeys(problem.layout, counts, problem.pp, problem.vpp):
            continue
        found = time_of(problem, counts)
        if found is None:
            continue
        value = (*found, sum(n * n for n in counts))
        if best is None or _less(value, best):
            best = value
    return best


def _less(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    for x, y in zip(a, b, strict=True):
        if x != pytest.approx(y, rel=EXACT):
            return x < y
    return False


# --- random problems -------------------------------------------------------------------------


def random_problem(draw: random.Random, **given: object) -> PartitionProblem:
    """A small problem of whole numbers (ties are common), its memory between ample and too little.

    Kinds of layers: all alike, some odd ones first, or all different.
    """
    p = given.get("pp") or draw.choice([1, 2, 2, 3, 3, 4])
    v = given.get("vpp") or (draw.choice([1, 1, 2]) if p > 1 else 1)
    chunks = p * v
    num_layers = draw.randint(chunks, {1: 6, 2: 9, 3: 9, 4: 9, 6: 9, 8: 10}[chunks])
    kind = draw.choice(["alike", "odd", "different"] if v == 1 else ["alike", "odd"])
    odd = {"alike": 0, "odd": min(draw.randint(1, 3), num_layers), "different": num_layers}[kind]

    def layer() -> dict[str, float]:
        saved = draw.randint(0, 9)
        forward = draw.randint(1, 6)
        return {
            "forward_s": forward,
            "backward_s": draw.randint(forward, 2 * forward),
            "recompute_s": draw.choice([forward, draw.randint(0, 6)]),
            "state_bytes": draw.randint(0, 12),
            "saved_bytes": saved,
            "checkpoint_bytes": draw.randint(0, saved),
            "step_bytes": draw.choice([0, 0, draw.randint(0, 30)]),
        }

    rest = layer()
    rows = [layer() if i < odd else rest for i in range(num_layers)]
    columns = {name: np.array([row[name] for row in rows], float) for name in LAYER_FIELDS}

    def edge() -> EdgeItem:
        return EdgeItem(*(float(draw.choice([0, draw.randint(0, 9)])) for _ in range(6)))

    schedule = "interleaved-1f1b" if v > 1 else draw.choice(["1f1b", "1f1b", "gpipe"])
    m = draw.randint(1, 8) * (p if v > 1 else 1)
    layouts = ["free"] * 4 + ["first-last", "embedding", "loss", "embedding-loss", "even"]
    transient = float(draw.choice([0, draw.randint(0, 9)]))
    problem = PartitionProblem(
        layers=LayerItems(**columns),
        pp=p,
        vpp=v,
        num_micro_batches=m,
        schedule=schedule,
        first=edge(),
        last=edge(),
        constant_bytes=float(draw.randint(0, 5)),
        transient_bytes=transient,
        recompute_transient_bytes=transient + draw.choice([0, draw.randint(0, 9)]),
        layout=draw.choice(layouts),
        recompute=draw.choice(["least"] * 4 + ["all-or-none", 0, 1, 2, 10]),
        min_layers=draw.choice([1, 1, 1, 0]) if v == 1 or kind == "alike" else 1,
    )
    problem = replace(problem, **given)
    return replace(problem, capacity_bytes=draw_capacity(draw, problem))


def draw_capacity(draw: random.Random, problem: PartitionProblem) -> float:
    """Memory about between what the even cut needs with full recompute and without any."""
    if draw.random() < 0.1:
        return float("inf")
    each, left = divmod(len(problem.layers), problem.num_chunks)
    even = tuple(each + (c < left) for c in range(problem.num_chunks))
    ends = [
        evaluate(replace(problem, capacity_bytes=float("inf"), recompute=n), even).memory_bytes
        for n in (100, 0)
    ]
    least, most = sorted(float(peaks.max()) for peaks in ends)
    return float(max(1, round(draw.uniform(0.9 * least, 1.05 * most))))


def agrees_with_brute_force(problem: PartitionProblem) -> str:
    """Assert that the answer, or that there is none, is brute force's; says which case it was."""
    expected = brute_force(problem)
    try:
        found = partition(problem)
    except (NoFeasiblePlanError, PlanError):
        assert expected is None
        return "nothing fits"
    assert expected is not None
    assert found.proven
    assert sum(found.chunk_layers) == len(problem.layers)
    assert obeys(problem.layout, found.chunk_layers, problem.pp, problem.vpp)
    checked = time_of(problem, found.chunk_layers)
    assert checked is not None, "the cut does not fit"
    assert checked == pytest.approx(expected[:2], rel=EXACT)
    assert found.time_s == pytest.approx(checked[0], rel=EXACT)
    if problem.schedule != "1f1b" or problem.capacity_bytes == float("inf"):
        assert sum(n * n for n in found.chunk_layers) == expected[2]
    assert (found.memory_bytes <= problem.capacity_bytes * (1 + EXACT)).all()
    assert found.time_s <= found.even_time_s * (1 + EXACT) or problem.layout != "free"
    return "recomputes" if any(found.recomputed) else "fits"


def test_equals_brute_force_on_random_small_problems() -> None:
    draw = random.Random(4)
    cases = [agrees_with_brute_force(random_problem(draw)) for _ in range(400)]
    assert min(cases.count(case) for case in ("fits", "recomputes", "nothing fits")) > 40


@pytest.mark.parametrize("vpp", [1, 2])
def test_free_cuts_equal_brute_force_where_memory_forces_recompute(vpp: int) -> None:
    draw = random.Random(vpp)
    cases = [
        agrees_with_brute_force(
            random_problem(draw, layout="free", recompute="least", vpp=vpp, pp=draw.randint(2, 4))
        )
        for _ in range(160)
    ]
    assert min(cases.count("fits"), cases.count("recomputes")) > 30


def test_several_chunks_of_different_layers_are_never_worse_than_even_nor_called_proven() -> None:
    draw = random.Random(7)
    gaps = []
    for _ in range(40):
        problem = random_problem(draw, pp=2, vpp=2, layout="free", recompute="least")
        columns = {
            name: np.array([draw.randint(1, 9) for _ in range(9)], float) for name in LAYER_FIELDS
        }
        columns["checkpoint_bytes"] = np.zeros(9)
        problem = replace(problem, layers=LayerItems(**columns), capacity_bytes=float("inf"))
        found, expected = partition(problem), brute_force(problem)
        assert expected is not None
        assert not found.proven
        assert found.time_s <= found.even_time_s * (1 + EXACT)
        assert found.time_s >= expected[0] * (1 - EXACT)
        gaps.append(found.time_s / expected[0] - 1)
    assert np.mean(gaps) < 0.05


def test_the_same_recompute_everywhere_is_the_best_number_that_fits() -> None:
    draw = random.Random(11)
    for _ in range(80):
        problem = random_problem(draw, layout="free", recompute="same")
        tried = [brute_force(replace(problem, recompute=n)) for n in range(len(problem.layers) + 1)]
        times = [found[0] for found in tried if found is not None]
        if times:
            assert partition(problem).time_s == pytest.approx(min(times), rel=EXACT)
        else:
            with pytest.raises(NoFeasiblePlanError):
                partition(problem)


# --- a model --------------------------------------------------------------------------------

LLAMA, CLUSTER = load_model("llama3.1-405b"), load_cluster("hgx-h100", 16_384)
MEGATRON = load_framework("megatron-core")
PUBLISHED = Plan(
    tp=8,
    pp=16,
    dp=64,
    micro_batch_size=1,
    global_batch_size=2048,
    schedule="1f1b",
    layout="first-last",
    first_stage_layers=7,
    last_stage_layers=7,
    sequence_parallel=True,
    zero=1,
)


@pytest.mark.parametrize("vpp", [1, 4])
def test_llama_405b_has_its_first_and_last_stage_lightened(vpp: int) -> None:
    schedule = "interleaved-1f1b" if vpp > 1 else "1f1b"
    plan = replace(PUBLISHED, vpp=vpp, schedule=schedule)
    memory_limit = 1.2 if vpp > 1 else 1.1
    problem = partition_problem(LLAMA, CLUSTER, MEGATRON, plan, memory_limit)
    found = partition(problem)
    assert found.proven
    assert found.stage_layers == (7, *[8] * 14, 7)
    assert found.gain_frac > 0.004
    assert read_megatron_layout(found.megatron_layout)[0] == list(found.chunk_layers)
    if vpp == 1:
        assert found.megatron_layout == "Et*7|(t*8|)*14t*7L"
        assert "% faster than the even cut" in found.describe()


@pytest.mark.parametrize(
    ("pp", "vpp", "published", "gain"),
    [(16, 1, (*[4] * 15, 1), 0.18), (8, 2, (*[4] * 15, 1), 0.1), (16, 2, (1, *[2] * 30, 0), 0.18)],
)
def test_deepseek_v3_is_cut_no_slower_than_published(
    pp: int, vpp: int, published: tuple[int, ...], gain: float
) -> None:
    """Megatron-Bridge deepseek_v3.py: the last stage, with MTP and the loss, holds fewer layers."""
    schedule = "interleaved-1f1b" if vpp > 1 else "1f1b"
    shape = {"pp": pp, "vpp": vpp, "dp": 2048 // pp, "ep": 64, "zero": 1, "schedule": schedule}
    plan, cluster = Plan(**shape, global_batch_size=15360), load_cluster("hgx-h800", 2048)
    problem = partition_problem(load_model("deepseek-v3"), cluster, MEGATRON, plan)
    problem = replace(problem, capacity_bytes=float("inf"))
    found, theirs = partition(problem), evaluate(problem, published)
    assert found.proven
    assert found.gain_frac > gain
    assert found.time_s <= theirs.time_s * (1 + EXACT)
    assert found.time_s > theirs.time_s * 0.99
    assert found.stage_layers[-1] < found.stage_layers[1]


def test_llama_405b_recomputes_in_early_stages_alone_where_memory_is_short() -> None:
    problem = partition_problem(LLAMA, CLUSTER, MEGATRON, PUBLISHED, memory_limit=0.8)
    found = partition(problem)
    assert found.proven
    assert found.gain_frac > 0.01
    assert any(found.recomputed[:4])
    assert not any(found.recomputed[8:])


def test_the_1f1b_cut_replays_as_fast_as_any_cut() -> None:
    draw, layers, seen = random.Random(5), 9, 0
    while seen < 20:
        p = draw.randint(2, 4)
        problem = random_problem(draw, pp=p, vpp=1, layout="free", recompute="least", min_layers=1)
        problem = replace(
            problem,
            layers=LayerItems.uniform(
                layers, forward_s=2, backward_s=4, state_bytes=2, saved_bytes=3, checkpoint_bytes=1
            ),
            schedule="1f1b",
            num_micro_batches=3 * p,
            capacity_bytes=draw.uniform(layers / p * (2 + p), layers / p * (2 + 3 * p) + 9),
        )
        try:
            found = partition(problem)
        except NoFeasiblePlanError:
            continue
        schedule = make_schedule("1f1b", p, 1, problem.num_micro_batches)
        graph, times = compile_graph(schedule), {}
        for counts in compositions(layers, p, 1):
            cut = evaluate(problem, counts)
            if cut.fits:
                forward = 2.0 * np.array(counts)
                forward[0] += problem.first.forward_s
                forward[-1] += problem.last.forward_s
                costs = stage_costs(schedule, forward, backward_s=cut.stage_s - forward)
                times[counts] = float(step_time(graph, costs)[0])
        assert times[found.chunk_layers] == pytest.approx(min(times.values()), rel=1e-9)
        assert found.time_s == pytest.approx(min(times.values()), rel=1e-9)
        seen += 1


@pytest.mark.parametrize("name", ["megatron-core", "megatron-lm-2022", "nanotron"])
@pytest.mark.parametrize("recompute", [0, 3, 126])
@pytest.mark.parametrize("vpp", [1, 2])
def test_stages_cost_what_the_simulator_says(name: str, recompute: int, vpp: int) -> None:
    framework = load_framework(name)
    plan = replace(
        PUBLISHED,
        vpp=vpp,
        schedule="interleaved-1f1b" if vpp > 1 else "1f1b",
        first_stage_layers=6,
        last_stage_layers=8,
        recompute="full" if recompute else "none",
        recompute_num_layers=recompute if recompute < 126 else 0,
    )
    problem = partition_problem(LLAMA, CLUSTER, framework, plan)
    stages = (6, *[8] * 14, 8)
    chunks = tuple(n // vpp for _ in range(vpp) for n in stages)
    found = evaluate(replace(problem, recompute=recompute), chunks)
    memory = [row["total_bytes"] for row in memory_per_stage(LLAMA, CLUSTER, framework, plan)]
    assert found.memory_bytes == pytest.approx(memory, rel=1e-9)
    batch = PlanBatch.from_plans([plan])
    table = CostTable(LLAMA, CLUSTER, framework, batch)
    columns = plan_columns(LLAMA.num_layers, batch)
    seconds = step_stage_seconds(table, table.rows(batch), batch, columns)
    assert found.stage_s[[0, 1, -1]] == pytest.approx(
        [float(seconds.first[0]), float(seconds.middle[0]), float(seconds.last[0])], rel=1e-9
    )
    tau, m = found.stage_s, problem.num_micro_batches
    if vpp == 1:
        pipeline = pipeline_time(
            seconds, batch.schedule, columns.pp, columns.vpp, columns.num_micro_batches
        )
        total = float(pipeline.steady_s[0] + pipeline.bubble_s[0])
    else:  # the chunks of a stage count as alike
        total = m * tau.max() + (tau.sum() - tau.max()) / vpp
    assert found.time_s == pytest.approx(total, rel=1e-9)


# --- properties ------------------------------------------------------------------------------


seeds = st.integers(0, 2**32 - 1).map(random.Random)


@given(seeds)
def test_more_memory_is_never_slower(draw: random.Random) -> None:
    problem = random_problem(draw, layout="free", recompute="least")
    try:
        tight = partition(problem).time_s
    except NoFeasiblePlanError:
        return
    ample = partition(replace(problem, capacity_bytes=problem.capacity_bytes * 1.5)).time_s
    assert ample <= tight * (1 + EXACT)


@given(seeds, st.sampled_from(["first-last", "embedding", "loss", "embedding-loss", "even"]))
def test_a_constraint_is_never_faster_than_the_free_cut(draw: random.Random, layout: str) -> None:
    problem = random_problem(draw, layout=layout, recompute="least", min_layers=1)
    try:
        constrained = partition(problem).time_s
    except (NoFeasiblePlanError, PlanError):
        return
    assert partition(replace(problem, layout="free")).time_s <= constrained * (1 + EXACT)


@given(seeds, st.integers(1, 6))
def test_identical_layers_without_edges_are_cut_evenly(draw: random.Random, each: int) -> None:
    p, v = draw.randint(1, 6), draw.choice([1, 2, 3])
    v = v if p > 1 else 1
    schedule = "interleaved-1f1b" if v > 1 else "1f1b"
    layers = LayerItems.uniform(each * p * v, forward_s=draw.uniform(0.1, 1), backward_s=1.0)
    found = partition(PartitionProblem(layers, p, 4 * p, vpp=v, schedule=schedule))
    assert found.chunk_layers == (each,) * (p * v)
    assert found.gain_frac == pytest.approx(0.0, abs=EXACT)


@given(seeds)
def test_the_unit_of_time_and_of_memory_does_not_matter(draw: random.Random) -> None:
    problem = random_problem(draw, layout="free", recompute="least", capacity_bytes=1.0)
    factors = dict.fromkeys(LAYER_FIELDS, 2.0**-20)
    factors |= dict.fromkeys([n for n in LAYER_FIELDS if n.endswith("_s")], 2.0**10)
    scaled = replace(
        problem,
        layers=LayerItems(
            **{name: getattr(problem.layers, name) * factors[name] for name in LAYER_FIELDS}
        ),
        first=_scaled_edge(problem.first),
        last=_scaled_edge(problem.last),
        **{
            name: getattr(problem, name) * 2.0**-20
            for name in (
                "capacity_bytes",
                "constant_bytes",
                "transient_bytes",
                "recompute_transient_bytes",
            )
        },
    )
    try:
        found = partition(problem)
    except NoFeasiblePlanError:
        with pytest.raises(NoFeasiblePlanError):
            partition(scaled)
        return
    again = partition(scaled)
    assert again.chunk_layers == found.chunk_layers
    assert again.time_s == found.time_s * 2.0**10


def _scaled_edge(edge: EdgeItem) -> EdgeItem:
    return EdgeItem(
        **{
            f.name: getattr(edge, f.name) * 2.0 ** (10 if f.name.endswith("_s") else -20)
            for f in fields(EdgeItem)
        }
    )


# --- layout strings --------------------------------------------------------------------------


@given(st.lists(st.integers(0, 40), min_size=1, max_size=40), st.integers(0, 3))
def test_layout_strings_read_back_as_written(counts: list[int], num_mtp: int) -> None:
    text = megatron_layout(counts, num_mtp)
    assert read_megatron_layout(text) == (counts, num_mtp, len(counts) - 1 if num_mtp else -1)


def test_layout_strings_are_megatrons() -> None:
    assert megatron_layout([7, *[8] * 14, 7]) == "Et*7|(t*8|)*14t*7L"
    published = "Et*3|(tt|)*29,m|L"  # DeepSeek-V3 in Megatron-LM's documentation
    assert read_megatron_layout(published) == ([3, *[2] * 29, 0, 0], 1, 30)
    assert megatron_layout([3, *[2] * 29, 0, 0], 1, 30) == "Et*3|(tt|)*29m|L"
    assert megatron_layout([4]) == "Et*4L"


@pytest.mark.parametrize(
    "text",
    ["", "t|L", "Et|t", "Et|x|L", "Em|tL", "EmtL", "E|m|mL", "Et*9999999L", "E((t|)*2)*2L", "Et*L"],
)
def test_layout_strings_that_megatron_refuses_are_refused(text: str) -> None:
    with pytest.raises(PlanError):
        read_megatron_layout(text)


# --- malformed problems ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pp": 9}, "do not fill"),
        ({"pp": 0}, "pp must be"),
        ({"vpp": 2}, "does not go with"),
        ({"schedule": "fastest"}, "schedule must be"),
        ({"layout": "odd"}, "layout must be"),
        ({"layout": "even", "pp": 3}, "cannot cut"),
        ({"recompute": "some"}, "recompute must be"),
        ({"capacity_bytes": float("nan")}, "capacity_bytes must be"),
        ({"layers": LayerItems.uniform(8, forward_s=float("nan"))}, "forward_s must be"),
        ({"layers": LayerItems.uniform(8, checkpoint_bytes=1)}, "exceeds saved_bytes"),
        ({"layers": LayerItems.uniform(100_000)}, "layers, got 100000"),
    ],
)
def test_a_malformed_problem_is_refused_in_one_line(change: dict, message: str) -> None:
    problem = PartitionProblem(LayerItems.uniform(8, forward_s=1.0, backward_s=2.0), 2, 4)
    with pytest.raises(PlanError, match=message) as error:
        partition(replace(problem, **change))
    assert "\n" not in str(error.value)


def test_layers_that_take_no_time_are_cut_evenly() -> None:
    layers = LayerItems.uniform(12, state_bytes=1.0)
    assert partition(PartitionProblem(layers, 4, 8)).chunk_layers == (3, 3, 3, 3)


def test_a_limit_that_no_cut_meets_is_said() -> None:
    layers = LayerItems.uniform(8, forward_s=1.0, backward_s=2.0, state_bytes=4.0)
    with pytest.raises(NoFeasiblePlanError, match="no cut of 8 layers into 2 stages fits"):
        partition(PartitionProblem(layers, 2, 4, capacity_bytes=15.0))
