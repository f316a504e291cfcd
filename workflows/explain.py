"""`ammrank explain`: say why a user got their categories."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import TextIO

import click

from ammrank_dask.storage.site.site import Site
from ammrank_dask.workflows.session.options import DATE, AmmrankCommand, site_argument
from ammrank_dask.workflows.stages.explain import describe_entry, explain_user, read_one_id


@click.command("explain", cls=AmmrankCommand)
@site_argument
@click.option("--user", help="The user's id.")
@click.option(
    "--user-file",
    type=click.File(encoding="utf-8"),
    help="A file with the id, - for stdin: not seen in lists of processes.",
)
@click.option("--date", type=DATE, help="The night.  [default: the published one]")
@click.option("-k", "--k", type=click.IntRange(min=1), help="So many categories.  [default: all of the user]")
@click.option(
    "--features", "n_features", type=click.IntRange(min=1), default=5, show_default=True, help="Features a category."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(
    site: Path,
    user: str | None,
    user_file: TextIO | None,
    date: dt.date | None,
    k: int | None,
    n_features: int,
    as_json: bool,
) -> None:
    """Say why a user got their categories: scores, winning planes, and the features that carried them."""
    if (user is None) == (user_file is None):
        raise click.UsageError("give the user's id with --user, or a file that has it with --user-file")
    user = read_one_id(user_file) if user_file is not None else str(user)
    found = explain_user(Site(site), date, user, k=k, n_features=n_features)
    if as_json:
        click.echo(json.dumps(found, sort_keys=True, ensure_ascii=False))
        return
    click.echo(f"night of {found['date']}, {found['policy']}, model of {found['model']}")
    if not found["categories"]:
        click.echo("the user holds no category")
    for entry in found["categories"]:
        click.echo("")
        for line in describe_entry(entry):
            click.echo(line)


if __name__ == "__main__":
    command()
