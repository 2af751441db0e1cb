"""The pipeline's closed forms against a replay: the longest path of the schedule's DAG.

Each stage runs its forwards (F) and backwards (B) in the order that the schedule fixes; F waits for
the previous virtual stage, B for the next one. Transfers are free. Virtual stage j of stage i is
number j p + i; m micro-batches, v virtual stages a stage.
"""

import networkx as nx
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from parallelsim.pipeline import StageSeconds, in_flight_micro_batches, pipeline_time
from parallelsim.plan import code

Operation = tuple[str, int, int]  # F or B, virtual stage of the rank, micro-batch
EXACT = 1e-9


def order(schedule: str, p: int, v: int, m: int, stage: int) -> list[Operation]:
    """What one stage runs, first to last (arXiv:2104.04473 section 2.2, Megatron's numbering)."""
    if schedule == "gpipe":
        return [("F", 0, k) for k in range(m)] + [("B", 0, k) for k in range(m)]
    total = m * v
    warmup = p - stage - 1 if schedule == "1f1b" else 2 * (p - stage - 1) + (v - 1) * p
    warmup = min(warmup, total)

    def numbered(kind: str, k: int) -> Operation:
        chunk, micro_batch = k % (p * v) // p, k // (p * v) * p + k % p
        return kind, chunk if kind == "F" else v - 1 - chunk, micro_batch

    if schedule == "1f1b":

        def numbered(kind: str, k: int) -> Operation:
            return kind, 0, k

    operations = [numbered("F", k) for k in range(warmup)]
    for k in range(total - warmup):
        operations += [numbered("F", warmup + k), numbered("B", k)]
    return operations + [numbered("B", k) for k in range(total - warmup, total)]


def makespan(schedule: str, v: int, m: int, forward: list[float], backward: list[float]) -> float:
    """Seconds until the last operation ends.

    Of a rank's chunks all are alike but the model's first and last, which take what is left.
    """
    p = len(forward)
    chunks = [chunk_times(v, times) for times in (forward, backward)]
    graph = nx.DiGraph()
    for i in range(p):
        operations = order(schedule, p, v, m, i)
        assert len(set(operations)) == 2 * m * v
        previous = None
        for kind, j, k in operations:
            number = j * p + i
            node = (kind, number, k)
            if previous is not None:
                graph.add_edge(previous, node)
            if kind == "F" and number > 0:
                graph.add_edge(("F", number - 1, k), node)
            if kind == "B" and number < p * v - 1:
                graph.add_edge(("B", number + 1, k), node)
            previous = node
    ends: dict[Operation, float] = {}
    for node in nx.topological_sort(graph):
        start = max((ends[before] for before in graph.predecessors(node)), default=0.0)
        ends[node] = start + chunks[node[0] == "B"][node[1]]
    return max(ends.values())


def chunk_times(v: int, ranks: list[float]) -> list[float]:
    """Of each virtual stage, from the times of first, equal middle, and last rank."""
    plain = ranks[1 if len(ranks) > 2 else 0] / v
    times = [plain] * (v * len(ranks))
    times[0], times[-1] = ranks[0] - (v - 1) * plain, ranks[-1] - (v - 1) * plain
    return times


def closed_form(
    schedule: str, v: int, m: int, forward: list[float], backward: list[float]
) -> float:
    """The formula under test on stages of three classes: first, equal middle ones, last."""
    p = len(forward)
    tau = [f + b for f, b in zip(forward, backward, strict=True)]
    middle = 1 if p > 2 else None
    seconds = [
        (values[0], 0.0 if middle is None else values[middle], values[-1] if p > 1 else 0.0)
        for values in (tau, forward)
    ]
    columns = [np.array([float(x)]) for three in seconds for x in three]
    schedules = np.array([code("schedule", schedule)], np.int64)
    shape = [np.array([float(x)]) for x in (p, v, m)]
    time = pipeline_time(StageSeconds(*columns), schedules, *shape)
    return float(time.steady_s[0] + time.bubble_s[0])


CASES = [
    (schedule, p, v, m)
    for schedule, chunks in (("gpipe", (1,)), ("1f1b", (1,)), ("interleaved-1f1b", (2, 3, 4)))
    for p in (2, 3, 4, 8)
    for v in chunks
    for m in ((1, 2, 5, 8, 16) if v == 1 else (p, 2 * p, 4 * p))
]


@pytest.mark.parametrize(("schedule", "p", "v", "m"), CASES)
def test_equal_stages_are_exact(schedule: str, p: int, v: int, m: int) -> None:
    forward, backward = [0.3] * p, [0.7] * p
    replay = makespan(schedule, v, m, forward, backward)
    assert closed_form(schedule, v, m, forward, backward) == pytest.approx(replay, rel=EXACT)


@pytest.mark.parametrize(("schedule", "p", "v", "m"), CASES)
@pytest.mark.parametrize("slower", [1.05, 1.5, 3.0])
def test_a_slower_last_stage_is_exact(schedule: str, p: int, v: int, m: int, slower: float) -> None:
    forward, backward = [0.3] * p, [0.7] * p
    forward[-1] *= slower
    backward[-1] *= slower
    replay = makespan(schedule, v, m, forward, backward)
    assert closed_form(schedule, v, m, forward, backward) == pytest.approx(replay, rel=EXACT)


@pytest.mark.parametrize(("schedule", "p", "v", "m"), [case for case in CASES if case[2] == 1])
@pytest.mark.parametrize("slower", [1.05, 1.5, 3.0])
def test_a_slower_first_stage_is_exact_without_virtual_stages(
    schedule: str, p: int, v: int, m: int, slower: float
) -> None:
    forward, backward = [0.3] * p, [0.7] * p
    forward[0] *= slower
    backward[0] *= slower
    replay = makespan(schedule, v, m, forward, backward)
    assert closed_form(schedule, v, m, forward, backward) == pytest.approx(replay, rel=EXACT)


def uneven(p: int, first: float, last: float, share: float) -> tuple[list[float], list[float]]:
    tau = [first, *[1.0] * (p - 2), last]
    return [share * t for t in tau], [(1 - share) * t for t in tau]


@given(
    case=st.sampled_from([case for case in CASES if case[0] == "1f1b"]),
    first=st.floats(0.5, 2.0),
    last=st.floats(0.5, 2.0),
    share=st.floats(0.2, 0.5),
)
def test_uneven_1f1b_is_within_its_stated_error(
    case: tuple[str, int, int, int], first: float, last: float, share: float
) -> None:
    schedule, p, v, m = case
    forward, backward = uneven(p, first, last, share)
    replay = makespan(schedule, v, m, forward, backward)
    stated = 0.05 if m >= 2 * p else 0.10 + EXACT
    assert closed_form(schedule, v, m, forward, backward) == pytest.approx(replay, rel=stated)


@given(
    case=st.sampled_from(CASES),
    first=st.floats(0.5, 2.0),
    last=st.floats(0.5, 2.0),
    share=st.floats(0.2, 0.5),
)
def test_no_step_is_shorter_than_the_slowest_stage(
    case: tuple[str, int, int, int], first: float, last: float, share: float
) -> None:
    """m max(tau) <= replay; without virtual stages <= m max(tau) + sum(tau) - max(tau)."""
    schedule, p, v, m = case
    forward, backward = uneven(p, first, last, share)
    assume(min(chunk_times(v, forward)) > 0)
    tau = [f + b for f, b in zip(forward, backward, strict=True)]
    low, high = m * max(tau), m * max(tau) + (sum(tau) - max(tau) if v == 1 else m * sum(tau))
    for time in (
        makespan(schedule, v, m, forward, backward),
        closed_form(schedule, v, m, forward, backward),
    ):
        assert low * (1 - EXACT) <= time <= high * (1 + EXACT)


@given(
    case=st.sampled_from([case for case in CASES if case[2] > 1]),
    first=st.floats(-0.9, 0.2),
    last=st.floats(-0.9, 4.0),
    share=st.floats(0.3, 0.5),
)
def test_uneven_chunks_are_within_their_stated_error(
    case: tuple[str, int, int, int], first: float, last: float, share: float
) -> None:
    """The ends of the model lighter or heavier than a chunk by these shares of it; with one group
    of micro-batches the form is exact.
    """
    schedule, p, v, m = case
    forward, backward = uneven(p, 1 + first / v if p > 2 else 1.0, 1 + last / v, share)
    replay = makespan(schedule, v, m, forward, backward)
    stated = EXACT if m == p else 0.01
    assert closed_form(schedule, v, m, forward, backward) == pytest.approx(replay, rel=stated)


@pytest.mark.parametrize(("schedule", "p", "v", "m"), CASES)
def test_micro_batches_in_flight_are_those_of_the_schedule(
    schedule: str, p: int, v: int, m: int
) -> None:
    for stage in range(p):
        held = peak = 0
        for kind, _, _ in order(schedule, p, v, m, stage):
            held += 1 if kind == "F" else -1
            peak = max(peak, held)
        schedules = np.array([code("schedule", schedule)], np.int64)
        columns = [np.array([float(x)]) for x in (p, v, stage, m)]
        found = in_flight_micro_batches(schedules, *columns)
        assert float(found[0]) == pytest.approx(peak / v, rel=EXACT)


def test_more_micro_batches_never_raise_the_bubble_share() -> None:
    m = np.arange(1.0, 200.0)
    ones = np.ones_like(m)
    for schedule, p, v in (("1f1b", 8, 1), ("gpipe", 8, 1), ("interleaved-1f1b", 8, 4)):
        stages = StageSeconds(*(x * ones for x in (1.3, 1.0, 1.1, 0.4, 0.3, 0.35)))
        schedules = np.full(len(m), code("schedule", schedule), np.int64)
        time = pipeline_time(stages, schedules, p * ones, v * ones, m)
        share = time.bubble_s / (time.steady_s + time.bubble_s)
        assert (np.diff(share[2 * p :]) <= 1e-12).all()
