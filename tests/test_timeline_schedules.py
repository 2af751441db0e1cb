"""Bubbles and memory of the schedules against the formulas of their papers; sizes that are
refused."""

import time

import numpy as np
import oracle_timeline as oracle
import pytest

from parallelsim.errors import PlanError
from parallelsim.pipeline import in_flight_micro_batches
from parallelsim.plan import code
from parallelsim.timeline.activations import peak_activations
from parallelsim.timeline.analysis import Bubbles, bubbles
from parallelsim.timeline.costs import stage_costs
from parallelsim.timeline.engine import replay, steady_step_time, step_time
from parallelsim.timeline.graph import compile_graph
from parallelsim.timeline.schedules import GENERATORS, broken_rule, make_schedule

SIZES = [(2, 4), (4, 8), (4, 13), (8, 24)]


def waits(
    name: str,
    p: int,
    v: int,
    m: int,
    forward: float,
    halves: tuple[float, float],
    pair_frac: float | None = None,
) -> Bubbles:
    """Bubbles with even stages; the times are of a whole rank's layers, split evenly over its
    chunks."""
    schedule = make_schedule(name, p, v, m)
    graph = compile_graph(schedule, pairs=pair_frac is not None)
    costs = stage_costs(
        schedule,
        forward / v,
        input_s=halves[0] / v,
        weight_s=halves[1] / v,
        pair_frac=1.0 if pair_frac is None else pair_frac,
    )
    return bubbles(replay(graph, costs))


@pytest.mark.parametrize(("p", "m"), SIZES)
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_gpipe_and_1f1b_bubble_is_p_minus_1_times_forward_and_backward(
    name: str, p: int, m: int
) -> None:
    """1811.06965 section 2.3 and 2104.04473 section 2.2.1: (p - 1)(t_F + t_B) on every rank."""
    idle = waits(name, p, 1, m, 1.0, (1.1, 0.8)).idle_s
    np.testing.assert_allclose(idle, (p - 1) * (1.0 + 1.9))


@pytest.mark.parametrize(("p", "v", "k"), [(2, 2, 1), (4, 2, 3), (4, 3, 2), (8, 4, 4)])
@pytest.mark.parametrize("name", ["interleaved-1f1b", "breadth-first"])
def test_interleaved_and_breadth_first_bubble_is_a_share_p_minus_1_of_v_m(
    name: str, p: int, v: int, k: int
) -> None:
    """2104.04473 section 2.2.2, 2211.05953 section 4.1: bubble / computation = (p - 1)/(v m)."""
    m = k * p
    found = waits(name, p, v, m, 1.0, (1.0, 1.0))
    np.testing.assert_allclose(found.idle_s / found.busy_s, (p - 1) / (v * m))


@pytest.mark.parametrize(("p", "group", "m"), [(4, 8, 16), (4, 6, 16), (2, 3, 9)])
def test_larger_micro_batch_groups_keep_the_interleaved_bubble(p: int, group: int, m: int) -> None:
    schedule = make_schedule("interleaved-1f1b", p, 2, m, micro_batch_group=group)
    step = step_time(compile_graph(schedule), stage_costs(schedule, 0.5, backward_s=1.0))
    np.testing.assert_allclose(step, 3 * m + 3 * (p - 1) / 2)


SPLIT = [
    (1.0, (1.0, 1.0)),
    (1.0, (1.2, 0.8)),
    (1.2, (1.0, 0.9)),
    (1.0, (1.5, 1.0)),
    (1.0, (1.0, 0.5)),
]


@pytest.mark.parametrize(("forward", "halves"), SPLIT)
@pytest.mark.parametrize(("p", "m"), [(2, 6), (4, 12), (8, 24)])
def test_zb_h1_bubble(p: int, m: int, forward: float, halves: tuple[float, float]) -> None:
    """2401.10241 table 2: (p - 1)(t_F + t_Bi - t_W), on the rank that waits most."""
    found = waits("zb-h1", p, 1, m, forward, halves)
    wanted = (p - 1) * (forward + halves[0] - halves[1])
    assert found.inner_idle_s.max() == pytest.approx(wanted)
    assert found.idle_s.max() == pytest.approx(wanted)


@pytest.mark.parametrize(("forward", "halves"), SPLIT)
@pytest.mark.parametrize(("p", "m"), [(2, 6), (4, 12), (8, 24)])
def test_zb_h2_bubble(p: int, m: int, forward: float, halves: tuple[float, float]) -> None:
    """2401.10241 table 2: (p - 1)(t_F + t_Bi - 2 t_W), within each rank's own span."""
    found = waits("zb-h2", p, 1, m, forward, halves)
    wanted = (p - 1) * (forward + halves[0] - 2 * halves[1])
    assert found.inner_idle_s.max() == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize(("p", "m"), [(2, 3), (4, 7), (4, 12), (8, 24), (16, 40)])
def test_zb_v_has_no_bubble_with_equal_times(p: int, m: int) -> None:
    """2401.10241 section 6: none within a rank's span where t_F = t_Bi = t_W."""
    assert waits("zb-v", p, 2, m, 1.0, (1.0, 1.0)).inner_idle_s.max() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("p", [4, 6, 8, 12, 16])
def test_v_half_and_v_min_bubbles_are_about_the_papers(p: int) -> None:
    """2405.15362, as its authors' repository says, with t_F = t_Bi = t_W: p/(2 m) and at most
    2 p/(3 m) of the computation."""
    m = 4 * p
    half, least = (waits(name, p, 2, m, 1.0, (1.0, 1.0)) for name in ("v-half", "v-min"))
    assert (half.idle_s / half.busy_s).max() == pytest.approx(p / (2 * m), rel=0.15)
    assert (least.idle_s / least.busy_s).max() <= 2 * p / (3 * m)


@pytest.mark.parametrize("p", [2, 4, 6, 8])
@pytest.mark.parametrize("backward", [1.0, 1.5, 2.0, 3.0])
def test_chimera_bubble_of_one_unit(p: int, backward: float) -> None:
    """2107.06925, bidirectional pipelines: D t_F + (2 D - 2) t_B; t_F = t_B: D/2 - 1 of each; share
    (D-2)/(3N/2+D-2)."""
    found = waits("chimera", p, 1, p, 1.0, (backward / 2, backward / 2))
    np.testing.assert_allclose(found.idle_s, (p - 2) * backward)
    if backward == 2.0:
        np.testing.assert_allclose(
            found.idle_s / (found.idle_s + found.busy_s), (p - 2) / (1.5 * p + p - 2)
        )


@pytest.mark.parametrize("units", [2, 3, 5])
def test_chimera_units_follow_without_a_gap_with_equal_slots(units: int) -> None:
    """2107.06925, direct concatenation: the bubble stays D - 2 slots,
    (D-2)/(2N+D-2)."""
    found = waits("chimera", 6, 1, 6 * units, 1.0, (0.5, 0.5))
    np.testing.assert_allclose(found.idle_s, 4.0)


@pytest.mark.parametrize(("p", "v"), [(2, 2), (4, 2), (4, 4), (4, 8), (8, 4)])
@pytest.mark.parametrize("backward", [1.0, 2.0])
def test_hanayo_bubble_falls_with_the_waves(p: int, v: int, backward: float) -> None:
    """Built after 2308.15762: 2 p - 2 chunk backwards, (2 p - 2) t_B/v, v = 2 W; half of Chimera's
    weights."""
    found = waits("hanayo", p, v, p, 1.0, (backward / 2, backward / 2))
    np.testing.assert_allclose(found.idle_s, (2 * p - 2) * backward / v)


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (8, 20), (16, 40)])
@pytest.mark.parametrize("pair_frac", [1.0, 0.9, 0.75])
def test_dualpipe_bubble(p: int, m: int, pair_frac: float) -> None:
    """2412.19437 table 2 with F = Bi = W: (PP/2 - 1)(F&B + B - 3 W)."""
    together = pair_frac * 3.0
    wanted = (p / 2 - 1) * (together + 2.0 - 3.0)
    found = waits("dualpipe", p, 1, m, 1.0, (1.0, 1.0), pair_frac)
    assert found.idle_s.max() == pytest.approx(wanted, abs=1e-9)
    halved = waits("dualpipe-v", p // 2, 2, m, 2.0, (2.0, 2.0), pair_frac)
    assert halved.idle_s.max() == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_pipedream_2bw_has_no_bubble_in_the_long_run(p: int, m: int) -> None:
    """2006.09503 section 3.1: without a flush a step takes m (t_F + t_B)."""
    once, twice = (make_schedule("pipedream-2bw", p, 1, k) for k in (m, 2 * m))
    assert not once.flushes
    costs = stage_costs(once, 1.0, backward_s=2.0)
    np.testing.assert_allclose(
        steady_step_time(compile_graph(once), compile_graph(twice), costs), 3.0 * m
    )


def held(name: str, p: int, v: int, m: int, weight_only: float = 0.0) -> np.ndarray:
    """Peak of each rank in micro-batches of a whole stage; ``weight_only`` as a share of them."""
    return peak_activations(make_schedule(name, p, v, m), 1 / v, weight_only / v).num_bytes[:, 0]


@pytest.mark.parametrize(
    ("name", "p", "v", "m"),
    [
        ("gpipe", 4, 1, 8),
        ("gpipe", 8, 1, 3),
        ("1f1b", 4, 1, 8),
        ("1f1b", 8, 1, 3),
        ("1f1b", 1, 1, 3),
    ]
    + [("interleaved-1f1b", p, v, m) for p, v, m in ((2, 2, 4), (4, 3, 4), (4, 2, 16), (8, 8, 8))],
)
def test_peak_activations_equal_the_closed_form(name: str, p: int, v: int, m: int) -> None:
    stage = np.arange(p, dtype=np.float64)
    wanted = in_flight_micro_batches(
        np.full(p, code("schedule", name)),
        np.full(p, float(p)),
        np.full(p, float(v)),
        stage,
        np.full(p, float(m)),
    )
    np.testing.assert_allclose(held(name, p, v, m), wanted)


@pytest.mark.parametrize("p", range(2, 20))
def test_peak_activations_of_split_schedules(p: int) -> None:
    """2401.10241 table 2: p and 2 p - 1, section 6: p; 2405.15362: (p + 2)//2 and (p + 4)//3.

    As there, a micro-batch counts until its weight gradient.
    """
    m = 4 * p
    assert (held("zb-h1", p, 1, m, 1.0) == p).all()
    assert (held("zb-h2", p, 1, m, 1.0) == 2 * p - 1).all()
    assert (held("zb-v", p, 2, m, 1.0) == p).all()
    assert held("v-half", p, 2, m, 1.0).max() == (p + 2) // 2
    assert held("v-min", p, 2, m, 1.0).max() == (p + 4) // 3


@pytest.mark.parametrize("p", [2, 4, 8, 12])
def test_peak_activations_of_two_way_schedules(p: int) -> None:
    """2412.19437 table 2: PP + 1; 2107.06925: D/2 + 1 to D; Hanayo: at most p whole
    stages."""
    assert (held("dualpipe", p, 1, 4 * p) == p + 1).all()
    assert (held("dualpipe-v", p, 2, 4 * p) * 2 == 2 * p + 1).all()
    chimera = held("chimera", p, 1, 2 * p)
    assert chimera.max() == p
    assert chimera.min() == p / 2 + 1
    assert held("hanayo", p, 4, 2 * p).max() == p


@pytest.mark.parametrize("name", GENERATORS)
def test_peak_activations_equal_adding_up_one_by_one(name: str) -> None:
    rng = np.random.default_rng(5)
    for _ in range(20):
        schedule = make_schedule(name, *oracle.random_size(name, rng))
        whole = rng.integers(1, 1000, (3, schedule.num_stages)).astype(float)
        less = np.floor(whole * rng.random())
        peak = peak_activations(schedule, whole, less)
        for plan in range(3):
            wanted = oracle.peak_activations(schedule, whole[plan], less[plan])
            assert peak.num_bytes[:, plan].tolist() == wanted
        for rank, stages in enumerate(schedule.stage):
            parts = (
                peak.whole[rank] * whole[:, stages].T + peak.weight_only[rank] * less[:, stages].T
            )
            assert (parts.sum(axis=0) == peak.num_bytes[rank]).all()


@pytest.mark.parametrize(
    ("name", "size", "reason"),
    [
        ("1f1b", (4, 2, 8), "vpp must be 1"),
        ("gpipe", (4, 2, 8), "vpp must be 1"),
        ("pipedream-2bw", (4, 1, 3), "at least pp=4, got 3"),
        ("interleaved-1f1b", (4, 1, 8), "vpp must be at least 2"),
        ("interleaved-1f1b", (1, 2, 8), "pp must be at least 2"),
        ("interleaved-1f1b", (4, 2, 10), "leave a last group of 2"),
        ("interleaved-1f1b", (4, 2, 3), "between pp=4 and the 3 micro-batches"),
        ("chimera", (3, 1, 6), "pp must be even"),
        ("chimera", (4, 1, 5), "micro-batches must be even"),
        ("hanayo", (4, 3, 8), "vpp must be even"),
        ("zb-v", (4, 1, 8), "vpp must be 2"),
        ("v-half", (4, 4, 8), "vpp must be 2"),
        ("v-min", (4, 1, 8), "vpp must be 2"),
        ("dualpipe", (4, 1, 6), "at least 2 pp = 8, got 6"),
        ("dualpipe", (5, 1, 20), "pp must be even"),
        ("dualpipe-v", (4, 2, 7), "at least 2 pp = 8, got 7"),
    ],
)
def test_what_a_schedule_forbids_is_a_rule_with_its_reason(
    name: str, size: tuple[int, int, int], reason: str
) -> None:
    assert reason in str(broken_rule(name, *size))
    with pytest.raises(PlanError, match=f"schedule {name}: ") as caught:
        make_schedule(name, *size)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("size", "reason"),
    [
        ((1024, 1, 64), "pp=1024 is beyond the 512 ranks"),
        ((64, 1, 10**6), "operations"),
        ((2, 1, 10**12), "operations"),
        ((1, 1, 200_000), "a rank"),
        ((0, 1, 4), "at least 1"),
        ((4, -1, 4), "at least 1"),
    ],
)
@pytest.mark.parametrize("name", GENERATORS)
def test_absurd_sizes_are_refused_at_once(
    name: str, size: tuple[int, int, int], reason: str
) -> None:
    began = time.perf_counter()
    with pytest.raises(PlanError, match=reason):
        make_schedule(name, *size)
    with pytest.raises(PlanError, match=reason):
        broken_rule(name, *size)
    assert time.perf_counter() - began < 0.1


def test_unknown_names_and_groups_are_stated() -> None:
    with pytest.raises(PlanError, match="unknown schedule 'zb-2p'; the timeline has gpipe, 1f1b"):
        make_schedule("zb-2p", 4, 1, 8)
    with pytest.raises(PlanError, match="only interleaved-1f1b has micro-batch groups"):
        make_schedule("1f1b", 4, 1, 8, micro_batch_group=4)
    with pytest.raises(PlanError, match="must be between pp=4"):
        make_schedule("interleaved-1f1b", 4, 2, 8, micro_batch_group=3)


def test_ranks_that_wait_for_each_other_are_found() -> None:
    schedule = make_schedule("1f1b", 2, 1, 2)
    # Rank 0 wants B of micro-batch 0 before it sends micro-batch 1, which rank 1 runs first.
    schedule.micro_batch[:] = [0, 0, 1, 1, 1, 1, 0, 0]
    schedule.kind[:] = [0, 1, 0, 1, 0, 1, 0, 1]
    with pytest.raises(
        PlanError, match=r"wait for each other, first at rank 0: B of micro-batch 0"
    ):
        compile_graph(schedule)
    schedule.micro_batch[0] = 1
    with pytest.raises(PlanError, match="every micro-batch needs one F on every stage"):
        compile_graph(schedule)
