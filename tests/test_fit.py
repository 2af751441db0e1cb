"""The walk over cluster sizes: which are searched, skipped and reported."""

from __future__ import annotations

import time

import pytest

import parallelsim as ps
from parallelsim.default_batch import default_batch_note, default_global_batch_size
from parallelsim.fit import (
    Deadline,
    Task,
    TimeIsUpError,
    allowed_sizes,
    fit,
)
from parallelsim.planfile import MAX_BATCH


def task(model: str = "llama3-70b", cluster: str = "hgx-h100", **options: object) -> Task:
    return Task(
        ps.load_model(model),
        ps.load_cluster(cluster),
        ps.load_framework("megatron-core"),
        **options,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("fixed", "limits", "divisor"),
    [
        ({"tp": 8}, {}, 8),
        ({"pp": 3}, {}, 3),
        ({"dp": 5}, {}, 5),
        ({"tp": 8, "pp": 3}, {}, 24),
        ({}, {"pp": (5, 7)}, 1),
    ],
)
def test_sizes_that_cannot_hold_the_fixed_values_are_skipped(
    fixed: dict[str, int], limits: dict[str, tuple[int, ...]], divisor: int
) -> None:
    found = fit(task(fixed=fixed, limits=limits), with_changes=False)
    assert found.smallest is not None
    assert all(size % divisor == 0 for size in found.tried)
    plan = found.smallest.result.plans.plans.plan(0)
    assert all(getattr(plan, name) == value for name, value in fixed.items())
    assert all(getattr(plan, name) in values for name, values in limits.items())


def test_values_that_no_size_holds_are_an_answer() -> None:
    found = fit(task(fixed={"pp": 1000}), with_changes=False)
    assert found.smallest is None
    assert found.tried == ()
    assert "pp=1000" in found.refused


def test_without_a_network_between_nodes_one_node_is_the_largest_size() -> None:
    assert allowed_sizes(ps.load_cluster("l40s"), 1, 1024) == [1, 2, 4, 8]
    found = fit(task(cluster="l40s"), with_changes=False)
    assert found.smallest is None
    assert found.tried[-1] == 8
    assert set(found.tried) | set(found.ruled_out) == {1, 2, 4, 8}
    assert found.below is not None
    assert found.below.num_gpus == 8


def test_the_next_smaller_size_says_what_binds() -> None:
    found = fit(task("llama3-8b", "rtx-4090"))
    assert found.smallest is not None
    assert found.below is not None
    assert (found.smallest.num_gpus, found.below.num_gpus) == (8, 4)


def test_changes_start_from_the_nearest_miss_not_from_an_odd_size() -> None:
    found = fit(task("megatron-1t"))
    assert found.smallest is not None
    assert found.below is not None
    assert found.nearest is not None
    assert found.nearest.num_gpus < found.below.num_gpus < found.smallest.num_gpus
    assert any("grad_dtype=bf16" in change.what for change in found.changes)


def test_changes_that_were_tried_are_named_whether_they_help_or_not() -> None:
    found = fit(task("llama3-8b", "rtx-4090"))
    assert any("grad_dtype=bf16" in what for what in found.tried_changes)


def test_no_search_is_begun_that_would_last_beyond_the_deadline() -> None:
    with pytest.raises(TimeIsUpError):
        task(deadline=Deadline(time.perf_counter() + 1.0, 1.0)).search(64)
    assert len(task(deadline=Deadline(time.perf_counter() + 60.0, 1e7)).search(64).result.plans)


def test_the_default_batch_says_when_and_why_it_moved() -> None:
    model = ps.load_model("llama3-70b")
    assert default_global_batch_size(model, 24) == 504
    note = default_batch_note(model, 24, 504)
    assert "504 sequences, not 512" in note
    assert "24 GPUs divide" in note
    assert "not" not in default_batch_note(model, 256, 512)


def test_the_default_batch_is_no_larger_than_a_given_one_may_be() -> None:
    model = ps.load_model("llama3-8b").with_seq_length(1)
    assert default_global_batch_size(model, 8) == MAX_BATCH
    assert "the most there may be" in default_batch_note(model, 8, MAX_BATCH)
