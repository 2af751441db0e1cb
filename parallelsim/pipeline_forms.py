"""Closed forms of the schedules whose stages differ from rank to rank: seconds of a whole step.

Symbols: p ranks, v chunks a rank, m micro-batches; f, i, w the forward, input gradient and weight
gradient of one micro-batch on a stage, b = i + w; e the first stage of the model, c each of its
middle stages, h the last one. Transfers are free. No form is above the replay. Each docstring says
how far it is below on plans as they occur (stages between equal, b >= f, first and last lighter or
heavier): the worst of a few thousand; ``benchmarks/closed_forms.py`` prints median and worst of 500
random plans of each schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from parallelsim.operators import FloatArray
from parallelsim.pipeline_paths import ChunkSeconds, longest_path

Form = Callable[[ChunkSeconds, FloatArray, FloatArray, FloatArray], FloatArray]
"""(chunks, p, v, m) -> seconds, all of shape [P]."""


def breadth_first_time(
    chunks: ChunkSeconds, p: FloatArray, v: FloatArray, m: FloatArray
) -> FloatArray:
    """Two passes of v rounds; a round takes m times its slowest stage, and the fill p - 1 stages.

    Exact.
    """
    first, middle, last = chunks
    forward = _rounds(first.forward, middle.forward, last.forward, p, v, m)
    return forward + _rounds(first.backward, middle.backward, last.backward, p, v, m)


def _rounds(
    e: FloatArray, c: FloatArray, h: FloatArray, p: FloatArray, v: FloatArray, m: FloatArray
) -> FloatArray:
    """One pass. With v = 1: e + (p - 2) c + h + (m - 1) max(e, c, h)."""
    each = (m - 1) * c
    one = e + (p - 2) * c + h + (m - 1) * np.maximum(np.maximum(e, c), h)
    idle = np.maximum(p - m, 0.0) * c  # a round of fewer micro-batches than ranks
    one_end = each + idle + np.maximum(m * e + h, e + m * h)
    # With two ranks none holds middle stages alone.
    both_light = e + h + each + np.where(p > 2, each + idle, c)
    longest = np.maximum(np.maximum(m * (e + h), one_end), both_light)
    return np.where(v > 1, longest + ((v - 2) * np.maximum(m, p) + p - 1) * c, one)


def hanayo_time(chunks: ChunkSeconds, p: FloatArray, v: FloatArray, m: FloatArray) -> FloatArray:
    """Units of p micro-batches, the last of n' <= p; each a wave's turn of forwards and backwards.

    T = e + (2 p - 2) f_c + sum over units of ( (v - 2) p c + max( n h + (2 p - 2) b_c,
    h + (2 p + 2 n - 4) b_c ) ) + sum over units but the first of turn(n)

    turn(p) = max( e, 2 f_c ),  turn(n') = max( e_b, f_c, (p - n' + 1) f_c - (p - n' - 1) b_c ), n
    micro-batches of the unit: a unit's first forward follows the first backward of the last one's
    end on the first stage, or two forwards on the ranks behind it where that is longer.

    Exact with whole units where b >= f; else worst 1.5 %.
    """
    e, c, h = chunks
    units, left = np.divmod(m, p)
    passes = (v - 2) * p * c.total

    def unit(n: FloatArray) -> FloatArray:
        drained = h.total + (2 * p + 2 * n - 4) * c.backward
        return passes + np.maximum(n * h.total + (2 * p - 2) * c.backward, drained)

    turn = np.maximum(e.total, 2 * c.forward)
    short = (p - left + 1) * c.forward - (p - left - 1) * c.backward
    last_turn = np.maximum(np.maximum(e.backward, c.forward), short)
    time = e.total + (2 * p - 2) * c.forward + units * unit(p) + np.maximum(units - 1, 0.0) * turn
    last = unit(left) + np.where(units > 0, last_turn, 0.0)
    return np.asarray(time + np.where(left > 0, last, 0.0))


def chimera_time(chunks: ChunkSeconds, p: FloatArray, v: FloatArray, m: FloatArray) -> FloatArray:
    """Hanayo's wave on half the ranks: the two directions are the halves of one wave.

    Exact with whole units where b >= f; else worst 1.5 %.
    """
    return hanayo_time(chunks, p / 2, np.full_like(v, 2.0), m / 2)


def zb_h1_time(chunks: ChunkSeconds, p: FloatArray, v: FloatArray, m: FloatArray) -> FloatArray:
    """The paths of ``ZB_H1``. Exact with equal stages and m >= p. Error: worst 1 %."""
    return longest_path("zb-h1", chunks, p, m)


def zb_h2_time(chunks: ChunkSeconds, p: FloatArray, v: FloatArray, m: FloatArray) -> FloatArray:
    """The paths of ``ZB_H2``, of the rank with the longest time between its own first and last
    operation: there is no barrier between steps (:data:`parallelsim.plan.UNSYNCHRONIZED`).

    Exact with equal stages and m >= 2 p. Error: worst 2 %; m <= 3 < p: 12 %.
    """
    return longest_path("zb-h2", chunks, p, m)


def zb_v_time(chunks: ChunkSeconds, p: FloatArray, v: FloatArray, m: FloatArray) -> FloatArray:
    """The paths of ``ZB_V``. Exact with equal stages and m >= 2 p - 1. Error: worst 1 %; fewer
    micro-batches than ranks: 3 %, one alone 11 %.
    """
    return longest_path("zb-v", chunks, p, m)


def v_half_time(chunks: ChunkSeconds, p: FloatArray, v: FloatArray, m: FloatArray) -> FloatArray:
    """The paths of ``V_HALF``. Exact with equal stages. Error: worst 2 % with m >= p; fewer
    micro-batches than ranks: 14 %.

    With i > f + w the weight gradients no longer fill the slots: 4 i + w a micro-batch.
    """
    return longest_path("v-half", chunks, p, m)


def v_min_time(chunks: ChunkSeconds, p: FloatArray, v: FloatArray, m: FloatArray) -> FloatArray:
    """The paths of ``V_MIN``. Error: worst 1 % with m >= p; fewer micro-batches than ranks: 16 %.

    Where i >= f and the last stage is light, a micro-batch takes six input gradients.
    """
    return longest_path("v-min", chunks, p, m)


def dualpipe_v_time(
    chunks: ChunkSeconds, p: FloatArray, v: FloatArray, m: FloatArray
) -> FloatArray:
    """The paths of ``DUALPIPE_V``; overlapping saves no time. Error: worst 2 %."""
    return longest_path("dualpipe-v", chunks, p, m)


def dualpipe_time(chunks: ChunkSeconds, p: FloatArray, v: FloatArray, m: FloatArray) -> FloatArray:
    """DualPipeV on half the ranks with half the micro-batches. Error: worst 2 %."""
    return dualpipe_v_time(chunks, p / 2, v, m / 2)


FORMS: Mapping[str, Form] = {
    "breadth-first": breadth_first_time,
    "chimera": chimera_time,
    "hanayo": hanayo_time,
    "zb-h1": zb_h1_time,
    "zb-h2": zb_h2_time,
    "zb-v": zb_v_time,
    "v-half": v_half_time,
    "v-min": v_min_time,
    "dualpipe": dualpipe_time,
    "dualpipe-v": dualpipe_v_time,
}
"""By the name that plans use; the other schedules are in :mod:`parallelsim.pipeline`."""
