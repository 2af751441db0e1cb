"""Sizes of custom operators: arithmetic in named symbols, evaluated over numbers or arrays.

    tokens * 3 * hidden / tp          max(heads / tp, 1)          ceil(height / 2)

Python's parser reads the text; of its syntax tree only numbers, the symbols, ``+ - * / //``,
signs, parentheses, ``ceil``, ``max`` and ``min`` are accepted, so that a file can compute but not
run anything.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallelsim.errors import SpecError

Value = NDArray[np.float64]

SYMBOLS: Mapping[str, str] = {
    "samples": "sequences (images) of the micro-batch, whole on every rank",
    "tokens": "tokens of the micro-batch on one rank: samples * seq_length / cp",
    "seq_length": "tokens of a whole sequence",
    "hidden": "the model's hidden_size",
    "tp": "tensor-parallel ranks",
    "cp": "context-parallel ranks",
    "sp": "tp with sequence parallelism, else 1",
}
FIXED = frozenset({"hidden", "tp"})
"""The symbols that a number of parameters may depend on."""
MAX_CHARACTERS = 200
MAX_DEPTH = 20
MAX_VALUE = 1e30

_BINARY: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
_UNARY: Mapping[type, Callable[[Any], Any]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
_FUNCTIONS: Mapping[str, tuple[Callable[..., Any], int]] = {
    "ceil": (np.ceil, 1),
    "max": (np.maximum, 2),
    "min": (np.minimum, 2),
}


@dataclass(frozen=True, slots=True)
class Expression:
    """A size as text; a plain number is one too."""

    text: str

    def names(self) -> frozenset[str]:
        """The symbols that it reads.

        Raises:
            SpecError: no arithmetic, or an unknown symbol.
        """
        return frozenset(node.id for node in _nodes(_tree(self.text)) if _is_symbol(node))

    def value(self, symbols: Mapping[str, Value]) -> Value:
        """Its value for every entry of the symbols' arrays, all of one shape.

        Raises:
            SpecError: a division by zero, or a result that is negative or beyond ``MAX_VALUE``.
        """
        shape = np.shape(next(iter(symbols.values())))
        with np.errstate(all="ignore"):
            result = np.asarray(_evaluate(_tree(self.text), symbols), np.float64)
        if not np.isfinite(result).all():
            raise SpecError(f"{self.text!r} divides by zero or overflows")
        if (result < 0).any():
            raise SpecError(f"{self.text!r} is negative: {float(result.min()):g}")
        if (result > MAX_VALUE).any():
            raise SpecError(f"{self.text!r} is {float(result.max()):g}, above {MAX_VALUE:g}")
        return np.broadcast_to(result, shape).astype(np.float64)


@cache
def _tree(text: str) -> ast.expr:
    """The checked syntax tree.

    Raises:
        SpecError: too long, no arithmetic, or an unknown symbol.
    """
    if len(text) > MAX_CHARACTERS:
        raise SpecError(f"expected at most {MAX_CHARACTERS} characters, got {len(text)}")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise SpecError(f"{text!r} is no arithmetic expression") from None
    _check(tree, text, MAX_DEPTH)
    return tree


def _check(node: ast.AST, text: str, depth: int) -> None:
    if depth == 0:
        raise SpecError(f"{text!r} is nested deeper than {MAX_DEPTH}")
    if isinstance(node, ast.Constant):
        number = node.value
        is_number = isinstance(number, int | float) and not isinstance(number, bool)
        if not is_number or not float(str(number)) <= MAX_VALUE:
            raise SpecError(f"{text!r}: {str(number)[:40]!r} is no number of a size")
        return
    if isinstance(node, ast.Name):
        if node.id not in SYMBOLS:
            known = ", ".join(SYMBOLS)
            raise SpecError(f"{text!r}: unknown symbol {node.id[:40]!r}; it can be {known}")
        return
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        parts: list[ast.expr] = [node.left, node.right]
    elif isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        parts = [node.operand]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        parts = node.args
        _, count = _FUNCTIONS.get(node.func.id, (None, -1))
        if len(parts) != count or node.keywords:
            words = f"{node.func.id[:40]!r} of {len(parts)}"
            raise SpecError(f"{text!r}: expected ceil(a), max(a, b) or min(a, b), got {words}")
    else:
        raise SpecError(f"{text!r}: only + - * / // ( ) ceil, max and min are understood")
    for part in parts:
        _check(part, text, depth - 1)


def _nodes(tree: ast.expr) -> Iterator[ast.Name]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Name))


def _is_symbol(node: ast.Name) -> bool:
    return node.id in SYMBOLS


def _evaluate(node: ast.expr, symbols: Mapping[str, Value]) -> Any:
    if isinstance(node, ast.Constant):
        return np.float64(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.Name):
        return symbols[node.id]
    if isinstance(node, ast.BinOp):
        left, right = _evaluate(node.left, symbols), _evaluate(node.right, symbols)
        return _BINARY[type(node.op)](left, right)
    if isinstance(node, ast.UnaryOp):
        return _UNARY[type(node.op)](_evaluate(node.operand, symbols))
    assert isinstance(node, ast.Call)  # _check
    assert isinstance(node.func, ast.Name)
    function, _ = _FUNCTIONS[node.func.id]
    return function(*(_evaluate(argument, symbols) for argument in node.args))
