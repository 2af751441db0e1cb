"""What a replay needs to know of the stages: seconds, as arrays over plans and stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parallelsim.errors import PlanError
from parallelsim.timeline.graph import NONE, Graph
from parallelsim.timeline.operations import BACKWARD, FORWARD, INPUT, WEIGHT, FloatArray, Schedule


@dataclass(frozen=True, slots=True, eq=False)
class StageCosts:
    """Seconds of one micro-batch; P plans, S stages in the order of the model, p ranks."""

    forward_s: FloatArray
    """[P, S]."""
    backward_s: FloatArray
    """[P, S]: whole."""
    input_s: FloatArray
    """[P, S]: the input gradient, where the backward is split."""
    weight_s: FloatArray
    """[P, S]: the weight gradient, where the backward is split."""
    transfer_s: FloatArray
    """[P, p]: between ranks r and r + 1; the last between rank p - 1 and rank 0."""
    blocking: NDArray[np.bool_]
    """[P]: a rank that sends computes nothing meanwhile."""
    gather_s: FloatArray
    """[P, S]: of the parameters, before a stage's first forward; one after the other on a rank."""
    reduce_s: FloatArray
    """[P, S]: of the gradients, during and after a stage's last backward; one after the other on a
    rank."""
    num_buckets: FloatArray
    """[P]: equal parts in which gradients are reduced, as the backward that makes them goes on."""
    pair_frac: FloatArray
    """[P]: time of a forward and a backward together, of the sum of their times."""

    def __len__(self) -> int:
        return int(self.forward_s.shape[0])

    def take(self, index: slice) -> StageCosts:
        """Some of the plans."""
        return StageCosts(*(getattr(self, field.name)[index] for field in fields(self)))


def stage_costs(
    schedule: Schedule,
    forward_s: ArrayLike,
    *,
    backward_s: ArrayLike | None = None,
    input_s: ArrayLike | None = None,
    weight_s: ArrayLike | None = None,
    transfer_s: ArrayLike = 0.0,
    blocking: ArrayLike = False,
    gather_s: ArrayLike = 0.0,
    reduce_s: ArrayLike = 0.0,
    num_buckets: ArrayLike = 1,
    pair_frac: ArrayLike = 1.0,
) -> StageCosts:
    """Costs of P plans from arrays [P, S] (or [S], or scalars), [P, p] for transfers, [P] for the
    rest.

    A whole backward is the sum of its halves where only they are given.

    Raises:
        PlanError: shapes that don't fit the schedule, negative or infinite seconds, or halves of
            the backward that the schedule needs and that are missing.
    """
    needed = set(schedule.kind.tolist())
    if backward_s is None and input_s is not None and weight_s is not None:
        backward_s = np.asarray(input_s, np.float64) + np.asarray(weight_s, np.float64)
    halves = input_s is not None and weight_s is not None
    if backward_s is None or (needed & {INPUT, WEIGHT} and not halves):
        wanted = "input_s and weight_s" if needed & {INPUT, WEIGHT} else "backward_s"
        raise PlanError(f"{schedule.name}: the replay needs {wanted}")
    wide: Mapping[str, ArrayLike] = {
        "forward_s": forward_s,
        "backward_s": backward_s,
        "input_s": 0.0 if input_s is None else input_s,
        "weight_s": 0.0 if weight_s is None else weight_s,
        "transfer_s": transfer_s,
        "gather_s": gather_s,
        "reduce_s": reduce_s,
    }
    single: Mapping[str, ArrayLike] = {
        "blocking": blocking,
        "num_buckets": num_buckets,
        "pair_frac": pair_frac,
    }
    arrays = {name: np.atleast_2d(np.asarray(value, np.float64)) for name, value in wide.items()}
    arrays |= {name: np.atleast_1d(np.asarray(value, np.float64)) for name, value in single.items()}
    num_plans = max(len(array) for array in arrays.values())
    for name, array in arrays.items():
        width = schedule.num_ranks if name == "transfer_s" else schedule.num_stages
        shape = (num_plans, width) if name in wide else (num_plans,)
        arrays[name] = _checked(f"{schedule.name}: {name}", array, shape)
    if (arrays["num_buckets"] < 1).any():
        raise PlanError(f"{schedule.name}: num_buckets must be at least 1")
    return StageCosts(**{**arrays, "blocking": arrays["blocking"] > 0})  # type: ignore[arg-type]


def _checked(name: str, array: FloatArray, shape: tuple[int, ...]) -> FloatArray:
    try:
        full = np.broadcast_to(array, shape)
    except ValueError:
        raise PlanError(f"{name} has shape {array.shape}, expected {shape}") from None
    if not (np.isfinite(full).all() and (full >= 0).all()):
        raise PlanError(f"{name} must be finite and not negative")
    return full


def transfer_time(latency_s: ArrayLike, num_bytes: ArrayLike, bytes_per_s: ArrayLike) -> FloatArray:
    """Seconds to send one micro-batch's activations across each boundary: t0 + S / B."""
    return np.asarray(latency_s) + np.asarray(num_bytes) / np.asarray(bytes_per_s, np.float64)


def cost_table(graph: Graph, costs: StageCosts) -> tuple[FloatArray, FloatArray]:
    """Of each cost class, [K, P]: seconds of computation, and of the transfer that follows.

    Raises:
        PlanError: transfers that block although forwards and backwards run together to hide them.
    """
    if graph.pairs and costs.blocking.any():
        raise PlanError(
            f"{graph.schedule.name}: operations that run together need transfers that don't block"
        )
    classes = graph.classes
    seconds = np.zeros((len(classes.kind), len(costs)))
    by_kind = {
        FORWARD: costs.forward_s,
        BACKWARD: costs.backward_s,
        INPUT: costs.input_s,
        WEIGHT: costs.weight_s,
    }
    for kind, source in by_kind.items():
        chosen = classes.kind == kind
        seconds[chosen] = source.T[classes.stage[chosen]]
    paired = classes.partner_stage != NONE
    if paired.any():
        seconds[paired] += costs.backward_s.T[classes.partner_stage[paired]]
        seconds[paired] *= costs.pair_frac
    sent = np.where((classes.link == NONE)[:, None], 0.0, costs.transfer_s.T[classes.link])
    return seconds, sent
