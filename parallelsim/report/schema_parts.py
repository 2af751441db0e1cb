"""What JSON documents are made of: kinds of values, and the parts that several documents share.

A part maps keys to the schemas of their values; a key that ends in ``?`` may be left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from parallelsim import sweep
from parallelsim.memory import MemoryBreakdown
from parallelsim.plan import CHOICES, Plan
from parallelsim.report.labels import label
from parallelsim.simulate import ZONES
from parallelsim.step import StepBreakdown
from parallelsim.whole_run import Faults

Schema = dict[str, Any]
Part = Mapping[str, Schema]

TEXT: Schema = {"type": "string"}
BOOL: Schema = {"type": "boolean"}
INT: Schema = {"type": "integer"}
NUMBER: Schema = {"type": ["number", "null"]}
"""Null where it is not finite, or not known."""
VALUE: Schema = {"type": ["integer", "boolean", "string"]}
"""Of a field of a plan or a model."""


def said(kind: Schema, words: str) -> Schema:
    """A kind of value with its meaning."""
    return kind | {"description": words}


def or_null(kind: Schema) -> Schema:
    """The kind, or null."""
    if "type" not in kind:
        return {"anyOf": [kind, {"type": "null"}]}
    known = {"enum": [*kind["enum"], None]} if "enum" in kind else {}
    return kind | {"type": [kind["type"], "null"]} | known


def one_of(words: tuple[str, ...]) -> Schema:
    """One of some words."""
    return {"type": "string", "enum": list(words)}


def listed(kind: Schema) -> Schema:
    """A list of such values."""
    return {"type": "array", "items": kind}


def by_name(kind: Schema) -> Schema:
    """A mapping from names to such values."""
    return {"type": "object", "additionalProperties": kind}


def mapping(part: Part) -> Schema:
    """The schema of a part."""
    return {
        "type": "object",
        "properties": {key.removesuffix("?"): kind for key, kind in part.items()},
        "required": [key for key in part if not key.endswith("?")],
    }


def of(name: str) -> Schema:
    """A reference to a part of :data:`PARTS`."""
    return {"$ref": f"#/$defs/{name}"}


_OF_TYPES: Mapping[Any, Schema] = {
    bool: BOOL,
    int: INT,
    float: NUMBER,
    str: TEXT,
    tuple[int, ...]: listed(INT),
}


def mirror(kind: type, *without: str) -> Part:
    """The fields of a dataclass, except some."""
    hints = get_type_hints(kind)
    return {f.name: _of_type(hints[f.name]) for f in fields(kind) if f.name not in without}


def _of_type(hint: Any) -> Schema:
    return one_of(get_args(hint)) if get_origin(hint) is Literal else _OF_TYPES[hint]


def _terms(kind: type) -> Part:
    return {f.name: said(NUMBER, label(f.name)) for f in fields(kind)}


REASONS = said(by_name(INT), "Rejected plans, by the rule that they break.")
OVERRIDES = said(by_name(VALUE), "As --set gave them.")
PLAN_KEYS: Part = {
    name: one_of(CHOICES[name]) if name in CHOICES and name != "recompute" else kind
    for name, kind in mirror(Plan, "recompute_num_layers").items()
}
INPUTS: Part = {
    "model": TEXT,
    "overrides": OVERRIDES,
    "cluster": TEXT,
    "framework": TEXT,
    "num_gpus": INT,
    "global_batch_size": said(INT, "Sequences of one optimizer step."),
    "seq_length": said(INT, "Tokens of one sequence."),
    "precision": TEXT,
}
PREDICTION: Part = {
    "plan": of("plan"),
    "zone": said(one_of(ZONES), "By predicted memory: safe, tight, or out of memory."),
    "feasible": said(BOOL, "It breaks no rule, and is not out of memory."),
    "reasons": said(listed(TEXT), "The rules that it breaks."),
    "step_time_s": NUMBER,
    "step_time_low_s": said(NUMBER, "80 % of measured runs lie from here to step_time_high_s."),
    "step_time_high_s": NUMBER,
    "step_time_p95_s?": said(
        NUMBER, "With experts as unevenly loaded as at the 95th percentile; models with experts."
    ),
    "tokens_per_s": NUMBER,
    "tokens_per_s_per_gpu": NUMBER,
    "mfu": said(NUMBER, "Model FLOPs over the peak of the precision, as a share."),
    "hfu": said(NUMBER, "As mfu, with recomputed FLOPs counted."),
    "regime": said(TEXT, "How well step times are known here."),
    "replayed": said(BOOL, "The pipeline was replayed operation by operation, or needs not be."),
    "p_fits": said(NUMBER, "Probability that it fits into memory."),
    "memory_use_frac": NUMBER,
    "peak_memory_bytes": NUMBER,
    "memory_capacity_bytes": NUMBER,
    "fullest_stage": INT,
    "time": said(of("time"), "Terms of step_time_s, in seconds."),
    "memory": said(of("memory"), "Terms of peak_memory_bytes, on the fullest stage."),
    "memory_per_stage": listed(of("stage")),
}
RANKED: Part = {"rank": said(INT, "From 1."), **PREDICTION}
CHANGE: Part = {
    "fields": said(listed(TEXT), "Fields of the plan that change."),
    "gain_frac": said(NUMBER, "Share of the step time that the change saves."),
    **RANKED,
}
RECOVERY: Part = mirror(Faults)


def _swept() -> Part:
    """Columns of a sweep; all but the axes and the status are null without a plan."""
    kinds = dict.fromkeys(sweep.COLUMNS, NUMBER)
    kinds |= {name: or_null(PLAN_KEYS[name]) for name in sweep.PLAN_COLUMNS}
    kinds |= dict.fromkeys(sweep.INPUTS, or_null(TEXT)) | dict.fromkeys(sweep.AXES, INT)
    kinds |= dict.fromkeys(("batch", "global_batch_size"), or_null(INT))
    kinds |= dict.fromkeys(sweep.SWITCHES, or_null(BOOL))
    kinds |= {"status": said(TEXT, f"{sweep.FOUND}, or why there is no plan.")}
    return kinds | {"chunk_layers": or_null(TEXT)}


SWEPT: Part = _swept()

PARTS: Mapping[str, Part] = {
    "plan": PLAN_KEYS,
    "time": _terms(StepBreakdown),
    "memory": _terms(MemoryBreakdown),
    "stage": {"stage": INT, "layers": NUMBER, **_terms(MemoryBreakdown), "total_bytes": NUMBER},
    "ranked_plan": RANKED,
    "change": CHANGE,
    "import": {
        "ignored": listed(TEXT),
        "not_modelled": listed(TEXT),
        "unknown": listed(TEXT),
        "notes": listed(TEXT),
    },
    "why_not": {
        "part": said(TEXT, "As it was asked for."),
        "verdict": one_of(("first", "slower", "tight", "out of memory", "rejected", "no plan")),
        "num_candidates": INT,
        "num_feasible": INT,
        "num_tight": INT,
        "reasons": REASONS,
        "best": said(listed(of("ranked_plan")), "The best plan of this part, or none."),
        "why": TEXT,
    },
    "whole_run": {
        "tokens": NUMBER,
        "deadline_days": NUMBER,
        "dollars_per_gpu_hour": NUMBER,
        "price_date": or_null(TEXT),
        "pue": said(NUMBER, "Power of the building over that of its computers."),
        **RECOVERY,
        "plans": listed(of("trained")),
    },
    "trained": {
        "num_steps": NUMBER,
        "uninterrupted_days": NUMBER,
        "days": said(NUMBER, "With checkpoints and failures."),
        "days_low": said(NUMBER, "80 % of runs take from this to days_high."),
        "days_high": NUMBER,
        "p_meets_deadline": NUMBER,
        "num_failures": NUMBER,
        "gpu_hours": NUMBER,
        "dollars": said(NUMBER, "Null without a price."),
        "energy_kwh": said(NUMBER, "Null without a power."),
        "goodput": said(NUMBER, "Share of the time that goes into steps which are kept."),
        "checkpoint_bytes": NUMBER,
        "write_s": NUMBER,
        "stall_s": NUMBER,
        "restart_s": NUMBER,
        "steps_between": said(NUMBER, "From a checkpoint to the next."),
        "between_failures_s": NUMBER,
        "checkpoint_interval_s": NUMBER,
    },
}
"""By the name under which documents refer to them."""
