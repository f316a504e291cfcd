"""`ammrank train`: learn to rank the categories from the features and clicks of a site."""

from __future__ import annotations

import datetime as dt
import shutil
from pathlib import Path
from typing import Any

import click

from ammrank_dask.features import open_features
from ammrank_dask.tasks import Progress, silent
from storage.errors import BadInput
from storage.files import digest_of
from storage.parts import list_checksums
from storage.runs import Run, finish_run, is_finished, open_run
from storage.site import Site
from storage.verdicts import rejected_models
from workflows.config import Config
from workflows.features import training_features
from workflows.ingest import Ingested, ingest
from workflows.mapping import feature_settings
from workflows.options import (
    AmmrankCommand,
    computing_options,
    date_option,
    show,
    site_argument,
)
from workflows.session import open_session

MODEL_KIND, MODEL_NAME = "model", "model.zarr"


def too_little_history(config: Config, known: Ingested) -> str | None:
    """Return why the site cannot train yet, None when it can."""
    before = len(known.history) - config.label.days
    if before < max(1, config.features.min_days):
        return (
            f"{len(known.history)} days of events are too few to train: label.days {config.label.days} and"
            f" features.min_days {config.features.min_days} before them are needed"
        )
    return None


def find_model(site: Site, date: dt.date, *, with_rejected: bool = False) -> Run | None:
    """Return the newest model that is not younger than a date, and that the gate did not turn down."""
    models = [open_run(path, MODEL_KIND) for path in site.finished_runs("models")]
    left_out = set() if with_rejected else rejected_models(site)
    usable = [run for run in models if run.manifest["config"]["date"] <= str(date) and run.digest not in left_out]
    return max(usable, key=lambda run: run.manifest["config"]["date"], default=None)


def is_due(model: Run | None, config: Config, known: Ingested) -> bool:
    """Tell whether there is no model, or it is `train.every_nights` old or of other features."""
    if model is None:
        return True
    trained = model.manifest["config"]
    if trained["columns"] != feature_settings(config, known.taxonomy).columns.digest:
        return True
    return (known.date - dt.date.fromisoformat(trained["date"])).days >= config.train.every_nights


def train_model(client: Any, site: Site, config: Config, known: Ingested, *, progress: Progress = silent) -> Run:
    """Train on the labelled users at the lag date and keep the model as a run."""
    from ammrank_dask.training import train

    reason = too_little_history(config, known)
    if reason is not None:
        raise BadInput(reason)
    features = training_features(client, site, config, known, progress=progress)
    parameters = config.train.model_dump(exclude={"every_nights"})
    digest = digest_of([features.digest, parameters])
    path = site.run("models", known.date, digest)
    if is_finished(path):
        return open_run(path, MODEL_KIND)
    shutil.rmtree(path, ignore_errors=True)
    model = train(client, open_features(features.path), scratch=site.scratch, progress=progress, **parameters)
    model.save(path / MODEL_NAME)
    return finish_run(
        path,
        MODEL_KIND,
        digest,
        0,
        config={
            "date": str(known.date),
            "columns": feature_settings(config, known.taxonomy).columns.digest,
            **parameters,
        },
        inputs={"features": features.digest},
        facts={"users": features.n_rows, "planes": int(model.n_planes_.sum())},
        files=list_checksums(path),
    )


@click.command("train", cls=AmmrankCommand)
@site_argument
@date_option
@computing_options
def command(site: Path, date: dt.date, cluster: str | None, as_json: bool, quiet: bool) -> None:
    """Train a model on the users who clicked in the label window that ends with a date."""
    with open_session(site, cluster=cluster, as_json=as_json, quiet=quiet) as job:
        known = ingest(job.client, job.site, job.config, date, progress=job.progress)
        run = train_model(job.client, job.site, job.config, known, progress=job.progress)
    show({"date": str(date), **run.manifest["facts"], "model": str(run.path)}, as_json)


if __name__ == "__main__":
    command()
