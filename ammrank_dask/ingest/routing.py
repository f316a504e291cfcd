"""Route rows to the partition of their user, and number the users of a partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ammrank_dask.ingest.exchange import Slices
from ammrank_dask.kernels.interest import count_rows, locate_ids, merge_ids, number_ids, order_rows, rank_ids
from ammrank_dask.storage.store.ids import IntegerIds, UserIds, ids_from_arrays, union
from ammrank_dask.user_hash import partition_of


def slice_by_partition(
    ids: UserIds, user: np.ndarray | None, keep: np.ndarray, rows: Mapping[str, np.ndarray], n_partitions: int
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the kept rows sorted by partition as sections of the exchange.

    Integer ids travel with their rows. Of string ids each partition gets the list it needs, and its rows hold
    positions in that list.

    Parameters
    ----------
    ids, user
        The ids of the rows in row order (`user` is None), or distinct ids and of every row the position in them.
    keep
        Which rows to pass on.
    rows
        Further columns by the name of their section.
    """
    lists: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    if user is None:
        assert isinstance(ids, IntegerIds)
        row_user = ids.values
        partition = partition_of(ids, n_partitions)
    else:
        local, id_partition, lists = list_ids(ids, user[keep], n_partitions)
        row_user, partition = local[user], id_partition[user]
    counts = np.zeros(n_partitions, np.int64)
    count_rows(partition, keep, counts)
    starts = np.concatenate([[0], np.cumsum(counts)])
    order = np.empty(starts[-1], np.intp)
    order_rows(partition, keep, starts[:-1].copy(), order)
    columns = {"user": row_user, **rows}
    return {**{name: (values.take(order), starts) for name, values in columns.items()}, **lists}


def list_ids(
    ids: UserIds, used: np.ndarray, n_partitions: int
) -> tuple[np.ndarray, np.ndarray, dict[str, tuple[np.ndarray, np.ndarray]]]:
    """Return of every id its position in the list of its partition, its partition, and the lists as sections.

    Only the ids at the positions `used` are listed.
    """
    is_used = np.zeros(len(ids), bool)
    is_used[used] = True
    # One more than there are ids: rows without an id point at position 0 even when there is no id at all.
    partition = np.append(partition_of(ids, n_partitions), 0)
    wanted = np.flatnonzero(is_used)
    order = wanted[np.argsort(partition[wanted], kind="stable")]
    starts = np.concatenate([[0], np.cumsum(np.bincount(partition[order], minlength=n_partitions))])
    local = np.zeros(len(ids) + 1, np.uint32)
    local[order] = np.arange(len(order)) - starts[partition[order]]
    listed = ids.take(order).to_arrays()
    offsets, data = listed["user_id_offsets"], listed["user_id_bytes"]
    return local, partition, {"id_lengths": (np.diff(offsets), starts), "id_bytes": (data, offsets[starts])}


def number_users(slices: Slices, id_kind: str) -> tuple[UserIds, np.ndarray]:
    """Return the distinct users of one partition's slices, ascending, and of every row its user's position."""
    if id_kind == "int64":
        return number_integer_ids(slices.joined["user"])
    lists = [listed_ids(part) for part in slices]
    ids = union(lists)
    rows = [ids.positions_of(listed)[part["user"]] for listed, part in zip(lists, slices, strict=True)]
    return ids, np.concatenate(rows)


def listed_ids(part: Mapping[str, np.ndarray]) -> UserIds:
    """Return the ids that came with the rows of one batch."""
    offsets = np.concatenate([[0], np.cumsum(part["id_lengths"])])
    return ids_from_arrays({"user_id_offsets": offsets, "user_id_bytes": part["id_bytes"]})


def number_integer_ids(ids: np.ndarray) -> tuple[IntegerIds, np.ndarray]:
    """Return the distinct ids in ascending order, and for every id its position among them (int32)."""
    table = np.full(1 << max(4, (2 * len(ids)).bit_length()), -1, np.int32)
    distinct = np.empty(len(ids), np.uint64)
    number = np.empty(len(ids), np.int32)
    with np.errstate(over="ignore"):
        n = number_ids(ids.view(np.uint64), table, distinct, number)
        in_order, rank = np.empty(n, np.uint64), np.empty(n, np.int32)
        keys, numbers = np.empty((2, n), np.uint64), np.empty((2, n), np.int32)
        rank_ids(distinct[:n], keys[0], numbers[0], keys[1], numbers[1], in_order, rank)
    return IntegerIds(in_order.view(np.int64)), rank.take(number)


def lay_out_users(parts: Sequence[UserIds]) -> tuple[UserIds, list[np.ndarray]]:
    """Return the distinct ids of some sorted lists in ascending order, and for each list where its ids are in it."""
    if not all(isinstance(part, IntegerIds) for part in parts if len(part)):
        users = union(parts)
        return users, [users.positions_of(part) for part in parts]
    lists = [part.values if isinstance(part, IntegerIds) else np.empty(0, np.int64) for part in parts]
    merged = lists[0]
    for values in lists[1:]:
        out = np.empty(len(merged) + len(values), np.int64)
        merged = out[: merge_ids(merged, values, out)]
    positions = [np.empty(len(values), np.int64) for values in lists]
    for values, position in zip(lists, positions, strict=True):
        locate_ids(merged, values, position)
    return (IntegerIds(merged) if len(merged) else parts[0]), positions
