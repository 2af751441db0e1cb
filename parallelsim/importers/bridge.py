"""A program of Megatron-Bridge that overrides its plain GPT recipe, as a model and a plan.

The assignments ``cfg.model.tensor_model_parallel_size = 8`` are Megatron-LM's flags under Bridge's
names, in which :mod:`parallelsim.exporters.bridge` writes them; no line of the program is run.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from parallelsim.errors import SpecError
from parallelsim.exporters.bridge import ACTIVATIONS, MODEL, OFF, RENAMED
from parallelsim.importers.megatron import run_of_arguments
from parallelsim.importers.run import ImportedRun
from parallelsim.model import ModelSpec

RECIPE = "vanilla_gpt_pretrain_config"
_FLAGS = (
    {f"model.{name.replace('-', '_')}": name for name in MODEL}
    | {field: name for name, fields in RENAMED.items() for field in fields}
    | {"tokenizer.vocab_size": "vocab-size"}
)
_OFF = {field: name for name, field in OFF.items()}
_ACTIVATIONS = {function.rpartition(".")[2]: name for name, (function, _) in ACTIVATIONS.items()}
_PRECISIONS = {"bf16_mixed": "bf16", "fp16_mixed": "fp16"}
_FOLLOWS = (
    *("model.vocab_size", "model.gated_linear_unit", "model.transformer_layer_spec"),
    *("model.overlap_p2p_comm", "model.batch_p2p_comm", "ddp.align_param_gather", "model"),
)
"""Fields that follow from others in a plan."""
_HARMLESS = (
    *("train.train_iters", "optimizer.", "scheduler.", "validation.", "checkpoint.", "logger."),
    *("dataset", "rng.", "tokenizer.", "profiling.", "dist."),
)


def import_bridge(
    text: str,
    file: str = "the program",
    environment: Mapping[str, str] | None = None,
    model: ModelSpec | None = None,
) -> ImportedRun:
    """The run that a program describes.

    Args:
        text: Python.
        file: its name in messages.
        environment: not read; readers of scripts need it.
        model: what is trained, in place of what the program says but for the sequence length.

    Raises:
        SpecError: no Python, another recipe, values that are none of Megatron-LM's.
    """
    fields, words = _assignments(text, file), list[str]()
    ignored, unknown = list[str](), list[str]()
    for field, value in fields.items():
        found = _words(field, value)
        words += found or []
        if found is None and field not in _FOLLOWS:
            (ignored if field.startswith(_HARMLESS) else unknown).append(field)
    if fields.get("model.num_query_groups") is not None:
        words.append("--group-query-attention")
    if "--fp16" in words and fields.get(OFF["grad-reduce-in-bf16"]) is True:
        words.append("--accumulate-allreduce-grads-in-fp32")
    run = run_of_arguments(words, file, model)
    return replace(run, ignored=(*run.ignored, *ignored), unknown=(*run.unknown, *unknown))


def _assignments(text: str, file: str) -> dict[str, Any]:
    """Values by field behind the configuration's name; the last one counts."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise SpecError(f"not valid Python: {str(error)[:80]}", file=file) from None
    found: dict[str, Any] = {}
    for target, value in _targets(tree):
        written = ast.unparse(target)
        if isinstance(value, ast.Call) and written == "cfg":
            recipe = ast.unparse(value.func)
            if recipe != RECIPE:
                message = (
                    f"only {RECIPE} is known here; name the fields of {recipe[:60]!r} after it"
                )
                raise SpecError(message, file=file, key="cfg")
        if written.startswith("cfg."):
            found[written.removeprefix("cfg.")] = _value(value)
    return found


def _targets(tree: ast.Module) -> Iterator[tuple[ast.expr, ast.expr]]:
    for node in tree.body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield target, node.value


def _value(node: ast.expr) -> Any:
    """A literal; of a call or a name its last word."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError):
        called = node.func if isinstance(node, ast.Call) else node
        return ast.unparse(called).rpartition(".")[2]


def _words(field: str, value: Any) -> list[str] | None:
    """What Megatron-LM's command line says instead; None where it has no such flag."""
    if field == "mixed_precision" and value in _PRECISIONS:
        return [f"--{_PRECISIONS[value]}"]
    if field == "model.activation_func":
        return [f"--{_ACTIVATIONS[value]}"] if value in _ACTIVATIONS else []
    if field in _OFF:
        return [] if value else [f"--{_OFF[field]}"]
    if field not in _FLAGS:
        return None
    flag = f"--{_FLAGS[field]}"
    if value is None or value is False:
        return []
    if value is True:
        return [flag]
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return [flag, *value]
    return [f"{flag}={value}"]
