"""A TOML configuration of torchtitan (releases 0.1 and 0.2) as a model and a plan.

Keys and defaults are those of release 0.2.2, torchtitan/config/job_config.py.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

from parallelsim.alike import known_as, with_length_of
from parallelsim.errors import SpecError
from parallelsim.exporters.target import printable
from parallelsim.exporters.torchtitan import DTYPES, FLOAT8, ROTATIONS, SCHEDULES
from parallelsim.exporters.torchtitan_models import described, registered
from parallelsim.importers.run import Fields, ImportedRun, Settled
from parallelsim.importers.settings import Settings, reads
from parallelsim.model import ModelSpec

HARMLESS = (
    *("job", "profiling", "metrics", "optimizer.lr", "optimizer.beta1", "optimizer.beta2"),
    *("optimizer.eps", "optimizer.weight_decay", "lr_scheduler", "training.dataset"),
    *("training.dataset_path", "training.max_norm", "training.steps", "training.gc_freq"),
    *("training.gc_debug", "training.dataloader", "training.seed", "training.deterministic"),
    *("model.hf_assets_path", "model.tokenizer_path", "model.print_after_conversion"),
    *("checkpoint", "comm", "memory_estimation", "validation", "debug", "experimental"),
    *("model.norm_type", "training.mixed_precision_reduce", "compile.backend", FLOAT8),
    *("activation_checkpoint.preserve_rng_state", "activation_checkpoint.determinism_check"),
    *("activation_checkpoint.debug", "quantize.linear.float8", "float8", "training.warmup_steps"),
    *("activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns",),
)
NOT_MODELLED = (
    *("fault_tolerance", "optimizer.implementation", "optimizer.early_step_in_backward"),
    *("parallelism.disable_loss_parallel", "training.enable_cpu_offload"),
    *("parallelism.pipeline_parallel_schedule_csv", "parallelism.context_parallel_load_balancer"),
    *("parallelism.pipeline_parallel_expert_parallel_overlap", "quantize.grouped_mm"),
    *("activation_checkpoint.early_stop", "parallelism.pipeline_parallel_split_points"),
    *("parallelism.expert_parallel_comm_backend",),
)
_FLOAT8_NAMES = (FLOAT8, "float8")


def run_of_torchtitan(settings: Settings, model: ModelSpec | None) -> ImportedRun:
    """The run that a configuration's values describe; ``model`` in place of its flavor.

    Raises:
        SpecError: a flavor that is not described, values that contradict each other.
    """
    known = _model(settings, model)
    fields, settled = _plan(settings, known)
    return settings.run(
        known,
        (fields, settled),
        "torchtitan",
        (HARMLESS, NOT_MODELLED),
        is_known=model is not None or bool(known_as(known)),
        num_gpus=_num_gpus(settings, fields),
    )


def parse_toml(text: str, file: str) -> dict[str, Any]:
    """The mapping that a TOML text holds.

    Raises:
        SpecError: it is no TOML.
    """
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"not valid TOML: {str(error)[:120]}", file=file) from None


import_torchtitan = reads(parse_toml, run_of_torchtitan)


def _model(settings: Settings, given: ModelSpec | None) -> ModelSpec:
    module, flavor = settings.value("model.name", "llama3"), settings.value("model.flavor")
    length = settings.whole("training.seq_len", 2048)
    if given is not None:
        return given.with_seq_length(length)
    row = registered(str(module), str(flavor or "debugmodel"))
    if row is None:
        raise settings.error(
            "model.flavor",
            f"{printable(str(module))} {printable(str(flavor))} is not described here "
            f"({described()}); name the model with --model",
        )
    model = row.model(length)
    return with_length_of(known[0], model) if (known := known_as(model)) else model


def _degrees(settings: Settings) -> dict[str, int]:
    section = "parallelism"
    names = {"tp": "tensor", "cp": "context", "pp": "pipeline", "ep": "expert"}
    return {
        key: settings.whole(f"{section}.{word}_parallel_degree", 1) for key, word in names.items()
    }


def _plan(settings: Settings, model: ModelSpec) -> tuple[Fields, Settled]:
    fields: dict[str, Any] = dict(_degrees(settings))
    settings.read.add("parallelism.expert_tensor_parallel_degree")
    fields["etp"] = settings.whole("parallelism.expert_tensor_parallel_degree", 1)
    fields["sequence_parallel"] = fields["tp"] > 1
    fields |= _precision(settings) | _compile(settings) | _stages(settings, model, fields["pp"])
    fields |= _recompute(settings, model, fields)
    rotations = {word: kind for kind, word in ROTATIONS.items()}
    key = "parallelism.context_parallel_rotate_method"
    kind = rotations[settings.choice(key, tuple(rotations), "allgather")]
    fields["cp_comm_type"] = kind if fields["cp"] > 1 else "p2p"
    local = settings.whole("training.local_batch_size", _old_batch(settings))
    micro = settings.whole("parallelism.pipeline_parallel_microbatch_size", 1)
    fields["micro_batch_size"] = micro if fields["pp"] > 1 else local
    batch = settings.whole("training.global_batch_size", -1, low=-1)
    fields["global_batch_size"] = batch if batch > 0 else None
    replicate = settings.whole("parallelism.data_parallel_replicate_degree", 1)
    shard = settings.whole("parallelism.data_parallel_shard_degree", -1, low=-1)
    reshard = settings.choice(
        "parallelism.fsdp_reshard_after_forward", ("default", "always", "never"), "default"
    )
    if settings.choice("optimizer.name", ("Adam", "AdamW"), "AdamW"):
        fields["optimizer"] = "adam"

    def settled(fields: Fields, dp: int) -> Fields:
        many = dp * fields["cp"] > 1
        shards = (shard if shard > 0 else max(dp // replicate, 1)) * fields["cp"]
        zero = 3 if many and shards > 1 else 0
        fields |= {
            "zero": zero,
            "dp_replicate": replicate if zero else 1,
            "reshard_after_forward": not zero or _reshards(reshard, fields["pp"]),
            "overlap_grad_reduce": many,
            "overlap_param_gather": many and zero > 0,
            "global_batch_size": fields["global_batch_size"] or local * dp,
        }
        return fields

    return fields, settled


def _reshards(policy: str, pp: int) -> bool:
    """``default`` keeps parameters in pipelines alone."""
    return pp == 1 if policy == "default" else policy == "always"


def _old_batch(settings: Settings) -> int:
    """Release 0.1 called it batch_size."""
    return settings.whole("training.batch_size", 8)


def _precision(settings: Settings) -> dict[str, Any]:
    converters = settings.texts("model.converters")
    if others := [name for name in converters if name not in _FLOAT8_NAMES]:
        settings.notes.append(f"model.converters {', '.join(others)[:60]}: not modelled")
    for section in ("quantize.linear.float8", "float8"):
        recipe = settings.value(f"{section}.recipe_name", "tensorwise")
        if recipe != "tensorwise" and set(converters) & set(_FLOAT8_NAMES):
            settings.notes.append(f"{section}.recipe_name {recipe!s:.40}: taken as tensorwise")
    if settings.choice("training.dtype", ("float32", "bfloat16"), "float32") == "bfloat16":
        settings.notes.append("training.dtype bfloat16: taken as float32 with 16-bit products")
    names = {word: name for name, word in DTYPES.items() if name != "fp8-current"}
    word = settings.choice("training.mixed_precision_param", tuple(names), "bfloat16")
    is_float8 = bool(set(converters) & set(_FLOAT8_NAMES))
    return {"precision": "fp8-current" if is_float8 else names[word], "grad_dtype": "fp32"}


def _compile(settings: Settings) -> dict[str, Any]:
    on = settings.flag("compile.enable", settings.flag("training.compile"))
    components = settings.texts("compile.components", ("model", "loss"))
    asynchronous = settings.flag("parallelism.enable_async_tensor_parallel")
    compiles = on and "model" in components
    if asynchronous and not compiles:
        message = "does nothing without compile.enable; taken as off"
        settings.notes.append(f"parallelism.enable_async_tensor_parallel {message}")
    return {
        "compile": compiles,
        "cross_entropy_fusion": on and "loss" in components,
        "tp_comm_overlap": asynchronous and compiles,
    }


def _stages(settings: Settings, model: ModelSpec, pp: int) -> dict[str, Any]:
    """Schedule and virtual stages; torchtitan counts embedding and head as layers by default."""
    prefix = "parallelism.pipeline_parallel_"
    names = {word: name for name, word in SCHEDULES.items() if name != "none"}
    if pp == 1:
        settings.read |= {
            f"{prefix}{n}" for n in ("schedule", "layers_per_stage", "microbatch_size")
        }
        settings.read |= {f"{prefix}{end}_stage_less_layers" for end in ("first", "last")}
        return {"schedule": "none", "vpp": 1}
    schedule = names[settings.choice(f"{prefix}schedule", tuple(names), "1F1B")]
    if parts := settings.value("parallelism.module_fqns_per_model_part"):
        settings.read |= {f"{prefix}layers_per_stage"}
        settings.read |= {f"{prefix}{end}_stage_less_layers" for end in ("first", "last")}
        return {"schedule": schedule} | _stated(settings, model, pp, parts)
    less = [
        settings.whole(f"{prefix}{end}_stage_less_layers", 1, low=0) for end in ("first", "last")
    ]
    slots = model.num_layers + sum(less)
    default = -(-slots // (pp * (2 if schedule == "interleaved-1f1b" else 1)))
    size = settings.whole(f"{prefix}layers_per_stage", default)
    vpp, rest = divmod(-(-slots // size), pp)
    if rest or vpp < 1:
        message = (
            f"{size} layers of {slots} make {-(-slots // size)} stages, not a multiple of {pp}"
        )
        raise settings.error(f"{prefix}layers_per_stage", message)
    chunks = _uneven(model.num_layers, pp * vpp, less)
    if len(set(chunks)) > 1:
        return {"schedule": schedule, "vpp": vpp, "layout": "free", "chunk_layers": chunks}
    return {"schedule": schedule, "vpp": vpp}


def _stated(settings: Settings, model: ModelSpec, pp: int, parts: Any) -> dict[str, Any]:
    """Stages whose modules are listed."""
    key = "parallelism.module_fqns_per_model_part"
    if not isinstance(parts, list) or not all(isinstance(part, list) for part in parts):
        raise settings.error(key, "expected a list of modules for each stage")
    chunks = [sum(str(name).startswith("layers.") for name in part) for part in parts]
    if len(chunks) % pp or sum(chunks) != model.num_layers:
        words = f"{len(chunks)} stages of {sum(chunks)} layers"
        expected = f"a multiple of {pp} stages and {model.num_layers} layers"
        raise settings.error(key, f"expected {expected}, got {words}")
    vpp = len(chunks) // pp
    if len(set(chunks)) == 1:
        return {"vpp": vpp}
    return {"vpp": vpp, "layout": "free", "chunk_layers": chunks}


def _uneven(num_layers: int, stages: int, less: list[int]) -> list[int]:
    """Layers of each stage (torchtitan/distributed/pipeline_parallel.py)."""
    size, extra = divmod(num_layers + sum(less), stages)
    chunks = [size + (stage < extra) for stage in range(stages)]
    chunks[0] -= less[0]
    chunks[-1] -= less[1]
    return chunks


def _recompute(settings: Settings, model: ModelSpec, fields: Mapping[str, Any]) -> dict[str, Any]:
    section = "activation_checkpoint"
    modes = ("selective", "full", "memory_budget", "none")
    mode = settings.choice(f"{section}.mode", modes, "selective")
    option = str(settings.value(f"{section}.selective_ac_option", "2"))
    settings.read.add(f"{section}.memory_budget")
    if mode == "memory_budget":
        raise settings.error(f"{section}.mode", "memory_budget is not modelled; the compiler picks")
    if mode != "selective":
        return {"recompute": mode}
    if option == "op":
        return {"recompute": "selective"}
    if not option.isdigit() or not 0 < int(option) < MAX_EVERY:
        key = f"{section}.selective_ac_option"
        raise settings.error(key, f"expected op or a number of layers, got {option[:40]!r}")
    layers, every = model.num_layers // (fields["pp"] * fields["vpp"]), int(option)
    if every == 1:
        return {"recompute": "full"}
    if layers % every:
        words = f"every {every} layers of {layers}: taken as {layers // every} of a stage"
        settings.notes.append(f"{section}.selective_ac_option: {words}")
    return {"recompute": f"full:{layers // every}" if layers >= every else "none"}


MAX_EVERY = 10**4


def _num_gpus(settings: Settings, fields: Mapping[str, Any]) -> int | None:
    """Where the file states the shards."""
    shard = settings.whole("parallelism.data_parallel_shard_degree", -1, low=-1)
    if shard < 1:
        return None
    replicate = settings.whole("parallelism.data_parallel_replicate_degree", 1)
    return int(replicate * shard * fields["tp"] * fields["cp"] * fields["pp"])
