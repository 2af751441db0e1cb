"""Plans whose layers are cut into stages by dynamic programming, where that may gain.

A family is a plan without its layout and recompute depth. Its estimate is the step with the whole
work shared out evenly over the ranks, the embedding and the head included, and the least recompute
that fits: about what the best cut reaches. The families whose estimate would enter the ranking, and
beats the layouts already replayed, are cut in the order of the estimates: ``MAX_CUTS`` of them, and
``MAX_SIMILAR`` of those that differ in the number of virtual stages alone. The cut is the best for
a closed form without transfers; the cuts a layer away from it at either end go along, for the
replay to choose from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from parallelsim.search.partition import Partition, partition
from parallelsim.search.partition_inputs import layer_tables, partition_problem
from parallelsim.search.partition_problem import LayerItems, PartitionProblem
from parallelsim.search.refine import Replays
from parallelsim.search.space import SearchSpace
from parallelsim.search.variants import SHARED, way

from parallelsim.costs import CostTable
from parallelsim.errors import NoFeasiblePlanError, PlanError
from parallelsim.layers import Layer
from parallelsim.memory import peak_memory
from parallelsim.memory_states import States
from parallelsim.operators import FloatArray, IntArray
from parallelsim.pipeline import StageSeconds
from parallelsim.plan import PLAN_FIELDS, Plan, code
from parallelsim.plan_batch import PlanBatch
from parallelsim.replay import least_replays_s, same_schedules
from parallelsim.rules import RULES, obeys_rules
from parallelsim.simulate import Simulation, by_block
from parallelsim.stage_seconds import embedding_seconds, head_seconds, leading_seconds
from parallelsim.stages import Columns
from parallelsim.step import StepTail, after_stages

MAX_CUTS = 12
"""Families that are cut: about ten milliseconds each."""
MAX_SIMILAR = 2
LEAST_GAIN = 5e-4
"""Share of the step that a cut must promise."""
SPARE_MEMORY = 1.02
"""The estimate's even share may exceed the memory limit by so much: cuts are uneven."""
MOST_NEIGHBOURS = 8
"""Cuts next to one: at two ends, to and fro, with two chunks between."""
MAX_CHUNKS = 1024
"""Families with more chunks are not cut."""
FREE, FULL = code("layout", "free"), code("recompute", "full")
OF_CUT = ("layout", "first_stage_layers", "last_stage_layers", "chunk_layers")
OF_FAMILY = tuple(
    name for name in PLAN_FIELDS if name not in (*OF_CUT, "recompute", "recompute_num_layers")
)
WITHOUT_CHUNKS = tuple(name for name in OF_FAMILY if name not in ("vpp", "schedule"))
BEFORE_CUT = tuple(rule for rule in RULES if rule.name != "chunk-layers-fit")
"""Rules that can be asked before the layers are cut."""

BoolArray = NDArray[np.bool_]
Family = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CutPlans:
    """What the search for cuts found."""

    plans: PlanBatch
    """Of each family the cut, and those next to it."""
    num_cut: int
    num_left: int
    """Families that a cut might have brought into the ranking and that were not cut."""


def family(plans: PlanBatch, index: int) -> Family:
    """All fields of a plan but its layout and recompute depth."""
    return tuple(int(getattr(plans, name)[index]) for name in OF_FAMILY)


def best_of_families(simulation: Simulation) -> dict[Family, float]:
    """The least step time of each family, of layouts other than ``free``."""
    return _least(simulation, family)


def best_of_ways(simulation: Simulation) -> dict[Family, float]:
    """The least step time of the variants of each plan, of layouts other than ``free``."""
    return _least(simulation, way)


def _least(
    simulation: Simulation, key_of: Callable[[PlanBatch, int], Family]
) -> dict[Family, float]:
    best: dict[Family, float] = {}
    for index in np.flatnonzero(simulation.plans.layout != FREE).tolist():
        key = key_of(simulation.plans, index)
        best[key] = min(best.get(key, np.inf), float(simulation.step_time_s[index]))
    return best


def fastest_cuts(replays: Replays, plans: PlanBatch, below_s: float) -> Simulation:
    """The fastest safe plan of each row, of those that may be faster than ``below_s``: of each
    family where every variant is ranked, else of the variants of one another.

    Of each row the plan with the least bound is replayed first, then those whose bounds are below
    its time.
    """
    key_of = family if replays.all_variants else way
    cut = replays.simulated(plans)
    cut = cut.take(cut.obeys_rules & (cut.zone == 0))
    least = least_cut_step_time(replays.table, cut.plans)
    keys = [key_of(cut.plans, i) for i in range(len(cut))]
    left = [i for i in np.argsort(least, kind="stable").tolist() if least[i] < below_s]
    first = {keys[i]: i for i in reversed(left)}
    done = list(first.values())
    found = replays.replayed(cut.take(np.array(done, np.int64)))
    best = dict(zip(first, found.step_time_s.tolist(), strict=True))
    more = [i for i in left if i not in done and least[i] < min(below_s, best[keys[i]])]
    found = Simulation.concatenate([found, replays.replayed(cut.take(np.array(more, np.int64)))])
    fastest: dict[Family, int] = {}
    for place in np.lexsort([np.array(done + more), found.step_time_s]).tolist():
        fastest.setdefault(keys[(done + more)[place]], place)
    return found.take(np.array(list(fastest.values()), np.int64))


def least_cut_step_time(table: CostTable, plans: PlanBatch) -> FloatArray:
    """Seconds that no replay of these plans with layout ``free`` is below, shape [P]."""
    least = np.zeros(len(plans))
    for index in same_schedules(plans, np.arange(len(plans))):
        least[index] = least_replays_s(table, plans.take(index))
    return least


def find_cuts(
    space: SearchSpace,
    table: CostTable,
    rows: Mapping[int, PlanBatch],
    known: Mapping[Family, float],
    below_s: float,
    memory_limit: float,
    variants: Mapping[Family, float] | None = None,
) -> CutPlans:
    """Plans with their layers cut for the least time, of the families that may beat ``below_s``.

    Args:
        space: what is searched.
        table: its costs.
        rows: by pp, plans without staging that obey the rules, may fit and may be so fast.
        known: the best step time of each family that was replayed.
        below_s: the last place of the ranking.
        memory_limit: share of the reported memory that a stage may take.
        variants: the best step time of the variants of each plan that was replayed, which a cut has
            to beat too; None where every variant is ranked.
    """
    none = PlanBatch.from_plans([])
    families = []
    for pp, unstaged in rows.items():
        if pp > 1:
            families.append(_with_stagings(space, pp, unstaged))
    plans = PlanBatch.concatenate([none, *families])
    inputs = (space.model, space.cluster, space.framework)
    plans = plans.take(obeys_rules(*inputs, plans, BEFORE_CUT))
    _, plans, estimate = estimated(space, table, plans, below_s, memory_limit)
    best = np.array([known.get(family(plans, i), np.inf) for i in range(len(plans))])
    if variants is not None:
        others = [variants.get(way(plans, i), np.inf) for i in range(len(plans))]
        best = np.minimum(best, others)
    promising = np.flatnonzero(estimate < np.minimum(below_s, best * (1 - LEAST_GAIN)))
    promising = promising[np.argsort(estimate[promising], kind="stable")]
    chosen = _diverse(plans, promising, WITHOUT_CHUNKS if variants is None else SHARED)
    plans = plans.take(np.array(chosen, np.int64))
    tables = layer_tables(*inputs, plans)
    found = [
        cut
        for plan in plans
        for cut in cuts(space, plan, memory_limit, tables)
        if space.allows(cut)
    ]
    return CutPlans(PlanBatch.from_plans(found), len(chosen), len(promising) - len(chosen))


def _diverse(plans: PlanBatch, promising: IntArray, shared: Sequence[str]) -> list[int]:
    """The first of the promising ones, few that have these fields in common."""
    seen: Counter[Family] = Counter()
    chosen: list[int] = []
    for index in promising.tolist():
        similar = tuple(int(getattr(plans, name)[index]) for name in shared)
        seen[similar] += 1
        if seen[similar] <= MAX_SIMILAR:
            chosen.append(index)
        if len(chosen) == MAX_CUTS:
            break
    return chosen


def stagings_to_cut(space: SearchSpace, pp: int) -> list[tuple[int, int]]:
    """(vpp, schedule code) with which layers are cut, of the schedules that deal chunks to the
    ranks round by round.
    """
    return [(vpp, schedule) for vpp, schedule in space.free_stagings(pp) if pp * vpp <= MAX_CHUNKS]


def _with_stagings(space: SearchSpace, pp: int, plans: PlanBatch) -> PlanBatch:
    """Every plan with each of them."""
    stagings = stagings_to_cut(space, pp)
    number = len(stagings)
    columns = {name: np.repeat(getattr(plans, name), number) for name in PLAN_FIELDS}
    for name, values in zip(("vpp", "schedule"), np.array(stagings).reshape(-1, 2).T, strict=True):
        columns[name] = np.tile(values, len(plans))
    columns["recompute_modules"] = np.zeros(len(columns["vpp"]), np.int64)
    return PlanBatch.from_columns(number * len(plans), columns | {"layout": FREE})


def estimated(
    space: SearchSpace, table: CostTable, plans: PlanBatch, below_s: float, memory_limit: float
) -> tuple[IntArray, PlanBatch, FloatArray]:
    """(positions of the families whose estimate is below ``below_s``, those at the depth of
    recompute that they need, their estimates). Layouts are even here, with fractions of layers.
    """
    index = np.arange(len(plans))
    limit_bytes = SPARE_MEMORY * memory_limit * float(space.cluster.accelerator.memory_bytes)
    plans = replace(plans, layout=np.zeros(len(plans), np.int64))
    least = 0 if "none" in space.recompute_kinds else 1
    most = np.ceil(space.model.num_layers / (plans.pp * plans.vpp)).astype(np.int64)
    depth = np.full(len(plans), least)
    can_recompute = "full" in space.recompute_kinds

    def chosen(kept: BoolArray) -> None:
        nonlocal index, plans, depth, most
        index, plans, depth, most = index[kept], plans.take(kept), depth[kept], most[kept]

    chosen(by_block(table, _recomputing(plans, depth), balanced_step_time)[0] < below_s)
    over = by_block(table, _recomputing(plans, depth), peak_memory)[0] > limit_bytes
    if not can_recompute:
        chosen(~over)
        over = over[~over]
    low, high = depth.copy(), np.where(over, most + 1, depth)
    while (high - low > 1).any():
        middle = (low + high) // 2
        full = by_block(table, _recomputing(plans, middle), peak_memory)[0] > limit_bytes
        low, high = np.where(full, middle, low), np.where(full, high, middle)
    depth = np.where(over, high, depth)
    chosen(depth <= most)
    inputs = (space.model, space.cluster, space.framework)
    listed = replace(_recomputing(plans, depth), layout=np.full(len(plans), FREE))
    chosen(obeys_rules(*inputs, listed, BEFORE_CUT))
    estimate = by_block(table, _recomputing(plans, depth), balanced_step_time)[0]
    below = estimate < below_s
    return index[below], plans.take(below), estimate[below]


def _recomputing(plans: PlanBatch, depth: IntArray) -> PlanBatch:
    return replace(plans, recompute=np.where(depth > 0, FULL, 0), recompute_num_layers=depth)


def balanced_step_time(
    table: CostTable, rows: IntArray, plans: PlanBatch, columns: Columns, held: States
) -> FloatArray:
    """Seconds of a step whose work is shared out evenly over the ranks, shape [P].

    The slowest rank has no less than its share of all, and no less than L/p layers rounded up.
    """
    busy, longer, tail = _balanced(table, rows, plans, columns, held)
    stretch = 1 + tail.straggler_s / (busy + table.framework.host.micro_batch_s)
    return np.asarray(busy + tail.overhead_s + tail.straggler_s + longer * stretch)


def least_balanced_step_time(
    table: CostTable, rows: IntArray, plans: PlanBatch, columns: Columns, held: States
) -> FloatArray:
    """The same without bubble, transfers and data-parallel communication, shape [P]: no virtual
    stages and no recompute bring it below.
    """
    _, longer, tail = _balanced(table, rows, plans, columns, held)
    return np.asarray(tail.steady_s + longer + tail.optimizer_s + tail.overhead_s)


def _balanced(
    table: CostTable, rows: IntArray, plans: PlanBatch, columns: Columns, held: States
) -> tuple[FloatArray, FloatArray, StepTail]:
    """(seconds that stragglers stretch, what the slowest rank adds to them, the breakdown)."""
    pp, layers = columns.pp, table.model.num_layers
    layer = table.layer_total_s[rows]
    ends = (head_seconds, embedding_seconds, leading_seconds)
    edge = sum(seconds(table, rows)[0] for seconds in ends)
    again = columns.recomputed.first * table.layer.forward_s[rows]
    mean = (layers * layer + edge) / pp + again
    alike = layers - table.model.num_leading_layers
    slowest = np.maximum(mean, np.ceil(alike / pp) * layer + again)
    forward = (mean - again) / 3
    middle = np.where(pp > 2, 1.0, 0.0)
    stages = StageSeconds(mean, middle * mean, mean, forward, middle * forward, forward)
    tail = after_stages(table, rows, plans, columns, held, stages)
    busy = tail.steady_s + tail.p2p_s + tail.bubble_s + tail.dp_s + tail.optimizer_s
    return busy, columns.num_micro_batches * (slowest - mean), tail


def cuts(
    space: SearchSpace,
    plan: Plan,
    memory_limit: float,
    tables: Mapping[Layer, CostTable] | None = None,
) -> list[Plan]:
    """The plan with its layers cut for the least time within memory, and with the cuts next to it;
    without those that another layout makes. Empty where no cut fits.
    """
    inputs = (space.model, space.cluster, space.framework)
    problem = partition_problem(*inputs, plan, memory_limit, tables)
    problem = replace(
        problem,
        layers=_averaged(problem.layers, space.model.num_leading_layers),
        recompute=_recompute_asked(space, plan, problem),
    )
    for min_layers in (0, 1):  # chunks between the ends must not be empty
        try:
            found = partition(replace(problem, min_layers=min_layers))
        except (NoFeasiblePlanError, PlanError):
            return []
        if min(found.chunk_layers[1:-1], default=1) > 0:
            chunks = found.chunk_layers
            regular = set(_regular_cuts(space.model.num_layers, len(chunks)))
            near = [chunks, *neighbours(chunks)]
            return [with_cut(plan, found, cut) for cut in near if cut not in regular]
    return []


def neighbours(chunks: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The cuts with a layer moved between the first or last chunk and the first or last of the
    lightest or fullest ones between.
    """
    between = range(1, len(chunks) - 1)
    if not between:
        return [(chunks[0] + n, chunks[1] - n) for n in (-1, 1) if min(chunks) > 0]
    near: dict[tuple[int, ...], None] = {}
    for end in (0, len(chunks) - 1):
        for sign in (-1, 1):  # from the end to the lightest, or from the fullest to the end
            size = min if sign < 0 else max
            extreme = size(chunks[c] for c in between)
            same = [c for c in between if chunks[c] == extreme]
            for other in {same[0], same[-1]}:
                moved = list(chunks)
                moved[end] += sign
                moved[other] -= sign
                if moved[end] >= 0 and moved[other] > 0:
                    near[tuple(moved)] = None
    return list(near)


def _averaged(layers: LayerItems, leading: int) -> LayerItems:
    """Leading layers as their average and the others as theirs, as the simulator takes kinds of
    layers.
    """
    means = {}
    for name in LayerItems.__slots__:
        values = np.array(getattr(layers, name), np.float64)
        for part in (values[:leading], values[leading:]):
            part[:] = part.mean() if part.size else 0.0
        means[name] = values
    return LayerItems(**means)


def _recompute_asked(space: SearchSpace, plan: Plan, problem: PartitionProblem) -> str | int:
    """As the framework can launch it: one number of layers for every chunk, all, or none."""
    kinds = space.recompute_kinds
    if "full" not in kinds or plan.cuda_graphs or plan.ep_comm_overlap:
        return 0
    return "same" if "block" in kinds and "none" in kinds else len(problem.layers)


def with_cut(plan: Plan, found: Partition, chunks: tuple[int, ...]) -> Plan:
    """The plan with these chunks and the partition's depth of recompute."""
    depth = [
        again // plan.vpp
        for again, held in zip(found.recomputed, found.stage_layers, strict=True)
        if again < held
    ]
    recompute = "full" if any(found.recomputed) else "none"
    return replace(
        plan,
        layout="free",
        chunk_layers=chunks,
        recompute=recompute,
        recompute_num_layers=max(depth, default=0) if recompute == "full" else 0,
    )


def _regular_cuts(num_layers: int, chunks: int) -> Iterator[tuple[int, ...]]:
    """Even cuts, and those that count the embedding or the loss: such plans are in the space."""
    for embedding, loss in ((0, 0), (1, 0), (0, 1), (1, 1)):
        each, left = divmod(num_layers + embedding + loss, chunks)
        if left == 0 and chunks > 1:
            yield (each - embedding, *[each] * (chunks - 2), each - loss)
