"""Mixers of state spaces: Mamba-2 (arXiv:2405.21060), whose chunked scan is products of matrices,
and Mamba-1 (arXiv:2312.00752), whose scan is memory-bound.
"""

from __future__ import annotations

import numpy as np

from parallelsim.layers import SelectiveScan, StateSpace
from parallelsim.operators import Gemm
from parallelsim.sublayers.work import (
    Place,
    Work,
    cast_bytes,
    gathered_input_bytes,
    residual_stream,
    spared_bytes,
    with_own,
)

SCAN_PASSES = (6.0, 14.0)
"""Times that the scan's kernels touch values, B and C, forward and backward: chunk states, state
passing, chunk scan and their gradients. Counted from the kernels of arXiv:2405.21060's
implementation, not measured."""
STATE_PASSES = (4.0, 11.0)
"""Times that its kernels touch the states of the chunks in fp32: written, passed on (read and
written) and read; backward once more the same, and their gradients written, passed on and read by
three kernels. Counted from the same, not measured."""
SELECTIVE_PASSES = (6.0, 14.0)
"""Times that the selective scan touches a channel's tensors: values, dt, gate and output, and half
as long again for its exponentials, of which there are ``state_size`` a value (16 take about as long
as three passes); backward scans again and has the four gradients. Counted, not measured."""


def state_space_work(mixer: StateSpace, place: Place) -> Work:
    """Input projection, convolution, scan, gated norm and output projection of one rank.

    GEMMs (T, (2 i + 2 g n + a)/tp, h) and (T, h, i/tp) with i inner width, g groups, n states. The
    scan's products, in 16 bits head by head, are (T, c/2, n) for each group inside a chunk of c
    tokens and for each of a heads of width d (T, d, c/2) inside it and twice (T, d, n) with the
    chunks' states; its passes move ``SCAN_PASSES`` x 2 T (i + 2 g n)/tp bytes, those of the states
    ``STATE_PASSES`` x 4 T i n / c/tp. Saved 2 (3 i + 2 (i + 2 g n))/tp bytes a token.
    """
    h, tokens, tp = place.model.hidden_size, place.tokens, place.tp
    inner, conv = mixer.inner_width / tp, mixer.conv_width / tp
    into = inner + conv + mixer.num_heads / tp
    hidden = np.full_like(tokens, h)
    state = np.full_like(tokens, mixer.state_size)
    half = np.full_like(tokens, min(mixer.chunk_size, place.seq_length) / 2)
    rows, width = tokens * mixer.num_heads / tp, np.full_like(tokens, mixer.head_dim)
    scan = (
        Gemm(tokens, half * mixer.num_groups / tp, state),
        Gemm(rows, width, half),
        Gemm(rows, width, state),
        Gemm(rows, width, state),
    )
    states = 4.0 * tokens * inner * mixer.state_size / (2 * half)
    forward, backward = (
        2.0 * passes * tokens * conv + again * states
        for passes, again in zip(SCAN_PASSES, STATE_PASSES, strict=True)
    )
    norm = 8.0 * tokens * inner
    convolution = 4.0 * tokens * conv
    cast_f, cast_b = cast_bytes(place, into)
    saved = 2.0 * tokens * (3 * inner + 2 * conv) + gathered_input_bytes(place)
    saved = saved - spared_bytes(place, tokens * (h / place.keys.sequence_shards + inner))
    kernel = conv * (mixer.conv_kernel + mixer.conv_bias)
    return with_own(
        residual_stream(place),
        place,
        saved,
        forward_bytes=place.width * (forward + norm + convolution),
        backward_bytes=place.width * (backward + 1.5 * norm + 2 * convolution),
        cast_forward_bytes=cast_f,
        cast_backward_bytes=cast_b,
        parameters=h * into + inner * h + kernel + 3 * mixer.num_heads / tp + inner,
        gemms=(Gemm(tokens, into, hidden), Gemm(tokens, hidden, inner)),
        gemms_16_bit=scan,
        tp_regions=place.tp_region,
    )


def selective_scan_work(mixer: SelectiveScan, place: Place) -> Work:
    """Projections, convolution, selective scan and gate of one rank (Mamba-1).

    GEMMs (T, 2 i, h), (T, r + 2 n, i), (T, i, r) and (T, h, i) with i inner width, n states, r rank
    of dt; the scan moves ``SELECTIVE_PASSES`` x 2 T i bytes, forward and backward. Saved 2 (5 i + r
    + 2 n) bytes a token: values before and after the convolution, gate, dt, output; dt's columns, B
    and C. Neglects: norms of dt, B and C, whose columns are few.
    """
    h, tokens = place.model.hidden_size, place.tokens
    inner, columns = mixer.inner_width, mixer.dt_rank + 2 * mixer.state_size

    def product(into: float, out_of: float) -> Gemm:
        return Gemm(tokens, np.full_like(tokens, into), np.full_like(tokens, out_of))

    forward, backward = (2.0 * passes * tokens * inner for passes in SELECTIVE_PASSES)
    convolution = 4.0 * tokens * inner
    cast_f, cast_b = cast_bytes(place, 2.0 * inner + 0 * tokens)
    saved = 2.0 * tokens * (5 * inner + columns) + gathered_input_bytes(place)
    saved = saved - spared_bytes(place, tokens * (h / place.keys.sequence_shards + inner))
    return with_own(
        residual_stream(place),
        place,
        saved,
        forward_bytes=place.width * (forward + convolution),
        backward_bytes=place.width * (backward + 2 * convolution),
        cast_forward_bytes=cast_f,
        cast_backward_bytes=cast_b,
        parameters=float(mixer.num_parameters(h)),
        gemms=(
            product(2 * inner, h),
            product(columns, inner),
            product(inner, mixer.dt_rank),
            product(h, inner),
        ),
        tp_regions=place.tp_region,
    )
