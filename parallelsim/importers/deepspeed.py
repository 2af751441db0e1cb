"""DeepSpeed's JSON configuration as a plan; the model is the program's and has to be named.

Keys, defaults and what follows from them: runtime/config.py, runtime/zero/config.py and
runtime/engine.py (``get_data_types``, ``_do_optimizer_sanity_check``) of DeepSpeed 0.19.8.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parallelsim.errors import SpecError
from parallelsim.importers.run import Fields, ImportedRun, Settled
from parallelsim.importers.settings import Settings, reads
from parallelsim.model import ModelSpec
from parallelsim.yaml_io import parse_json

BATCH, MICRO_BATCH = "train_batch_size", "train_micro_batch_size_per_gpu"
STEPS = "gradient_accumulation_steps"
ZERO, PIPELINE = "zero_optimization", "pipeline"
HARMLESS = (
    *("steps_per_print", "wall_clock_breakdown", "gradient_clipping", "optimizer.params"),
    *("scheduler", "prescale_gradients", "gradient_predivide_factor", "tensorboard", "wandb"),
    *("csv_monitor", "comet", "monitor_config", "flops_profiler", "dump_state", "seed"),
    *("memory_breakdown", "checkpoint", "nebula", "comms_logger", "curriculum_learning"),
    *("data_efficiency", "elasticity", "aio", "fp16", "bf16", "bfloat16", "zero_allow_comm"),
    *("zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "data_types"),
    *("pipeline.seed_layers", "pipeline.partition", "inference_max_tokens", "disable_allgather"),
    *("communication_data_type", "activation_checkpointing", "sparse_gradients"),
    *(f"{ZERO}.{name}" for name in ("load_from_fp32_weights", "elastic_checkpoint")),
    f"{ZERO}.stage3_gather_16bit_weights_on_model_save",
    f"{ZERO}.stage3_gather_fp16_weights_on_model_save",
)
NOT_MODELLED = (
    *(ZERO, "amp", "compression_training", "sparse_attention", "compile", "hybrid_engine"),
    *("tensor_parallel", "sequence_parallel_size", PIPELINE),
    *(f"activation_checkpointing.{name}" for name in ("cpu_checkpointing", "synchronize")),
    *(f"activation_checkpointing.{name}" for name in ("partition_activations",)),
    "activation_checkpointing.contiguous_memory_optimization",
)
_OPTIMIZERS = {"adam": "adam", "adamw": "adam", "sgd": "sgd", "muon": "muon"}


def run_of_deepspeed(settings: Settings, model: ModelSpec | None) -> ImportedRun:
    """The run that a configuration's values describe.

    Args:
        settings: the file.
        model: what is trained, which the file does not say.

    Raises:
        SpecError: no model, values that contradict each other.
    """
    if model is None:
        message = "holds no model, the program builds it; name it with --model"
        raise SpecError(message, file=settings.file)
    return settings.run(model, _plan(settings, model), "deepspeed", (HARMLESS, NOT_MODELLED))


import_deepspeed = reads(parse_json, run_of_deepspeed)


def _plan(settings: Settings, model: ModelSpec) -> tuple[Fields, Settled]:
    stages = settings.value(f"{PIPELINE}.stages", 1)
    pp = 1 if stages == "auto" else settings.whole(f"{PIPELINE}.stages", 1)
    fields: dict[str, Any] = {
        "tp": settings.whole("tensor_parallel.autotp_size", 0, low=0) or 1,
        "cp": 1,
        "pp": pp,
        "recompute": _recompute(settings, model, pp),
        "optimizer": _optimizer(settings),
    }
    fields |= _precision(settings)
    fields |= _sharding(settings, fields)
    batches = {key: settings.whole(key) for key in (BATCH, MICRO_BATCH, STEPS) if settings.has(key)}
    if BATCH not in batches and MICRO_BATCH not in batches:
        raise settings.error(BATCH, f"is needed, or {MICRO_BATCH}")
    fields |= {"micro_batch_size": 1, "global_batch_size": None}

    def settled(fields: Fields, dp: int) -> Fields:
        micro, steps = batches.get(MICRO_BATCH), batches.get(STEPS, 1)
        batch = batches.get(BATCH) or (micro or 1) * steps * dp
        micro = micro or batch // (steps * dp)
        if STEPS in batches and batch != micro * steps * dp:
            words = f"{micro} a GPU x {steps} steps x {dp} replicas = {micro * steps * dp}"
            raise settings.error(BATCH, f"{batch} contradicts {words}")
        return fields | {"micro_batch_size": micro, "global_batch_size": batch}

    return fields, settled


def _precision(settings: Settings) -> dict[str, Any]:
    """Formats of the GEMMs and of the gradients, which are summed in that of the GEMMs where no
    other is given.
    """
    on = [name for name in ("fp16", "bf16", "bfloat16") if settings.flag(f"{name}.enabled")]
    if len(on) > 1:
        raise settings.error(f"{on[0]}.enabled", f"contradicts {on[1]}.enabled; keep one")
    name = on[0].replace("bfloat16", "bf16") if on else "fp32"
    choices = ("fp32", "fp16", "bf16")
    grads = settings.choice("data_types.grad_accum_dtype", choices, name)
    if settings.has("communication_data_type"):
        sent = settings.choice("communication_data_type", choices, grads)
        if sent != grads:
            settings.notes.append(f"communication_data_type {sent}: taken as summed, in {grads}")
    return {"precision": name, "grad_dtype": "fp32" if grads == "fp32" else "bf16"}


def _sharding(settings: Settings, fields: Mapping[str, Any]) -> dict[str, Any]:
    """ZeRO; a bf16 pipeline without it shards the optimizer all the same."""
    stage = settings.whole(f"{ZERO}.stage", 0, low=0)
    if stage > 3:
        raise settings.error(f"{ZERO}.stage", f"expected 0 to 3, got {stage}")
    prefetch = settings.number(f"{ZERO}.stage3_prefetch_bucket_size", 5e7)
    overlaps = settings.flag(f"{ZERO}.overlap_comm", stage == 3)
    device = settings.value(f"{ZERO}.offload_optimizer.device", "none")
    offloads = settings.flag(f"{ZERO}.cpu_offload") or device in ("cpu", "nvme")
    settings.read.add(f"{ZERO}.offload_optimizer.pin_memory")
    if device == "nvme":
        settings.notes.append(f"{ZERO}.offload_optimizer.device nvme: taken as cpu")
    if stage == 0 and fields["pp"] > 1 and fields["precision"] == "bf16":
        settings.notes.append("a bf16 pipeline has its optimizer sharded: taken as ZeRO 1")
        stage = 1
    return {
        "zero": stage,
        "overlap_grad_reduce": overlaps and stage > 0,
        "overlap_param_gather": stage == 3 and prefetch > 0,
        "optimizer_offload_pct": 100 if offloads and stage else 0,
    }


def _recompute(settings: Settings, model: ModelSpec, pp: int) -> str:
    """``full`` where the program is told that it checkpoints layers."""
    key, interval = "activation_checkpointing.number_checkpoints", 0
    number = settings.whole(key, 0, low=0)
    if pp > 1:
        key = f"{PIPELINE}.activation_checkpoint_interval"
        interval = settings.whole(key, 0, low=0)
    if number not in (0, model.num_layers) or interval > 1:
        settings.notes.append(f"{key} {interval or number}: taken as a checkpoint a layer")
    if not (number or interval):
        settings.notes.append("recomputation is the program's: taken as none")
    return "full" if number or interval else "none"


def _optimizer(settings: Settings) -> str:
    if not settings.has("optimizer.type"):
        settings.notes.append("optimizer.type is the program's: taken as Adam")
        return "adam"
    name = str(settings.value("optimizer.type"))
    if name.lower() not in _OPTIMIZERS:
        settings.notes.append(f"optimizer.type {name[:40]}: taken as Adam")
    return _OPTIMIZERS.get(name.lower(), "adam")
