"""`ammrank score`: write for every user the categories they qualify for."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import click

from ammrank_dask.storage.errors import BadInput, shell_word
from ammrank_dask.storage.store.manifests import QualificationsManifest
from ammrank_dask.workflows.session.options import (
    AmmrankCommand,
    computing_options,
    date_option,
    show,
    site_argument,
)
from ammrank_dask.workflows.session.session import open_session
from ammrank_dask.workflows.stages.chances import chances_of_night, require_chances
from ammrank_dask.workflows.stages.features import score_features
from ammrank_dask.workflows.stages.ingest import ingest
from ammrank_dask.workflows.stages.models import bring_to_night, find_model
from ammrank_dask.workflows.stages.score import score_users


@click.command("score", cls=AmmrankCommand)
@site_argument
@date_option
@click.option("--rebuild", is_flag=True, help="Write lists again that are damaged or from other input.")
@computing_options
def command(site: Path, date: dt.date, rebuild: bool, cluster: str | None, as_json: bool, quiet: bool) -> None:
    """Write the list of every user at the end of a date."""
    with open_session(site, cluster=cluster, as_json=as_json, quiet=quiet) as job:
        model = find_model(job.site, date)
        if model is None:
            raise BadInput(
                f"{site} has no model up to {date}; run `ammrank train {shell_word(site)} --date {date}` first"
            )
        night = job.night(date)
        ingested = ingest(night)
        model = bring_to_night(night, model, ingested.taxonomy)
        features = score_features(night, ingested)
        chances, said = chances_of_night(night, ingested, features, model, rebuild=rebuild)
        require_chances(night, chances, said)
        run = score_users(night, ingested, features, model, chances, rebuild=rebuild)
    manifest = QualificationsManifest.of(run)
    printed = {"users": manifest.n_users, "cold users": manifest.cold_users, "qualifications": str(run.path)}
    show({"date": str(date), **printed}, as_json)


if __name__ == "__main__":
    command()
