"""Keep the user ids of a partition, sorted and unique, whether they are integers or strings."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.in_memory import check_in_memory

ID_ARRAYS = ("user_id", "user_id_offsets", "user_id_bytes")
"""The arrays under which ids are stored: integers in the first, strings in the other two."""
_IDS_AT_ONCE = 500_000


class UserIds(ABC):
    """User ids in a fixed order. The two kinds have the same calls and are never mixed."""

    kind: ClassVar[str]

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def take(self, positions: np.ndarray) -> UserIds:
        """Return the ids at the given positions."""

    @abstractmethod
    def stretch(self, start: int, stop: int) -> UserIds:
        """Return the ids from `start` to `stop` where they are; no copy is made."""

    @abstractmethod
    def to_arrow(self) -> pa.Array:
        """Return the ids as an Arrow array."""

    @abstractmethod
    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the ids as the arrays under which they are stored."""

    @abstractmethod
    def sort_unique(self) -> UserIds:
        """Return the distinct ids in ascending order."""

    def positions_of(self, other: UserIds) -> np.ndarray:
        """Return where each id of `other` stands in these sorted ids, -1 where it does not (int64)."""
        if not len(self) or not len(other):
            return np.full(len(other), -1, np.int64)
        return self._find(_same_kind(self, other))

    @abstractmethod
    def _find(self, other: Any) -> np.ndarray: ...

    def count_up_to(self, one: UserIds) -> int:
        """Return how many of these sorted ids are not above the single id of `one`."""
        return self._count_up_to(_same_kind(self, one)) if len(self) else 0

    @abstractmethod
    def _count_up_to(self, one: Any) -> int: ...

    def to_pandas(self) -> pd.Series:
        """Return the ids as a pandas Series named user_id."""
        return pd.Series(self.to_arrow().to_pandas(), name="user_id")

    def equals(self, other: UserIds) -> bool:
        """Return whether both hold the same ids in the same order."""
        return self.kind == other.kind and bool(self.to_arrow().equals(other.to_arrow()))


class IntegerIds(UserIds):
    """Ids that are 64-bit integers."""

    kind = "int64"

    def __init__(self, values: np.ndarray) -> None:
        self.values = np.ascontiguousarray(values, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.values)

    def take(self, positions: np.ndarray) -> IntegerIds:
        return IntegerIds(self.values[positions])

    def stretch(self, start: int, stop: int) -> IntegerIds:
        return IntegerIds(self.values[start:stop])

    def to_arrow(self) -> pa.Array:
        return pa.array(self.values)

    def to_arrays(self) -> dict[str, np.ndarray]:
        return {"user_id": self.values}

    def sort_unique(self) -> IntegerIds:
        # Most are some sorted arrays one behind the other, which a stable sort merges.
        ordered = np.sort(self.values, kind="stable")
        is_first = np.ones(len(ordered), bool)
        np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
        return IntegerIds(ordered if is_first.all() else ordered[is_first])

    def _find(self, other: IntegerIds) -> np.ndarray:
        wanted = other.values
        found = np.searchsorted(self.values, wanted)
        found[found == len(self.values)] = 0
        return np.where(self.values[found] == wanted, found, -1).astype(np.int64)

    def _count_up_to(self, one: IntegerIds) -> int:
        return int(np.searchsorted(self.values, one.values[0], side="right"))


class StringIds(UserIds):
    """Ids that are strings, ordered by their UTF-8 bytes."""

    kind = "string"

    def __init__(self, values: pa.Array) -> None:
        self.values = values if values.type == pa.large_string() else values.cast(pa.large_string())

    def __len__(self) -> int:
        return len(self.values)

    def take(self, positions: np.ndarray) -> StringIds:
        return StringIds(self.values.take(pa.array(positions)))

    def stretch(self, start: int, stop: int) -> StringIds:
        return StringIds(self.values[start:stop])

    def to_arrow(self) -> pa.Array:
        return self.values

    def to_arrays(self) -> dict[str, np.ndarray]:
        offsets, data = string_buffers(self.values)
        return {"user_id_offsets": offsets, "user_id_bytes": data}

    def sort_unique(self) -> StringIds:
        distinct = self.values.unique()
        return StringIds(distinct.take(pc.sort_indices(distinct)))

    def _find(self, other: StringIds) -> np.ndarray:
        found = pc.index_in(other.values, value_set=self.values)
        return found.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)

    def _count_up_to(self, one: StringIds) -> int:
        return int(pc.sum(pc.less_equal(self.values, one.values[0])).as_py())


def string_buffers(values: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return (offsets int64, bytes uint8) of a large_string array without nulls, starting at offset 0."""
    _, offsets_buffer, data_buffer = values.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64)[values.offset : values.offset + len(values) + 1]
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.empty(0, np.uint8)
    if not len(offsets):
        offsets = np.zeros(1, np.int64)
    return offsets - offsets[0], data[offsets[0] : offsets[-1]]


def ids_from_arrays(arrays: Mapping[str, np.ndarray]) -> UserIds:
    """Return the ids that `to_arrays` stored."""
    if "user_id" in arrays:
        return IntegerIds(arrays["user_id"])
    offsets, data = arrays["user_id_offsets"], arrays["user_id_bytes"]
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets)), pa.py_buffer(np.ascontiguousarray(data))]
    return StringIds(pa.Array.from_buffers(pa.large_string(), len(offsets) - 1, buffers))


def ids_from_values(values: Any) -> UserIds:
    """Return ids from a list, numpy array, pandas Series or Arrow array of integers or strings."""
    if isinstance(values, UserIds):
        return values
    check_in_memory("user_ids", values)
    try:
        array = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError):
        raise BadInput("user ids must be a list of values of one type, integers or strings; convert them") from None
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if array.null_count:
        raise BadInput(f"user ids must not be null, found {array.null_count} nulls")
    if pa.types.is_integer(array.type):
        try:
            return IntegerIds(array.cast(pa.int64()).to_numpy(zero_copy_only=False))
        except pa.ArrowInvalid:
            raise BadInput("user ids must be 64-bit integers, found a larger number; give them as strings") from None
    if is_string(array.type):
        return StringIds(array)
    if not len(array):
        return IntegerIds(np.empty(0, np.int64))
    raise BadInput(f"user ids must be int64 or string, found {array.type}")


def empty_ids(kind: str) -> UserIds:
    """Return no ids of the given kind."""
    return IntegerIds(np.empty(0, np.int64)) if kind == "int64" else StringIds(pa.array([], pa.large_string()))


def one_kind(kinds: Iterable[str]) -> str:
    """Return the one kind that ids from several sources have, int64 of none; refuse several."""
    distinct = set(kinds)
    if len(distinct) > 1:
        raise BadInput("user ids must be of one type, found int64 and string; convert one of the two sources")
    return next(iter(distinct), "int64")


def is_string(type_: pa.DataType) -> bool:
    """Return whether an Arrow type is one of the string types."""
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_))


def concat(parts: Sequence[UserIds]) -> UserIds:
    """Concatenate ids. Empty parts are skipped, so their id type may differ."""
    filled = [part for part in parts if len(part)] or [parts[0]]
    first = filled[0]
    for part in filled[1:]:
        _same_kind(first, part)
    if isinstance(first, IntegerIds):
        return IntegerIds(np.concatenate([part.values for part in filled]))  # type: ignore[attr-defined]
    return StringIds(pa.concat_arrays([part.to_arrow() for part in filled]))


def union(parts: Sequence[UserIds]) -> UserIds:
    """Return the distinct ids of all parts in ascending order."""
    return concat(parts).sort_unique()


def digest_ids(ids: UserIds) -> str:
    """Return the SHA-256 of ids in their order."""
    arrays = ids.to_arrays().values()
    return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()


def union_of_many(parts: Iterable[UserIds]) -> UserIds | None:
    """Return the union of many parts, never holding more than a few of them at a time; None of no parts."""
    merged: UserIds | None = None
    waiting: list[UserIds] = []
    for part in parts:
        waiting.append(part)
        if sum(map(len, waiting)) > _IDS_AT_ONCE:
            merged = union([*([] if merged is None else [merged]), *waiting])
            waiting = []
    if waiting:
        merged = union([*([] if merged is None else [merged]), *waiting])
    return merged


def _same_kind(one: UserIds, other: UserIds) -> Any:
    if one.kind != other.kind:
        raise BadInput(
            f"user ids must be of one type, found {one.kind} and {other.kind}; convert one of the two sources"
        )
    return other
