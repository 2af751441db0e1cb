"""The YAML of ``accelerate launch`` as a plan: FSDP, and DDP, of Hugging Face models.

Keys and defaults: accelerate 1.15.0 commands/config/config_args.py and commands/launch.py. Model
and sequence length are the program's; so is its batch, which the file states in a comment, as
``# per_device_train_batch_size=2, gradient_accumulation_steps=8``.
"""

from __future__ import annotations

import re
from typing import Any

from parallelsim.errors import SpecError
from parallelsim.exporters.accelerate import PRECISIONS
from parallelsim.exporters.torchtitan import ROTATIONS
from parallelsim.importers.run import Fields, ImportedRun, Settled
from parallelsim.importers.settings import Settings, reads
from parallelsim.model import ModelSpec
from parallelsim.yaml_io import parse_yaml

FSDP, DEGREES = "fsdp_config.fsdp_", "parallelism_config.parallelism_config_"
BATCH, STEPS = "per_device_train_batch_size", "gradient_accumulation_steps"
HARMLESS = (
    *("compute_environment", "debug", "downcast_bf16", "enable_cpu_affinity", "gpu_ids"),
    *("machine_rank", "main_process_ip", "main_process_port", "main_training_function"),
    *("rdzv_backend", "same_network", "use_cpu", "tpu_env", "tpu_use_cluster", "tpu_use_sudo"),
    *("num_machines", "deepspeed_config", "megatron_lm_config", "mpirun_config", "dynamo_config"),
    *(f"{FSDP}{name}" for name in ("auto_wrap_policy", "transformer_layer_cls_to_wrap")),
    *(f"{FSDP}{name}" for name in ("cpu_ram_efficient_loading", "sync_module_states")),
    *(f"{FSDP}{name}" for name in ("state_dict_type", "use_orig_params", "min_num_params")),
    *(f"{FSDP}{name}" for name in ("backward_prefetch", "backward_prefetch_policy")),
)
NOT_MODELLED = (
    *(f"{FSDP}{name}" for name in ("offload_params", "forward_prefetch", "ignored_modules")),
    *(f"{FSDP}activation_checkpointing_offload", f"{DEGREES}cp_backend", "fp8_config"),
)
_SHARDINGS = {
    "FULL_SHARD": (3, True),
    "SHARD_GRAD_OP": (3, False),
    "NO_SHARD": (0, True),
    "HYBRID_SHARD": (3, True),
    "HYBRID_SHARD_ZERO2": (3, False),
}
"""FSDP1's strategies, in the order of their numbers: (ZeRO, parameters freed after the forward)."""
_REPLICATED = "HYBRID_SHARD"


def run_of_accelerate(settings: Settings, model: ModelSpec | None) -> ImportedRun:
    """The run that a configuration's values, and the comments of its text, describe.

    Args:
        settings: the file.
        model: what is trained, which the file does not say.

    Raises:
        SpecError: no model, no batch, another way to train than FSDP and DDP.
    """
    kind = settings.choice("distributed_type", ("FSDP", "MULTI_GPU"), "FSDP")
    if model is None:
        message = "holds no model, the program has it; name it with --model"
        raise SpecError(message, file=settings.file)
    plan = _plan(settings, is_sharded=kind == "FSDP")
    num_gpus = settings.whole("num_processes") if settings.has("num_processes") else None
    passed_over = (HARMLESS, NOT_MODELLED)
    return settings.run(model, plan, "torchtitan", passed_over, num_gpus=num_gpus)


import_accelerate = reads(parse_yaml, run_of_accelerate)


def _plan(settings: Settings, *, is_sharded: bool) -> tuple[Fields, Settled]:
    names = {word: name for name, word in PRECISIONS.items()} | {"fp16": "fp16"}
    precision = names[settings.choice("mixed_precision", tuple(names), "no")]
    rotations = {word: kind for kind, word in ROTATIONS.items()}
    rotation = settings.choice(f"{DEGREES}cp_comm_strategy", tuple(rotations), "allgather")
    cp = settings.whole(f"{DEGREES}cp_size", 1)
    backend = settings.value("dynamo_config.dynamo_backend", "NO")
    settings.read.add("dynamo_config.dynamo_use_regional_compilation")
    settings.read.add(f"{DEGREES}dp_shard_size")
    again = settings.flag(f"{FSDP}activation_checkpointing")
    micro, steps = _batch(settings)
    fields: dict[str, Any] = {
        "tp": settings.whole(f"{DEGREES}tp_size", 1),
        "cp": cp,
        "pp": 1,
        "precision": precision,
        "grad_dtype": "fp32" if precision == "fp32" or not is_sharded else "bf16",
        "cp_comm_type": rotations[rotation] if cp > 1 else "p2p",
        "recompute": "full" if again else "none",
        "compile": str(backend).upper() == "INDUCTOR",
        "micro_batch_size": micro,
        "global_batch_size": None,
    }
    zero, reshard, replicas = _sharding(settings) if is_sharded else (0, True, 1)

    def settled(fields: Fields, dp: int) -> Fields:
        many = dp * int(fields["cp"]) > 1
        return fields | {
            "zero": zero if many else 0,
            "reshard_after_forward": reshard or not many,
            "dp_replicate": replicas if zero and many else 1,
            "overlap_grad_reduce": many,
            "overlap_param_gather": many and zero > 0,
            "global_batch_size": micro * steps * dp,
        }

    return fields, settled


def _sharding(settings: Settings) -> tuple[int, bool, int]:
    """(ZeRO, whether parameters are freed after the forward, replicas of the sharded groups)."""
    replicas = settings.whole(f"{DEGREES}dp_replicate_size", 1)
    freed = f"{FSDP}reshard_after_forward"
    if settings.whole(f"{FSDP}version", 1) == 2:
        return 3, settings.flag(freed, True), replicas
    numbered = {str(n): name for n, name in enumerate(_SHARDINGS, 1)}
    key = f"{FSDP}sharding_strategy" if settings.has(f"{FSDP}sharding_strategy") else freed
    word = str(settings.value(key, "FULL_SHARD"))
    name = numbered.get(word, word)
    if name not in _SHARDINGS:
        raise settings.error(key, f"expected {', '.join(_SHARDINGS)}, got {word[:40]!r}")
    if name.startswith(_REPLICATED):
        replicas = settings.whole("num_machines", 1)
    return *_SHARDINGS[name], replicas


def _batch(settings: Settings) -> tuple[int, int]:
    """(sequences of a micro-batch, micro-batches of a step), as a comment states them."""
    found = {
        name: re.search(rf"^#.*\b{name}\s*[=:]\s*(\d{{1,7}})\b", settings.text, re.M)
        for name in (BATCH, STEPS)
    }
    micro, steps = (int(match[1]) if match else 0 for match in found.values())
    if not micro:
        message = f"is the program's: write it into the file, as '# {BATCH}=2, {STEPS}=8'"
        raise settings.error(BATCH, message)
    if not steps:
        settings.notes.append(f"{STEPS} is the program's: taken as 1")
    return micro, steps or 1
