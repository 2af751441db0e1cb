"""Names in tables of measured runs, as people write them, under the names of the catalogue."""

from __future__ import annotations

import re
from collections.abc import Mapping

PRECISION_NAMES: Mapping[str, str] = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "tf32": "fp32",
    "float8": "fp8",
    "fp8-tensorwise": "fp8-current",
}
"""The peak of fp32 in the accelerators' files is that of TF32; torchtitan's tensorwise recipe
scales each tensor by its present maximum (torchao float8: dynamic scaling)."""
SCHEDULE_NAMES: Mapping[str, str] = {
    "interleaved": "interleaved-1f1b",
    "zb-1p": "zb-h1",
    "zb-2p": "zb-h2",
}
"""ZB-1p and ZB-2p: the automatic schedules with the memory of ZB-H1 and ZB-H2 (arXiv:2401.10241,
section 5)."""
FRAMEWORK_NAMES: Mapping[str, str] = {
    "megatron-lm": "megatron-core",
    "megatron": "megatron-core",
    "mcore": "megatron-core",
    "megatron-bridge": "megatron-core",
    "nemo": "megatron-core",
}
"""Megatron-LM, NeMo and Megatron-Bridge of today all train with Megatron-Core."""
_UNSAID = frozenset({"nvidia", "amd", "gpu", "tensor", "core", "hbm3", "hbm3e"})
"""Words of device names that the catalogue's names leave out."""


def plain_name(text: str, names: Mapping[str, str]) -> str:
    """A name in the spelling of the catalogue: lower case, hyphens, its alias resolved."""
    name = re.sub(r"[\s_]+", "-", text.strip().lower())
    return names.get(name, name)


def matching_gpus(text: str, known: tuple[str, ...]) -> list[str]:
    """The catalogue's accelerators that a name may mean: its very name, or all that have every word
    of it, as ``A100-SXM4-80GB`` or ``NVIDIA B200``.
    """
    name = plain_name(text, {})
    if name in known:
        return [name]
    wanted = _words(name) - _UNSAID
    return [each for each in known if wanted and wanted <= _words(each)]


def _words(name: str) -> set[str]:
    """Words of a name; sockets without their generation."""
    return {re.sub(r"^sxm\d$", "sxm", word) for word in re.findall(r"[a-z0-9]+", name)}
