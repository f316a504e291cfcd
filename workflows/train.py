"""`ammrank train`: learn to rank the categories from the features and clicks of a site."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import click

from ammrank_dask.model.search import Tuning
from ammrank_dask.storage.store.manifests import ModelManifest
from ammrank_dask.workflows.session.options import (
    AmmrankCommand,
    computing_options,
    date_option,
    show,
    site_argument,
)
from ammrank_dask.workflows.session.session import open_session
from ammrank_dask.workflows.stages.features import training_features, write_windows
from ammrank_dask.workflows.stages.ingest import ingest
from ammrank_dask.workflows.stages.models import find_champion
from ammrank_dask.workflows.stages.train import require_history, train_model


@click.command("train", cls=AmmrankCommand)
@site_argument
@date_option
@click.option(
    "--tune",
    "tune_first",
    is_flag=True,
    help="First choose kappa and clickers_per_plane by the lists of models without the last label window, against the"
    " clicks in it. With one window, and for amm-rank (regularization and max_planes), held-out users choose.",
)
@computing_options
def command(site: Path, date: dt.date, tune_first: bool, cluster: str | None, as_json: bool, quiet: bool) -> None:
    """Train a model on the users who clicked in the label window that ends with a date."""
    with open_session(site, cluster=cluster, as_json=as_json, quiet=quiet) as job:
        night = job.night(date)
        ingested = ingest(night)
        require_history(job.config, ingested)
        write_windows(night, ingested)
        features = training_features(night, ingested)
        start = find_champion(job.site, date)
        run = train_model(night, ingested, features, start=start, tune_first=tune_first)
    manifest = ModelManifest.of(run)
    training, tuning = manifest.training or {}, manifest.tuning
    printed: dict[str, Any] = {"date": str(date), "users": manifest.n_users, "planes": manifest.n_planes}
    printed["published"] = f"{training['published']} model"
    printed["validation error"] = training["validation_error"]
    printed["popularity error"] = training.get("popularity_error")
    if tuning is not None:
        if as_json:
            printed["tuning"] = tuning["trials"]
        else:
            click.echo(Tuning.from_json(tuning).to_text())
        best = {f"train.{name}": value for name, value in tuning["best"].items()}
        printed |= best
        printed["next"] = f"set {' and '.join(best)} in {job.site.config_path}: later nights train with what is set"
    show({**printed, "model": str(run.path)}, as_json)


if __name__ == "__main__":
    command()
