"""Interest features and rankings of the events of a Dask table, through the exchange of the night.

Readers write the events of each block sliced by user, and each partition of users reads its slices: unlike a shuffle
inside the cluster, a lost worker costs the pieces that it had. The rows of a partition are written to the scratch
folder, and the collections that come back read them from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from distributed import Client

from ammrank_dask.features.build import FeatureSettings
from ammrank_dask.features.demographics import Demographics
from ammrank_dask.features.event_log import build_matrix, decode_log, rank_rows, read_events, read_people
from ammrank_dask.ingest.exchange import Slices, read_slices, write_slices
from ammrank_dask.ingest.interest_state import InterestState, aggregate_events
from ammrank_dask.ingest.routing import number_users, slice_by_partition
from ammrank_dask.runtime.collections import read_blocks, run_blocks, scratch_folder
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake.events import KEPT
from ammrank_dask.storage.lake.taxonomy import Taxonomy
from ammrank_dask.storage.numbers import whole_number
from ammrank_dask.storage.objects.folders import make_folder
from ammrank_dask.storage.store.ids import (
    ID_ARRAYS,
    IntegerIds,
    UserIds,
    empty_ids,
    ids_from_arrays,
    ids_from_values,
    one_kind,
    union,
)
from ammrank_dask.storage.store.scratch_arrays import load_array, load_arrays, save_arrays
from ammrank_dask.storage.vocabulary import CATEGORY, CLICK_GROUP, GROUPS
from ammrank_dask.user_hash import partition_of

USERS_AT_ONCE = 100_000
"""Users of a pandas table that one task writes."""
MOST_BLOCKS = 128
"""Blocks of users by default, of events with as many blocks or some more."""


def check_events(events: Any) -> None:
    """Refuse a Dask collection that is no table of events, from its types alone."""
    if not hasattr(events, "columns"):
        raise BadInput(f"events must be a Dask DataFrame, got {type(events).__module__}.{type(events).__name__}")
    read_events(events._meta)


def categories_of(events: Any, client: Client) -> list[Any]:
    """Return the distinct categories of a Dask table of events."""
    check_events(events)
    blocks = [(block,) for block in events[[CATEGORY]].to_delayed()]
    return sorted({category for found in run_blocks(client, distinct_categories, blocks) for category in found})


def distinct_categories(events: pd.DataFrame, _number: int) -> list[str]:
    """Return the categories of one block of events; a number counts as the text of its digits."""
    return [str(category) for category in events[CATEGORY].dropna().unique()]


def features_of(
    events: Any,
    users: Any,
    taxonomy: Taxonomy,
    settings: FeatureSettings,
    end: int,
    n_partitions: int | None,
    client: Client,
    scratch: str | Path | None,
) -> tuple[Any, Any]:
    """Return the rows of `interest_features` as a lazy array of CSR blocks, and the ids of the users by block.

    Users are placed by a hash of their id, and ascend in a block.
    """
    folder = scratch_folder(client, scratch)
    # Each file of events is cut into as many slices: of many small blocks there are fewer, larger ones.
    usual = max(min(events.npartitions, MOST_BLOCKS), events.npartitions // 8)
    n = usual if n_partitions is None else whole_number("n_partitions", n_partitions, least=1)
    kinds, paths = _write_log(client, events, folder, n, taxonomy, end, None)
    people_paths, more_kinds = _write_users(client, users, folder, n)
    kinds |= more_kinds
    kind = one_kind(kinds)
    rows = [folder / f"rows-{number:05d}" for number in range(n)]
    counts = run_blocks(client, build_block, [()] * n, paths, people_paths, n, kind, settings, end, rows)
    empty = sp.csr_matrix((0, 0), dtype=np.float64)
    X = read_blocks(read_matrix, counts, len(settings.columns.names), empty, rows, len(settings.columns.names))
    return X, read_ids_by_block(rows, kind)


def _write_users(client: Client, users: Any, folder: Path, n_partitions: int) -> tuple[list[Path] | None, set[str]]:
    """Write the slices of all users, if there is a table of them; return the files and the kinds of the ids."""
    import dask.dataframe as dd

    if users is None:
        return None, set()
    # What is in memory goes to the workers piece by piece: one graph with all of it would be large.
    if isinstance(users, pd.DataFrame):
        starts = range(0, max(1, len(users)), USERS_AT_ONCE)
        groups = [[(users.iloc[start : start + USERS_AT_ONCE],)] for start in starts]
    elif isinstance(users, dd.DataFrame):
        groups = [[(block,) for block in users.to_delayed()]]
    else:
        raise BadInput(f"users must be a DataFrame of pandas or Dask, got {type(users).__name__}")
    paths = [folder / f"users-{number:05d}.arrow" for number in range(sum(map(len, groups)))]
    kinds: set[str | None] = set()
    for number, blocks in enumerate(groups):
        own = paths[number:] if len(groups) > 1 else paths
        kinds |= set(run_blocks(client, write_people_slices, blocks, own, n_partitions))
    return paths, {kind for kind in kinds if kind is not None}


def rankings_of(
    events: Any,
    begin: int,
    end: int,
    user_ids: Any,
    taxonomy: Taxonomy,
    alpha: float,
    client: Client,
    scratch: str | Path | None,
) -> Any:
    """Return the rows of `click_rankings` as a lazy array with the blocks of `user_ids`."""
    import dask.dataframe as dd

    if not isinstance(user_ids, dd.Series):
        raise BadInput(
            f"user_ids must be a Dask Series where events are a Dask DataFrame, got {type(user_ids).__name__}; pass"
            " those that interest_features returned"
        )
    folder, n = scratch_folder(client, scratch), user_ids.npartitions
    kinds, paths = _write_log(client, events, folder, n, taxonomy, end, begin)
    rows = [folder / f"rows-{number:05d}" for number in range(n)]
    blocks = [(block,) for block in user_ids.to_delayed()]
    n_categories = len(taxonomy.categories)
    shapes = run_blocks(client, rank_block, blocks, paths, n, one_kind(kinds), n_categories, end, alpha, rows)
    width = max(width for _, width in shapes)
    return read_blocks(read_rankings, [n_rows for n_rows, _ in shapes], width, np.empty((0, 0), np.int32), rows, width)


def _write_log(
    client: Client,
    events: Any,
    folder: Path,
    n_partitions: int,
    taxonomy: Taxonomy,
    end: int,
    begin: int | None,
) -> tuple[set[str], list[Path]]:
    """Write the slices of all events; return the kinds of their ids, and the files."""
    check_events(events)
    paths = [folder / f"events-{number:05d}.arrow" for number in range(events.npartitions)]
    blocks = [(block,) for block in events.to_delayed()]
    kinds = run_blocks(client, write_event_slices, blocks, paths, n_partitions, taxonomy, end, begin)
    used = [(kind, path) for kind, path in zip(kinds, paths, strict=True) if kind is not None]
    return {kind for kind, _ in used}, [path for _, path in used]


def write_event_slices(
    events: pd.DataFrame,
    number: int,
    paths: Sequence[Path],
    n_partitions: int,
    taxonomy: Taxonomy,
    end: int,
    begin: int | None,
) -> str | None:
    """Write the events of one block by user, with `begin` only the clicks after it; return the kind of the ids."""
    table = read_events(events)
    if not len(table):
        return None
    batch = decode_log(table, taxonomy, end)
    keep = batch.status == KEPT
    if begin is not None:
        is_click = batch.cell // len(taxonomy.categories) == GROUPS.index(CLICK_GROUP)
        keep &= is_click & (batch.time > begin)
    rows = {"cell": batch.cell, "time": batch.time}
    _write(paths[number], slice_by_partition(batch.ids, batch.user, keep, rows, n_partitions), n_partitions)
    return batch.ids.kind


def write_people_slices(users: pd.DataFrame, number: int, paths: Sequence[Path], n_partitions: int) -> str | None:
    """Write one block of the users by user; return the kind of the ids."""
    people = read_people(users)
    ids, rows = people.user_ids, {"age": people.age, "gender": people.gender}
    keep, user = np.ones(len(ids), bool), None if isinstance(ids, IntegerIds) else np.arange(len(ids))
    _write(paths[number], slice_by_partition(ids, user, keep, rows, n_partitions), n_partitions)
    return ids.kind if len(ids) else None


def _write(path: Path, sections: Any, n_partitions: int) -> None:
    make_folder(path.parent)
    write_slices(path, n_partitions, [sections])


def build_block(
    number: int,
    paths: Sequence[Path],
    people_paths: Sequence[Path] | None,
    n_partitions: int,
    kind: str,
    settings: FeatureSettings,
    end: int,
    rows: Sequence[Path],
) -> int:
    """Write the rows of one partition of users, and return how many there are."""
    n_cells = len(GROUPS) * len(settings.categories)
    user_ids, user, slices = _read_users(paths, number, n_partitions, kind)
    state = InterestState.empty(kind, n_cells)
    if slices is not None:
        state = aggregate_events(
            user_ids, user, slices.joined["cell"], slices.joined["time"], end=end, alpha=settings.alpha, n_cells=n_cells
        )
    people = None
    if people_paths is not None:
        people = _people_of(people_paths, number, n_partitions, kind)
        state = state.place(union([user_ids, people.user_ids]))
    X = build_matrix(state, people, settings, end)
    save_arrays(
        rows[number], {**state.user_ids.to_arrays(), "indptr": X.indptr, "indices": X.indices, "data": X.data}, {}
    )
    return int(X.shape[0])


def _read_users(
    paths: Sequence[Path], number: int, n_partitions: int, kind: str
) -> tuple[UserIds, np.ndarray, Slices | None]:
    """Return the users of the slices of a partition, of every row the position of its user, and the slices."""
    slices = read_slices(paths, number, n_partitions) if paths else None
    if not slices:
        return empty_ids(kind), np.empty(0, np.int64), None
    return *number_users(slices, kind), slices


def _people_of(paths: Sequence[Path], number: int, n_partitions: int, kind: str) -> Demographics:
    user_ids, user, slices = _read_users(paths, number, n_partitions, kind)
    if slices is None:
        return Demographics(user_ids, np.empty(0), np.empty(0, np.int8))
    if len(user_ids) != len(user):
        raise BadInput(f"users must be distinct, found {len(user) - len(user_ids):,} duplicates; drop them")
    order = np.argsort(user)
    return Demographics(user_ids, slices.joined["age"][order], slices.joined["gender"][order])


def rank_block(
    user_ids: pd.Series,
    number: int,
    paths: Sequence[Path],
    n_partitions: int,
    kind: str,
    n_categories: int,
    end: int,
    alpha: float,
    rows: Sequence[Path],
) -> tuple[int, int]:
    """Write the rankings of one block of users, and return their shape."""
    wanted = ids_from_values(user_ids)
    if (partition_of(wanted, n_partitions) != number).any():
        raise BadInput(
            "user_ids must be placed by their hash; pass what interest_features or Features.to_dask returned"
        )
    users, user, slices = _read_users(paths, number, n_partitions, kind)
    sorted_ids, cell, time = wanted.sort_unique(), np.empty(0, np.uint32), np.empty(0, np.int64)
    if slices is not None:
        position = sorted_ids.positions_of(users)[user]
        is_wanted = position >= 0
        user, cell, time = (values[is_wanted] for values in (position, slices.joined["cell"], slices.joined["time"]))
    n_cells = len(GROUPS) * n_categories
    clicks = aggregate_events(sorted_ids, user, cell, time, end=end, alpha=alpha, n_cells=n_cells)
    rankings = rank_rows(clicks, n_categories)[sorted_ids.positions_of(wanted)]
    save_arrays(rows[number], {"rankings": rankings}, {})
    return rankings.shape


def read_matrix(number: int, rows: Sequence[Path], n_columns: int) -> sp.csr_matrix:
    """Return the rows of one block."""
    data, indices, indptr = (load_array(rows[number], name) for name in ("data", "indices", "indptr"))
    return sp.csr_matrix((data, indices, indptr), shape=(len(indptr) - 1, n_columns))


def read_rankings(number: int, rows: Sequence[Path], width: int) -> np.ndarray:
    """Return the rankings of one block, as wide as those of all."""
    rankings = load_array(rows[number], "rankings")
    return np.pad(rankings, ((0, 0), (0, width - rankings.shape[1])), constant_values=-1)


def read_ids(folder: Path) -> pd.Series:
    """Return the users of one block."""
    arrays, _ = load_arrays(folder)
    return ids_from_arrays({name: arrays[name] for name in ID_ARRAYS if name in arrays}).to_pandas()


def read_ids_by_block(rows: Sequence[Path], kind: str) -> Any:
    """Return the users of all blocks as a lazy Series."""
    import dask.dataframe as dd

    return dd.from_map(read_ids, rows, meta=empty_ids(kind).to_pandas())
