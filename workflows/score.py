"""`ammrank score`: write for every user the categories they qualify for."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import click

from ammrank_dask.features import open_features
from ammrank_dask.tasks import Progress, silent
from storage.errors import BadInput
from storage.files import digest_of, read_json, rename_folder
from storage.parts import list_checksums
from storage.runs import MANIFEST, Run, finish_run, is_finished, open_run
from storage.site import Site
from workflows.config import Config, load_config
from workflows.features import score_features
from workflows.ingest import ingest
from workflows.options import (
    AmmrankCommand,
    computing_options,
    date_option,
    progress_for,
    show,
    site_argument,
)
from workflows.train import MODEL_KIND, MODEL_NAME

QUALIFICATIONS_KIND = "qualifications"


def score_users(
    client: Any,
    site: Site,
    config: Config,
    date: dt.date,
    features: Run,
    model: Run,
    *,
    progress: Progress = silent,
) -> Run:
    """Write the qualifications of a night under a hidden name and give them their date when they are whole."""
    from ammrank_dask.scoring import score

    digest = digest_of([features.digest, model.digest, config.score.k])
    final = site.qualifications_folder(date)
    if is_finished(final):
        published = open_run(final, QUALIFICATIONS_KIND)
        if published.digest == digest:
            return published
        raise BadInput(
            f"the qualifications of {date} were written from other input; remove {final} to write them again"
        )
    building = final.with_name(f".building-{final.name}-{digest}")
    model_path = model.path / MODEL_NAME
    quals = score(client, model_path, open_features(features.path), building, k=config.score.k, progress=progress)
    counts = quals.counts
    facts = {
        "users": counts.n_users,
        "cold_users": counts.cold_users,
        "exposure": counts.exposure.tolist(),
        "categories_per_user": counts.categories_per_user.tolist(),
    }
    finish_run(
        building,
        QUALIFICATIONS_KIND,
        digest,
        0,
        config={"date": str(date), "k": config.score.k},
        inputs={"features": features.digest, "model": model.digest},
        facts=facts,
        files=list_checksums(building, leave_out=[MANIFEST]),
    )
    rename_folder(building, final)
    return open_run(final, QUALIFICATIONS_KIND)


def latest_model(site: Site, date: dt.date) -> Run:
    """Return the newest model that is not younger than a date."""
    models = [open_run(path, MODEL_KIND) for path in site.finished_runs("models")]
    usable = [run for run in models if run.manifest["config"]["date"] <= str(date)]
    if not usable:
        raise BadInput(f"{site.path} has no model up to {date}; run `ammrank train {site.path} --date {date}` first")
    return max(usable, key=lambda run: run.manifest["config"]["date"])


@click.command("score", cls=AmmrankCommand)
@site_argument
@date_option
@computing_options
def command(site: Path, date: dt.date, cluster: str | None, as_json: bool, quiet: bool) -> None:
    """Write for every user the categories they qualify for at the end of a date."""
    from workflows.cluster import open_cluster

    place = Site(site)
    config = load_config(place.config_path)
    with (
        place.exclusive(),
        open_cluster(cluster, site, quiet) as client,
        progress_for(quiet, as_json) as progress,
    ):
        model = latest_model(place, date)
        known = ingest(client, place, config, date, progress=progress)
        features = score_features(client, place, config, known, progress=progress)
        run = score_users(client, place, config, date, features, model, progress=progress)
    facts = read_json(run.path / MANIFEST)["facts"]
    shown = {"users": facts["users"], "cold users": facts["cold_users"], "qualifications": str(run.path)}
    show({"date": str(date), **shown}, as_json)


if __name__ == "__main__":
    command()
