"""Critical paths of the schedules that split the backward, as counts of operations.

A row of a table is a path: its forwards, input gradients and weight gradients, each on the first
stage of the model, on all of its middle stages, and on the last one. The counts are linear in m
micro-batches and p ranks, and in

    h = p // 2, t = p // 3, u = (m + 1) // 2, k = (m - p)+, l = (m - 2 p + 1)+

The rows were read off the exact engine (:mod:`parallelsim.timeline`): the counts of critical paths
for random costs and sizes, fitted by such sums, kept where no replay of any size was below a row.
:data:`PATHS` says which table holds where.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallelsim.operators import FloatArray

ONE = """
1 2p-2 1 | 1 2p-2 1 | 1 0 0
1 0 1    | 1 0 1    | 1 0 1
"""
"""One micro-batch through a V."""
ZB_H1 = """
1 p-2 m       | 1 p-2 m       | 1 0 k
1 p-2 m       | 0 0 m         | 0 0 m
1 m+p-4 1     | 1 m+p-3 1     | 1 k+1 0
k+1 m+p-k-4 2 | k+1 m+p-k-4 2 | k+1 0 0
1 m+p-4 1     | 0 m+p-3 1     | 0 k+3 0
1 m+p-4 2     | 1 m+p-4 2     | 1 k 0
1 p-2 m       | 0 p-2 m       | 0 2 k
k+1 m+p-k-4 1 | k+2 m+p-k-4 1 | k+2 0 0
k+1 p-2 1     | m p-2 1       | m 0 0
"""
"""m > 2."""
ZB_H1_TWO = """
1 p-2 m | 1 p-2 m | 1 0 0
1 p-2 m | 0 0 m   | 0 0 m
1 p-2 m | 0 p-2 m | 0 m 0
1 p-2 1 | m p-2 1 | m 0 0
"""
"""m <= 2."""
ZB_H2 = """
1 p-2 m    | 1 p-2 m   | 1 0 l
0 0 m      | 0 0 m     | 0 0 m
1 m+p-5 1  | 1 m+p-3 1 | 1 l+2 0
0 m+p-3 0  | 0 m+p-3 0 | 0 l+5 0
l+1 p-2 1  | m p-2 1   | m 0 0
3 m+p-5 0  | 3 m+p-5 0 | 3 l 0
1 m+p-3 0  | 1 m+p-3 0 | 1 l+2 0
0 p-2 m    | 0 p-2 m   | 0 3 l
0 m+p-5 1  | 0 m+p-3 1 | 0 l+5 0
1 m+p-5 1  | 3 m+p-5 1 | 3 l 0
m 0 0      | m 0 0     | m 0 0
2u-1 p-u 0 | m p-u 0   | m 0 0
"""
"""m > 4."""
ZB_H2_THREE = """
1 p-2 m | 1 p-2 m | 1 0 0
0 0 m   | 0 0 m   | 0 0 m
0 p-2 m | 0 p-2 m | 0 m 0
1 p-2 1 | m p-2 1 | m 0 0
"""
"""m <= 3."""
ZB_H2_FOUR = """
1 p-2 4   | 1 p-2 4 | 1 0 l
0 0 4     | 0 0 4   | 0 0 4
1 p-1 1   | 3 p-1 1 | 3 0 0
0 p-2 4   | 0 p-2 4 | 0 3 0
3 p-1 0   | 3 p-1 0 | 3 0 0
0 p-2 3   | 0 p-1 3 | 0 4 0
3 p-2 0   | 4 p-2 0 | 4 0 0
l+1 p-2 1 | 4 p-2 1 | 4 0 0
4 0 0     | 4 0 0   | 4 0 0
"""
"""m = 4."""
ZB_V = """
m-2p+2 2p-2 m  | m-p p m      | m-p 2p-1 m-1
1 2m-2 1       | 0 2m+p-2 1   | 0 2m 0
1 2m-2 1       | 1 2m+2p-4 1  | 1 2m-2p+1 0
m-2p+2 2p-2 m  | m-p+1 2p-2 m | m-p+1 0 m-1
m 0 m          | m-p p m      | m-p 2p-1 m-1
1 2m-p p-1     | 0 2m-p+2 p-1 | 0 2m p-2
m 0 m          | m-p+1 2p-2 m | m-p+1 0 m-1
m-2p+2 2p-2 m  | m-p 2p-2 m   | m-p 3 m-1
1 2m-2 1       | 0 2m+2p-4 1  | 0 2m-2p+4 0
2p-1 2m-2p 1   | 0 2m+p-2 1   | 0 2m 0
1 2m 0         | 0 2m+p-2 0   | 0 2m 0
2p-1 2m-2p 1   | 1 2m+2p-4 1  | 1 2m-2p+1 0
1 2m-p p-1     | 0 2m p-1     | 0 2m-2p+4 p-2
2p-3 2m-2p+4 0 | 0 2m+p-2 0   | 0 2m 0
m 0 m          | m 0 m        | m 0 m
"""
"""m >= 2 p - 1."""
ZB_V_SHORT = """
1 2p-2 m    | m-p+1 2p-2 m      | m-p+1 0 m-1
1 2m-2 1    | 1 2m+2p-4 1       | 1 2p-1 0
1 m+p-1 m-p | 0 5p-m-1 m-p      | 0 3m-2p+1 m-p-1
m-1 2p-m m  | m 0 m             | m 0 m
1 2p-2 m    | m-p 2p-2 m        | m-p 2 m-1
1 2m-2 1    | 0 m+3p-3 1        | 0 3m-2p+1 0
m-1 2p-m m  | 2m-2p+1 4p-2m-2 m | 2m-2p+1 1 m-1
m-1 2p-m m  | m-p+1 2p-2 m      | m-p+1 0 m-1
m-1 m 1     | 1 2m+2p-4 1       | 1 2p-1 0
1 2p-2 m    | 2m-2p+1 4p-2m-2 m | 2m-2p+1 1 m-1
1 2m 0      | 0 m+3p-3 0        | 0 3m-2p+1 0
1 2m-2 1    | 0 2m+2p-4 1       | 0 2p+1 0
1 2p-2 m    | m-p 3p-m-1 m      | m-p 3m-4p+2 m-1
m-1 2p-m m  | m-p 3p-m-1 m      | m-p 3m-4p+2 m-1
m 0 m       | m 0 m             | m 0 m
"""
"""p < m < 2 p - 1."""
ZB_V_EQUAL = """
1 2p-2 m     | 1 2p-2 m | 1 1 m-1
1 2p-2 1     | 1 4p-4 1 | 1 2p-1 0
2u-1 2p-2u m | 1 2p-2 m | 1 1 m-1
2u-1 2p-2u m | m 0 m    | m 0 m
m 0 m        | m 0 m    | m 0 m
1 2p 0       | 1 4p-4 0 | 1 2p-1 0
m-1 p 0      | 1 4p-4 0 | 1 2p-1 0
"""
"""m = p."""
ZB_V_FILL = """
1 2p-2 m | 1 2p-2 m   | 1 1 m-1
1 2p-2 1 | 1 2m+2p-4 1 | 1 2m-1 0
1 2p-2 m | m 2p-2m m  | m 1 m-1
m 0 m    | m 0 m      | m 0 m
"""
"""m < p."""
V_HALF_EVEN = """
2 2p 1         | 1 4m+2p-6 0         | 1 m 0
m-h+1 2p-2 m   | m-h+1 2p-2 m        | m-h 1 m-1
1 2m+p 0       | 1 2m+3p-4 0         | 1 2m-h-1 0
2 2p-2 1       | m-h+1 2m+3p-6 m-h+1 | 1 m-h+1 0
m-p+1 3p-2 m-h | m-h+1 3p-2 m-h      | m-h h+1 m-h-1
2 2p-2 1       | 1 4m+2p-6 1         | 1 m 0
2 2m+p-2 1     | 1 2m+3p-4 0         | 1 2m-h-1 0
1 2p+2 0       | 1 4m+2p-6 0         | 1 m 0
m-h 2p+2 m-1   | m-h 2p m-2          | m-h-1 3 m-2
m-p+1 3p m-h   | m-h 3p-2 m-h-1      | m-h-1 h+2 m-h-1
"""
"""p even, m >= p."""
V_HALF_EVEN_FEW = """
h+1 2m m-1     | h+1 2p p-1          | h m-p+2 m-2
2 2m+p-2 h     | h+1 2m+p-2 h        | h 2m-p-h+1 h-1
"""
"""p even, p <= m < 2 p."""
V_HALF_EVEN_MORE = """
m-p+1 3p-2 m-p | m-h+1 4p-2 m-h      | m-p p+1 m-p-1
m-p+1 2p-2 m-p | m-h+1 5p-4 m-h+1    | m-p h+2 m-p-1
m-p+1 2p m-p   | m-h+1 5p-4 m-h      | m-p h+2 m-p-1
"""
"""p even, m > p."""
V_HALF_ODD = """
m-p+1 2p+h-2 m-h | m-p+1 4p+h-4 m-h | m-p+1 p m-p
1 2p-2 1         | 1 4m+2p-6 1      | 1 m 0
m-p+1 2p+h-2 m   | m-h 2p+h-2 m     | m-h h+1 m-h-1
1 2m+p-3 1       | 1 2m+3p-5 1      | 1 2m-h-1 0
m-p+1 3p-3 m     | m-p+1 3p-3 m     | m-p+1 p m-p
m-h 2p-2 m       | m-h 2p-2 m       | m-h 1 m-1
1 m+2p-3 m       | 1 m+2p-3 m       | 1 m 0
1 2m+p 0         | 1 2m+3p-6 0      | 1 2m-h-1 0
1 2m+p-3 p       | 1 2m+p-3 p       | 1 2m-p 0
"""
"""p odd, m >= p."""
V_HALF_TWO = """
m-1 4 m-2 | m 6 m-1 | m-2 3 m-3
2 2m 1    | 2 2m 1  | 1 2m-2 0
m 2 m     | m 2 m   | m-1 1 m-1
2 2 1     | m 2m m  | 1 m 0
m 2 m     | m 0 m   | m 0 m
m-1 4 m-1 | m 4 m-1 | m-1 2 m-2
"""
"""p = 2: its six slots leave no room for the others' stalls."""
V_HALF_FOUR = """
2 4 1 | 2 4 1 | 1 2 0
2 2 2 | 2 2 2 | 1 1 1
2 2 1 | 2 4 2 | 1 2 0
2 2 2 | 2 0 2 | 2 0 2
"""
"""p = m = 2."""
V_HALF_FILL = """
1 2p-2 1 | 1 4m+2p-6 1 | 1 m 0
1 2p-2 m | 1 2p-2 m    | 1 1 m-1
"""
"""m < p: some of the paths."""
V_MIN_0 = """
2 2p+1 1              | m-t+1 4m+3p-t-9 m-t   | 1 0 0
m-t+1 2p+t-2 m        | m-t+1 2p+t-2 m        | m-t 0 m-t-1
1 2p+3 0              | 1 6m+2p-9 0           | 1 0 0
m-t+1 m+3p-t-3 m-t    | m-t+1 m+3p-t-3 m-t    | 1 0 0
2 2p-2 1              | m-t+1 4m+3p-t-8 m-t+1 | 1 0 0
m-t+1 3p+t-2 m-t      | m-t+1 3p+t-2 m-t      | m-p+t 0 m-p+t-1
2 2p-2 1              | 1 6m+2p-8 1           | 1 0 0
m-t+1 2p-2 m          | m-t+1 2p-2 m          | m-t 0 m-1
m-p+t+1 2p-2 m-p+t    | m-t+1 5p+t-4 m-t+1    | m-p+t 0 m-p+t-1
m-t+1 2p+t-2 m-t      | m-t+1 4p-t-2 m        | m-p+t 0 m-p+t-1
m-p+t+1 m+p+t m-p+t   | m-t+1 m+5p-t-6 m-t    | 1 0 0
m-p+t+1 2p+1 m-p+t    | m-t+1 5p+t-5 m-t      | m-p+t 0 m-p+t-1
m-t 2p-2 m-t-1        | m-t+1 3p+t+2 m        | m-p+t 0 m-t-2
2 2p+1 1              | 1 6m+2p-9 0           | 1 0 0
m-p+t+1 m+p+t-3 m-p+t | m-t+1 m+5p-t-5 m-t+1  | 1 0 0
"""
"""p a multiple of 3, whose blocks are two slots longer."""
V_MIN_1 = """
1 2p-2 1         | 1 6m+2p-8 1      | 1 0 0
1 2m+2p-4 m      | 1 2m+2p-4 m      | 1 0 0
m-p+t+1 3p+t-3 m | m-p+t+1 3p+t-3 m | m-p+t+1 0 m-p+t
m-p+t+1 3p-t-3 m | m-t 3p-t-3 m     | m-t 0 m-t-1
1 2p+2 0         | 1 6m+2p-10 0     | 1 0 0
"""
"""p = 1 modulo 3."""
V_MIN_2 = """
1 2p-2 m-t     | m-t 2m+3p+t-6 m-t | m-t 0 0
1 2p-2 1       | 1 6m+2p-8 1       | 1 0 0
m-t 2m+2p-4 m  | 1 3p-t-4 m        | 1 0 m-t-1
1 2m+2p-4 m    | 1 2m+2p-4 m       | 1 0 0
m-t 3p-t-4 m   | m-t 3p-t-4 m      | m-t 0 m-t-1
1 3p-t-4 m     | m-t 2m+2p-4 m     | m-t 0 0
m-t 3p-t-4 m   | m-t 2p-2 m        | m-t 0 m-1
1 2p+2 0       | 1 6m+2p-10 0      | 1 0 0
m-t 2m+p+t-2 m | t+1 2p-2 m        | t+1 0 m-1
"""
"""p = 2 modulo 3."""
V_MIN_TWO = """
1 2m m | 1 2m m | 1 0 0
1 2 m  | m 2m m | m 0 0
m 2m m | 1 2 m  | 1 0 m-1
1 2m m | 0 2m m | 0 2 0
m 2 m  | m 0 m  | m 0 m
m 2 m  | m 2 m  | m 0 m-1
m 2m m | 0 2 m  | 0 2 m-1
1 2m 1 | 0 2m 1 | 0 2m 0
1 2m 1 | 1 2m 1 | 1 2m-2 0
m 2m m | 1 0 m  | 1 0 m
"""
"""p = 2."""
V_MIN_THREE = """
2 2p+1 1              | m-t+1 4m+3p-t-9 m-t   | 1 0 0
m-t+1 2p+t-2 m        | m-t+1 2p+t-2 m        | m-t 0 m-t-1
m-t+1 m+3p-t-3 m-t    | m-t+1 m+3p-t-3 m-t    | 1 0 0
2 2p-2 1              | m-t+1 4m+3p-t-8 m-t+1 | 1 0 0
m-t+1 3p+t-2 m-t      | m-t+1 3p+t-2 m-t      | m-p+t 0 m-p+t-1
m-t+1 2p-2 m          | m-t+1 2p-2 m          | m-t 0 m-1
m-p+t+1 2p-2 m-p+t    | m-t+1 5p+t-4 m-t+1    | m-p+t 0 m-p+t-1
m-t+1 2p+t-2 m-t      | m-t+1 4p-t-2 m        | m-p+t 0 m-p+t-1
m-p+t+1 m+p+t m-p+t   | m-t+1 m+5p-t-6 m-t    | 1 0 0
m-p+t+1 2p+1 m-p+t    | m-t+1 5p+t-5 m-t      | m-p+t 0 m-p+t-1
m-t 2p-2 m-t-1        | m-t+1 3p+t+2 m        | m-p+t 0 m-t-2
m-p+t+1 m+p+t-3 m-p+t | m-t+1 m+5p-t-5 m-t+1  | 1 0 0
2 3m+1 1              | 2 3m+1 1              | 1 0 0
2 m+5 1               | 2 4m-1 1              | 1 m-2 0
"""
"""p = 3."""
V_MIN_SIX = """
2 4 1 | 2 8 2 | 1 0 0
2 7 1 | 2 7 1 | 1 0 0
2 4 2 | 2 4 2 | 1 0 1
2 5 2 | 2 5 2 | 1 0 0
"""
"""p = 3, m = 2."""
V_MIN_FILL = """
1 2p-2 1   | 1 6m+2p-8 1 | 1 0 0
1 m+2p-3 m | 1 m+2p-3 m  | 1 0 0
1 2p-2 m   | 1 2p-2 m    | 1 0 m-1
"""
"""m < p: some of the paths."""
DUALPIPE_V = """
m-2p+2 2p-2 m | m-p+1 2p-2 m     | m-p+1 0 m
1 2m-3 1      | 1 2m+2p-4 1      | 1 2m-p 0
1 2m+p-2 0    | 1 2m+p-2 0       | 1 2m-p 0
m-1 1 m-p     | m-p+1 4p-4 m-p+1 | m-p+1 p m-p
m 0 m         | m-p+1 2p-2 m     | m-p+1 0 m
m 0 m         | m 0 m            | m 0 m
m-2p+2 2p-2 m | m-p 2p-2 m       | m-p 2 m
1 2m-3 1      | 0 2m+2p-4 1      | 0 2m-p+2 0
1 2m+p-2 0    | 2 2m+p-4 1       | 2 2m-p-2 1
"""
"""m >= 2 p."""


class Regime(NamedTuple):
    """Sizes with the same paths."""

    holds: Callable[[FloatArray, FloatArray], NDArray[np.bool_]]
    """(p, m) -> where; sizes of an earlier regime of the schedule are not asked about."""
    table: str


def _always(p: FloatArray, m: FloatArray) -> NDArray[np.bool_]:
    return np.full(len(p), True)


PATHS: Mapping[str, tuple[Regime, ...]] = {
    "zb-h1": (Regime(lambda p, m: m <= 2, ZB_H1_TWO), Regime(_always, ZB_H1)),
    "zb-h2": (
        Regime(lambda p, m: m <= 3, ZB_H2_THREE),
        Regime(lambda p, m: m == 4, ZB_H2_FOUR),
        Regime(_always, ZB_H2),
    ),
    "zb-v": (
        Regime(lambda p, m: m == 1, ONE),
        Regime(lambda p, m: m < p, ZB_V_FILL),
        Regime(lambda p, m: m == p, ZB_V_EQUAL),
        Regime(lambda p, m: m < 2 * p - 1, ZB_V_SHORT),
        Regime(_always, ZB_V),
    ),
    "v-half": (
        Regime(lambda p, m: m == 1, ONE),
        Regime(lambda p, m: m < p, V_HALF_FILL),
        Regime(lambda p, m: (p == 2) & (m == 2), V_HALF_FOUR),
        Regime(lambda p, m: p == 2, V_HALF_TWO),
        Regime(lambda p, m: (p % 2 == 0) & (m == p), V_HALF_EVEN + V_HALF_EVEN_FEW),
        Regime(
            lambda p, m: (p % 2 == 0) & (m < 2 * p),
            V_HALF_EVEN + V_HALF_EVEN_FEW + V_HALF_EVEN_MORE,
        ),
        Regime(lambda p, m: p % 2 == 0, V_HALF_EVEN + V_HALF_EVEN_MORE),
        Regime(_always, V_HALF_ODD),
    ),
    "v-min": (
        Regime(lambda p, m: m == 1, ONE),
        Regime(lambda p, m: (p == 3) & (m == 2), V_MIN_SIX),
        Regime(lambda p, m: m < p, V_MIN_FILL),
        Regime(lambda p, m: p == 2, V_MIN_TWO),
        Regime(lambda p, m: p == 3, V_MIN_THREE),
        Regime(lambda p, m: p % 3 == 0, V_MIN_0),
        Regime(lambda p, m: p % 3 == 1, V_MIN_1),
        Regime(_always, V_MIN_2),
    ),
    "dualpipe-v": (Regime(_always, DUALPIPE_V),),
}
"""By the name that plans use."""
