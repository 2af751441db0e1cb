"""JSON Schemas of every document that the program prints as JSON, and of plan files.

A document says what it is (``document``) and which version of these schemas it follows
(``schema_version``). Keys may be added under the same version; it grows when a key is removed,
renamed, or changes its meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parallelsim.calibration import ErrorChange, FactorFit
from parallelsim.cluster import ClusterSpec, Unexplained
from parallelsim.doctor import Check
from parallelsim.elastic import Elastic, Shrunk
from parallelsim.framework import FrameworkSpec
from parallelsim.model import ModelSpec
from parallelsim.planfile import SCHEMA_VERSION
from parallelsim.report.documents import PLAN_FILE_RESULTS
from parallelsim.report.schema_parts import (
    BOOL,
    CHANGE,
    INPUTS,
    INT,
    NUMBER,
    OVERRIDES,
    PARTS,
    PREDICTION,
    RANKED,
    REASONS,
    RECOVERY,
    SWEPT,
    TEXT,
    VALUE,
    Part,
    Schema,
    by_name,
    listed,
    mapping,
    mirror,
    of,
    or_null,
    said,
)
from parallelsim.scores import ErrorScore, RankingScore, ReliabilityBin, VerdictScore

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_PLANS = listed(of("ranked_plan"))
_OBJECTIVE: Part = {
    "objective": TEXT,
    "tokens": NUMBER,
    "deadline_days": NUMBER,
    "dollars_per_gpu_hour": NUMBER,
    "days": NUMBER,
    "gpu_hours": NUMBER,
    "dollars": NUMBER,
    "meets_deadline": BOOL,
    "sizes?": listed(
        mapping(
            {
                "num_gpus": INT,
                "global_batch_size": or_null(INT),
                "status": TEXT,
                "step_time_s": NUMBER,
                "tokens_per_s": NUMBER,
                "tokens_per_s_per_gpu": NUMBER,
                "goodput": NUMBER,
                "days": NUMBER,
                "gpu_hours": NUMBER,
            }
        )
    ),
}
_COMPARED: Part = {
    "file": TEXT,
    "import": or_null(of("import")),
    "cannot_run": listed(TEXT),
    **PREDICTION,
    "rank": or_null(INT),
    "rank_is_exact": or_null(BOOL),
    "edits": said(
        listed(mapping({**CHANGE, "flags_removed": listed(TEXT), "flags_added": listed(TEXT)})),
        "Changes that lead to plan 1, in order.",
    ),
}
_ROBUSTNESS: Part = {
    "most_robust_rank": INT,
    "num_cases_not_safe": listed(INT),
    "worst_loss_frac": listed(NUMBER),
    "cases": listed(
        mapping(
            {
                "name": TEXT,
                "best_step_time_s": NUMBER,
                "best_plan": of("plan"),
                "loss_frac": said(listed(NUMBER), "Of each ranked plan; null: does not fit."),
            }
        )
    ),
    "steps": listed(mapping({"axis": TEXT, "value": VALUE, "loss_frac": NUMBER})),
}
_PLAN: Part = {
    **INPUTS,
    "memory_limit": NUMBER,
    "searcher": TEXT,
    "num_candidates": INT,
    "num_evaluated": INT,
    "num_feasible": INT,
    "num_tight": INT,
    "num_replayed": INT,
    "num_cut": INT,
    "num_uncut": INT,
    "all_variants": said(BOOL, "Near variants are ranked too."),
    "reasons": REASONS,
    "proven": BOOL,
    "partial": BOOL,
    "stopped": said(TEXT, "Why the search ended early; empty: it did not."),
    "elapsed_s": NUMBER,
    "plans": listed(
        mapping(
            {
                **RANKED,
                "cut_gain_frac": said(NUMBER, "What its cut into stages saves of an even one's."),
                "p_best": said(NUMBER, "Probability that it is the fastest of the ranked ones."),
                "tied_with_first": BOOL,
                "num_near": said(or_null(INT), "Other variants that are nearly as fast."),
            }
        )
    ),
    "expected_regret_frac": NUMBER,
    "faster_but_tight": _PLANS,
    "nearest_miss": _PLANS,
    "pareto_front": _PLANS,
    "objective?": mapping(_OBJECTIVE),
    "whole_run?": of("whole_run"),
    "compare_with?": mapping(_COMPARED),
    "why_not?": listed(of("why_not")),
    "robustness?": mapping(_ROBUSTNESS),
}
_SIMULATE: Part = {
    **INPUTS,
    "assumed": said(by_name(VALUE), "Fields of the plan that were not given."),
    **PREDICTION,
    "whole_run?": of("whole_run"),
}
_EXPLAIN: Part = {
    **INPUTS,
    "memory_limit": NUMBER,
    "import": or_null(of("import")),
    **PREDICTION,
    "rank": or_null(INT),
    "rank_is_exact": or_null(BOOL),
    "num_feasible": INT,
    "num_candidates": INT,
    "cannot_run": listed(TEXT),
    "time_origins": said(by_name(TEXT), "Where each term of time comes from, in words."),
    "first": said(_PLANS, "The best plan of the search, or none."),
    "num_neighbours": INT,
    "changes": listed(of("change")),
    "why_not": listed(of("why_not")),
}
_COMPARE: Part = {
    **INPUTS,
    "plans": listed(mapping({**RANKED, "cannot_run": listed(TEXT)})),
    "why": listed(TEXT),
}
_FIT: Part = {
    "model": TEXT,
    "overrides": OVERRIDES,
    "cluster": TEXT,
    "framework": TEXT,
    "seq_length": INT,
    "precision": TEXT,
    "memory_limit": NUMBER,
    "num_gpus": said(or_null(INT), "The fewest GPUs that train it; null: no size does."),
    "global_batch_size": or_null(INT),
    "exhaustive": BOOL,
    "tried": listed(INT),
    "plans": _PLANS,
    "next_smaller": or_null(
        mapping(
            {
                "num_gpus": INT,
                "global_batch_size": INT,
                "reasons": REASONS,
                "nearest_miss": _PLANS,
            }
        )
    ),
    "changes": listed(mapping({"what": TEXT, "num_gpus": INT, "plans": _PLANS})),
}
_ELASTIC_ROW = mapping(
    {**SWEPT, "kept_tokens_per_s?": NUMBER, "kept_tokens_per_s_per_gpu?": NUMBER}
)
_ELASTIC: Part = {
    **{name: kind for name, kind in INPUTS.items() if name != "overrides"},
    **RECOVERY,
    **mirror(Elastic, "full", "sizes", "rows"),
    "full": _ELASTIC_ROW,
    "sizes": listed(mapping({**mirror(Shrunk, "used"), "used": or_null(_ELASTIC_ROW)})),
    "rows": listed(_ELASTIC_ROW),
}
_STUDIED: Part = {
    "rank": INT,
    "plan": of("plan"),
    "predicted_step_time_s": NUMBER,
    "step_time_s": said(NUMBER, "Corrected by the runs so far."),
    "step_time_low_s": NUMBER,
    "step_time_high_s": NUMBER,
}
_TUNE: Part = {
    "study": TEXT,
    "model": TEXT,
    "budget": INT,
    "min_gain_frac": NUMBER,
    "num_candidates": INT,
    "runs": listed(
        mapping(
            {
                "rank": INT,
                "step_time_s": NUMBER,
                "out_of_memory": BOOL,
                "peak_memory_bytes": NUMBER,
                "source": TEXT,
            }
        )
    ),
    "best": or_null(mapping(_STUDIED)),
    "stop": said(or_null(TEXT), "Why no more is worth a run: budget, candidates or gain."),
    "proposal": or_null(
        mapping(
            {
                **_STUDIED,
                "expected_gain_frac": NUMBER,
                "p_fits": NUMBER,
                "script": or_null(TEXT),
            }
        )
    ),
    "factors": by_name(mapping({"factor": NUMBER, "log_sd": NUMBER})),
    "memory_threshold": mapping({"low": NUMBER, "median": NUMBER, "high": NUMBER}),
}
_SCORES = mapping(
    {
        "rows": INT,
        "step_time": mapping(mirror(ErrorScore)),
        "peak_memory": mapping(mirror(ErrorScore)),
        "oom_verdicts": mapping({**mirror(VerdictScore), "n": INT, "accuracy": NUMBER}),
        "ranking": mapping(mirror(RankingScore)),
    }
)
_VALIDATE: Part = {
    "tables": listed(TEXT),
    "num_rows": INT,
    "num_scored": INT,
    "num_apart": INT,
    "skipped": said(by_name(INT), "Rows by the reason why they were not scored."),
    "overall": _SCORES,
    "families": mapping({"n": INT, "step_time_mape": NUMBER, "step_time_median": NUMBER}),
    "groups": by_name(_SCORES),
    "apart": said(by_name(_SCORES), "Scored, but not part of the overall scores."),
    "ranked_groups": listed(
        mapping(
            {
                "group": TEXT,
                "model": TEXT,
                "accelerator": TEXT,
                "num_gpus": INT,
                "global_batch_size": INT,
                "seq_length": INT,
                "precision": TEXT,
                "num_plans": INT,
                "top1_regret": NUMBER,
                "predicted_rank_of_best": INT,
                "predicted_first": TEXT,
                "best_measured": TEXT,
                "p_best_of_predicted_first": NUMBER,
                "p_best_of_best_measured": NUMBER,
            }
        )
    ),
    "p_best_reliability": listed(mapping(mirror(ReliabilityBin))),
}
_CALIBRATE: Part = {
    "cluster": TEXT,
    "framework": TEXT,
    "num_runs": INT,
    "skipped": by_name(INT),
    "factors": by_name(mapping(mirror(FactorFit, "name"))),
    "step_time": mapping(mirror(ErrorChange)),
    "peak_memory": mapping(mirror(ErrorChange)),
    "kept": said(listed(TEXT), "Kinds of factors that keep their defaults."),
    "unexplained": or_null(mapping(mirror(Unexplained))),
}

DOCUMENTS: Mapping[str, Part] = {
    "plan": _PLAN,
    "simulate": _SIMULATE,
    "explain": _EXPLAIN,
    "compare": _COMPARE,
    "fit": _FIT,
    "sweep": {"title": TEXT, "points": listed(mapping(SWEPT))},
    "elastic": _ELASTIC,
    "tune": _TUNE,
    "validate": _VALIDATE,
    "calibrate": _CALIBRATE,
    "doctor": {"checks": listed(mapping(mirror(Check)))},
}
"""What commands print with ``--json``, by command."""
PLAN_FILE: Part = {
    "schema_version": {"const": SCHEMA_VERSION},
    **INPUTS,
    "nic_gbit_per_s": NUMBER,
    "plans": listed(
        mapping(
            {
                "rank": INT,
                "zone": PREDICTION["zone"],
                "plan": of("plan"),
                **{name: PREDICTION[name] for name in PLAN_FILE_RESULTS},
            }
        )
    ),
}
"""What ``plan --output`` writes, as YAML."""
SPECS: Mapping[str, type] = {
    "model": ModelSpec,
    "cluster": ClusterSpec,
    "framework": FrameworkSpec,
}
"""What ``models NAME --json`` and the like print; their plurals list them."""
NAMES = (*DOCUMENTS, *SPECS, *(f"{name}s" for name in SPECS), "plan-file")


def schema(name: str) -> Schema:
    """The JSON Schema (draft 2020-12) of a document, one of :data:`NAMES`."""
    if name == "plan-file":
        return _whole(name, PLAN_FILE)
    head: Part = {
        "schema_version": {"const": SCHEMA_VERSION},
        "document": {"const": name},
    }
    if name in DOCUMENTS:
        return _whole(name, {**head, **DOCUMENTS[name]})
    from pydantic import TypeAdapter

    plural = name not in SPECS
    spec = TypeAdapter(SPECS[name.removesuffix("s")]).json_schema(mode="serialization")
    parts = spec.pop("$defs")
    if plural:
        whole = mapping({**head, name: listed(spec)})
    else:
        whole = mapping(head)
        whole["properties"] |= spec["properties"]
        whole["required"] += spec["required"]
    return {"$schema": DIALECT, "title": f"parallelsim {name}", **whole, "$defs": parts}


def _whole(name: str, part: Part) -> Schema:
    """The schema of a part with those that it refers to."""
    body, parts = mapping(part), {name: mapping(each) for name, each in PARTS.items()}
    needed = _references(body)
    while more := {ref for each in needed for ref in _references(parts[each])} - needed:
        needed |= more
    used = {name: each for name, each in parts.items() if name in needed}
    return {"$schema": DIALECT, "title": f"parallelsim {name}", **body} | (
        {"$defs": used} if used else {}
    )


def _references(value: Any) -> set[str]:
    """Names of the parts that a schema refers to."""
    if isinstance(value, dict):
        own = {value["$ref"].rpartition("/")[2]} if "$ref" in value else set()
        return own.union(*(_references(each) for each in value.values()))
    return set().union(*(_references(each) for each in value)) if isinstance(value, list) else set()
