"""Refuse to make a state again from a lake that no longer has all of its days."""

from __future__ import annotations

import datetime as dt
from typing import Any

from ammrank_dask.storage.errors import BadInput, DamagedStore
from ammrank_dask.storage.lake.files import list_days, list_files
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.atomic import read_json
from ammrank_dask.storage.store.runs import MANIFEST
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.session.settings import first_change, lake_path


def refuse_lost_history(site: Site, config: Config, settings: dict[str, Any], date: dt.date) -> None:
    """Refuse to fold again what the lake no longer has; a state of these settings that was made without it may stay."""
    folders = list_days(lake_path(site, config.lake.events), config.lake.date_key)
    in_lake = {day for day, folder in folders.items() if list_files(folder)}
    lost: set[dt.date] = set()
    for path in site.finished_runs("state"):
        try:
            # Not open_run: the days can be known of a state that is damaged, or of another format.
            manifest = read_json(path / MANIFEST)
            days = {dt.date.fromisoformat(day) for day, digest in manifest["inputs"] if digest is not None}
            is_same = manifest["config"]["date"] == str(date) and first_change(manifest["config"], settings) is None
        except (DamagedStore, LookupError, TypeError, ValueError):
            continue
        if is_same and days <= in_lake:
            return
        lost |= days - in_lake
    if lost:
        raise BadInput(
            f"the lake no longer has {len(lost):,} of the days that the state remembers, from {min(lost)} to"
            f" {max(lost)}, and begins with {min(in_lake, default='none')}; --rebuild would lose them: put them back in"
            f" the lake, or go on without them with"
            f" `ammrank ingest {site.path} --date {date} --rebuild --forget-history`"
        )
