"""The plans that a search considers, generated block by block.

Every combination of degrees that fills the GPUs, with every layout, recompute depth and switch that
the software has. Only canonical plans are generated: one of each set that trains identically (no
sequence parallelism at tp = 1, no ZeRO on one replica, ``full`` instead of ``full:N`` with all N
layers).

Left out unless asked for with ``fixed`` or ``limits``, because they cannot win or are not free:

* tp beyond the innermost tier (its collectives would leave NVLink);
* cp that does not divide the sequence into two pieces a rank;
* the off positions of overlap switches and of the fused cross-entropy: on is never slower nor
  larger;
* selective recompute of the attention core with flash attention: it saves only what flash
  attention does not store;
* ZeRO 2 and 3 of software with a launch target: no exporter writes them; other optimizers than the
  first of the software; offload of activations;
* 16-bit gradients and other precisions (they change the training), CUDA graphs (their memory is
  not modelled).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from parallelsim.search.schedules import check_schedules, schedule_names, with_all_schedules

from parallelsim.cluster import ClusterSpec
from parallelsim.errors import PlanError
from parallelsim.framework import FrameworkSpec
from parallelsim.model import ModelSpec
from parallelsim.plan import (
    ASYNCHRONOUS,
    CHOICES,
    PLAN_FIELDS,
    WAVES,
    IntArray,
    PlanBatch,
    code,
)
from parallelsim.rule_checks import FIRST_LAST
from parallelsim.rule_schedules import IS_WAVE

Value = int | bool | str
Shardings = tuple[tuple[int, int], ...]
"""Pairs of zero and dp_replicate."""
MAX_MICRO_BATCH_SIZE = 64
UNEVEN_DEPTH = 3
"""A first or last stage may have up to this many layers fewer than the stages between."""
BLOCK_PLANS = 1 << 16

_SHARED = (
    "tp",
    "cp",
    "dp",
    "micro_batch_size",
    "sequence_parallel",
    "zero",
    "cp_comm_type",
    "tp_comm_overlap",
    "cross_entropy_fusion",
    "cuda_graphs",
    "grad_dtype",
    "overlap_grad_reduce",
    "overlap_param_gather",
    "dp_replicate",
    "reshard_after_forward",
    "compile",
    "optimizer",
    "activation_offload_pct",
)
"""Fields that do not depend on how layers are cut into stages."""
_STAGED = (
    "vpp",
    "schedule",
    "layout",
    "first_stage_layers",
    "last_stage_layers",
    "recompute",
    "recompute_num_layers",
)
"""Fields that do."""


@dataclass(frozen=True)
class SearchSpace:
    """All canonical plans of a model on a cluster under a framework, at one global batch and
    precision.
    """

    model: ModelSpec
    cluster: ClusterSpec
    framework: FrameworkSpec
    global_batch_size: int
    precision: str = "bf16"
    fixed: Mapping[str, Value] = field(default_factory=dict)
    """Plan fields with the one value that they may have."""
    limits: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    """Plan fields with the values that they may have."""
    all_schedules: bool = False
    """Search pipeline schedules that the framework does not run too: ``framework`` is then one
    that runs all of them, so that no rule refuses the plans.
    """

    def __post_init__(self) -> None:
        if self.all_schedules:
            object.__setattr__(self, "framework", with_all_schedules(self.framework))
        for name, values in self._given.items():
            if name not in PLAN_FIELDS or name in ("global_batch_size", "precision"):
                raise PlanError(f"{name!r} is no field that a search can fix or limit")
            for value in values:
                if name in CHOICES and value not in CHOICES[name]:
                    known = ", ".join(CHOICES[name])
                    raise PlanError(f"{name} must be one of {known}, got {str(value)[:60]!r}")
        check_schedules(self.framework, [str(v) for v in self._given.get("schedule", ())])
        self._degrees  # noqa: B018  raises for a degree that the GPUs cannot have

    @cached_property
    def num_candidates(self) -> int:
        """Plans of the space, whether they obey the rules or not."""
        return sum(
            len(self._shared_table(pp)) * len(self._staged_table(pp)) for pp in self._degrees["pp"]
        )

    def blocks(self) -> Iterator[PlanBatch]:
        """Every plan of the space once, in blocks of equal pp."""
        for pp in self.pipeline_degrees:
            yield from self.expand(pp, slice(None))

    @property
    def pipeline_degrees(self) -> list[int]:
        """Values of pp; the space is the union of one product of two tables for each."""
        return self._degrees["pp"]

    def unstaged(self, pp: int) -> PlanBatch:
        """The first table: plans without a choice of layout, virtual stages and recompute.

        Each stands for ``num_stagings(pp)`` plans, one for each row of the second table.
        """
        shared = self._shared_table(pp)
        columns: dict[str, object] = {"pp": pp, "global_batch_size": self.global_batch_size}
        columns["precision"] = code("precision", self.precision)
        columns |= {name: shared[:, i] for i, name in enumerate(_SHARED)}
        return PlanBatch.from_columns(len(shared), columns)

    def num_stagings(self, pp: int) -> int:
        """Ways to cut the layers into stages and to recompute them."""
        return len(self._staged_table(pp))

    def expand(self, pp: int, chosen: Any) -> Iterator[PlanBatch]:
        """The plans of the chosen rows of :meth:`unstaged` with every staging, in blocks."""
        shared, staged = self._shared_table(pp)[chosen], self._staged_table(pp)
        if len(shared) == 0:
            return
        step = max(BLOCK_PLANS // len(shared), 1)
        for first in range(0, len(shared), BLOCK_PLANS):
            part = shared[first : first + BLOCK_PLANS]
            for start in range(0, len(staged), step):
                yield self._product(pp, part, staged[start : start + step])

    def shapes(self) -> PlanBatch:
        """A small batch with every combination of the fields that operator shapes depend on."""
        sizes: dict[tuple[int, int], set[int]] = {}
        for pp in self.pipeline_degrees:
            for tp, cp, dp in self._degree_choices(pp):
                sizes.setdefault((tp, cp), set()).update(self._micro_batch_sizes(dp))
        rows = np.concatenate(
            [
                self._rows(
                    *(tp, cp, 1, sorted(known)),
                    self._switch_table(tp > 1, cp > 1, True, ((0, 1),)),
                )
                for (tp, cp), known in sizes.items()
            ]
            or [np.empty((0, len(_SHARED)), np.int64)]
        )
        columns: dict[str, object] = {
            name: np.tile(rows[:, i], 2) for i, name in enumerate(_SHARED)
        }
        columns["precision"] = code("precision", self.precision)
        columns["recompute"] = np.repeat([0, code("recompute", "selective")], len(rows))
        return PlanBatch.from_columns(2 * len(rows), columns)

    def _product(self, pp: int, shared: IntArray, staged: IntArray) -> PlanBatch:
        """Every row of one table with every row of the other."""
        inner, outer = len(shared), len(staged)
        columns: dict[str, object] = {"pp": pp, "global_batch_size": self.global_batch_size}
        columns["precision"] = code("precision", self.precision)
        columns |= {name: np.tile(shared[:, i], outer) for i, name in enumerate(_SHARED)}
        columns |= {name: np.repeat(staged[:, i], inner) for i, name in enumerate(_STAGED)}
        return PlanBatch.from_columns(inner * outer, columns)

    @cached_property
    def _given(self) -> dict[str, tuple[Value, ...]]:
        given = {name: (value,) for name, value in self.fixed.items()}
        more = {name: tuple(values) for name, values in self.limits.items() if name not in given}
        return given | more

    @cached_property
    def _degrees(self) -> dict[str, list[int]]:
        return {name: self._degree(name) for name in ("tp", "cp", "pp", "dp")}

    def _allowed(self, name: str, default: Iterable[Value], possible: Iterable[Value]) -> list[int]:
        """The default values, or those of the possible ones that the caller gave, as codes."""
        given = self._given.get(name)
        values = default if given is None else [v for v in possible if v in given]
        return [CHOICES[name].index(v) if isinstance(v, str) else int(v) for v in values]

    def _degree(self, name: str) -> list[int]:
        """Values of a parallel degree: divisors of the number of GPUs.

        Raises:
            PlanError: none of the given values can be one.
        """
        gpus = self.cluster.num_gpus
        divisors = _divisors(gpus)
        possible = divisors
        if name == "pp":
            possible = [n for n in divisors if n <= self.model.num_layers + 2]
        if name == "cp" and not self.framework.capabilities.cp_comm_types:
            possible = [1]
        default = possible
        if name == "tp":
            default = [n for n in possible if n <= self.cluster.domain_size]
        if name == "cp":
            default = [n for n in possible if n == 1 or self.model.seq_length % (2 * n) == 0]
        values = self._allowed(name, default, possible)
        if not values:
            given = ", ".join(str(v) for v in self._given[name])
            shown = ", ".join(str(n) for n in possible[:12]) + (
                ", ..." if len(possible) > 12 else ""
            )
            raise PlanError(f"{name}={given} cannot divide {gpus} GPUs here; it can be {shown}")
        return values

    def _shared_table(self, pp: int) -> IntArray:
        """Combinations of what does not depend on how layers are staged: rows of ``_SHARED``."""
        tables = [
            self._rows(
                *(tp, cp, dp),
                self._micro_batch_sizes(dp),
                self._switch_table(tp > 1, cp > 1, dp * cp > 1, self._shardings(pp, cp, dp)),
            )
            for tp, cp, dp in self._degree_choices(pp)
        ]
        return np.concatenate(tables) if tables else np.empty((0, len(_SHARED)), np.int64)

    def _degree_choices(self, pp: int) -> Iterator[tuple[int, int, int]]:
        """(tp, cp, dp) that fill the GPUs together with pp."""
        dps = set(self._degrees["dp"])
        for tp in self._degrees["tp"]:
            rest, left = divmod(self.cluster.num_gpus, tp * pp)
            for cp in self._degrees["cp"] if left == 0 else ():
                if rest % cp == 0 and rest // cp in dps:
                    yield tp, cp, rest // cp

    def _micro_batch_sizes(self, dp: int) -> list[int]:
        """Sizes that divide a replica's share of the batch, or those of the caller's."""
        per_replica, left = divmod(self.global_batch_size, dp)
        given = self._given.get("micro_batch_size", ())
        possible = [int(n) for n in given if 1 <= int(n) <= max(per_replica, 1)]
        # A batch that the replicas do not divide has no micro-batch: one plan stays to say so.
        divisors = [n for n in range(1, MAX_MICRO_BATCH_SIZE + 1) if per_replica % n == 0]
        return self._allowed("micro_batch_size", [1] if left else divisors, possible)

    @staticmethod
    def _rows(tp: int, cp: int, dp: int, sizes: list[int], switches: IntArray) -> IntArray:
        """Rows of ``_SHARED`` for one choice of degrees: micro-batch sizes x switches."""
        degrees = np.array([(tp, cp, dp, size) for size in sizes], np.int64).reshape(-1, 4)
        return np.hstack([np.repeat(degrees, len(switches), 0), np.tile(switches, (len(sizes), 1))])

    def _shardings(self, pp: int, cp: int, dp: int) -> Shardings:
        """Canonical (zero, dp_replicate): hybrid groups of at least two ranks that replicas of
        whole groups share.
        """
        can, many = self.framework.capabilities, dp * cp > 1
        possible = [z for z in can.zero_stages if z == 0 or (many and (z == 1 or pp == 1))]
        written = self.framework.launches == "none"
        zeros = [z for z in possible if z < 2 or written] or possible
        pairs = []
        for zero in self._allowed("zero", zeros, can.zero_stages if many else possible):
            divisors = [n for n in _divisors(dp) if n < dp * cp]
            groups = divisors if zero >= 2 and can.hybrid_sharding else [1]
            pairs += [(zero, n) for n in self._allowed("dp_replicate", groups, groups)]
        return tuple(pairs)

    def _switch_table(
        self, many_tp: bool, many_cp: bool, many_shards: bool, shardings: Shardings
    ) -> IntArray:
        """Canonical combinations of the switches, given which degrees are above 1; cached."""
        key = (many_tp, many_cp, many_shards, shardings)
        if key not in self._switch_tables:
            rows = list(self._switch_rows(*key))
            self._switch_tables[key] = np.array(rows, np.int64).reshape(-1, len(_SHARED) - 4)
        return self._switch_tables[key]

    def _switch_rows(
        self, many_tp: bool, many_cp: bool, many_shards: bool, shardings: Shardings
    ) -> Iterator[tuple[int, ...]]:
        can = self.framework.capabilities
        sharding = (False, True) if many_tp and can.sequence_parallel else (False,)
        kinds = can.cp_comm_types if many_cp else ("p2p",)
        fusion = (False, True) if can.cross_entropy_fusion else (False,)
        graphs = (False, True) if can.cuda_graphs else (False,)
        compiles = (False, True) if can.compile else (False,)
        offloads = range(101) if can.activation_offload else (0,)
        for (zero, replicas), kind, fused, graph, dtype, *rest in itertools.product(
            shardings,
            self._allowed("cp_comm_type", kinds, kinds),
            self._allowed("cross_entropy_fusion", fusion[-1:], fusion),
            self._allowed("cuda_graphs", graphs[:1], graphs),
            self._allowed("grad_dtype", can.grad_dtypes[:1], can.grad_dtypes),
            self._allowed("compile", compiles[-1:], compiles),
            self._allowed("optimizer", can.optimizers[:1], can.optimizers),
            self._allowed("activation_offload_pct", (0,), offloads),
        ):
            for sp in self._allowed("sequence_parallel", sharding, sharding):
                buffers = (False, True) if sp and can.tp_comm_overlap else (False,)
                for user_buffers in self._allowed("tp_comm_overlap", buffers[-1:], buffers):
                    for overlaps in self._overlap_rows(many_shards, zero):
                        for keeps in self._reshard_rows(zero):
                            yield (
                                *(sp, zero, kind, user_buffers, fused, graph, dtype, *overlaps),
                                *(replicas, keeps, *rest),
                            )

    def _reshard_rows(self, zero: int) -> list[int]:
        """Positions of reshard_after_forward."""
        choice = zero == 3 and self.framework.capabilities.reshard_choice
        positions = (True, False) if choice else (True,)
        return self._allowed("reshard_after_forward", positions, positions)

    def _overlap_rows(self, many_shards: bool, zero: int) -> Iterator[tuple[int, int]]:
        """Positions of overlap_grad_reduce and overlap_param_gather."""
        can = self.framework.capabilities
        reduce = (False, True) if many_shards and can.overlap_grad_reduce else (False,)
        for overlap in self._allowed("overlap_grad_reduce", reduce[-1:], reduce):
            gather = (False, True) if overlap and zero and can.overlap_param_gather else (False,)
            for gathers in self._allowed("overlap_param_gather", gather[-1:], gather):
                yield overlap, gathers

    def _staged_table(self, pp: int) -> IntArray:
        """Combinations of layout, virtual stages, schedule and recompute depth: rows of
        ``_STAGED``.
        """
        if pp not in self._staged_tables:
            rows = [
                (vpp, schedule, layout, first, last, *recompute)
                for vpp, layout, first, last, chunk in self._layouts(pp)
                for schedule in self._schedules(pp, vpp)
                if not (layout == FIRST_LAST and IS_WAVE[schedule])
                for recompute in self._recomputes(chunk)
            ]
            self._staged_tables[pp] = np.array(rows, np.int64).reshape(-1, len(_STAGED))
        return self._staged_tables[pp]

    @cached_property
    def _switch_tables(self) -> dict[tuple[bool, bool, bool, Shardings], IntArray]:
        return {}

    @cached_property
    def _staged_tables(self) -> dict[int, IntArray]:
        return {}

    def _schedules(self, pp: int, vpp: int) -> list[int]:
        names = schedule_names(self.framework, pp, vpp)
        synchronous = [name for name in names if name not in ASYNCHRONOUS]
        return self._allowed("schedule", synchronous, names)

    def _layouts(self, pp: int) -> Iterator[tuple[int, int, int, int, int]]:
        """(vpp, layout code, first, last, layers of the largest chunk) of every way to cut the
        layers.
        """
        num_layers = self.model.num_layers
        names = [n for n in self.framework.capabilities.layouts if n == "even" or pp > 1]
        for layout in self._allowed("layout", names, names):
            name = CHOICES["layout"][layout]
            if name == "first-last":
                cuts = self._uneven_cuts(pp)
            else:
                slots = num_layers + {"even": 0, "embedding-loss": 2}.get(name, 1)
                cuts = [(0, 0, slots // pp)] if slots % pp == 0 else []
            for first, last, middle in cuts:
                for vpp in self._virtual_stages(pp, name, first, last, middle):
                    if (name, pp, vpp) == ("embedding-loss", 2, 1):
                        continue  # two stages, a layer less on both: the even cut
                    yield vpp, layout, first, last, max(middle, first, last) // vpp

    def _virtual_stages(
        self, pp: int, layout: str, first: int, last: int, middle: int
    ) -> list[int]:
        """Vpp that cut every stage into whole chunks."""
        possible = [v for v in range(1, middle + 1) if middle % v == first % v == last % v == 0]
        if layout == "even" and pp == 1:
            possible = [1]
        known = set(self.framework.capabilities.schedules)
        if not known & {"interleaved-1f1b", "breadth-first", *WAVES}:
            possible = [1]
        return self._allowed("vpp", possible, possible)

    def _uneven_cuts(self, pp: int) -> list[tuple[int, int, int]]:
        """(first, last, middle) with both ends at most ``UNEVEN_DEPTH`` layers lighter than the
        middle.

        Given first or last stages replace that bound. A cut that another layout makes is left to
        it.
        """
        num_layers, given = self.model.num_layers, self._given
        cuts = []
        if pp == 1:
            return []
        for middle in range(1, num_layers + 1):
            ends = num_layers - middle * (pp - 2)
            if ends < 2:
                break
            low = max(middle - UNEVEN_DEPTH, 1)
            free = "first_stage_layers" in given or "last_stage_layers" in given
            for first in range(1, ends) if free else range(low, middle + 1):
                last = ends - first
                if not free and not low <= last <= middle:
                    continue
                if pp == 2 and middle != max(first, last):
                    continue
                if first == last == middle or (first, last) in _counted_cuts(middle):
                    continue
                cuts.append((first, last, middle))
        firsts, lasts = given.get("first_stage_layers"), given.get("last_stage_layers")
        return [
            cut
            for cut in cuts
            if (firsts is None or cut[0] in firsts) and (lasts is None or cut[1] in lasts)
        ]

    def _recomputes(self, chunk: int) -> list[tuple[int, int]]:
        """(recompute code, layers) of every depth: none, selective, 1 to all but one layer, all."""
        can = self.framework.capabilities.recomputes
        kinds = [k for k in can if k != "block"]
        saves = self.framework.memory.selective_outputs_kept > 0
        saves |= not self.framework.compute.flash_attention
        default = [k for k in kinds if k != "selective" or saves]
        rows: list[tuple[int, int]] = []
        for kind in self._allowed("recompute", default, kinds):
            if CHOICES["recompute"][kind] != "full":
                depths = [0]
            else:
                depths = [*(range(1, chunk) if "block" in can else ()), 0]
            allowed = self._allowed("recompute_num_layers", depths, depths)
            rows.extend((kind, depth) for depth in allowed)
        return rows


def _counted_cuts(middle: int) -> tuple[tuple[int, int], ...]:
    """Cuts that counting the embedding, the loss or both as a layer gives."""
    return ((middle - 1, middle), (middle, middle - 1), (middle - 1, middle - 1))


def _divisors(number: int) -> list[int]:
    """Of a whole number, in order."""
    low = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*low, *(number // n for n in low)})
