"""The global batch of a model where none is given: its own, moved to what the GPUs divide."""

from __future__ import annotations

from parallelsim.errors import SpecError
from parallelsim.model import ModelSpec
from parallelsim.planfile import MAX_BATCH
from parallelsim.units import format_count

BATCH_TOLERANCE = 1 / 16
"""A default batch may move by this share to a number that the GPUs divide better."""


def default_global_batch_size(model: ModelSpec, num_gpus: int) -> int:
    """The model's own batch in sequences, moved by at most 1/16 so that the GPUs divide it well.

    The batch is a multiple of dp times the micro-batch: 4.0 M tokens of 8192 are 488 sequences,
    which few dp divide; 512 is near and all powers of two divide it.

    At most ``MAX_BATCH`` sequences.

    Raises:
        SpecError: the model's file states no batch.
    """
    if model.default_global_batch_tokens < 1:
        raise SpecError(f"{model.name} states no batch; give --global-batch-size (sequences)")
    wanted = min(model.default_global_batch_tokens / model.seq_length, MAX_BATCH)
    for divisor in (d for d in range(num_gpus, 0, -1) if num_gpus % d == 0):
        batch = round(wanted / divisor) * divisor
        if 0 < batch <= MAX_BATCH and abs(batch - wanted) <= BATCH_TOLERANCE * wanted:
            return batch
    return max(1, round(wanted))


def default_batch_note(model: ModelSpec, num_gpus: int, batch: int) -> str:
    """Where the default batch comes from, and why it is not the model's own to the sequence."""
    own = round(model.default_global_batch_tokens / model.seq_length)
    tokens = f"the model's own {format_count(model.default_global_batch_tokens)} tokens"
    if own > MAX_BATCH:
        return f"batch of {batch} sequences, the most there may be: {tokens} would be {own}"
    if batch == own:
        return f"batch of {batch} sequences: {tokens}"
    why = f"which {num_gpus} GPUs divide better"
    return f"batch of {batch} sequences, not {own} ({tokens}): {batch} is near, {why}"
