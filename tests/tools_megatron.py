"""Exports many plans and asks Megatron-LM's own argument validation about each script.

    python tests/tools_megatron.py --oracle ORACLE.py --megatron CHECKOUT [--python PYTHON]

ORACLE.py runs Megatron-LM's ``parse_args``, ``validate_args``, configuration classes and process
groups on a CPU: ``ORACLE.py --batch cases.jsonl --json --gpu-arch 9.0 --megatron CHECKOUT`` prints
one JSON object for each case. pytest does not collect this file. bash runs every script with a
``torchrun`` that only notes its arguments: what is checked is what would be launched.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from parallelsim.catalog import load_cluster, load_framework, load_model, model_names
from parallelsim.cluster import ClusterSpec
from parallelsim.exporters.megatron import DEFAULT_VERSION, export_megatron
from parallelsim.exporters.megatron_flags import (
    VERSIONS,
    MegatronVersion,
    model_refusals,
    plan_refusals,
)
from parallelsim.framework import FrameworkSpec
from parallelsim.model import VOCAB_PADDING, ModelSpec
from parallelsim.plan import CHOICES, PLAN_FIELDS, Cuts, Plan, PlanBatch
from parallelsim.rules import broken_rules

CLUSTERS = (("hgx-h100", 256, "9.0"), ("dgx-a100-80gb", 192, "8.0"), ("hgx-b200", 128, "10.0"))
NUM_DRAWS = 200_000
BINARY = (0, 1)
TORCHRUN = """#!{python}
import json, os, sys
json.dump({{"argv": sys.argv[1:], "env": dict(os.environ)}}, open({out!r}, "w"))
"""


@dataclass(frozen=True)
class Case:
    name: str
    model: ModelSpec
    cluster: ClusterSpec
    plan: Plan
    arch: str


def draw(model: ModelSpec, cluster: ClusterSpec, rng: np.random.Generator) -> PlanBatch:
    """Random plans of which a few percent are valid; shape [NUM_DRAWS]."""
    n = NUM_DRAWS
    pick = lambda *values: rng.choice(values, n)  # noqa: E731
    tp, cp, pp = pick(1, 2, 4, 8), pick(1, 1, 2, 4), pick(1, 2, 3, 4, 8)
    vpp = np.where(pp > 1, pick(1, 1, 2, 3, 4, 5), 1)
    zero, grads = pick(0, 1, 1), pick(*BINARY)
    layout = np.where(pp > 1, pick(0, 0, 1, 2, 3, 4, 4, 5, 5), 0)
    is_first_last = layout == CHOICES["layout"].index("first-last")
    per_stage = -(-model.num_layers // pp)
    first = np.where(is_first_last, np.maximum(per_stage - pick(0, 1, 2, 4), 1), 0)
    last = np.where(is_first_last, np.maximum(per_stage - pick(0, 1, 2, 4), 1), 0)
    recompute = pick(0, 1, 2, 2)
    sequence_parallel = (tp > 1) & pick(0, 1, 1)
    cuts, cut = draw_cuts(model, layout == CHOICES["layout"].index("free"), pp * vpp, rng)
    columns = {
        "tp": tp,
        "cp": cp,
        "pp": pp,
        "vpp": vpp,
        "dp": np.maximum(cluster.num_gpus // (tp * cp * pp), 1),
        "micro_batch_size": pick(1, 2),
        "global_batch_size": pick(768, 1536),
        "schedule": np.where(pp == 1, 0, np.where(vpp > 1, 2, 1)),
        "layout": layout,
        "first_stage_layers": first,
        "last_stage_layers": last,
        "chunk_layers": cut,
        "sequence_parallel": sequence_parallel,
        "zero": zero,
        "recompute": recompute,
        "recompute_num_layers": np.where(recompute == 2, pick(0, 1, 2), 0),
        "precision": rng.integers(0, len(CHOICES["precision"]), n),
        "grad_dtype": pick(*BINARY),
        "cp_comm_type": rng.integers(0, 3, n),
        "tp_comm_overlap": sequence_parallel & pick(*BINARY),
        "overlap_grad_reduce": grads,
        "overlap_param_gather": grads & (zero > 0) & pick(*BINARY),
        "cross_entropy_fusion": pick(*BINARY),
        "cuda_graphs": pick(*BINARY),
    }
    return replace(PlanBatch.from_columns(n, columns), cuts=cuts)


def draw_cuts(
    model: ModelSpec, free: np.ndarray, chunks: np.ndarray, rng: np.random.Generator
) -> tuple[Cuts, np.ndarray]:
    """A few cuts for each number of chunks, with empty ends among them; and one for each plan."""
    found: dict[int, list[tuple[int, ...]]] = {}
    for number in np.unique(chunks[free]).tolist():
        inner = model.num_layers - number
        for empty_ends in (0, 1, 0):
            between = max(number - 2 * empty_ends, 1)
            extra = rng.multinomial(max(inner + 2 * empty_ends, 0), [1 / between] * between)
            cut = [0] * empty_ends + [int(1 + e) for e in extra] + [0] * empty_ends
            found.setdefault(number, []).append(tuple(cut))
    cuts = tuple(sorted({(), *(cut for each in found.values() for cut in each)}))
    column = np.zeros(len(free), np.int64)
    for number, each in found.items():
        codes = np.array([cuts.index(cut) for cut in each])
        index = np.flatnonzero(free & (chunks == number))
        column[index] = rng.choice(codes, len(index))
    return cuts, column


def features(plan: Plan) -> set[tuple[str, object]]:
    """Values of a plan that coverage counts."""
    found: set[tuple[str, object]] = {
        (name, getattr(plan, name)) for name in PLAN_FIELDS if name not in ("dp", "zero")
    }
    stages = (plan.layout, plan.vpp > 1, plan.pp > 2)
    return found | {("stages", stages), ("formats", (plan.precision, plan.grad_dtype))}


def covering_plans(
    model: ModelSpec,
    cluster: ClusterSpec,
    framework: FrameworkSpec,
    version: MegatronVersion,
    number: int,
    seed: int,
) -> list[Plan]:
    """Valid plans that Megatron-LM runs, each chosen for what those before it do not have."""
    plans = draw(model, cluster, np.random.default_rng(seed))
    valid = plans.take(np.flatnonzero(broken_rules(model, cluster, framework, plans) == 0)[:1500])
    left = [plan for plan in valid if not list(plan_refusals(model, plan, version))]
    chosen: list[Plan] = []
    seen: set[tuple[str, object]] = set()
    while left and len(chosen) < number:
        best = max(left, key=lambda plan: len(features(plan) - seen))
        left.remove(best)
        chosen.append(best)
        seen |= features(best)
    return chosen


def cases(framework: FrameworkSpec, version: MegatronVersion, number: int) -> Iterator[Case]:
    exportable = [m for m in map(load_model, model_names()) if not list(model_refusals(m))]
    for seed, model in enumerate(exportable):
        cluster_name, num_gpus, arch = CLUSTERS[seed % len(CLUSTERS)]
        cluster = load_cluster(cluster_name, num_gpus)
        chosen = covering_plans(model, cluster, framework, version, number, seed)
        for i, plan in enumerate(chosen):
            yield Case(f"{model.name}/{cluster_name}/{i}", model, cluster, plan, arch)


def captured(script: str, folder: Path) -> dict[str, Any]:
    """Arguments and environment with which the script starts torchrun."""
    out, stub, path = folder / "argv.json", folder / "torchrun", folder / "run.sh"
    stub.write_text(TORCHRUN.format(python=sys.executable, out=str(out)))
    stub.chmod(0o755)
    path.write_text(script)
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    env |= {"NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    subprocess.run(["bash", str(path)], check=True, env=env, cwd=folder)
    started: dict[str, Any] = json.loads(out.read_text())
    return started


def oracle_line(case: Case, script: str, folder: Path) -> dict[str, Any]:
    started = captured(script, folder)
    argv = started["argv"]
    value = {flag: argv[argv.index(flag) + 1] for flag in ("--nnodes", "--nproc_per_node")}
    start = next(i for i, word in enumerate(argv) if word.endswith("pretrain_gpt.py")) + 1
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    return {
        "name": case.name,
        "argv": argv[start:],
        "env": {name: started["env"].get(name, "")},
        "world_size": int(value["--nnodes"]) * int(value["--nproc_per_node"]),
    }


def differences(case: Case, answer: dict[str, Any]) -> list[str]:
    """What Megatron-LM derived that the plan says otherwise."""
    plan, derived = case.plan, answer["derived"]
    expected = {
        "data_parallel_size": plan.dp,
        "num_microbatches": plan.num_micro_batches,
        "sequence_parallel": plan.sequence_parallel,
        "use_distributed_optimizer": plan.zero == 1,
        "virtual_pipeline_model_parallel_size": plan.vpp if plan.vpp > 1 else None,
        "overlap_grad_reduce": plan.overlap_grad_reduce,
        "overlap_param_gather": plan.overlap_param_gather,
    }
    if derived.get("padded_vocab_size"):
        multiple = VOCAB_PADDING * plan.tp
        expected["padded_vocab_size"] = -(-case.model.vocab_size // multiple) * multiple
    if plan.precision != "fp32":
        expected["accumulate_allreduce_grads_in_fp32"] = plan.grad_dtype == "fp32"
    wrong = [
        f"{k}: {derived.get(k)!r}, plan {v!r}" for k, v in expected.items() if derived.get(k) != v
    ]
    layers = derived["layers_per_stage"]
    if sum(map(sum, layers)) != case.model.num_layers:
        wrong.append(f"layers {layers}")
    if plan.layout == "free":
        chunks = [row[k] for k in range(plan.vpp) for row in layers]
        if chunks != list(plan.chunk_layers):
            wrong.append(f"chunks {chunks}")
    if plan.layout == "first-last":
        ends = [sum(layers[0]), sum(layers[-1])]
        if ends != [plan.first_stage_layers, plan.last_stage_layers]:
            wrong.append(f"first and last stage {ends}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--oracle", required=True)
    parser.add_argument("--megatron", required=True)
    parser.add_argument("--python", default=sys.executable, help="interpreter for the oracle")
    parser.add_argument("--oracle-options", default="", help="passed on, such as --no-optim")
    parser.add_argument("--version", default=DEFAULT_VERSION, choices=VERSIONS)
    parser.add_argument("--plans-per-model", type=int, default=4)
    options = parser.parse_args()
    framework = load_framework("megatron-core")
    all_cases = list(cases(framework, VERSIONS[options.version], options.plans_per_model))
    accepted, answered = 0, 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for arch in sorted({case.arch for case in all_cases}):
            group = [case for case in all_cases if case.arch == arch]
            lines = []
            for case in group:
                script = export_megatron(
                    case.model, case.cluster, framework, case.plan, options.version
                )
                lines.append(json.dumps(oracle_line(case, script, folder)))
            (folder / "cases.jsonl").write_text("\n".join(lines) + "\n")
            command = [options.python, options.oracle, "--batch", str(folder / "cases.jsonl")]
            command += ["--json", "--gpu-arch", arch, "--megatron", options.megatron]
            command += shlex.split(options.oracle_options)
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
            for case, line in zip(group, done.stdout.splitlines(), strict=True):
                answer = json.loads(line)
                answered += 1
                wrong = differences(case, answer) if answer["ok"] else [answer["message"]]
                accepted += not wrong
                if wrong:
                    print(f"REFUSED {case.name}: {'; '.join(wrong)}\n  {case.plan}")
    models = len({case.model.name for case in all_cases})
    values = set().union(*(features(case.plan) for case in all_cases))
    print(f"{len(values)} values and combinations covered")
    print(f"{accepted} of {answered} accepted ({models} models, {options.version})")
    return 0 if accepted == answered == len(all_cases) else 1


if __name__ == "__main__":
    sys.exit(main())
