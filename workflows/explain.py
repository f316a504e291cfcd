"""`ammrank explain`: show why a user got their categories."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import TextIO

import click

from ammrank_dask.report.explain_page import render_explanation
from ammrank_dask.storage.objects.atomic import write_private
from ammrank_dask.storage.site.site import Site
from ammrank_dask.workflows.operations.explain import describe_explanation, explain_user, first_user, read_one_id
from ammrank_dask.workflows.session.options import DATE, AmmrankCommand, LocalPath, site_argument


@click.command("explain", cls=AmmrankCommand)
@site_argument
@click.option("--user", help="The user's id.")
@click.option(
    "--user-file",
    type=click.File(encoding="utf-8"),
    help="File with the id, - for stdin; keeps the id out of process lists.",
)
@click.option("--any", "is_any", is_flag=True, help="The first user who has a list, without showing the id.")
@click.option("--date", type=DATE, help="The night.  [default: the published one]")
@click.option("-k", "--k", type=click.IntRange(min=1), help="Number of categories.  [default: all of the user]")
@click.option(
    "--features",
    "n_features",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Features per category, besides the user's own events in it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
@click.option(
    "--html", "html", type=LocalPath(dir_okay=False, path_type=Path),
    help="Write a page with bars to this file, which only you can read, instead of text.",
)  # fmt: skip
@click.option("--show-id", is_flag=True, help="Write the user's id on the page.")
def command(
    site: Path,
    user: str | None,
    user_file: TextIO | None,
    is_any: bool,
    date: dt.date | None,
    k: int | None,
    n_features: int,
    as_json: bool,
    html: Path | None,
    show_id: bool,
) -> None:
    """Show why a user got their categories: each score as a sum of its causes."""
    if (user is not None) + (user_file is not None) + is_any != 1:
        raise click.UsageError("give the user's id with --user, a file that has it with --user-file, or --any")
    if (show_id and html is None) or (html is not None and as_json):
        raise click.UsageError("--html is without --json, and --show-id is for --html only")
    if user is None:
        user = first_user(Site(site), date) if user_file is None else read_one_id(user_file)
    found = explain_user(Site(site), date, user, k=k, n_features=n_features)
    if html is not None:
        write_private(html.resolve(), render_explanation(found, user if show_id else None))
        click.echo(f"page  {html}")
        return
    if as_json:
        click.echo(json.dumps(found, sort_keys=True, ensure_ascii=False))
        return
    click.echo("\n".join(describe_explanation(found)))


if __name__ == "__main__":
    command()
