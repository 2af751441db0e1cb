"""What software prints of its configuration at the start of a training log.

Megatron-LM and its forks print every argument between ``---- arguments ----`` and ``---- end of
arguments ----``; torchtitan its configuration as JSON behind ``Running with configs:``; DeepSpeed
the JSON that it was given behind ``json =``. Where a log has several, the last one counts.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from parallelsim.errors import SpecError
from parallelsim.importers.deepspeed import run_of_deepspeed
from parallelsim.importers.marks import (
    DEEPSPEED_PRINTS,
    MEGATRON_ARGUMENTS_END,
    TORCHTITAN_PRINTS,
)
from parallelsim.importers.megatron import run_of_arguments
from parallelsim.importers.run import ImportedRun
from parallelsim.importers.settings import Settings, reads
from parallelsim.importers.torchtitan import run_of_torchtitan
from parallelsim.model import ModelSpec

MAX_DUMP = 1 << 20
"""Characters of a configuration in a log."""
_BEGIN = re.compile("-{8,} arguments -{8,}")
_ARGUMENT = re.compile(r"(?:^|[\s:\]>|])([A-Za-z]\w*) \.* (.*)$")
_FLAGS = {
    "fp8": "fp8-format",
    "fp4": "fp4-format",
    "add_bias_linear": "disable-bias-linear",
    "use_layer_wise_distributed_optimizer": "use-distributed-optimizer",
}
"""Of arguments that have another name than their flag, or, as the bias, the opposite sense; Muon's
distributed optimizer is the last one."""
_DEFAULTS = {
    "empty_unused_memory_level": "0",
    "fp8_wgrad": "True",
    "main_grads_dtype": "torch.float32",
    "main_params_dtype": "torch.float32",
    "megatron_fsdp_main_params_dtype": "torch.float32",
    "moe_token_drop_policy": "probs",
    "tp_comm_split_ag": "True",
}
"""Of arguments that are not modelled and are no switches."""
_LISTS_OF_LAYERS = ("moe_layer_freq", "no_rope_freq", "window_attn_skip_freq", "window_size")
"""Arguments whose list is one value."""
_DTYPES = {"torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16"}
_OFF = ("False", "None", "[]", "", "{}")
_VOCABULARY = re.compile(r"padded vocab \(size: (\d{1,9})\)")
_MESH = re.compile(r"Building \d-D device mesh with \[[^]]*\], \[([\d, ]{1,80})\]")
_RANKS = re.compile(r"\bworld_size \.+ (\d{1,9})\b")


def import_megatron_log(
    text: str,
    file: str = "the log",
    environment: Mapping[str, str] | None = None,
    model: ModelSpec | None = None,
) -> ImportedRun:
    """The run whose arguments Megatron-LM has printed; ``model`` in place of what they describe.

    Raises:
        SpecError: the arguments are cut off, or cannot be read as flags cannot.
    """
    end = text.rindex(MEGATRON_ARGUMENTS_END)
    starts = [match.end() for match in _BEGIN.finditer(text, max(end - MAX_DUMP, 0), end)]
    if not starts:
        raise SpecError("its arguments end, but do not begin (---- arguments ----)", file=file)
    words: list[str] = []
    world_size = None
    for line in text[starts[-1] : end].splitlines():
        if match := _ARGUMENT.search(line.rstrip()):
            name, value = match.groups()
            if name == "world_size" and value.isdigit():
                world_size = int(value)
            else:
                words += _flag(name, value.strip())
    stated = any(word in ("--vocab-size", "--padded-vocab-size") for word in words)
    if (size := _VOCABULARY.search(text, end)) and not stated:
        words += ["--vocab-size", size[1]]
    return replace(run_of_arguments(words, file, model), num_gpus=world_size)


def _flag(name: str, value: str) -> Sequence[str]:
    """The words that give an argument its value; none where it is off."""
    flag = "--" + _FLAGS.get(name, name).replace("_", "-")
    if name == "add_bias_linear":
        value = str(value == "False")
    if value in _OFF or value == _DEFAULTS.get(name):
        return ()
    if value == "True":
        return (flag,)
    value = _DTYPES.get(value, value)
    if value[0] in "[(" and name not in _LISTS_OF_LAYERS:
        try:
            return (flag, *map(str, ast.literal_eval(value)))
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            return (flag, value)
    return (flag, value)


def _run_of_torchtitan(settings: Settings, model: ModelSpec | None) -> ImportedRun:
    run = run_of_torchtitan(settings, model)
    mesh = (_MESH.findall(settings.text) or [""])[-1]
    sizes = [int(size) for size in mesh.split(",") if size.strip()]
    return replace(run, num_gpus=run.num_gpus or (math.prod(sizes) if sizes else None))


def _run_of_deepspeed(settings: Settings, model: ModelSpec | None) -> ImportedRun:
    run = run_of_deepspeed(settings, model)
    ranks = _RANKS.findall(settings.text)
    if not ranks:
        return run
    return replace(run, num_gpus=int(ranks[-1]) * run.fields["tp"] * run.fields["pp"])


def _printed(marker: re.Pattern[str], text: str, file: str) -> dict[str, Any]:
    """The JSON behind the last marker, without what a launcher puts before each line.

    Raises:
        SpecError: it is cut off, or no JSON.
    """
    start = max(match.end() for match in marker.finditer(text))
    line = text.rfind("\n", 0, start) + 1
    first, *others = text[line : start + MAX_DUMP].splitlines()
    prefix = _common(first, others[0]) if others else ""
    body = [
        first[start - line :],
        *(o.removeprefix(prefix) for o in others if o.startswith(prefix)),
    ]
    try:
        data: dict[str, Any] = json.JSONDecoder().raw_decode("\n".join(body))[0]
    except (ValueError, RecursionError) as error:
        words = f"the configuration that it prints is cut off or not JSON: {str(error)[:80]}"
        raise SpecError(words, file=file) from None
    return data


def _common(first: str, second: str) -> str:
    """What both lines begin with, but for blanks at its end that belong to JSON."""
    size = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), 0)
    return first[:size].rstrip(" ") if size else ""


import_torchtitan_log = reads(partial(_printed, TORCHTITAN_PRINTS), _run_of_torchtitan)
import_deepspeed_log = reads(partial(_printed, DEEPSPEED_PRINTS), _run_of_deepspeed)
