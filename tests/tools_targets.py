"""Give an exported file to its target's own parser: ``python tools_targets.py TARGET FILE N``.

Imports nothing of parallelsim, so that it runs under an interpreter that has the target alone. N is
the number of data-parallel ranks. Prints what the target read, as JSON; exits with 77 where the
target is not installed. ``accepted`` is for tests, which name that interpreter in the environment
as PARALLELSIM_TARGETS_PYTHON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

MISSING = 77


def deepspeed(file: str, ranks: int) -> dict[str, Any]:
    """DeepSpeed's own configuration object, for a program that has ``ranks`` replicas."""
    from deepspeed.runtime.config import DeepSpeedConfig

    class Units:
        def get_data_parallel_world_size(self) -> int:
            return ranks

    import deepspeed.comm

    deepspeed.comm.get_rank = lambda *_: 0
    read = DeepSpeedConfig(file, mpu=Units())
    return {
        "batch": [
            read.train_batch_size,
            read.train_micro_batch_size_per_gpu,
            read.gradient_accumulation_steps,
        ],
        "stage": int(read.zero_optimization_stage),
        "overlap_comm": read.zero_config.overlap_comm,
        "offloads": read.zero_config.offload_optimizer is not None,
        "bf16": read.bfloat16_config.enabled,
        "fp16": read.float16_config.enabled,
        "grads": read.grad_accum_dtype,
        "stages": read.pipeline["stages"],
        "checkpoints": read.activation_checkpointing_config.number_checkpoints,
        "tp": read.tensor_parallel_config.autotp_size,
    }


def accelerate(file: str, _: int) -> dict[str, Any]:
    """What ``accelerate launch`` tells the processes that it starts, in their environment, and what
    accelerate's own objects make of that.
    """
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.parallelism_config import ParallelismConfig
    from accelerate.utils import FullyShardedDataParallelPlugin
    from accelerate.utils.launch import prepare_multi_gpu_env

    options = ["--config_file", file, "--main_process_ip", "first", "--main_process_port", "29500"]
    read, *_rest = _validate_launch_command(launch_command_parser().parse_args([*options, "x.py"]))
    told = prepare_multi_gpu_env(read)
    os.environ.update(told)
    sharding, degrees = FullyShardedDataParallelPlugin(), ParallelismConfig()
    return {
        "processes": [read.num_machines, read.num_processes, int(read.nproc_per_node)],
        "precision": told["ACCELERATE_MIXED_PRECISION"],
        "compiles": told["ACCELERATE_DYNAMO_BACKEND"] == "INDUCTOR",
        "version": sharding.fsdp_version,
        "reshard": sharding.reshard_after_forward,
        "checkpoints": sharding.activation_checkpointing,
        "wraps": told["FSDP_AUTO_WRAP_POLICY"],
        "degrees": [
            *(degrees.dp_replicate_size, degrees.dp_shard_size, degrees.tp_size, degrees.cp_size)
        ],
        "rotation": degrees.cp_handler and degrees.cp_handler.cp_comm_strategy,
    }


class StandIns(MetaPathFinder, Loader):
    """Empty modules in place of packages that need a GPU or are not read here."""

    PACKAGES = ("transformers", "flash_attn", "triton", "datatrove", "lighteval", "functorch")

    def find_spec(self, fullname: str, *_: Any) -> ModuleSpec | None:
        """Of one of the packages, or a part of it."""
        known = fullname.partition(".")[0] in self.PACKAGES
        return ModuleSpec(fullname, self, is_package=True) if known else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """A module that has every class."""
        module = ModuleType(spec.name)
        module.__dict__.update(__version__="2.8.0", __path__=[])
        module.__dict__["__getattr__"] = lambda name: type(name, (), {})
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


def nanotron(file: str, _: int) -> dict[str, Any]:
    """nanotron's own configuration, of a checkout whose src/ is on PYTHONPATH."""
    sys.meta_path.append(StandIns())
    from nanotron.config import get_config_from_file

    read = get_config_from_file(file)
    degrees, model = read.parallelism, read.model.model_config
    return {
        "degrees": [degrees.dp, degrees.tp, degrees.pp],
        "mode": degrees.tp_mode.name,
        "engine": type(degrees.pp_engine).__name__,
        "again": degrees.recompute_layer,
        "batch": [read.tokens.micro_batch_size, read.global_batch_size],
        "zero": read.optimizer.zero_stage,
        "dtype": str(read.model.dtype),
        "model": [type(model).__name__, model.num_hidden_layers, model.num_key_value_heads],
        "optimizer": type(read.optimizer.optimizer_factory).__name__,
    }


READERS: dict[str, Callable[[str, int], dict[str, Any]]] = {
    "accelerate": accelerate,
    "deepspeed": deepspeed,
    "nanotron": nanotron,
}


def accepted(target: str, text: str, folder: Path, ranks: int) -> dict[str, Any]:
    """What the target reads of a file; skips the test where the target is not installed."""
    import pytest

    file = folder / f"run.{target}"
    file.write_text(text)
    python = os.environ.get("PARALLELSIM_TARGETS_PYTHON", sys.executable)
    command = [python, __file__, target, str(file), str(ranks)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == MISSING:
        pytest.skip(f"{target} is not installed (PARALLELSIM_TARGETS_PYTHON names a Python)")
    assert done.returncode == 0, done.stderr[-2000:]
    read: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return read


if __name__ == "__main__":
    try:
        print("\n" + json.dumps(READERS[sys.argv[1]](sys.argv[2], int(sys.argv[3]))))
    except ModuleNotFoundError as error:
        print(error, file=sys.stderr)
        sys.exit(MISSING)
