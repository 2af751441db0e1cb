"""``parallelsim tune``: plans, real runs, and what they teach."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import click

from parallelsim.cli_inputs import (
    Inputs,
    document_inputs,
    load_inputs,
    search_space,
    shown_path,
)
from parallelsim.cli_options import (
    SearchOptions,
    SpecOptions,
    json_option,
    only_grid,
    search_options,
    spec_options,
)
from parallelsim.cli_progress import shown_progress
from parallelsim.cli_values import number_up_to, whole_number
from parallelsim.errors import ExportError, SpecError

if TYPE_CHECKING:
    from parallelsim.plan import Plan
    from parallelsim.simulate import Simulation
    from parallelsim.tuning.report import State
    from parallelsim.tuning.study import Run, Study

LARGEST_RATIO = 4.0
"""Measured over predicted, or the reverse, beyond which a step time is not of this plan."""


@click.group()
def tune() -> None:
    """Find the fastest plan with a few real runs, which correct the simulator.

    init makes a study in a folder; next proposes a plan and writes its launch script; record takes
    what happened; and so on, until another run is not worth it.
    """


@tune.command()
@click.argument("folder")
@spec_options
@search_options
@click.option(
    "--budget",
    type=whole_number(1, 1000),
    metavar="N",
    default=6,
    show_default=True,
    help="Runs after which to stop.",
)
@click.option(
    "--min-gain",
    type=number_up_to(1.0),
    metavar="X",
    default=0.005,
    show_default=True,
    help="Stop where another run is expected to save less than this share of the step.",
)
def init(
    folder: str, spec: SpecOptions, search: SearchOptions, budget: int, min_gain: float
) -> int:
    """Make a study: search, and keep every plan that might turn out the fastest.

    FOLDER is a new folder.
    """
    from pathlib import Path

    from parallelsim.cli_misfit import explain_misfit
    from parallelsim.search.grid import grid_search
    from parallelsim.tuning.candidates import candidates
    from parallelsim.tuning.study import CANDIDATES, ModelFacts, Study, check_new, create

    if spec.num_gpus is None:
        raise click.UsageError("Missing option '--gpus': the number of GPUs.")
    only_grid(search, "tune")
    check_new(folder)
    inputs = load_inputs(spec, spec.num_gpus)
    space = search_space(inputs, search)
    with shown_progress():
        found = grid_search(space, memory_limit=search.memory_limit, all_variants=True)
    if not len(found.plans):
        return explain_misfit(inputs, search, found, as_json=False)
    plans = _launchable(inputs, candidates(space, found))
    facts = ModelFacts.of(inputs.model)
    create(Study(Path(folder), inputs.document(plans), facts, budget, min_gain))
    for note in inputs.notes:
        click.echo(f"note: {note}", err=True)
    click.echo(inputs.header(search.memory_limit) + "\n")
    click.echo(
        f"{len(plans)} of {found.num_candidates:,} plans might turn out the fastest: "
        f"{shown_path(Path(folder) / CANDIDATES)}"
    )
    click.echo(f"next: parallelsim tune next {shown_path(folder)}", err=True)
    return 0


@tune.command("next")
@click.argument("folder")
@click.option("--budget", type=whole_number(1, 1000), metavar="N", help="Raise the budget to N.")
@json_option
def next_(folder: str, budget: int | None, as_json: bool) -> None:
    """Propose the plan worth running, and write its launch script into the study's folder."""
    from dataclasses import replace

    from parallelsim.tuning.study import load, locked, save

    with locked(folder):
        study = load(folder)
        if budget is not None:
            study = replace(study, budget=max(budget, study.budget))
        state, inputs = _state(study)
        position, script = state.proposal, None
        if position is not None:
            script = _write_script(study, inputs, position)
            study = replace(study, proposed=state.rank(position))
        save(study)
        state, _ = _state(study, (state.simulation, inputs))
    if as_json:
        _print_json(state, script)
        return
    from parallelsim.report.tables import paragraph
    from parallelsim.tuning.report import proposal_words

    if position is None:
        _print(state)
        return
    click.echo(paragraph(proposal_words(state, position)))
    click.echo(f"wrote {shown_path(str(script))}", err=True)
    click.echo(
        f"next: run it, then parallelsim tune record {shown_path(folder)} LOG (or --seconds X, "
        "or --out-of-memory)",
        err=True,
    )


@tune.command()
@click.argument("folder")
@click.argument("log", required=False)
@click.option(
    "--seconds", type=number_up_to(1e6, low=1e-6), metavar="X", help="Measured step time."
)
@click.option("--out-of-memory", is_flag=True, help="The run failed for lack of memory.")
@click.option(
    "--peak-gib",
    type=number_up_to(1e5, low=1e-3),
    metavar="X",
    help="Highest reserved memory of a GPU, with --seconds.",
)
@click.option(
    "--rank",
    type=whole_number(1, 10_000),
    metavar="N",
    help="The candidate that ran.  [default: the one proposed]",
)
@click.option("--force", is_flag=True, help="Take a step time that is far from the prediction.")
@json_option
def record(
    folder: str,
    log: str | None,
    seconds: float | None,
    out_of_memory: bool,
    peak_gib: float | None,
    rank: int | None,
    force: bool,
    as_json: bool,
) -> None:
    """Take the result of a run: a LOG of Megatron, nanotron or torchtitan, or its figures."""
    from parallelsim.tuning.study import Run, load, locked, save
    from parallelsim.units import GIB

    given = [log is not None, seconds is not None, out_of_memory]
    if sum(given) != 1:
        raise click.UsageError("give one of LOG, --seconds and --out-of-memory")
    if peak_gib is not None and seconds is None:
        raise click.UsageError("--peak-gib goes with --seconds")
    with locked(folder):
        study = load(folder)
        entry = study.document.with_rank(_rank(study, rank), f"{folder}/candidates.yaml")
        state, inputs = _state(study)
        if log is not None:
            run = _run_of_log(study, inputs, entry.rank, log)
        else:
            peak = None if peak_gib is None else peak_gib * GIB
            how = "--out-of-memory" if out_of_memory else "--seconds"
            run = Run(entry.rank, seconds, peak, how)
        if not force:
            _check_scale(state, run)
        study = study.with_run(run)
        save(study)
    state, _ = _state(study, (state.simulation, inputs))
    if as_json:
        _print_json(state)
    else:
        _print(state)


@tune.command()
@click.argument("folder")
@json_option
def status(folder: str, as_json: bool) -> None:
    """Show the runs, the best plan so far, and what another run is worth."""
    from parallelsim.tuning.study import load, locked

    with locked(folder):
        state, _ = _state(load(folder))
    if as_json:
        _print_json(state)
    else:
        _print(state)


def _launchable(inputs: Inputs, plans: Simulation) -> Simulation:
    """Without the plans that the software's usual export cannot express; all of them where it
    cannot express the first.
    """
    kept = [index for index, plan in enumerate(plans.plans) if _launch(inputs, plan)]
    return plans.take(kept) if kept[:1] == [0] else plans


def _launch(inputs: Inputs, plan: Plan) -> tuple[str, str] | None:
    """(end of the file's name, text) of what launches a plan with its software's usual target;
    None where there is no target, or it cannot express the plan.
    """
    from parallelsim.exporters import EXPORTERS
    from parallelsim.targets import TARGETS

    for name in inputs.framework.launches[:1]:
        with suppress(ExportError):
            text = EXPORTERS[name](inputs.model, inputs.cluster, inputs.framework, plan)
            return TARGETS[name].suffix, text
    return None


def _state(study: Study, known: tuple[Simulation, Inputs] | None = None) -> tuple[State, Inputs]:
    """The study with what follows from it; predictions are those of an earlier call, or made."""
    from parallelsim.replay import replayed
    from parallelsim.simulate import simulate
    from parallelsim.tuning.report import State
    from parallelsim.tuning.study import CANDIDATES

    if known is None:
        inputs = document_inputs(study.document, str(study.folder / CANDIDATES))
        study.check_model(inputs.model)
        plans = [entry.plan for entry in study.document.plans]
        known = replayed(simulate(inputs.model, inputs.cluster, inputs.framework, plans)), inputs
    return State.of(study, known[0]), known[1]


def _write_script(study: Study, inputs: Inputs, position: int) -> str:
    """Write what launches a candidate; its path. Where nothing does, it is the plan."""
    from parallelsim.output_files import write_text
    from parallelsim.yaml_io import dump_yaml

    plan = study.document.plans[position].plan
    suffix, text = _launch(inputs, plan) or (".yaml", dump_yaml({"plan": plan.to_dict()}))
    path = study.folder / f"run-{len(study.runs) + 1}{suffix}"
    write_text(path, text, force=True, executable=suffix == ".sh")
    return str(path)


def _rank(study: Study, rank: int | None) -> int:
    """The candidate that ran.

    Raises:
        SpecError: none was proposed and none is named.
    """
    if rank is not None:
        return rank
    if study.proposed is None:
        raise SpecError(
            f"{study.folder}: no plan waits for its run; 'parallelsim tune next {study.folder}' "
            "proposes one, or name the candidate that ran with --rank"
        )
    return study.proposed


def _run_of_log(study: Study, inputs: Inputs, rank: int, file: str) -> Run:
    """The figures of a log.

    Raises:
        ParallelSimError: it cannot be read, has no usable line, or is of another run.
    """
    from parallelsim.calibration_runs import check_batch, step_time_of
    from parallelsim.runlogs import contradicts, read_log
    from parallelsim.tuning.study import CANDIDATES, Run

    source = str(study.folder / CANDIDATES)
    plan = study.document.with_rank(rank, source).plan
    found = read_log(file)
    if contradicts(found, inputs.framework.name):
        raise SpecError(
            f"a log of {found.software}, but the study is for {inputs.framework.name}", file=file
        )
    check_batch(found, plan, source)
    for reason, count in found.skipped.items():
        click.echo(f"note: {file}: {count} lines skipped: {reason}", err=True)
    seconds = step_time_of(found, inputs.model, plan)
    return Run(rank, seconds, found.peak_memory_bytes, f"{file}, median of {found.num_steps} steps")


def _check_scale(state: State, run: Run) -> None:
    """Refuse a step time that no efficiency explains.

    Raises:
        SpecError: with what to check.
    """
    if run.step_time_s is None:
        return
    ranks = [entry.rank for entry in state.study.document.plans]
    predicted = float(state.simulation.step_time_s[ranks.index(run.rank)])
    ratio = run.step_time_s / predicted
    if not 1 / LARGEST_RATIO < ratio < LARGEST_RATIO:
        raise SpecError(
            f"{run.step_time_s:.4g} s is {ratio:.2g} times the prediction for plan {run.rank} "
            f"({predicted:.4g} s); check the plan, the batch and the unit (seconds), or record it "
            "with --force"
        )


def _print(state: State) -> None:
    from parallelsim.report.tables import paragraph, print_table
    from parallelsim.tuning.report import RUN_COLUMNS, run_rows, sentences

    rows = run_rows(state)
    if rows:
        print_table(RUN_COLUMNS, rows)
        click.echo("")
    for words in sentences(state):
        click.echo(paragraph(words))
    folder = shown_path(state.study.folder)
    if state.stop is None:
        waits = state.study.proposed is not None
        click.echo(f"next: parallelsim tune {'record' if waits else 'next'} {folder}", err=True)


def _print_json(state: State, script: str | None = None) -> None:
    from parallelsim.report.documents import json_text
    from parallelsim.tuning.report import document

    click.echo(json_text("tune", document(state, script)))
