"""``parallelsim schema``: what the program's JSON holds, for programs that read it."""

from __future__ import annotations

import click


@click.command()
@click.argument("name", required=False)
def schema(name: str | None) -> None:
    """List the kinds of JSON documents, or print the JSON Schema of one.

    Documents name their kind and the version of their schema. Keys may be added to a version; it
    grows when one is removed, renamed, or changes its meaning.
    """
    import json

    from parallelsim.report import schemas

    if name is None:
        click.echo("\n".join(schemas.NAMES))
    elif name in schemas.NAMES:
        click.echo(json.dumps(schemas.schema(name), indent=2))
    else:
        known = ", ".join(schemas.NAMES)
        raise click.UsageError(f"no document {name[:60]!r}; there are {known}")
