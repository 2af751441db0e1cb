"""nanotron's YAML as a model and a plan.

Fields and defaults: src/nanotron/config/*.py of huggingface/nanotron, main 2411b022 (2026-04).
"""

from __future__ import annotations

import math
from typing import Any

from parallelsim.alike import known_as, with_length_of
from parallelsim.exporters.nanotron import ENGINES
from parallelsim.exporters.torchtitan_models import Flavor
from parallelsim.importers.run import Fields, ImportedRun, Settled
from parallelsim.importers.settings import Settings, reads
from parallelsim.model import ModelSpec
from parallelsim.stage_split import by_cost, stage_split
from parallelsim.yaml_io import parse_yaml

CONFIG = "model.model_config"
HARMLESS = (
    *("general", "checkpoints", "data_stages", "logging", "metrics_logging", "lighteval"),
    *("s3_upload", "profiler", "tokenizer", "optimizer", "tokens", "model.init_method"),
    *("model.make_vocab_size_divisible_by", CONFIG, "slurm"),
)
NOT_MODELLED = (
    *("model.ddp_bucket_cap_mb", "parallelism.tp_recompute_allgather"),
    "parallelism.moe_layer_recompute",
    *(f"{CONFIG}.{name}" for name in ("moe_config", "sliding_window_size", "attention_bias")),
)


_USUAL = {"model.ddp_bucket_cap_mb": 25, "parallelism.tp_recompute_allgather": True}
"""Defaults of those that are not modelled."""


def run_of_nanotron(settings: Settings, model: ModelSpec | None) -> ImportedRun:
    """The run that a configuration's values describe; ``model`` in place of its own, but for the
    sequence length.

    Raises:
        SpecError: a model that is no Llama, values that are none of nanotron's.
    """
    length = settings.whole("tokens.sequence_length")
    known = model.with_seq_length(length) if model else _llama(settings, length)
    fields, settled = _plan(settings, known)
    degrees = [fields[name] for name in ("tp", "cp", "pp")]
    num_gpus = settings.whole("parallelism.dp") * math.prod(degrees)
    settings.pass_over(_USUAL)
    passed_over = (HARMLESS, NOT_MODELLED)
    is_known = model is not None or bool(known_as(known))
    plan = (fields, settled)
    return settings.run(known, plan, "nanotron", passed_over, is_known=is_known, num_gpus=num_gpus)


import_nanotron = reads(parse_yaml, run_of_nanotron)


def _llama(settings: Settings, length: int) -> ModelSpec:
    """The model; one of the catalogue at this length where they are alike."""
    if not settings.flag(f"{CONFIG}.is_llama_config"):
        message = "only Llama's are read; name the model with --model"
        raise settings.error(f"{CONFIG}.is_llama_config", message)
    settings.choice(f"{CONFIG}.hidden_act", ("silu",), "silu")
    hidden, heads = (
        settings.whole(f"{CONFIG}.{n}") for n in ("hidden_size", "num_attention_heads")
    )
    if hidden % heads:
        raise settings.error(f"{CONFIG}.num_attention_heads", f"{heads} do not divide {hidden}")
    groups = settings.whole(f"{CONFIG}.num_key_value_heads", heads)
    sizes = (settings.whole(f"{CONFIG}.num_hidden_layers"), hidden, heads, groups, hidden // heads)
    llama = Flavor(
        *("llama", "imported", *sizes, settings.whole(f"{CONFIG}.intermediate_size")),
        vocab_size=settings.whole(f"{CONFIG}.vocab_size"),
        rotary_base=settings.number(f"{CONFIG}.rope_theta", 10_000.0),
        tied=settings.flag(f"{CONFIG}.tie_word_embeddings"),
    )
    model = llama.model(length)
    return with_length_of(known[0], model) if (known := known_as(model)) else model


def _plan(settings: Settings, model: ModelSpec) -> tuple[Fields, Settled]:
    section = "parallelism"
    pp = settings.whole(f"{section}.pp")
    engines = {word: name for name, word in ENGINES.items() if name != "none"}
    engine = engines[settings.choice(f"{section}.pp_engine", tuple(engines), "afab")]
    settings.read.add(f"{section}.tp_linear_async_communication")  # goes with REDUCE_SCATTER
    modes = ("ALL_REDUCE", "REDUCE_SCATTER", "all_reduce", "reduce_scatter")
    scatters = settings.choice(f"{section}.tp_mode", modes, modes[0]).upper() == modes[1]
    tp, micro = settings.whole(f"{section}.tp"), settings.whole("tokens.micro_batch_size")
    steps = settings.whole("tokens.batch_accumulation_per_replica")
    dtypes = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
    dtype = dtypes[settings.choice("model.dtype", tuple(dtypes), "bfloat16")]
    whole = settings.flag("optimizer.accumulate_grad_in_fp32") or dtype == "fp32"
    fields: dict[str, Any] = {
        "tp": tp,
        "cp": settings.whole(f"{section}.context_parallel_size", 1),
        "pp": pp,
        "ep": settings.whole(f"{section}.expert_parallel_size", 1),
        "schedule": engine if pp > 1 else "none",
        "sequence_parallel": scatters and tp > 1,
        "recompute": "full" if settings.flag(f"{section}.recompute_layer") else "none",
        "precision": dtype,
        "grad_dtype": "fp32" if whole else "bf16",
        "zero": settings.whole("optimizer.zero_stage", 0, low=0),
        "micro_batch_size": micro,
        "global_batch_size": None,
    }
    fields |= _stages(settings, model, pp)

    def settled(fields: Fields, dp: int) -> Fields:
        many = dp * int(fields["cp"]) > 1
        return fields | {"global_batch_size": micro * steps * dp, "overlap_grad_reduce": many}

    return fields, settled


def _stages(settings: Settings, model: ModelSpec, pp: int) -> dict[str, Any]:
    """The stages that nanotron cuts by cost."""
    if pp > model.num_layers:
        raise settings.error("parallelism.pp", f"{pp} stages of {model.num_layers} layers")
    if pp > 1 and len(set((cut := by_cost(model, pp))[1:-1])) > 1:
        shown = " + ".join(map(str, cut))
        settings.notes.append(f"stages of {shown} layers: those between the ends taken as equal")
    return stage_split(model, pp, 1, "by-cost")
