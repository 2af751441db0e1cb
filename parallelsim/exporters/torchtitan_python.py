"""torchtitan's configuration of today's main: a Python module with one function.

Run it as ``--module FILE_WITHOUT_PY --config train`` with its folder on ``PYTHONPATH``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from parallelsim.exporters.torchtitan_models import Flavor

_IMPORTS = """\
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.data import ConcatThenSplitPackingConfig, GrainDataLoader
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.hf_datasets.text_datasets import DATASETS
from torchtitan.models.common.config_utils import decoder_vocab_size
from torchtitan.models.{module} import model_registry
from torchtitan.trainer import Trainer
"""
_POLICIES = {"none": "None", "full": "FullAC.Config()", "selective": "SelectiveAC.Config()"}


def python_module(
    head: Sequence[str],
    flavor: Flavor,
    sections: Mapping[str, Mapping[str, Any]],
    *,
    sequence_parallel: bool,
) -> str:
    """The module, from the sections that release 0.2.2 has.

    What differs: batches are tokens; the loss is plain cross-entropy, not the chunked one, which
    predictions do not know; CUDA graphs are off for the same reason.
    """
    training, parallelism = sections["training"], sections["parallelism"]
    in_flight = training["local_batch_size"]
    micro = parallelism.get("pipeline_parallel_microbatch_size", in_flight)
    tokens = training["seq_len"]
    mine = {
        "num_tokens_per_microbatch_per_dp_rank": micro * tokens,
        "num_tokens_per_train_step": training["global_batch_size"] * tokens,
        "max_context_length": tokens,
        "steps": training["steps"],
        "max_norm": training["max_norm"],
        "disable_cuda_graphs": True,
        "dtype": training["dtype"],
        "mixed_precision_param": training["mixed_precision_param"],
    }
    dropped = ("enable_async_tensor_parallel", "context_parallel_rotate_method")
    degrees = {
        name: value
        for name, value in parallelism.items()
        if name not in (*dropped, "pipeline_parallel_microbatch_size")
    }
    degrees["enable_sequence_parallel"] = sequence_parallel
    degrees["num_pp_microbatches"] = in_flight // micro
    for part in degrees.get("module_fqns_per_model_part", [])[-1:]:
        degrees["module_fqns_per_model_part"][-1] = [*part[:-1], "lm_head"]
    compiled = {
        "enable": sections["compile"]["enable"],
        "enable_async_tensor_parallel": parallelism["enable_async_tensor_parallel"],
        "components": sections["compile"]["components"],
    }
    lines = [
        *head,
        "# Start it on every node, with its folder on PYTHONPATH:",
        "#   torchrun ... -m torchtitan.train --module NAME_OF_THIS_FILE --config train",
        _IMPORTS.format(module=flavor.module),
        "",
        "def train() -> Trainer.Config:",
        f'    model_spec = model_registry("{flavor.flavor}")',
        "    return Trainer.Config(",
        "        model_spec=model_spec,",
        "        loss=CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(model_spec)),",
        f'        hf_assets_path="{sections["model"]["hf_assets_path"]}",',
        f"        optimizer=default_adamw(lr={sections['optimizer']['lr']}),",
        "        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=10),",
        *_call("training", "TrainingConfig", mine),
        *_call("parallelism", "ParallelismConfig", degrees),
        f"        activation_checkpoint={_POLICIES[sections['activation_checkpoint']['mode']]},",
        *_call("compile", "CompileConfig", compiled),
        "        dataloader=GrainDataLoader.Config(",
        '            dataset=ConcatThenSplitPackingConfig(dataset=DATASETS["c4"])',
        "        ),",
        "        metrics=MetricsProcessor.Config(log_freq=1),",
        "        checkpoint=CheckpointManager.Config(enable=False),",
        "    )",
    ]
    return "\n".join(lines) + "\n"


def _call(name: str, config: str, values: Mapping[str, Any]) -> list[str]:
    inner = (f"            {key}={value!r}," for key, value in values.items())
    return [f"        {name}={config}(", *inner, "        ),"]
