"""Closed forms of the schedules that split the backward: the longest of a few paths.

Every schedule is a graph of operations, and its makespan is the longest path through it. Along a
path the operations of each kind can be counted; for these schedules the counts are linear in p
ranks and m micro-batches, so that a few rows of counts give the makespan of any costs::

    T = max over rows of  sum over kinds and stages of  count * seconds

The rows (:mod:`parallelsim.pipeline_tables`) are paths whatever the costs, so that a form is not
above the replay: what it misses are paths without a row.
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

import numpy as np

from parallelsim.operators import FloatArray
from parallelsim.pipeline_tables import PATHS

SYMBOLS = "mphtukl"
"""What counts are linear in, beside 1; see :mod:`parallelsim.pipeline_tables`."""


class Operations(NamedTuple):
    """Seconds of one micro-batch on a stage; float64 of shape [P]."""

    forward: FloatArray
    input: FloatArray
    """The backward without its weight gradients; with the recompute."""
    weight: FloatArray

    @property
    def backward(self) -> FloatArray:
        """Both halves."""
        return self.input + self.weight

    @property
    def total(self) -> FloatArray:
        """Forward and backward."""
        return self.forward + self.input + self.weight


class ChunkSeconds(NamedTuple):
    """The stages of the model, chunk by chunk: the first, each of the middle ones, the last.

    ``middle`` is 0 where there are only two stages.
    """

    first: Operations
    middle: Operations
    last: Operations


@functools.cache
def _counts(table: str) -> FloatArray:
    """[rows, 9, 8]: of each row and kind of operation, what is multiplied with each symbol, 1."""
    rows = [line.replace("|", " ").split() for line in table.splitlines() if line]
    return np.array([[_coefficients(cell) for cell in row] for row in rows])


def _coefficients(text: str) -> list[float]:
    """``2m-p+1`` -> [2, -1, 0, 0, 0, 0, 0, 1]."""
    values = dict.fromkeys([*SYMBOLS, ""], 0.0)
    for sign, number, symbol in re.findall(rf"([+-]?)([0-9]*)([{SYMBOLS}]?)", text):
        if number or symbol:
            values[symbol] += float(sign + (number or "1"))
    return list(values.values())


def longest_path(name: str, chunks: ChunkSeconds, p: FloatArray, m: FloatArray) -> FloatArray:
    """Seconds of the longest path of a schedule's table, shape [P]."""
    longest, left = np.empty(len(p)), np.arange(len(p))
    for holds, table in PATHS[name]:
        chosen = holds(p[left], m[left])
        index, left = left[chosen], left[~chosen]
        if index.size:
            seconds = [stage[kind][index] for kind in range(3) for stage in chunks]
            longest[index] = _longest_row(table, seconds, p[index], m[index])
    return longest


def _longest_row(table: str, seconds: list[FloatArray], p: FloatArray, m: FloatArray) -> FloatArray:
    symbols: list[FloatArray] = [m, p, p // 2, p // 3, (m + 1) // 2]
    symbols += [np.maximum(m - p, 0.0), np.maximum(m - 2 * p + 1, 0.0), np.ones(len(p))]
    longest = np.zeros(len(p))
    for row in _counts(table).tolist():
        time = np.zeros(len(p))
        # Term by term: a matrix product would depend on how many plans are computed together.
        for factors, each in zip(row, seconds, strict=True):
            terms = zip(factors, symbols, strict=True)
            count = [symbol * factor for factor, symbol in terms if factor]
            if count:
                time = time + functools.reduce(np.add, count) * each
        longest = np.maximum(longest, time)
    return longest
