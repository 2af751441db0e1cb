"""Typed access to the keys of a Hugging Face ``config.json``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parallelsim.errors import SpecError
from parallelsim.layer_checks import LIMITS
from parallelsim.layers import Attention, Block, Layer
from parallelsim.yaml_io import shown

ACTIVATIONS: Mapping[str, str] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
    "relu2": "squared-relu",
}


def blocks_of(layers: Sequence[Layer]) -> tuple[Block, ...]:
    """The fewest blocks: runs of equal layers, or the shortest period and its remainder."""
    order = {layer: index for index, layer in reversed(list(enumerate(layers)))}
    kinds = [order[layer] for layer in layers]
    starts = [i for i in range(len(layers)) if i == 0 or kinds[i] != kinds[i - 1]]
    if len(starts) <= 2:
        ends = [*starts[1:], len(layers)]
        return tuple(
            Block(end - start, (layers[start],)) for start, end in zip(starts, ends, strict=True)
        )
    period = next(p for p in range(1, len(kinds) + 1) if kinds[p:] == kinds[: len(kinds) - p])
    repeats, rest = divmod(len(layers), period)
    blocks = (Block(repeats, tuple(layers[:period])),)
    return (*blocks, Block(1, tuple(layers[:rest]))) if rest else blocks


@dataclass(frozen=True)
class ConfigReader:
    """Typed access to a configuration.

    ``a|b`` are two names of one key; null is as good as left out.
    """

    config: Mapping[str, Any]

    def value(self, key: str) -> Any:
        """The value under the first name that is there and not null, else None."""
        values = (self.config.get(name) for name in key.split("|"))
        return next((value for value in values if value is not None), None)

    def whole(self, key: str, default: int | None = None, smallest: int = 1) -> int:
        """A whole number; an error if there is neither value nor default."""
        value = self.value(key)
        if value is None and default is not None:
            return default
        if value is None:
            raise SpecError("this key is missing", key=key.replace("|", " or "))
        if isinstance(value, bool) or not isinstance(value, int) or not smallest <= value <= 2**53:
            message = f"expected a whole number of at least {smallest}, got {shown(value)}"
            raise SpecError(message, key=key.replace("|", " or "))
        return value

    def optional_whole(self, key: str, default: int | None) -> int | None:
        """A whole number, None where it is null, the default where the key is left out."""
        if key not in self.config:
            return default
        return None if self.config[key] is None else self.whole(key)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.value(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise SpecError(f"expected true or false, got {shown(value)}", key=key)
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A text; an error if there is neither value nor default."""
        value = self.value(key)
        value = default if value is None else value
        if value is None:
            raise SpecError("this key is missing", key=key)
        if not isinstance(value, str):
            raise SpecError(f"expected text, got {shown(value)}", key=key)
        return value

    def share(self, *keys: str, default: float = 0.0) -> float:
        """A dropout probability under the first key that is there."""
        for key in keys:
            value = self.value(key)
            if value is not None:
                number = isinstance(value, int | float) and not isinstance(value, bool)
                if not number or not math.isfinite(value) or not 0 <= value < 1:
                    raise SpecError(f"expected a number in [0, 1), got {shown(value)}", key=key)
                return float(value)
        return default

    def number(self, key: str, default: float) -> float:
        """A number above 0, or the default where the key is left out."""
        value = self.value(key)
        if value is None:
            return default
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or not 0 < value <= 1e12:
            raise SpecError(f"expected a number above 0, got {shown(value)}", key=key)
        return float(value)

    def sizes(
        self,
        hidden: str = "hidden_size",
        heads: str = "num_attention_heads",
        layers: str = "num_hidden_layers",
    ) -> tuple[int, int, int]:
        """Hidden size, heads and layers; the layers within their limit, for lists to come."""
        num_layers = self.whole(layers)
        if num_layers > LIMITS["num_layers"][1]:
            message = f"expected at most {LIMITS['num_layers'][1]}, got {num_layers}"
            raise SpecError(message, key=layers.replace("|", " or "))
        return self.whole(hidden), self.whole(heads), num_layers

    def head_dim(self, hidden: int, heads: int) -> int:
        """The quotient hidden / heads; an error if it is not whole and ``head_dim`` is missing."""
        if hidden % heads and self.value("head_dim") is None:
            message = f"{heads} heads do not divide hidden size {hidden}, and head_dim is missing"
            raise SpecError(message, key="num_attention_heads")
        return max(hidden // heads, 1)

    def biased_heads(self, hidden: int, heads: int) -> Attention:
        """Multi-head attention with biases on both projections."""
        dim = self.head_dim(hidden, heads)
        return Attention(heads, heads, dim, qkv_bias=True, output_bias=True)

    def activation(self, keys: tuple[str, ...], default: str) -> str:
        """Our name of the activation function under the first key that is there."""
        key = next((key for key in keys if self.value(key) is not None), None)
        if key is None:
            return default
        name = self.text(key)
        if name not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            raise SpecError(f"{shown(name)} is not known; known: {known}", key=key)
        return ACTIVATIONS[name]

    def whole_list(self, key: str, below: int) -> list[int]:
        """Whole numbers in [0, below), empty where the key is left out."""
        values = self.value(key)
        if values is None:
            return []
        good = isinstance(values, list) and all(
            isinstance(value, int) and not isinstance(value, bool) and 0 <= value < below
            for value in values
        )
        if not good:
            message = f"expected a list of whole numbers below {below}, got {shown(values)}"
            raise SpecError(message, key=key)
        return list(values)

    def part(self, key: str) -> ConfigReader:
        """The configuration under a key."""
        value = self.value(key)
        if not isinstance(value, dict):
            raise SpecError(f"expected a mapping, got {shown(value)}", key=key)
        return ConfigReader(value)

    def layer_types(self, num_layers: int) -> list[str] | None:
        """full_attention or sliding_attention for each layer; None where the key is left out."""
        kinds = self.value("layer_types")
        if kinds is None:
            return None
        if not isinstance(kinds, list) or len(kinds) != num_layers:
            message = f"expected a list of {num_layers} names, got {shown(kinds)}"
            raise SpecError(message, key="layer_types")
        for kind in kinds:
            if kind not in ("full_attention", "sliding_attention"):
                message = f"expected full_attention or sliding_attention, got {shown(kind)}"
                raise SpecError(message, key="layer_types")
        return kinds
