"""What ``parallelsim plan`` says where there is no safe plan: why not, and what would rescue it."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import click

from parallelsim.cli_inputs import Inputs, fit_task, search_space
from parallelsim.cli_options import SearchOptions
from parallelsim.cli_progress import shown_progress
from parallelsim.errors import EXIT_INTERRUPTED, NoFeasiblePlanError, ParallelSimError
from parallelsim.plan import Plan
from parallelsim.planfile import MAX_GPUS

if TYPE_CHECKING:
    from parallelsim.fit import Task
    from parallelsim.search.result import SearchResult

NUM_TIGHT_SHOWN = 3
RESCUE_S = 5.0
"""The answer is known by then; what would help may take so long on top."""
MIN_CANDIDATES_PER_S = 3e5
"""A search is at least so fast; small ones measure their overhead."""


def explain_misfit(
    inputs: Inputs, search: SearchOptions, result: SearchResult, as_json: bool
) -> int:
    """Say why there is no safe plan and what would rescue it (130 where Ctrl-C ended the search).

    Raises:
        NoFeasiblePlanError: the answer; nothing that goes wrong in the rescue takes its place.
    """
    from parallelsim.report import plans as report
    from parallelsim.report.tables import paragraph

    if result.stopped == "interrupted":
        click.echo("note: interrupted before a safe plan was found", err=True)
        return EXIT_INTERRUPTED
    click.echo(inputs.header(search.memory_limit), err=True)
    if len(result.faster_but_tight) and not as_json:
        tight = result.faster_but_tight.take(slice(NUM_TIGHT_SHOWN))
        click.echo(paragraph(f"No plan is safe; these are {report.tight_means(tight)}"))
        report.print_tight(result.faster_but_tight, None, 1, NUM_TIGHT_SHOWN)
        sys.stdout.flush()
    if result.reasons:
        click.echo(f"rejected: {report.rejections(result.reasons)}", err=True)
    if len(result.nearest_miss):
        click.echo(f"nearest miss: {report.miss(result.nearest_miss)}", err=True)
    with shown_progress(quiet=as_json):
        why, rescues = misfit_words(inputs, search, result)
    for line in rescues:
        click.echo(line, err=True)
    raise NoFeasiblePlanError(why)


def misfit_words(
    inputs: Inputs, search: SearchOptions, result: SearchResult
) -> tuple[str, list[str]]:
    """(why there is no safe plan, what would rescue it)."""
    where = f"{inputs.model.name} on {inputs.cluster.num_gpus} x {inputs.cluster.accelerator.name}"
    if not result.num_candidates:
        return f"no plan for {where}: {_contradiction(inputs, search)}", []
    if refused := _refused_whatever_the_plan(inputs, result):
        return f"no plan for {where}: {refused}", []
    if not result.exhaustive:
        more = "wait longer with --timeout" if result.stopped == "time-out" else "--budget more"
        if search.searcher != "grid":
            more += ", or search all with --searcher grid"
        return (
            f"no feasible plan for {where} among the {result.num_evaluated:,} evaluated of "
            f"{result.num_candidates:,}; {more}"
        ), []
    return (
        f"no feasible plan for {where}: none of {result.num_candidates:,} candidates obeys "
        f"every rule and needs at most {search.memory_limit:.0%} of memory"
    ), _rescues(inputs, search, result)


def _refused_whatever_the_plan(inputs: Inputs, result: SearchResult) -> str:
    """What a rule says that every candidate breaks, where no plan could obey it; else empty."""
    from parallelsim.rules import RULES, explain

    all_broken = [name for name, n in result.reasons.items() if n == result.num_candidates]
    names = [r.name for r in RULES if not r.reads_plan and r.name in all_broken]
    if not names:
        return ""
    others = {rule.name for rule in RULES} - set(names)
    spec = (inputs.model, inputs.cluster, inputs.framework)
    words = "; ".join(explain(*spec, Plan(), ignored=others))
    able = _frameworks_that_can(inputs, others)
    return f"{words}; --framework {' or '.join(able)} can" if able else words


def _frameworks_that_can(inputs: Inputs, ignored: set[str]) -> list[str]:
    """The catalogue's frameworks under which the rules that no plan could obey are obeyed."""
    from parallelsim.catalog import framework_names, load_framework
    from parallelsim.rules import explain

    return [
        name
        for name in framework_names()
        if not explain(inputs.model, inputs.cluster, load_framework(name), Plan(), ignored=ignored)
    ]


def _rescues(inputs: Inputs, search: SearchOptions, result: SearchResult) -> list[str]:
    """Changes that lead to a safe plan, in words; what was not tried for want of time."""
    from parallelsim.fit import Deadline, TimeIsUpError

    speed = max(result.num_candidates / max(result.elapsed_s, 1e-3), MIN_CANDIDATES_PER_S)
    helping: list[str] = []
    tried: list[str] = []
    skipped: list[str] = []
    try:
        task = fit_task(inputs.options, search)
        task = replace(task, deadline=Deadline(time.perf_counter() + RESCUE_S, speed))
        attempts = {what: changed for what, changed in task.changes()}
    except ParallelSimError:
        return []
    # First what is certain to help if anything does: the time may not last for the others.
    try:
        more = _more_gpus(task, inputs.cluster.num_gpus, bool(len(result.nearest_miss)))
        (helping if more else tried).append(more or "more GPUs")
    except TimeIsUpError:
        skipped.append("more GPUs")
    except ParallelSimError:
        pass
    for what, changed in attempts.items():
        try:
            found = changed.search(inputs.cluster.num_gpus)
        except TimeIsUpError:
            skipped.append(what)
        except ParallelSimError:  # the changed problem cannot be stated: no help
            continue
        else:
            (helping if len(found.result.plans) else tried).append(what)
    lines = [f"would help: {words}" for words in helping]
    if not helping and tried:
        lines.append(f"no single change helps; tried: {'; '.join(tried)}")
    if skipped:
        lines.append(f"not tried, to answer in seconds: {'; '.join(skipped)}")
    return lines


def _more_gpus(task: Task, num_gpus: int, obeys_rules: bool) -> str:
    """The smallest larger cluster with a safe plan, in words; empty where there is none."""
    from parallelsim.fit import fit as smallest_fit

    most = min(num_gpus * (64 if obeys_rules else 4), MAX_GPUS)
    found = smallest_fit(task, at_least=num_gpus + 1, at_most=most, with_changes=False).smallest
    return (
        f"more GPUs: {found.num_gpus} have a safe plan (--gpus {found.num_gpus})" if found else ""
    )


def _contradiction(inputs: Inputs, search: SearchOptions) -> str:
    """Which of --fix and --limit together leave no candidate, and the rule behind it."""
    given = {**search.fixed, **search.limits}
    if given.get("layout") == "free" and not _space_is_empty(inputs, search, without="layout"):
        return (
            f"no cut of its {inputs.model.num_layers} layers into stages (layout=free) fits in "
            f"{search.memory_limit:.0%} of memory, even with recompute; search without layout=free "
            "to see what is nearest"
        )
    guilty = [name for name in given if not _space_is_empty(inputs, search, without=name)] or [
        *given
    ]
    if "recompute_num_layers" in guilty:  # both come from recompute=full:N
        guilty = [name for name in guilty if name != "recompute"]
    words = ", ".join(_assignment(name, given[name]) for name in guilty)
    reasons = broken_by(inputs, {name: _first(value) for name, value in given.items()})
    why = f": {reasons[0]}" if reasons else ""
    return f"{words or 'the framework'} leave{'' if len(guilty) > 1 else 's'} no candidate{why}"


def _first(value: Any) -> Any:
    """A fixed value itself, the first of limited ones."""
    return value[0] if isinstance(value, range | tuple) else value


def _assignment(name: str, value: Any) -> str:
    """As it is typed behind --fix or --limit."""
    if isinstance(value, range):
        return f"{name}={value.start}..{value.stop - 1}"
    if isinstance(value, tuple):
        return f"{name}={'|'.join(str(v) for v in value[:8])}"
    if isinstance(value, bool):
        return f"{name}={str(value).lower()}"
    if name == "recompute_num_layers":
        return f"recompute=full:{value}"
    return f"{name}={value}"


def _space_is_empty(inputs: Inputs, search: SearchOptions, without: str) -> bool:
    """Whether no candidate is left with one of the fixed or limited fields free."""
    kept = replace(
        search,
        fixed={name: v for name, v in search.fixed.items() if name != without},
        limits={name: v for name, v in search.limits.items() if name != without},
    )
    try:
        return search_space(inputs, kept).num_candidates == 0
    except ParallelSimError:
        return True


def broken_by(inputs: Inputs, fixed: Mapping[str, Any]) -> list[str]:
    """What the rules say of the nearest well-formed plan with the fixed values."""
    from parallelsim.cli_defaults import with_searched_defaults
    from parallelsim.rules import explain

    try:
        used = prod(int(fixed.get(name, 1)) for name in ("tp", "cp", "pp"))
        fields = {"dp": max(inputs.cluster.num_gpus // used, 1), **fixed}
        fields |= {"global_batch_size": inputs.global_batch_size, "precision": inputs.precision}
        fields, _ = with_searched_defaults(fields, inputs.model, inputs.framework)
        plan = Plan.from_dict(fields)
    except ParallelSimError as error:
        return [str(error)]
    return explain(inputs.model, inputs.cluster, inputs.framework, plan)
