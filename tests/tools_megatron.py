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
from tools_megatron_breaks import BREAKS, LATER_BREAKS, Break

from parallelsim.catalog import load_cluster, load_framework, load_model, model_names
from parallelsim.cluster import ClusterSpec
from parallelsim.exporters.megatron import DEFAULT_VERSION, export_megatron, refusals
from parallelsim.exporters.megatron_experts import experts_of
from parallelsim.exporters.megatron_flags import VERSIONS, MegatronVersion
from parallelsim.exporters.megatron_hybrid import chunk_layers, mixer_of
from parallelsim.exporters.megatron_model import model_refusals
from parallelsim.framework import FrameworkSpec
from parallelsim.huggingface import model_from_config
from parallelsim.layers import Block
from parallelsim.model import VOCAB_PADDING, ModelSpec
from parallelsim.plan import CHOICES, PLAN_FIELDS, Cuts, Plan
from parallelsim.plan_batch import PlanBatch
from parallelsim.rules import obeys_rules

CLUSTERS = (("hgx-h100", 256, "9.0"), ("dgx-a100-80gb", 192, "8.0"), ("hgx-b200", 128, "10.0"))
NUM_DRAWS = 200_000
BINARY = (0, 1)
OTHERS = ("nemotron-nano-9b-v2", "nemotron-3-nano-30b-a3b", "qwen1.5-moe-a2.7b")
"""Of ``published/huggingface_configs.json``: kinds of models that the catalogue has not."""
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
    zero, grads = np.where(pp > 1, pick(0, 1, 1), rng.integers(0, 4, n)), pick(*BINARY)
    layout = np.where(pp > 1, pick(0, 0, 1, 2, 3, 4, 4, 5, 5), 0)
    is_first_last = layout == CHOICES["layout"].index("first-last")
    per_stage = -(-model.num_layers // pp)
    first = np.where(is_first_last, np.maximum(per_stage - pick(0, 1, 2, 4), 1), 0)
    last = np.where(is_first_last, np.maximum(per_stage - pick(0, 1, 2, 4), 1), 0)
    recompute = pick(0, 1, 2, 2)
    cuts, cut = draw_cuts(model, layout == CHOICES["layout"].index("free"), pp * vpp, rng)
    sequence_parallel = (tp > 1) & (pick(0, 1, 1) | model.has_experts)
    kind = np.where(cp > 2, rng.integers(0, 4, n), rng.integers(0, 3, n))
    dp = np.maximum(cluster.num_gpus // (tp * cp * pp), 1)
    columns = draw_experts(model, tp * cp * dp, (pp == 1) | (vpp > 1), recompute < 2, rng)
    columns |= {
        "tp": tp,
        "cp": cp,
        "pp": pp,
        "vpp": vpp,
        "dp": dp,
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
        "cp_comm_type": kind,
        "cp_a2a": np.where((kind == 3) & (cp > 2), 2, 1),
        "tp_comm_overlap": sequence_parallel & pick(*BINARY),
        "overlap_grad_reduce": grads,
        "overlap_param_gather": grads & (zero > 0) & pick(*BINARY),
        "cross_entropy_fusion": pick(*BINARY),
        "cuda_graphs": pick(*BINARY),
        "fp8_param_gather": (zero > 0) & pick(*BINARY),
        "dp_replicate": np.where(zero >= 2, pick(1, 2), 1),
        "optimizer": np.where(pick(*BINARY), rng.integers(0, len(CHOICES["optimizer"]), n), 0),
        "optimizer_offload_pct": np.where((zero == 1) | (dp * cp == 1), pick(0, 0, 0, 50, 100), 0),
        "activation_offload_pct": np.where(
            (pp == 1) & (recompute == 0), pick(0, 25, 50) * pick(*BINARY), 0
        ),
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


def draw_experts(
    model: ModelSpec,
    ranks: np.ndarray,
    interleaves: np.ndarray,
    keeps: np.ndarray,
    rng: np.random.Generator,
) -> dict[str, np.ndarray]:
    """Degrees of experts that fold over a stage's ranks; nothing for dense models."""
    experts, n = experts_of(model), len(ranks)
    if experts is None:
        return {}
    ep, etp = rng.choice((1, 2, 4, 8, 16, 32), n), rng.choice((1, 1, 2, 4), n)
    fits = (experts.num_experts % ep == 0) & (experts.ffn_hidden_size % etp == 0)
    fits &= (ranks % (ep * etp) == 0) & ~(experts.bias & (etp > 1))
    ep, etp = np.where(fits, ep, 1), np.where(fits, etp, 1)
    dispatcher = np.where(ep * etp > 1, rng.integers(0, 3, n), rng.integers(0, 2, n))
    gathers = dispatcher == CHOICES["moe_dispatcher"].index("all-gather")
    overlaps = (ep > 1) & ~gathers & interleaves & keeps
    return {
        "ep": ep,
        "etp": etp,
        "moe_dispatcher": dispatcher,
        "ep_comm_overlap": overlaps & rng.choice(BINARY, n),
    }


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
    valid = plans.take(np.flatnonzero(obeys_rules(model, cluster, framework, plans))[:1500])
    left = [plan for plan in valid if not refusals(model, plan, version)]
    left = [p for p in left if not (p.ep_comm_overlap and p.precision == "fp32")]
    chosen: list[Plan] = []
    seen: set[tuple[str, object]] = set()
    while left and len(chosen) < number:
        best = max(left, key=lambda plan: len(features(plan) - seen))
        left.remove(best)
        chosen.append(best)
        seen |= features(best)
    return chosen


def models(version: MegatronVersion) -> list[ModelSpec]:
    """Those of the catalogue and others that the version can build."""
    path = Path(__file__).parent / "published" / "huggingface_configs.json"
    configs = json.loads(path.read_text(encoding="utf-8"))
    found = [load_model(name) for name in model_names()]
    others = (model_from_config(configs[name]["config"], name) for name in OTHERS)
    found += [model.with_seq_length(4096) for model in others]
    layer = load_model("mixtral-8x7b").layers[0]
    dropping = replace(layer, experts=replace(layer.experts, capacity_factor=1.25))
    name, blocks = "mixtral-with-capacity", (Block(32, (dropping,)),)
    found += [replace(load_model("mixtral-8x7b"), name=name, blocks=blocks)]
    return [model for model in found if not list(model_refusals(model, version))]


def cases(framework: FrameworkSpec, version: MegatronVersion, number: int) -> Iterator[Case]:
    exportable = models(version)
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
    start = next(i for i, word in enumerate(argv) if "/pretrain_" in word) + 1
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
        "use_distributed_optimizer": plan.optimizer != "muon"
        and (plan.zero >= 1 or plan.optimizer_offload_pct > 0),
        "virtual_pipeline_model_parallel_size": plan.vpp if plan.vpp > 1 else None,
        "overlap_grad_reduce": plan.overlap_grad_reduce,
        "overlap_param_gather": plan.overlap_param_gather,
    }
    if derived.get("padded_vocab_size"):
        multiple = VOCAB_PADDING * plan.tp
        expected["padded_vocab_size"] = -(-case.model.vocab_size // multiple) * multiple
    if case.model.has_experts:
        expected["expert_model_parallel_size"] = plan.ep
        expected["expert_tensor_parallel_size"] = plan.etp
    if plan.precision != "fp32":
        expected["accumulate_allreduce_grads_in_fp32"] = plan.grad_dtype == "fp32"
    wrong = [
        f"{k}: {derived.get(k)!r}, plan {v!r}" for k, v in expected.items() if derived.get(k) != v
    ]
    replicas = plan.num_gpus // (plan.pp * plan.ep * plan.etp)
    if case.model.has_experts and answer["groups"]["expert_dp"] != replicas:
        wrong.append(f"groups {answer['groups']}")
    layers = derived["layers_per_stage"]
    if mixer_of(case.model):
        number = sum(len(layer.sublayers) for layer in case.model.layers)
        if derived["num_layers"] != number or sum(chunk_layers(number, plan)) != number:
            wrong.append(f"{derived['num_layers']} layers, the pattern {number}")
        return wrong
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


def asked(lines: list[dict[str, Any]], arch: str, options: argparse.Namespace) -> list[Any]:
    """The oracle's answers about scripts, in their order."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines))
        file.flush()
        command = [options.python, options.oracle, "--batch", file.name, "--json"]
        command += ["--gpu-arch", arch, "--megatron", options.megatron]
        command += shlex.split(options.oracle_options)
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    if len(answers) != len(lines):
        raise SystemExit(f"the oracle answered {len(answers)} of {len(lines)} scripts")
    return answers


def spoiled(
    cases: list[Case], lines: list[dict[str, Any]], breaks: tuple[Break, ...], seen: set[str]
) -> tuple[list[dict[str, Any]], list[str]]:
    """For each break that was not seen, a script that it applies to, with it; and the words that
    must refuse it.
    """
    found, words = [], []
    for each in breaks:
        if each.name in seen:
            continue
        for case, line in zip(cases, lines, strict=True):
            if (each.env and case.arch >= "9.1") or not each.applies(case.model, case.plan):
                continue
            seen.add(each.name)
            name, argv = f"{each.name}: {case.name}", [*line["argv"], *shlex.split(each.flags)]
            found += [
                {**line, "name": name, "argv": argv, "env": {**line["env"], **dict(each.env)}}
            ]
            words += [each.says]
            break
    return found, words


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--oracle", required=True)
    parser.add_argument("--megatron", required=True)
    parser.add_argument("--python", default=sys.executable, help="interpreter for the oracle")
    parser.add_argument("--oracle-options", default="", help="passed on, such as --no-optim")
    parser.add_argument("--version", default=DEFAULT_VERSION, choices=VERSIONS)
    parser.add_argument("--plans-per-model", type=int, default=4)
    options = parser.parse_args()
    framework, version = load_framework("megatron-core"), VERSIONS[options.version]
    all_cases = list(cases(framework, version, options.plans_per_model))
    breaks = BREAKS + (LATER_BREAKS if version.hybrid_stages else ())
    accepted, answered, refused, seen = 0, 0, 0, set[str]()
    for arch in sorted({case.arch for case in all_cases}, reverse=True):
        group = [case for case in all_cases if case.arch == arch]
        with tempfile.TemporaryDirectory() as name:
            lines = [
                oracle_line(
                    case,
                    export_megatron(
                        case.model, case.cluster, framework, case.plan, version=version.name
                    ),
                    Path(name),
                )
                for case in group
            ]
        broken, words = spoiled(group, lines, breaks, seen)
        answers = asked(lines + broken, arch, options)
        for case, answer in zip(group, answers[: len(lines)], strict=True):
            answered += 1
            wrong = differences(case, answer) if answer["ok"] else [answer["message"]]
            accepted += not wrong
            if wrong:
                print(f"REFUSED {case.name}: {'; '.join(wrong)}\n  {case.plan}")
        for answer, says in zip(answers[len(lines) :], words, strict=True):
            right = not answer["ok"] and says in answer["message"]
            refused += right
            message = "accepted" if answer["ok"] else answer["message"][:90]
            print(f"{'spoiled' if right else 'WRONG'} {answer['name']}: {message}")
    number = len({case.model.name for case in all_cases})
    values = set().union(*(features(case.plan) for case in all_cases))
    print(f"{len(values)} values and combinations covered")
    print(f"{refused} of {len(breaks)} spoiled scripts refused")
    print(f"{accepted} of {answered} accepted ({number} models, {options.version})")
    whole = accepted == answered == len(all_cases)
    return 0 if whole and refused == len(breaks) else 1


if __name__ == "__main__":
    sys.exit(main())
