"""Partitions that Megatron's flags can say: the cuts of each layout, and the layout string."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

import numpy as np
from parallelsim.search.partition_problem import IntArray, PartitionProblem

from parallelsim.errors import PlanError

MAX_STRING = 100_000
"""Letters of a layout string, and of what it stands for."""


def layout_cuts(problem: PartitionProblem) -> IntArray:
    """Chunk sizes of every partition of the problem's layout (not ``free``), shape [K, chunks].

    Rules of Megatron: with the embedding or the loss counted as a layer, the sum divides over the
    chunks; uneven first and last stages divide over vpp, and so does what is left over the others.
    """
    layers, chunks = len(problem.layers), problem.num_chunks
    if problem.layout == "first-last":
        cuts = _first_last_cuts(layers, problem.pp, problem.vpp)
    else:
        embedding = problem.layout in ("embedding", "embedding-loss")
        loss = problem.layout in ("loss", "embedding-loss")
        each, left = divmod(layers + embedding + loss, chunks)
        cuts = np.full((0 if left else 1, chunks), each)
        cuts[:, 0] -= embedding
        cuts[:, -1] -= loss
    return cuts[(cuts >= problem.min_layers).all(1)]


def _first_last_cuts(layers: int, pp: int, vpp: int) -> IntArray:
    if pp == 1 or layers % vpp:
        return np.empty((0, pp * vpp), np.int64)
    chunks = layers // vpp  # layers of one chunk of every stage together
    found = []
    for middle in range(1, chunks) if pp > 2 else (0,):
        ends = chunks - middle * (pp - 2)
        stages = np.full((max(ends - 1, 0), pp), middle)
        stages[:, 0] = np.arange(1, len(stages) + 1)
        stages[:, -1] = ends - stages[:, 0]
        found.append(stages)
    return np.tile(np.concatenate(found or [np.empty((0, pp), np.int64)]), (1, vpp))


def megatron_layout(counts: Sequence[int], num_mtp: int = 0, mtp_chunk: int = -1) -> str:
    """``--pipeline-model-parallel-layout`` of decoder layers by chunk: ``Et*7|(t*8|)*14t*7L``.

    Chunk number c is virtual stage c // pp of rank c mod pp. E is the embedding, t a decoder layer,
    m an MTP layer (all in chunk ``mtp_chunk``), L the loss. Quote the string for a shell.

    Raises:
        PlanError: no chunk, a negative count, or a decoder layer after the MTP layers.
    """
    counts = [int(count) for count in counts]
    if not counts or min(counts) < 0 or not -len(counts) <= mtp_chunk < len(counts) or num_mtp < 0:
        raise PlanError("a layout needs chunks with layer counts of at least 0")
    mtp_chunk %= len(counts)
    if num_mtp and any(counts[mtp_chunk + 1 :]):
        raise PlanError(f"decoder layers follow the MTP layers of chunk {mtp_chunk}")
    chunks = [_letters("t", count) for count in counts]
    chunks[mtp_chunk] += _letters("m", num_mtp)
    chunks[0] = "E" + chunks[0]
    *closed, last = chunks
    parts = []
    for chunk, group in itertools.groupby(closed):
        number = len(list(group))
        # Megatron multiplies one letter or one pair of parentheses, and never within another.
        parts.append(f"({chunk}|)*{number}" if number > 1 else f"{chunk}|")
    return "".join(parts) + last + "L"


def _letters(letter: str, count: int) -> str:
    return f"{letter}*{count}" if count > 2 else letter * count


def read_megatron_layout(text: str) -> tuple[list[int], int, int]:
    """(decoder layers of each chunk, MTP layers, their chunk or -1) of a layout string.

    Raises:
        PlanError: letters, multipliers or an order that Megatron refuses.
    """
    expanded = _expanded(text)
    other = sorted(set(expanded) - set("EtmL|"))
    if other:
        raise PlanError(f"a pipeline layout has letters E t m L and |, got {other[0]!r}")
    if re.fullmatch("E[t|]*[m|]*L", expanded) is None:
        raise PlanError("a pipeline layout starts with E, then has all t, all m, and ends in L")
    chunks = expanded.split("|")
    mtp = [c for c, chunk in enumerate(chunks) if "m" in chunk]
    if len(mtp) > 1:
        raise PlanError("the MTP layers of a pipeline layout must be in one chunk")
    return [chunk.count("t") for chunk in chunks], expanded.count("m"), mtp[0] if mtp else -1


def _expanded(text: str) -> str:
    """The string with its multipliers written out: parentheses first, then single letters."""
    for pattern in (r"\(([^()]+)\)\*([0-9]+)", r"([A-Za-z|])\*([0-9]+)"):
        pieces = re.split(pattern, text.replace(",", ""))
        written = [pieces[0]]
        for unit, number, rest in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
            if len(number) > 6 or len(unit) * int(number) > MAX_STRING:
                raise PlanError(f"a pipeline layout repeats {number[:20]} times; that is too long")
            written += [unit * int(number), rest]
        text = "".join(written)
        if len(text) > MAX_STRING:
            raise PlanError(f"a pipeline layout has more than {MAX_STRING} letters")
    return text
