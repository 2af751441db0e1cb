"""The plans that a search considers, generated block by block.

Every combination of degrees that fills the GPUs, with every layout, recompute depth and switch that
the software has. Only canonical plans are generated: one of each set that trains identically (no
sequence parallelism at tp = 1, no ZeRO on one replica, ``full`` instead of ``full:N`` with all N
layers).

Left out unless asked for with ``fixed`` or ``limits``, because they cannot win or are not free:

* tp beyond the innermost tier (its collectives would leave NVLink);
* cp that does not divide the sequence into two pieces a rank;
* hybrid context parallelism where tp * cp stays inside the innermost tier, and its other splits;
* the off positions of overlap switches, of the fused cross-entropy and of weights kept in fp8
  alone: on is never slower nor larger;
* selective recompute of the attention core with flash attention: it saves only what flash
  attention does not store; selective recompute of other modules than a mixture's cheap ones;
* ZeRO 2 and 3 of software with a launch target (Megatron-FSDP): few runs were published, and the
  catalogue's models gain at most 2 % by them; other optimizers than the
  first of the software; offload of activations or of the optimizer;
* sequence parallelism off for a mixture of experts with tp > 1, dispatchers that another one beats
  everywhere, and gathering all tokens to more ranks than a token has experts;
* 16-bit gradients and other precisions (they change the training);
* CUDA graphs of models without experts, whose layers do not wait for their launches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from parallelsim.search.asked import Asked, Value
from parallelsim.search.degrees import (
    degree_choices,
    degree_values,
    largest_micro_batch,
    micro_batch_sizes,
)
from parallelsim.search.experts import EXPERT_FIELDS, ExpertChoices
from parallelsim.search.schedules import check_schedules, with_all_schedules
from parallelsim.search.shardings import Shardings, sharding_choices
from parallelsim.search.stagings import STAGED, Stagings, selective_modules
from parallelsim.search.switches import SWITCHES, WITHOUT_SHAPE, hybrid_split, switch_rows

from parallelsim.cluster import ClusterSpec
from parallelsim.framework import FrameworkSpec
from parallelsim.model import ModelSpec
from parallelsim.plan import CHOICES, IntArray, Plan, code
from parallelsim.plan_batch import PlanBatch
from parallelsim.rule_context import BoolArray, ModelFacts, model_facts
from parallelsim.rule_stages import FULL, SELECTIVE

BLOCK_PLANS = 1 << 16
FREE_SCHEDULES = ("1f1b", "interleaved-1f1b")
"""Schedules for which layers are cut anywhere."""
_ANY, _WITHOUT, _WITH = range(3)
"""Which stagings go with a row: all, those in which experts' exchange cannot be overlapped (where
it can, it is), or those in which it can."""
_DEGREES = ("tp", "cp", "dp", "micro_batch_size")


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
        self._asked.check()
        schedules = self._asked.values.get("schedule", ())
        check_schedules(self.framework, [str(v) for v in schedules])
        self._degrees  # noqa: B018  raises for a degree that the GPUs cannot have
        self._experts  # noqa: B018  raises for a degree that the experts cannot have

    @cached_property
    def num_candidates(self) -> int:
        """Plans of the space, whether they obey the rules or not."""
        return sum(int(self.num_stagings(pp).sum()) for pp in self._degrees["pp"])

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

        Each stands for as many plans as :meth:`num_stagings` says, one for each row of the second
        table that goes with it.
        """
        shared = self.shared_rows(pp)
        columns = self._common(pp) | {name: shared[:, i] for i, name in enumerate(self._shared)}
        columns["recompute_modules"] = self._modules
        return PlanBatch.from_columns(len(shared), columns)

    def num_stagings(self, pp: int) -> IntArray:
        """Ways to cut the layers into stages and to recompute them, for each row of
        :meth:`unstaged`.
        """
        kinds, positions = self.stagings_by_kind(pp)
        return np.array([len(rows) for rows in positions])[kinds]

    def stagings_by_kind(self, pp: int) -> tuple[IntArray, tuple[IntArray, ...]]:
        """(kind of each row of :meth:`unstaged`, for each kind the :meth:`staged_rows` that go
        with it, as positions).
        """
        on = self._overlapping_stagings(pp)
        return self._staging_kinds(pp), (np.arange(len(on)), *map(np.flatnonzero, (~on, on)))

    def free_stagings(self, pp: int) -> list[tuple[int, int]]:
        """(vpp, schedule code) of the plans whose layers may be cut anywhere: layout ``free``.

        Such plans are not of the space: there are too many. :mod:`parallelsim.search.cuts` seeks
        the best.
        """
        given = self._asked.values
        asked = "free" in given.get("layout", ("free",))
        if not asked or pp == 1 or "free" not in self.framework.capabilities.layouts:
            return []
        if given.keys() & {"first_stage_layers", "last_stage_layers"}:
            return []
        possible = range(1, (self.model.num_layers + 2) // pp + 1)
        return [
            (vpp, schedule)
            for vpp in self._asked.allowed("vpp", possible, possible)
            for schedule in self._stagings.schedules(pp, vpp)
            if CHOICES["schedule"][schedule] in FREE_SCHEDULES
        ]

    @property
    def recompute_kinds(self) -> list[str]:
        """Kinds of recompute that a plan may have; ``block``: full with a number of layers."""
        can = self.framework.capabilities.recomputes
        asked = self._asked.values.get("recompute", can)
        return [kind for kind in can if kind in asked or kind == "block"]

    def allows(self, plan: Plan) -> bool:
        """Whether the plan has the values that the caller gave."""
        given = dict(self._asked.values)
        if plan.recompute != "selective":
            given.pop("recompute_modules", None)
        return all(getattr(plan, name) in values for name, values in given.items())

    def expand(self, pp: int, chosen: Any) -> Iterator[PlanBatch]:
        """The plans of the chosen rows of :meth:`unstaged` with every staging, in blocks."""
        kinds, positions = self.stagings_by_kind(pp)
        shared, staged, kinds = self.shared_rows(pp)[chosen], self.staged_rows(pp), kinds[chosen]
        for kind, rows in enumerate(positions):
            yield from self._blocks(pp, shared[kinds == kind], staged[rows])

    def _blocks(self, pp: int, shared: IntArray, staged: IntArray) -> Iterator[PlanBatch]:
        """Every row of one table with every row of the other, in blocks."""
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
        dealt: dict[tuple[int, int], set[tuple[int, ...]]] = {}
        width = len(self._dealt)
        for pp in self.pipeline_degrees:
            for tp, cp, dp in self._degree_choices(pp):
                batches = self._micro_batch_sizes(dp)
                sizes.setdefault((tp, cp), set()).update(batches)
                ways = self._expert_table(pp, tp, tp * cp * dp).tolist()
                dealt.setdefault((tp, cp), set()).update(map(tuple, ways))
        tables = [
            self._rows(
                *(tp, cp, 1),
                sorted(known),
                self._shape_switches(tp, cp),
                np.array(sorted(dealt[tp, cp]), np.int64).reshape(len(dealt[tp, cp]), width),
            )
            for (tp, cp), known in sizes.items()
        ]
        rows = np.concatenate(tables or [np.empty((0, len(self._shared)), np.int64)])
        columns: dict[str, object] = {
            name: np.tile(rows[:, i], 2) for i, name in enumerate(self._shared)
        }
        columns["precision"] = code("precision", self.precision)
        columns["recompute"] = np.repeat([0, SELECTIVE], len(rows))
        columns["recompute_modules"] = np.repeat([0, self._modules], len(rows))
        return PlanBatch.from_columns(2 * len(rows), columns)

    def _product(self, pp: int, shared: IntArray, staged: IntArray) -> PlanBatch:
        """Every row of one table with every row of the other."""
        rows = np.tile(shared.T, len(staged))
        return self.joined(pp, rows, np.repeat(staged.T, len(shared), axis=1))

    def joined(self, pp: int | IntArray, shared: IntArray, staged: IntArray) -> PlanBatch:
        """Plans from rows of the two tables, side by side: arrays of shape [fields, P]."""
        columns = self._common(pp) | dict(zip(self._shared, shared, strict=True))
        columns |= dict(zip(STAGED, staged, strict=True))
        if self._modules:
            again = np.asarray(columns["recompute"]) == SELECTIVE
            columns["recompute_modules"] = np.where(again, self._modules, 0)
        return PlanBatch.from_columns(shared.shape[1], columns)

    def _common(self, pp: int | IntArray) -> dict[str, object]:
        precision = code("precision", self.precision)
        return {"pp": pp, "global_batch_size": self.global_batch_size, "precision": precision}

    @cached_property
    def _asked(self) -> Asked:
        given = {name: (value,) for name, value in self.fixed.items()}
        more = {name: tuple(values) for name, values in self.limits.items() if name not in given}
        return Asked(given | more)

    @cached_property
    def _modules(self) -> int:
        """Code of what selective recompute runs again."""
        return code("recompute_modules", self._stagings.modules)

    @cached_property
    def _degrees(self) -> dict[str, list[int]]:
        return degree_values(self.model, self.cluster, self.framework, self._asked)

    @cached_property
    def _facts(self) -> ModelFacts:
        return model_facts(self.model)

    @cached_property
    def _experts(self) -> ExpertChoices:
        can = self.framework.capabilities
        return ExpertChoices.of(self.model, self.cluster, can, self._asked, self.precision)

    @cached_property
    def _dealt(self) -> tuple[str, ...]:
        """Fields of experts, where plans differ in them: dense spaces have no such columns."""
        return EXPERT_FIELDS if self._experts.is_free else ()

    @cached_property
    def _shared(self) -> tuple[str, ...]:
        """Fields that do not depend on how layers are cut into stages."""
        return (*_DEGREES, *SWITCHES, *self._dealt)

    def _micro_batch_sizes(self, dp: int) -> list[int]:
        largest = largest_micro_batch(self.model.seq_length)
        return micro_batch_sizes(self.global_batch_size, dp, largest, self._asked)

    def _degree_choices(self, pp: int) -> Iterator[tuple[int, int, int]]:
        return degree_choices(self._degrees, self.cluster.num_gpus, pp)

    def shared_rows(self, pp: int) -> IntArray:
        """Combinations of what does not depend on how layers are staged: rows of ``_shared``."""
        if pp not in self._shared_tables:
            tables = [
                self._rows(
                    *(tp, cp, dp),
                    self._micro_batch_sizes(dp),
                    self._switch_table(
                        *(tp, cp, dp * cp > 1),
                        sharding_choices(self.framework, self._asked, pp=pp, cp=cp, dp=dp),
                    ),
                    self._expert_table(pp, tp, tp * cp * dp),
                )
                for tp, cp, dp in self._degree_choices(pp)
            ]
            none = np.empty((0, len(self._shared)), np.int64)
            self._shared_tables[pp] = np.concatenate(tables) if tables else none
        return self._shared_tables[pp]

    @staticmethod
    def _rows(
        tp: int, cp: int, dp: int, sizes: list[int], switches: IntArray, dealt: IntArray
    ) -> IntArray:
        """Rows of ``_shared`` for one choice of degrees: micro-batch sizes x switches x experts."""
        degrees = np.array([(tp, cp, dp, size) for size in sizes], np.int64).reshape(-1, 4)
        rows = _crossed(degrees, switches)
        return _crossed(rows, dealt) if dealt.shape[1] else rows

    def _switch_table(self, tp: int, cp: int, many_shards: bool, shardings: Shardings) -> IntArray:
        """Canonical combinations of the switches for these degrees."""
        heads = math.gcd(self._facts.heads, *self._facts.groups)
        split = hybrid_split(tp, cp, self.cluster.domain_size, heads)
        key = (tp > 1, cp, split, many_shards, shardings)
        if key not in self._switch_tables:
            rows = switch_rows(
                self.framework.capabilities,
                self._asked,
                many_tp=tp > 1,
                cp=cp,
                cp_a2a=split,
                many_shards=many_shards,
                shardings=shardings,
                model=self._facts,
                precision=self.precision,
            )
            table = np.array(list(rows), np.int64).reshape(-1, len(SWITCHES))
            self._switch_tables[key] = table
        return self._switch_tables[key]

    def _shape_switches(self, tp: int, cp: int) -> IntArray:
        """The switches without those that no shape depends on."""
        table = self._switch_table(tp, cp, True, ((0, 1, 1),)).copy()
        table[:, [SWITCHES.index(name) for name in WITHOUT_SHAPE]] = 0
        return np.array(sorted(set(map(tuple, table.tolist()))), np.int64)

    def _expert_table(self, pp: int, tp: int, num_ranks: int) -> IntArray:
        """Ways to deal experts to the ranks of a stage; one row without columns where dense."""
        if not self._dealt:
            return np.empty((1, 0), np.int64)
        pairs = bool(self._overlapping_stagings(pp).any())
        key = (tp, num_ranks, pairs)
        if key not in self._expert_tables:
            rows = list(self._experts.rows(tp, num_ranks, pairs=pairs))
            table = np.array(rows, np.int64).reshape(-1, len(EXPERT_FIELDS))
            self._expert_tables[key] = table
        return self._expert_tables[key]

    def staged_rows(self, pp: int) -> IntArray:
        """Combinations of layout, virtual stages, schedule and recompute depth: rows of
        ``STAGED``.
        """
        if pp not in self._staged_tables:
            rows = list(self._stagings.rows(pp))
            self._staged_tables[pp] = np.array(rows, np.int64).reshape(-1, len(STAGED))
        return self._staged_tables[pp]

    def _overlapping_stagings(self, pp: int) -> BoolArray:
        """Rows of the staged table with which ep_comm_overlap can be on."""
        staged = self.staged_rows(pp)
        vpp, recompute = staged[:, STAGED.index("vpp")], staged[:, STAGED.index("recompute")]
        found: BoolArray = ((vpp > 1) | (pp == 1)) & (recompute != FULL)
        return found

    def _staging_kinds(self, pp: int) -> IntArray:
        """For each row of the shared table: _ANY, _WITHOUT or _WITH."""
        shared = self.shared_rows(pp)
        kinds = np.full(len(shared), _ANY)
        if self._dealt:
            ep, _, dispatcher, overlap = shared[:, -len(self._dealt) :].T
            chosen = self._experts.overlap_is_free(ep, dispatcher)
            kinds[chosen & (overlap == 0)] = _WITHOUT
            kinds[overlap == 1] = _WITH
        return kinds

    @cached_property
    def _stagings(self) -> Stagings:
        modules = selective_modules(self._asked, self.framework, self._facts, self.precision)
        return Stagings(self.model.num_layers, self.framework, self._asked, modules)

    @cached_property
    def _shared_tables(self) -> dict[int, IntArray]:
        return {}

    @cached_property
    def _switch_tables(
        self,
    ) -> dict[tuple[bool, int, int | None, bool, Shardings], IntArray]:
        return {}

    @cached_property
    def _expert_tables(self) -> dict[tuple[int, int, bool], IntArray]:
        return {}

    @cached_property
    def _staged_tables(self) -> dict[int, IntArray]:
        return {}


def _crossed(outer: IntArray, inner: IntArray) -> IntArray:
    """Every row of the first table followed by every row of the second."""
    return np.hstack([np.repeat(outer, len(inner), 0), np.tile(inner, (len(outer), 1))])
