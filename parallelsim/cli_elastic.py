"""``parallelsim elastic``: what a run does when it loses nodes."""

from __future__ import annotations

import click

from parallelsim.cli_inputs import fit_task
from parallelsim.cli_options import (
    SearchOptions,
    SpecOptions,
    json_option,
    only_grid,
    search_options,
    spec_options,
)
from parallelsim.cli_progress import shown_progress
from parallelsim.cli_whole_run import RunOptions, fault_options
from parallelsim.errors import NoFeasiblePlanError
from parallelsim.processes import num_cores


@click.command()
@spec_options
@search_options
@fault_options
@json_option
def elastic(spec: SpecOptions, search: SearchOptions, run: RunOptions, as_json: bool) -> int:
    """Find the best plan for each number of GPUs that failures leave, from --gpus down to half.

    The global batch stays the same. Says what switching costs, and how long a repair has to take
    for switching to be better than waiting.
    """
    from parallelsim import elastic as elastics

    only_grid(search, "elastic")
    if spec.num_gpus is None:
        raise click.UsageError("Missing option '--gpus': the number of GPUs of the whole run.")
    task = fit_task(spec, search)
    cluster = task.cluster.with_num_gpus(spec.num_gpus)
    budget = run.budget(cluster)
    with shown_progress(quiet=as_json):
        found = elastics.elastic(task, spec.num_gpus, budget, num_cores())
    if found is None:
        raise NoFeasiblePlanError(
            f"no plan on {spec.num_gpus} GPUs is safe in memory; 'parallelsim plan' says what binds"
        )
    from parallelsim.report.documents import json_text
    from parallelsim.report.elastic import elastic_document, print_elastic

    if as_json:
        click.echo(json_text("elastic", elastic_document(task, found, budget)))
    else:
        print_elastic(task, found)
    return 0
