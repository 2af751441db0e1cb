"""Layers cut into pipeline stages, with the recompute of each stage, for the least schedule time.

:func:`partition` minimises the schedule's closed form (``partition_stages.schedule_seconds``: that
of :func:`parallelsim.pipeline.pipeline_time` for stages of any cost) over all contiguous cuts into
pp * vpp chunks that fit in memory; tau is a stage's forward, backward and recompute of one
micro-batch over its chunks. Of cuts with equal time it takes the one with the lower slowest stage
(not for 1F1B), then the most even one (least sum of squared chunk sizes).

Exact (``proven``), up to rounding, against brute force in the tests:

* one chunk a stage: any layers, any layout, any recompute. 1F1B with recompute: as long as no more
  than ``partition_1f1b.BEAMS[-1]`` labels are needed; of its cuts with equal time, the most even
  one only where it recomputes nothing;
* several chunks a stage: layouts other than ``free``; and ``free`` where all layers but the
  ``MAX_ODD_LAYERS`` first ones are identical (with empty chunks allowed: of the cuts that have none
  among the chunks of those first layers). Other models are improved layer by layer from the even
  cut: never worse than it, not proven.

On 40 random problems each (4 stages, identical layers, tight memory) the 1F1B cut replayed as fast
as the fastest of all cuts for m >= 2 p, and within 2 % of it for m = p. Neglects transfers, and for
vpp > 1 the unevenness of the chunks of one stage: layers are spread evenly over them, the first
chunk of the first stage and the last chunk of the last stage being the lighter ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from parallelsim.search.partition_chunks import even_counts, free_candidates, is_one_row
from parallelsim.search.partition_layouts import layout_cuts, megatron_layout
from parallelsim.search.partition_problem import (
    NO_EDGE,
    EdgeItem,
    FloatArray,
    IntArray,
    LayerItems,
    PartitionProblem,
)
from parallelsim.search.partition_same import promising_numbers
from parallelsim.search.partition_stages import (
    TOLERANCE,
    StageCosts,
    StageFigures,
    bounds_figures,
    schedule_seconds,
)

from parallelsim.errors import NoFeasiblePlanError, PlanError
from parallelsim.units import format_bytes

__all__ = [
    "NO_EDGE",
    "EdgeItem",
    "LayerItems",
    "Partition",
    "PartitionProblem",
    "evaluate",
    "partition",
]


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """A cut of the layers into chunks, with what it costs."""

    chunk_layers: tuple[int, ...]
    """Of chunk c = k pp + s, which stage s runs as its virtual stage k."""
    recomputed: tuple[int, ...]
    """Layers that each stage recomputes: the first ones that it holds."""
    stage_s: FloatArray
    """Forward, backward and recompute of one micro-batch, shape [pp]."""
    memory_bytes: FloatArray
    """Peak of each stage, shape [pp]."""
    time_s: float
    """The schedule's closed form, for one step."""
    fits: bool
    even_time_s: float
    """Of the even cut (left-over layers one each to the first chunks); infinite if it does not
    fit.
    """
    proven: bool
    """No cut of the layout is faster."""

    @property
    def stage_layers(self) -> tuple[int, ...]:
        """Layers of each stage over its chunks, shape [pp]."""
        pp = len(self.recomputed)
        return tuple(sum(self.chunk_layers[s::pp]) for s in range(pp))

    @property
    def gain_frac(self) -> float:
        """Share of the even cut's time that this one saves; 1 where the even cut does not fit."""
        if self.even_time_s <= 0:
            return 0.0
        return 1 - self.time_s / self.even_time_s

    @property
    def megatron_layout(self) -> str:
        """The value of ``--pipeline-model-parallel-layout``."""
        return megatron_layout(self.chunk_layers)

    def describe(self) -> str:
        """What the cut gains, one line for people."""
        if self.even_time_s == float("inf"):
            return f"{self.megatron_layout}: fits where the even cut does not"
        if self.gain_frac <= TOLERANCE:
            return f"{self.megatron_layout}: no faster than the even cut"
        return f"{self.megatron_layout}: {100 * self.gain_frac:.2f} % faster than the even cut"


def partition(problem: PartitionProblem) -> Partition:
    """The best partition of the problem.

    Raises:
        PlanError: a malformed problem, or a layout that cannot cut this number of layers.
        NoFeasiblePlanError: no cut fits in memory.
    """
    if problem.validate().recompute == "same":
        return _same_recompute(problem)
    return _solve(problem, float("inf"))


def _solve(problem: PartitionProblem, known_s: float) -> Partition:
    """The best partition; what is not faster than ``known_s`` may be taken for not to exist."""
    costs = StageCosts(problem)
    if problem.layout == "free":
        candidates = list(free_candidates(costs, known_s))
        even = even_counts(len(problem.layers), problem.num_chunks)
        if not candidates and known_s < float("inf"):
            raise NoFeasiblePlanError("no cut is faster")
        cuts = np.array([*(counts for counts, _ in candidates), even])
        proven = all(proof for _, proof in candidates)
    else:
        cuts, proven = layout_cuts(problem), True
        if not len(cuts):
            raise PlanError(
                f"layout {problem.layout} cannot cut {len(problem.layers)} layers into "
                f"{problem.pp} * {problem.vpp} chunks"
            )
    best = _best(costs, cuts)
    if best is None:
        raise NoFeasiblePlanError(
            f"no cut of {len(problem.layers)} layers into {problem.pp} stages fits in "
            f"{format_bytes(problem.capacity_bytes)}"
        )
    return _partition(costs, cuts[best], proven)


def _same_recompute(problem: PartitionProblem) -> Partition:
    """The best number of layers that every chunk recomputes, and its partition."""
    if is_one_row(problem):
        numbers, known_s = promising_numbers(problem)
        best: Partition | None = None
        for number in numbers:
            best = _faster(replace(problem, recompute=number), best, known_s) or best
        return best or partition(replace(problem, recompute=len(problem.layers)))
    return _same_recompute_of_chunks(problem)


def _same_recompute_of_chunks(problem: PartitionProblem) -> Partition:
    """The same for layouts, and for layers of which several chunks a stage make no row.

    N up to the least one with which the even cut fits, from there downwards. Then larger N, until
    none is faster even without a memory limit (time grows with N). Where cuts are not proven the
    best, from the first N downwards, and the next smaller one alone.
    """
    most = -(-len(problem.layers) // problem.vpp)
    even = even_counts(len(problem.layers), problem.num_chunks)

    def trial(number: int) -> PartitionProblem:
        return replace(problem, recompute=number)

    first = most
    for number in range(int(even.max()) + 1):
        if _partition(StageCosts(trial(number)), even, proven=False).fits:
            first = number
            break
    best: Partition | None = None
    for number in range(first, -1, -1):
        if best is not None and not best.proven and number < first - 1:
            break
        best = _faster(trial(number), best) or best
    unproven = best is not None and not best.proven
    for number in range(first + 1, most + 1):
        ample = replace(trial(number), capacity_bytes=float("inf"))
        if best is not None and (unproven or _faster(ample, best) is None):
            break
        best = _faster(trial(number), best) or best
    return partition(trial(most)) if best is None else best


def _faster(
    problem: PartitionProblem, best: Partition | None, known_s: float = float("inf")
) -> Partition | None:
    """A partition that fits and is faster than the best known one, if there is any; without one,
    than ``known_s``.
    """
    try:
        found = _solve(problem, known_s if best is None else best.time_s)
    except NoFeasiblePlanError:
        return None
    slower = best is not None and found.time_s >= best.time_s * (1 - TOLERANCE)
    return None if slower else found


def evaluate(problem: PartitionProblem, chunk_layers: tuple[int, ...]) -> Partition:
    """What a given cut costs, whether it fits or not.

    Raises:
        PlanError: a malformed problem, or counts that are no cut of its layers.
    """
    counts = np.array(chunk_layers, np.int64)
    problem.validate()
    if counts.shape != (problem.num_chunks,) or counts.sum() != len(problem.layers):
        raise PlanError(
            f"chunks must be {problem.num_chunks} counts of {len(problem.layers)} layers"
        )
    if (counts < 0).any():
        raise PlanError("chunks hold 0 or more layers each")
    return _partition(StageCosts(problem), counts, proven=False)


def _figures(costs: StageCosts, cuts: IntArray) -> StageFigures:
    bounds = np.zeros((*cuts.shape[:-1], cuts.shape[-1] + 1), np.int64)
    np.cumsum(cuts, axis=-1, out=bounds[..., 1:])
    return bounds_figures(costs, bounds)


def _best(costs: StageCosts, cuts: IntArray) -> int | None:
    """Index of the cut that fits with the least (time, slowest stage, unevenness)."""
    figures = _figures(costs, cuts)
    time = schedule_seconds(costs.problem, figures)
    time = np.where((figures.over_bytes > 0).any(-1), np.inf, time)
    if time.min() == np.inf:
        return None
    left = np.flatnonzero(time <= time.min() * (1 + TOLERANCE))
    if costs.problem.schedule != "1f1b":
        slowest = figures.seconds[left].max(-1)
        left = left[slowest <= slowest.min() * (1 + TOLERANCE)]
    return int(left[(cuts[left] ** 2).sum(-1).argmin()])


def _partition(costs: StageCosts, counts: IntArray, proven: bool) -> Partition:
    problem = costs.problem
    even = even_counts(len(problem.layers), problem.num_chunks)
    figures = _figures(costs, np.stack([counts, even]))
    time = schedule_seconds(problem, figures)
    fits = [not row.any() for row in figures.over_bytes > 0]
    return Partition(
        chunk_layers=tuple(int(n) for n in counts),
        recomputed=tuple(int(n) for n in figures.recomputed[0]),
        stage_s=figures.seconds[0],
        memory_bytes=figures.memory_bytes[0],
        time_s=float(time[0]),
        fits=fits[0],
        even_time_s=float(time[1]) if fits[1] else float("inf"),
        proven=proven,
    )
