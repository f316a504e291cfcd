"""Keep the rows of closed label windows, and remove what a site no longer needs; never what is published or in use."""

from __future__ import annotations

import contextlib
import datetime as dt
import shutil
from collections.abc import Iterable
from pathlib import Path

from ammrank_dask.storage.errors import BadInput, DamagedStore
from ammrank_dask.storage.objects.atomic import digest_of, sweep_temporary
from ammrank_dask.storage.objects.folders import is_folder, list_paths
from ammrank_dask.storage.objects.retry import retried
from ammrank_dask.storage.site.day_fingerprints import read_day_rows
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.site.taxonomies import kept_taxonomies, remove_taxonomies
from ammrank_dask.storage.site.tombstones import remove_tombstones
from ammrank_dask.storage.site.verdicts import rejected_models
from ammrank_dask.storage.store.manifests import ModelManifest, RunManifest
from ammrank_dask.storage.store.runs import is_finished, open_run, remove_run
from ammrank_dask.workflows.session.config import Config

INPUT_FOLDERS = ("state", "users")

FOLDER = "windows"


def prune(site: Site, config: Config, date: dt.date, keep: Iterable[Path], folders: Iterable[str]) -> None:
    """Remove partials and quarantined rows older than `keep_days`, scratch, and runs and taxonomies that nothing names.

    It is called after a stage has published what it made, for its own `folders`, while the site is locked: what
    neither `keep` nor ROOT names is not in use, finished or not. A date before the published one is a
    back-fill and removes nothing.
    """
    shutil.rmtree(site.scratch, ignore_errors=True)
    current = site.current()
    if current is not None and date < current.date:
        return
    oldest = date - dt.timedelta(config.days_kept - 1)
    for path in [path for name in ("days", "quarantine") for path in list_paths(site.path / name, "date=*")]:
        if _date_of_folder(path) < oldest:
            _remove_day(path)
    kept = set(keep) | _published(site)
    for name in folders:
        for run in list_paths(site.path / name):
            if run not in kept and is_folder(run):
                remove_run(run)
    _prune_taxonomies(site)


def _prune_taxonomies(site: Site) -> None:
    """Remove the taxonomies that neither a kept day or state nor the list of the rows of days names.

    Nothing is removed while a manifest cannot be read, nor while days are listed of which nobody noted the taxonomy.
    """
    kept = kept_taxonomies(site.path)
    if len(kept) < 2:
        return
    named = {of_day.taxonomy for of_day in read_day_rows(site.path).values()}
    try:
        for path in (*site.finished_runs("days"), *site.finished_runs("state")):
            settings = RunManifest.of(open_run(path)).settings
            named |= {settings.get("taxonomy"), settings.get("taxonomy_before", "")}
    except (DamagedStore, BadInput):
        return
    if None not in named:
        remove_taxonomies(site.path, kept - named)


def prune_nights(site: Site, config: Config, date: dt.date) -> None:
    """Remove the results of nights that are older than the last ones to keep, and what a crash left of unfinished ones.

    Verdicts stay as long as a report or a model may need them. A back-fill removes nothing.
    """
    current = site.current()
    if current is not None and date < current.date:
        return
    keep = config.retention
    published = _published(site)
    counts = {
        "qualifications": keep.qualifications,
        "reports": keep.reports,
        "runs": keep.reports,
        "gates": max(keep.reports, keep.qualifications, config.train.every_nights),
    }
    for folder, n_kept in counts.items():
        sweep_temporary(site.path / folder)
        nights = list_paths(site.path / folder, "date=*")
        gone = [night for night in nights[:-n_kept] if night not in published]
        if folder == "qualifications":
            site.drop_nights([_date_of_folder(night) for night in gone])
        for night in gone:
            remove_run(night)
    site.remove_replaced(date)
    remove_tombstones(site.path, set(site.published_nights()))
    for unfinished in list_paths(site.path / "qualifications", ".building-*"):
        remove_run(unfinished)


def models_to_keep(site: Site, config: Config, date: dt.date) -> list[Path]:
    """Return the models of late that score no night: a person may want to look at those that the gate turned down."""
    rejected = rejected_models(site)
    oldest = str(date - dt.timedelta(config.retention.qualifications - 1))
    models = [open_run(path) for path in site.finished_runs("models")]
    return [run.path for run in models if run.digest in rejected and ModelManifest.of(run).date >= oldest]


def _published(site: Site) -> set[Path]:
    current = site.current()
    return {site.path / name for name in current.runs.values()} if current is not None else set()


def _date_of_folder(path: Path) -> dt.date:
    return dt.date.fromisoformat(path.name.removeprefix("date=").removesuffix(".parquet"))


@retried
def _remove_day(path: Path) -> None:
    if path.is_file():
        path.unlink()
        return
    for run in list_paths(path):
        remove_run(run)
    with contextlib.suppress(OSError):
        path.rmdir()


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
