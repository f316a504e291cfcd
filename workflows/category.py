"""`ammrank category`: one category over the kept nights."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ammrank_dask.report.site_page import render_category_page
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.objects.atomic import write_private
from ammrank_dask.storage.site.site import Site
from ammrank_dask.workflows.session.options import AmmrankCommand, LocalPath, show, show_table, site_argument
from ammrank_dask.workflows.stages.category_history import (
    category_history,
    category_lines,
    category_table,
    describe_newest,
)


@click.command("category", cls=AmmrankCommand)
@site_argument
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
@click.option(
    "--html", type=LocalPath(dir_okay=False, path_type=Path), help="Write a page with charts to this file.",
)  # fmt: skip
def command(site: Path, name: str, as_json: bool, html: Path | None) -> None:
    """Show one category over the kept nights: exposure, click share, ratio, ranks, click probability."""
    if html is not None and as_json:
        raise click.UsageError("give --html or --json, not both")
    place = Site(site)
    if not place.config_path.is_file():
        raise BadInput(f"there is no site at {site}: it has no ammrank.yaml; check the path")
    history = category_history(place, name)
    if html is not None:
        write_private(html, render_category_page(name, history))
        click.echo(f"page  {html}")
        return
    if as_json:
        click.echo(json.dumps({"category": name, "nights": history}, sort_keys=True, ensure_ascii=False))
        return
    show_table(*category_table(history))
    for line in category_lines(history):
        click.echo(line)
    show(describe_newest(history), as_json)


if __name__ == "__main__":
    command()
