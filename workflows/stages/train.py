"""Learn to rank the categories from the features and clicks of a site."""

from __future__ import annotations

import logging

from ammrank_dask.features.store import open_features
from ammrank_dask.model.amm_rank_plus import AMMRankPlus
from ammrank_dask.model.saved import RankModel
from ammrank_dask.model.search import Tuning
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.objects.atomic import digest_of
from ammrank_dask.storage.store.manifests import ModelManifest
from ammrank_dask.storage.store.runs import Run, is_finished, open_run
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.features import earlier_windows, renames_since, score_features, users_left_out
from ammrank_dask.workflows.stages.forward import tune_forward
from ammrank_dask.workflows.stages.ingest import Ingested
from ammrank_dask.workflows.stages.models import (
    MODEL_KIND,
    has_same_values,
    keep_model,
    load_site_model,
    model_date,
    model_identity,
)

logger = logging.getLogger(__name__)


def too_little_history(config: Config, n_days: int) -> str | None:
    """Return why the site cannot train yet on so many days, None when it can."""
    if n_days - config.label.days < max(1, config.features.min_days):
        return (
            f"{n_days} days of events are too few to train: label.days {config.label.days} and"
            f" features.min_days {config.features.min_days} before them are needed"
        )
    return None


def require_history(config: Config, ingested: Ingested) -> None:
    """Refuse to train before there are enough days."""
    reason = too_little_history(config, len(ingested.history))
    if reason is not None:
        raise BadInput(reason)


def train_model(
    night: Night, ingested: Ingested, features: Run, *, start: Run | None = None, tune_first: bool = False
) -> Run:
    """Train on the labelled users of the last label window and of those before it, and keep the model as a run.

    `features` are those at the lag date, with the clicks since.

    It begins with the planes of the model `start`, if `train.warm_start` allows and they rank a category in common.
    With `tune_first` it begins with no planes. κ and the clickers of a plane are chosen by the lists in the last label
    window, of models that end before. Where no earlier window is kept, and for amm-rank, whose λ and limit of planes
    are chosen, validation users of that window choose.
    """
    from ammrank_dask.training.new_categories import score_by_siblings
    from ammrank_dask.training.train import train

    site, config = night.site, night.config
    earlier, tonight = earlier_windows(night, ingested), score_features(night, ingested)
    tuning: Tuning | None = None
    if tune_first:
        tuning = tune_forward(night, ingested, features, earlier) if earlier else _tune_model(night, features)
    parameters = config.train.parameters() | ({} if tuning is None else tuning.best)
    first = _model_to_start_from(config, ingested, start) if tuning is None else None
    unclicked = [] if start is None else ModelManifest.of(start).new_categories
    begun_with = None if start is None or first is None else start.digest
    renames = renames_since(earlier, ingested)
    windows = [[run.digest, run.checksums] for run in earlier]
    digest = digest_of(
        [features.digest, windows, tonight.digest, parameters, begun_with, *([unclicked] if unclicked else []),
         *([renames] if renames else [])]
    )  # fmt: skip
    path = site.run("models", ingested.date, digest)
    if is_finished(path):
        return open_run(path, MODEL_KIND)
    model = train(
        open_features(features.path), client=night.client, earlier=[open_features(run.path) for run in earlier],
        tonight=open_features(tonight.path), renames=renames, left_out=users_left_out(night, ingested),
        start=first, scratch=site.scratch, progress=night.progress, **parameters,
    )  # fmt: skip
    clicked = dict(zip(ingested.taxonomy.categories, model.popularity_.tolist(), strict=True))
    unclicked = [name for name in unclicked if not clicked.get(name)]
    model = score_by_siblings(model, unclicked, {name: ingested.taxonomy.siblings_of(name) for name in unclicked})
    return keep_model(
        site,
        path,
        digest,
        model,
        config={
            "date": str(night.date),
            **model_identity(config, ingested.taxonomy),
            **parameters,
        },
        inputs={"features": features.digest, "start": begun_with},
        counts={
            "users": features.n_rows,
            "windows": 1 + len(earlier),
            "rows": features.n_rows + sum(run.n_rows for run in earlier),
            "planes": int(model.n_planes_.sum()),
            "training": model.training_,
            "tuning": None if tuning is None else tuning.to_json(),
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


def _tune_model(night: Night, features: Run) -> Tuning:
    from ammrank_dask.training.tune import tune

    names = ["model", "shards", "epochs", "n_clusterings", "seed", "variant"]
    if night.config.train.model == AMMRankPlus.method:
        names.append("max_planes")
    given = night.config.train.parameters()
    options = {name: given[name] for name in names if name in given}
    opened = open_features(features.path)
    return tune(opened, client=night.client, scratch=night.site.scratch, progress=night.progress, **options)
