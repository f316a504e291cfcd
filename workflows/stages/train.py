"""Learn to rank the categories from the features and clicks of a site."""

from __future__ import annotations

import logging
import shutil
from typing import Any

from ammrank_dask.features.store import open_features
from ammrank_dask.model.halving import Tuning
from ammrank_dask.model.saved import RankModel
from ammrank_dask.storage.errors import BadInput, TooFewUsers
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.atomic import digest_of
from ammrank_dask.storage.store.runs import Run, finish_run, is_finished, open_run
from ammrank_dask.tasks import Progress, silent
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.stages.features import plan_training_features, training_features
from ammrank_dask.workflows.stages.ingest import Ingested
from ammrank_dask.workflows.stages.models import (
    MODEL_KIND,
    has_same_values,
    load_site_model,
    model_date,
    model_identity,
)

logger = logging.getLogger(__name__)


def too_little_history(config: Config, known: Ingested) -> str | None:
    """Return why the site cannot train yet, None when it can."""
    before = len(known.history) - config.label.days
    if before < max(1, config.features.min_days):
        return (
            f"{len(known.history)} days of events are too few to train: label.days {config.label.days} and"
            f" features.min_days {config.features.min_days} before them are needed"
        )
    return None


def train_if_possible(
    client: Any, site: Site, config: Config, known: Ingested, start: Run | None, *, progress: Progress = silent
) -> tuple[Run | None, str | None]:
    """Train as `train_model` does; with too few users who clicked return no model, and a sentence instead."""
    try:
        return train_model(client, site, config, known, start=start, progress=progress), None
    except TooFewUsers as error:
        logger.warning("nothing is trained: %s", error)
        return None, str(error)


def train_model(
    client: Any,
    site: Site,
    config: Config,
    known: Ingested,
    *,
    start: Run | None = None,
    tunes: bool = False,
    progress: Progress = silent,
) -> Run:
    """Train on the labelled users at the lag date and keep the model as a run.

    It begins with the planes of the model `start`, if `train.warm_start` allows and they rank a category in common.
    With `tunes`, λ and the limit of planes are chosen first, and it begins with none.
    """
    from ammrank_dask.training.train import train

    reason = too_little_history(config, known)
    if reason is not None:
        raise BadInput(reason)
    planned = plan_training_features(site, config, known)
    parameters = config.train.model_dump(exclude={"every_nights", "warm_start"})
    tuning = None
    if tunes:
        features = training_features(client, site, config, known, progress=progress)
        tuning = _tune(client, site, config, features, progress)
        parameters |= tuning.best
    first = None if tunes else _model_to_start_from(config, known, start)
    digest = digest_of([planned.digest, parameters, None if start is None or first is None else start.digest])
    path = site.run("models", known.date, digest)
    if is_finished(path):
        return open_run(path, MODEL_KIND)
    features = training_features(client, site, config, known, progress=progress)
    shutil.rmtree(path, ignore_errors=True)
    model = train(
        client,
        open_features(features.path),
        start=first,
        scratch=site.scratch,
        progress=progress,
        **parameters,
    )
    model.save(path)
    return finish_run(
        path,
        MODEL_KIND,
        digest,
        1,
        config={
            "date": str(known.date),
            **model_identity(config, known.taxonomy),
            **parameters,
        },
        inputs={"features": features.digest, "start": None if start is None or first is None else start.digest},
        facts={
            "users": features.n_rows,
            "planes": int(model.n_planes_.sum()),
            "training": model.training_,
            "tuning": None
            if tuning is None
            else {"best": tuning.best, "trials": tuning.to_json(), "popularity": tuning.popularity},
        },
    )


def _model_to_start_from(config: Config, known: Ingested, start: Run | None) -> RankModel | None:
    """Return the model of a run, None when it is not wanted, of other features or has no category in common."""
    if start is None or not config.train.warm_start:
        return None
    if not has_same_values(start, config, known.taxonomy):
        logger.warning("the model of %s is of other features; training begins without it", model_date(start))
        return None
    model = load_site_model(start)
    if not set(model.categories_ or ()) & set(known.taxonomy.categories):
        logger.warning("the model of %s ranks other categories; training begins without it", model_date(start))
        return None
    return model


def _tune(client: Any, site: Site, config: Config, features: Run, progress: Progress) -> Tuning:
    from ammrank_dask.training.tune import tune

    chosen = {"shards", "block_rows", "epochs", "rank_weight", "seed", "variant"}
    options = config.train.model_dump(include=chosen)
    return tune(client, open_features(features.path), scratch=site.scratch, progress=progress, **options)
