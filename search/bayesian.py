"""Bayesian search: Optuna proposes plans, batches of them are simulated at once.

A space is encoded as a few coordinates (:mod:`parallelsim.search.encoding`), so that each trial is
a plan that obeys the rules and was not tried before; memory is a constraint that the sampler
learns. Of the trials after the first random ones, a part is proposed by the sampler (TPE or a
Gaussian process), the others are neighbours of the best plan of each choice of (pp, tp): plans that
differ from it in one to three coordinates. Without those the sampler stays near the first good
degrees, since a better choice changes several of them at once.

The study may be kept in a storage, where processes and machines share it: each sees what the others
have tried and tries something else. A batch claims its plans before it simulates them; where
another claimed the same in that moment, it gives way.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from parallelsim.search.encoding import Encoding, PlanId
from parallelsim.search.front import pareto_front
from parallelsim.search.moves import Parents, drawn, neighbour
from parallelsim.search.objective import Objective
from parallelsim.search.result import SearchResult
from parallelsim.search.searcher import INTERRUPTED, Meter, Request, Searcher, Stopped
from parallelsim.search.space import SearchSpace
from parallelsim.search.study import open_study, sampler_of, storage_errors

from parallelsim.plan import Plan

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

DEFAULT_BUDGET = 2000
BATCH = 40
"""Plans simulated at once."""
STARTUP = 200
"""Random trials before the sampler is asked, or a fifth of the budget if that is less."""
CUTS_FROM = 0.4
"""Share of the budget from which on layers are cut: the better the best plan is, the fewer cuts
promise to beat it, and each takes 10 to 1,000 ms."""
SAMPLED = {"tpe": 0.25, "gp": 0.025}
"""Share of the later trials that the sampler proposes; a Gaussian process takes seconds for one."""
ATTEMPTS = 8
"""To draw a neighbour that was not tried."""
STALE = timedelta(minutes=10)
"""A trial that runs longer was left by a process that died: its plan is free again."""
CLAIM, MEMORY = "plan", "memory"
"""Names of a trial's attribute and constraint."""


class BayesianSearcher(Searcher):
    """Optuna over the encoded space."""

    name: ClassVar[str] = "bayesian"

    def __init__(
        self,
        sampler: str = "tpe",
        storage: str | None = None,
        study: str | None = None,
        warm_start: Sequence[Plan] = (),
        pareto: bool = False,
    ) -> None:
        """See the class.

        Args:
            sampler: tpe or gp.
            storage: URL of a database, or path of a journal file; None keeps the study in memory.
            study: its name; by default one that follows from the inputs.
            warm_start: plans to try first.
            pareto: minimize the memory of the fullest stage beside the step time, and give the
                front of both.
        """
        self.sampler, self.storage, self.study = sampler, storage, study
        self.warm_start, self.pareto = tuple(warm_start), pareto

    def search(self, space: SearchSpace, request: Request) -> SearchResult:
        """The best plans found; ``request.budget`` counts those that this process tries."""
        meter = Meter(request)
        budget = request.budget or DEFAULT_BUDGET
        startup = min(STARTUP, max(budget // 5, 1))
        sampler = sampler_of(self.sampler, request.seed, startup)
        study = open_study(
            self.storage, self.study, space, request, sampler, 2 if self.pareto else 1
        )
        objective = Objective(space, meter)
        phases = (startup, int(CUTS_FROM * budget))
        worker = _Worker(study, objective, request.seed, phases, SAMPLED[self.sampler])
        stopped, exhausted = "", False
        try:
            with storage_errors(self.storage):
                worker.enqueue(self.warm_start)
                while not exhausted and (size := min(BATCH, budget - meter.num_evaluated)) > 0:
                    exhausted = worker.run_batch(size) < size
        except KeyboardInterrupt:
            stopped = INTERRUPTED
        except Stopped as event:
            stopped = str(event)
        finally:
            with storage_errors(self.storage):
                worker.give_up()
        objective.adopt(worker.plans_of_others())
        result = objective.result(self.name, stopped, exhaustive=exhausted)
        return pareto_front(objective, result) if self.pareto else result


class _Worker:
    """One process that works on a study."""

    def __init__(
        self,
        study: Study,
        objective: Objective,
        seed: int,
        phases: tuple[int, int],
        sampled: float,
    ) -> None:
        self.study, self.objective = study, objective
        (self.startup, self.first_cut), self.sampled = phases, sampled
        self.encoding = Encoding(objective.space, objective.table, objective.memory_limit)
        self.distributions = {c.name: _distribution(c) for c in self.encoding.coordinates}
        self.parents = Parents(by_front=len(study.directions) > 1)
        self.rng = np.random.default_rng(seed)
        self.own: set[int] = set()
        self.kept: set[PlanId] = set()
        """Plans that this process simulates or has simulated: never free again."""
        self.running: list[Trial] = []
        self.others: dict[PlanId, bool] = {}
        """Plans of other processes (and earlier runs): whether they are done and safe."""
        self.finished: set[int] = set()
        self.queued = 0

    def enqueue(self, plans: Sequence[Plan]) -> None:
        """Try these plans, or those of the space nearest to them, first."""
        for plan in plans:
            wish = self.encoding.wish(plan)
            self.study.enqueue_trial({name: wish[name] for name in self.distributions})
            self.queued += 1

    def run_batch(self, size: int) -> int:
        """Ask, simulate and tell so many new plans; fewer only where the space has no more.

        Raises:
            Stopped: the time is up.
        """
        self.objective.meter.check_time()
        self._see_others()
        if self._num_seen >= self.first_cut:
            self.encoding.allow_cuts()
        if not self.parents.by_front:
            self.encoding.below_s = float(np.exp(self.parents.best))
        self._ask(size)
        claimed = self._claimed(self.encoding.decode([t.params for t in self.running]))
        plans = self.encoding.plans(claimed)
        scores = self.objective.scores(plans)
        excess = scores.memory_use_frac / self.objective.memory_limit - 1
        values = [np.log(scores.step_time_s).tolist()]
        if len(self.study.directions) > 1:
            values.append(scores.memory_use_frac.tolist())
        niches = zip(plans.pp.tolist(), plans.tp.tolist(), strict=True)
        for identity, niche, over, value in zip(
            claimed, niches, excess.tolist(), zip(*values, strict=True), strict=True
        ):
            trial = self.running.pop(0)
            trial.set_constraint(MEMORY, over)
            self.study.tell(trial, value)
            self.parents.offer(niche, identity, max(over, 0.0), value)
        self.give_up()
        return len(claimed)

    @property
    def _num_seen(self) -> int:
        """Trials of this process and of the others."""
        return len(self.own) + len(self.finished)

    def give_up(self) -> None:
        """Close the trials that were asked for and will not be simulated."""
        from optuna.trial import TrialState

        while self.running:
            self.study.tell(self.running.pop(), state=TrialState.FAIL)

    def plans_of_others(self) -> Any:
        """Safe plans that other processes tried."""
        return self.encoding.plans([plan for plan, is_safe in self.others.items() if is_safe])

    def _ask(self, size: int) -> None:
        """Begin trials: from the queue, random ones at first, then the sampler's and neighbours.

        The sampler is asked first: a Gaussian process conditions on every trial that is running.
        """
        queued, self.queued = min(self.queued, size), max(self.queued - size, 0)
        num_near = 0
        if self._num_seen >= self.startup:
            num_near = int((self.rng.random(size - queued) >= self.sampled).sum())
        for position in range(size):
            if position >= size - num_near:
                self.study.enqueue_trial(self._neighbour())
            with np.errstate(under="ignore"):  # tails of densities
                self.running.append(self.study.ask(self.distributions))
            self.own.add(self.running[-1].number)

    def _neighbour(self) -> dict[str, float]:
        """A point near one of the best plans whose plan was not tried, if one is found soon."""
        coordinates, rng = self.encoding.coordinates, self.rng
        for attempt in range(ATTEMPTS):
            parent = self.parents.draw(rng)
            if parent is None:
                return drawn(coordinates, rng)
            near = neighbour(self.encoding.point(parent), coordinates, rng, 1 + attempt // 2)
            if self.encoding.is_new(near):
                break
        return near

    def _claimed(self, identities: Sequence[PlanId]) -> list[PlanId]:
        """The plans of the running trials once each is written down and no other process has it."""
        claimed = list(identities)
        open_ = list(range(len(claimed)))
        while open_:
            for i in open_:
                self.running[i].set_user_attr(CLAIM, claimed[i])
            self._see_others()
            self.kept |= {claimed[i] for i in open_ if claimed[i] not in self.others}
            open_ = [i for i in open_ if claimed[i] in self.others]
            for i in list(open_):
                again = self.encoding.decode([self.running[i].params])
                if not again:
                    return claimed[:i]
                claimed[i] = again[0]
        return claimed

    def _see_others(self) -> None:
        """Learn from the trials of other processes, and leave their plans to them."""
        from optuna.trial import TrialState

        now = datetime.now()
        seen: dict[PlanId, bool] = {}
        new: list[tuple[PlanId, FrozenTrial]] = []
        for trial in self.study.get_trials(deepcopy=False):
            if trial.number in self.own or CLAIM not in trial.user_attrs:
                continue
            row, staging = trial.user_attrs[CLAIM]
            identity = (int(row), int(staging))
            if trial.state == TrialState.COMPLETE:
                seen[identity] = trial.constraints[MEMORY] <= 0
                if trial.number not in self.finished:
                    new.append((identity, trial))
                    self.finished.add(trial.number)
            elif trial.state == TrialState.RUNNING and now - (trial.datetime_start or now) < STALE:
                seen[identity] = False
        for identity in self.others.keys() - seen.keys() - self.kept:
            self.encoding.release(identity)  # another claimed it and gave way
        for identity in seen:
            self.encoding.take(identity)
        self.others = seen
        plans = self.encoding.plans([identity for identity, _ in new])
        for (identity, trial), pp, tp in zip(new, plans.pp, plans.tp, strict=True):
            over = max(trial.constraints[MEMORY], 0.0)
            self.parents.offer((int(pp), int(tp)), identity, over, tuple(trial.values))


def _distribution(coordinate: Any) -> Any:
    """Optuna's form of a coordinate."""
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    if coordinate.size:
        return IntDistribution(0, coordinate.size - 1)
    if coordinate.categories:
        return CategoricalDistribution(coordinate.categories)
    return FloatDistribution(0.0, coordinate.high)
