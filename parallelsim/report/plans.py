"""Ranked plans as tables and sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from parallelsim.plan import Plan
from parallelsim.report.labels import (
    SURE_TO_FIT,
    cut_words,
    degrees,
    label,
    largest_loss,
    step_interval,
)
from parallelsim.report.tables import Column, print_line, print_table
from parallelsim.search.result import NEAR_FRAC
from parallelsim.units import GIB, format_bytes, format_count, format_percent, format_seconds

if TYPE_CHECKING:
    from parallelsim.cluster import ClusterSpec
    from parallelsim.correlation import Trust
    from parallelsim.framework import FrameworkSpec
    from parallelsim.model import ModelSpec
    from parallelsim.search.result import SearchResult
    from parallelsim.simulate import Simulation

CP_MARKS = {"p2p": "", "all-gather": "g", "a2a": "a", "a2a+p2p": "h"}
LAYOUT_MARKS = {
    "even": "",
    "embedding": "e",
    "loss": "l",
    "embedding-loss": "b",
    "first-last": "f",
    "free": "c",
}
"""Behind the degrees of context and pipeline parallelism: how, where it is not the usual way."""
EP_MARKS = {"all-to-all": "", "all-gather": "g", "deepep": "d"}
OVERLAP_MARK = "o"
"""Behind the degree of expert parallelism: how, and that its exchange is overlapped."""

MAX_CUTS_SHOWN = 2
_PLAN_COLUMNS = (
    Column("#"),
    Column("TP"),
    Column("CP"),
    Column("PP"),
    Column("VP", priority=4),
    Column("EP"),
    Column("ETP", priority=4),
    Column("DP"),
    Column("MB"),
    Column("SP", priority=7),
    Column("Z", priority=6),
    Column("recomp.", "left", priority=1),
    Column("step"),
    Column("80 % between", priority=8),
    Column("tok/s/GPU", priority=3),
    Column("MFU"),
)
_MEMORY_COLUMNS = (Column("GiB", priority=2), Column("mem"))
_LOSS_COLUMN = Column("largest loss", "left", priority=1)
_BEST_COLUMN = Column("P(best)", priority=9)
TIE_MARK = "="
"""Behind the rank of the first plan and of those that may as well be faster than it."""
_TIGHT_COLUMNS = (Column("gain"), Column("P(fits)"))


def header(
    model: ModelSpec,
    cluster: ClusterSpec,
    framework: FrameworkSpec,
    *,
    global_batch_size: int,
    precision: str,
    memory_limit: float,
    overrides: Mapping[str, object],
) -> list[str]:
    """What is planned, in three lines, and a note where less than usual is known of it."""
    changed = ", ".join(f"{name}={value}" for name, value in overrides.items())
    name = f"{model.name} ({changed})" if changed else model.name
    gpu = cluster.accelerator
    tokens = format_count(global_batch_size * model.seq_length)
    batch = f"{global_batch_size} x {model.seq_length} = {tokens} tokens"
    why = [] if gpu.measured else [f"no measured tables of {gpu.name}"]
    why += [] if framework.calibrated else [f"no measured run checked {framework.name}"]
    notes = [f"note: {reason}: step times are less certain" for reason in why]
    return [
        f"{name}, {format_count(model.num_parameters)} parameters, {framework.name}",
        f"on {cluster.num_gpus} x {gpu.name} ({cluster.name}, nodes of {cluster.gpus_per_node})",
        f"batch {batch} a step, {precision}; "
        f"safe up to {memory_limit:.0%} of {format_bytes(gpu.memory_bytes)}",
        *notes,
    ]


def zero_marks(plan: Plan) -> str:
    """``3``, ``3/4`` over four groups, ``3k`` where gathered parameters stay until backward."""
    groups = f"/{plan.dp_replicate}" if plan.dp_replicate > 1 else ""
    return f"{plan.zero}{groups}" + ("" if plan.reshard_after_forward else "k")


def legend(*simulations: Simulation) -> list[str]:
    """What the marks behind CP, PP and Z mean, as far as any plan shown has them."""
    plans = [plan for simulation in simulations for plan in simulation.plans]
    shown = {f"CP {CP_MARKS[p.cp_comm_type]}": f"{p.cp_comm_type}" for p in plans if p.cp > 1}
    shown |= {f"PP {LAYOUT_MARKS[p.layout]}": f"layout {p.layout}" for p in plans}
    replicas = sorted({plan.dp_replicate for plan in plans} - {1})
    shown |= {f"Z /{n}": f"{n} shard groups" for n in replicas}
    kept = any(not plan.reshard_after_forward for plan in plans)
    shown |= {"Z k": "parameters kept until backward"} if kept else {}
    spread = [p for p in plans if p.ep * p.etp > 1]
    shown |= {f"EP {EP_MARKS[p.moe_dispatcher]}": p.moe_dispatcher for p in spread}
    if any(p.ep_comm_overlap for p in spread):
        shown[f"EP {OVERLAP_MARK}"] = "overlapped"
    marks = [f"{mark} = {name}" for mark, name in shown.items() if not mark.endswith(" ")]
    return ([", ".join(marks)] if marks else []) + _schedules(plans)


def _schedules(plans: list[Plan]) -> list[str]:
    """Which plans run another schedule than the one that follows from pp and vpp."""
    ranks: dict[str, list[str]] = {}
    for rank, plan in enumerate(plans, 1):
        usual = "none" if plan.pp == 1 else "1f1b" if plan.vpp == 1 else "interleaved-1f1b"
        if plan.schedule != usual:
            ranks.setdefault(plan.schedule, []).append(str(rank))
    return [f"schedule {name}: # {', '.join(found)}" for name, found in ranks.items()]


def print_ranked(simulation: Simulation, trust: Trust | None = None) -> None:
    """The safe plans, best first.

    With ``trust`` ties are marked, and each plan has its probability to be the fastest.
    """
    columns = [*_PLAN_COLUMNS, *_MEMORY_COLUMNS, _LOSS_COLUMN]
    rows = [_cells(simulation, i) for i in range(len(simulation))]
    if trust is not None:
        columns.append(_BEST_COLUMN)
        for i, row in enumerate(rows):
            row[0] += TIE_MARK if trust.tied[i] or (i == 0 and trust.tied.any()) else ""
            row.append(f"{float(trust.p_best[i]):.0%}")
    left_out = print_table(*_without_unused(columns, rows), bold_rows=1)
    if left_out:
        print_line(f"left out for width: {', '.join(left_out)}")


def tight_means(simulation: Simulation) -> str:
    """What plans beyond the memory limit are, and what they risk."""
    if (simulation.p_fits >= SURE_TO_FIT).all():
        return "above the memory limit: P(fits) says how likely each is to fit."
    risk = "they may run out of memory. P(fits) says how likely each is to fit; run three steps."
    return f"tight: {risk}"


def print_tight(
    simulation: Simulation, best_step_time_s: float | None, first_rank: int, num_shown: int
) -> None:
    """Tight plans with their gain over the best safe one (``-`` without one) and P(fits)."""
    rows = []
    for i in range(min(num_shown, len(simulation.plans))):
        gain = "-"
        if best_step_time_s is not None:
            gain = f"{best_step_time_s / float(simulation.step_time_s[i]) - 1:+.1%}"
        _, *cells, _ = _cells(simulation, i)
        rows.append([str(first_rank + i), *cells, gain, f"{float(simulation.p_fits[i]):.0%}"])
    print_table(*_without_unused((*_PLAN_COLUMNS, *_MEMORY_COLUMNS, *_TIGHT_COLUMNS), rows))


def _without_unused(
    columns: Sequence[Column], rows: Sequence[Sequence[str]]
) -> tuple[list[Column], list[list[str]]]:
    """The table without the degrees of experts that are 1 in every plan."""
    unused = [
        i
        for i, column in enumerate(columns)
        if column.header in ("EP", "ETP") and all(row[i] == "1" for row in rows)
    ]
    keep = [i for i in range(len(columns)) if i not in unused]
    return [columns[i] for i in keep], [[row[i] for i in keep] for row in rows]


def _cells(simulation: Simulation, i: int) -> list[str]:
    plan = simulation.plans.plan(i)
    loss, share = largest_loss(time_terms(simulation, i))
    return [
        str(i + 1),
        str(plan.tp),
        f"{plan.cp}{CP_MARKS[plan.cp_comm_type]}",
        f"{plan.pp}{LAYOUT_MARKS[plan.layout]}",
        str(plan.vpp),
        _expert_ranks(plan),
        *(str(value) for value in (plan.etp, plan.dp, plan.micro_batch_size)),
        "y" if plan.sequence_parallel else "n",
        zero_marks(plan),
        plan.recompute_label,
        format_seconds(float(simulation.step_time_s[i])),
        " - ".join(
            format_seconds(float(values[i]))
            for values in (simulation.step_time_low_s, simulation.step_time_high_s)
        ),
        f"{float(simulation.tokens_per_s_per_gpu[i]):.0f}",
        f"{float(simulation.mfu[i]):.1%}",
        f"{float(simulation.peak_memory_bytes[i]) / GIB:.1f}",
        f"{float(simulation.memory_use_frac[i]):.0%}",
        f"{label(loss)} {share:.0%}" if loss else "-",
    ]


def _expert_ranks(plan: Plan) -> str:
    """The degree of expert parallelism with its marks."""
    if plan.ep * plan.etp == 1:
        return "1"
    mark = OVERLAP_MARK if plan.ep_comm_overlap else ""
    return f"{plan.ep}{EP_MARKS[plan.moe_dispatcher]}{mark}"


def time_terms(simulation: Simulation, i: int) -> dict[str, float]:
    """Seconds of one plan by term."""
    return _terms(simulation.time, i)


def memory_terms(simulation: Simulation, i: int) -> dict[str, float]:
    """Bytes of one plan's fullest stage by term."""
    return _terms(simulation.memory, i)


def _terms(breakdown: object, i: int) -> dict[str, float]:
    from dataclasses import fields

    return {field.name: float(getattr(breakdown, field.name)[i]) for field in fields(breakdown)}  # type: ignore[arg-type]


def first_with_other_degrees(simulation: Simulation) -> int:
    """Position of the best plan with other degrees or another micro-batch than the first.

    1 where all have the same, 0 where there is only one plan.
    """
    plans = list(simulation.plans)
    names = ("tp", "cp", "pp", "dp", "ep", "etp", "micro_batch_size")
    for index, plan in enumerate(plans):
        if any(getattr(plan, name) != getattr(plans[0], name) for name in names):
            return index
    return min(1, len(plans) - 1)


def counts(result: SearchResult) -> str:
    """How many plans were looked at and how, and what that proves."""
    number = f"{result.num_candidates:,} candidates"
    if result.searcher == "grid":
        tried = f"{number} screened, {result.num_feasible:,} safe"
    else:
        tried = f"{result.num_evaluated:,} of {number} evaluated, {result.num_feasible:,} safe"
    tried += f", {result.num_tight:,} tight"
    if result.partial:
        why = {"time-out": "stopped by the time-out", "budget": "the budget was spent"}
        ended = why.get(result.stopped, result.stopped)
        return f"{tried}; {ended} after {format_seconds(result.elapsed_s)}: the best so far"
    tried += f"; {result.num_replayed:,} replayed operation by operation"
    return f"{tried}; {_proof(result)}; {format_seconds(result.elapsed_s)}"


def _proof(result: SearchResult) -> str:
    if not len(result.plans):
        return "none of them is safe"
    if not result.proven:
        return "the best found, not proved"
    proof = "plan 1 is proved the fastest safe one"
    if not result.num_cut:
        return proof
    proof += ". Layers were cut freely (layout free) in "
    if result.num_uncut:
        number = result.num_cut + result.num_uncut
        return f"{proof}{result.num_cut} of {number:,} plans that might gain by it"
    return f"{proof}{result.num_cut} plans, all that might gain by it"


def variants(result: SearchResult) -> str:
    """What the rows stand for; empty where every plan is a row."""
    if result.all_variants or not len(result.plans):
        return ""
    words = (
        "Each row is the fastest variant of its degrees, micro-batch and sharding; --all-variants "
        "ranks them all"
    )
    if near := result.num_near[0] if result.num_near else 0:
        words += f", {near} of plan 1 within {NEAR_FRAC:.0%} of it"
    return words + "."


def cuts(result: SearchResult) -> list[str]:
    """What the plans with layout ``free`` gain by it, and how the best of them cuts the layers."""
    lines = []
    for index, gain in enumerate(result.cut_gain_frac):
        plan = result.plans.plans.plan(index)
        if plan.layout != "free":
            continue
        words = f"layers cut as {cut_words(plan.chunk_layers)}"
        if gain is not None:
            words += f", {gain:.1%} of the step less than with another layout"
        lines.append(f"Plan {index + 1}: {words}.")
    return lines[:MAX_CUTS_SHOWN]


def limits(simulation: Simulation) -> str:
    """What limits the first plan: its losses that matter, and its memory; and how sure its step
    time is.
    """
    terms = time_terms(simulation, 0)
    total = sum(terms.values())
    loss, share = largest_loss(terms)
    rest = {k: v for k, v in terms.items() if k != loss}
    second, second_share = largest_loss(rest)
    second_share *= sum(rest.values()) / total if total else 0.0
    words = [
        f"{label(n)} {format_percent(s)}" for n, s in ((loss, share), (second, second_share)) if n
    ]
    memory = memory_terms(simulation, 0)
    top = max(memory, key=lambda name: memory[name])
    stage = int(np.asarray(simulation.fullest_stage)[0])
    lost = f"of the step it loses {' and '.join(words)}; " if words else ""
    step = step_interval(
        *(
            float(values[0])
            for values in (
                simulation.step_time_s,
                simulation.step_time_low_s,
                simulation.step_time_high_s,
            )
        )
    )
    return (
        f"Step of plan 1: {step}. Limits: {lost}the fullest stage, {stage}, holds "
        f"{format_bytes(float(simulation.peak_memory_bytes[0]))}, most of it {label(top)} "
        f"({format_bytes(memory[top])})."
    )


def miss(simulation: Simulation) -> str:
    """The nearest miss: its plan, and what it needs against what there is."""
    plan: Plan = simulation.plans.plan(0)
    memory = memory_terms(simulation, 0)
    largest = sorted(memory, key=lambda name: -memory[name])[:2]
    words = " and ".join(f"{label(name)} {format_bytes(memory[name])}" for name in largest)
    return (
        f"{degrees(plan)}: needs {format_bytes(float(simulation.peak_memory_bytes[0]))} on stage "
        f"{int(np.asarray(simulation.fullest_stage)[0])} ({words}), which is "
        f"{format_percent(float(simulation.memory_use_frac[0]))} of "
        f"{format_bytes(simulation.memory_capacity_bytes)}"
    )


def rejections(reasons: Mapping[str, int], at_most: int = 8) -> str:
    """Which rule rejected how many, most first."""
    ordered = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    words = [f"{name} {count:,}" for name, count in ordered if count][:at_most]
    return ", ".join(words)
