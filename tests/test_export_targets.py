"""Of every target: names are harmless, scripts are valid, Slurm starts what its script holds."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace

import pytest
from test_export_deepspeed import SHARDED
from test_export_nanotron import PLAN as REPLICATED

from parallelsim.catalog import load_cluster, load_framework, load_model
from parallelsim.exporters import EXPORTERS
from parallelsim.exporters.slurm import END
from parallelsim.plan import Plan
from parallelsim.targets import TARGETS

LLAMA = load_model("llama3-8b").with_seq_length(8192)
H100 = load_cluster("hgx-h100", 64)
SOFTWARE = [name for name in TARGETS if not name.startswith("slurm-")]
FSDP = replace(SHARDED, recompute="none")
PLANS = {
    "megatron": ("megatron-core", replace(REPLICATED, overlap_param_gather=True)),
    "megatron-bridge": ("megatron-core", replace(REPLICATED, overlap_param_gather=True)),
    "torchtitan": ("torchtitan", FSDP),
    "deepspeed": ("deepspeed", SHARDED),
    "accelerate": ("torchtitan", replace(FSDP, grad_dtype="bf16")),
    "nanotron": ("nanotron", REPLICATED),
}
"""By target: software and a plan that both run."""
HOSTILE = "<script>\"'`$(rm -rf x)\n#SBATCH --wrap=x\n" + END + "\nend: ${X} --- \\"


def exported(target: str, *, name: str = "llama3-8b", version: str | None = None) -> str:
    framework, plan = PLANS[target.removeprefix("slurm-")]
    inputs = (
        replace(LLAMA, name=name),
        replace(H100, name=name if name == HOSTILE else H100.name),
        replace(load_framework(framework), name=name if name == HOSTILE else framework),
    )
    options = {} if version is None else {"version": version}
    return EXPORTERS[target](*inputs, plan, **options)


def without_comments(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("# ")]


def test_every_target_has_a_writer_and_software():
    assert set(EXPORTERS) == set(TARGETS)
    assert set(PLANS) == set(SOFTWARE)
    for target, (framework, plan) in PLANS.items():
        assert target in load_framework(framework).launches
        assert isinstance(plan, Plan)


@pytest.mark.parametrize("target", SOFTWARE)
def test_names_change_comments_and_the_jobs_name_alone(target):
    for each in (target, f"slurm-{target}"):
        plain, hostile = exported(each), exported(each, name=HOSTILE)
        assert len(plain.splitlines()) == len(hostile.splitlines())
        for old, new in zip(without_comments(plain), without_comments(hostile), strict=True):
            assert old == new or new.startswith("#SBATCH --job-name=script-rm-rf-x-SBATCH")
        for line in set(hostile.splitlines()) - set(plain.splitlines()):
            assert not set(line) & set("<>$`\"'\\{}")


@pytest.mark.parametrize("target", [name for name in TARGETS if TARGETS[name].is_script])
def test_scripts_are_valid_bash(target, tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(exported(target))
    subprocess.run(["bash", "-n", str(script)], check=True)
    if shellcheck := shutil.which("shellcheck"):
        subprocess.run([shellcheck, str(script)], check=True)


STUBS = {
    "scontrol": 'printf "%s\\n" node-a node-b',
    "srun": 'while [[ "$1" == --* ]]; do shift; done; exec "$@"',
    "torchrun": 'printf "%s\\n" torchrun "$@" > "${RUN_DIR}/command"',
    "accelerate": 'printf "%s\\n" accelerate "$@" > "${RUN_DIR}/command"',
}


@pytest.mark.parametrize("target", [*SOFTWARE, "torchtitan main-2026-08"])
def test_a_batch_script_starts_the_file_that_it_holds(target, tmp_path):
    name, _, version = target.partition(" ")
    for command, body in STUBS.items():
        stub = tmp_path / command
        stub.write_text(f"#!/usr/bin/env bash\n{body}\n")
        stub.chmod(0o755)
    text = exported(f"slurm-{name}", version=version or None)
    script, folder = tmp_path / "job", tmp_path / "a run"
    script.write_text(text)
    given = {"SLURM_JOB_ID": "7", "SLURM_NODEID": "1", "SLURM_JOB_NODELIST": "node-[a-b]"}
    given |= {"RUN_DIR": str(folder), "SLURM_CPUS_ON_NODE": "96", "TRAIN_SCRIPT": "train.py"}
    environment = {**os.environ, **given, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["bash", str(script)], env=environment, cwd=tmp_path, check=True)
    inner = next(path for path in folder.iterdir() if path.name.startswith("run."))
    assert inner.read_text() == exported(name, version=version or None)
    command = (folder / "command").read_text().split("\n")
    assert command[0] in ("torchrun", "accelerate")
    assert any("node-a" in word for word in command)
    assert str(inner) in command or version or name == "megatron"
    directives = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    assert "#SBATCH --nodes=8" in directives
    assert "#SBATCH --gpus-per-node=8" in directives
