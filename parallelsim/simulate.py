"""simulate(model, cluster, framework, plans) -> Simulation: all that is known of every plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallelsim.causes import cause_shares, other_frac
from parallelsim.cluster import ClusterSpec
from parallelsim.compute import peak_flops
from parallelsim.costs import CostTable
from parallelsim.framework import FrameworkSpec
from parallelsim.memory import MemoryBreakdown, each_stage, fullest_stage, peak_memory
from parallelsim.memory_states import States, states
from parallelsim.model import ModelSpec
from parallelsim.operators import FloatArray, IntArray
from parallelsim.plan import PRECISIONS, Plan
from parallelsim.plan_batch import PlanBatch
from parallelsim.rules import MASK_BYTES, ByteArray, broken_rules, reasons
from parallelsim.stages import Columns, free_stages, plan_columns
from parallelsim.step import StepBreakdown, step_breakdown, step_time
from parallelsim.uncertainty import fits_probability, interval_factor, regime_of

BoolArray = NDArray[np.bool_]

BLOCK = 16_384
"""Plans computed at once: temporaries of a block stay in the cache."""
ZONES = ("safe", "tight", "out")
TIGHT_LIMIT = 1.05
"""Above this predicted use of the reported memory a plan is out of memory."""
DEFAULT_MEMORY_LIMIT = 0.80
"""Up to this predicted use a plan is safe: of 1,781 published runs below it, none failed."""

FIGURES = (
    "step_time_s",
    "tokens_per_s",
    "tokens_per_s_per_gpu",
    "mfu",
    "hfu",
    "peak_memory_bytes",
    "memory_use_frac",
    "p_fits",
)
"""Outputs of one number a plan."""
RATES = (
    "step_time_s",
    "step_time_low_s",
    "step_time_high_s",
    "tokens_per_s",
    "tokens_per_s_per_gpu",
    "mfu",
    "hfu",
)
"""What a row begins with."""


@dataclass(frozen=True, slots=True, eq=False)
class Simulation:
    """Predictions for a batch of plans; arrays of shape [P]."""

    model: ModelSpec
    cluster: ClusterSpec
    framework: FrameworkSpec
    plans: PlanBatch
    time: StepBreakdown
    memory: MemoryBreakdown
    """Of the fullest stage."""
    fullest_stage: IntArray
    step_time_s: FloatArray
    tokens_per_s: FloatArray
    tokens_per_s_per_gpu: FloatArray
    mfu: FloatArray
    """Model FLOPs over the dense peak of the plan's precision; causal attention halved, no
    recompute.
    """
    hfu: FloatArray
    """As ``mfu``, with recomputed FLOPs counted."""
    peak_memory_bytes: FloatArray
    memory_capacity_bytes: float
    memory_use_frac: FloatArray
    p_fits: FloatArray
    zone: IntArray
    """Codes into ``ZONES``."""
    reasons: ByteArray
    """Masks of the rules that plans break: ``rules.broken_rules``; shape [P, ``MASK_BYTES``]."""
    memory_limit: float
    replayed: BoolArray
    """The pipeline is replayed operation by operation (:mod:`parallelsim.replay`) or needs not be,
    with pp = 1; else the step time is that of the closed form."""

    def __len__(self) -> int:
        return len(self.plans)

    def to_frame(self) -> Any:
        """One row a plan: :func:`parallelsim.frames.data_frame`; needs pandas."""
        from parallelsim.frames import data_frame

        return data_frame(self)

    def __repr__(self) -> str:
        from parallelsim.frames import plans_text

        return plans_text(self)

    def _repr_html_(self) -> str:
        from parallelsim.frames import plans_html

        return plans_html(self)

    @property
    def zones(self) -> list[str]:
        """The zone of each plan in words."""
        return [ZONES[code] for code in self.zone]

    @property
    def obeys_rules(self) -> BoolArray:
        """No rule broken; shape [P]."""
        return np.asarray(~self.reasons.any(axis=1))

    @property
    def feasible(self) -> BoolArray:
        """No rule broken, and not out of memory; shape [P]."""
        return np.asarray(self.obeys_rules & (self.zone < ZONES.index("out")))

    @property
    def regime(self) -> str:
        """How well step times are known here, in words: ``uncertainty.Regime``."""
        name, own = (
            regime_of(self.model, self.cluster, self.framework).name,
            self.cluster.unexplained,
        )
        return name if own is None else f"{name}, {own.words}"

    @property
    def step_time_low_s(self) -> FloatArray:
        """With ``step_time_high_s`` the interval that holds 80 % of measured runs; shape [P]."""
        return self.step_time_s / self._interval_factor

    @property
    def step_time_high_s(self) -> FloatArray:
        """See ``step_time_low_s``; shape [P]."""
        return self.step_time_s * self._interval_factor

    def step_time_p95_s(self, index: int) -> float:
        """Seconds of one plan's step where the busiest experts are as loaded as at the 95th
        percentile of the model's ``load_cv``; ``step_time_s`` is the median.
        """
        skewed = self.model.with_load_quantile(0.95)
        plan = self.plans.plan(index)
        return float(simulate(skewed, self.cluster, self.framework, plan).step_time_s[0])

    @property
    def _interval_factor(self) -> FloatArray:
        regime = regime_of(self.model, self.cluster, self.framework)
        other = other_frac(cause_shares(self.time))
        return interval_factor(regime, other, self.cluster.unexplained)

    def take(self, index: Any) -> Simulation:
        """The predictions at ``index``: positions, a mask, or a slice."""
        values: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                values[field.name] = value[index]
            elif isinstance(value, PlanBatch):
                values[field.name] = value.take(index)
            elif isinstance(value, StepBreakdown | MemoryBreakdown):
                parts = {f.name: getattr(value, f.name)[index] for f in fields(value)}
                values[field.name] = type(value)(**parts)
            else:
                values[field.name] = value
        return Simulation(**values)

    @classmethod
    def concatenate(cls, parts: Sequence[Simulation]) -> Simulation:
        """Predictions of the same inputs together, in order."""
        values: dict[str, Any] = {}
        for field in fields(cls):
            of_parts = [getattr(part, field.name) for part in parts]
            value = of_parts[0]
            if isinstance(value, np.ndarray):
                value = np.concatenate(of_parts)
            elif isinstance(value, PlanBatch):
                value = PlanBatch.concatenate(of_parts)
            elif isinstance(value, StepBreakdown | MemoryBreakdown):
                names = [f.name for f in fields(value)]
                columns = {n: np.concatenate([getattr(p, n) for p in of_parts]) for n in names}
                value = type(value)(**columns)
            values[field.name] = value
        return cls(**values)

    def row(self, index: int) -> dict[str, Any]:
        """One plan's predictions as plain numbers and strings, with the memory of all its
        stages.
        """
        plan = self.plans.plan(index)
        row: dict[str, Any] = {name: float(getattr(self, name)[index]) for name in RATES}
        if self.model.has_experts:
            row["step_time_p95_s"] = self.step_time_p95_s(index)
        row["regime"] = self.regime
        row["replayed"] = bool(self.replayed[index])
        row["feasible"] = bool(self.feasible[index])
        row["reasons"] = reasons(self.reasons[index])
        row["zone"] = ZONES[int(self.zone[index])]
        for name in ("p_fits", "memory_use_frac", "peak_memory_bytes"):
            row[name] = float(getattr(self, name)[index])
        row["memory_capacity_bytes"] = self.memory_capacity_bytes
        row["fullest_stage"] = int(self.fullest_stage[index])
        for name, terms in (("time", self.time), ("memory", self.memory)):
            row[name] = {f.name: float(getattr(terms, f.name)[index]) for f in fields(terms)}
        row["memory_per_stage"] = memory_per_stage(self.model, self.cluster, self.framework, plan)
        row["plan"] = plan.to_dict()
        return row


def simulate(
    model: ModelSpec,
    cluster: ClusterSpec,
    framework: FrameworkSpec,
    plans: PlanBatch | Plan | Sequence[Plan],
    memory_limit: float = DEFAULT_MEMORY_LIMIT,
    table: CostTable | None = None,
) -> Simulation:
    """Predict step time and memory of every plan.

    A well-formed plan that breaks a rule is answered too: ``reasons`` says which. One plan is a
    batch of one, and a batch gives bit for bit what its plans give alone.

    Args:
        model: what is trained; its ``seq_length`` is the length of a sequence.
        cluster: where; its ``num_gpus`` is what plans must fill.
        framework: the training software.
        plans: one plan, several, or a batch of shape [P].
        memory_limit: predicted share of the reported memory up to which a plan is safe.
        table: costs that cover the plans' shapes, from an earlier call on the same inputs.
    """
    if isinstance(plans, Plan):
        plans = [plans]
    batch = plans if isinstance(plans, PlanBatch) else PlanBatch.from_plans(plans)
    folded = batch.folded()
    table = table or CostTable(model, cluster, framework, folded)
    outputs = _Outputs(table, len(batch), memory_limit)
    for start in range(0, len(batch), BLOCK):
        part = slice(start, start + BLOCK)
        outputs.fill(part, folded.take(part))
    return outputs.simulation(batch)


def screen(table: CostTable, plans: PlanBatch) -> tuple[FloatArray, FloatArray]:
    """(step time in seconds, peak bytes) of every plan, shape [P] each: the search's objective.

    The numbers of :func:`simulate` (the time up to rounding), without what only people read.
    """
    time, peak = by_block(table, plans, step_time, peak_memory)
    return time, peak


def screen_time(table: CostTable, plans: PlanBatch) -> FloatArray:
    """Step time in seconds of every plan, shape [P]."""
    return by_block(table, plans, step_time)[0]


def screen_memory(table: CostTable, plans: PlanBatch) -> FloatArray:
    """Peak bytes of the fullest stage of every plan, shape [P]."""
    return by_block(table, plans, peak_memory)[0]


def by_block(
    table: CostTable,
    plans: PlanBatch,
    *functions: Callable[[CostTable, IntArray, PlanBatch, Columns, States], FloatArray],
) -> list[FloatArray]:
    """What each function gives for every plan, shape [P] each, a block at a time."""
    results, plans = [np.empty(len(plans)) for _ in functions], plans.folded()
    for start in range(0, len(plans), BLOCK):
        part = slice(start, start + BLOCK)
        block = plans.take(part)
        inputs = _block_inputs(table, block)
        for result, function in zip(results, functions, strict=True):
            result[part] = function(table, *inputs)
    return results


def _block_inputs(
    table: CostTable, block: PlanBatch
) -> tuple[IntArray, PlanBatch, Columns, States]:
    """What the terms of time and memory share."""
    rows, columns = table.rows(block), plan_columns(table.model.num_layers, block)
    return rows, block, columns, states(table, rows, block, columns)


def memory_per_stage(
    model: ModelSpec, cluster: ClusterSpec, framework: FrameworkSpec, plan: Plan
) -> list[dict[str, Any]]:
    """Peak bytes of every stage of one plan, term by term: the batch formula over the stages."""
    batch = PlanBatch.from_plans([plan])
    layers, memory = each_stage(CostTable(model, cluster, framework, batch), batch)
    terms = {
        f.name: np.broadcast_to(getattr(memory, f.name), plan.pp) for f in fields(MemoryBreakdown)
    }
    total = memory.total_bytes
    return [
        {"stage": i, "layers": float(layers[i])}
        | {name: float(term[i]) for name, term in terms.items()}
        | {"total_bytes": float(total[i])}
        for i in range(plan.pp)
    ]


class _Outputs:
    """The arrays of a :class:`Simulation` while they are filled block by block."""

    def __init__(self, table: CostTable, size: int, memory_limit: float) -> None:
        self.table, self.memory_limit = table, memory_limit
        model, accelerator = table.model, table.cluster.accelerator
        self.capacity = float(accelerator.memory_bytes)
        self.flops = model.flops_per_sequence()
        peaks = np.array([peak_flops(accelerator, name) for name in PRECISIONS])
        self.peak_rate = np.nan_to_num(peaks, nan=np.inf)
        self.time = {f.name: np.empty(size) for f in fields(StepBreakdown)}
        self.memory = {f.name: np.empty(size) for f in fields(MemoryBreakdown)}
        self.columns: dict[str, Any] = {name: np.empty(size) for name in FIGURES}
        for name in ("fullest_stage", "zone"):
            self.columns[name] = np.empty(size, np.int64)
        self.columns["reasons"] = np.empty((size, MASK_BYTES), np.uint8)

    def fill(self, part: slice, block: PlanBatch) -> None:
        """Compute one block."""
        table = self.table
        inputs = _block_inputs(table, block)
        time = step_breakdown(table, *inputs)
        memory, peak, stage = fullest_stage(table, *inputs)
        for name, column in self.time.items():
            column[part] = getattr(time, name)
        for name, column in self.memory.items():
            column[part] = getattr(memory, name)
        step = time.total_s
        values = self._figures(block, inputs[2], step, peak)
        values |= {"step_time_s": step, "peak_memory_bytes": peak, "fullest_stage": stage}
        values["reasons"] = broken_rules(table.model, table.cluster, table.framework, block)
        for name, column in self.columns.items():
            column[part] = values[name]

    def _figures(
        self, block: PlanBatch, columns: Columns, step: FloatArray, peak: FloatArray
    ) -> dict[str, Any]:
        """What follows from time and peak."""
        use = peak / self.capacity
        rate = block.global_batch_size / step
        per_gpu = rate / columns.num_gpus
        mfu = self.flops * per_gpu / self.peak_rate[block.precision]
        again = _recomputed_frac(self.table.model, columns)
        for index, stages in free_stages(block):
            again[index] = stages.recomputed.sum() / self.table.model.num_layers
        return {
            "tokens_per_s": rate * float(self.table.model.seq_length),
            "tokens_per_s_per_gpu": per_gpu * float(self.table.model.seq_length),
            "mfu": mfu,
            "hfu": mfu * (1 + again * _layer_forward_share(self.table.model, self.flops)),
            "memory_use_frac": use,
            "p_fits": fits_probability(use),
            "zone": (use > self.memory_limit) + (use > TIGHT_LIMIT).astype(np.int64),
        }

    def simulation(self, plans: PlanBatch) -> Simulation:
        """The finished result."""
        return Simulation(
            model=self.table.model,
            cluster=self.table.cluster,
            framework=self.table.framework,
            plans=plans,
            time=StepBreakdown(**self.time),
            memory=MemoryBreakdown(**self.memory),
            memory_capacity_bytes=self.capacity,
            memory_limit=self.memory_limit,
            replayed=np.zeros(len(plans), np.bool_),
            **self.columns,
        )


def _recomputed_frac(model: ModelSpec, columns: Columns) -> FloatArray:
    """Share of the model's layers that full recompute runs again."""
    first, middle, last = columns.recomputed
    return (first + last + np.maximum(columns.pp - 2, 0.0) * middle) / model.num_layers


def _layer_forward_share(model: ModelSpec, flops: float) -> float:
    """Forward FLOPs of all layers over the FLOPs of a step (head excluded from the numerator)."""
    head = 6.0 * model.seq_length * model.hidden_size * model.vocab_size
    return (flops - head) / 3 / flops
