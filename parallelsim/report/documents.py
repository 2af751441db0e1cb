"""What ``--json`` prints: plain numbers in SI units under full names, in a fixed order."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from parallelsim.planfile import SCHEMA_VERSION

if TYPE_CHECKING:
    from parallelsim.compare import Comparison
    from parallelsim.fit import Fit, SizedResult
    from parallelsim.search.result import SearchResult
    from parallelsim.simulate import Simulation

PLAN_FILE_RESULTS = (
    "step_time_s",
    "tokens_per_s_per_gpu",
    "mfu",
    "peak_memory_bytes",
    "memory_use_frac",
    "p_fits",
)
"""Results that a plan file keeps beside each plan."""


def json_text(name: str, data: Mapping[str, Any]) -> str:
    """A document as indented JSON; a number that is not finite becomes null.

    Args:
        name: one of ``schemas.NAMES``.
        data: what its schema describes, but for the keys that say which document this is.
    """
    head = {"schema_version": SCHEMA_VERSION, "document": name}
    return json.dumps(head | _finite(data), indent=2, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def ranked_rows(simulation: Simulation, first_rank: int = 1) -> list[dict[str, Any]]:
    """One row for each plan in order: rank, zone, plan, then all that ``simulate`` gives."""
    rows = []
    for index in range(len(simulation.plans)):
        row = simulation.row(index)
        first = {"rank": first_rank + index, "zone": row["zone"], "plan": row["plan"]}
        rows.append(first | {key: value for key, value in row.items() if key not in first})
    return rows


def plan_document(
    head: Mapping[str, Any], memory_limit: float, result: SearchResult
) -> dict[str, Any]:
    """``plan --json``."""
    from parallelsim.correlation import trust

    sure = trust(result.plans)
    return {
        **head,
        "memory_limit": memory_limit,
        "searcher": result.searcher,
        "num_candidates": result.num_candidates,
        "num_evaluated": result.num_evaluated,
        "num_feasible": result.num_feasible,
        "num_tight": result.num_tight,
        "num_replayed": result.num_replayed,
        "num_cut": result.num_cut,
        "num_uncut": result.num_uncut,
        "all_variants": result.all_variants,
        "reasons": dict(result.reasons),
        "proven": result.proven,
        "partial": result.partial,
        "stopped": result.stopped,
        "elapsed_s": result.elapsed_s,
        "plans": [
            row | {"cut_gain_frac": gain, "p_best": best, "tied_with_first": tied, "num_near": near}
            for row, gain, near, best, tied in zip(
                ranked_rows(result.plans),
                result.cut_gain_frac,
                result.num_near or (None,) * len(result.plans),
                sure.p_best.tolist(),
                sure.tied.tolist(),
                strict=True,
            )
        ],
        "expected_regret_frac": sure.regret_frac,
        "faster_but_tight": ranked_rows(result.faster_but_tight, len(result.plans) + 1),
        "nearest_miss": ranked_rows(result.nearest_miss),
        "pareto_front": ranked_rows(result.front) if result.front else [],
    }


def simulate_document(head: Mapping[str, Any], simulation: Simulation) -> dict[str, Any]:
    """``simulate --json``."""
    return {**head, **simulation.row(0)}


def compare_document(
    head: Mapping[str, Any], simulation: Simulation, comparison: Comparison
) -> dict[str, Any]:
    """``compare --json``."""
    rows = ranked_rows(simulation)
    for row, rank, messages in zip(rows, comparison.ranks, comparison.cannot_run, strict=True):
        row |= {"rank": rank, "cannot_run": list(messages)}
    return {**head, "plans": rows, "why": list(comparison.why)}


def fit_document(head: Mapping[str, Any], fit: Fit) -> dict[str, Any]:
    """``fit --json``."""
    return {
        **head,
        "num_gpus": fit.smallest.num_gpus if fit.smallest else None,
        "global_batch_size": fit.smallest.global_batch_size if fit.smallest else None,
        "exhaustive": fit.exhaustive,
        "tried": list(fit.tried),
        "plans": ranked_rows(fit.smallest.result.plans) if fit.smallest else [],
        "next_smaller": _sized(fit.below) if fit.below else None,
        "changes": [
            {
                "what": change.what,
                "num_gpus": change.fit.num_gpus,
                "plans": ranked_rows(change.fit.result.plans),
            }
            for change in fit.changes
        ],
    }


def _sized(sized: SizedResult) -> dict[str, Any]:
    return {
        "num_gpus": sized.num_gpus,
        "global_batch_size": sized.global_batch_size,
        "reasons": dict(sized.result.reasons),
        "nearest_miss": ranked_rows(sized.result.nearest_miss),
    }
