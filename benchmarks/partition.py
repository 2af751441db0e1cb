"""Speed of the partition into pipeline stages, and what it gains over the even cut.

    python benchmarks/partition.py [--json]

Milliseconds are the best of a few repetitions. ``alike``: identical layers, a light embedding and a
head of two layers' time; ``different``: layers drawn at random. ``tight``: memory between what the
even cut needs with full recompute and without, so that stages recompute some layers: each its own
number, all or none, or all the same (``recompute``). The last column is the ratio to the reference
workload of benchmarks/speed.py, for busy machines.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np
from parallelsim.search.partition import (
    EdgeItem,
    LayerItems,
    Partition,
    PartitionProblem,
    evaluate,
    partition,
)

CASES = ((False, "least"), (True, "least"), (True, "all-or-none"), (True, "same"))
SIZES = ((126, 16, 1), (126, 16, 2), (61, 16, 2), (1000, 128, 1), (1000, 128, 2))
GOALS_MS = {126: 50.0, 1000: 1000.0}


def best_seconds(function: Callable[[], object], repeat: int = 3) -> float:
    """Least wall time of ``repeat`` calls."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def reference_seconds() -> float:
    """1,000 multiply-adds and maxima over 8,192 doubles."""
    a, b = np.linspace(1, 2, 8192), np.linspace(2, 3, 8192)

    def work() -> None:
        for _ in range(1000):
            np.maximum(a * b, b) + a

    return best_seconds(work, 7)


def make_problem(num_layers: int, pp: int, vpp: int, different: bool, tight: bool):
    """One case; bytes are in units of what one layer saves."""
    rng = np.random.default_rng(0)
    spread = rng.uniform(0.5, 1.5, num_layers) if different else np.ones(num_layers)
    values = {
        "forward_s": 1.0,
        "backward_s": 2.0,
        "recompute_s": 1.0,
        "state_bytes": 2.0,
        "saved_bytes": 1.0,
        "checkpoint_bytes": 0.1,
    }
    columns = {f.name: values.get(f.name, 0.0) * spread for f in fields(LayerItems)}
    problem = PartitionProblem(
        layers=LayerItems(**columns),
        pp=pp,
        vpp=vpp,
        num_micro_batches=4 * pp,
        schedule="interleaved-1f1b" if vpp > 1 else "1f1b",
        first=EdgeItem(forward_s=0.05, backward_s=0.1, state_bytes=3.0),
        last=EdgeItem(forward_s=1.5, backward_s=4.5, state_bytes=3.0, transient_bytes=4.0),
    )
    if not tight:
        return problem
    each, left = divmod(num_layers, pp * vpp)
    even = tuple(each + (c < left) for c in range(pp * vpp))
    none, full = (
        evaluate(replace(problem, recompute=n), even).memory_bytes.max() for n in (0, num_layers)
    )
    return replace(problem, capacity_bytes=float(full + 0.4 * (none - full)))


def rows() -> list[dict[str, object]]:
    """One row a case."""
    table, reference = [], reference_seconds()
    for size in SIZES:
        for different in (False, True):
            for tight, recompute in CASES:
                problem = replace(make_problem(*size, different, tight), recompute=recompute)
                found: list[Partition] = []
                seconds = best_seconds(lambda p=problem, f=found: f.append(partition(p)))
                result = found[-1]
                table.append(
                    {
                        "layers": size[0],
                        "pp": size[1],
                        "vpp": size[2],
                        "kind": "different" if different else "alike",
                        "memory": "tight" if tight else "ample",
                        "recompute": recompute,
                        "ms": 1e3 * seconds,
                        "goal_ms": GOALS_MS.get(size[0]),
                        "ratio": seconds / reference,
                        "gain_frac": result.gain_frac,
                        "recomputed": sum(result.recomputed),
                        "proven": result.proven,
                    }
                )
    return table


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    table = rows()
    if arguments.json:
        print(json.dumps(table, indent=1))
        return
    print(
        "layers   pp vpp  kind       memory recompute       ms   goal   gain layers proven  ratio"
    )
    for r in table:
        goal = f"{r['goal_ms']:6.0f}" if r["goal_ms"] else "     -"
        # Of an even cut that does not fit in memory nothing can be gained.
        gain = f"{100 * r['gain_frac']:5.1f}%" if r["gain_frac"] < 1 else "     -"
        print(
            f"{r['layers']:6d} {r['pp']:4d} {r['vpp']:3d}  {r['kind']:9s}  {r['memory']:6s} "
            f"{r['recompute']:11s} {r['ms']:7.1f} {goal} {gain} "
            f"{r['recomputed']:6d} {'yes' if r['proven'] else 'no':6s} {r['ratio']:6.1f}"
        )


if __name__ == "__main__":
    main()
