"""Plans in files: the YAML document that ``plan --output`` writes and the other commands read.

The document names its inputs, so that a plan can be simulated again from the file alone::

    schema_version: 1            # files without one are read as version 1
    model: llama3-70b            # catalogue name, or a path relative to this file
    overrides: {}                # as --set gives them
    cluster: hgx-h100
    num_gpus: 256
    nic_gbit_per_s: null
    framework: megatron-core
    global_batch_size: 512       # sequences
    seq_length: 8192             # tokens
    precision: bf16
    plans:
    - rank: 1
      zone: safe
      plan: {tp: 4, cp: 1, pp: 4, ...}
      step_time_s: 10.3          # further results are kept for the reader and not read back

A file that holds one bare plan (``tp: 4`` and so on) is accepted where options give the inputs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parallelsim.errors import OutputError, PlanError, SpecError, nearest_names
from parallelsim.output_files import is_unicode, write_text
from parallelsim.plan import PLAN_FIELDS, Plan
from parallelsim.yaml_io import dump_yaml, read_yaml, shown_file

MAX_GPUS = 2**20
MAX_STAGES = 4096
MAX_BATCH = 2**20
"""Sequences of one step."""
SCHEMA_VERSION = 1
"""Of plan files and of JSON documents, see ``report.schemas``."""


@dataclass(frozen=True)
class RankedPlan:
    """One plan of a document."""

    rank: int
    plan: Plan
    zone: str = ""
    results: Mapping[str, Any] = field(default_factory=dict)
    """What was predicted when the file was written: plain numbers by name."""
    stated: frozenset[str] = frozenset()
    """Fields of the plan that the file states; the others have their defaults."""


@dataclass(frozen=True)
class PlanDocument:
    """Plans with the inputs that they were made for; None where a bare plan states none."""

    plans: tuple[RankedPlan, ...]
    model: str | None = None
    overrides: Mapping[str, int | bool | str] = field(default_factory=dict)
    cluster: str | None = None
    num_gpus: int | None = None
    nic_gbit_per_s: float | None = None
    framework: str | None = None
    global_batch_size: int | None = None
    seq_length: int | None = None
    precision: str | None = None

    def with_rank(self, rank: int, file: str) -> RankedPlan:
        """The plan of one rank.

        Raises:
            PlanError: the document has none, with the ranks that it has.
        """
        for entry in self.plans:
            if entry.rank == rank:
                return entry
        ranks = ", ".join(str(entry.rank) for entry in self.plans[:20])
        raise PlanError(f"{file}: no plan of rank {rank}; the file has {ranks}")


def document_text(document: PlanDocument, path: str | Path) -> str:
    """The YAML text of a document that will lie at ``path``: model, cluster and framework files are
    named relative to it.
    """
    folder = Path(os.path.abspath(path)).parent
    for name in (document.model, document.cluster, document.framework):
        if name is not None and not is_unicode(name):
            raise OutputError(
                f"{shown_file(name)}: the name is not UTF-8; a plan file cannot name it"
            )
    data = {
        "schema_version": SCHEMA_VERSION,
        "model": _relative(document.model, folder),
        "overrides": dict(document.overrides),
        "cluster": _relative(document.cluster, folder),
        "num_gpus": document.num_gpus,
        "nic_gbit_per_s": document.nic_gbit_per_s,
        "framework": _relative(document.framework, folder),
        "global_batch_size": document.global_batch_size,
        "seq_length": document.seq_length,
        "precision": document.precision,
        "plans": [
            {"rank": entry.rank, "zone": entry.zone, "plan": entry.plan.to_dict(), **entry.results}
            for entry in document.plans
        ],
    }
    return dump_yaml(data)


def write_document(document: PlanDocument, path: str | Path, *, force: bool = False) -> None:
    """Write a document; see :func:`write_text` for what happens to an existing file."""
    write_text(path, document_text(document, path), force=force)


def read_document(path: str | Path) -> PlanDocument:
    """The document, or the bare plan, in a YAML file.

    Raises:
        OutputError: the file cannot be read.
        SpecError: no YAML, unknown or missing keys, wrong types.
        PlanError: a plan in it is malformed.
    """
    data = read_yaml(path)
    file = str(path)
    if "plans" not in data:
        bare = data.get("plan", data)
        if not isinstance(bare, dict) or not set(bare) & set(PLAN_FIELDS):
            raise SpecError("neither a list of plans nor a plan (tp: ..., pp: ...)", file=file)
        return PlanDocument(plans=(RankedPlan(1, _plan(bare, file), stated=frozenset(bare)),))
    _check_keys(data, file)
    folder = Path(os.path.abspath(path)).parent
    return PlanDocument(
        plans=_ranked_plans(data["plans"], file),
        model=_absolute(data["model"], folder),
        overrides=data.get("overrides") or {},
        cluster=_absolute(data["cluster"], folder),
        num_gpus=data["num_gpus"],
        nic_gbit_per_s=data.get("nic_gbit_per_s"),
        framework=_absolute(data["framework"], folder),
        global_batch_size=data["global_batch_size"],
        seq_length=data["seq_length"],
        precision=data.get("precision"),
    )


_REQUIRED: Mapping[str, tuple[type, ...]] = {
    "model": (str,),
    "cluster": (str,),
    "num_gpus": (int,),
    "framework": (str,),
    "global_batch_size": (int,),
    "seq_length": (int,),
    "plans": (list,),
}
_OPTIONAL: Mapping[str, tuple[type, ...]] = {
    "schema_version": (int,),
    "overrides": (dict,),
    "nic_gbit_per_s": (int, float),
    "precision": (str,),
}
_TYPE_NAMES = {
    str: "text",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "a mapping",
}
_MAX_PLANS = 10_000
_LARGEST: Mapping[str, int] = {
    "num_gpus": MAX_GPUS,
    "global_batch_size": 2**24,
    "seq_length": 2**27,
}


def _check_keys(data: Mapping[str, Any], file: str) -> None:
    """Refuse missing and unknown keys, wrong types and sizes out of range."""
    if data.get("schema_version") not in (None, SCHEMA_VERSION):
        problem = f"this parallelsim reads version {SCHEMA_VERSION}; a newer one may read this file"
        raise SpecError(problem, file=file, key="schema_version")
    known = {**_REQUIRED, **_OPTIONAL}
    for key in data:
        if key not in known:
            near = nearest_names(str(key), known)
            hint = f"did you mean {near[0]}?" if near else f"the keys are {', '.join(known)}"
            raise SpecError(f"unknown key, {hint}", file=file, key=str(key)[:80])
    for key, types in known.items():
        value = data.get(key)
        if value is None and key in _OPTIONAL:
            continue
        if not isinstance(value, types) or isinstance(value, bool):
            problem = "missing" if key not in data else f"got {str(value)[:60]!r}"
            raise SpecError(f"{problem}, expected {_TYPE_NAMES[types[0]]}", file=file, key=key)
        if isinstance(value, int) and key in _LARGEST and not 1 <= value <= _LARGEST[key]:
            raise SpecError(f"must be from 1 to {_LARGEST[key]}, got {value}", file=file, key=key)
    for key, value in (data.get("overrides") or {}).items():
        if not isinstance(value, int | str):
            raise SpecError(
                "expected a whole number, true, false or text",
                file=file,
                key=f"overrides.{str(key)[:80]}",
            )


def _ranked_plans(entries: list[Any], file: str) -> tuple[RankedPlan, ...]:
    if not 1 <= len(entries) <= _MAX_PLANS:
        raise SpecError(
            f"needs 1 to {_MAX_PLANS} plans, has {len(entries)}", file=file, key="plans"
        )
    plans = []
    for index, entry in enumerate(entries):
        key = f"plans[{index}]"
        if not isinstance(entry, dict) or not isinstance(entry.get("plan"), dict):
            raise SpecError("expected a mapping with a plan", file=file, key=key)
        rank = entry.get("rank", index + 1)
        if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
            raise SpecError("rank must be a whole number from 1", file=file, key=key)
        results = {k: v for k, v in entry.items() if k not in ("rank", "zone", "plan")}
        plan = _plan(entry["plan"], f"{file}: {key}")
        plans.append(
            RankedPlan(rank, plan, str(entry.get("zone", "")), results, frozenset(entry["plan"]))
        )
    if len({entry.rank for entry in plans}) < len(plans):
        raise SpecError("two plans have the same rank", file=file, key="plans")
    return tuple(plans)


def _plan(data: Mapping[str, Any], where: str) -> Plan:
    try:
        return with_sane_size(Plan.from_dict(data))
    except PlanError as error:
        raise PlanError(f"{where}: {error}") from None


def with_sane_size(plan: Plan) -> Plan:
    """The plan itself, unless nothing of its size exists (its stages would fill this machine).

    Raises:
        PlanError: more GPUs or pipeline stages than any cluster or model has.
    """
    if plan.num_gpus > MAX_GPUS or plan.pp > MAX_STAGES:
        raise PlanError(
            f"tp={plan.tp} x cp={plan.cp} x pp={plan.pp} x dp={plan.dp} is too large; "
            f"at most {MAX_GPUS} GPUs in {MAX_STAGES} stages"
        )
    return plan


def _is_path(name: str) -> bool:
    return "/" in name or name.endswith((".yaml", ".yml", ".json"))


def _relative(name: str | None, folder: Path) -> str | None:
    """A relative path as seen from ``folder``; names and absolute paths as they are."""
    if name is None or not (_is_path(name) or os.path.exists(name)) or os.path.isabs(name):
        return name
    relative = os.path.relpath(name, folder)
    return relative if _is_path(relative) else f"./{relative}"


def _absolute(name: str, folder: Path) -> str:
    if not _is_path(name) or os.path.isabs(name):
        return name
    return os.path.relpath(folder / name) if (folder / name).exists() else str(folder / name)
