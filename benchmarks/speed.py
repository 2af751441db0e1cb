"""Speed of the simulator, the search and the command line, as figures and as ratios.

    python benchmarks/speed.py [--json]

Ratios are to a fixed NumPy workload (or to ``python -c "import numpy"``) of the same run, so that
machines, and quiet and busy hours of one machine, can be compared. Each figure is the best of a few
repetitions: the others measure the neighbours.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from parallelsim.search.bounds import least_step_time
from parallelsim.search.grid import GridSearcher, room_for
from parallelsim.search.scan import Scan
from parallelsim.search.searcher import Meter, Request

from parallelsim import (
    PlanBatch,
    SearchSpace,
    load_cluster,
    load_framework,
    load_model,
)
from parallelsim.costs import CostTable
from parallelsim.replay import num_operations, replayed
from parallelsim.rules import obeys_rules
from parallelsim.simulate import by_block, screen, screen_time, simulate

NUM_PLANS = 400_000
SEARCHES = (
    ("llama3-70b", "hgx-h100", 256, 512),
    ("llama3-70b", "hgx-h100", 1024, 512),
    ("llama3.1-405b", "hgx-h100", 16_384, 2048),
    ("mixtral-8x7b", "hgx-h100", 256, 1024),
    ("deepseek-v3", "hgx-h800", 2048, 15_360),
)
TOP_K = 10


def best_seconds(function: Callable[[], object], repeat: int) -> float:
    """Least wall time of ``repeat`` calls."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def median_seconds(function: Callable[[], object], repeat: int) -> float:
    """Median wall time of ``repeat`` calls."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def reference_seconds() -> float:
    """The fixed workload: 1,000 fused multiply-adds over 8,192 doubles, as the simulator
    computes.
    """
    a, b = np.linspace(1, 2, 8192), np.linspace(2, 3, 8192)

    def work() -> None:
        for _ in range(1000):
            np.maximum(a * b, b) + a

    return best_seconds(work, 7)


def feasible_plans(space: SearchSpace, count: int) -> PlanBatch:
    """Plans drawn at random (with repetition) from those of the space that break no rule."""
    blocks = [
        block.take(obeys_rules(space.model, space.cluster, space.framework, block))
        for block in space.blocks()
    ]
    plans = PlanBatch.concatenate(blocks)
    return plans.take(np.random.default_rng(0).integers(0, len(plans), count))


def plans_per_second() -> dict[str, float]:
    """Screen and full simulation of random feasible plans, with the cost table and without."""
    model, framework = load_model("llama3-70b"), load_framework("megatron-core")
    cluster = load_cluster("hgx-h100", 256)
    plans = feasible_plans(SearchSpace(model, cluster, framework, 512), NUM_PLANS)
    table = CostTable(model, cluster, framework, plans)
    mixture, few = load_model("mixtral-8x7b"), load_cluster("hgx-h100", 64)
    dealt = feasible_plans(SearchSpace(mixture, few, framework, 1024), NUM_PLANS)
    experts = CostTable(mixture, few, framework, dealt)
    return {
        "screen_plans_per_s": NUM_PLANS / best_seconds(lambda: screen(table, plans), 5),
        "screen_experts_plans_per_s": NUM_PLANS / best_seconds(lambda: screen(experts, dealt), 5),
        "simulate_plans_per_s": NUM_PLANS
        / best_seconds(lambda: simulate(model, cluster, framework, plans), 5),
    }


def replays_per_second() -> dict[str, float]:
    """Bounds for the same plans, and operations replayed for plans of one schedule."""
    model, framework = load_model("llama3-70b"), load_framework("megatron-core")
    cluster = load_cluster("hgx-h100", 256)
    plans = feasible_plans(SearchSpace(model, cluster, framework, 512), NUM_PLANS)
    table = CostTable(model, cluster, framework, plans)
    bounds = best_seconds(lambda: by_block(table, plans, least_step_time), 5)
    times = best_seconds(lambda: screen_time(table, plans), 5)
    some = plans.take(np.flatnonzero((plans.pp == 4) & (plans.vpp == 5) & (plans.dp == 16))[:64])
    simulation = simulate(model, cluster, framework, some)
    seconds = best_seconds(lambda: replayed(simulation, table), 5)
    return {
        "bound_over_closed_form": bounds / times,
        "replay_ns_per_operation": 1e9 * seconds / float(num_operations(some).sum()),
    }


def search_seconds() -> dict[str, float]:
    """Whole searches in process, on one core and as ``plan`` does it: on all of them where the
    space is large. ``screen``: every plan, with the proof by bounds; ``search``: replayed and cut
    as well.
    """
    framework = load_framework("megatron-core")
    figures = {}
    for name, hardware, gpus, batch in SEARCHES:
        model, cluster = load_model(name), load_cluster(hardware, gpus)

        def search(
            workers: int | None, model: Any = model, cluster: Any = cluster, batch: int = batch
        ) -> Any:
            space = SearchSpace(model, cluster, framework, batch)
            return GridSearcher().search(space, Request(TOP_K, workers=workers))

        def scan(
            workers: int | None, model: Any = model, cluster: Any = cluster, batch: int = batch
        ) -> None:
            space, request = (
                SearchSpace(model, cluster, framework, batch),
                Request(TOP_K, workers=workers),
            )
            Scan(space, room_for(request), request.memory_limit, Meter(request)).run()

        result, key = search(1), f"{name}_{gpus}"
        figures[f"candidates_{key}"] = float(result.num_candidates)
        figures[f"evaluated_{key}"] = float(result.num_evaluated)
        figures[f"candidates_over_evaluated_{key}"] = result.num_candidates / result.num_evaluated
        figures[f"replayed_{key}"] = float(result.num_replayed)
        for cores, workers in (("one_core", 1), ("all_cores", None)):
            figures[f"screen_{cores}_{key}_s"] = best_seconds(partial(scan, workers), 3)
            figures[f"search_{cores}_{key}_s"] = best_seconds(partial(search, workers), 3)
        figures[f"median_search_{key}_s"] = median_seconds(partial(search, 1), 5)
    return figures


def command_line() -> dict[str, float]:
    """Cold starts, and the largest resident set of a search at the largest size."""
    program = shutil.which("parallelsim", path=str(Path(sys.executable).parent))
    if program is None:
        raise SystemExit("parallelsim is not installed beside this Python")
    commands = {
        "import_numpy_s": [sys.executable, "-c", "import numpy"],
        "cold_plan_s": [program, "plan", "--model", "llama3-70b", "--gpus", "256"],
        "cold_simulate_s": [
            *(program, "simulate", "--model", "llama3-8b", "--gpus", "8"),
            *("--tp", "2", "--dp", "4", "--global-batch-size", "128"),
        ],
        "cold_help_s": [program, "--help"],
    }

    def median(command: list[str]) -> float:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        runs = []
        for _ in range(7):
            start = time.perf_counter()
            subprocess.run(command, check=True, **quiet)  # type: ignore[call-overload]
            runs.append(time.perf_counter() - start)
        return statistics.median(runs)

    figures = {name: median(command) for name, command in commands.items()}
    largest = [program, "plan", "--model", "llama3.1-405b", "--gpus", "16384"]
    return figures | {"peak_memory_mb": peak_memory_mb(largest)}


def peak_memory_mb(command: list[str]) -> float:
    """Largest resident set of a command, started from a small process: a child's starts with that
    of the process that it is forked from.
    """
    program = (
        "import resource, subprocess, sys; "
        "subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    started = [sys.executable, "-c", program, *command]
    done = subprocess.run(started, check=True, capture_output=True, text=True)
    return int(done.stdout) / 1024


def main() -> None:
    """Print every figure, and its ratio where it has one."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="numbers for programs")
    options = parser.parse_args()
    reference = reference_seconds()
    figures = {"reference_s": reference} | plans_per_second() | replays_per_second()
    figures |= search_seconds() | command_line()
    for name in ("screen_plans_per_s", "screen_experts_plans_per_s", "simulate_plans_per_s"):
        figures[name.replace("plans_per_s", "ns_over_reference_ns")] = (
            1 / figures[name] / (reference / (1000 * 8192))
        )
    for name in list(figures):
        if name.startswith(("screen_one", "screen_all", "search_", "median_")):
            figures[f"{name[:-2]}_over_reference"] = figures[name] / reference
        if name.startswith("cold_"):
            figures[f"{name[:-2]}_over_import_numpy"] = figures[name] / figures["import_numpy_s"]
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    for name, value in figures.items():
        print(f"{name:48s} {value:14,.4g}")


if __name__ == "__main__":
    main()
