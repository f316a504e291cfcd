"""Write the labelled rows of closed label windows, and choose those to train on: many months teach what one cannot."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from ammrank_dask.features.build import FeaturePlan, FeatureSource, build_features
from ammrank_dask.storage.store.ids import UserIds, union
from ammrank_dask.storage.store.manifests import FeaturesManifest
from ammrank_dask.storage.store.registry import FEATURES
from ammrank_dask.storage.store.runs import Run, is_finished, open_run, remove_run
from ammrank_dask.storage.vocabulary import CLICK_GROUP
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.session.settings import feature_settings
from ammrank_dask.workflows.stages.features import popular_at, ranking_eligibility, suppressed_users
from ammrank_dask.workflows.stages.ingest import Ingested
from ammrank_dask.workflows.stages.retention import window_digest, window_path, written_windows

MIN_USERS = 20
"""Windows with fewer users teach nothing of their month."""


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
