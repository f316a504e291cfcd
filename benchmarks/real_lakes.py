"""Write the events of a real log as a lake."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from ammrank_dask.storage.lake.write import (
    events_path,
    taxonomy_path,
    users_path,
    write_events,
    write_taxonomy,
    write_users,
)
from ammrank_dask.storage.objects.atomic import rename_folder, temporary_beside

EVENT_COLUMNS = ["user_id", "group", "node", "timestamp"]
UNKNOWN_GENDER = -1


def write_real_lake(
    folder: Path,
    events: pd.DataFrame,
    parents: Mapping[str, str],
    *,
    groups: Sequence[str],
    ages: pd.Series | None = None,
) -> None:
    """Write events (`EVENT_COLUMNS`), the parent of every node, and the age of every user, or −1, if there are ages.

    The folder appears whole or not at all.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_beside(folder)
    try:
        _write_days(temporary, events, list(parents), groups)
        if ages is not None:
            ids = pa.array([str(user) for user in ages.index], pa.string())
            users = (ids, ages.to_numpy(np.int32), np.full(len(ages), UNKNOWN_GENDER, np.int8))
            write_users(users_path(temporary), [users])
        write_taxonomy(taxonomy_path(temporary), parents)
        rename_folder(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_days(lake: Path, events: pd.DataFrame, names: Sequence[str], groups: Sequence[str]) -> None:
    ordered = events.sort_values(["timestamp", "user_id", "group", "node"], kind="stable")
    for day, part in ordered.groupby(ordered["timestamp"].dt.date, sort=True):
        write_events(
            events_path(lake, day, 0),
            user_ids=pa.array(part["user_id"].astype(str).tolist(), pa.string()),
            groups=pd.Categorical(part["group"], groups).codes.astype(np.int8),
            group_names=groups,
            categories=pd.Categorical(part["node"], names).codes.astype(np.int16),
            category_names=names,
            timestamps=part["timestamp"].to_numpy("datetime64[us]").astype(np.int64),
        )
