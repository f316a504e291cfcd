"""Keep the opt-outs of a run where its tasks find them, one folder a partition."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ammrank_dask.storage.lake.opt_outs import OptOuts
from ammrank_dask.storage.store.ids import UserIds, ids_from_arrays
from ammrank_dask.storage.store.scratch_arrays import is_saved, load_arrays, save_arrays
from ammrank_dask.user_hash import partition_of


def save_opt_outs(folder: Path, opt_outs: OptOuts, n_partitions: int) -> None:
    """Keep the pairs of every partition that has some."""
    home = partition_of(opt_outs.user_ids, n_partitions)
    for partition in np.unique(home).tolist():
        own = opt_outs.of_users(np.flatnonzero(home == partition))
        arrays = {**own.user_ids.to_arrays(), "user": own.user, "code": own.code}
        save_arrays(_part(folder, partition), arrays, {})


def load_opted_out(folder: Path, partition: int, users: UserIds, n_categories: int) -> tuple[np.ndarray | None, int]:
    """Return what the users of a partition opted out of, (n, L) bool or None, and how many who did are not there."""
    path = _part(folder, partition)
    if not is_saved(path):
        return None, 0
    arrays, _ = load_arrays(path)
    row = users.positions_of(ids_from_arrays(arrays))
    opted_out = np.zeros((len(users), n_categories), bool)
    is_there = row[arrays["user"]] >= 0
    opted_out[row[arrays["user"][is_there]], arrays["code"][is_there]] = True
    return opted_out, int((row < 0).sum())


def _part(folder: Path, partition: int) -> Path:
    return folder / f"opt-out-{partition:05d}"
