"""`ammrank nightly`: ingest, build features, train when due, score, report, publish."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import click

from ammrank_dask.storage.errors import HeldBack
from ammrank_dask.storage.site.site import Site
from ammrank_dask.workflows.session.config import load_config
from ammrank_dask.workflows.session.notify import announce
from ammrank_dask.workflows.session.options import (
    AmmrankCommand,
    computing_options,
    nights_options,
    show,
    site_argument,
)
from ammrank_dask.workflows.session.session import open_session
from ammrank_dask.workflows.stages.dry_run import plan_night
from ammrank_dask.workflows.stages.nightly import run_night
from ammrank_dask.workflows.stages.nights import INDEX, keep_metrics
from ammrank_dask.workflows.stages.publishing import describe_outcome


@click.command("nightly", cls=AmmrankCommand)
@site_argument
@nights_options
@click.option("--rebuild", is_flag=True, help="Count everything again from the lake.")
@click.option("--dry-run", is_flag=True, help="Print what the night would do, without a cluster; nothing is written.")
@computing_options
def command(
    site: Path, dates: list[dt.date], rebuild: bool, dry_run: bool, cluster: str | None, as_json: bool, quiet: bool
) -> None:
    """Run a night, or several: ingest, features, training when due, scoring, report, publish."""
    if dry_run:
        if len(dates) > 1 or rebuild:
            raise click.UsageError("--dry-run is of one night, and not of a rebuild; give --date alone")
        show(plan_night(Site(site), load_config(Site(site).config_path), dates[0]), as_json)
        return
    with (
        keep_metrics(site, dates[0]) as ended,
        announce(site, dates[0]) as facts,
        open_session(site, cluster=cluster, as_json=as_json, quiet=quiet) as job,
    ):
        for date in dates:
            facts.clear()  # what is shown and announced is of one night, the last
            facts["date"] = ended["date"] = str(date)
            try:
                facts |= {**run_night(job, date, rebuild=rebuild), "nights": len(dates)}
            except HeldBack as held:
                show(dict(held.outcome) if as_json else describe_outcome(held.outcome), as_json)
                raise
    facts["start_page"] = str(site / INDEX)
    show(facts if as_json else describe_outcome(facts), as_json)


if __name__ == "__main__":
    command()
