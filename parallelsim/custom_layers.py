"""Operators that a model file spells out: convolutions, products, memory passes, collectives.

A :class:`Custom` sub-layer is a list of them, so that a network without a kind of its own (a
convolutional network, a diffusion transformer's conditioning, a user's new layer) can be planned.
Sizes are :class:`~parallelsim.expressions.Expression`; the same text gives the unsharded model's
parameters and FLOPs (every degree 1) and what one rank holds and computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from parallelsim.errors import SpecError
from parallelsim.expressions import FIXED, SYMBOLS, Expression, Value

KINDS: Mapping[str, tuple[str, ...]] = {
    "gemm": ("m", "n", "k"),
    "convolution": ("height", "width", "in_channels", "out_channels", "kernel_size"),
    "attention": ("num_heads", "num_query_groups", "head_dim"),
    "memory-bound": ("forward_bytes", "backward_bytes"),
    "tensor-parallel-region": (),
    "all-reduce": ("bytes",),
    "all-gather": ("bytes",),
    "reduce-scatter": ("bytes",),
}
"""Kind of an operator -> the sizes that it must have."""
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter")
GROUPS = ("tp", "dp")
WEIGHTED = ("gemm", "convolution")
ANY_KIND = ("parameters", "saved_bytes")
OPTIONAL_SIZES: Mapping[str, tuple[str, ...]] = {"convolution": ("stride",)}


@dataclass(frozen=True, slots=True)
class CustomOperator:
    """One operator of one micro-batch on one rank."""

    name: str
    """What errors call it."""
    kind: str
    """One of :data:`KINDS`.

    gemm: C[m, n] = A[m, k] B[k, n]. convolution: from a map of height x width x in_channels for
    each sample, as the product (samples h' w', out_channels, in_channels kernel_size^2).
    attention: the core alone. memory-bound: bytes moved forward and backward. A collective moves
    ``bytes`` (the whole tensor) forward, its counterpart the same backward.
    tensor-parallel-region: an input gathered and an output reduced, as around an MLP.
    """
    sizes: tuple[tuple[str, Expression], ...] = ()
    """By name, those of the kind, and ``parameters`` and ``saved_bytes`` of any."""
    weights: bool = True
    """gemm and convolution: B is trained, n k parameters beside ``parameters``."""
    causal: bool = True
    """attention alone."""
    group: str = "tp"
    """Of a collective: ``tp``, or ``dp``, the ranks outside tp and cp (batch statistics)."""

    def size(self, name: str, symbols: Mapping[str, Value]) -> Value:
        """One size; 0 where an optional one is not stated (a stride: 1).

        Raises:
            SpecError: what is wrong with it, and in which operator.
        """
        expression = dict(self.sizes).get(name, _ONE if name == "stride" else _ZERO)
        try:
            return expression.value(symbols)
        except SpecError as error:
            raise self._error(f"{name} {error}") from None

    def product(self, symbols: Mapping[str, Value]) -> tuple[Value, Value, Value, Value]:
        """(m, n, k, reads) of a gemm or convolution; ``reads``: how often the product reads an
        element of A that exists once, kernel_size^2 / stride^2.
        """
        if self.kind == "gemm":
            m, n, k = (self.size(name, symbols) for name in "mnk")
            return m, n, k, np.ones_like(m)
        size = {name: self.size(name, symbols) for name in (*KINDS["convolution"], "stride")}
        if (size["stride"] == 0).any():
            raise self._error("stride is 0")
        rows, columns = (np.ceil(size[side] / size["stride"]) for side in ("height", "width"))
        taps = size["kernel_size"] ** 2
        reads = np.maximum(taps / size["stride"] ** 2, 1.0)
        m = symbols["samples"] * rows * columns
        return m, size["out_channels"], size["in_channels"] * taps, reads

    def parameters(self, symbols: Mapping[str, Value]) -> Value:
        """Trained numbers on the rank."""
        count = self.size("parameters", symbols)
        if self.kind in WEIGHTED and self.weights:
            _, n, k, _ = self.product(symbols)
            count = count + n * k
        return count

    def reads(self, symbol: str) -> bool:
        """Some size depends on the symbol."""
        return any(symbol in expression.names() for _, expression in self.sizes)

    def check(self) -> None:
        """Refuse unknown kinds and symbols, missing sizes, and values that no operator has.

        Raises:
            SpecError: the first mistake, with the operator's name.
        """
        if self.kind not in KINDS:
            raise self._error(f"unknown kind {self.kind[:40]!r}; it can be {', '.join(KINDS)}")
        if self.group not in GROUPS:
            raise self._error(f"unknown group {self.group[:40]!r}; it can be {', '.join(GROUPS)}")
        stated = [name for name, _ in self.sizes]
        needed = KINDS[self.kind]
        if missing := [name for name in needed if name not in stated]:
            raise self._error(f"{self.kind} needs {', '.join(missing)}")
        known = (*needed, *OPTIONAL_SIZES.get(self.kind, ()), *ANY_KIND)
        if unknown := [name for name in stated if name not in known]:
            raise self._error(f"{self.kind} has no {unknown[0]}; it has {', '.join(known)}")
        for name, expression in self.sizes:
            try:
                names = expression.names()
            except SpecError as error:
                raise self._error(f"{name} {error}") from None
            if name in self._fixed_sizes() and not names <= FIXED:
                which = ", ".join(sorted(names - FIXED))
                message = f"{name} depends on {which}: a number of parameters cannot"
                raise self._error(f"{message} (only on {', '.join(sorted(FIXED))})")

    def check_values(self, symbols: Mapping[str, Value]) -> None:
        """Refuse sizes without a value, and products and attention cores with a side of 0.

        Raises:
            SpecError: the first mistake, with the operator's name.
        """
        positive = KINDS[self.kind] if self.kind in (*WEIGHTED, "attention") else ()
        for name, expression in self.sizes:
            if not self.size(name, symbols).all() and name in positive:
                raise self._error(f"{name} {expression.text!r} is 0: leave the operator out")
        if self.kind in WEIGHTED:
            self.product(symbols)

    def _fixed_sizes(self) -> tuple[str, ...]:
        """Sizes that parameters are counted from."""
        if self.kind == "gemm" and self.weights:
            return ("parameters", "n", "k")
        channels = ("in_channels", "out_channels", "kernel_size", "stride", "height", "width")
        return ("parameters", *(channels if self.kind == "convolution" else ()))

    def _error(self, message: str) -> SpecError:
        return SpecError(f"operator {self.name[:60]!r}: {message}", key="operators")


_ZERO, _ONE = Expression("0"), Expression("1")


@dataclass(frozen=True, slots=True)
class Custom:
    """A sub-layer as the list of its operators, without a residual stream or norm of its own."""

    operators: tuple[CustomOperator, ...]
    input_values: Expression | None = None
    """Numbers of the layer's input on one rank: what full recompute keeps and stages exchange.
    None: tokens * hidden / sp.
    """

    def check(self, hidden_size: int) -> None:
        """Refuse operators that cannot be evaluated.

        Raises:
            SpecError: the first mistake.
        """
        for each in self.operators:
            each.check()
        if [each.kind for each in self.operators].count("attention") > 1:
            raise SpecError("one attention core at most: split the layer", key="operators")
        symbols = unsharded(hidden_size, 1)
        for each in self.operators:
            each.check_values(symbols)
        if self.input_values is not None:
            try:
                self.input_values.value(symbols)
            except SpecError as error:
                raise SpecError(f"input_values: {error}", key="operators") from None

    def num_parameters(self, hidden_size: int) -> int:
        """Of all operators, unsharded."""
        symbols = unsharded(hidden_size, 1)
        return round(sum(float(each.parameters(symbols)[0]) for each in self.operators))

    def gemm_weights(self, hidden_size: int) -> int:
        """Weights of all products; a token need not pass each of them."""
        symbols = unsharded(hidden_size, 1)
        return round(
            sum(float(n[0] * k[0]) for _, n, k, _ in self._products(symbols, weighted_only=True))
        )

    def flops_per_sequence(self, hidden_size: int, seq_length: int) -> float:
        """Forward FLOPs of all products and attention cores for one sequence (or image)."""
        symbols = unsharded(hidden_size, seq_length)
        total = sum(2.0 * float((m * n * k)[0]) for m, n, k, _ in self._products(symbols))
        for each in self.operators:
            if each.kind == "attention":
                heads, width = (float(each.size(s, symbols)[0]) for s in ("num_heads", "head_dim"))
                total += 4.0 * width * heads * seq_length**2 / (2 if each.causal else 1)
        return total

    def kv_width(self, hidden_size: int) -> int:
        """Columns of the keys of its attention cores, 0 without one."""
        symbols = unsharded(hidden_size, 1)
        sizes = ("num_query_groups", "head_dim")
        return max(
            (
                round(np.prod([float(each.size(name, symbols)[0]) for name in sizes]))
                for each in self.operators
                if each.kind == "attention"
            ),
            default=0,
        )

    def splits_over(self, degree: str) -> bool:
        """Some operator says what the degree divides."""
        shares = {"tp": ("tp", "sp"), "cp": ("cp", "tokens")}[degree]
        regions = degree == "tp" and any(
            each.kind == "tensor-parallel-region" for each in self.operators
        )
        return regions or any(each.reads(symbol) for each in self.operators for symbol in shares)

    def _products(
        self, symbols: Mapping[str, Value], weighted_only: bool = False
    ) -> Iterator[tuple[Value, Value, Value, Value]]:
        for each in self.operators:
            if each.kind in WEIGHTED and (each.weights or not weighted_only):
                yield each.product(symbols)


def unsharded(hidden_size: int, seq_length: int) -> dict[str, Value]:
    """The symbols of one sequence on one rank."""
    values = dict.fromkeys(SYMBOLS, 1.0)
    values |= {"hidden": hidden_size, "tokens": seq_length, "seq_length": seq_length}
    return {name: np.array([float(value)]) for name, value in values.items()}


def custom_from_file(operators: list[Mapping[str, Any]], input_values: object = None) -> Custom:
    """A sub-layer from a file's list of mappings; sizes are numbers or texts."""
    flags = ("name", "kind", "weights", "causal", "group")
    made = []
    for position, mapping in enumerate(operators):
        given = {key: mapping[key] for key in flags if key in mapping}
        given.setdefault("name", f"{mapping['kind']} {position + 1}")
        sizes = tuple(
            (key, Expression(str(value))) for key, value in mapping.items() if key not in flags
        )
        made.append(CustomOperator(**given, sizes=sizes))
    values = None if input_values is None else Expression(str(input_values))
    return Custom(tuple(made), values)
