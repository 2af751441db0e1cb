"""Dense layers before mixtures, and multi-token prediction, where layers are cut anywhere."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from parallelsim.search.bounds import least_step_time
from parallelsim.search.cuts import cuts, least_balanced_step_time
from parallelsim.search.grid import grid_search
from parallelsim.search.partition_layouts import read_megatron_layout
from parallelsim.search.space import SearchSpace

from parallelsim.catalog import load_cluster, load_framework, load_model
from parallelsim.cli import main
from parallelsim.costs import CostTable
from parallelsim.exporters.megatron import export_megatron
from parallelsim.plan import Plan
from parallelsim.plan_batch import PlanBatch
from parallelsim.replay import plan_graph, plan_replay, replayed
from parallelsim.rules import obeys_rules
from parallelsim.simulate import by_block, memory_per_stage, simulate
from parallelsim.stages import leading_on_rank, leading_shares

MEGATRON = load_framework("megatron-core")
DEEPSEEK = load_model("deepseek-v3")  # 3 dense layers, 58 mixtures, one MTP module
CLUSTER = load_cluster("hgx-h100", num_gpus=256)
PLAN = Plan(
    tp=8,
    pp=8,
    dp=4,
    ep=32,
    global_batch_size=64,
    schedule="1f1b",
    sequence_parallel=True,
    zero=1,
    layout="free",
    chunk_layers=(8, 8, 8, 8, 8, 8, 8, 5),
)
INPUTS = (DEEPSEEK, CLUSTER, MEGATRON)


def moved(number: int) -> Plan:
    """The plan with so many layers left on the first stage, the others on the second."""
    return replace(PLAN, chunk_layers=(number, 16 - number, 8, 8, 8, 8, 8, 5))


def forward_s(plan: Plan) -> np.ndarray:
    """Seconds of each chunk's forward."""
    return np.asarray(plan_replay(*INPUTS, plan).costs.forward_s)[0]


def test_a_module_of_stated_layers_is_the_sum_of_them() -> None:
    last = DEEPSEEK.layers[-1]
    models = [replace(DEEPSEEK, mtp_layers=(last,) * n) for n in (1, 2, 3)]
    plans = PlanBatch.from_plans([replace(PLAN, layout="even", chunk_layers=(), pp=1, dp=32)])
    usual, *stated = (simulate(m, CLUSTER, MEGATRON, plans) for m in (DEEPSEEK, *models))
    assert stated[0].step_time_s == usual.step_time_s
    assert stated[0].peak_memory_bytes == usual.peak_memory_bytes
    one, two, three = (each.time.gemm_s[0] for each in stated)
    assert three - two == pytest.approx(two - one)
    assert two - one == pytest.approx(usual.time.gemm_s[0] / 62, rel=0.2)


def test_dense_layers_go_with_the_chunk_that_holds_them() -> None:
    """Layer by layer: what the first stage gives up, the second one takes, dense or not."""
    seconds = {number: forward_s(moved(number)) for number in range(6)}
    taken = [seconds[n + 1] - seconds[n] for n in range(5)]
    dense, mixture = taken[0][0], taken[4][0]
    assert 0 < dense < mixture
    for number, change in enumerate(taken):
        expected = dense if number < 3 else mixture
        assert change[:2] == pytest.approx([expected, -expected], rel=1e-9)
        assert (change[2:] == 0).all()


def test_memory_of_dense_layers_goes_with_them() -> None:
    """A dense layer has a few hundredths of the parameters of a mixture with 256 experts over 32
    ranks; their sum over the stages stays.
    """
    parameters = np.array(
        [
            [stage["parameters_bytes"] for stage in memory_per_stage(*INPUTS, moved(number))]
            for number in range(6)
        ]
    )
    taken = np.diff(parameters, axis=0)
    assert np.ptp(taken[:3, 0]) < 1e-6 * taken[0, 0]
    assert 0 < taken[0, 0] < taken[4, 0]
    assert taken[:, 0] == pytest.approx(-taken[:, 1], rel=1e-9)
    assert parameters.sum(1) == pytest.approx(parameters[0].sum(), rel=1e-12)


@pytest.mark.parametrize(("num_gpus", "batch"), [(64, 64), (128, 256)])
def test_no_replay_is_below_its_bounds(num_gpus: int, batch: int) -> None:
    """Also where the dense layers reach beyond the first chunk."""
    cluster = load_cluster("hgx-h100", num_gpus=num_gpus)
    space = SearchSpace(DEEPSEEK, cluster, MEGATRON, batch, fixed={"tp": 1, "micro_batch_size": 1})
    blocks = (block.take(slice(None, None, 7)) for block in space.blocks())
    inputs = (DEEPSEEK, cluster, MEGATRON)
    plans = PlanBatch.concatenate([b.take(obeys_rules(*inputs, b)) for b in blocks])
    plans = plans.take(np.random.default_rng(0).permutation(len(plans)))
    beyond = DEEPSEEK.num_layers // (plans.pp * plans.vpp) < DEEPSEEK.num_leading_layers
    chosen = [np.flatnonzero(kind)[:150] for kind in (beyond, ~beyond)]
    assert min(map(len, chosen)) > 100
    plans = plans.take(np.concatenate(chosen))
    table = CostTable(*inputs, plans)
    exact = replayed(simulate(*inputs, plans))
    for bound in (least_step_time, least_balanced_step_time):
        least = by_block(table, plans, bound)[0]
        assert (least <= exact.step_time_s * (1 + 1e-9)).all(), bound.__name__


def test_first_last_lightens_every_chunk_of_the_end_ranks() -> None:
    model, cluster = load_model("llama3-70b"), load_cluster("hgx-h100", num_gpus=64)
    plan = Plan(
        tp=4,
        pp=4,
        vpp=2,
        dp=4,
        global_batch_size=64,
        schedule="interleaved-1f1b",
        sequence_parallel=True,
        layout="first-last",
        first_stage_layers=16,
        last_stage_layers=20,
    )
    listed = replace(
        plan,
        layout="free",
        first_stage_layers=0,
        last_stage_layers=0,
        chunk_layers=(8, 11, 11, 10, 8, 11, 11, 10),
    )
    both = [plan_replay(model, cluster, MEGATRON, each).costs for each in (plan, listed)]
    for name in ("forward_s", "backward_s"):
        of_layout, of_list = (np.asarray(getattr(costs, name)) for costs in both)
        assert of_layout == pytest.approx(of_list, rel=1e-12)
        assert np.ptp(of_layout[0, [1, 2, 5, 6]]) == 0


LISTS = (  # leading layers end on the second rank, the third, in the second turn, past the first
    (8, 1, (1, 9, 9, 9, 9, 9, 9, 6)),
    (31, 1, (1, *[2] * 30)),
    (30, 1, (2, *[2] * 28, 3)),
    (6, 2, (2, 6, 6, 6, 6, 1) * 2),
)


@pytest.mark.parametrize(("pp", "vpp", "chunks"), LISTS)
def test_every_layout_leaves_dense_layers_where_its_chunks_hold_them(
    pp: int, vpp: int, chunks: tuple[int, ...]
) -> None:
    """The first-last layout equals the same cut as a list, in memory and time."""
    rest = sum(chunks) - DEEPSEEK.num_leading_layers
    model = replace(DEEPSEEK, blocks=(DEEPSEEK.blocks[0], replace(DEEPSEEK.blocks[1], repeat=rest)))
    cluster = load_cluster("hgx-h100", num_gpus=8 * pp)
    schedule = "interleaved-1f1b" if vpp > 1 else "1f1b"
    listed = replace(
        PLAN,
        pp=pp,
        vpp=vpp,
        dp=1,
        ep=8,
        schedule=schedule,
        chunk_layers=chunks,
        global_batch_size=96,
    )
    first, last = sum(chunks[::pp]), sum(chunks[pp - 1 :: pp])
    ends = {"first_stage_layers": first, "last_stage_layers": last}
    plan = replace(listed, layout="first-last", chunk_layers=(), **ends)
    inputs = (model, cluster, MEGATRON)
    both = simulate(*inputs, PlanBatch.from_plans([plan, listed]))
    stages = [[s["total_bytes"] for s in memory_per_stage(*inputs, p)] for p in (plan, listed)]
    assert stages[0] == pytest.approx(stages[1], rel=1e-12)
    assert min(stages[0]) > 0
    assert both.peak_memory_bytes == pytest.approx(max(stages[0]), rel=1e-12)
    exact = replayed(both).step_time_s
    assert exact[0] == pytest.approx(exact[1], rel=1e-12)
    assert both.step_time_s == pytest.approx(exact, rel=3e-3)


@pytest.mark.parametrize(
    ("schedule", "pp", "vpp", "number"),
    [
        ("1f1b", 8, 1, 3),
        ("interleaved-1f1b", 2, 8, 7),
        ("hanayo", 2, 8, 7),
        ("zb-v", 4, 2, 3),
        ("chimera", 8, 1, 3),
    ],
)
def test_ranks_hold_the_leading_layers_of_their_chunks(
    schedule: str, pp: int, vpp: int, number: int
) -> None:
    """Counted over the chunks of the replayed schedule."""
    layers, copies = 2 * pp * vpp, 2 if schedule == "chimera" else 1
    model = replace(
        DEEPSEEK,
        blocks=(
            replace(DEEPSEEK.blocks[0], repeat=number),
            replace(DEEPSEEK.blocks[1], repeat=layers - number),
        ),
    )
    plan = replace(PLAN, pp=pp, vpp=vpp, schedule=schedule, layout="even", chunk_layers=())
    plans = PlanBatch.from_plans([plan] * pp)
    stage = plan_graph(plan).schedule.stage
    shares = leading_shares(number, np.full(stage.max() + 1, layers / (stage.max() + 1)))
    expected = shares[stage].sum(axis=1)
    assert expected.sum() == pytest.approx(copies)
    assert leading_on_rank(model, plans, np.arange(float(pp))) == pytest.approx(expected)


def test_the_script_names_multi_token_prediction_in_its_layout() -> None:
    words = shlex.split(export_megatron(*INPUTS, PLAN), comments=True)
    layout = words[words.index("--pipeline-model-parallel-layout") + 1].rstrip(")")
    assert read_megatron_layout(layout) == (list(PLAN.chunk_layers), 1, 7)
    assert "--mtp-num-layers" in words


def test_cuts_obey_the_rules_of_experts() -> None:
    """Overlapped exchange does not go with recompute."""
    space = SearchSpace(DEEPSEEK, CLUSTER, MEGATRON, 512)
    plan = replace(
        PLAN, vpp=2, schedule="interleaved-1f1b", layout="even", chunk_layers=(), tp=4, dp=8
    )
    found = [cuts(space, replace(plan, ep_comm_overlap=overlap), 0.8) for overlap in (False, True)]
    assert all(plan.recompute == "none" for plan in found[1])
    assert {plan.recompute for plan in found[0]} <= {"none", "full"}
    for plan in found[0] + found[1]:
        assert sum(plan.chunk_layers) == 61


def test_a_plan_of_61_layers_goes_through_every_command(tmp_path: Path) -> None:
    space = SearchSpace(DEEPSEEK, CLUSTER, MEGATRON, 512, fixed={"layout": "free"})
    result = grid_search(space, top_k=1)
    assert len(result.plans) == 1
    assert result.num_cut > 0
    plans = tmp_path / "plans.yaml"
    common = ["--model", "deepseek-v3", "--gpus", "256", "--global-batch-size", "512"]
    runner = CliRunner()
    fixed = ["--fix", "layout=free", "--top", "1", "--output", str(plans), "--json"]
    planned = json.loads(runner.invoke(main, ["plan", *common, *fixed]).stdout)
    again = runner.invoke(main, ["simulate", "--plan", str(plans), "--rank", "1", "--json"])
    step = planned["plans"][0]["step_time_s"]
    assert step == pytest.approx(float(result.plans.step_time_s[0]), rel=1e-12)
    assert json.loads(again.stdout)["step_time_s"] == step
