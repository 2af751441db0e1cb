"""A plan as a configuration of torchtitan: a TOML file, or a Python module of today's main.

Release 0.2.2 reads TOML (torchtitan/config/job_config.py); main has Python functions instead, which
return a ``Trainer.Config`` (torchtitan/config/README.md) and run flex attention and CUDA graphs by
default. ``tests/tools_torchtitan.py`` gives both kinds to torchtitan's own parser and checks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from parallelsim.exporters.target import Inputs, checked_heading, overlap_refusals, unsaid
from parallelsim.exporters.torchtitan_models import (
    MAIN,
    RELEASE,
    Flavor,
    described,
    flavor_of,
)
from parallelsim.exporters.torchtitan_python import python_module
from parallelsim.model import ModelSpec
from parallelsim.plan import Plan

VERSIONS = (RELEASE, MAIN)
SCHEDULES = {
    "none": "1F1B",
    "1f1b": "1F1B",
    "gpipe": "GPipe",
    "interleaved-1f1b": "Interleaved1F1B",
}
ROTATIONS = {"p2p": "alltoall", "all-gather": "allgather"}
DTYPES = {"bf16": "bfloat16", "fp32": "float32", "fp8-current": "bfloat16"}
FLOAT8 = "quantize.linear.float8"
SAID = (
    *(
        "vpp",
        "layout",
        "chunk_layers",
        "ep",
        "sequence_parallel",
        "zero",
        "recompute",
        "recompute_num_layers",
        "precision",
    ),
    *("cp_comm_type", "tp_comm_overlap", "cross_entropy_fusion", "compile", "dp_replicate"),
    *("reshard_after_forward", "overlap_grad_reduce", "overlap_param_gather"),
)


def export_torchtitan(*inputs: *Inputs, version: str = RELEASE) -> str:
    """A complete configuration that trains ``model`` with torchtitan as the plan says.

    Raises:
        ExportError: the version is unknown, or torchtitan cannot run the plan; says why.
    """
    model, _, _, plan = inputs
    flavor = flavor_of(model, version)
    unknown = f"no model that it registers has these layers (known: {described()})"
    of_plan = refusals(model, plan, flavor, version) if flavor else ()
    of_model = () if flavor else (unknown,)
    head = checked_heading("torchtitan", version, VERSIONS, inputs, of_model, of_plan)
    assert flavor is not None
    if version == MAIN:
        return python_module(
            head,
            flavor,
            sections(model, plan, flavor),
            sequence_parallel=plan.sequence_parallel or plan.tp == 1,
        )
    head += ["# Start it on every node: torchrun ... -m torchtitan.train --job.config_file FILE"]
    return "\n".join(head) + "\n\n" + toml_text(sections(model, plan, flavor))


def refusals(model: ModelSpec, plan: Plan, flavor: Flavor, version: str) -> Iterator[str]:
    """What of a valid plan torchtitan cannot run precisely."""
    many, split = plan.dp * plan.cp > 1, plan.tp * plan.pp * plan.cp * plan.ep > 1
    if plan.pp > 1 and version in flavor.no_pipeline_in:
        yield f"it has no pipeline of {flavor.module} (pp={plan.pp})"
    if plan.zero == 0 and version == RELEASE:
        if many and split:
            yield "zero=0 over several replicas (DDP) goes with no other parallelism; use zero=3"
        if not many and split and plan.precision != "fp32":
            yield "without data parallelism it trains tp and pp in fp32 alone; use dp > 1, zero=3"
    if plan.zero == 0 and plan.cp > 1:
        yield f"cp={plan.cp} always shards parameters (zero=3)"
    if plan.dp % plan.dp_replicate:
        yield f"dp={plan.dp} is no multiple of dp_replicate={plan.dp_replicate}"
    elif plan.dp // plan.dp_replicate * plan.cp * plan.tp % plan.ep:
        shards = f"dp / dp_replicate * cp * tp = {plan.dp // plan.dp_replicate * plan.cp * plan.tp}"
        yield f"ep={plan.ep} does not divide {shards}"
    if plan.tp > 1 and not plan.sequence_parallel and version == RELEASE:
        yield f"tp={plan.tp} is always with sequence_parallel"
    if plan.tp_comm_overlap and not plan.compile:
        yield "tp_comm_overlap (asynchronous TP) needs compile"
    if version == MAIN and plan.cp > 1 and plan.cp_comm_type != "all-gather":
        yield f"its context parallelism all-gathers keys and values, not {plan.cp_comm_type}"
    if version == MAIN and plan.precision == "fp8-current":
        yield "its float8 scales rows, not whole tensors (fp8-current)"
    if plan.recompute_num_layers:
        yield from _every_nth(model, plan, version)
    tokens = plan.tp * (2 * plan.cp if plan.cp > 1 or version == RELEASE else 1)
    if model.seq_length % tokens:
        yield f"sequences of {model.seq_length} tokens are no multiple of {tokens} (tp and 2 cp)"
    yield from overlap_refusals(plan, gathers=plan.zero > 0)
    yield from unsaid(plan, SAID)


def _every_nth(model: ModelSpec, plan: Plan, version: str) -> Iterator[str]:
    """It recomputes every n-th layer of a rank."""
    number = plan.recompute_num_layers
    if plan.layout != "even":
        yield f"it recomputes every n-th layer, not {number} of stages that differ"
        return
    layers = model.num_layers // (plan.pp * plan.vpp)
    if version == MAIN:
        yield f"it recomputes all layers or operators, not {number} layers of a stage"
    elif layers % number:
        yield f"it recomputes every n-th layer: {number} do not divide the {layers} of a stage"


def sections(model: ModelSpec, plan: Plan, flavor: Flavor) -> dict[str, dict[str, Any]]:
    """The configuration, section by section, as release 0.2.2 names it."""
    shard = plan.dp // plan.dp_replicate if plan.zero else 1
    batch = plan.micro_batch_size * (plan.num_micro_batches if plan.pp > 1 else 1)
    result: dict[str, dict[str, Any]] = {
        "model": {
            "name": flavor.module,
            "flavor": flavor.flavor,
            "hf_assets_path": "./assets/hf/EDIT-ME",
            "converters": [FLOAT8] if plan.precision == "fp8-current" else [],
        },
        "optimizer": {"name": "AdamW", "lr": 1e-4},
        "lr_scheduler": {"warmup_steps": 10},
        "training": {
            "local_batch_size": batch,
            "global_batch_size": plan.global_batch_size,
            "seq_len": model.seq_length,
            "steps": 50,
            "max_norm": 1.0,
            "dataset": "c4_test",
            "dtype": "float32",
            "mixed_precision_param": DTYPES[plan.precision],
            "mixed_precision_reduce": "float32",
        },
        "parallelism": _parallelism(model, plan, shard),
        "activation_checkpoint": _checkpoint(model, plan),
        "compile": _compile(plan),
        "metrics": {"log_freq": 1},
        "checkpoint": {"enable": False},
    }
    if plan.precision == "fp8-current":
        result[FLOAT8] = {"recipe_name": "tensorwise", "filter_fqns": ["output"]}
    return result


def _parallelism(model: ModelSpec, plan: Plan, shard: int) -> dict[str, Any]:
    reshard = "always" if plan.reshard_after_forward else "never"
    data: dict[str, Any] = {
        "data_parallel_replicate_degree": plan.dp_replicate if plan.zero else plan.dp,
        "data_parallel_shard_degree": shard,
        "fsdp_reshard_after_forward": reshard,
        "tensor_parallel_degree": plan.tp,
        "enable_async_tensor_parallel": plan.tp_comm_overlap,
        "pipeline_parallel_degree": plan.pp,
        "context_parallel_degree": plan.cp,
        "context_parallel_rotate_method": ROTATIONS[plan.cp_comm_type],
        "expert_parallel_degree": plan.ep,
    }
    if plan.pp > 1:
        data |= {
            "pipeline_parallel_schedule": SCHEDULES[plan.schedule],
            "pipeline_parallel_microbatch_size": plan.micro_batch_size,
        }
    if plan.layout == "free":
        data["module_fqns_per_model_part"] = _parts(plan.chunk_layers)
    elif plan.pp > 1:
        data |= {
            "pipeline_parallel_layers_per_stage": model.num_layers // (plan.pp * plan.vpp),
            "pipeline_parallel_first_stage_less_layers": 0,
            "pipeline_parallel_last_stage_less_layers": 0,
        }
    return data


def _parts(chunks: Sequence[int]) -> list[list[str]]:
    """Names of the modules of each stage; layers are numbered through."""
    ends = list(accumulate(chunks))
    parts = [
        [f"layers.{i}" for i in range(end - size, end)]
        for size, end in zip(chunks, ends, strict=True)
    ]
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "output"]
    return parts


def _checkpoint(model: ModelSpec, plan: Plan) -> dict[str, Any]:
    if plan.recompute == "selective":
        return {"mode": "selective", "selective_ac_option": "op"}
    if plan.recompute_num_layers:
        layers = model.num_layers // (plan.pp * plan.vpp)
        every = str(layers // plan.recompute_num_layers)
        return {"mode": "selective", "selective_ac_option": every}
    return {"mode": plan.recompute}


def _compile(plan: Plan) -> dict[str, Any]:
    parts = {"model": plan.compile, "loss": plan.cross_entropy_fusion}
    components = [name for name, on in parts.items() if on]
    return {"enable": bool(components), "components": components or list(parts)}


def toml_text(data: Mapping[str, Mapping[str, Any]]) -> str:
    """Sections of plain values in TOML 1.0."""
    blocks = []
    for section, values in data.items():
        lines = [f"{name} = {_toml(value)}" for name, value in values.items()]
        blocks.append("\n".join([f"[{section}]", *lines]))
    return "\n\n".join(blocks) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return repr(value)
