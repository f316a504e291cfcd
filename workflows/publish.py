"""`ammrank publish`: release a night that is on hold."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import click

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.objects.folders import is_folder
from ammrank_dask.storage.site.site import Site
from ammrank_dask.workflows.session.config import load_config
from ammrank_dask.workflows.session.notify import announce
from ammrank_dask.workflows.session.options import AmmrankCommand, date_option, show, site_argument, writes_site
from ammrank_dask.workflows.session.settings import copies_target
from ammrank_dask.workflows.stages.nights import try_site_pages
from ammrank_dask.workflows.stages.publishing import describe_outcome, publish_held
from ammrank_dask.workflows.stages.report import redraw_report


@click.command("publish", cls=AmmrankCommand)
@site_argument
@date_option
@click.option("--anyway", is_flag=True, help="Publish it although checks warn.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
@writes_site
def command(site: Path, date: dt.date, anyway: bool, as_json: bool) -> None:
    """Publish a night that a check of publish.hold put on hold."""
    place = Site(site)
    if not is_folder(place.path):
        raise BadInput(f"there is no site at {site}")
    config = load_config(place.config_path)
    copies_target(place, config)  # refused before ROOT is written
    with announce(site, date) as outcome, place.exclusive():
        outcome |= publish_held(place, config, date, anyway=anyway)
        redraw_report(place, config, date)
        try_site_pages(place)
    show(outcome if as_json else describe_outcome(outcome), as_json)


if __name__ == "__main__":
    command()
