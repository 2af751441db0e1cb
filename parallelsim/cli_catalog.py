"""``parallelsim models``, ``clusters`` and ``frameworks``: what the catalogue holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from parallelsim.cli_completion import names_or_files
from parallelsim.cli_options import json_option

_yaml_option = click.option(
    "--yaml", "as_yaml", is_flag=True, help="Print the file of NAME, to copy and change."
)


@click.command()
@click.argument("name", required=False, shell_complete=names_or_files("model"))
@_yaml_option
@json_option
def models(name: str | None, as_yaml: bool, as_json: bool) -> None:
    """List the models, or show one with its sources. NAME may be a file."""
    from parallelsim import catalog
    from parallelsim.report import specs

    if as_yaml:
        _print_file(name, "model")
        return
    _show(name, as_json, catalog.model_names(), catalog.load_model, specs.MODEL_VIEW)


@click.command()
@click.argument("name", required=False, shell_complete=names_or_files("cluster"))
@_yaml_option
@json_option
def clusters(name: str | None, as_yaml: bool, as_json: bool) -> None:
    """List the clusters, or show one with its sources. NAME may be a file."""
    from parallelsim import catalog
    from parallelsim.report import specs

    if as_yaml:
        _print_file(name, "cluster")
        return
    _show(name, as_json, catalog.cluster_names(), catalog.load_cluster, specs.CLUSTER_VIEW)


@click.command()
@click.argument("name", required=False, shell_complete=names_or_files("framework"))
@_yaml_option
@json_option
def frameworks(name: str | None, as_yaml: bool, as_json: bool) -> None:
    """List the training software, or show one with its sources. NAME may be a file."""
    from parallelsim import catalog
    from parallelsim.report import specs

    if as_yaml:
        _print_file(name, "framework")
        return
    _show(name, as_json, catalog.framework_names(), catalog.load_framework, specs.FRAMEWORK_VIEW)


def _print_file(name: str | None, kind: str) -> None:
    from parallelsim.catalog import catalogue_text

    if name is None:
        raise click.UsageError("--yaml: give the NAME whose file to print")
    click.echo(catalogue_text(kind, name, f"parallelsim.{kind}s"), nl=False)


def _show(
    name: str | None, as_json: bool, names: tuple[str, ...], load: Callable[[str], Any], view: Any
) -> None:
    from dataclasses import asdict

    from parallelsim.report.documents import json_text
    from parallelsim.report.tables import print_table

    if as_json:
        specs: list[Mapping[str, Any]] = [
            asdict(load(each)) for each in ((name,) if name else names)
        ]
        plural = f"{view.kind}s"
        click.echo(json_text(view.kind, specs[0]) if name else json_text(plural, {plural: specs}))
    elif name:
        click.echo("\n".join(view.details(name, load(name))))
    else:
        print_table(view.columns, [view.row(load(each)) for each in names])
        click.echo(f"\n'parallelsim {view.kind}s NAME' shows one with its sources.", err=True)
