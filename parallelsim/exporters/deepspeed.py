"""A plan as DeepSpeed's JSON configuration.

Keys: docs/_pages/config-json.md and runtime/config.py of DeepSpeed 0.19.8. The file says nothing of
the model, which the program that calls ``deepspeed.initialize`` builds; ``pipeline.stages`` and
``pipeline.partition`` are what that program gives to its ``PipelineModule``, and
``activation_checkpointing`` is what it gives to ``deepspeed.checkpointing.configure``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from parallelsim.exporters.target import Inputs, checked_heading, unsaid
from parallelsim.model import ModelSpec
from parallelsim.plan import Plan

RELEASE = "0.19.8"
SAID = (
    *("zero", "recompute", "precision", "grad_dtype", "optimizer_offload_pct"),
    *("overlap_grad_reduce", "overlap_param_gather"),
)
GRAD_FORMATS = {("fp16", "bf16"): "fp16"}
"""Where 16-bit gradients are not bf16."""
PREFETCH_VALUES = 50_000_000
"""DeepSpeed's own default of ``stage3_prefetch_bucket_size``."""


def export_deepspeed(*inputs: *Inputs, version: str = RELEASE) -> str:
    """The configuration that DeepSpeed trains ``model`` with as the plan says.

    Raises:
        ExportError: the version is unknown, or DeepSpeed cannot run the plan; says why.
    """
    model, _, _, plan = inputs
    checked_heading("deepspeed", version, (RELEASE,), inputs, (), refusals(plan))
    return json.dumps(configuration(model, plan), indent=2) + "\n"


def refusals(plan: Plan) -> Iterator[str]:
    """What of a valid plan the file has no word for, or DeepSpeed does not run."""
    if plan.tp > 1 and plan.pp > 1:
        yield f"no key says tp={plan.tp} of a pipeline (pp={plan.pp}): its AutoTP has no stages"
    whole = plan.precision if plan.precision == "fp32" else "bf16"
    if plan.zero == 0 and plan.grad_dtype != whole:
        yield (
            f"without ZeRO it keeps gradients as it keeps parameters ({plan.precision}), "
            f"not grad_dtype={plan.grad_dtype}; use zero=1"
        )
    if plan.zero == 0 and plan.pp > 1 and plan.precision == "bf16":
        yield "its bf16 pipeline shards the optimizer (runtime/bf16_optimizer.py); use zero=1"
    if plan.zero == 0 and plan.overlap_grad_reduce:
        yield (
            "without ZeRO it reduces gradients after the backward pass; "
            "--fix overlap_grad_reduce=false"
        )
    if plan.zero < 3 and plan.overlap_param_gather:
        yield (
            f"zero={plan.zero} gathers parameters after the step (runtime/zero/stage_1_and_2.py); "
            "--fix overlap_param_gather=false"
        )
    if plan.optimizer_offload_pct not in (0, 100):
        yield f"it offloads the whole optimizer, not {plan.optimizer_offload_pct} %"
    elif plan.optimizer_offload_pct and plan.zero == 0:
        yield "it offloads the optimizer of ZeRO (zero 1 to 3) alone"
    yield from unsaid(plan, SAID)


def configuration(model: ModelSpec, plan: Plan) -> dict[str, Any]:
    """The file as a mapping; :func:`refusals` must have found nothing."""
    grads = GRAD_FORMATS.get((plan.precision, plan.grad_dtype), plan.grad_dtype)
    data: dict[str, Any] = {
        "train_batch_size": plan.global_batch_size,
        "train_micro_batch_size_per_gpu": plan.micro_batch_size,
        "gradient_accumulation_steps": plan.num_micro_batches,
        "zero_optimization": _zero(plan),
        "bf16": {"enabled": plan.precision == "bf16"},
        "fp16": {"enabled": plan.precision == "fp16"},
        "communication_data_type": grads,
        "data_types": {"grad_accum_dtype": grads},
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": 1e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1},
        },
        "gradient_clipping": 1.0,
        "steps_per_print": 1,
        "wall_clock_breakdown": False,
    }
    if plan.recompute == "full":
        data["activation_checkpointing"] = {
            "partition_activations": False,
            "cpu_checkpointing": False,
            "number_checkpoints": model.num_layers,
        }
    if plan.pp > 1:
        data["pipeline"] = {
            "stages": plan.pp,
            "partition": "type:transformer",
            "activation_checkpoint_interval": int(plan.recompute == "full"),
        }
    if plan.tp > 1:
        data["tensor_parallel"] = {"autotp_size": plan.tp}
    return data


def _zero(plan: Plan) -> dict[str, Any]:
    data: dict[str, Any] = {"stage": plan.zero}
    if plan.zero:
        data["overlap_comm"] = plan.overlap_grad_reduce
    if plan.zero == 3:
        data["stage3_prefetch_bucket_size"] = PREFETCH_VALUES * plan.overlap_param_gather
    if plan.optimizer_offload_pct:
        data["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    return data
