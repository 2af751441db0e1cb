"""Layout ``free``: a plan that lists the layers of every chunk, in every command and number."""

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from parallelsim.search.partition_layouts import read_megatron_layout
from random_plans import random_cut, valid_plans

from parallelsim.catalog import load_cluster, load_framework, load_model
from parallelsim.cli import main
from parallelsim.costs import CostTable
from parallelsim.errors import ExportError, PlanError
from parallelsim.exporters.megatron import export_megatron
from parallelsim.exporters.megatron_flags import VERSIONS, plan_refusals
from parallelsim.plan import MAX_CHUNKS, Plan
from parallelsim.plan_batch import PlanBatch
from parallelsim.replay import plan_replay, replayed
from parallelsim.simulate import screen, simulate

MODEL, CLUSTER = load_model("llama3-70b"), load_cluster("hgx-h100", num_gpus=64)
MEGATRON = load_framework("megatron-core")
EVEN = Plan(
    tp=4,
    pp=4,
    vpp=2,
    dp=4,
    global_batch_size=64,
    schedule="interleaved-1f1b",
    sequence_parallel=True,
    zero=1,
)
CUT = (9, 11, 10, 10, 10, 11, 11, 8)
FREE = replace(EVEN, layout="free", chunk_layers=CUT)
PLANS = list(valid_plans(MODEL, CLUSTER, MEGATRON, 300, seed="free"))
INPUTS = ("--model", "llama3-70b", "--gpus", "64", "--global-batch-size", "64")


def run(*args: str) -> Result:
    return CliRunner(env={"COLUMNS": "100"}).invoke(main, list(args))


@pytest.mark.parametrize("recompute", [("none", 0), ("full", 0), ("full", 3)])
def test_equal_chunks_predict_what_the_even_layout_does(recompute: tuple[str, int]) -> None:
    kind, layers = recompute
    even = replace(EVEN, recompute=kind, recompute_num_layers=layers)
    free = replace(even, layout="free", chunk_layers=(10,) * 8)
    both = replayed(simulate(MODEL, CLUSTER, MEGATRON, [even, free]))
    assert both.replayed.all()
    assert both.obeys_rules.all()
    for name in ("step_time_s", "peak_memory_bytes", "mfu", "hfu", "memory_use_frac"):
        of_even, of_free = getattr(both, name)
        assert of_free == pytest.approx(of_even, rel=1e-12), name


def test_a_batch_with_free_layouts_equals_its_plans_one_by_one_bit_for_bit() -> None:
    assert sum(plan.layout == "free" for plan in PLANS) > 15
    table = CostTable(MODEL, CLUSTER, MEGATRON, PlanBatch.from_plans(PLANS))
    together = replayed(simulate(MODEL, CLUSTER, MEGATRON, PLANS, table=table), table)
    time, peak = screen(table, PlanBatch.from_plans(PLANS))
    assert np.array_equal(peak, together.peak_memory_bytes)
    for i, plan in enumerate(PLANS):
        alone = replayed(simulate(MODEL, CLUSTER, MEGATRON, plan))
        assert alone.row(0) == together.row(i)
    assert time == pytest.approx(simulate(MODEL, CLUSTER, MEGATRON, PLANS).step_time_s, rel=1e-9)


def test_batches_carry_their_own_table_of_cuts() -> None:
    plans = [plan for plan in PLANS if plan.layout == "free"][:10] + PLANS[:10]
    batch = PlanBatch.from_plans(plans)
    assert list(batch) == plans
    assert list(batch.take(slice(3, 12))) == plans[3:12]
    assert list(PlanBatch.concatenate([batch.take([7]), PlanBatch.from_plans([FREE]), batch])) == [
        plans[7],
        FREE,
        *plans,
    ]
    assert list(batch.cuts) == sorted({plan.chunk_layers for plan in plans} | {()})
    assert PlanBatch.from_columns(3, {"tp": 2}).cuts == ((),)


def test_every_chunk_costs_its_own_layers_in_the_replay() -> None:
    planned = plan_replay(MODEL, CLUSTER, MEGATRON, FREE)
    forward = planned.costs.forward_s[0]
    layer = (forward[1] - forward[2]) / (CUT[1] - CUT[2])
    middle = forward[1:-1] - layer * np.array(CUT[1:-1])
    assert middle == pytest.approx(np.full(6, middle[0]), abs=1e-9)  # the exposed transfer
    assert forward[0] > CUT[0] * layer  # the embedding
    assert forward[-1] > CUT[-1] * layer + middle[0] * 1.01  # the head


def test_recompute_covers_at_most_the_layers_of_each_chunk() -> None:
    cut = (12, 8, 10, 10, 10, 10, 10, 10)
    plan = replace(FREE, chunk_layers=cut, recompute="full", recompute_num_layers=11)
    every = replace(plan, recompute_num_layers=0)
    some, all_ = (simulate(MODEL, CLUSTER, MEGATRON, p).row(0) for p in (plan, every))
    # Of the first stage, 12 + 10 layers, 21 are recomputed; of the others all.
    kept = [stage["activations_bytes"] for stage in some["memory_per_stage"]]
    least = [stage["activations_bytes"] for stage in all_["memory_per_stage"]]
    assert kept[1:] == least[1:]
    assert kept[0] > least[0]
    assert some["hfu"] / some["mfu"] == pytest.approx(1 + (all_["hfu"] / all_["mfu"] - 1) * 79 / 80)


def test_moving_layers_to_a_later_stage_moves_their_memory() -> None:
    plans = [FREE, replace(FREE, chunk_layers=(8, 11, 10, 10, 10, 11, 11, 9))]
    first, second = (
        simulate(MODEL, CLUSTER, MEGATRON, p).row(0)["memory_per_stage"] for p in plans
    )
    assert [stage["layers"] for stage in first] == [19, 22, 21, 18]
    assert [stage["layers"] for stage in second] == [18, 22, 21, 19]
    assert second[0]["total_bytes"] < first[0]["total_bytes"]
    assert second[1] == first[1]
    assert second[3]["total_bytes"] > first[3]["total_bytes"]


def test_no_cut_within_memory_is_said_so() -> None:
    found = run("plan", *INPUTS, "--fix", "layout=free", "--memory-limit", "0.02")
    assert found.exit_code == 3
    last = found.stderr.splitlines()[-1]
    assert "no cut of its 80 layers into stages (layout=free) fits in 2% of memory" in last


def test_the_plan_goes_through_every_command_with_one_step_time(tmp_path: Path) -> None:
    file, script = tmp_path / "plans.yaml", tmp_path / "run.sh"
    fixed = ("--fix", "layout=free,pp=4,tp=4")
    planned = run("plan", *INPUTS, *fixed, "--output", str(file), "--json")
    assert planned.exit_code == 0, planned.stderr
    rows = json.loads(planned.stdout)["plans"]
    assert rows
    assert all(row["plan"]["layout"] == "free" and row["replayed"] for row in rows)
    for row in rows:
        again = run("simulate", "--plan", str(file), "--rank", str(row["rank"]), "--json")
        data = json.loads(again.stdout)
        assert data["plan"] == row["plan"]
        assert data["step_time_s"] == row["step_time_s"]
        assert sum(data["time"].values()) == pytest.approx(data["step_time_s"], rel=1e-12)
    compared = run("compare", str(file), "--json")
    assert [row["step_time_s"] for row in json.loads(compared.stdout)["plans"]] == [
        row["step_time_s"] for row in rows[:2]
    ]
    assert run("compare", str(file)).exit_code == 0
    timeline = run("timeline", str(file))
    assert timeline.exit_code == 0
    assert sum("|" in line for line in timeline.stdout.splitlines()) == 4
    exported = run("export", str(file), "--to", "megatron", "--output", str(script))
    assert exported.exit_code == 0, exported.stderr
    line = next(s for s in script.read_text().splitlines() if "parallel-layout" in s)
    layers, mtp, _ = read_megatron_layout(line.split('"')[1])
    assert (layers, mtp) == (rows[0]["plan"]["chunk_layers"], 0)


def test_the_layout_flag_excludes_the_other_layout_flags() -> None:
    script = export_megatron(MODEL, CLUSTER, MEGATRON, FREE)
    assert '--pipeline-model-parallel-layout "Et*9|t*11|(t*10|)*3(t*11|)*2t*8L"' in script
    for flag in ("--num-virtual-stages", "--account-for", "--decoder-first", "--decoder-last"):
        assert flag not in script


def test_versions_without_the_flag_refuse_in_one_line() -> None:
    old = replace(VERSIONS["core_v0.15.0"], name="core_v0.12.0", stage_layout=False)
    assert list(plan_refusals(MODEL, FREE, old)) == [
        "core_v0.12.0 has no --pipeline-model-parallel-layout (since core_v0.13.0)"
    ]
    assert not list(plan_refusals(MODEL, EVEN, old))
    for version in VERSIONS:
        assert "parallel-layout" in export_megatron(MODEL, CLUSTER, MEGATRON, FREE, version=version)


@pytest.mark.parametrize("name", ["llm-foundry", "nanotron", "internevo", "megatron-lm-2022"])
def test_software_without_free_layouts_refuses_them(name: str) -> None:
    framework = load_framework(name)
    assert "framework-has-layout" in simulate(MODEL, CLUSTER, framework, FREE).row(0)["reasons"]
    with pytest.raises(ExportError):
        export_megatron(MODEL, CLUSTER, framework, FREE)


ONE_LINE = {
    "layout: free": "chunk_layers is empty",
    "chunk_layers: [10, 10, 10, 10, 10, 10, 10, 10]": "layout even, but chunk_layers lists",
    "{layout: free, chunk_layers: [40, 40]}": "must list pp * vpp = 4 * 2 = 8 chunks, got 2",
    "{layout: free, chunk_layers: [-1, 11, 10, 10, 10, 10, 10, 20]}": "numbers from 0, got -1",
    "{layout: free, chunk_layers: [1.5, 11, 10, 10, 10, 10, 10, 20]}": "whole numbers, got '1.5'",
    "{layout: free, chunk_layers: [true, 9, 10, 10, 10, 10, 10, 20]}": "whole numbers, got 'True'",
    "{layout: free, chunk_layers: [[10], 9, 10, 10, 10, 10, 10, 20]}": "whole numbers, got '[10]'",
    "{layout: free, chunk_layers: ten}": "must be a list of whole numbers, got 'ten'",
    "{layout: free, chunk_layers: {a: 1}}": "must be a list of whole numbers, got",
    "{layout: free, chunk_layers: }": "must be a list of whole numbers, got 'None'",
    f"{{layout: free, chunk_layers: [{'1, ' * 10**5}1]}}": f"at most {MAX_CHUNKS} chunks",
}


@pytest.mark.parametrize("text", ONE_LINE, ids=lambda text: text[:40])
def test_a_malformed_list_is_one_line(text: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    fields = text.strip("{}").replace(", chunk_layers", "\nchunk_layers").replace("{a", "{a")
    fields = fields + "}" if "{a: 1" in fields else fields
    file.write_text(f"tp: 4\npp: 4\nvpp: 2\ndp: 4\n{fields}\n")
    result = run("simulate", *INPUTS[:2], *INPUTS[4:], "--plan", str(file))
    assert result.exit_code == 1
    assert result.stdout == ""
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("parallelsim: error: ")
    assert ONE_LINE[text] in line
    assert len(line) < 400


def test_a_million_chunks_are_refused_at_once() -> None:
    with pytest.raises(PlanError, match="at most 4096 chunks, got 1000000"):
        Plan.from_dict({"layout": "free", "chunk_layers": [1] * 10**6})


def test_a_wrong_sum_is_answered_with_its_reason(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text("tp: 4\npp: 4\nvpp: 2\ndp: 4\nlayout: free\nchunk_layers: [9,9,9,9,9,9,9,9]\n")
    result = run("simulate", *INPUTS[:2], *INPUTS[4:], "--plan", str(file))
    assert result.exit_code == 0
    assert "lists 72 layers in 8 chunks, the model has 80" in " ".join(result.stdout.split())
    refused = run("simulate", *INPUTS, "--plan", str(file), "--json")
    assert json.loads(refused.stdout)["reasons"] == ["chunk-layers-fit"]
    assert json.loads(refused.stdout)["replayed"] is False


@pytest.mark.parametrize(
    ("cut", "fits"),
    [
        ((0, 14, 13, 13, 13, 14, 13, 0), True),
        ((10, 0, 10, 10, 10, 20, 10, 10), False),
        ((10,) * 7 + (11,), False),
        ((10,) * 8, True),
    ],
)
def test_only_the_ends_may_be_empty(cut: tuple[int, ...], fits: bool) -> None:
    reasons = simulate(MODEL, CLUSTER, MEGATRON, replace(FREE, chunk_layers=cut)).row(0)["reasons"]
    assert (reasons == []) is fits


def test_chunk_layers_as_an_option() -> None:
    shape = ("--tp", "4", "--pp", "4", "--vpp", "2", "--layout", "free")
    text = ",".join(map(str, CUT))
    data = json.loads(run("simulate", *INPUTS, *shape, "--chunk-layers", text, "--json").stdout)
    assert tuple(data["plan"]["chunk_layers"]) == CUT
    for wrong in ("3,,4", "a", "-1,2", "1," * 5000):
        result = run("simulate", *INPUTS, *shape, "--chunk-layers", wrong)
        assert result.exit_code == 2
        assert "is no list of at most 4096 whole numbers" in result.stderr.splitlines()[-1]
    for option in ("--fix", "--limit"):
        result = run("plan", *INPUTS, option, "chunk_layers=3")
        assert result.exit_code == 2
        assert "chunk_layers is found by the search" in result.stderr


def test_random_cuts_keep_their_layers() -> None:
    rng = random.Random(0)
    for chunks in (2, 7, 16):
        cut = random_cut(80, chunks, rng)
        assert (len(cut), sum(cut)) == (chunks, 80)
