"""Write and read one partition of a run: an Arrow table in one file, or features as a zarr group in a folder.

Every byte is checked against its checksum before it is decoded.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import numpy as np

from ammrank_dask.storage.errors import BadInput, DamagedStore
from ammrank_dask.storage.objects.folders import read_file
from ammrank_dask.storage.objects.retry import retried
from ammrank_dask.storage.store.groups import Group, write_group
from ammrank_dask.storage.store.registry import FEATURES, REBUILD, PartSchema
from ammrank_dask.storage.store.tables import encode_arrays, encode_users, read_arrow, write_arrow

TABLE_SUFFIX = ".arrow"


@dataclass(frozen=True)
class PartFacts:
    """What the manifest keeps of a part: the task that wrote it returns this, and nobody opens the part for it."""

    name: str
    rows: int
    nnz: int
    bytes: int
    checksum: str

    def to_json(self) -> dict[str, Any]:
        """Return the entry of the manifest."""
        return {
            "name": self.name,
            "rows": self.rows,
            "nnz": self.nnz,
            "bytes": self.bytes,
            "checksum": self.checksum,
        }


class WrittenPart(NamedTuple):
    """What a task returns of a part: the facts, and the JSON of what only it can tell."""

    facts: PartFacts
    counts: Any = None


@dataclass(frozen=True)
class Recoding:
    """The code that every category of a run has now, -1 for none, and how many categories and groups there are now."""

    codes: tuple[int, ...]
    n_categories: int
    n_groups: int


@dataclass(frozen=True)
class PartRef:
    """A partition of a run, with its checksum in the manifest: small enough to travel with a task.

    With a `recoding`, who reads its cells has to give them the codes of now.
    """

    run: Path
    partition: int
    checksum: str
    recoding: Recoding | None = None

    @retried
    def read(self, schema: PartSchema, only: Iterable[str] | None = None) -> dict[str, np.ndarray]:
        """Read the arrays, all or only some, after checking every byte that is needed."""
        path = schema_path(self.run, self.partition, schema)
        with _say_damage(path, schema.remedy):
            if schema.kind == FEATURES.kind:
                group = Group(path, self.checksum, schema.remedy)
                wanted = set(group.arrays if only is None else only)
                arrays = {name: group.rows(name) for name in group.arrays if name in wanted}
            else:
                table = read_arrow(path, self.checksum, schema.remedy)
                arrays = table.users() if schema.has_users else table.arrays()
                if only is not None:  # copies, for a view of some would keep all in memory
                    arrays = {name: arrays[name].copy() for name in set(only) & set(arrays)}
        if only is None:
            schema.validate(arrays, str(path))
        return arrays

    @retried
    def open(self) -> Group:
        """Open a part of features for reading stretches of its arrays."""
        path = schema_path(self.run, self.partition, FEATURES)
        with _say_damage(path, FEATURES.remedy):
            group = Group(path, self.checksum, FEATURES.remedy)
        FEATURES.validate(group.arrays, str(path))
        return group


@contextlib.contextmanager
def _say_damage(path: Path, remedy: str) -> Iterator[None]:
    """Raise the error of a part that cannot be decoded, with what to do about it."""
    try:
        yield
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        if isinstance(error, DamagedStore):
            raise
        raise DamagedStore(f"{path} cannot be decoded: {error}; {remedy}") from None


def schema_path(run: Path, partition: int, schema: PartSchema) -> Path:
    """Return where a partition of a run of some kind is."""
    return run / part_names(partition)[schema.kind == FEATURES.kind]


def part_names(partition: int) -> tuple[str, str]:
    """Return the names that a partition can have in the folder of a run: of a table, and of a group."""
    return f"part-{partition:05d}{TABLE_SUFFIX}", f"part-{partition:05d}"


@retried
def write_part(
    run: Path,
    partition: int,
    schema: PartSchema,
    arrays: Mapping[str, np.ndarray],
    group_attributes: Mapping[str, Mapping[str, Any]] | None = None,
) -> PartFacts:
    """Write a partition under a temporary name and rename it: afterwards it is whole.

    Parameters
    ----------
    group_attributes
        Attributes of groups inside features, by name.
    """
    final = schema_path(run, partition, schema)
    lengths = schema.validate(arrays, str(final))
    counts = {
        "rows": lengths.get(schema.rows_dim, 0),
        "nnz": lengths.get(schema.nnz_dim, 0) if schema.nnz_dim else 0,
    }
    if schema.kind == FEATURES.kind:
        size, checksum = write_group(final, arrays, group_attributes or {})
    elif schema.has_users:
        cells = {spec.name for spec in schema.arrays if spec.dims == ("cell",)}
        of_users = {name: array for name, array in arrays.items() if name not in cells}
        of_cells = {name: array for name, array in arrays.items() if name in cells}
        size, checksum = write_arrow(final, encode_users(of_users, of_cells))
    else:
        size, checksum = write_arrow(final, encode_arrays(arrays))
    return PartFacts(final.name, **counts, bytes=size, checksum=checksum)


class CheckedReader:
    """Reads files of a folder one at a time and compares each with the list of sizes and checksums.

    One at a time, so that a chunk is still in the cache of the core when it is decoded.
    """

    def __init__(self, folder: Path, listing: Mapping[str, list[int]], remedy: str = REBUILD) -> None:
        self.folder = folder
        self.listing = listing
        self.remedy = remedy

    @retried
    def __call__(self, name: str) -> bytes:
        """Return the bytes of a file."""
        path = self.folder / name
        if name not in self.listing:
            raise DamagedStore(f"{path} is not in the list of its part; {self.remedy}")
        try:
            data = read_file(path)
        except FileNotFoundError:
            raise DamagedStore(f"{path} is missing; {self.remedy}", missing=path) from None
        if self.listing[name] != [len(data), google_crc32c.value(data)]:
            raise DamagedStore(f"{path} is not what was written (checksum differs); {self.remedy}")
        return data


def check_files(folder: Path, listing: Mapping[str, list[int]]) -> int:
    """Compare files with the list of their sizes and checksums; return the bytes read, name the first that differs."""
    read = CheckedReader(folder, listing)
    return sum(len(read(name)) for name in listing)


@retried
def checksum_file(path: Path) -> list[int]:
    """Return size and checksum of a file."""
    data = read_file(path)
    return [len(data), google_crc32c.value(data)]


@retried
def check_part(path: Path, expected: str) -> int:
    """Check every byte of a part without decoding it; return the number of bytes read."""
    if path.suffix == TABLE_SUFFIX:
        return len(read_arrow(path, expected, REBUILD).data)
    with _say_damage(path, REBUILD):
        return Group(path, expected, REBUILD).check()


def is_intact(path: Path, expected: str) -> bool:
    """Return whether the bytes of a part are those that were written."""
    try:
        return check_part(path, expected) > 0
    except BadInput:
        return False


def checksum_of(content: Mapping[str, Any]) -> str:
    """Return the checksum of a JSON document's content."""
    return f"{google_crc32c.value(json.dumps(content, sort_keys=True).encode()):08x}"
