"""What is asked of a partition into pipeline stages: costs, memory, schedule, constraints."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from parallelsim.errors import PlanError
from parallelsim.pipeline import in_flight_micro_batches
from parallelsim.plan import SCHEDULES, code

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

MAX_LAYERS = 2_048
LAYOUTS = ("free", "first-last", "embedding", "loss", "embedding-loss", "even")
"""``free`` is any contiguous cut; the others are those of :data:`parallelsim.plan.LAYOUTS`."""
RECOMPUTES = ("least", "all-or-none", "same")


@dataclass(frozen=True, slots=True, eq=False)
class LayerItems:
    """The layers in order, for one micro-batch on one rank; float64 of shape [L], nothing negative.

    ``recompute_s`` comes on top of the backward pass of a recomputed layer. ``checkpoint_bytes`` is
    what such a layer keeps, at most ``saved_bytes``.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    recompute_s: FloatArray
    state_bytes: FloatArray
    """Parameters, gradients, optimizer."""
    saved_bytes: FloatArray
    """Kept for each micro-batch in flight."""
    checkpoint_bytes: FloatArray
    step_bytes: FloatArray
    """Transient of the optimizer step, over when activations are held."""

    def __len__(self) -> int:
        return len(self.forward_s)

    @classmethod
    def uniform(cls, num_layers: int, **values: float) -> LayerItems:
        """Identical layers; what is left out is 0 (``recompute_s``: the forward pass)."""
        values = {"recompute_s": values.get("forward_s", 0.0)} | values
        return cls(**{f.name: np.full(num_layers, values.get(f.name, 0.0)) for f in fields(cls)})


@dataclass(frozen=True, slots=True)
class EdgeItem:
    """What is bound to the first or the last chunk: embedding; head, loss and bound MTP layers."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    state_bytes: float = 0.0
    saved_bytes: float = 0.0
    """Kept for each micro-batch in flight."""
    transient_bytes: float = 0.0
    """Peak while it runs: the stage holds this or the layers' transient, whichever is larger."""
    step_bytes: float = 0.0


NO_EDGE = EdgeItem()


@dataclass(frozen=True, eq=False)
class PartitionProblem:
    """Costs, memory, schedule and constraints.

    Bytes of a stage that holds n layers in v chunks and recomputes r of them:

    M = constant + sum state + max(F (sum saved or checkpoint) + transient, sum step)

    F micro-batches in flight (:func:`parallelsim.pipeline.in_flight_micro_batches`); transient is
    that of the edge, or of the layers (another with r > 0), whichever is larger.
    """

    layers: LayerItems
    pp: int
    num_micro_batches: int
    first: EdgeItem = NO_EDGE
    last: EdgeItem = NO_EDGE
    vpp: int = 1
    schedule: str = "1f1b"
    capacity_bytes: float = float("inf")
    constant_bytes: float = 0.0
    transient_bytes: float = 0.0
    """Transient of any one layer's backward pass."""
    recompute_transient_bytes: float = 0.0
    """The same in a stage that recomputes layers: their tensors are back while it lasts."""
    layout: str = "free"
    recompute: str | int = "least"
    """``least``: each stage its first r layers, r the least that fits; ``all-or-none``: each stage
    none or all; a number N: min(v N, n) everywhere, as Megatron's block method does (0: none);
    ``same``: the best such number, the one that can be launched today."""
    min_layers: int = 1
    """Of every chunk; 0 lets chunks hold nothing but the embedding or the head."""

    def validate(self) -> PartitionProblem:
        """Return the problem itself.

        Raises:
            PlanError: shapes, ranges or combinations that are wrong, in one line.
        """
        self._validate_items()
        for name in ("pp", "vpp", "num_micro_batches"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= 2**31:
                raise PlanError(f"{name} must be an integer of at least 1, got {value!r}")
        if self.schedule not in SCHEDULES:
            raise PlanError(f"schedule must be one of {', '.join(SCHEDULES)}")
        if (self.vpp > 1) != (self.schedule == "interleaved-1f1b"):
            raise PlanError(f"vpp={self.vpp} does not go with schedule {self.schedule}")
        if self.layout not in LAYOUTS:
            raise PlanError(f"layout must be one of {', '.join(LAYOUTS)}")
        if self.min_layers not in (0, 1):
            raise PlanError(f"min_layers must be 0 or 1, got {self.min_layers!r}")
        if isinstance(self.recompute, str) and self.recompute not in RECOMPUTES:
            raise PlanError(f"recompute must be a number or one of {', '.join(RECOMPUTES)}")
        if self.pp * self.vpp * self.min_layers > len(self.layers):
            raise PlanError(
                f"{len(self.layers)} layers do not fill pp * vpp = {self.pp} * {self.vpp} chunks"
            )
        if self.pp * self.vpp > 2 * MAX_LAYERS:
            raise PlanError(f"pp * vpp may be at most {2 * MAX_LAYERS}")
        return self

    def _validate_items(self) -> None:
        size = len(self.layers)
        if not 1 <= size <= MAX_LAYERS:
            raise PlanError(f"a partition takes 1 to {MAX_LAYERS} layers, got {size}")
        for f in fields(LayerItems):
            column = getattr(self.layers, f.name)
            if column.shape != (size,) or not (np.isfinite(column) & (column >= 0)).all():
                raise PlanError(f"{f.name} must be {size} finite numbers, none negative")
        if (self.layers.checkpoint_bytes > self.layers.saved_bytes).any():
            raise PlanError("checkpoint_bytes exceeds saved_bytes: recompute would keep more")
        numbers = [getattr(e, f.name) for e in (self.first, self.last) for f in fields(EdgeItem)]
        numbers += [self.constant_bytes, self.transient_bytes, self.recompute_transient_bytes]
        if not all(0 <= number < float("inf") for number in numbers):
            raise PlanError("edge items, constant and transients must be finite and not negative")
        if not self.capacity_bytes > 0:
            raise PlanError(f"capacity_bytes must be positive, got {self.capacity_bytes!r}")

    @property
    def num_chunks(self) -> int:
        """Virtual stages pp * vpp; number c runs on stage c mod pp."""
        return self.pp * self.vpp

    @cached_property
    def in_flight(self) -> FloatArray:
        """Micro-batches in flight of each stage, shape [pp]."""
        return in_flight_micro_batches(
            np.full(self.pp, code("schedule", self.schedule)),
            np.full(self.pp, float(self.pp)),
            np.full(self.pp, float(self.vpp)),
            np.arange(self.pp, dtype=np.float64),
            np.full(self.pp, float(self.num_micro_batches)),
        )

    @property
    def bound_weights(self) -> tuple[tuple[float, float], ...]:
        """Pairs (a, b) with T >= a max tau + b sum tau, of one chunk a stage.

        1F1B: the stage of tau = B = max tau, w-th last, ends no sooner than P + m B + 2 R - w B,
        with P + R = S - B all other stages, and w B - R is at most the gap p B - S: with m > p
        T >= 2 S + (m - 1 - p) B.
        """
        m = self.num_micro_batches
        if self.schedule != "1f1b":
            return ((self.slowest_weight, 1 / self.vpp),)
        filled = ((float(m - 1 - self.pp), 2.0),) if m > self.pp else ()
        return ((float(m), 0.0), (0.0, 1.0), *filled)

    @property
    def slowest_weight(self) -> float:
        """Of max tau in T = (m - 1/v) max tau + sum tau / v."""
        return self.num_micro_batches - 1 / self.vpp
