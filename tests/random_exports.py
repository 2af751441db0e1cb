"""Random plans that an export target can express, with their text."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from parallelsim.search.space import SearchSpace

from parallelsim.cluster import ClusterSpec
from parallelsim.errors import ExportError
from parallelsim.framework import FrameworkSpec
from parallelsim.model import ModelSpec
from parallelsim.plan import Plan
from parallelsim.rules import obeys_rules

MOST_DRAWS = 4000


def some_plans(
    export: Callable[..., str],
    inputs: tuple[ModelSpec, ClusterSpec, FrameworkSpec],
    global_batch_size: int,
    *,
    count: int,
    seed: str,
    **options: Any,
) -> Iterator[tuple[Plan, str]]:
    """``count`` plans of the search's space that obey the rules and are not refused, each with
    what ``export`` writes; ``options`` are the space's.
    """
    space = SearchSpace(*inputs, global_batch_size, **options)
    rng = random.Random(seed)
    for _ in range(MOST_DRAWS):
        pp = rng.choice(space.pipeline_degrees)
        rows = len(space.unstaged(pp))
        batch = next(space.expand(pp, np.array([rng.randrange(rows)])), None) if rows else None
        if batch is None or not len(batch):
            continue
        some = batch.take(np.array([rng.randrange(len(batch))]))
        for plan in some.take(obeys_rules(*inputs, some)):
            try:
                text = export(*inputs, plan)
            except ExportError:
                continue
            yield plan, text
            count -= 1
            if not count:
                return
    raise AssertionError(f"{MOST_DRAWS} draws were not enough")
