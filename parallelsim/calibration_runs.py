"""The user's own runs for a calibration: rows of tables, and logs with the plan that they ran."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import file_digest

from parallelsim.calibration_predictor import MeasuredRun
from parallelsim.catalog import accelerator_names, load_cluster, load_framework, load_model
from parallelsim.cluster import ClusterSpec
from parallelsim.errors import SpecError
from parallelsim.measured_clusters import network_differs
from parallelsim.model import ModelSpec
from parallelsim.plan import Plan
from parallelsim.planfile import PlanDocument, read_document
from parallelsim.rules import explain
from parallelsim.runlogs import RunLog, contradicts, read_log
from parallelsim.scored_row import ScoredRow
from parallelsim.validation import LAYOUT_RULES, validate

MAX_RUNS = 200
"""A calibration is for a few dozen runs."""


@dataclass(frozen=True)
class OwnRuns:
    """What can be fitted."""

    runs: tuple[MeasuredRun, ...]
    framework: str
    """Name or path of the one software of all runs."""
    skipped: Mapping[str, int]
    """Rows and lines that could not be used, by reason."""
    notes: tuple[str, ...]


def own_runs(
    files: Sequence[str],
    cluster: ClusterSpec,
    framework: str | None,
    plan_file: str | None,
    rank: int = 1,
) -> OwnRuns:
    """Read tables (``.csv``) and logs (all else) as runs on ``cluster``.

    Args:
        files: what the user measured.
        cluster: where all of it ran, at any size.
        framework: name or path of the software; left out, what the rows or the plan name.
        plan_file: the plan that the logs' runs used.
        rank: which plan of that file.

    Raises:
        ParallelSimError: a file cannot be read or used, or nothing in them can be fitted.
    """
    files, notes = _distinct(files)
    tables = [file for file in files if file.lower().endswith(".csv")]
    logs = [file for file in files if file not in tables]
    runs: list[MeasuredRun] = []
    skipped: Counter[str] = Counter()
    software: set[str] = set()
    if tables:
        differing = 0
        for row in validate(tables, framework).rows:
            if row.case is None or row.is_apart:
                skipped[row.reason or "flagged"] += 1
                continue
            run, reason = _run_of_row(row, cluster)
            if run is None:
                skipped[reason] += 1
                continue
            runs.append(run)
            software.add(framework or row.run.framework)
            differing += network_differs(row.run.facts, run.cluster)
        if differing:
            notes.append(
                f"{differing} rows state another network between nodes than {cluster.name}, "
                f"whose is used; calibrate on a cluster file with theirs"
            )
    if logs:
        if plan_file is None:
            raise SpecError(f"{logs[0]} is a log: give the plan that it ran with --plan")
        document = read_document(plan_file)
        notes += _plan_cluster_notes(document, plan_file, cluster)
        for file in logs:
            log = read_log(file)
            skipped.update(log.skipped)
            name = framework or document.framework
            notes += _software_notes(log, name, plan_file if framework is None else None)
            runs.append(_run_of_log(log, document, plan_file, rank, cluster, name))
            software.add(name or "")
            notes.append(f"{file}: {log.software}, {_steps_of(log)}")
    return _checked(runs, software, skipped, notes)


def _checked(
    runs: list[MeasuredRun], software: set[str], skipped: Counter[str], notes: list[str]
) -> OwnRuns:
    if not runs:
        reasons = "; ".join(f"{n} x {reason}" for reason, n in skipped.most_common(3))
        raise SpecError(f"no run can be used: {reasons or 'the files hold none'}")
    if len(runs) > MAX_RUNS:
        raise SpecError(f"{len(runs)} runs; calibrate on {MAX_RUNS} at most")
    if len(software) > 1:
        names = ", ".join(sorted(software))
        raise SpecError(f"the runs used several frameworks ({names}); calibrate on one at a time")
    return OwnRuns(tuple(runs), software.pop(), dict(skipped), tuple(notes))


def _run_of_row(row: ScoredRow, cluster: ClusterSpec) -> tuple[MeasuredRun | None, str]:
    """The run of a scored row on the given cluster, or why it is none."""
    case = row.case
    assert case is not None
    gpu = case.cluster.accelerator.name
    if gpu != cluster.accelerator.name:
        return None, f"gpu is {gpu}, the cluster has {cluster.accelerator.name}"
    try:
        sized = cluster.with_num_gpus(case.plan.num_gpus)
    except SpecError as error:
        return None, str(error)
    measured = case.run
    peak = None if measured.oom else measured.peak_memory_bytes
    if measured.step_time_s is None and peak is None:
        return None, "no step time or memory measured"
    run = MeasuredRun(
        row.id, case.model, sized, case.framework, case.plan, measured.step_time_s, peak
    )
    return run, ""


def _run_of_log(
    log: RunLog,
    document: PlanDocument,
    plan_file: str,
    rank: int,
    cluster: ClusterSpec,
    framework: str | None,
) -> MeasuredRun:
    plan = document.with_rank(rank, plan_file).plan
    if document.model is None or document.seq_length is None or framework is None:
        raise SpecError(
            "a bare plan; calibrate needs a file that 'parallelsim plan --output' wrote",
            file=plan_file,
        )
    model = load_model(document.model, document.overrides).with_seq_length(document.seq_length)
    software = load_framework(framework)
    sized = cluster.with_num_gpus(plan.num_gpus)
    broken = explain(model, sized, software, plan, LAYOUT_RULES)
    if broken:
        raise SpecError(
            f"{software.name} cannot run this plan: {'; '.join(broken)}", file=plan_file
        )
    check_batch(log, plan, plan_file)
    check_gpu(log, cluster)
    return MeasuredRun(
        os.path.basename(log.file),
        model,
        sized,
        software,
        plan,
        step_time_of(log, model, plan),
        log.peak_memory_bytes,
    )


def _software_notes(log: RunLog, framework: str | None, plan_file: str | None) -> list[str]:
    """What to say where other software than the framework wrote the log.

    Args:
        log: read.
        framework: name or path of the software to fit.
        plan_file: where the framework was found; None where the user named it.

    Raises:
        SpecError: the plan file names another software, and the user none.
    """
    if framework is None or not contradicts(log, load_framework(framework).name):
        return []
    if plan_file is not None:
        raise SpecError(
            f"a log of {log.software}, but {plan_file} is a plan for {framework}; give the plan "
            "that ran, or name the software to fit with --framework",
            file=log.file,
        )
    return [f"{log.file}: a log of {log.software}, fitted as {framework} as --framework says"]


def _steps_of(log: RunLog) -> str:
    if log.num_steps == 1:
        return "a single step; log more, the first ones are slower than those to come"
    return f"median of {log.num_steps} steps"


def _distinct(files: Sequence[str]) -> tuple[list[str], list[str]]:
    """The files without those of the same bytes as one before, and what to say of these.

    A file that cannot be read stays: its reader says why.
    """
    seen: dict[str, str] = {}
    notes = []
    for file in files:
        try:
            with open(file, "rb") as stream:
                key = file_digest(stream, "sha256").hexdigest()
        except OSError:
            key = file
        if key in seen:
            notes.append(f"{file}: the same as {seen[key]}, counted once")
        else:
            seen[key] = file
    return list(seen.values()), notes


def _plan_cluster_notes(document: PlanDocument, plan_file: str, cluster: ClusterSpec) -> list[str]:
    """What to say where the plan was made for other GPUs."""
    if document.cluster is None:
        return []
    gpu = load_cluster(document.cluster, nic_gbit_per_s=document.nic_gbit_per_s).accelerator.name
    if gpu == cluster.accelerator.name:
        return []
    return [
        f"{plan_file} is a plan for {document.cluster} ({gpu}); its runs are taken as of "
        f"{cluster.accelerator.name}, as --cluster says"
    ]


def check_gpu(log: RunLog, cluster: ClusterSpec) -> None:
    """A log that names a GPU of the catalogue has to be of the cluster's.

    Raises:
        SpecError: it is not.
    """
    name = cluster.accelerator.name
    known = {accelerator.split("-")[0] for accelerator in accelerator_names()}
    named = (log.gpu or "").lower()
    if named in known and named != name.split("-")[0]:
        raise SpecError(
            f"the log names NVIDIA {log.gpu}, the cluster has {name}; give the cluster that ran",
            file=log.file,
        )


def check_batch(log: RunLog, plan: Plan, plan_file: str) -> None:
    """The log and the plan have to agree on the global batch.

    Raises:
        SpecError: it is not.
    """
    batch = log.global_batch_size
    if batch is not None and batch != plan.global_batch_size:
        raise SpecError(
            f"the log says global batch size {batch}, {plan_file} says {plan.global_batch_size}; "
            "give the plan that ran",
            file=log.file,
        )


def step_time_of(log: RunLog, model: ModelSpec, plan: Plan) -> float | None:
    """Seconds of a step, from the throughput where only that is printed."""
    if log.step_time_s is not None or log.tokens_per_s_per_gpu is None:
        return log.step_time_s
    tokens = float(plan.global_batch_size) * model.seq_length
    return tokens / (log.tokens_per_s_per_gpu * plan.num_gpus)
