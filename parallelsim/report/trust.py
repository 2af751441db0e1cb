"""How sure the order of ranked plans is, in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from parallelsim.units import format_percent

if TYPE_CHECKING:
    from parallelsim.correlation import Trust


def order_words(trust: Trust) -> str:
    """How sure it is that plan 1 is the fastest of the listed ones; empty for one plan alone."""
    size = len(trust.p_best)
    if size < 2:
        return ""
    ranks = [i + 1 for i in range(size) if trust.tied[i]]
    ties = f"Plan {rank_words(ranks)} tie with plan 1" if ranks else "No plan ties with plan 1"
    ties = ties.replace("Plan ", "Plans ", 1) if len(ranks) > 1 else ties.replace("tie ", "ties ")
    return (
        f"{ties} (=: less than 80 % sure that plan 1 is faster). Plan 1 is the fastest of these "
        f"{size} with a probability of {float(trust.p_best[0]):.0%}; it is expected to lose "
        f"{format_percent(trust.regret_frac)} to the one that turns out fastest."
    )


def rank_words(ranks: Sequence[int]) -> str:
    """``2-5, 7``."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
