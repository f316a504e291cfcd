"""Remove what a site no longer needs; never what is published or in use."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Iterable
from pathlib import Path

from storage.runs import remove_run
from storage.site import Site
from workflows.config import Config


def prune(site: Site, config: Config, date: dt.date, keep: Iterable[Path]) -> None:
    """Remove partials older than `keep_days`, and runs that neither `keep` nor CURRENT names.

    It is called after a night is published. A date before the published one is a back-fill and removes nothing.
    """
    current = site.current()
    if current is not None and date < current.date:
        return
    oldest = date - dt.timedelta(config.keep_days - 1)
    for folder in sorted((site.path / "days").glob("date=*")):
        if dt.date.fromisoformat(folder.name.removeprefix("date=")) < oldest:
            shutil.rmtree(folder, ignore_errors=True)
    kept = set(keep)
    if current is not None:
        kept |= {site.path / name for name in current.runs.values()}
    for name in ("state", "users", "features", "models"):
        for run in site.finished_runs(name):
            if run not in kept:
                remove_run(run)
