"""`ammrank compare`: two nights side by side."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import click

from ammrank_dask.storage.site.site import Site
from ammrank_dask.workflows.session.options import DATE, AmmrankCommand, show, show_table, site_argument


@click.command("compare", cls=AmmrankCommand)
@site_argument
@click.argument("first", type=DATE)
@click.argument("second", type=DATE)
@click.option(
    "--categories", "n_shown", type=click.IntRange(min=1), default=10, show_default=True,
    help="Categories to print that gained, and that lost.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with all categories instead of text.")
def command(site: Path, first: dt.date, second: dt.date, n_shown: int, as_json: bool) -> None:
    """Compare two nights and their models: users whose lists changed, measures, and exposure by category."""
    from ammrank_dask.workflows.stages.compare import (
        compare_nights,
        comparison_lines,
        moved_categories,
        table_of_measures,
    )

    compared = compare_nights(Site(site), first, second)
    if as_json:
        click.echo(json.dumps(compared, sort_keys=True, ensure_ascii=False))
        return
    show(comparison_lines(compared), as_json)
    rows = moved_categories(compared, n_shown)
    measures = table_of_measures(compared)
    if measures:
        click.echo("")
        show_table(["night", str(first), str(second)], measures)
    click.echo("")
    if rows:
        show_table(["category", str(first), str(second), "users"], rows)
    else:
        click.echo("every category has as many users as before")


if __name__ == "__main__":
    command()
