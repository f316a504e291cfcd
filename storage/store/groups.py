"""Write and read a part that is a plain zarr v3 group: a folder that zarr-python made, one chunk an array.

The attributes of the group have the size and the CRC-32C of every other file, so that the checksum of one small file
stands for the whole part, and a missing chunk, which zarr reads as its fill value, is a missing file here.
"""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import numpy as np

from ammrank_dask.storage.errors import BadInput, DamagedStore
from ammrank_dask.storage.objects.atomic import write_folder
from ammrank_dask.storage.objects.folders import open_to_read, walk
from ammrank_dask.storage.objects.retry import retried
from ammrank_dask.storage.store.scratch_arrays import read_values

METADATA = "zarr.json"
_FILES = "files"
_AT_ONCE = 4 << 20
_TRAILER = 4
"""Bytes of its CRC-32C behind a chunk: the codec `crc32c`."""


class StoredArray(NamedTuple):
    """What is known of an array before it is read."""

    shape: tuple[int, ...]
    dtype: np.dtype


@retried
def write_group(
    folder: Path,
    arrays: Mapping[str, np.ndarray],
    attributes: Mapping[str, Mapping[str, Any]],
) -> tuple[int, str]:
    """Write arrays as a group and return its size and its checksum. The end of the run syncs it.

    Parameters
    ----------
    attributes
        Those of groups inside, by name.
    """
    files = encode_group(arrays, attributes)
    write_folder(folder, {name: data.data for name, data in files.items()}, durable=False)
    return sum(data.nbytes for data in files.values()), f"{google_crc32c.value(files[METADATA]):08x}"


def encode_group(
    arrays: Mapping[str, np.ndarray], attributes: Mapping[str, Mapping[str, Any]]
) -> dict[str, np.ndarray]:
    """Return the files of a group by name, the metadata of the group last; without arrays that is all."""
    # Here, because whoever serves a model waits for its import.
    import zarr
    from zarr.codecs import Crc32cCodec
    from zarr.storage import MemoryStore

    stored: dict[str, Any] = {}
    group = zarr.create_group(MemoryStore(stored))
    for name in sorted({name.rpartition("/")[0] for name in arrays} - {""}):
        group.create_group(name, attributes=dict(attributes.get(name, {})))
    for name, array in arrays.items():
        made = group.create_array(
            name, shape=array.shape, dtype=array.dtype, chunks=tuple(max(1, n) for n in array.shape),
            compressors=Crc32cCodec(), fill_value=_unused(array.dtype), config={"write_empty_chunks": True},
        )  # fmt: skip
        made[...] = array
    files = {name: data.as_numpy_array() for name, data in stored.items() if name != METADATA}
    if files:
        group.update_attributes({_FILES: {name: _describe(name, data) for name, data in sorted(files.items())}})
    return {**files, METADATA: stored[METADATA].as_numpy_array()}


def _unused(dtype: np.dtype) -> Any:
    """Return a value that no stored array has: a chunk that is lost is not to look like one that was written."""
    if dtype.kind == "f":
        return float("nan")
    return np.iinfo(dtype).min if dtype.kind == "i" else np.iinfo(dtype).max


def _describe(name: str, data: np.ndarray) -> list[int]:
    return [len(data), google_crc32c.value(data[: len(data) - _trailer(name)])]


def _trailer(name: str) -> int:
    # The checksum of bytes with their own checksum behind is the same for all bytes.
    return 0 if name.endswith(METADATA) else _TRAILER


class Group:
    """A part that is open: its arrays, of which all or some rows are read after all bytes of them were checked.

    Raises DamagedStore, with what to do about it (`remedy`), where it is not what was written.
    """

    def __init__(self, folder: Path, checksum: str, remedy: str) -> None:
        self._folder, self._remedy = folder, remedy
        data = self._read(METADATA)
        if f"{google_crc32c.value(data):08x}" != checksum:
            raise self._differs(METADATA)
        self._files: dict[str, list[int]] = json.loads(data)["attributes"][_FILES]
        self._size = len(data) + sum(size for size, _ in self._files.values())
        self._unchecked = set(self._files)
        documents = {name: self._document(name) for name in self._files if name.endswith(METADATA)}
        self.arrays = {
            name.removesuffix(f"/{METADATA}"): StoredArray(tuple(found["shape"]), np.dtype(found["data_type"]))
            for name, found in documents.items()
            if found["node_type"] == "array"
        }

    def attributes(self, group: str) -> dict[str, Any]:
        """Return the attributes of a group inside."""
        attributes: dict[str, Any] = self._document(f"{group}/{METADATA}")["attributes"]
        return attributes

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Return the rows of an array from `start` to `stop`, by default all, in memory of their own.

        The first time all of it is read once to be checked, some at a time: what is in memory are the rows.
        """
        shape, dtype = self.arrays[name]
        stop = shape[0] if stop is None else stop
        if 0 in shape:  # zarr writes no chunk
            return np.empty((stop - start, *shape[1:]), dtype)
        chunk, row = "/".join([name, "c", *"0" * len(shape)]), math.prod(shape[1:])
        self._check(chunk)
        values = retried(read_values)(self._folder / chunk, dtype, (stop - start) * row, start * row * dtype.itemsize)
        return values.reshape(stop - start, *shape[1:])

    def check(self) -> int:
        """Check every file, and that there are no others; return the bytes read."""
        found = {Path(root, name).relative_to(self._folder) for root, _, names in walk(self._folder) for name in names}
        extra = sorted({path.as_posix() for path in found} - {METADATA, *self._files})
        if extra:
            raise BadInput(f"{self._folder / extra[0]} was not written by this package; remove it")
        for name in self._files:
            self._check(name)
        return self._size

    def _document(self, name: str) -> dict[str, Any]:
        self._check(name)
        document: dict[str, Any] = json.loads(self._read(name))
        return document

    @retried
    def _check(self, name: str) -> None:
        """Compare the bytes of a file with what the group says of it, once."""
        if name not in self._files:
            raise DamagedStore(f"{self._folder / name} is not in the list of its part; {self._remedy}")
        if name not in self._unchecked:
            return
        size, checksum = self._files[name]
        left, found, trailer = size - _trailer(name), 0, b""
        with self._open(name) as file:
            is_whole = file.seek(0, os.SEEK_END) == size
            file.seek(0)
            while left and (data := file.read(min(left, _AT_ONCE))):
                left, found = left - len(data), google_crc32c.extend(found, data)
            trailer = file.read()
        if not is_whole or found != checksum or trailer != checksum.to_bytes(4, "little")[: _trailer(name)]:
            raise self._differs(name)
        self._unchecked.discard(name)

    @retried
    def _read(self, name: str) -> bytes:
        with self._open(name) as file:
            return file.read()

    def _open(self, name: str) -> io.FileIO:
        try:
            return open_to_read(self._folder / name)
        except FileNotFoundError:
            path = self._folder / name
            raise DamagedStore(f"{path} is missing; {self._remedy}", missing=path) from None

    def _differs(self, name: str) -> DamagedStore:
        return DamagedStore(f"{self._folder / name} is not what was written (checksum differs); {self._remedy}")
