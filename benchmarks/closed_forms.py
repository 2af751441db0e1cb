"""Closed forms of the pipeline schedules against the replay, on random realistic plans.

    python benchmarks/closed_forms.py [--plans 500] [--seed 0] [--json]

Stages: equal layers between; embedding on the first, output matrix and loss on the last, which hold
a layer less in some layouts; recompute in a third of the plans; weight gradients 0.65 to 1 of a
forward. Errors are relative: negative where the closed form is below the replay. Plans with fewer
than 2 p micro-batches are shown apart.
"""

from __future__ import annotations

import argparse
import json
from typing import NamedTuple

import numpy as np

from parallelsim.errors import PlanError
from parallelsim.pipeline import StageSeconds, pipeline_time
from parallelsim.pipeline_paths import ChunkSeconds, Operations
from parallelsim.plan import SCHEDULES, TWO_WAY, WAVES, code
from parallelsim.replay import schedule_time
from parallelsim.timeline import Graph, broken_rule, compile_graph, make_schedule, stage_costs

MAX_OPERATIONS = 6000
RANKS = (2, 3, 4, 6, 8, 12, 16)
PER_RANK = (1, 1, 2, 2, 4, 4, 8)
CHUNKS = {
    "interleaved-1f1b": (2, 3, 4),
    "breadth-first": (1, 2, 3, 4),
    "hanayo": (2, 4, 6),
    **dict.fromkeys(("zb-v", "v-half", "v-min", "dualpipe-v"), (2,)),
}


class Case(NamedTuple):
    """A size and seconds [3] (forward, input, weight) of the first, middle and last stage."""

    pp: int
    vpp: int
    num_micro_batches: int
    first: np.ndarray
    middle: np.ndarray
    last: np.ndarray


def random_case(name: str, rng: np.random.Generator) -> Case:
    """A plan that the schedule allows."""
    while True:
        pp, vpp = int(rng.choice(RANKS)), int(rng.choice(CHUNKS.get(name, (1,))))
        m = int(rng.choice(PER_RANK)) * pp
        m += int(rng.integers(0, pp)) * int(rng.random() < 0.5)
        try:
            if broken_rule(name, pp, vpp, m) is None and 3 * pp * vpp * m <= MAX_OPERATIONS:
                return Case(pp, vpp, m, *random_seconds(rng))
        except PlanError:
            continue


def random_seconds(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First, middle and last stage, in forwards of a layer."""
    layer = np.array([1.0, rng.uniform(1.0, 1.3), rng.uniform(0.65, 1.0)])
    if rng.random() < 0.3:
        layer[1] += rng.choice([1.0, rng.uniform(0, 1)])
    embedding = np.array([0.03, 0.06, 0.02]) * rng.uniform(0.2, 3)
    head = np.array([0.97, 0.92, 0.81]) * rng.uniform(0.2, 3)
    layers = int(rng.integers(1, 9))
    lighter = rng.random(2) < 0.4 if layers > 1 else np.zeros(2, bool)
    return (
        (layers - lighter[0]) * layer + embedding,
        layers * layer,
        (layers - lighter[1]) * layer + head,
    )


def replayed(name: str, case: Case, graphs: dict[tuple[str, int, int, int], Graph]) -> float:
    """Seconds by the exact engine."""
    key = (name, *case[:3])
    if key not in graphs:
        graphs[key] = compile_graph(make_schedule(*key))
    graph = graphs[key]
    seconds = np.tile(case.middle[:, None], (1, graph.schedule.num_stages))
    seconds[:, 0], seconds[:, -1] = case.first, case.last
    costs = stage_costs(graph.schedule, seconds[0], input_s=seconds[1], weight_s=seconds[2])
    return float(schedule_time(graph, costs)[0])


def closed_form(name: str, case: Case) -> float:
    """Seconds by :func:`parallelsim.pipeline.pipeline_time`."""
    pp, vpp, m, first, middle, last = case
    if pp * vpp == 2:
        middle = np.zeros(3)
    ranks = rank_seconds(name, case)
    columns = [np.array([x]) for x in (*(r.sum() for r in ranks), *(r[0] for r in ranks))]
    chunks = ChunkSeconds(*(Operations(*(a[None] for a in s)) for s in (first, middle, last)))
    shape = (np.array([float(x)]) for x in (pp, vpp, m))
    schedule = np.array([code("schedule", name)])
    whole = (None, None)
    if name == "interleaved-1f1b" and pp == 2:
        whole = (np.array([middle.sum()]), middle[:1])
    return float(sum(pipeline_time(StageSeconds(*columns, chunks, *whole), schedule, *shape))[0])


def rank_seconds(name: str, case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Seconds of one micro-batch on the first, each middle, and the last rank."""
    pp, vpp, _, first, middle, last = case
    whole = vpp * middle
    none = 0 * middle
    if name in WAVES:
        return first + last + (vpp - 2) * middle, whole if pp > 2 else none, whole
    if name in TWO_WAY:
        return (first + last) / 2, whole if pp > 2 else none, (first + last) / 2
    others = (vpp - 1) * middle
    return first + others, whole if pp > 2 else none, last + others


def errors(name: str, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(relative errors, m >= 2 p) of random plans."""
    rng, graphs = np.random.default_rng(seed), {}
    cases = [random_case(name, rng) for _ in range(count)]
    found = [closed_form(name, case) / replayed(name, case, graphs) - 1 for case in cases]
    return np.array(found), np.array([case.num_micro_batches >= 2 * case.pp for case in cases])


def main() -> None:
    """Print a row for each schedule."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plans", type=int, default=500, help="plans of each schedule")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="numbers for programs")
    options = parser.parse_args()
    rows = {}
    for name in SCHEDULES[1:]:
        found, enough = errors(name, options.plans, options.seed)
        rows[name] = {
            "median_frac": float(np.median(np.abs(found[enough]))),
            "p95_frac": float(np.quantile(np.abs(found[enough]), 0.95)),
            "worst_low_frac": float(found[enough].min()),
            "worst_high_frac": float(found[enough].max()),
            "worst_few_micro_batches_frac": float(np.abs(found[~enough]).max(initial=0.0)),
        }
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    print(f"{'schedule':<18}{'median':>8}{'95 %':>8}{'lowest':>9}{'highest':>9}{'m < 2 p':>9}")
    for name, row in rows.items():
        median, p95, low, high, few = row.values()
        print(f"{name:<18}{median:>8.2%}{p95:>8.2%}{low:>+9.2%}{high:>+9.2%}{few:>9.2%}")


if __name__ == "__main__":
    main()
