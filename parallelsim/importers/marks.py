"""What tells the files of one software from another's, by the text alone."""

from __future__ import annotations

import re

MEGATRON_ARGUMENTS_END = "- end of arguments -"
TORCHTITAN_PRINTS = re.compile(r"Running with (?:args|configs?): (?=\{)")
DEEPSPEED_PRINTS = re.compile(r"  json = (?=\{)")
_TORCHTITAN_SECTIONS = ("model", "training", "parallelism", "activation_checkpoint")
_DEEPSPEED_KEY = re.compile(
    r'"(train_batch_size|train_micro_batch_size_per_gpu|zero_optimization)"\s*:'
)
_NANOTRON_SECTION = re.compile(r"^(parallelism|tokens|model):", re.M)
_BRIDGE_IMPORT = re.compile(r"^from megatron\.bridge\b", re.M)
_BRIDGE_FIELD = re.compile(r"^cfg\.model\.\w+ *=", re.M)
_ACCELERATE_KEY = re.compile(r"^distributed_type:", re.M)


def is_torchtitan(text: str) -> bool:
    """The text has sections as torchtitan's configurations have them."""
    lines = {line.strip() for line in text.splitlines() if line.lstrip().startswith("[")}
    named = lines & {f"[{section}]" for section in _TORCHTITAN_SECTIONS}
    return "[model]" in named and len(named) > 1


def is_deepspeed(text: str) -> bool:
    """The text is JSON with a key that only DeepSpeed's configurations have."""
    return text.lstrip().startswith("{") and bool(_DEEPSPEED_KEY.search(text))


def is_accelerate(text: str) -> bool:
    """The text has the key that every configuration of accelerate has."""
    return bool(_ACCELERATE_KEY.search(text))


def is_nanotron(text: str) -> bool:
    """The text has sections as nanotron's configurations have them."""
    return len(set(_NANOTRON_SECTION.findall(text))) == 3


def is_bridge(text: str) -> bool:
    """The text is a program that imports Megatron-Bridge and changes a configuration of its."""
    return bool(_BRIDGE_IMPORT.search(text) and _BRIDGE_FIELD.search(text))


def is_megatron_log(text: str) -> bool:
    """Megatron-LM has printed its arguments."""
    return MEGATRON_ARGUMENTS_END in text


def is_torchtitan_log(text: str) -> bool:
    """Torchtitan has printed its configuration."""
    return bool(TORCHTITAN_PRINTS.search(text))


def is_deepspeed_log(text: str) -> bool:
    """DeepSpeed has printed its configuration."""
    return bool(DEEPSPEED_PRINTS.search(text))
