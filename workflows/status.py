"""`ammrank status`: what is published, how old it is, and what is missing."""

from __future__ import annotations

from pathlib import Path

import click

from ammrank_dask.storage.errors import AmmrankError, BadInput
from ammrank_dask.storage.objects.folders import is_folder
from ammrank_dask.storage.site.site import Site
from ammrank_dask.workflows.operations.status import describe_for_people, describe_site
from ammrank_dask.workflows.session.config import load_config
from ammrank_dask.workflows.session.options import AmmrankCommand, show, site_argument, yesterday
from ammrank_dask.workflows.stages.nights import site_metrics


@click.command("status", cls=AmmrankCommand)
@site_argument
@click.option("--max-behind", type=click.IntRange(min=0), help="Exit with 1 when more nights than this are missing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
@click.option("--prometheus", is_flag=True, help="Print metrics, as SITE/metrics.prom has them, instead of text.")
def command(site: Path, max_behind: int | None, as_json: bool, prometheus: bool) -> None:
    """Show what is published, how old it is, and what is missing."""
    place = Site(site)
    if not is_folder(place.path):
        raise BadInput(f"there is no site at {site}")
    if as_json and prometheus:
        raise click.UsageError("give --json or --prometheus, not both")
    facts = describe_site(place, load_config(place.config_path), yesterday())
    if prometheus:
        click.echo(site_metrics(place), nl=False)
    else:
        show(facts if as_json else describe_for_people(facts), as_json)
    behind = facts["nights_behind"]
    if max_behind is not None and (behind is None or behind > max_behind):
        found = "nothing is published" if behind is None else f"the published night is {behind} nights old"
        raise AmmrankError(f"{found}, allowed are {max_behind}; see {place.path / 'runs'} for the last attempts")


if __name__ == "__main__":
    command()
