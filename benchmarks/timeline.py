"""Speed of the timeline, in nanoseconds an operation and plan.

    python benchmarks/timeline.py [--json]

Columns: writing the operation lists, sorting them by level, finding both in the cache (``again``;
large graphs are not kept), and replaying 1, 16, 64 and 256 plans
of one schedule for their step times; each the best of a few repetitions. The last column is the
ratio of the batch of 64 to a plain Python loop of one addition and one comparison an operation.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import numpy as np

from parallelsim.timeline import (
    Schedule,
    StageCosts,
    compile_graph,
    compiled_graph,
    make_schedule,
    stage_costs,
    step_time,
)

CASES = (
    ("1f1b", 4, 1, 32),
    ("1f1b", 8, 1, 64),
    ("1f1b", 64, 1, 4096),
    ("gpipe", 8, 1, 64),
    ("interleaved-1f1b", 8, 4, 64),
    ("interleaved-1f1b", 16, 8, 128),
    ("breadth-first", 8, 4, 64),
    ("chimera", 8, 1, 64),
    ("hanayo", 8, 4, 64),
    ("zb-h1", 8, 1, 64),
    ("zb-v", 8, 2, 64),
    ("v-half", 16, 2, 64),
    ("dualpipe", 16, 1, 64),
)
BATCHES = (1, 16, 64, 256)
LARGEST = 2**25
"""Operations times plans; larger cells are left out."""
GOAL_NS = 500.0


def best_seconds(function: Callable[[], object], repeat: int = 5) -> float:
    """Least wall time of ``repeat`` calls."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def loop_ns() -> float:
    """One turn of a plain Python loop: the yardstick of this machine and hour."""
    values = np.linspace(0, 1, 100_000).tolist()

    def work() -> float:
        at = 0.0
        for value in values:
            if value > at:
                at = value
            at += value
        return at

    return 1e9 * best_seconds(work) / len(values)


def random_costs(schedule: Schedule, num_plans: int) -> StageCosts:
    """Uneven stages with transfers."""
    rng = np.random.default_rng(0)
    shape = (num_plans, schedule.num_stages)
    return stage_costs(
        schedule,
        rng.uniform(1, 2, shape),
        input_s=rng.uniform(1, 2, shape),
        weight_s=rng.uniform(1, 2, shape),
        transfer_s=rng.uniform(0, 0.3, (num_plans, schedule.num_ranks)),
    )


def measure(name: str, pp: int, vpp: int, num_micro_batches: int) -> dict[str, float | str | int]:
    """One row."""
    schedule = make_schedule(name, pp, vpp, num_micro_batches)
    graph, count = compile_graph(schedule), len(schedule)
    few = 2 if count > 100_000 else 5
    row: dict[str, float | str | int] = {
        "case": f"{name} {pp}x{vpp}x{num_micro_batches}",
        "operations": count,
        "write_ns": 1e9
        * best_seconds(lambda: make_schedule(name, pp, vpp, num_micro_batches), few)
        / count,
        "sort_ns": 1e9 * best_seconds(lambda: compile_graph(schedule), few) / count,
    }
    compiled_graph(name, pp, vpp, num_micro_batches)
    again = best_seconds(lambda: compiled_graph(name, pp, vpp, num_micro_batches), few)
    row["again_ns"] = 1e9 * again / count
    for num_plans in BATCHES:
        if count * num_plans > LARGEST:
            continue
        costs = random_costs(schedule, num_plans)
        seconds = best_seconds(lambda costs=costs: step_time(graph, costs), few)
        row[f"replay_{num_plans}_ns"] = 1e9 * seconds / count / num_plans
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    yardstick = loop_ns()
    rows = [measure(*case) for case in CASES]
    if as_json:
        print(json.dumps({"loop_ns": yardstick, "goal_ns": GOAL_NS, "rows": rows}, indent=1))
        return
    columns = ["write_ns", "sort_ns", "again_ns", *(f"replay_{num}_ns" for num in BATCHES)]
    titles = ["write", "sort", "again", *(f"P={num}" for num in BATCHES)]
    print(
        f"{'ns an operation and plan':<28}{'operations':>11}",
        *(f"{t:>8}" for t in titles),
        "   ratio",
    )
    for row in rows:
        cells = (f"{row[c]:>8.1f}" if c in row else f"{'-':>8}" for c in columns)
        ratio = f"{row['replay_64_ns'] / yardstick:>8.2f}" if "replay_64_ns" in row else f"{'-':>8}"
        print(f"{row['case']:<28}{row['operations']:>11}", *cells, ratio)
    print(f"goal {GOAL_NS:.0f} ns; a turn of a plain Python loop takes {yardstick:.1f} ns")


if __name__ == "__main__":
    main()
