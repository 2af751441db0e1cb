"""Rules that several schedules share: each returns the broken rule with its reason, or None."""

from __future__ import annotations

from parallelsim.timeline.operations import Size


def one_chunk(size: Size) -> str | None:
    """One stage a rank."""
    if size.vpp != 1:
        return f"vpp must be 1, got {size.vpp}: a rank holds one stage (of each copy of the model)"
    return None


def two_chunks(size: Size) -> str | None:
    """A V: down the ranks and up again."""
    if size.vpp != 2:
        return f"vpp must be 2, got {size.vpp}: the model goes down the ranks and up again, once"
    return None


def two_way(size: Size) -> str | None:
    """Two copies of the model in opposite directions."""
    if size.pp % 2:
        return f"pp must be even, got {size.pp}: stages of the two directions share a rank in pairs"
    if size.num_micro_batches % 2:
        return (
            f"micro-batches must be even, got {size.num_micro_batches}: each direction takes half"
        )
    return one_chunk(size)
