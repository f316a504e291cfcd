"""`ammrank nights`: the nights of a site as a table."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.site.site import Site
from ammrank_dask.workflows.session.options import AmmrankCommand, show_table, site_argument
from ammrank_dask.workflows.stages.nights import describe_night, night_table, read_nights


@click.command("nights", cls=AmmrankCommand)
@site_argument
@click.option("--last", type=click.IntRange(min=1), help="Number of nights, the newest.  [default: all that are kept]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(site: Path, last: int | None, as_json: bool) -> None:
    """List the nights of a site: status, users, hits, error, starved categories, seconds."""
    place = Site(site)
    if not place.config_path.is_file():
        raise BadInput(f"there is no site at {site}: it has no ammrank.yaml; check the path")
    nights = read_nights(place)[-last if last else None :]
    if as_json:
        click.echo(json.dumps({"nights": [describe_night(night) for night in nights]}, sort_keys=True))
    elif nights:
        show_table(*night_table(nights), n_left=2)
    else:
        click.echo("no night has been run yet")


if __name__ == "__main__":
    command()
