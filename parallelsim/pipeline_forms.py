"""Closed forms of the schedules whose stages differ from rank to rank: seconds of a whole step.

Symbols: p ranks, v chunks a rank, m micro-batches; f, i, w the forward, input gradient and weight
gradient of one micro-batch on a stage, b = i + w; e the first stage of the model, c each of its
middle stages, h the last one. Transfers are free. Each docstring says how far the form is from the
replay on plans as they occur (stages between equal, b >= f, first and last lighter or heavier):
median and worst with m >= 2 p, and the worst with fewer, over a few runs of
``benchmarks/closed_forms.py``, which prints them for 500 random plans of each schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from parallelsim.operators import FloatArray
from parallelsim.pipeline_paths import (
    DUALPIPE_V,
    V_HALF_EVEN,
    V_HALF_ODD,
    V_HALF_TWO,
    V_MIN,
    V_MIN_THIRD,
    V_MIN_TWO,
    ZB_V,
    ZB_V_SHORT,
    ChunkSeconds,
    Operations,
    longest_path,
)

Form = Callable[[ChunkSeconds, FloatArray, FloatArray, FloatArray], FloatArray]
"""(chunks, p, v, m) -> seconds, all of shape [P]."""


def breadth_first_time(
    chunks: ChunkSeconds, p: FloatArray, v: FloatArray, m: FloatArray
) -> FloatArray:
    """Two passes of v rounds; a round takes m times its slowest stage, and the fill p - 1 stages.

    Exact with m >= 2 p; fewer: worst 1.5 %.
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
    # With two ranks none holds middle stages alone.
    both_light = np.where(p > 2, e + h + 2 * each, 0.0)
    ends = np.maximum(m * e + m * h, np.maximum(m * e + h + each, e + each + m * h))
    waits = np.maximum(p - m, 0.0) + (v - 2) * np.maximum(m, p) + p - 1
    return np.where(v > 1, np.maximum(ends, both_light) + waits * c, one)


def hanayo_time(chunks: ChunkSeconds, p: FloatArray, v: FloatArray, m: FloatArray) -> FloatArray:
    """Units of p micro-batches; each a wave's turn of forwards and backwards.

    T = (2 p - 2) f_c + sum over units of  e + (v - 2) p c + max( n h + (2 p - 2) b_c,
    h + (4 p - 4) b_c ), n micro-batches of the unit

    Exact for whole units where the first stage is not lighter than those between. Error: median 0,
    worst 2.5 %; fewer micro-batches 3.5 %.
    """
    first, middle, last = chunks
    units, left = np.divmod(m, p)
    back = middle.backward
    base = first.total + (v - 2) * p * middle.total

    def unit(n: FloatArray) -> FloatArray:
        drained = last.total + (2 * p - 2 + 2 * (n - 1)) * back
        return base + np.maximum(n * last.total + (2 * p - 2) * back, drained)

    fill = (2 * p - 2) * middle.forward
    return np.asarray(fill + units * unit(p) + np.where(left > 0, unit(left), 0.0))


def chimera_time(chunks: ChunkSeconds, p: FloatArray, v: FloatArray, m: FloatArray) -> FloatArray:
    """Hanayo's wave on half the ranks: the two directions are the halves of one wave.

    Exact for whole units where the first stage is not lighter than those between. Error: median 0,
    worst 3 %; fewer micro-batches 4 %.
    """
    return hanayo_time(chunks, p / 2, np.full_like(v, 2.0), m / 2)


def zero_bubble_time(depth: int) -> Form:
    """ZB-H1 (depth 1) and ZB-H2 (depth 2), as 1F1B on forwards and input gradients.

    Rank s starts after the forwards of earlier stages, works, waits in the fill for its first input
    gradient beyond d (p - 1 - s) forwards, likewise in the drain, and ends with the d s + 1 weight
    gradients that it still holds, or with the input gradients of earlier stages:
    T = max over s of  sum_{k<s} f_k + m (f_s + i_s) + (m - 1 - d s) w_s + waits
        + max( (d s + 1) w_s, sum_{k<s} i_k + w_0 )

    ZB-H2 has no barrier between steps (:data:`parallelsim.plan.UNSYNCHRONIZED`): what counts is the
    longest time between a rank's own first and last operation, of rank s  m (f_s + i_s + w_s) +
    waits, of the first rank the above without (d s + 1) w_s.

    Exact with equal stages and m >= d p. Error: median 0, worst 1 % (H1) and 2.5 % (H2); fewer
    micro-batches 1 % and 6 %.
    """

    def form(chunks: ChunkSeconds, p: FloatArray, v: FloatArray, m: FloatArray) -> FloatArray:
        last = p - 1
        bounds = [
            _rank_time(chunks, p, m, position, depth, barrier=depth == 1)
            for position in (np.zeros_like(p), np.minimum(1.0, last), np.floor(p / 2), p - 2, last)
        ]
        return np.asarray(np.maximum.reduce(bounds))

    return form


def _rank_time(
    chunks: ChunkSeconds, p: FloatArray, m: FloatArray, s: FloatArray, depth: int, *, barrier: bool
) -> FloatArray:
    """Seconds until all that hangs on rank s has ended; without a barrier, of the rank alone."""
    e, c, h = chunks
    is_first, is_last = s == 0, s == p - 1
    stage = Operations(
        *(
            np.where(is_first, first, np.where(is_last, last, middle))
            for first, middle, last in zip(e, c, h, strict=True)
        )
    )
    between = np.maximum(s - 1, 0.0)
    forwards = np.where(is_first, 0.0, e.forward + between * c.forward)
    inputs = np.where(is_first, 0.0, e.input + between * c.input)
    after = np.maximum(p - 2 - s, 0.0)
    to_last = np.where(is_last, 0.0, np.where(is_first, p - 2, after) * (c.forward + c.input))
    later = to_last + np.where(is_last, 0.0, h.forward + h.input)
    ahead = np.minimum(depth * (p - 1 - s), m - 1)
    fill = np.maximum(later - ahead * stage.forward, 0.0)
    drain = np.maximum(
        later - ahead * (stage.input + stage.weight),
        to_last - np.maximum(ahead - 1, 0.0) * (stage.input + stage.weight),
    )
    waits = fill + np.maximum(drain, 0.0)
    done = np.maximum(m - 1 - depth * s, 0.0)
    work = m * (stage.forward + stage.input) + done * stage.weight
    seen_by_first = forwards + work + waits + inputs + e.weight
    own = (m - done) * stage.weight + work + waits
    return np.asarray(np.maximum(own + forwards if barrier else own, seen_by_first))


def zb_v_time(chunks: ChunkSeconds, p: FloatArray, v: FloatArray, m: FloatArray) -> FloatArray:
    """The paths of ``pipeline_paths.ZB_V``. Error: median 0, worst 2.5 %, with m >= p.

    Exact with equal stages and m >= 2 p - 1. Fewer micro-batches than ranks: too low, by up to a
    fifth.
    """
    full = longest_path(ZB_V, chunks, p, m)
    return np.where(m >= 2 * p - 1, full, longest_path(ZB_V_SHORT, chunks, p, m))


def v_half_time(chunks: ChunkSeconds, p: FloatArray, v: FloatArray, m: FloatArray) -> FloatArray:
    """The paths of ``pipeline_paths.V_HALF_*``: median 0, worst 2 %; m < 2 p: 10 %.

    With i > f + w the weight gradients no longer fill the slots: 4 i + w a micro-batch.
    """
    even = longest_path(V_HALF_EVEN, chunks, p, m)
    odd = longest_path(V_HALF_ODD, chunks, p, m)
    two = longest_path(V_HALF_TWO, chunks, p, m)
    return np.where(p == 2, two, np.where(p % 2 == 0, even, odd))


def v_min_time(chunks: ChunkSeconds, p: FloatArray, v: FloatArray, m: FloatArray) -> FloatArray:
    """The paths of ``pipeline_paths.V_MIN*``: exact where i >= f and the last stage is light.

    A micro-batch then takes six input gradients. Error: median 0.2 %, worst 6 %, also with fewer
    micro-batches: too many paths for a table.
    """
    third = longest_path(V_MIN_THIRD, chunks, p, m)
    other = np.where(
        p == 2, longest_path(V_MIN_TWO, chunks, p, m), longest_path(V_MIN, chunks, p, m)
    )
    return np.where(p % 3 == 0, third, other)


def dualpipe_v_time(
    chunks: ChunkSeconds, p: FloatArray, v: FloatArray, m: FloatArray
) -> FloatArray:
    """The paths of ``pipeline_paths.DUALPIPE_V``; overlapping saves no time.

    Error: median 0, worst 2.5 %.
    """
    return longest_path(DUALPIPE_V, chunks, p, m)


def dualpipe_time(chunks: ChunkSeconds, p: FloatArray, v: FloatArray, m: FloatArray) -> FloatArray:
    """DualPipeV on half the ranks with half the micro-batches: median 0, worst 2.5 %."""
    return dualpipe_v_time(chunks, p / 2, v, m / 2)


FORMS: Mapping[str, Form] = {
    "breadth-first": breadth_first_time,
    "chimera": chimera_time,
    "hanayo": hanayo_time,
    "zb-h1": zero_bubble_time(1),
    "zb-h2": zero_bubble_time(2),
    "zb-v": zb_v_time,
    "v-half": v_half_time,
    "v-min": v_min_time,
    "dualpipe": dualpipe_time,
    "dualpipe-v": dualpipe_v_time,
}
"""By the name that plans use; the other schedules are in :mod:`parallelsim.pipeline`."""
