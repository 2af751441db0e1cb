"""A whole training: days, GPU-hours, dollars and kWh for a number of tokens, failures included.

A run of D tokens at R tokens/s makes progress for D / R seconds. Failures and checkpoints stretch
that by the goodput g < 1, the share of the time that is progress:

T = D / (R g),   GPU-hours = N T,   dollars = p N T,   energy = PUE P N T

All functions take floats or arrays of shape [P], one entry a plan. Neglects evaluation, the ramp of
the batch, learning rates that are tried again, planned maintenance, slow nodes that do not fail,
and failures that come in bursts: they are independent of each other and of the age of the run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from parallelsim.cluster import ClusterSpec
from parallelsim.errors import SpecError
from parallelsim.framework import FrameworkSpec
from parallelsim.model import ModelSpec
from parallelsim.operators import FP32, FloatArray
from parallelsim.optimizers import OPTIMIZER_STATE_FRAC
from parallelsim.plan_batch import PlanBatch
from parallelsim.simulate import Simulation
from parallelsim.uncertainty import NORMAL_QUANTILE

DAY_S, HOUR_S = 86_400.0, 3_600.0
GPU_HOURS_BETWEEN_FAILURES = 16_384 * 54 * 24 / 419
"""50,676, where the cluster's file states nothing: Llama-3 405B, 419 unexpected interruptions in 54
days on 16,384 H100 (arXiv:2407.21783 section 3.3.4)."""
RESTART_S = 600.0
"""Until training goes on, without reading the checkpoint: MegaScale detects and diagnoses in less
than ten minutes on average (arXiv:2402.15627 section 6.3)."""
STORAGE_BYTES_PER_S_PER_NODE = 2e12 / 2048
"""0.98 GB/s, where the cluster's file states nothing: Llama-3's file system sustains 2 TB/s
(arXiv:2407.21783 section 3.3.1) for 2,048 nodes that train."""
PUE = 1.58
"""Power of the building over that of its computers: mean of the Uptime Institute's survey of 2023.
Operators of very large sites report about 1.1."""
POWER_FRAC = 0.76
"""Power of a node that trains over its rated maximum: H100 nodes of 10.2 kW under intensive
training, GPUs, CPUs, NICs and fans together (arXiv:2506.14551)."""


@dataclass(frozen=True)
class Faults:
    """How often a run fails, and what it does against it."""

    gpu_hours_between_failures: float = GPU_HOURS_BETWEEN_FAILURES
    restart_s: float = RESTART_S
    """From a failure until training goes on, without reading the checkpoint."""
    storage_bytes_per_s_per_node: float = STORAGE_BYTES_PER_S_PER_NODE
    """Rate at which a node writes and reads checkpoints while all do."""
    asynchronous: bool = False
    """Training goes on while a copy of the states in host memory is written."""


@dataclass(frozen=True)
class Budget:
    """What is to be trained, by when, at what price, against what; None: not stated."""

    tokens: float | None = None
    deadline_days: float | None = None
    dollars_per_gpu_hour: float | None = None
    faults: Faults | None = None
    """None: :func:`default_faults` of the cluster."""
    pue: float = PUE
    """Power of the building over that of its computers."""

    def days(self, tokens_per_s: float) -> float | None:
        """Days for all tokens at this rate."""
        return None if self.tokens is None else _seconds(self.tokens, tokens_per_s) / DAY_S

    def gpu_hours(self, tokens_per_s_per_gpu: float) -> float | None:
        """GPU-hours for all tokens at this rate."""
        return None if self.tokens is None else _seconds(self.tokens, tokens_per_s_per_gpu) / HOUR_S

    def dollars(self, tokens_per_s_per_gpu: float) -> float | None:
        """Price of all tokens at this rate."""
        hours = self.gpu_hours(tokens_per_s_per_gpu)
        price = self.dollars_per_gpu_hour
        return None if hours is None or price is None else hours * price

    def is_met(self, tokens_per_s: float) -> bool:
        """Whether all tokens are trained by the deadline; true without one."""
        days = self.days(tokens_per_s)
        return self.deadline_days is None or days is None or days <= self.deadline_days


def _seconds(tokens: float, tokens_per_s: float) -> float:
    return tokens / tokens_per_s if tokens_per_s else np.inf


@dataclass(frozen=True)
class Recovery:
    """Checkpoints and failures of a run; floats or shape [P]."""

    checkpoint_bytes: FloatArray
    write_s: FloatArray
    """Until a checkpoint is on storage."""
    stall_s: FloatArray
    """What training waits for each checkpoint."""
    pending_s: FloatArray
    """From then until it can be read."""
    restart_s: FloatArray
    """From a failure until training goes on, the checkpoint read."""
    between_failures_s: float
    """Of the whole cluster."""
    steps_between: FloatArray
    """Optimizer steps between two checkpoints, whole numbers."""
    goodput: FloatArray
    """Share of the time that is progress; 0 where failures come faster than progress."""


def checkpoint_bytes(model: ModelSpec, framework: FrameworkSpec, plans: PlanBatch) -> FloatArray:
    """Bytes of one checkpoint, shape [P]: weights and optimizer states, each once.

    C = n (w + m + f a)

    n trained parameters (of LoRA the adapters), w bytes of the weight (fp32: 4), m of the master
    weight (fp32: none), a of Adam's moments, f the optimizer's share of them. Gradients and fp8
    copies are not written. Neglects that Muon keeps Adam's moments of embedding and head.
    """
    facts = framework.memory
    is_fp32 = plans.precision == FP32
    weights = np.where(is_fp32, 4.0, facts.param_bytes)
    master = np.where(is_fp32, 0.0, facts.master_bytes)
    moments = OPTIMIZER_STATE_FRAC[plans.optimizer] * facts.optimizer_bytes
    return np.asarray(model.num_trainable_parameters * (weights + master + moments))


def daly_interval(stall_s: FloatArray, between_failures_s: FloatArray | float) -> FloatArray:
    """Seconds of training between checkpoints that waste least time, higher order.

    tau = sqrt(2 d M) (1 + x / 3 + x^2 / 9) - d,   x = sqrt(d / (2 M)),   M where d >= 2 M

    d seconds that a checkpoint stalls, M seconds between failures (J. T. Daly, Future Generation
    Computer Systems 22, 2006, equation 37).
    """
    x = np.sqrt(stall_s / (2 * np.asarray(between_failures_s)))
    tau = np.sqrt(2 * stall_s * between_failures_s) * (1 + x / 3 + x * x / 9) - stall_s
    return np.where(stall_s < 2 * np.asarray(between_failures_s), tau, between_failures_s)


def goodput(
    interval_s: FloatArray | float,
    stall_s: FloatArray | float,
    pending_s: FloatArray | float,
    restart_s: FloatArray | float,
    between_failures_s: FloatArray | float,
) -> FloatArray:
    """Share of the time that is progress.

    g = tau exp(-(r + w) / M) / (M (exp((tau + d) / M) - 1))

    tau seconds of training between checkpoints, each of which stalls it by d and can be read w
    seconds after (0 where training waits for the write: d holds it), r seconds until training goes
    on after a failure, M seconds between failures. Exponential times: between two restarts that
    succeed, M exp(r / M) seconds apart, k checkpoints are kept with the probability
    exp(-(k (tau + d) + w) / M). w = 0 is J. T. Daly's complete model (2006, equation 20).
    """
    m = np.asarray(between_failures_s, np.float64)
    with np.errstate(over="ignore", under="ignore"):
        kept = np.exp(-(np.asarray(restart_s) + pending_s) / m)
        cycle = m * np.expm1((np.asarray(interval_s) + stall_s) / m)
        return np.asarray(interval_s * kept / cycle)


def lost_time(kept: Recovery, step_time_s: FloatArray) -> FloatArray:
    """Expected seconds that a failure undoes: those since the last checkpoint that can be read.

    L = M - tau exp(-w / M) / (exp((tau + d) / M) - 1), with the symbols of :func:`goodput`
    """
    m, tau = kept.between_failures_s, kept.steps_between * step_time_s
    with np.errstate(over="ignore", under="ignore"):
        held = tau * np.exp(-kept.pending_s / m) / np.expm1((tau + kept.stall_s) / m)
    return np.asarray(m - held)


def recovery(
    cluster: ClusterSpec,
    faults: Faults,
    size_bytes: FloatArray,
    step_time_s: FloatArray,
    num_steps: FloatArray | float = np.inf,
) -> Recovery:
    """Checkpoints of ``size_bytes`` for runs of ``num_steps`` on all GPUs of the cluster.

    A checkpoint is written after every whole number of steps that is next to
    :func:`daly_interval`, not before the last one is on storage. A blocking one stalls the run for
    the write, C / (nodes B); an asynchronous one for the copy to host memory, C / (N B_host).
    Neglects that stages hold different shares, and that storage slows down other traffic.

    Raises:
        SpecError: the copy to the host is asked for, and its rate is not known.
    """
    write_s = size_bytes / (cluster.num_nodes * faults.storage_bytes_per_s_per_node)
    stall_s, pending_s = write_s, np.zeros_like(write_s)
    if faults.asynchronous:
        stall_s, pending_s = size_bytes / (cluster.num_gpus * host_rate(cluster)), write_s
    between_s = faults.gpu_hours_between_failures * HOUR_S / cluster.num_gpus
    steps = np.rint(daly_interval(stall_s, between_s) / step_time_s)
    steps = np.maximum(steps, np.ceil((pending_s - stall_s) / step_time_s))
    steps = np.maximum(np.minimum(steps, np.ceil(num_steps)), 1.0)
    restart_s = faults.restart_s + write_s
    kept = goodput(steps * step_time_s, stall_s, pending_s, restart_s, between_s)
    return Recovery(size_bytes, write_s, stall_s, pending_s, restart_s, between_s, steps, kept)


def host_rate(cluster: ClusterSpec) -> float:
    """Bytes a second from a GPU to the host.

    Raises:
        SpecError: the accelerator's file states none.
    """
    rate = cluster.accelerator.host_bytes_per_s
    if rate is None:
        message = f"{cluster.accelerator.name} states no link to the host (host_link), which an "
        raise SpecError(f"{message}asynchronous checkpoint is copied over; use blocking ones")
    return rate


@dataclass(frozen=True)
class WholeRun:
    """What :func:`whole_run` gives: floats of shape [P] where not said otherwise."""

    num_steps: FloatArray
    uninterrupted_days: FloatArray
    """Without failures and checkpoints."""
    days: FloatArray
    """Expected."""
    days_low: FloatArray
    """With ``days_high`` the 80 % interval, that of the step time. The spread of the failures,
    about sqrt(failures) restarts, is far smaller and neglected."""
    days_high: FloatArray
    p_meets_deadline: FloatArray | None
    """P(the run ends by the deadline), of the same errors; None: there is no deadline."""
    num_failures: FloatArray
    """Expected."""
    gpu_hours: FloatArray
    dollars: FloatArray | None
    """None: no price."""
    energy_kwh: FloatArray | None
    """None: the cluster's file states no power."""
    recovery: Recovery


def default_faults(cluster: ClusterSpec) -> Faults:
    """What the cluster's file states of failures and storage, else Llama-3's."""
    return Faults(
        cluster.gpu_hours_between_failures or GPU_HOURS_BETWEEN_FAILURES,
        storage_bytes_per_s_per_node=cluster.storage_bytes_per_s_per_node
        or STORAGE_BYTES_PER_S_PER_NODE,
    )


def node_power_w(cluster: ClusterSpec) -> float | None:
    """Watts of a node that trains, 0.76 of its rated maximum; None: the file states none.

    Neglects that memory-bound steps draw less, and that GPUs which wait for a restart idle.
    """
    rated = cluster.node_power_w
    return None if rated is None else POWER_FRAC * rated


def whole_run(simulation: Simulation, budget: Budget) -> WholeRun:
    """Days, GPU-hours, dollars and kWh of each of P plans.

    Raises:
        SpecError: the budget states no tokens, or see :func:`recovery`.
    """
    if budget.tokens is None:
        raise SpecError("a whole run needs a number of tokens")
    cluster, step_s = simulation.cluster, simulation.step_time_s
    tokens_of_step = simulation.tokens_per_s * step_s
    num_steps = budget.tokens / tokens_of_step
    size = checkpoint_bytes(simulation.model, simulation.framework, simulation.plans)
    kept = recovery(cluster, budget.faults or default_faults(cluster), size, step_s, num_steps)
    with np.errstate(divide="ignore"):
        days = num_steps * step_s / kept.goodput / DAY_S
    factor = simulation.step_time_high_s / step_s
    gpu_hours = cluster.num_gpus * days * DAY_S / HOUR_S
    price, power = budget.dollars_per_gpu_hour, node_power_w(cluster)
    node_hours = cluster.num_nodes * days * DAY_S / HOUR_S
    return WholeRun(
        num_steps=num_steps,
        uninterrupted_days=num_steps * step_s / DAY_S,
        days=days,
        days_low=days / factor,
        days_high=days * factor,
        p_meets_deadline=_p_below(budget.deadline_days, days, factor),
        num_failures=days * DAY_S / kept.between_failures_s,
        gpu_hours=gpu_hours,
        dollars=None if price is None else gpu_hours * price,
        energy_kwh=None if power is None else budget.pue * power / 1e3 * node_hours,
        recovery=kept,
    )


def _p_below(deadline: float | None, days: FloatArray, factor: FloatArray) -> FloatArray | None:
    """P(a run of median ``days`` takes at most the deadline): log-normal, ``factor`` its 90th
    percentile over the median.
    """
    if deadline is None:
        return None
    deviations = np.log(deadline / days, where=np.isfinite(days), out=np.full(len(days), -np.inf))
    deviations *= NORMAL_QUANTILE / np.log(factor)
    return np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in deviations])
