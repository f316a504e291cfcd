"""Keep the rows of closed label windows, and remove what a site no longer needs; never what is published or in use."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from pathlib import Path

from ammrank_dask.storage.errors import BadInput, DamagedStore
from ammrank_dask.storage.objects.atomic import digest_of, sweep_temporary
from ammrank_dask.storage.objects.folders import list_paths, remove
from ammrank_dask.storage.site.day_fingerprints import read_day_rows
from ammrank_dask.storage.site.site import LISTS, LISTS_IN_WORK, Site
from ammrank_dask.storage.site.taxonomies import kept_taxonomies, remove_taxonomies
from ammrank_dask.storage.site.tombstones import remove_tombstones
from ammrank_dask.storage.site.verdicts import FOLDER as VERDICTS
from ammrank_dask.storage.site.verdicts import rejected_models
from ammrank_dask.storage.store.manifests import ModelManifest, RunManifest
from ammrank_dask.storage.store.runs import open_run
from ammrank_dask.workflows.session.config import Config

INPUT_FOLDERS = ("state", "users")

WINDOWS = "windows"


def prune(
    site: Site, config: Config, date: dt.date, keep: Iterable[Path], folders: Iterable[str], nights: Iterable[Path] = ()
) -> None:
    """Remove partials and quarantined rows older than `keep_days`, scratch, and runs and taxonomies that nothing names.

    It is called after a stage has published what it made, for its own `folders`, while the site is locked: what
    neither `keep` nor what is published names is not in use, finished or not, and so are the `nights` that
    `old_nights` returned. All of them go with one write of ROOT. A date before the published one is a back-fill and
    removes nothing.
    """
    remove(site.scratch)
    if _is_late(site, date):
        return
    oldest, root, kept = date - dt.timedelta(config.days_kept - 1), site.root(), {*keep, *published_runs(site)}
    keys = [*root.kept, *(key for key in root.building if not root.renews(key))]
    gone = [site.path / key for key in keys if key.startswith("days/") and _date_of(key.split("/")[1]) < oldest]
    for folder in folders:
        gone += [site.path / key for key in keys if key.startswith(f"{folder}/") and site.path / key not in kept]
    lists = [night for night in nights if night.parent.name == LISTS]
    site.discard([*gone, *nights], [_date_of(night.name) for night in lists], date)
    for path in list_paths(site.path / "quarantine", "date=*"):
        if _date_of(path.name) < oldest:
            remove(path)
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


def old_nights(site: Site, config: Config, date: dt.date) -> list[Path]:
    """Return lists, verdicts and windows that are older than the last ones to keep, and lists that were not finished.

    Verdicts stay as long as a report or a model may need them. A back-fill removes nothing.
    """
    if _is_late(site, date):
        return []
    keep, published = config.retention, published_runs(site)
    n_verdicts = max(keep.reports, keep.qualifications, config.train.every_nights)
    old = [*site.scored_nights()[: -keep.qualifications], *site.finished_runs(VERDICTS)[:-n_verdicts]]
    unfinished = [site.path / key for key in site.root().building if key.startswith(LISTS_IN_WORK)]
    return [run for run in (*old, *unfinished, *old_windows(site, config, date)) if run not in published]


def prune_reports(site: Site, config: Config, date: dt.date) -> None:
    """Remove the reports and the records of nights that are older than the last ones to keep, and old tombstones."""
    if _is_late(site, date):
        return
    published = published_runs(site)
    for folder in ("reports", "runs"):
        sweep_temporary(site.path / folder)
        for night in list_paths(site.path / folder, "date=*")[: -config.retention.reports]:
            if night not in published:
                remove(night)
    remove_tombstones(site.path, set(site.published_nights()))


def models_to_keep(site: Site, config: Config, date: dt.date) -> list[Path]:
    """Return the models of late that score no night: a person may want to look at those that the gate turned down."""
    rejected = rejected_models(site)
    oldest = str(date - dt.timedelta(config.retention.qualifications - 1))
    models = [open_run(path) for path in site.finished_runs("models")]
    return [run.path for run in models if run.digest in rejected and ModelManifest.of(run).date >= oldest]


def published_runs(site: Site) -> set[Path]:
    """Return the runs that ROOT names by their role."""
    return {site.path / name for name in site.root().runs.values()}


def _is_late(site: Site, date: dt.date) -> bool:
    current = site.current()
    return current is not None and date < current.date


def _date_of(name: str) -> dt.date:
    return dt.date.fromisoformat(name.removeprefix("date=").removesuffix(".parquet")[:10])


def window_path(site: Site, config: Config, date: dt.date) -> Path:
    """Return where the rows at a date with the clicks of the window after it are kept.

    They are written once, when the window has closed: neither later corrections nor another users table change them,
    only a rebuild does.
    """
    return site.run(WINDOWS, date, window_digest(config))


def window_digest(config: Config) -> str:
    """Return the digest of the settings that the rows of windows depend on."""
    features, label = config.features, config.label
    return digest_of([config.alpha, features.model_dump(exclude={"min_days"}), label.model_dump()])


def written_windows(site: Site, config: Config) -> frozenset[dt.date]:
    """Return the dates whose rows are kept."""
    dates = {_date_of(run.name): run for run in site.finished_runs(WINDOWS)}
    return frozenset(date for date, run in dates.items() if run == window_path(site, config, date))


def old_windows(site: Site, config: Config, date: dt.date) -> list[Path]:
    """Return the windows that no later training will use, and those of other settings."""
    oldest = date - dt.timedelta((config.train.n_windows + 1) * config.label.days)
    runs = site.finished_runs(WINDOWS)
    return [run for run in runs if _date_of(run.name) <= oldest or run != window_path(site, config, _date_of(run.name))]
