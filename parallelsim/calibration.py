"""Measured runs into few correction factors, with the error before and after.

First the speed, by which all step times differ from their predictions alike
(``calibration_speed``), then what single parts of the hardware differ by beyond it: the maximum a
posteriori estimate in log space. With z_k the log of factor k in units of its prior's standard
deviation (the constant of memory: bytes in units of its own),

    minimise  sum_i rho( (log measured_i - log predicted_i(z)) / s ) + sum_k z_k^2 / 2

rho is Huber's function, s the noise of a run and of the equations together. Gauss-Newton steps with
numerical derivatives through the simulator itself. A factor whose posterior is barely narrower than
its prior is left alone: these runs do not show it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from parallelsim.calibration_overlay import Factors
from parallelsim.calibration_predictor import MeasuredRun, Predictor
from parallelsim.calibration_speed import COMMON_SCALE, CommonPart, common_part
from parallelsim.cluster import Unexplained
from parallelsim.errors import SpecError
from parallelsim.units import GIB

FloatArray = NDArray[np.float64]

PRIOR_SD: Mapping[str, float] = {
    "compute": 0.065,
    "memory_bound": 0.065,
    "intra_node": 0.16,
    "inter_node": 0.16,
    "host": 0.12,
    "memory_scale": 0.05,
    "memory_constant_bytes": 0.5 * GIB,
}
"""Standard deviation of the log of each factor (of the constant: bytes) around the catalogue's
value. Tuned once for all on published runs (benchmarks/calibration.py): with 50 % on communication
and host, a few runs moved these too far. Network latencies, overlap shares, the fixed step alone,
stragglers and the passes of the loss are no factors: runs do not identify them.
"""
RUN_NOISE = 0.03
"""Relative noise of one measured run: the same configuration again."""
MODEL_NOISE = 0.12
"""Relative error of a predicted step time that no factor explains: the spread inside most published
sources is 6 to 15 %. With 5 %, three runs pulled the factors after their own errors."""
MEMORY_NOISE = 0.05
"""The same of a predicted peak."""
NOISE_RUNS = 8.0
"""The stated noise counts as this many runs against the spread that the runs show."""
LEAST_NOISE = 0.05
HUBER = 0.8
"""Residuals beyond this many standard deviations count linearly, so that one wild run pulls no
further; below 1, since the equations' errors have heavier tails than a normal distribution's."""
LARGEST_Z = 3.0
"""No factor moves further than this many standard deviations of its prior."""
IDENTIFIED_SHRINK = 0.98
"""Posterior over prior standard deviation above which a factor is left alone."""
WORST_LEFT_OUT = 1.3
"""Error of left-out runs over the default error above which the factors are given up."""
LARGEST_RATIO = 4.0
"""Median measured over predicted step time beyond which the runs are not of these plans."""
_STEP = 0.1
_MAX_ITERATIONS = 8
_CLOSE_ENOUGH = 0.01
_NOISE_ROUNDS = 3
_NAMES = tuple(f.name for f in fields(Factors) if f.name != "speed")
_SD = np.array([PRIOR_SD[name] for name in _NAMES])
_IS_CONSTANT = np.array([name == "memory_constant_bytes" for name in _NAMES])


@dataclass(frozen=True, slots=True)
class FactorFit:
    """One factor."""

    name: str
    value: float
    """A factor, or bytes of the constant."""
    prior_sd: float
    """Of its log, or bytes."""
    posterior_sd: float
    is_identified: bool
    """False: left alone."""


@dataclass(frozen=True, slots=True)
class ErrorChange:
    """Mean absolute and mean signed relative error of the runs; NaN where there are none."""

    n: int
    mape_before: float
    bias_before: float
    mape_after: float
    """On the runs that were fitted."""
    mape_left_out: float
    """Each run predicted from the others alone; NaN with fewer than two runs."""
    bias_left_out: float


@dataclass(frozen=True)
class Calibration:
    """The factors with their evidence."""

    factors: Factors
    fits: tuple[FactorFit, ...]
    time: ErrorChange
    memory: ErrorChange
    kept: tuple[str, ...]
    """``step time`` or ``memory`` where the factors predicted left-out runs no better, and were
    given up."""
    unexplained: Unexplained | None
    """Of step times; None without any."""


def calibrate(runs: Sequence[MeasuredRun]) -> Calibration:
    """Fit the factors to one or more runs.

    Raises:
        SpecError: nothing was measured.
    """
    problem = _Problem(runs)
    if not len(problem.measured):
        raise SpecError("nothing to fit: no run has a step time or a peak memory")
    before = problem.residuals(np.zeros(len(_NAMES)))
    _check_scale(before[problem.is_time])
    fit = fit_factors(problem)
    after = problem.residuals(fit.z)
    return Calibration(
        factors=problem.factors(fit.z),
        fits=_factor_fits(problem, fit),
        time=_error_change(before, after, fit.left_out, problem.is_time),
        memory=_error_change(before, after, fit.left_out, ~problem.is_time),
        kept=fit.kept,
        unexplained=_unexplained(fit.left_out if problem.is_time.sum() > 1 else after, problem),
    )


def _unexplained(residuals: FloatArray, problem: _Problem) -> Unexplained | None:
    times = residuals[problem.is_time]
    return Unexplained(len(times), float(np.sqrt((times**2).mean()))) if len(times) else None


def _check_scale(residuals: FloatArray) -> None:
    """Refuse runs that are no runs of these plans.

    Raises:
        SpecError: measured and predicted times are far apart.
    """
    ratio = float(np.exp(np.median(residuals))) if len(residuals) else 1.0
    if not 1 / LARGEST_RATIO < ratio < LARGEST_RATIO:
        raise SpecError(
            f"step times are about {ratio:.2g} times the predictions, which no efficiency explains;"
            " check the plan, the batch and the unit (seconds)"
        )


class _Problem:
    """Residuals log(measured / predicted) over all measured numbers: times first, then peaks."""

    def __init__(self, runs: Sequence[MeasuredRun]) -> None:
        self._predict = Predictor(runs)
        times = [run.step_time_s or np.nan for run in runs]
        peaks = [run.peak_memory_bytes or np.nan for run in runs]
        measured = np.array([*times, *peaks], np.float64)
        self._known = np.isfinite(measured) & (measured > 0)
        self.measured = measured[self._known]
        self.is_time = (np.arange(len(measured)) < len(runs))[self._known]
        model = np.where(self.is_time, MODEL_NOISE, MEMORY_NOISE)
        self.stated = self.noise = np.hypot(RUN_NOISE, model)
        self.slower: CommonPart | None = None
        """What :meth:`learn_speed` found, which every residual then allows for."""

    def residuals(self, z: FloatArray) -> FloatArray:
        """Of the log, shape [N]."""
        predicted = np.concatenate(self._predict(self.factors(z)))[self._known]
        return np.asarray(np.log(self.measured / predicted))

    def factors(self, z: FloatArray) -> Factors:
        """With the speed that was learnt."""
        return _factors(z, np.exp(-self.slower.mean) if self.slower else 1.0)

    def learn_speed(self, residuals: FloatArray) -> None:
        """Take the part that all step times have in common from them."""
        if self.is_time.any():
            self.slower = common_part(residuals[self.is_time])

    def jacobian(self, z: FloatArray) -> FloatArray:
        """Derivatives of the log predictions, shape [N, K]."""
        here, columns = self.residuals(z), []
        for k in range(len(z)):
            step = np.zeros(len(z))
            step[k] = _STEP
            columns.append((here - self.residuals(z + step)) / _STEP)
        return np.stack(columns, axis=1)

    def learn_noise(self, residuals: FloatArray) -> None:
        """Let the spread of the runs around the fit correct the noise, of times and peaks apart.

        s^2 = (nu s0^2 + sum r^2) / (nu + n): the stated noise counts as nu runs.
        """
        size, noise = np.minimum(np.abs(residuals), 3 * self.noise), self.noise.copy()
        for part in (self.is_time, ~self.is_time):
            total = NOISE_RUNS * self.stated[part] ** 2 + (size[part] ** 2).sum()
            learnt = np.sqrt(total / (NOISE_RUNS + part.sum()))
            noise[part] = np.maximum(learnt, LEAST_NOISE)
        self.noise = noise

    def weights(self, residuals: FloatArray) -> FloatArray:
        """Huber's weights over the variance."""
        size = np.abs(residuals) / self.noise
        return np.asarray(HUBER / np.maximum(size, HUBER) / self.noise**2)

    def objective(self, z: FloatArray, residuals: FloatArray) -> float:
        """The sum that the module's docstring minimises."""
        size = np.abs(residuals) / self.noise
        loss = np.where(size <= HUBER, size**2 / 2, HUBER * size - HUBER**2 / 2)
        return float(loss.sum() + (z**2).sum() / 2)

    def kinds(self) -> list[tuple[str, NDArray[np.bool_], NDArray[np.bool_]]]:
        """(label, its residuals, its factors) of step time and of memory."""
        memory = np.array([name.startswith("memory_s") for name in _NAMES]) | _IS_CONSTANT
        return [("step time", self.is_time, ~memory), ("memory", ~self.is_time, memory)]


def _factors(z: FloatArray, speed: float) -> Factors:
    scaled = _SD * z
    values = np.where(_IS_CONSTANT, scaled, np.exp(np.where(_IS_CONSTANT, 0.0, scaled)))
    named = {name: float(value) for name, value in zip(_NAMES, values, strict=True)}
    return Factors(speed=float(speed), **named)


@dataclass(frozen=True, slots=True)
class Fit:
    """Where the search for the factors ended."""

    z: FloatArray
    free: NDArray[np.bool_]
    """Factors that were fitted."""
    jacobian: FloatArray
    left_out: FloatArray
    """Residual of each measured number with the factors fitted on the other runs."""
    kept: tuple[str, ...]


def fit_factors(problem: _Problem) -> Fit:
    """The estimate over the factors that the runs identify, unless left-out runs show no gain."""
    start = np.zeros(len(_NAMES))
    before = problem.residuals(start)
    problem.learn_speed(before)
    jacobian = problem.jacobian(start)
    free = np.abs(jacobian).max(axis=0) > 0
    free = _identified(jacobian, problem.weights(problem.residuals(start)), free)
    z = _map_estimate(problem, jacobian, free)
    jacobian = problem.jacobian(z)
    for _ in range(_NOISE_ROUNDS):
        problem.learn_noise(problem.residuals(z))
        z = _map_estimate(problem, jacobian, free, z)
    left_out = _left_out_residuals(problem, jacobian, z, free)
    kept = []
    for label, of_kind, names in problem.kinds():
        worse = _mape(left_out[of_kind]) > WORST_LEFT_OUT * _mape(before[of_kind])
        fitted = (free & names).any() or (of_kind is problem.is_time and problem.slower)
        if of_kind.sum() > 1 and worse and fitted:
            free, z = free & ~names, np.where(names, 0.0, z)
            left_out = np.where(of_kind, before, left_out)
            kept.append(label)
            if of_kind is problem.is_time:
                problem.slower = None
    return Fit(z, free, jacobian, left_out, tuple(kept))


def _map_estimate(
    problem: _Problem, jacobian: FloatArray, free: NDArray[np.bool_], z: FloatArray | None = None
) -> FloatArray:
    """The z of the lowest objective over the free factors, the others 0; shape [K].

    Gauss-Newton with one Jacobian: predictions are nearly linear in z.
    """
    z = np.zeros(len(_NAMES)) if z is None else z
    residuals, part = problem.residuals(z), jacobian[:, free]
    for _ in range(_MAX_ITERATIONS if free.any() else 0):
        weights = problem.weights(residuals)
        hessian = (part.T * weights) @ part + np.eye(part.shape[1])
        step = np.zeros(len(z))
        step[free] = np.linalg.solve(hessian, part.T @ (weights * residuals) - z[free])
        best = problem.objective(z, residuals)
        for shrink in (1.0, 0.5, 0.2):
            candidate = np.clip(z + shrink * step, -LARGEST_Z, LARGEST_Z)
            changed = problem.residuals(candidate)
            if problem.objective(candidate, changed) < best:
                break
        else:
            break
        z, residuals = candidate, changed
        if np.abs(step).max() < _CLOSE_ENOUGH:
            break
    return z


def _posterior_sd(jacobian: FloatArray, weights: FloatArray, free: NDArray[np.bool_]) -> FloatArray:
    """Posterior over prior standard deviation, shape [K]; 1 where a factor is not free."""
    sd = np.ones(len(free))
    if free.any():
        part = jacobian[:, free]
        hessian = (part.T * weights) @ part + np.eye(part.shape[1])
        sd[free] = np.sqrt(np.diag(np.linalg.inv(hessian)))
    return sd


def _identified(
    jacobian: FloatArray, weights: FloatArray, free: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """The free factors that the runs show: the least certain one goes until all others stay."""
    free = free.copy()
    while free.any():
        sd = np.where(free, _posterior_sd(jacobian, weights, free), 0.0)
        worst = int(np.argmax(sd))
        if sd[worst] <= IDENTIFIED_SHRINK:
            break
        free[worst] = False
    return free


def _left_out_residuals(
    problem: _Problem, jacobian: FloatArray, z: FloatArray, free: NDArray[np.bool_]
) -> FloatArray:
    """Residual of each measured number with the factors fitted on the other runs, shape [N].

    One Gauss-Newton step from the fit on all runs: the predictions are nearly linear in z there.
    """
    residuals = problem.residuals(z)
    part, weights = jacobian[:, free], problem.weights(residuals)
    result, unexplained = np.empty_like(residuals), _without_each(problem, residuals)
    for i in range(len(residuals)):
        others = weights * (np.arange(len(residuals)) != i)
        hessian = (part.T * others) @ part + np.eye(part.shape[1])
        step = np.linalg.solve(hessian, part.T @ (others * unexplained[i]) - z[free])
        result[i] = unexplained[i, i] - part[i] @ step
    return result


def _without_each(problem: _Problem, residuals: FloatArray) -> FloatArray:
    """Row i: all residuals with the speed of the runs other than i; shape [N, N]."""
    shift = np.zeros((len(residuals), len(residuals)))
    if problem.slower:
        change = problem.slower.mean - problem.slower.left_out
        shift[np.ix_(problem.is_time, problem.is_time)] = change[:, None]
    return residuals + shift


def _factor_fits(problem: _Problem, fit: Fit) -> tuple[FactorFit, ...]:
    weights = problem.weights(problem.residuals(fit.z))
    sd = _posterior_sd(fit.jacobian, weights, fit.free)
    factors = problem.factors(fit.z)
    spread = problem.slower.sd if problem.slower else COMMON_SCALE
    speed = FactorFit("speed", factors.speed, COMMON_SCALE, spread, problem.slower is not None)
    return (speed,) + tuple(
        FactorFit(
            name, getattr(factors, name), float(_SD[k]), float(_SD[k] * sd[k]), bool(fit.free[k])
        )
        for k, name in enumerate(_NAMES)
    )


def _errors(residuals: FloatArray) -> FloatArray:
    """Relative errors, predicted / measured - 1."""
    return np.asarray(np.exp(-residuals) - 1)


def _mape(residuals: FloatArray) -> float:
    return float(np.abs(_errors(residuals)).mean()) if len(residuals) else float("nan")


def _error_change(
    before: FloatArray, after: FloatArray, left_out: FloatArray, part: NDArray[np.bool_]
) -> ErrorChange:
    n = int(part.sum())
    if not n:
        return ErrorChange(0, *[float("nan")] * 5)
    alone = left_out[part] if n > 1 else np.full(n, np.nan)
    return ErrorChange(
        n,
        _mape(before[part]),
        float(_errors(before[part]).mean()),
        _mape(after[part]),
        _mape(alone),
        float(_errors(alone).mean()),
    )
