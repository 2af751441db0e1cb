"""One file a schedule of the literature; :data:`GENERATORS` by the name that plans use."""

from __future__ import annotations

from collections.abc import Mapping

from parallelsim.errors import PlanError
from parallelsim.timeline.operations import Generator, Schedule, Size, check_size
from parallelsim.timeline.schedules.breadth_first import BREADTH_FIRST
from parallelsim.timeline.schedules.chimera import CHIMERA
from parallelsim.timeline.schedules.dualpipe import DUALPIPE, DUALPIPE_V
from parallelsim.timeline.schedules.gpipe import GPIPE
from parallelsim.timeline.schedules.hanayo import HANAYO
from parallelsim.timeline.schedules.interleaved import (
    INTERLEAVED,
    broken_rule_grouped,
    build_grouped,
)
from parallelsim.timeline.schedules.one_f_one_b import ONE_F_ONE_B
from parallelsim.timeline.schedules.pipedream_2bw import PIPEDREAM_2BW
from parallelsim.timeline.schedules.v_shape import V_HALF, V_MIN
from parallelsim.timeline.schedules.zb_v import ZB_V
from parallelsim.timeline.schedules.zero_bubble import ZB_H1, ZB_H2

GENERATORS: Mapping[str, Generator] = {
    generator.name: generator
    for generator in (
        GPIPE,
        ONE_F_ONE_B,
        PIPEDREAM_2BW,
        INTERLEAVED,
        BREADTH_FIRST,
        CHIMERA,
        HANAYO,
        ZB_H1,
        ZB_H2,
        ZB_V,
        V_HALF,
        V_MIN,
        DUALPIPE,
        DUALPIPE_V,
    )
}


def broken_rule(name: str, pp: int, vpp: int, num_micro_batches: int) -> str | None:
    """The rule of the schedule that the size breaks, with its reason; None where it is allowed.

    Raises:
        PlanError: a name that is none of :data:`GENERATORS`, or a size beyond what is replayed.
    """
    size = Size(pp, vpp, num_micro_batches)
    generator = _generator(name)
    check_size(generator, size)
    return generator.broken_rule(size)


def make_schedule(
    name: str, pp: int, vpp: int, num_micro_batches: int, micro_batch_group: int | None = None
) -> Schedule:
    """The operation lists of all ranks.

    ``micro_batch_group``: of interleaved-1f1b, Megatron's ``--microbatch-group-size-per-vp-stage``.

    Raises:
        PlanError: unknown name, a size beyond what is replayed, or a rule of the schedule broken.
    """
    size = Size(pp, vpp, num_micro_batches)
    generator = _generator(name)
    check_size(generator, size)
    if micro_batch_group is None:
        broken = generator.broken_rule(size)
    elif name == INTERLEAVED.name:
        broken = broken_rule_grouped(size, micro_batch_group)
    else:
        broken = "only interleaved-1f1b has micro-batch groups"
    if broken:
        raise PlanError(f"schedule {name}: {broken}")
    return build_grouped(size, micro_batch_group) if micro_batch_group else generator.build(size)


def _generator(name: str) -> Generator:
    if name not in GENERATORS:
        raise PlanError(f"unknown schedule {name[:80]!r}; the timeline has {', '.join(GENERATORS)}")
    return GENERATORS[name]
