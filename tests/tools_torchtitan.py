"""Exports many plans and asks torchtitan's own configuration code about each file.

    python tests/tools_torchtitan.py --python PYTHON --release FOLDER --main FOLDER [--plans N]

PYTHON runs torchtitan's dependencies on a CPU; the folders hold the package ``torchtitan`` of
release 0.2.2 (an unpacked wheel) and of main. Each file is parsed by ``ConfigManager``, its degrees
by ``ParallelDims``, its stages are cut by torchtitan's own function, and what they give is compared
with the plan. pytest does not collect this file.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from parallelsim.search.space import SearchSpace

from parallelsim.catalog import load_cluster, load_framework, load_model
from parallelsim.errors import ExportError
from parallelsim.exporters.torchtitan import export_torchtitan
from parallelsim.exporters.torchtitan_models import MAIN, RELEASE
from parallelsim.plan import Plan
from parallelsim.rules import obeys_rules

MODELS = ("llama3-8b", "llama3-70b", "llama3.1-405b", "qwen3-32b", "qwen3-30b-a3b")
CHECK_RELEASE = """
import json, math, sys
from torchtitan.config import ConfigManager
from torchtitan.distributed import ParallelDims
from torchtitan.distributed import pipeline_parallel as pipelines
from torchtitan.protocols.train_spec import get_train_spec
from torch.distributed.pipelining.schedules import PipelineScheduleSingle
for line in open(sys.argv[1]):
    case = json.loads(line)
    try:
        job = ConfigManager().parse_args(["--job.config_file", case["file"]])
        p = job.parallelism
        dims = ParallelDims(
            dp_shard=p.data_parallel_shard_degree, dp_replicate=p.data_parallel_replicate_degree,
            cp=p.context_parallel_degree, tp=p.tensor_parallel_degree,
            pp=p.pipeline_parallel_degree, ep=p.expert_parallel_degree,
            etp=p.expert_tensor_parallel_degree, world_size=case["gpus"])
        spec = get_train_spec(job.model.name)
        args = spec.model_args[job.model.flavor]
        args.update_from_config(job)
        assert job.training.seq_len % dims.seq_len_divisor == 0
        micro, parts = job.training.local_batch_size, None
        if dims.pp > 1:
            assert spec.pipelining_fn is not None, "no pipeline"
            schedule = pipelines.get_schedule_class(p.pipeline_parallel_schedule)
            single = issubclass(schedule, PipelineScheduleSingle)
            names = p.module_fqns_per_model_part
            less = (p.pipeline_parallel_first_stage_less_layers,
                    p.pipeline_parallel_last_stage_less_layers)
            size = p.pipeline_parallel_layers_per_stage
            stages = len(names) if names else math.ceil((args.n_layers + sum(less)) / size)
            assert stages % dims.pp == 0 and single == (stages == dims.pp)
            names = names or pipelines.generate_llm_fqn_per_model_part(stages, args.n_layers, *less)
            parts = [sum(n.startswith("layers.") for n in part) for part in names]
            assert micro % p.pipeline_parallel_microbatch_size == 0
            micro = p.pipeline_parallel_microbatch_size
        step = job.training.global_batch_size
        per_step = job.training.local_batch_size * dims.dp_replicate * dims.dp_shard
        assert step % per_step == 0
        dp = dims.dp_replicate * dims.dp_shard
        got = dict(tp=dims.tp, cp=dims.cp, pp=dims.pp, ep=dims.ep, dp=dp, 
                   micro_batch_size=micro, global_batch_size=step, stages=parts,
                   seq_length=job.training.seq_len, layers=args.n_layers)
        print(json.dumps(dict(name=case["name"], ok=True, got=got)))
    except BaseException as error:
        why = f"{type(error).__name__}: {error}"[:300]
        print(json.dumps(dict(name=case["name"], ok=False, why=why)))
"""
CHECK_MAIN = """
import json, os, sys
import torch
torch.cuda.get_device_capability = lambda *a, **k: (9, 0)
from torchtitan.config.manager import ConfigManager
from torchtitan.distributed.parallel_dims import ParallelDims
import torchtitan.distributed.pipeline_parallel as stages
for line in open(sys.argv[1]):
    case = json.loads(line)
    try:
        name = os.path.basename(case["file"])[:-3]
        job = ConfigManager().parse_args(["--module", name, "--config", "train"])
        dims = ParallelDims.from_config(job.parallelism, case["gpus"])
        model = job.model_spec.model
        model.update_from_config(config=job)
        parts = None
        if dims.pp > 1:
            meta = stages._get_pipeline_metadata(dims, job.parallelism, model)
            names = job.parallelism.module_fqns_per_model_part
            names = names or stages._generate_llm_fqn_per_model_part(*meta)
            parts = [sum(n.startswith("layers.") for n in part) for part in names]
        t, dp = job.training, dims.dp_replicate * dims.dp_shard
        flights = job.parallelism.num_pp_microbatches
        micro = t.num_tokens_per_microbatch_per_dp_rank
        cut = dims.tp if job.parallelism.enable_sequence_parallel else 1
        assert micro % (cut * (2 * dims.cp if dims.cp > 1 else 1)) == 0
        assert t.num_tokens_per_train_step % (micro * flights * dp) == 0
        length = t.max_context_length
        got = dict(tp=dims.tp, cp=dims.cp, pp=dims.pp, ep=dims.ep, dp=dp,
                   micro_batch_size=micro // length,
                   global_batch_size=t.num_tokens_per_train_step // length, stages=parts,
                   seq_length=length, layers=len(model.layers))
        print(json.dumps(dict(name=case["name"], ok=True, got=got)))
    except BaseException as error:
        why = f"{type(error).__name__}: {error}"[:300]
        print(json.dumps(dict(name=case["name"], ok=False, why=why)))
"""


def plans(space: SearchSpace, count: int, seed: str) -> Iterator[Plan]:
    """Random plans of a space that obey the rules."""
    rng = random.Random(seed)
    for _ in range(40 * count):
        pp = rng.choice(space.pipeline_degrees)
        rows = len(space.unstaged(pp))
        batch = next(space.expand(pp, np.array([rng.randrange(rows)])), None) if rows else None
        if batch is None or not len(batch):
            continue
        some = batch.take(np.array([rng.randrange(len(batch))]))
        ok = obeys_rules(space.model, space.cluster, space.framework, some)
        yield from some.take(ok)


def cases(version: str, count: int, folder: Path) -> tuple[list[dict[str, object]], Counter[str]]:
    """Files that were written, with what they must give; and what was refused, how often."""
    cluster, framework = load_cluster("hgx-h100", 64), load_framework("torchtitan")
    written: list[dict[str, object]] = []
    refused: Counter[str] = Counter()
    for name in MODELS:
        model = load_model(name).with_seq_length(4096)
        for precision in framework.capabilities.precisions:
            space = SearchSpace(model, cluster, framework, 256, precision=precision)
            of_kind = 0
            if version == MAIN and precision.startswith("fp8"):
                continue  # never expressible
            for plan in plans(space, count * 8, name + precision):
                if of_kind == count:
                    break
                for change in ({"sequence_parallel": plan.tp > 1}, {}):
                    try:
                        text = export_torchtitan(
                            model, cluster, framework, replace(plan, **change), version=version
                        )
                        break
                    except ExportError as error:
                        refused[str(error).split(": ")[-1][:60]] += 1
                else:
                    continue
                of_kind += 1
                suffix = ".toml" if version == RELEASE else ".py"
                file = folder / f"case{len(written)}{suffix}"
                file.write_text(text)
                chunks = (
                    list(plan.chunk_layers)
                    or [model.num_layers // (plan.pp * plan.vpp)] * plan.pp * plan.vpp
                )
                names = ("tp", "cp", "pp", "ep", "dp", "micro_batch_size", "global_batch_size")
                expected = {key: getattr(plan, key) for key in names}
                expected |= {"stages": chunks if plan.pp > 1 else None}
                expected |= {"seq_length": model.seq_length, "layers": model.num_layers}
                written.append(
                    {"name": f"{name} {plan}", "file": str(file), "gpus": 64, "expected": expected}
                )
    return written, refused


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--release")
    parser.add_argument("--main")
    parser.add_argument("--plans", type=int, default=10, help="of each model and precision")
    options = parser.parse_args()
    bad = 0
    for version, path, check in (
        (RELEASE, options.release, CHECK_RELEASE),
        (MAIN, options.main, CHECK_MAIN),
    ):
        if path is None:
            continue
        with tempfile.TemporaryDirectory() as folder:
            written, refused = cases(version, options.plans, Path(folder))
            batch = Path(folder) / "cases.jsonl"
            batch.write_text("".join(json.dumps(case) + "\n" for case in written))
            env = os.environ | {"PYTHONPATH": f"{path}:{folder}"}
            done = subprocess.run(
                [options.python, "-c", check, str(batch)], env=env, capture_output=True, text=True
            )
            lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
            answers = [json.loads(line) for line in lines]
            if len(answers) != len(written):
                print(done.stderr[-2000:])
            for case, answer in zip(written, answers, strict=False):
                if not answer["ok"] or answer["got"] != case["expected"]:
                    bad += 1
                    print("WRONG", case["name"], answer.get("why") or answer["got"])
            accepted = sum(answer["ok"] for answer in answers)
            print(f"torchtitan {version}: {accepted} of {len(written)} files accepted")
            for why, number in refused.most_common(12):
                print(f"  refused before writing, {number} times: {why}")
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main())
