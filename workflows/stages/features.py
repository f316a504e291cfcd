"""Build the features of all users at the end of a date or those to train on, and keep the rows of label windows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ammrank_dask.features.build import FeaturePlan, FeatureSource, build_features
from ammrank_dask.features.eligibility import Eligibility, eligibility_by_name
from ammrank_dask.scoring.learn_chances import count_partitions
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake.paths import digest_lake_file, is_lake_file
from ammrank_dask.storage.lake.people import read_user_list
from ammrank_dask.storage.objects.atomic import digest_of
from ammrank_dask.storage.site.popular_days import popular_around, read_popular_days
from ammrank_dask.storage.store.ids import UserIds, union
from ammrank_dask.storage.store.manifests import FeaturesManifest
from ammrank_dask.storage.store.registry import FEATURES
from ammrank_dask.storage.store.runs import Run, is_finished, open_run, remove_run
from ammrank_dask.storage.vocabulary import CLICK_GROUP
from ammrank_dask.user_hash import partition_of
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.session.settings import feature_settings, lake_path
from ammrank_dask.workflows.stages.ingest import Ingested, choose_digest
from ammrank_dask.workflows.stages.publishing import window_digest, window_path, written_windows

HELD_OUT = ("validation", "gate")
"""The splits of users that never train."""


MIN_USERS = 20
"""Windows with fewer users teach nothing of their month."""


def score_features(night: Night, ingested: Ingested) -> Run:
    """Build the features of every user to be scored, at the end of the ingested date."""
    suppressed, digest = suppressed_users(night, ingested)
    source = FeatureSource(
        ingested.date,
        ingested.head,
        ingested.users,
        night.config.score.users == "all",
        id_kind=ingested.id_kind,
        suppressed=suppressed,
    )
    inputs = {"state": ingested.head.digest, "users": ingested.users.digest if ingested.users else None, **digest}
    plan = _plan(night, ingested, source, inputs, n_before=ingested.n_before)
    night.site.begin([plan.path])
    return build_features(night.client, plan, click_group=CLICK_GROUP, progress=night.progress)


def training_features(night: Night, ingested: Ingested) -> Run:
    """Build the features at the end of the lag date of the users who clicked in the label window after it."""
    plan = _plan_training(night, ingested)
    night.site.begin([plan.path])
    return build_features(
        night.client, plan, click_group=CLICK_GROUP, stage="training_features", progress=night.progress
    )


def _plan_training(night: Night, ingested: Ingested) -> FeaturePlan:
    config = night.config
    eligibility = ranking_eligibility(config, ingested.taxonomy.categories)
    source, inputs = _plan_labelled(
        night, ingested, min_categories=config.label.min_categories, eligibility=eligibility
    )
    excluded = {"exclude_by_group": config.score.exclude_by_group} if eligibility.exclude_by_group else {}
    return _plan(night, ingested, source, {**inputs, **excluded})


def plan_chance_features(night: Night, ingested: Ingested) -> FeaturePlan:
    """Plan the features at the end of the lag date of held-out users, also of those who clicked nothing since.

    They are those of as many partitions as have enough to learn chances from.
    """
    all_users = night.config.score.users == "all"
    source, inputs = _plan_labelled(night, ingested, all_users=all_users, splits=HELD_OUT)
    runs = [source.state, *([source.users] if all_users else [])]
    n_users, n_partitions = max(run.n_rows for run in runs if run is not None), night.config.partitions
    n_sampled = count_partitions(n_users, n_partitions, len(ingested.taxonomy.categories))
    inputs |= {"splits": list(HELD_OUT)}
    if n_sampled < n_partitions:
        source = replace(source, n_sampled=n_sampled)
        inputs |= {"sampled_partitions": n_sampled}
    return _plan(night, ingested, source, inputs)


def _plan_labelled(
    night: Night, ingested: Ingested, *, all_users: bool = False, **options: Any
) -> tuple[FeatureSource, dict[str, Any]]:
    """Return the source of features at the lag date with the clicks of the label window, and what identifies it."""
    config = night.config
    if ingested.lag is None:
        raise BadInput(
            f"the site knows {len(ingested.history)} days, a label window takes {config.label.days} and features some"
            " before it; ingest more days or set label.days"
        )
    lag_date = ingested.date - dt.timedelta(config.label.days)
    window = [(day, digest) for day, digest in ingested.history if day > lag_date]
    suppressed, suppress_digest = suppressed_users(night, ingested)
    source = FeatureSource(
        lag_date,
        ingested.lag,
        ingested.users,
        all_users,
        label_days=tuple((day, ingested.days[day]) for day, _ in window),
        id_kind=ingested.id_kind,
        suppressed=suppressed,
        **options,
    )
    inputs = {
        "state": ingested.lag.digest,
        "users": ingested.users.digest if ingested.users else None,
        "label_days": [[str(day), digest] for day, digest in window],
        **suppress_digest,
    }
    return source, inputs


def suppressed_users(night: Night, ingested: Ingested) -> tuple[dict[int, UserIds], dict[str, str]]:
    """Return the users to leave out, by partition, and what identifies them among the inputs of a run."""
    config = night.config
    if config.score.suppress is None:
        return {}, {}
    path = lake_path(night.site, config.score.suppress)
    if not is_lake_file(path):
        raise BadInput(f"score.suppress must name a file of user ids, found none at {path}; write it or set null")
    ids = read_user_list(path, ingested.id_kind, may_be_empty=True)
    home = partition_of(ids, config.partitions)
    by_partition = {int(i): ids.take(np.flatnonzero(home == i)) for i in np.unique(home)}
    return by_partition, {"suppress": digest_lake_file(path)}


def ranking_eligibility(config: Config, categories: Sequence[str]) -> Eligibility:
    """Return which categories are kept from groups of users."""
    try:
        return eligibility_by_name(categories, exclude_by_group=config.score.exclude_by_group)
    except BadInput as error:
        raise BadInput(f"score.{error}") from None


def _plan(
    night: Night, ingested: Ingested, source: FeatureSource, inputs: dict[str, Any], *, n_before: Sequence[int] = ()
) -> FeaturePlan:
    """Plan features, or those that were built in other partitions (`n_before`) and were placed in these since."""
    settings, n_partitions = feature_settings(night.config, ingested.taxonomy), night.config.partitions

    def digest_with(n: int) -> str:
        return digest_of(
            [inputs, settings.columns.to_json(), settings.alpha, settings.intensity, settings.normalize,
             settings.label_days, settings.label_alpha, source.all_users, source.min_categories, n]
        )  # fmt: skip

    def path_of(digest: str) -> Path:
        return night.site.run("features", source.date, digest)

    digest = choose_digest(digest_with, path_of, n_partitions, n_before)
    popular = popular_at(night, ingested, source.date)
    return FeaturePlan(source, settings, path_of(digest), digest, n_partitions, inputs, popular)


def popular_at(night: Night, ingested: Ingested, date: dt.date) -> np.ndarray:
    """Return what was popular in the label window up to a date and in the one a year before, (2, L)."""
    taxonomy, days = ingested.taxonomy, read_popular_days(night.site.path)
    return popular_around(days, date, night.config.label.days, taxonomy.categories, taxonomy.name_now)


def write_windows(night: Night, ingested: Ingested) -> None:
    """Write the rows of the windows whose states were made.

    Users of `score.suppress` are in them, for the list changes from night to night: they are left out of training.
    What a crash left of a window is written again: another taxonomy or users table may have come since, and its path
    does not tell.
    """
    config, taxonomy = night.config, ingested.taxonomy
    night.site.begin(window_path(night.site, config, date) for date in ingested.windows)
    for date, state in ingested.windows.items():
        path = window_path(night.site, config, date)
        if not is_finished(path):
            remove_run(path)
        end = date + dt.timedelta(config.label.days)
        source = FeatureSource(
            date,
            state,
            ingested.users,
            all_users=False,
            label_days=tuple((day, ingested.days[day]) for day, _ in ingested.history if date < day <= end),
            min_categories=config.label.min_categories,
            id_kind=ingested.id_kind,
            eligibility=ranking_eligibility(config, taxonomy.categories),
        )
        settings = feature_settings(config, taxonomy)
        plan = FeaturePlan(
            source, settings, path, window_digest(config), config.partitions, {"state": state.digest},
            popular_at(night, ingested, date),
        )  # fmt: skip
        build_features(night.client, plan, click_group=CLICK_GROUP, stage="windows", progress=night.progress)


def earlier_windows(night: Night, ingested: Ingested) -> list[Run]:
    """Return the kept windows that ended before the label window of the night, the newest first.

    Those with hardly any user are left out, and so are those of other categories altogether.
    """
    config = night.config
    newest = ingested.date - dt.timedelta(2 * config.label.days)
    oldest = ingested.date - dt.timedelta((config.train.n_windows + 1) * config.label.days)
    dates = sorted((date for date in written_windows(night.site, config) if oldest < date <= newest), reverse=True)
    runs = [open_run(window_path(night.site, config, date), FEATURES.kind) for date in dates]
    categories = set(ingested.taxonomy.categories)
    usable = [run for run in runs if run.n_rows >= MIN_USERS and categories & set(_names_now(run, ingested))]
    return usable[: config.train.n_windows - 1]


def renames_since(windows: Sequence[Run], ingested: Ingested) -> dict[str, str]:
    """Return the names of now of the categories that windows have under another name."""
    names = {name: now for run in windows for name, now in _names_now(run, ingested).items()}
    return {name: now for name, now in names.items() if now != name}


def users_left_out(night: Night, ingested: Ingested) -> UserIds | None:
    """Return the users whom training leaves out of windows, None for nobody."""
    suppressed, _ = suppressed_users(night, ingested)
    return union(list(suppressed.values())) if suppressed else None


def _names_now(run: Run, ingested: Ingested) -> dict[str, str]:
    return {name: ingested.taxonomy.name_now(name) for name in FeaturesManifest.of(run).categories}
