"""PipeDream-2BW: 1F1B without a flush between steps; the weights lag by one step.

arXiv:2006.09503, section 3.1 and figure 3b. No bubble in the long run: the step takes as long as
the slowest rank works (measure it as the difference of 2 m and m micro-batches). Activations: min(p
- r, m) micro-batches on rank r; two versions of the weights. Forbids chunks, and fewer
micro-batches than ranks: then a third version of the weights would be alive (section 3.1).

Closed form (:mod:`parallelsim.pipeline`): exact with m >= 2 p; worst 0.5 % with fewer.
"""

from __future__ import annotations

from dataclasses import replace

from parallelsim.timeline.operations import Generator, Schedule, Size
from parallelsim.timeline.schedules import one_f_one_b
from parallelsim.timeline.schedules.rules import one_chunk


def build(size: Size) -> Schedule:
    """The order of 1F1B."""
    return replace(one_f_one_b.build(size), name=PIPEDREAM_2BW.name, flushes=False)


def broken_rule(size: Size) -> str | None:
    """At least p micro-batches a step."""
    if size.num_micro_batches < size.pp:
        return (
            f"micro-batches must be at least pp={size.pp}, got {size.num_micro_batches}: "
            "two versions of the weights suffice only then"
        )
    return one_chunk(size)


PIPEDREAM_2BW = Generator("pipedream-2bw", build, broken_rule)
