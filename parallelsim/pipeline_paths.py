"""Closed forms of the schedules that split the backward over a V: the longest of a few paths.

Every schedule is a graph of operations, and its makespan is the longest path through it. Along a
path the operations of each kind can be counted; for these schedules the counts are linear in p
ranks and m micro-batches, so that a few rows of counts give the makespan of any costs::

    T = max over rows of  sum over kinds and stages of  count * seconds

A row of a table has the counts of forwards, input gradients and weight gradients, each on the
first stage of the model, on each of its middle stages, and on the last one. The rows were read off
the critical paths of the exact engine (:mod:`parallelsim.timeline`). With m >= 2 p they are paths
whatever the costs (of V-Min only for p other than 3), so that a form is not above the replay: what
it misses are paths without a row.
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

import numpy as np

from parallelsim.operators import FloatArray


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


# Forwards, input gradients, weight gradients; of each: first, all middle, last stage.
ZB_V = """
m-2p+2 2p-2 m      | m-p p m          | m-p 2p-1 m-1
1 2m-2 1           | 0 2m+p-2 1       | 0 2m 0
1 2m-2 1           | 1 2m+2p-4 1      | 1 2m-2p+1 0
m 0 m              | m-p+1 2p-2 m     | m-p+1 0 m-1
m 0 m              | m 0 m            | m 0 m
1 2m-p p-1         | 0 2m-p+2 p-1     | 0 2m p-2
m 0 m              | m-p p m          | m-p 2p-1 m-1
1 2m-2 1           | 0 2m+2p-4 1      | 0 2m-2p+4 0
2p-1 2m-2p 1       | 0 2m+p-2 1       | 0 2m 0
"""
"""ZB-V with m >= 2 p - 1: within 1 % of the replay."""
ZB_V_SHORT = """
1 2p-2 m           | m-p+1 2p-2 m     | m-p+1 0 m-1
1 2m-2 1           | 1 2m+2p-4 1      | 1 2p-1 0
1 2p-2 m           | m-p -m+3p-1 m    | m-p 3m-4p+2 m-1
1 2m-2 1           | 0 2m+p-2 1       | 0 2m 0
2p-3 2 m           | m 0 m            | m 0 m
1 2p-2 m           | 1 2p-2 m         | 1 m-p+1 m-1
1 2m-p p-1         | 0 2m-p+2 p-1     | 0 2m p-2
1 2m 0             | 0 2m+2p-4 0      | 0 2p+1 0
"""
"""ZB-V with p <= m < 2 p - 1."""
V_HALF_EVEN = """
m-p+1 3p-2 m-.5p   | m-.5p+1 3p-2 m-.5p    | m-.5p .5p+1 m-.5p-1
1 2p+2 0           | 1 4m+2p-6 0           | 1 m 0
m-.5p+1 2p-2 m     | m-.5p+1 2p-2 m        | m-.5p 1 m-1
2 2m+p-2 1         | 1 2m+3p-4 0           | 1 2m-.5p-1 0
2 2p-2 1           | m-.5p+1 2m+3p-6 m-.5p+1 | 1 m-.5p+1 0
m-p+1 3p-2 m-p     | m-.5p+1 4p-2 m-.5p    | m-p p+1 m-p-1
2 2p-2 1           | 1 4m+2p-6 1           | 1 m 0
1 2m+p 0           | 1 2m+3p-4 0           | 1 2m-.5p-1 0
m-p+1 2p m-p       | m-.5p+1 5p-4 m-.5p    | m-p .5p+2 m-p-1
"""
V_HALF_ODD = """
m-p+1 2.5p-2.5 m-.5p+.5 | m-p+1 4.5p-4.5 m-.5p+.5 | m-p+1 p m-p
1 2p-2 1           | 1 4m+2p-6 1           | 1 m 0
m-p+1 2.5p-2.5 m   | m-.5p+.5 2.5p-2.5 m   | m-.5p+.5 .5p+.5 m-.5p-.5
1 2m+p-3 1         | 1 2m+3p-5 1           | 1 2m-.5p-.5 0
m-.5p+.5 2p-2 m    | m-.5p+.5 2p-2 m       | m-.5p+.5 1 m-1
m-p+1 3p-3 m       | m-p+1 3p-3 m          | m-p+1 p m-p
1 2m+p 0           | 1 2m+3p-6 0           | 1 2m-.5p-.5 0
1 2m+p-3 p         | 1 2m+p-3 p            | 1 2m-p 0
"""
V_HALF_TWO = """
m-1 4 m-2          | m 6 m-1               | m-2 3 m-3
2 2m 1             | 2 2m 1                | 1 2m-2 0
m 2 m              | m 2 m                 | m-1 1 m-1
2 2 1              | m 2m m                | 1 m 0
m 2 m              | m 0 m                 | m 0 m
m-1 4 m-1          | m 4 m-1               | m-1 2 m-2
"""
"""V-Half with p = 2: its six slots leave no room for the others' stalls."""
V_MIN = """
1 2m+2p-4 m        | 1 2m+2p-4 m           | 1 0 0
1 2p-2 1           | 1 6m+2p-8 1           | 1 0 0
1 2p+2 0           | 1 6m+2p-10 0          | 1 0 0
m-.5p+.5 2p-1.5 m  | m-.5p+.5 2p-2 m       | m-.5p+.5 0 m-1
m 0 m              | m 0 m                 | m 0 m
0 2m 0             | 0 2m 0                | 0 2m 0
"""
V_MIN_THIRD = """
2 2p-2 1           | 1 6m+2p-8 1           | 1 0 0
2 2p-2 1           | m-.5p+1 4m+2.5p-8 m-.5p+1 | 1 0 0
m-.5p+1 2p-2 m     | m-.5p+1 2.5p-6 m      | m-.5p+1 0 m
m-.5p+1 3.5p-2 m-.5p | m-.5p+1 3.5p-2 m-.5p | m-.5p 0 m-.5p-1
m 0 m              | m 0 m                 | m 0 m
0 2m 0             | 0 2m 0                | 0 2m 0
"""
"""V-Min with p a multiple of 3, whose blocks are two slots longer."""
V_MIN_TWO = """
1 2m m             | 1 2m m                | 1 0 0
1 2 m              | m 2m m                | m 0 0
m 2 m              | m 2 m                 | m 0 m-1
1 2m m             | 0 2m m                | 0 2 0
m 2m m             | 1 2 m                 | 1 0 m-1
m 2 m              | m 0 m                 | m 0 m
"""
DUALPIPE_V = """
m-2p+2 2p-2 m      | m-p+1 2p-2 m          | m-p+1 0 m
1 2m-3 1           | 1 2m+2p-4 1           | 1 2m-p 0
1 2m+p-2 0         | 1 2m+p-2 0            | 1 2m-p 0
m-1 1 m-p          | m-p+1 4p-4 m-p+1      | m-p+1 p m-p
m 0 m              | m-p+1 2p-2 m          | m-p+1 0 m
m 0 m              | m 0 m                 | m 0 m
m-2p+2 2p-2 m      | m-p 2p-2 m            | m-p 2 m
1 2m-3 1           | 0 2m+2p-4 1           | 0 2m-p+2 0
1 2m+p-2 0         | 2 2m+p-4 1            | 2 2m-p-2 1
"""


@functools.cache
def _counts(table: str) -> FloatArray:
    """[rows, 9, 3]: of each row and kind of operation, what is multiplied with m, p and 1."""
    rows = [line.replace("|", " ").split() for line in table.strip().splitlines()]
    return np.array([[_coefficients(cell) for cell in row] for row in rows])


def _coefficients(text: str) -> list[float]:
    """``2m-.5p+1`` -> [2, -0.5, 1]."""
    values = {"m": 0.0, "p": 0.0, "": 0.0}
    for sign, number, symbol in re.findall(r"([+-]?)([0-9.]*)([mp]?)", text):
        if number or symbol:
            values[symbol] += float(sign + (number or "1"))
    return list(values.values())


def longest_path(table: str, chunks: ChunkSeconds, p: FloatArray, m: FloatArray) -> FloatArray:
    """Seconds of the longest path of a table, shape [P]."""
    stages = (chunks.first, chunks.middle, chunks.last)
    seconds = [stage[kind] for kind in range(3) for stage in stages]
    longest = np.zeros(len(p))
    for row in _counts(table):
        time = np.zeros(len(p))
        # Term by term: a matrix product would depend on how many plans are computed together.
        for (of_m, of_p, constant), each in zip(row.tolist(), seconds, strict=True):
            if of_m or of_p or constant:
                time = time + (of_m * m + of_p * p + constant) * each
        longest = np.maximum(longest, time)
    return longest
