"""Remove what a site no longer needs; never what is published or in use."""

from __future__ import annotations

import contextlib
import datetime as dt
import shutil
from collections.abc import Iterable
from pathlib import Path

from storage.runs import remove_run
from storage.site import Site
from workflows.config import Config

INPUT_FOLDERS = ("state", "users")


def prune(site: Site, config: Config, date: dt.date, keep: Iterable[Path], folders: Iterable[str]) -> None:
    """Remove partials and quarantined rows older than `keep_days`, scratch, and runs that nothing names.

    It is called after a stage has published what it made, for its own `folders`, while the site is locked: what
    neither `keep` nor CURRENT names is not in use, finished or not. A date before the published one is a
    back-fill and removes nothing.
    """
    shutil.rmtree(site.scratch, ignore_errors=True)
    current = site.current()
    if current is not None and date < current.date:
        return
    oldest = date - dt.timedelta(config.keep_days - 1)
    for path in sorted([*(site.path / "days").glob("date=*"), *(site.path / "quarantine").glob("date=*")]):
        if dt.date.fromisoformat(path.name.removeprefix("date=").removesuffix(".parquet")) < oldest:
            _remove_day(path)
    kept = set(keep)
    if current is not None:
        kept |= {site.path / name for name in current.runs.values()}
    for name in folders:
        for run in sorted(path for path in (site.path / name).glob("*") if path.is_dir() and path not in kept):
            remove_run(run)


def _remove_day(path: Path) -> None:
    if path.is_file():
        path.unlink()
        return
    for run in sorted(path.iterdir()):
        remove_run(run)
    with contextlib.suppress(OSError):
        path.rmdir()
