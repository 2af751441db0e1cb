"""The tables and bars of the report page as plain rows, ready for its template."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from parallelsim.report.labels import MEMORY_LABELS, degrees, label, largest_loss
from parallelsim.report.plans import memory_terms, time_terms, zero_marks
from parallelsim.search.variants import first_of_groups, variant_groups
from parallelsim.simulate import ZONES, Simulation, memory_per_stage
from parallelsim.units import GIB, format_bytes, format_percent, format_seconds

if TYPE_CHECKING:
    from parallelsim.correlation import Trust
    from parallelsim.plan import Plan
    from parallelsim.search.result import SearchResult

TIME_GROUPS: Mapping[str, tuple[str, ...]] = {
    "GEMMs": ("gemm_s",),
    "attention": ("attention_s",),
    "other compute": ("memory_bound_s", "head_s"),
    "recompute": ("recompute_s",),
    "exposed communication": (
        "tp_exposed_s",
        "cp_exposed_s",
        "ep_exposed_s",
        "p2p_exposed_s",
        "dp_exposed_s",
    ),
    "bubble": ("bubble_s",),
    "CPU wait, overhead": ("host_s", "overhead_s"),
    "optimizer, stragglers": ("optimizer_s", "straggler_s"),
}
"""Terms of the step that share a colour of the bars: as many as are told apart."""
LEAST_LABELLED = 0.07
"""Share of a bar from which on a piece has room for a number."""
MAX_REASONS = 12


class Cell(NamedTuple):
    """What a table shows, and what it is sorted by."""

    text: str
    value: float | str


@dataclass(frozen=True)
class Field:
    """One column of the ranked table."""

    header: str
    title: str
    """The header in full."""
    cell: Callable[[Row], Cell]
    is_axis: bool = False
    """Plans can be filtered by it."""
    stays: bool = False
    """Shown even where all plans have the same."""
    is_words: bool = False
    """Not a number: begins at the left."""


@dataclass(frozen=True)
class Row:
    """One plan with its place."""

    rank: int
    simulation: Simulation
    index: int
    first_step_s: float | None
    """Of the best safe plan; None where there is none."""
    p_best: float | None
    is_tied: bool
    is_near: bool
    """A variant of a faster row: see :mod:`parallelsim.search.variants`."""

    @property
    def plan(self) -> Plan:
        """The plan."""
        return self.simulation.plans.plan(self.index)

    @property
    def zone(self) -> str:
        """Of its memory."""
        return ZONES[int(self.simulation.zone[self.index])]

    def figure(self, name: str) -> float:
        """One of the simulation's arrays."""
        return float(getattr(self.simulation, name)[self.index])

    @property
    def words(self) -> str:
        """The degrees."""
        return degrees(self.plan)


def rows_of(result: SearchResult, trust: Trust | None) -> list[Row]:
    """Safe plans, then faster tight ones, ranked through."""
    safe, tight = result.plans, result.faster_but_tight
    first = float(safe.step_time_s[0]) if len(safe) else None
    shown, also = (set(first_of_groups(variant_groups(s.plans), 1).tolist()) for s in (safe, tight))
    rows = []
    for i in range(len(safe)):
        best = float(trust.p_best[i]) if trust else None
        tied = trust is not None and bool(trust.tied[i])
        rows.append(Row(i + 1, safe, i, first, best, tied, i not in shown))
    for i in range(len(tight)):
        rows.append(Row(len(safe) + i + 1, tight, i, first, None, False, i not in also))
    return rows


def _number(name: str) -> Callable[[Row], Cell]:
    def cell(row: Row) -> Cell:
        value = int(getattr(row.plan, name))
        return Cell(str(value), value)

    return cell


def _word(word: Callable[[Plan], str]) -> Callable[[Row], Cell]:
    def cell(row: Row) -> Cell:
        text = word(row.plan)
        return Cell(text, text)

    return cell


def _step(row: Row) -> Cell:
    value = row.figure("step_time_s")
    return Cell(format_seconds(value), value)


def _against_first(row: Row) -> Cell:
    if row.first_step_s is None:
        return Cell("", 0.0)
    value = row.figure("step_time_s") / row.first_step_s - 1
    return Cell("" if row.rank == 1 else f"{value:+.1%}".replace("-", "\N{MINUS SIGN}"), value)


def _between(row: Row) -> Cell:
    low, high = row.figure("step_time_low_s"), row.figure("step_time_high_s")
    return Cell(f"{format_seconds(low)} \N{EN DASH} {format_seconds(high)}", low)


def _fits(row: Row) -> Cell:
    value = row.figure("p_fits")
    return Cell("safe" if row.zone == "safe" else f"{row.zone}, {value:.0%}", value)


def _best(row: Row) -> Cell:
    return Cell("", -1.0) if row.p_best is None else Cell(f"{row.p_best:.0%}", row.p_best)


def _loss(row: Row) -> Cell:
    name, share = largest_loss(time_terms(row.simulation, row.index))
    return Cell(f"{label(name)} {share:.0%}" if name else "", share)


def _figure(name: str, text: Callable[[float], str]) -> Callable[[Row], Cell]:
    def cell(row: Row) -> Cell:
        value = row.figure(name)
        return Cell(text(value), value)

    return cell


FIELDS = (
    Field("#", "rank", lambda row: Cell(str(row.rank), row.rank), stays=True),
    Field("Step", "step time", _step, stays=True),
    Field("vs. 1", "step time against plan 1", _against_first, stays=True),
    Field("Mem", "memory use of the fullest stage", _figure("memory_use_frac", "{:.0%}".format),
          stays=True),
    Field("TP", "tensor-parallel ranks", _number("tp"), True, True),
    Field("CP", "context-parallel ranks", _number("cp"), True),
    Field("PP", "pipeline stages", _number("pp"), True, True),
    Field("VP", "virtual stages of each pipeline rank", _number("vpp"), True),
    Field("EP", "ranks that a layer's experts are dealt to", _number("ep"), True),
    Field("ETP", "tensor-parallel ranks of one expert", _number("etp"), True),
    Field("DP", "data-parallel replicas", _number("dp"), True, True),
    Field("MB", "sequences of one micro-batch", _number("micro_batch_size"), True, True),
    Field("ZeRO", "sharding of the optimizer (1), gradients (2), parameters (3)",
          _word(zero_marks), True),
    Field("Recompute", "activations that the backward pass computes again",
          _word(lambda plan: plan.recompute_label), True, is_words=True),
    Field("Schedule", "pipeline schedule", _word(lambda plan: plan.schedule), True,
          is_words=True),
    Field("Layout", "how layers are cut into stages", _word(lambda plan: plan.layout), True,
          is_words=True),
    Field("CP by", "context-parallel communication",
          _word(lambda plan: plan.cp_comm_type if plan.cp > 1 else ""), True, is_words=True),
    Field("EP by", "how tokens reach their experts",
          _word(lambda plan: plan.moe_dispatcher if plan.ep * plan.etp > 1 else ""), True,
          is_words=True),
    Field("Fits", "safe, or tight with the probability that it fits", _fits, stays=True,
          is_words=True),
    Field("MFU", "model FLOPs utilisation", _figure("mfu", "{:.1%}".format), stays=True),
    Field("tok/s/GPU", "tokens per second of one GPU",
          _figure("tokens_per_s_per_gpu", "{:,.0f}".format), stays=True),
    Field("GiB", "peak memory of the fullest stage",
          _figure("peak_memory_bytes", lambda value: f"{value / GIB:.1f}"), stays=True),
    Field("P(best)", "probability to be the fastest of these plans", _best),
    Field("Largest loss", "largest part of the step that is no computation of the model", _loss,
          stays=True, is_words=True),
    Field("80 % between", "interval of the step time that holds 80 % of measured runs", _between,
          stays=True),
)  # fmt: skip


@dataclass(frozen=True)
class RankedTable:
    """The ranked plans, column by column."""

    fields: Sequence[Field]
    rows: Sequence[tuple[Row, Sequence[Cell]]]
    axes: Sequence[tuple[Field, Sequence[str]]]
    """What plans can be filtered by, with the values that occur."""
    same: str
    """What all plans have, in words."""


def ranked_table(rows: Sequence[Row]) -> RankedTable:
    """The table without the columns in which all plans agree."""
    cells = {field.header: [field.cell(row) for row in rows] for field in FIELDS}
    varies = {name: len({cell.text for cell in column}) > 1 for name, column in cells.items()}
    shown = [field for field in FIELDS if field.stays or varies[field.header]]
    same = [
        f"{field.header} {cells[field.header][0].text}"
        for field in FIELDS
        if field not in shown and rows and cells[field.header][0].text
    ]
    axes = [
        (field, [cell.text for cell in sorted(set(cells[field.header]), key=lambda c: c.value)])
        for field in shown
        if field.is_axis and varies[field.header]
    ]
    table = [(row, [cells[f.header][i] for f in shown]) for i, row in enumerate(rows)]
    return RankedTable(shown, table, axes, ", ".join(same))


class Piece(NamedTuple):
    """A part of a bar."""

    name: str
    frac: float
    """Of the bar's whole length."""
    text: str
    colour: int
    """Number of the page's palette, from 1."""
    label: str
    """Shown inside; empty where there is no room."""


def time_bar(row: Row, longest_s: float) -> list[Piece]:
    """The step of one plan by group of terms; the longest step of the page is as long as a bar."""
    terms, total = time_terms(row.simulation, row.index), row.figure("step_time_s")
    pieces = []
    for colour, (name, members) in enumerate(TIME_GROUPS.items(), 1):
        value = sum(terms[member] for member in members)
        if value > 0:
            share = value / total
            text = f"{name}: {format_seconds(value)}, {format_percent(share)}"
            shown = f"{share:.0%}" if share >= LEAST_LABELLED else ""
            pieces.append(Piece(name, value / longest_s, text, colour, shown))
    return pieces


class Stage(NamedTuple):
    """A pipeline stage's memory; neighbouring equal stages are one."""

    name: str
    layers: str
    total: str
    use: str
    pieces: Sequence[Piece]
    cells: Sequence[str]
    """GiB by class, in the order of the legend."""


class MemoryView(NamedTuple):
    """Memory by stage and class of tensors."""

    legend: Sequence[tuple[str, int]]
    """Classes with their colours."""
    stages: Sequence[Stage]
    capacity_frac: float
    """What the GPU has, of a bar's length."""
    safe_frac: float


def memory_view(row: Row) -> MemoryView:
    """The stages of one plan; the fullest, or what the GPU has, is as long as a bar."""
    simulation = row.simulation
    inputs = (simulation.model, simulation.cluster, simulation.framework)
    stages = memory_per_stage(*inputs, row.plan)
    classes = {
        name: colour
        for colour, name in enumerate(MEMORY_LABELS, 1)
        if any(stage[name] > 0 for stage in stages)
    }
    capacity = simulation.memory_capacity_bytes
    longest = max(capacity, *(stage["total_bytes"] for stage in stages))
    shown = []
    for _, group in itertools.groupby(stages, lambda s: [s[k] for k in s if k != "stage"]):
        first, *rest = group
        names = [str(stage["stage"]) for stage in (first, *rest[-1:])]
        pieces = []
        for name, colour in classes.items():
            share = first[name] / longest
            text = f"{label(name)}: {format_bytes(first[name])}"
            shown_text = f"{first[name] / GIB:.1f}" if share >= LEAST_LABELLED else ""
            pieces.append(Piece(label(name), share, text, colour, shown_text))
        total = first["total_bytes"]
        cells = [f"{first[name] / GIB:.2f}" for name in classes]
        layers, use = f"{first['layers']:g}", f"{total / capacity:.0%}"
        name = "\N{EN DASH}".join(names)
        shown.append(Stage(name, layers, f"{total / GIB:.2f}", use, pieces, cells))
    legend = [(label(name), colour) for name, colour in classes.items()]
    share = capacity / longest
    return MemoryView(legend, shown, share, share * simulation.memory_limit)


def front_rows(front: Simulation) -> list[list[str]]:
    """Step time, memory and degrees of the plans of a front."""
    return [
        [
            format_seconds(float(front.step_time_s[i])),
            f"{float(front.peak_memory_bytes[i]) / GIB:.1f}",
            f"{float(front.memory_use_frac[i]):.0%}",
            ZONES[int(front.zone[i])],
            degrees(front.plans.plan(i)),
        ]
        for i in range(len(front))
    ]


def term_rows(row: Row, other: Row | None, origins: Mapping[str, str]) -> list[list[str]]:
    """Each term of the step: name, seconds, share, those of another plan, and where it comes
    from.
    """
    mine = time_terms(row.simulation, row.index)
    theirs = time_terms(other.simulation, other.index) if other else {}
    total = sum(mine.values())
    rows = []
    for name, value in mine.items():
        if value <= 0 and theirs.get(name, 0.0) <= 0:
            continue
        cells = [label(name), format_seconds(value), format_percent(value / total)]
        if other:
            more = theirs[name] - value
            sign = "+" if more > 0 else "\N{MINUS SIGN}" if more < 0 else ""
            cells += [format_seconds(theirs[name]), f"{sign}{format_seconds(abs(more))}"]
        rows.append([*cells, origins.get(name, "")])
    return rows


def reason_rows(reasons: Mapping[str, int], num_candidates: int) -> list[tuple[str, int, float]]:
    """(rule, plans that it rejects, share of the most), most first; the rest together last."""
    ordered = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    ordered = [(name, count) for name, count in ordered if count]
    most = max((count for _, count in ordered), default=1)
    return [(name, count, count / most) for name, count in ordered[:MAX_REASONS]]


def peak_words(row: Row) -> str:
    """The fullest stage and its largest term."""
    terms = memory_terms(row.simulation, row.index)
    most = max(terms, key=lambda name: terms[name])
    stage = int(row.simulation.fullest_stage[row.index])
    return (
        f"stage {stage} of {row.plan.pp}: {format_bytes(row.figure('peak_memory_bytes'))} of "
        f"{format_bytes(row.simulation.memory_capacity_bytes)}, most of it {label(most)}"
    )
