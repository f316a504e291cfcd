"""Encode and decode the Zarr v3 arrays of a part.

There are two layouts: one dimension chunked, blosc-lz4 with byte shuffle; or one chunk of plain little-endian values,
which numpy reads alone (`np.fromfile`). Both are plain Zarr v3 that any implementation opens (tests read it back with
zarr-python). Writing them directly costs a third of the general machinery of zarr-python, which takes several hops
between threads for every array: a day has thousands of small ones.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ammrank_dask.storage.store.container import Container

CHUNK_BYTES = 4 << 20
"""Size of a chunk before compression: large enough that a chunk costs decoding, not opening."""
METADATA = "zarr.json"
_HEADER_BYTES, _FLAGS, _IS_COPY = 16, 2, 2
"""Of a chunk of blosc: its header, where the flags are in it, and the one of a chunk that is not compressed."""


def encode_group(attributes: Mapping[str, Any]) -> bytes:
    """Return the metadata document of a group."""
    return _document({"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)})


def encode_array(array: np.ndarray, *, compressed: bool = True, share_worth: float = 1.0) -> dict[str, bytes]:
    """Return the files of an array by name: its metadata and its chunks."""
    array = np.ascontiguousarray(array)
    if not compressed:
        return _encode_plain(array)
    size = array.dtype.itemsize
    rows = max(1, min(len(array), CHUNK_BYTES // (size * _row_items(array.shape))))
    files = {METADATA: _array_document(array.dtype, array.shape, (rows, *array.shape[1:]))}
    tail = "/0" * (array.ndim - 1)
    for number, start in enumerate(range(0, len(array), rows)):
        chunk = array[start : start + rows]
        if len(chunk) < rows:  # the last chunk is stored whole, padded with the fill value
            padded = np.zeros((rows, *array.shape[1:]), array.dtype)
            padded[: len(chunk)] = chunk
            chunk = padded
        files[f"c/{number}{tail}"] = _compress(chunk, share_worth)
    return files


def _compress(chunk: np.ndarray, share_worth: float) -> bytes:
    """Return a chunk as blosc has it: compressed where that is worth it, else its bytes behind blosc's header."""
    blosc = _blosc()
    compressed: bytes = blosc.compress(chunk, b"lz4", 5, blosc.SHUFFLE)
    if share_worth * chunk.nbytes < len(compressed) < _HEADER_BYTES + chunk.nbytes:
        compressed = blosc.compress(chunk, b"lz4", 0, blosc.SHUFFLE)
    return compressed


def decode_array(read: Container | Callable[[str], bytes], name: str) -> np.ndarray:
    """Return the array `name` of a part, whose files `read` returns; raises ValueError when they are not as written."""
    return StoredArray(read, name).rows()


class StoredArray:
    """An array of a part, of which stretches of rows are decoded. Ask for them in their order: each chunk is read once.

    Raises ValueError when its files, which `read` returns, are not as they were written.
    """

    def __init__(self, read: Container | Callable[[str], bytes], name: str) -> None:
        metadata = json.loads(read(f"{name}/{METADATA}"))
        self.shape: tuple[int, ...] = tuple(metadata["shape"])
        self.dtype = np.dtype(metadata["data_type"]).newbyteorder("<")
        self._read, self._name = read, name
        self._chunk_rows: int = metadata["chunk_grid"]["configuration"]["chunk_shape"][0]
        nothing = np.empty((0, *self.shape[1:]), self.dtype)
        self._is_plain = len(metadata["codecs"]) == 1
        chunk_shape = _plain_chunk_shape(self.shape) if self._is_plain else (self._chunk_rows, *self.shape[1:])
        if metadata != _array_metadata(self.dtype, self.shape, chunk_shape, not self._is_plain):
            raise ValueError(f"{name} is not laid out as this version writes it")
        self._last = (-1, nothing)
        self._lent, self._lent_from, self._lent_to = nothing, 0, 0

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def expect(self) -> None:
        """Begin to read the first chunk, which will be asked for soon."""
        if isinstance(self._read, Container) and not self._is_plain:
            self._read.expect(self._chunk_name(0))

    def rows(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Return the rows from `start` to `stop`, by default all, as an array of its own."""
        stop = self.shape[0] if stop is None else stop
        if self._is_plain:
            return self._plain_rows(start, stop)
        array = np.empty((stop - start, *self.shape[1:]), self.dtype)
        at = start
        while at < stop:
            number, within = divmod(at, self._chunk_rows)
            end = min(stop, (number + 1) * self._chunk_rows)
            target = array[at - start : end - start]
            if len(target) == self._chunk_rows and self._last[0] != number:
                self._decompress(number, target)
            else:
                target[...] = self._kept_chunk(number)[within : within + len(target)]
            at = end
        return array

    def lend(self, start: int, stop: int) -> np.ndarray:
        """Return the rows from `start` to `stop` where they were decoded; the next call takes them back.

        Ask for every row once, and ascending: rows that are lent may be changed. Of the chunk before, what was not
        asked for yet is moved to make room, so nothing is where the rows end with a chunk.
        """
        if self._is_plain:
            return self._plain_rows(start, stop)
        if not self._lent_from <= start <= self._lent_to:
            self._lent_from = self._lent_to = start // self._chunk_rows * self._chunk_rows
        if stop > self._lent_to:
            self._lend_more(min(start, self._lent_to), stop)
        return self._lent[start - self._lent_from : stop - self._lent_from]

    def _lend_more(self, first: int, stop: int) -> None:
        """Decode the chunks up to that of the row before `stop` behind the rows that are there, from `first`."""
        left = self._lent[first - self._lent_from : self._lent_to - self._lent_from]
        chunks = range(self._lent_to // self._chunk_rows, -(-stop // self._chunk_rows))
        size = len(left) + len(chunks) * self._chunk_rows
        room = self._lent if size <= len(self._lent) else np.empty((size, *self.shape[1:]), self.dtype)
        room[: len(left)] = left
        self._lent_from, self._lent = first, room
        for number in chunks:
            at = number * self._chunk_rows - first
            self._decompress(number, room[at : at + self._chunk_rows])
            self._lent_to = (number + 1) * self._chunk_rows

    def _kept_chunk(self, number: int) -> np.ndarray:
        """Return a chunk of which not all rows were asked for, and keep it: the others are asked for next."""
        if self._last[0] != number:
            chunk = np.empty((self._chunk_rows, *self.shape[1:]), self.dtype)
            self._decompress(number, chunk)
            self._last = (number, chunk)
        return self._last[1]

    def _decompress(self, number: int, target: np.ndarray) -> None:
        name, read = self._chunk_name(number), self._read
        if isinstance(read, Container):
            read.expect(self._chunk_name(number + 1))
            if not _copy_chunk(read, name, target):
                _blosc().decompress(read.lend(name), target)
        else:
            _blosc().decompress(read(name), target)

    def _chunk_name(self, number: int) -> str:
        return f"{self._name}/c/{number}" + "/0" * (len(self.shape) - 1)

    def _plain_rows(self, start: int, stop: int) -> np.ndarray:
        if 0 in self.shape:  # an array without values has no chunk
            return np.empty((stop - start, *self.shape[1:]), self.dtype)
        if self._last[0] < 0:
            data = self._read(f"{self._name}/{_plain_chunk(len(self.shape))}")
            self._last = (0, np.frombuffer(data, self.dtype).reshape(self.shape))
        # A copy, because what lies over bytes cannot be changed.
        return self._last[1][start:stop].copy()


def _copy_chunk(read: Container, name: str, target: np.ndarray) -> bool:
    """Read a chunk that is kept as it is straight to its place; tell whether it was one.

    Such a chunk is larger than its values by the header alone.
    """
    if not read.has_size(name, _HEADER_BYTES + target.nbytes):
        return False
    return bool(read.read_behind(name, _HEADER_BYTES, target)[_FLAGS] & _IS_COPY)


def _blosc() -> Any:
    """Return blosc, imported when first needed: plain arrays are read without it, by those who serve a model too.

    Its threads are off: they fight with the workers' own processes, and forked children deadlock.
    """
    from numcodecs import blosc

    blosc.use_threads = False
    return blosc


def _encode_plain(array: np.ndarray) -> dict[str, bytes]:
    chunk_shape = _plain_chunk_shape(array.shape)
    files = {METADATA: _array_document(array.dtype, array.shape, chunk_shape, compressed=False)}
    if array.size:  # an array without values has no chunk
        files[_plain_chunk(array.ndim)] = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    return files


def _plain_chunk(ndim: int) -> str:
    return "/".join(["c", *"0" * ndim])


def _plain_chunk_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(max(1, n) for n in shape)


def _row_items(shape: tuple[int, ...]) -> int:
    return max(1, int(np.prod(shape[1:])))


def _array_metadata(
    dtype: np.dtype, shape: Sequence[int], chunk_shape: Sequence[int], compressed: bool
) -> dict[str, Any]:
    size = dtype.itemsize
    # One byte has no order; the codec then takes no configuration.
    to_bytes = {"name": "bytes", "configuration": {"endian": "little"}} if size > 1 else {"name": "bytes"}
    compressor = {"typesize": size, "cname": "lz4", "clevel": 5, "shuffle": "shuffle", "blocksize": 0}
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": _name_of(dtype),
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunk_shape)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0.0 if dtype.kind == "f" else 0,
        "codecs": [to_bytes, *([{"name": "blosc", "configuration": compressor}] if compressed else [])],
        "attributes": {},
    }


@functools.cache
def _name_of(dtype: np.dtype) -> str:
    return dtype.name  # which numpy puts together by Python each time


def _array_document(
    dtype: np.dtype, shape: tuple[int, ...], chunk_shape: tuple[int, ...], *, compressed: bool = True
) -> bytes:
    """Return the metadata document of an array: that of its layout, with its own numbers."""
    document = _layout_document(dtype, len(shape), compressed)
    for stand_in, number in zip(_stand_ins(len(shape)), (*shape, *chunk_shape), strict=True):
        document = document.replace(str(stand_in), str(number), 1)
    return document.encode()


@functools.cache
def _layout_document(dtype: np.dtype, ndim: int, compressed: bool) -> str:
    """Return the document of all arrays of a layout, with stand-ins for shape and chunks.

    Indented JSON is put together by Python, not by C: a third of a millisecond, and a day has thousands of arrays.
    """
    numbers = _stand_ins(ndim)
    return json.dumps(_array_metadata(dtype, numbers[:ndim], numbers[ndim:], compressed), indent=1)


def _stand_ins(ndim: int) -> list[int]:
    """Return numbers that no array has, for the lengths of an array and then of its chunks."""
    return [10**20 + number for number in range(2 * ndim)]


def _document(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, indent=1).encode()
