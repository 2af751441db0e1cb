"""The contract of searchers, asked of every one of them; see ``search/searcher.py``."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from parallelsim.search.bayesian import BayesianSearcher
from parallelsim.search.grid import GridSearcher
from parallelsim.search.objective import Objective
from parallelsim.search.random import RandomSearcher, plans_at
from parallelsim.search.result import SearchResult
from parallelsim.search.searcher import Meter, Request, Searcher
from parallelsim.search.space import SearchSpace

from parallelsim.catalog import load_cluster, load_framework, load_model
from parallelsim.errors import PlanError
from parallelsim.plan import PLAN_FIELDS
from parallelsim.plan_batch import PlanBatch
from parallelsim.simulate import simulate


def gp() -> BayesianSearcher:
    pytest.importorskip("torch", reason="the gp sampler needs torch")
    pytest.importorskip("scipy", reason="the gp sampler needs scipy")
    return BayesianSearcher("gp")


SEARCHERS: dict[str, Callable[[], Searcher]] = {
    "grid": GridSearcher,
    "random": RandomSearcher,
    "tpe": BayesianSearcher,
    "gp": gp,
}
each_searcher = pytest.mark.parametrize("make", SEARCHERS.values(), ids=SEARCHERS)
MEGATRON = load_framework("megatron-core")


def space_of(name: str, num_gpus: int, batch: int, **choices: object) -> SearchSpace:
    cluster = load_cluster("hgx-h100", num_gpus=num_gpus)
    return SearchSpace(load_model(name), cluster, MEGATRON, batch, **choices)  # type: ignore[arg-type]


SMALL = space_of(
    "llama3-8b", 8, 32, fixed={"layout": "even", "recompute": "none", "micro_batch_size": 1}
)
"""About a hundred plans."""
LARGE = space_of("llama3-8b", 16, 64)
NOTHING_FITS = space_of("llama3.1-405b", 8, 32, fixed={"pp": 1, "cp": 1})


def plans_of(result: SearchResult) -> list[object]:
    return list(result.plans.plans)


@each_searcher
def test_the_best_of_a_small_space_is_found(make: Callable[[], Searcher]) -> None:
    result = make().search(SMALL, Request(top_k=3, budget=SMALL.num_candidates))
    proved = GridSearcher().search(SMALL, Request(top_k=1))
    assert proved.proven
    assert result.plans.step_time_s[0] == proved.plans.step_time_s[0]
    assert result.stopped == ""


@each_searcher
def test_the_seed_alone_decides(make: Callable[[], Searcher]) -> None:
    first, again = (make().search(LARGE, Request(budget=120, seed=7)) for _ in range(2))
    assert plans_of(first) == plans_of(again)
    assert first.num_evaluated == again.num_evaluated
    assert first.reasons == again.reasons


@each_searcher
def test_no_more_plans_are_asked_for_than_the_budget(make: Callable[[], Searcher]) -> None:
    result = make().search(LARGE, Request(budget=100))
    assert 0 < result.num_evaluated <= 100
    assert not result.proven
    assert result.num_feasible + result.num_tight <= result.num_candidates


@each_searcher
def test_what_is_found_is_safe_allowed_replayed_and_in_order(make: Callable[[], Searcher]) -> None:
    space = space_of("llama3-8b", 16, 64, limits={"tp": (1, 2)})
    result = make().search(space, Request(budget=300))
    found = result.plans
    again = simulate(space.model, space.cluster, space.framework, found.plans)
    assert len(found)
    assert all(space.allows(plan) for plan in found.plans)
    assert again.obeys_rules.all()
    assert (again.zone == 0).all()
    assert found.replayed.all()
    assert (np.diff(found.step_time_s) >= 0).all()
    assert (result.faster_but_tight.step_time_s < found.step_time_s[0]).all()
    assert all(found.step_time_s > 0)


@each_searcher
def test_ctrl_c_gives_the_best_so_far(
    make: Callable[[], Searcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = iter(range(1000))
    check_time = Meter.check_time

    def interrupting(meter: Meter) -> None:
        if next(checks) == 2:
            raise KeyboardInterrupt
        check_time(meter)

    monkeypatch.setattr(Meter, "check_time", interrupting)
    result = make().search(LARGE, Request())
    assert result.stopped == "interrupted"
    assert result.partial
    assert not result.proven
    assert len(result.plans)


@each_searcher
def test_the_time_out_ends_the_search_and_is_said(make: Callable[[], Searcher]) -> None:
    result = make().search(LARGE, Request(budget=1_000_000, timeout_s=1e-9))
    assert result.stopped == "time-out"
    assert not result.proven


@each_searcher
def test_where_nothing_fits_the_answer_says_why(make: Callable[[], Searcher]) -> None:
    result = make().search(NOTHING_FITS, Request(budget=100))
    assert not len(result.plans)
    assert result.num_feasible == 0
    assert result.reasons["out of memory"] > 0
    assert len(result.nearest_miss) == 1


def test_requests_that_nothing_can_answer_are_refused() -> None:
    wrong = (("budget", 0), ("top_k", 0), ("timeout_s", 0.0), ("timeout_s", math.nan))
    for name, value in (*wrong, ("memory_limit", 0.0), ("memory_limit", 80.0)):
        with pytest.raises(PlanError, match=name):
            Request(**{name: value})  # type: ignore[arg-type]


def test_the_bayesian_search_reaches_a_best_plan_whose_layers_are_cut() -> None:
    """Gemma 2 27B: only layout ``free`` lightens its last chunk for the loss over 256,000 words."""
    space = space_of("gemma2-27b", 64, 512, fixed={"tp": 4, "cp": 1, "pp": 2})
    best = GridSearcher().search(space, Request(top_k=1)).plans
    (plan,) = best.plans
    assert plan.layout == "free"
    for seed in (0, 1):
        found = BayesianSearcher().search(space, Request(top_k=1, budget=150, seed=seed))
        assert found.plans.step_time_s[0] == pytest.approx(best.step_time_s[0], rel=1e-9)
    warm = BayesianSearcher(warm_start=[plan]).search(space, Request(top_k=1, budget=1))
    assert plans_of(warm) == [plan]


def test_the_bayesian_search_finds_nothing_but_cuts_where_they_are_asked_for() -> None:
    space = space_of("gemma2-27b", 32, 256, fixed={"layout": "free", "tp": 2, "pp": 4})
    result = BayesianSearcher().search(space, Request(top_k=5, budget=40, all_variants=True))
    assert result.num_evaluated == 40
    assert len(result.plans) == 5
    assert all(space.allows(plan) and sum(plan.chunk_layers) == 46 for plan in result.plans.plans)


def test_positions_are_all_plans_of_the_space_once() -> None:
    blocks = PlanBatch.concatenate(SMALL.blocks())
    drawn = plans_at(SMALL, np.arange(SMALL.num_candidates))
    rows = [
        {tuple(row) for row in np.stack([getattr(b, n) for n in PLAN_FIELDS], 1).tolist()}
        for b in (blocks, drawn)
    ]
    assert rows[0] == rows[1]
    assert len(rows[0]) == len(drawn) == SMALL.num_candidates


def test_the_objective_masks_what_breaks_a_rule_or_does_not_fit() -> None:
    plans = plans_at(LARGE, np.arange(0, LARGE.num_candidates, 97))
    objective = Objective(LARGE, Meter(Request()))
    score = objective(plans)
    known = simulate(LARGE.model, LARGE.cluster, LARGE.framework, plans)
    safe = known.obeys_rules & (known.zone == 0)
    assert safe.any()
    assert not safe.all()
    np.testing.assert_array_equal(np.isfinite(score), safe)
    np.testing.assert_allclose(score[safe], known.step_time_s[safe], rtol=1e-12)
