"""Remove what a site no longer needs; never what is published or in use."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Iterable
from pathlib import Path

from storage.runs import remove_run
from storage.site import Site
from workflows.config import Config


def prune_inputs(site: Site, config: Config, date: dt.date, keep: Iterable[Path]) -> None:
    """Remove partials older than `keep_days`, replaced ones, and states and users tables that nothing names.

    A date before the published one is a back-fill and removes nothing.
    """
    if not _is_newest(site, date):
        return
    oldest = date - dt.timedelta(config.keep_days - 1)
    for folder in sorted((site.path / "days").glob("date=*")):
        day = dt.date.fromisoformat(folder.name.removeprefix("date="))
        if day < oldest:
            shutil.rmtree(folder, ignore_errors=True)
    _remove_unnamed(site, ("state", "users"), keep)


def prune_outputs(site: Site, date: dt.date, keep: Iterable[Path]) -> None:
    """Remove features and models that nothing names."""
    if _is_newest(site, date):
        _remove_unnamed(site, ("features", "models"), keep)


def _is_newest(site: Site, date: dt.date) -> bool:
    current = site.current()
    return current is None or date >= current.date


def _remove_unnamed(site: Site, folders: Iterable[str], keep: Iterable[Path]) -> None:
    current = site.current()
    kept = set(keep)
    if current is not None:
        kept |= {site.path / name for name in current.runs.values()}
    for folder in folders:
        for run in site.finished_runs(folder):
            if run not in kept:
                remove_run(run)
