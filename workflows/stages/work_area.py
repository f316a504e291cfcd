"""Keep a work area below a site, in which the nights of a backtest run.

It is a site of its own: its nights see the same lake and config, and neither ROOT nor any run of the site itself
changes. What the site has of a day is shared with it, as links to the same files.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator
from typing import Any

from ammrank_dask.storage.objects.atomic import digest_of, read_json
from ammrank_dask.storage.objects.folders import (
    is_file,
    is_folder,
    is_there,
    list_paths,
    make_folder,
    remove,
    share_file,
)
from ammrank_dask.storage.site.forgotten import KEY_NAME, LIST_NAME
from ammrank_dask.storage.site.renewals import share_run
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.runs import is_finished
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.session.sections import Notify, Publish
from ammrank_dask.workflows.session.settings import CATEGORIES_NAME, lake_path

FOLDER, WORK = "backtests", ".work"
_PATHS = {"lake": ("events", "users", "taxonomy"), "score": ("suppress", "opt_out", "values")}
"""Keys of the config that name files; relative ones start at the site."""
_COPIED = (CATEGORIES_NAME, LIST_NAME, KEY_NAME, "days/scanned.json", "users/scanned.json")


@contextlib.contextmanager
def open_work(site: Site, config: Config, first: dt.date, every: int) -> Iterator[Site]:
    """Yield the work area of a backtest, which no other one uses meanwhile; those of other settings are removed.

    It depends on the first night and the distance of nights: each night begins with the model of the one before.
    """
    area = Site(site.path / FOLDER / WORK)
    with area.exclusive():
        with site.exclusive():
            listed = site.path / LIST_NAME
            forgotten = read_json(listed) if is_file(listed) else None
            name = digest_of([config.model_dump(mode="json"), str(first), every, forgotten])
            for other in list_paths(area.path):
                if is_folder(other) and other.name != name:
                    remove(other)
            work = Site(area.path / name)
            make_folder(work.path)
            share_runs(site, work)
        yield work


def remove_work(site: Site) -> None:
    """Remove the work area of backtests, which holds users; refuse while one runs."""
    area = Site(site.path / FOLDER / WORK)
    if is_folder(area.path):
        with area.exclusive():
            remove(area.path)


def own_config(site: Site, config: Config) -> Config:
    """Return the config with absolute paths, and without commands to run after a night and checks that hold it."""
    changes: dict[str, Any] = {"notify": Notify(), "publish": Publish(hold=[])}
    for name, keys in _PATHS.items():
        section = getattr(config, name)
        given = {key: getattr(section, key) for key in keys}
        paths = {key: str(lake_path(site, value)) for key, value in given.items() if value is not None}
        changes[name] = section.model_copy(update=paths)
    return config.model_copy(update=changes)


def share_runs(site: Site, work: Site) -> None:
    """Give the work area the partials and users that the site has, as links to the same files, and its lists."""
    shared = {
        run: work.path / site.relative(run) for run in [*site.finished_runs("days"), *site.finished_runs("users")]
    }
    work.begin(shared.values())
    for run, final in shared.items():
        if not is_finished(final):
            share_run(run, final)
    for name in _COPIED:
        if is_file(site.path / name) and not is_there(work.path / name):
            share_file(site.path / name, work.path / name)


def clear_work(work: Site) -> None:
    """Remove all that a work area holds."""
    for path in list_paths(work.path):
        remove(path)
