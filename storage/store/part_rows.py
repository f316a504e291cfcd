"""Take the rows of users out of the arrays of a part, and put parts together: for every kind of part that has users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ammrank_dask.storage.store.ids import concat, ids_from_arrays
from ammrank_dask.storage.store.registry import PartSchema

STARTS = {"indptr": "cell", "X/indptr": "value", "ranking/indptr": "click", "user_id_offsets": "id_byte"}
"""Arrays of starts, and the dimension that each cuts into users."""

Arrays = Mapping[str, np.ndarray]


def take_users(schema: PartSchema, arrays: Arrays, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Return the arrays of a part with the users at some positions, in that order, and all that belongs to them."""
    chosen = {"user": rows}
    for name, dim in STARTS.items():
        if name in arrays:
            chosen[dim] = row_positions(arrays[name], rows)
    dims = {spec.name: spec.dims[0] for spec in schema.arrays}
    taken = {}
    for name, array in arrays.items():
        if name in STARTS:
            taken[name] = np.concatenate([[0], np.cumsum(np.diff(array)[rows])]).astype(array.dtype)
        else:
            taken[name] = array[chosen[dims[name]]]
    return taken


def join_users(schema: PartSchema, parts: Sequence[Arrays]) -> dict[str, np.ndarray]:
    """Return the arrays of parts that have no user in common as those of one part, users ascending by id."""
    filled = [part for part in parts if len(ids_from_arrays(part))]
    if len(filled) < 2:
        return dict(filled[0] if filled else parts[0])
    joined = {}
    for name in filled[0]:
        arrays = [part[name] for part in filled]
        if name in STARTS:
            counts = np.concatenate([np.diff(array) for array in arrays])
            joined[name] = np.concatenate([[0], np.cumsum(counts)]).astype(arrays[0].dtype)
        else:
            joined[name] = np.concatenate(arrays)
    ids = concat([ids_from_arrays(part) for part in filled])
    order = np.empty(len(ids), np.int64)
    order[ids.sort_unique().positions_of(ids)] = np.arange(len(ids))
    return take_users(schema, joined, order)


def position_in_row(starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the user of every element that starts cut into users, and its position among those of the user."""
    user = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    return user, np.arange(len(user)) - (starts[:-1] - starts[0])[user]


def row_positions(starts: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the positions of the elements of some users, one user after the other."""
    counts = np.diff(starts)[rows]
    ends = np.cumsum(counts)
    return np.repeat(starts[:-1][rows] - ends + counts, counts) + np.arange(counts.sum())
