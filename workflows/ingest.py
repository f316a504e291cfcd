"""`ammrank ingest`: bring the interest state of a site up to a date."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import click

from ammrank_dask.workflows.session.options import (
    AmmrankCommand,
    computing_options,
    date_option,
    show,
    site_argument,
)
from ammrank_dask.workflows.session.session import open_session
from ammrank_dask.workflows.stages.ingest import describe_ingested, ingest
from ammrank_dask.workflows.stages.publishing import INPUT_FOLDERS, prune


@click.command("ingest", cls=AmmrankCommand)
@site_argument
@date_option
@click.option("--rebuild", is_flag=True, help="Count everything again from the lake.")
@click.option("--forget-history", is_flag=True, help="With --rebuild: lose the days that the lake no longer has.")
@computing_options
def command(
    site: Path, date: dt.date, rebuild: bool, forget_history: bool, cluster: str | None, as_json: bool, quiet: bool
) -> None:
    """Update the interest state to a date.

    The days that are new or changed are ingested and folded; nothing else of the history is read.
    """
    if forget_history and not rebuild:
        raise click.UsageError("--forget-history needs --rebuild")
    with open_session(site, cluster=cluster, as_json=as_json, quiet=quiet) as job:
        ingested = ingest(job.night(date), rebuild=rebuild, forget_history=forget_history)
        published = job.site.publish(date, ingested.roles)
        prune(job.site, job.config, date, ingested.roles.values(), INPUT_FOLDERS)
    show({**describe_ingested(ingested), "published": published}, as_json)


if __name__ == "__main__":
    command()
