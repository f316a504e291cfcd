"""`ammrank features`: build the features of all users at the end of a date, or those to train on."""

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
from ammrank_dask.workflows.stages.features import score_features, training_features
from ammrank_dask.workflows.stages.ingest import ingest
from ammrank_dask.workflows.stages.publishing import INPUT_FOLDERS, prune


@click.command("features", cls=AmmrankCommand)
@site_argument
@date_option
@click.option(
    "--labels", is_flag=True, help="The training features: at DATE less label.days, with rankings up to DATE."
)
@click.option("--rebuild", is_flag=True, help="Build damaged runs again, and the state from the lake.")
@computing_options
def command(
    site: Path, date: dt.date, labels: bool, rebuild: bool, cluster: str | None, as_json: bool, quiet: bool
) -> None:
    """Build the features of every user at the end of a date."""
    with open_session(site, cluster=cluster, as_json=as_json, quiet=quiet) as job:
        # A day before the published one needs no lag state: nobody trains on it.
        current = None if rebuild else job.site.current()
        with_lag = labels or current is None or date >= current.date
        night = job.night(date)
        ingested = ingest(night, rebuild=rebuild, with_lag=with_lag)
        run = training_features(night, ingested) if labels else score_features(night, ingested)
        roles = {**ingested.roles, "features": run.path}
        published = not labels and job.site.publish(date, roles)
        prune(job.site, job.config, date, roles.values(), (*INPUT_FOLDERS, "features"))
    facts = {"users": run.n_rows, "values": run.nnz, "partitions": run.n_parts, "features": str(run.path)}
    show({"date": str(date), **facts, "published": published}, as_json)


if __name__ == "__main__":
    command()
