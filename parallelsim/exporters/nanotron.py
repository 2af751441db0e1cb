"""A plan as nanotron's YAML.

Fields: src/nanotron/config/*.py of huggingface/nanotron, main 2411b022 (2026-04). nanotron cuts
layers into stages by cost on its own (models/base.py build_model), so that a pipeline is exported
only where the plan has those stages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from parallelsim.alike import are_alike
from parallelsim.exporters.target import Inputs, checked_heading, overlap_refusals, unsaid
from parallelsim.exporters.torchtitan_models import Flavor
from parallelsim.layers import Attention
from parallelsim.model import ModelSpec
from parallelsim.plan import Plan
from parallelsim.stage_split import by_cost
from parallelsim.yaml_io import dump_yaml

MAIN = "main-2026-04"
ENGINES = {"none": "1f1b", "1f1b": "1f1b", "gpipe": "afab"}
SAID = (
    *("layout", "first_stage_layers", "last_stage_layers", "sequence_parallel", "zero"),
    *("recompute", "precision", "grad_dtype", "overlap_grad_reduce", "overlap_param_gather"),
)


def export_nanotron(*inputs: *Inputs, version: str = MAIN) -> str:
    """A complete configuration that trains ``model`` with nanotron as the plan says.

    Raises:
        ExportError: the version is unknown, or nanotron cannot run the plan; says why.
    """
    model, _, _, plan = inputs
    llama = llama_of(model)
    of_model = [] if llama else ["it builds Llama's decoders: equal layers without biases"]
    of_plan = refusals(model, plan)
    head = checked_heading("nanotron", version, (MAIN,), inputs, of_model, of_plan)
    assert llama is not None
    head += ["# Start it on every node: torchrun ... run_train.py --config-file FILE"]
    head += ["# PLACEHOLDERS: data, tokenizer, checkpoints, optimizer's rates, train_steps."]
    return "\n".join(head) + "\n" + dump_yaml(configuration(model, plan, llama))


def llama_of(model: ModelSpec) -> Flavor | None:
    """The model in Llama's few numbers, where they are all there is to it."""
    first = model.layers[0]
    attention, mlp = first.attention, first.mlp
    if not isinstance(attention, Attention) or mlp is None:
        return None
    heads, h = attention.num_heads, model.hidden_size
    sizes = (model.num_layers, h, heads, attention.num_query_groups, h // heads)
    llama = Flavor(
        *("llama", model.name, *sizes, mlp.ffn_hidden_size, model.vocab_size),
        rotary_base=model.rotary_base,
        tied=model.tied_embeddings,
    )
    turned = model.position_embedding == "rope" and model.rotary_percent == 1
    turned = turned and all(getattr(layer.attention, "rope", False) for layer in model.layers)
    dropped = model.hidden_dropout or model.attention_dropout
    alike = turned and not dropped and are_alike(llama.model(model.seq_length), model)
    return llama if alike else None


def refusals(model: ModelSpec, plan: Plan) -> Iterator[str]:
    """What of a valid plan nanotron cannot run."""
    if plan.precision != "bf16":
        yield f"its attention kernel and its optimizer are for bf16, not {plan.precision}"
    if plan.pp > 1 and stages(model, plan) != (cut := by_cost(model, plan.pp)):
        yield (
            f"it cuts the {model.num_layers} layers by cost, into {_shown(cut)}, "
            f"not {_shown(stages(model, plan))}{_advice(cut)}"
        )
    yield from overlap_refusals(plan, gathers=False)
    yield from unsaid(plan, SAID)


def stages(model: ModelSpec, plan: Plan) -> list[int]:
    """Layers of each stage of a plan with layout even or first-last."""
    if plan.layout == "even":
        return [model.num_layers // plan.pp] * plan.pp
    first, last = plan.first_stage_layers, plan.last_stage_layers
    between = (model.num_layers - first - last) // max(plan.pp - 2, 1)
    return [first, *[between] * (plan.pp - 2), last]


def _shown(counts: list[int]) -> str:
    return " + ".join(map(str, counts))


def _advice(cut: list[int]) -> str:
    if len(set(cut[1:-1])) > 1:
        return ""
    ends = f"first_stage_layers={cut[0]},last_stage_layers={cut[-1]}"
    return f"; plan again with --fix pp={len(cut)},layout=first-last,{ends}"


def configuration(model: ModelSpec, plan: Plan, llama: Flavor) -> dict[str, Any]:
    """The file as a mapping; :func:`refusals` must have found nothing."""
    return {
        "general": {"project": "parallelsim", "run": "%date_%jobid", "seed": 42},
        "checkpoints": {
            "checkpoints_path": "checkpoints",
            "checkpoint_interval": 1000,
            "save_final_state": False,
        },
        "parallelism": {
            "dp": plan.dp,
            "pp": plan.pp,
            "tp": plan.tp,
            "context_parallel_size": 1,
            "expert_parallel_size": 1,
            "pp_engine": ENGINES[plan.schedule],
            "tp_mode": "REDUCE_SCATTER" if plan.sequence_parallel else "ALL_REDUCE",
            "tp_linear_async_communication": plan.sequence_parallel,
            "tp_recompute_allgather": True,
            "recompute_layer": plan.recompute == "full",
        },
        "tokens": {
            "sequence_length": model.seq_length,
            "micro_batch_size": plan.micro_batch_size,
            "batch_accumulation_per_replica": plan.num_micro_batches,
            "train_steps": 50,
        },
        "model": {
            "dtype": "bfloat16",
            "ddp_bucket_cap_mb": 25,
            "make_vocab_size_divisible_by": 1,
            "init_method": {"std": 0.02},
            "model_config": _llama_config(llama, model.seq_length),
        },
        "optimizer": {
            "zero_stage": plan.zero,
            "accumulate_grad_in_fp32": plan.grad_dtype == "fp32",
            "clip_grad": 1.0,
            "weight_decay": 0.1,
            "optimizer_factory": {
                "name": "adamW",
                "adam_beta1": 0.9,
                "adam_beta2": 0.95,
                "adam_eps": 1.0e-8,
                "torch_adam_is_fused": True,
            },
            "learning_rate_scheduler": {
                "learning_rate": 1.0e-4,
                "lr_warmup_steps": 10,
                "lr_warmup_style": "linear",
                "lr_decay_style": "cosine",
                "min_decay_lr": 1.0e-5,
            },
        },
        "data_stages": [
            {
                "name": "dummy data",
                "start_training_step": 1,
                "data": {"dataset": None, "seed": 42, "num_loading_workers": 1},
            }
        ],
        "logging": {"iteration_step_info_interval": 1},
    }


def _llama_config(llama: Flavor, seq_length: int) -> dict[str, Any]:
    return {
        "is_llama_config": True,
        "hidden_act": "silu",
        "hidden_size": llama.hidden_size,
        "intermediate_size": llama.ffn_hidden_size,
        "max_position_embeddings": seq_length,
        "num_attention_heads": llama.num_heads,
        "num_hidden_layers": llama.num_layers,
        "num_key_value_heads": llama.num_query_groups,
        "rope_interleaved": False,
        "rope_theta": llama.rotary_base,
        "tie_word_embeddings": llama.tied,
        "vocab_size": llama.vocab_size,
    }
