"""Megatron-Bridge's program sets fields that Bridge has to what the plan says, or is refused."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml
from random_exports import some_plans

from parallelsim.catalog import load_cluster, load_framework, load_model
from parallelsim.errors import ExportError
from parallelsim.exporters.bridge import export_bridge, overrides
from parallelsim.exporters.megatron import flag_groups
from parallelsim.plan import Plan

FIELDS = {
    section: set(names.split())
    for section, names in yaml.safe_load(
        (Path(__file__).parent / "published/megatron_bridge_fields.yaml").read_text()
    ).items()
}
LLAMA = load_model("llama3-70b").with_seq_length(8192)
H100 = load_cluster("hgx-h100", 256)
MEGATRON = load_framework("megatron-core")
PLAN = Plan(
    *(4, 2, 4, 5, 8),
    micro_batch_size=2,
    global_batch_size=512,
    schedule="interleaved-1f1b",
    sequence_parallel=True,
    zero=1,
    recompute="selective",
    recompute_modules="core_attn+mlp",
    tp_comm_overlap=True,
    cross_entropy_fusion=True,
    overlap_grad_reduce=True,
    overlap_param_gather=True,
)


class Section:
    """A part of the configuration that takes only fields which Bridge's has."""

    def __init__(self, name: str, **values: Any) -> None:
        self.__dict__["_name"] = name
        for key, value in values.items():
            setattr(self, key, value)

    def __setattr__(self, key: str, value: Any) -> None:
        assert key in FIELDS[self._name], f"{self._name}.{key}"
        self.__dict__[key] = value


def run(text: str, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The configuration that a program gives to ``pretrain``, under stand-ins for its imports."""
    started: list[SimpleNamespace] = []
    parts = {name: Section(name) for name in FIELDS if name not in ("dataset", "mixed_precision")}
    recipe = SimpleNamespace(**parts)
    imports = {
        "torch": {"nn": SimpleNamespace(functional=SimpleNamespace(silu="silu"))},
        "megatron.core.activations": {"squared_relu": "squared_relu"},
        "megatron.core.fusions.fused_bias_geglu": {"quick_gelu": "quick_gelu"},
        "megatron.core.models.gpt.gpt_layer_specs": {"get_gpt_decoder_block_spec": dict},
        "megatron.bridge.models.mla_provider": {"MLAModelProvider": lambda: Section("model")},
        "megatron.core.transformer.enums": {"AttnBackend": SimpleNamespace(fused=3, flash=1)},
        "megatron.bridge.recipes.gpt.vanilla_gpt": {"vanilla_gpt_pretrain_config": lambda: recipe},
        "megatron.bridge.training.config": {
            "MockGPTDatasetConfig": lambda seq_length, **_: Section(
                "dataset", seq_length=seq_length
            )
        },
        "megatron.bridge.training.gpt_step": {"forward_step": None},
        "megatron.bridge.training.mixed_precision": {
            f"{name}_mixed": lambda: Section("mixed_precision") for name in ("bf16", "fp16")
        },
        "megatron.bridge.training.pretrain": {
            "pretrain": lambda config, forward_step_func: started.append(config)
        },
    }
    for name, values in imports.items():
        module = ModuleType(name)
        module.__dict__.update(values)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr("os.environ", {})
    exec(compile(text, "run.py", "exec"), {"__name__": "__main__"})
    (config,) = started
    return config


def test_the_program_says_the_plan(monkeypatch):
    said = run(export_bridge(LLAMA, H100, MEGATRON, PLAN), monkeypatch)
    assert (said.train.micro_batch_size, said.train.global_batch_size) == (2, 512)
    model = {
        "tensor_model_parallel_size": 4,
        "context_parallel_size": 2,
        "pipeline_model_parallel_size": 4,
        "virtual_pipeline_model_parallel_size": 5,
        "overlap_p2p_comm": True,
        "batch_p2p_comm": False,
        "sequence_parallel": True,
        "recompute_granularity": "selective",
        "recompute_modules": ["core_attn", "mlp"],
        "tp_comm_overlap": True,
        "cross_entropy_loss_fusion": True,
        "num_layers": 80,
        "num_query_groups": 8,
        "activation_func": "silu",
        "gated_linear_unit": True,
        "add_bias_linear": False,
        "share_embeddings_and_output_weights": False,
        "seq_length": 8192,
        "vocab_size": 128_512,
        "attention_backend": 3,
    }
    assert vars(said.model) | model == vars(said.model)
    assert vars(said.ddp) == {
        "use_distributed_optimizer": True,
        "overlap_grad_reduce": True,
        "overlap_param_gather": True,
        "align_param_gather": True,
        "_name": "ddp",
    }
    assert said.dataset.seq_length == 8192
    assert said.mixed_precision.grad_reduce_in_fp32 is True


def test_what_the_recipe_turns_on_is_turned_off(monkeypatch):
    plain = Plan(1, 1, 1, 1, 256, global_batch_size=512, grad_dtype="bf16", precision="fp8-delayed")
    text = export_bridge(load_model("llama3-8b").with_seq_length(8192), H100, MEGATRON, plain)
    said = run(text, monkeypatch)
    assert said.optimizer.use_distributed_optimizer is False
    assert said.ddp.overlap_grad_reduce is False
    assert said.model.cross_entropy_loss_fusion is False
    assert said.mixed_precision.grad_reduce_in_fp32 is False
    assert said.mixed_precision.fp8_recipe == "delayed"
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in text


@pytest.mark.parametrize(
    "name", ["llama3-70b", "gpt3-175b", "qwen3-30b-a3b", "deepseek-v2-lite", "gpt-oss-20b"]
)
def test_every_field_is_one_of_bridges(name, monkeypatch):
    model = load_model(name)
    for plan, text in some_plans(export_bridge, (model, H100, MEGATRON), 512, count=4, seed=name):
        said = run(text, monkeypatch)
        degrees = (said.model.tensor_model_parallel_size, said.model.pipeline_model_parallel_size)
        assert degrees == (plan.tp, plan.pp)
        assert getattr(said.model, "expert_model_parallel_size", 1) == plan.ep


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"precision": "fp32", "cp": 1, "dp": 16}, "16-bit mixed precision, not fp32"),
        ({"optimizer": "muon"}, "the recipe's optimizer is adam on the GPU"),
        ({"cp_comm_type": "a2a+p2p", "cp": 4, "cp_a2a": 2, "dp": 4}, "no hierarchical context"),
        ({"dp": 4}, "= 128 GPUs"),
    ],
)
def test_what_bridge_cannot_run_is_refused(changes, reason):
    with pytest.raises(ExportError, match=reason):
        export_bridge(LLAMA, H100, MEGATRON, replace(PLAN, **changes))


def test_models_of_other_recipes_are_refused():
    gpt = load_model("gpt3-175b").with_seq_length(1024)
    with pytest.raises(ExportError, match="it learns 1024 positions"):
        export_bridge(gpt, H100, MEGATRON, replace(PLAN, vpp=4, tp=8, dp=4))
    hybrid = load_model("nemotron-h-8b").with_seq_length(4096)
    plan = Plan(1, 1, 1, 1, 256, global_batch_size=512, zero=1)
    with pytest.raises(ExportError, match="has no field for Megatron-LM's --hybrid-layer-pattern"):
        export_bridge(hybrid, H100, MEGATRON, plan)


@pytest.mark.parametrize("name", ["llama3-8b", "gpt3-175b", "deepseek-v2-lite"])
def test_bridges_own_translator_agrees(name):
    """With the folder scripts/ of a checkout of Megatron-Bridge on PYTHONPATH."""
    theirs = pytest.importorskip(
        "translate_mlm_to_bridge", reason="no scripts/ of Megatron-Bridge on PYTHONPATH"
    )
    inputs = (load_model(name), H100, MEGATRON)
    for plan, _ in some_plans(export_bridge, inputs, 512, count=8, seed=name):
        groups = flag_groups(*inputs, plan)
        flags = [flag for group in groups if group.array != "TRAINING_ARGS" for flag in group.flags]
        command = " ".join(flag for flag in flags if flag.startswith("--"))
        translated = theirs.translate(theirs.parse_raw_args(command)[0]).overrides
        ours = dict(overrides(*inputs, plan))
        for field in set(translated) & set(ours) - {"mixed_precision"}:
            value = ours[field].removeprefix("AttnBackend.").removeprefix("torch.nn.functional.")
            assert value in (repr(translated[field]), translated[field]), field
        elsewhere = {"max_position_embeddings", "seq_length"}
        elsewhere |= {"skip_getting_attention_mask_from_dataset"}
        assert {field.split(".")[1] for field in set(translated) - set(ours)} <= elsewhere
