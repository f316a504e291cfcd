"""Learn to rank the categories from the features and clicks of a site."""

from __future__ import annotations

import logging
import shutil

from ammrank_dask.features.store import open_features
from ammrank_dask.model.amm_rank_plus import AMMRankPlus
from ammrank_dask.model.halving import Tuning
from ammrank_dask.model.saved import RankModel
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.store.atomic import digest_of
from ammrank_dask.storage.store.manifests import ModelManifest
from ammrank_dask.storage.store.runs import Run, finish_run, is_finished, open_run
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.choice import (
    BY_HAND,
    FIT,
    Choice,
    add_fit,
    choice_of,
    choose_parameters,
    describe_tuning,
    is_chosen,
    training_parameters,
)
from ammrank_dask.workflows.stages.ingest import Ingested
from ammrank_dask.workflows.stages.models import (
    MODEL_KIND,
    has_same_values,
    load_site_model,
    model_date,
    model_identity,
)

logger = logging.getLogger(__name__)


def too_little_history(config: Config, ingested: Ingested) -> str | None:
    """Return why the site cannot train yet, None when it can."""
    before = len(ingested.history) - config.label.days
    if before < max(1, config.features.min_days):
        return (
            f"{len(ingested.history)} days of events are too few to train: label.days {config.label.days} and"
            f" features.min_days {config.features.min_days} before them are needed"
        )
    return None


def require_history(config: Config, ingested: Ingested) -> None:
    """Refuse to train before there are enough days."""
    reason = too_little_history(config, ingested)
    if reason is not None:
        raise BadInput(reason)


def train_model(
    night: Night, ingested: Ingested, features: Run, *, start: Run | None = None, tune_first: bool = False
) -> Run:
    """Train on the features of the labelled users at the lag date and keep the model as a run.

    It begins with the planes of the model `start`, if `train.warm_start` allows and they rank a category in common.
    What the config leaves open is chosen as `choose_parameters` says; with `tune_first`, λ or κ, the limit of planes
    and the fit are chosen anew. After a new choice it begins with no planes.
    """
    from ammrank_dask.training.new_categories import score_by_siblings
    from ammrank_dask.training.train import train

    site, config = night.site, night.config
    tuning = _tune_model(night, features) if tune_first else None
    choice = choose_parameters(night, features, start) if tuning is None else _choice_by_hand(night, features, tuning)
    parameters = training_parameters(config, choice)
    is_new = choice is not None and choice.changes_model(night.date)
    first = None if is_new else _model_to_start_from(config, ingested, start)
    unclicked = [] if start is None else ModelManifest.of(start).new_categories
    begun_with = None if start is None or first is None else start.digest
    digest = digest_of([features.digest, parameters, begun_with, *([unclicked] if unclicked else [])])
    path = site.run("models", ingested.date, digest)
    if is_finished(path):
        return open_run(path, MODEL_KIND)
    shutil.rmtree(path, ignore_errors=True)
    model = train(
        night.client,
        open_features(features.path),
        start=first,
        scratch=site.scratch,
        progress=night.progress,
        **parameters,
    )
    clicked = dict(zip(ingested.taxonomy.categories, model.popularity_.tolist(), strict=True))
    unclicked = [name for name in unclicked if not clicked.get(name)]
    model = score_by_siblings(model, unclicked, {name: ingested.taxonomy.siblings_of(name) for name in unclicked})
    model.save(path)
    return finish_run(
        path,
        MODEL_KIND,
        digest,
        1,
        config={
            "date": str(night.date),
            **model_identity(config, ingested.taxonomy),
            **parameters,
        },
        inputs={"features": features.digest, "start": begun_with},
        counts={
            "users": features.n_rows,
            "planes": int(model.n_planes_.sum()),
            "training": model.training_,
            "tuning": None if tuning is None else describe_tuning(tuning),
            "choice": None if choice is None else choice.to_json(),
            **({"new_categories": unclicked} if unclicked else {}),
        },
    )


def _model_to_start_from(config: Config, ingested: Ingested, start: Run | None) -> RankModel | None:
    """Return the model of a run, None when it is not wanted, of other features or has no category in common."""
    if start is None or not config.train.warm_start or ModelManifest.of(start).simple is not None:
        return None
    if not has_same_values(start, config, ingested.taxonomy):
        logger.warning("the model of %s is of other features; training begins without it", model_date(start))
        return None
    model = load_site_model(start)
    if model.method != config.train.model:
        logger.info("the model of %s is of %s; training begins without it", model_date(start), model.method)
        return None
    if not set(model.categories_ or ()) & set(ingested.taxonomy.categories):
        logger.warning("the model of %s ranks other categories; training begins without it", model_date(start))
        return None
    return model


def _choice_by_hand(night: Night, features: Run, tuning: Tuning) -> Choice:
    choice = choice_of(tuning, night.date, BY_HAND)
    return add_fit(night, features, choice, None) if is_chosen(night.config, FIT) else choice


def _tune_model(night: Night, features: Run) -> Tuning:
    from ammrank_dask.training.tune import tune

    names = ["model", "shards", "block_rows", "epochs", "rank_weight", "n_clusterings", "seed", "variant"]
    if night.config.train.model == AMMRankPlus.method:
        names.append("max_planes")
    given = night.config.train.parameters()
    options = {name: given[name] for name in names if name in given}
    opened = open_features(features.path)
    return tune(night.client, opened, scratch=night.site.scratch, progress=night.progress, **options)
