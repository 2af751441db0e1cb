"""The replay against the networkx oracle, and its properties."""

import time

import numpy as np
import oracle_timeline as oracle
import pytest

from parallelsim.errors import PlanError
from parallelsim.timeline.analysis import bubbles, critical_path
from parallelsim.timeline.compiled import compiled_graph
from parallelsim.timeline.costs import StageCosts, stage_costs
from parallelsim.timeline.engine import replay, step_time
from parallelsim.timeline.graph import compile_graph
from parallelsim.timeline.operations import Schedule
from parallelsim.timeline.schedules import GENERATORS, make_schedule

CASES = 40  # of each of the 14 schedules: 560
CLOSE = 1e-12


def random_costs(
    schedule: Schedule,
    rng: np.random.Generator,
    plans: int = 1,
    *,
    pairs: bool = False,
    hooks: bool = True,
) -> StageCosts:
    stages, p = schedule.num_stages, schedule.num_ranks
    scale = float(rng.choice([0.0, 0.2, 2.0]))
    return stage_costs(
        schedule,
        rng.uniform(0.5, 2, (plans, stages)),
        backward_s=rng.uniform(1, 4, (plans, stages)),
        input_s=rng.uniform(0.5, 2, (plans, stages)),
        weight_s=rng.uniform(0.2, 2, (plans, stages)),
        transfer_s=scale * rng.uniform(0, 1, (plans, p)),
        blocking=(rng.random(plans) < 0.3) & (not pairs),
        gather_s=hooks * rng.uniform(0, 4, (plans, stages)),
        reduce_s=hooks * rng.uniform(0, 4, (plans, stages)),
        num_buckets=rng.integers(1, 6, plans),
        pair_frac=rng.uniform(0.5, 1, plans) if pairs else 1.0,
    )


def seconds(costs: StageCosts, plan: int) -> dict[str, np.ndarray]:
    return {
        "F": costs.forward_s[plan],
        "B": costs.backward_s[plan],
        "I": costs.input_s[plan],
        "W": costs.weight_s[plan],
    }


@pytest.mark.parametrize("name", GENERATORS)
def test_replay_equals_the_longest_paths_of_random_uneven_cases(name: str) -> None:
    rng = np.random.default_rng(list(name.encode()))
    for case in range(CASES):
        schedule = make_schedule(name, *oracle.random_size(name, rng))
        gathers, pairs = case % 3 == 0, case % 2 == 1
        costs = random_costs(schedule, rng, 2, pairs=pairs)
        graph = compile_graph(schedule, gathers=gathers, pairs=pairs)
        done = replay(graph, costs)
        operations = [operation for run in oracle.operation_lists(schedule) for operation in run]
        for plan in [case // 2 % 2]:  # of a batch of two, whose blocking may differ
            times = oracle.longest_paths(
                schedule,
                seconds(costs, plan),
                costs.transfer_s[plan],
                blocking=bool(costs.blocking[plan]),
                gather=costs.gather_s[plan] if gathers else None,
                pair_frac=float(costs.pair_frac[plan]) if pairs else None,
            )
            wanted = np.array([times[operation] for operation in operations])
            np.testing.assert_allclose(done.start_s[:, plan], wanted[:, 0], rtol=CLOSE, atol=CLOSE)
            np.testing.assert_allclose(done.finish_s[:, plan], wanted[:, 1], rtol=CLOSE, atol=CLOSE)
            if not pairs:
                end = oracle.step_end(
                    schedule, times, costs.reduce_s[plan], int(costs.num_buckets[plan])
                )
                assert done.step_s[plan] == pytest.approx(end, rel=CLOSE)


@pytest.mark.parametrize("name", GENERATORS)
def test_every_stage_runs_every_micro_batch_once_and_in_list_order(name: str) -> None:
    rng = np.random.default_rng(1 + len(name))
    for _ in range(10):
        size = oracle.random_size(name, rng)
        schedule = make_schedule(name, *size)
        lists = oracle.operation_lists(schedule)
        flat = [operation for run in lists for operation in run]
        stages, m = schedule.num_stages, size.num_micro_batches
        assert sorted((j, s) for k, j, s in flat if k == "F") == [
            (j, s) for j in range(m) for s in range(stages)
        ]
        assert sorted((j, s) for k, j, s in flat if k in "BI") == [
            (j, s) for j in range(m) for s in range(stages)
        ]
        assert {(j, s) for k, j, s in flat if k == "I"} == {(j, s) for k, j, s in flat if k == "W"}
        assert len(set(flat)) == len(flat)
        done = replay(compile_graph(schedule), random_costs(schedule, rng))
        for rank in range(size.pp):
            span = slice(schedule.first[rank], schedule.first[rank + 1])
            assert (done.start_s[span][1:] >= done.finish_s[span][:-1] - CLOSE).all()


@pytest.mark.parametrize("name", GENERATORS)
def test_a_batch_equals_its_plans_one_by_one_bit_for_bit(name: str) -> None:
    rng = np.random.default_rng(7)
    schedule = make_schedule(name, *oracle.random_size(name, rng))
    graph = compile_graph(schedule, gathers=True, pairs=True)
    costs = random_costs(schedule, rng, 300, pairs=True)
    together, full = step_time(graph, costs), replay(graph, costs)
    assert (together == full.step_s).all()
    for plan in (0, 17, 299):
        alone = replay(graph, costs.take(slice(plan, plan + 1)))
        assert alone.step_s[0] == together[plan]
        assert (alone.start_s[:, 0] == full.start_s[:, plan]).all()
        assert (alone.finish_s[:, 0] == full.finish_s[:, plan]).all()
        for whole, part in zip(bubbles(full), bubbles(alone), strict=True):
            assert (whole[:, plan] == part[:, 0]).all()


@pytest.mark.parametrize("name", GENERATORS)
def test_critical_path_has_no_gap_and_ends_with_the_step(name: str) -> None:
    rng = np.random.default_rng(11)
    for case in range(12):
        schedule = make_schedule(name, *oracle.random_size(name, rng))
        pairs = case % 3 == 0
        graph = compile_graph(schedule, gathers=case % 2 == 0, pairs=pairs)
        done = replay(graph, random_costs(schedule, rng, 3, pairs=pairs))
        for plan in range(3):
            path = critical_path(done, plan)
            assert path[0].start_s == 0.0
            assert path[-1].end_s == done.step_s[plan]
            for one, two in zip(path, path[1:], strict=False):
                assert one.end_s == pytest.approx(two.start_s, abs=1e-9)
                assert one.end_s >= one.start_s


@pytest.mark.parametrize("name", GENERATORS)
def test_slower_or_blocking_is_never_faster(name: str) -> None:
    rng = np.random.default_rng(3)
    schedule = make_schedule(name, *oracle.random_size(name, rng))
    graph = compile_graph(schedule)
    plain = {"backward_s": 2.0, "input_s": 1.0, "weight_s": 1.0}
    base = step_time(graph, stage_costs(schedule, 1.0, **plain))
    slow = step_time(graph, stage_costs(schedule, 1.0, **plain, transfer_s=0.5))
    blocked = step_time(graph, stage_costs(schedule, 1.0, **plain, transfer_s=0.5, blocking=True))
    reduced = step_time(graph, stage_costs(schedule, 1.0, **plain, reduce_s=3.0))
    busiest = bubbles(replay(graph, stage_costs(schedule, 1.0, **plain))).busy_s.max()
    assert busiest <= base[0] <= slow[0] <= blocked[0]
    assert base[0] < reduced[0]


def test_more_buckets_hide_more_of_the_reduction() -> None:
    schedule = make_schedule("1f1b", 4, 1, 8)
    costs = stage_costs(
        schedule, 1.0, backward_s=2.0, reduce_s=1.0, num_buckets=np.array([1, 2, 4, 100])
    )
    step = step_time(compile_graph(schedule), costs)
    np.testing.assert_allclose(step, 33 + 1 / np.array([1, 2, 4, 100]))


def test_missing_or_misshaped_costs_are_stated() -> None:
    schedule = make_schedule("zb-h1", 4, 1, 8)
    with pytest.raises(PlanError, match="needs input_s and weight_s"):
        stage_costs(schedule, 1.0, backward_s=2.0)
    with pytest.raises(PlanError, match=r"forward_s has shape \(1, 3\), expected \(1, 4\)"):
        stage_costs(schedule, np.ones(3), input_s=1.0, weight_s=1.0)
    for bad in (np.nan, np.inf, -1.0):
        with pytest.raises(PlanError, match="finite and not negative"):
            stage_costs(schedule, bad, input_s=1.0, weight_s=1.0)
    dualpipe = make_schedule("dualpipe", 2, 1, 4)
    costs = stage_costs(dualpipe, 1.0, input_s=1.0, weight_s=1.0, blocking=True)
    with pytest.raises(PlanError, match="transfers that don't block"):
        step_time(compile_graph(dualpipe, pairs=True), costs)
    with pytest.raises(PlanError, match="at least 1"):
        stage_costs(schedule, 1.0, input_s=1.0, weight_s=1.0, num_buckets=0)


def test_graphs_of_equal_size_are_built_once_and_large_ones_are_not_kept() -> None:
    first = compiled_graph("zb-v", 4, 2, 16)
    assert compiled_graph("zb-v", 4, 2, np.int64(16)) is first  # type: ignore[arg-type]
    assert compiled_graph("zb-v", 4, 2, 16, gathers=True) is not first
    assert compiled_graph("zb-v", 4, 2, 17) is not first
    assert compiled_graph("1f1b", 8, 1, 2048) is not compiled_graph("1f1b", 8, 1, 2048)
    with pytest.raises(PlanError, match="vpp must be 2"):
        compiled_graph("zb-v", 4, 1, 16)


def test_sizes_beyond_the_limits_are_refused_before_anything_is_built() -> None:
    start = time.process_time()
    for name, pp, vpp, m in (("1f1b", 1024, 1, 8), ("1f1b", 8, 1, 10**6), ("zb-v", 512, 2, 10**9)):
        with pytest.raises(PlanError, match=r"beyond the 512 ranks|operations"):
            compiled_graph(name, pp, vpp, m)
    assert time.process_time() - start < 0.1
