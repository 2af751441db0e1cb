"""``parallelsim doctor``: whether this installation works, and what to do where it does not."""

from __future__ import annotations

import click

from parallelsim.cli_options import json_option


@click.command()
@json_option
def doctor(as_json: bool) -> int:
    """Check the installation: packages, terminal, folders, catalogue, and one simulated plan.

    Exits with 1 where something is broken. Notes say what you may miss.
    """
    from parallelsim.doctor import checks

    found = []
    for check in checks():
        found.append(check)
        if not as_json:
            advice = f"; {check.advice}" if check.advice else ""
            click.echo(f"{check.status:6s} {check.name}: {check.found}{advice}")
    broken = sum(check.status == "broken" for check in found)
    if as_json:
        from dataclasses import asdict

        from parallelsim.report.documents import json_text

        click.echo(json_text("doctor", {"checks": [asdict(check) for check in found]}))
    else:
        click.echo(f"\n{broken or 'nothing'} broken")
    return 1 if broken else 0
