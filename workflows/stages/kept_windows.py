"""Where a site keeps the rows of closed label windows, and for how long."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from ammrank_dask.storage.objects.atomic import digest_of
from ammrank_dask.storage.objects.folders import list_paths
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.runs import is_finished, remove_run
from ammrank_dask.workflows.session.config import Config

FOLDER = "windows"


def window_path(site: Site, config: Config, date: dt.date) -> Path:
    """Return where the rows at a date with the clicks of the window after it are kept.

    They are written once, when the window has closed: neither later corrections nor another users table change them,
    only a rebuild does.
    """
    features, label = config.features, config.label
    digest = digest_of([config.alpha, features.model_dump(exclude={"min_days"}), label.model_dump()])
    return site.run(FOLDER, date, digest)


def written_windows(site: Site, config: Config) -> frozenset[dt.date]:
    """Return the dates whose rows are kept."""
    dates = {dt.date.fromisoformat(path.name[5:15]) for path in list_paths(site.path / FOLDER, "date=*")}
    return frozenset(date for date in dates if is_finished(window_path(site, config, date)))


def remove_windows(site: Site) -> None:
    """Remove all windows: a rebuild makes them again from the lake."""
    for path in list_paths(site.path / FOLDER, "date=*"):
        remove_run(path)


def prune_windows(site: Site, config: Config, date: dt.date) -> None:
    """Remove windows that no later training will use, and those of other settings."""
    oldest = date - dt.timedelta((config.train.n_windows + 1) * config.label.days)
    for path in list_paths(site.path / FOLDER, "date=*"):
        day = dt.date.fromisoformat(path.name[5:15])
        if day <= oldest or path != window_path(site, config, day):
            remove_run(path)
