"""`ammrank train`: learn to rank the categories from the features and clicks of a site."""

from __future__ import annotations

import datetime as dt
import shutil
from pathlib import Path
from typing import Any

import click

from ammrank_dask.features import open_features
from ammrank_dask.halving import Tuning
from ammrank_dask.ranker import AMMRank
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


def train_model(
    client: Any,
    site: Site,
    config: Config,
    known: Ingested,
    *,
    tunes: bool = False,
    progress: Progress = silent,
) -> Run:
    """Train on the labelled users at the lag date and keep the model as a run.

    With `tunes`, λ and the limit of planes are chosen first, and training begins without an earlier model.
    """
    from ammrank_dask.training import train

    reason = too_little_history(config, known)
    if reason is not None:
        raise BadInput(reason)
    features = training_features(client, site, config, known, progress=progress)
    parameters = config.train.model_dump(exclude={"every_nights", "warm_start"})
    tuning = _tune(client, site, config, features, progress) if tunes else None
    start = find_model(site, known.date - dt.timedelta(days=1)) if config.train.warm_start else None
    if tuning is not None:
        parameters, start = parameters | tuning.best, None
    digest = digest_of([features.digest, parameters, None if start is None else start.digest])
    path = site.run("models", known.date, digest)
    if is_finished(path):
        return open_run(path, MODEL_KIND)
    shutil.rmtree(path, ignore_errors=True)
    model = train(
        client,
        open_features(features.path),
        start=None if start is None else AMMRank.load(start.path / MODEL_NAME),
        scratch=site.scratch,
        progress=progress,
        **parameters,
    )
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
        inputs={"features": features.digest, "start": None if start is None else start.digest},
        facts={
            "users": features.n_rows,
            "planes": int(model.n_planes_.sum()),
            "training": model.training_,
            "tuning": None if tuning is None else {"best": tuning.best, "trials": tuning.to_json()},
        },
        files=list_checksums(path),
    )


def _tune(client: Any, site: Site, config: Config, features: Run, progress: Progress) -> Tuning:
    from ammrank_dask.tuning import tune

    chosen = {"shards", "block_rows", "epochs", "rank_weight", "seed", "variant"}
    options = config.train.model_dump(include=chosen)
    return tune(client, open_features(features.path), scratch=site.scratch, progress=progress, **options)


@click.command("train", cls=AmmrankCommand)
@site_argument
@date_option
@click.option(
    "--tune", "tunes", is_flag=True, help="Choose train.regularization and train.max_planes on held-out users first."
)
@computing_options
def command(site: Path, date: dt.date, tunes: bool, cluster: str | None, as_json: bool, quiet: bool) -> None:
    """Train a model on the users who clicked in the label window that ends with a date."""
    with open_session(site, cluster=cluster, as_json=as_json, quiet=quiet) as job:
        known = ingest(job.client, job.site, job.config, date, progress=job.progress)
        run = train_model(job.client, job.site, job.config, known, tunes=tunes, progress=job.progress)
    facts = run.manifest["facts"]
    shown: dict[str, Any] = {"date": str(date), "users": facts["users"], "planes": facts["planes"]}
    shown["published"] = f"{facts['training']['published']} model"
    shown["validation error"] = facts["training"]["validation_error"]
    if facts["tuning"] is not None:
        if as_json:
            shown["tuning"] = facts["tuning"]["trials"]
        else:
            click.echo(Tuning.from_json(**facts["tuning"]).to_text())
        shown |= {f"train.{name}": value for name, value in facts["tuning"]["best"].items()}
        shown["next"] = f"set these in {job.site.config_path} so that later nights train with them"
    show({**shown, "model": str(run.path)}, as_json)


if __name__ == "__main__":
    command()
