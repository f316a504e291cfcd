"""Write and read tables of a site: Arrow IPC files, compared with their CRC-32C before Arrow sees a byte of them.

Most damage would be read as values, and that of offsets would end the process. What is read is not copied: arrays are
views of the bytes of their file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa

from ammrank_dask.storage.errors import DamagedStore
from ammrank_dask.storage.objects.atomic import write_atomic
from ammrank_dask.storage.objects.folders import create_file, open_to_read
from ammrank_dask.storage.objects.retry import retried

IDS, ID_STARTS, ID_BYTES = "user_id", "user_id_offsets", "user_id_bytes"
CELLS, CELL_STARTS = "cells", "indptr"
"""The column with what a user has several of, and the array that says where those of each begin."""


def encode_users(columns: Mapping[str, np.ndarray], cells: Mapping[str, np.ndarray]) -> pa.RecordBatch:
    """Return a table with one row per user: ids, one value of each other column, and `cells` as a list of structs.

    String ids are the arrays `user_id_offsets` and `user_id_bytes`; `indptr` cuts the cells into users.
    """
    made = {}
    for name, array in columns.items():
        if name == ID_STARTS:
            buffers = [None, _buffer(array), _buffer(columns[ID_BYTES])]
            made[IDS] = pa.Array.from_buffers(pa.large_string(), len(array) - 1, buffers)
        elif name not in (ID_BYTES, CELL_STARTS):
            made[name] = _values(array)
    if CELL_STARTS in columns:
        fields = [_values(array) for array in cells.values()]
        made[CELLS] = _lists(columns[CELL_STARTS], pa.StructArray.from_arrays(fields, list(cells)))
    return pa.RecordBatch.from_pydict(made)


def encode_arrays(arrays: Mapping[str, np.ndarray]) -> pa.RecordBatch:
    """Return arrays of any lengths as a table of one row: a list each, and lists in it for a second dimension."""
    made = {}
    for name, array in arrays.items():
        values = _values(array.reshape(-1))
        for axis in range(array.ndim - 1, 0, -1):
            kind, n = pa.list_(values.type, array.shape[axis]), math.prod(array.shape[:axis])
            values = pa.Array.from_buffers(kind, n, [None], children=[values])
        made[name] = _lists(np.array([0, len(array)]), values)
    return pa.RecordBatch.from_pydict(made)


class Memory:
    """Bytes of a file in memory that may be changed, and views of what Arrow finds in them."""

    def __init__(self, data: np.ndarray) -> None:
        self.data = data
        self.buffer = pa.py_buffer(data)

    def users(self) -> dict[str, np.ndarray]:
        """Return the arrays that `encode_users` took."""
        arrays = {}
        for name, column in self._columns():
            if pa.types.is_large_string(column.type):
                arrays[ID_STARTS], size = self._starts(column)
                arrays[ID_BYTES] = self._view(column.buffers()[2], np.dtype(np.uint8), size)
            elif pa.types.is_large_list(column.type):
                arrays[CELL_STARTS], _ = self._starts(column)
                items = column.values
                arrays |= {field.name: self._array(items.field(i)) for i, field in enumerate(items.type)}
            else:
                arrays[name] = self._array(column)
        return arrays

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays that `encode_arrays` took."""
        found = {}
        for name, column in self._columns():
            shape, values = [], column
            while not pa.types.is_primitive(values.type):
                shape.append(len(values.values) if values is column else values.type.list_size)
                values = values.values
            found[name] = self._array(values).reshape(shape)
        return found

    def _columns(self) -> list[tuple[str, pa.Array]]:
        batch = pa.ipc.open_file(self.buffer).get_batch(0)
        return list(zip(batch.schema.names, batch.columns, strict=True))

    def _starts(self, column: pa.Array) -> tuple[np.ndarray, int]:
        starts = self._view(column.buffers()[1], np.dtype(np.int64), len(column) + 1)
        return starts, int(starts[-1])

    def _array(self, column: pa.Array) -> np.ndarray:
        return self._view(column.buffers()[1], np.dtype(column.type.to_pandas_dtype()), len(column))

    def _view(self, buffer: pa.Buffer | None, dtype: np.dtype, n: int) -> np.ndarray:
        # Not through Arrow, whose views cannot be changed: kernels would be compiled once more for those.
        if not n or buffer is None:
            return np.zeros(n, dtype)
        start = buffer.address - self.buffer.address
        return self.data[start : start + n * dtype.itemsize].view(dtype)


def write_arrow(path: Path, batch: pa.RecordBatch) -> tuple[int, str]:
    """Write a table and return its size and its CRC-32C. The end of the run syncs it."""
    counted = CountedFile(None)

    def write(temporary: Path) -> None:
        nonlocal counted
        with create_file(temporary) as file:
            counted = CountedFile(file)
            with pa.PythonFile(counted, "w") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
                writer.write_batch(batch)

    write_atomic(path, write, durable=False)
    return counted.size, f"{counted.checksum:08x}"


class CountedFile:
    """A file that is written, its size and the CRC-32C of its bytes; what Arrow writes to it is not copied."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.size, self.checksum, self.closed = 0, 0, False

    def write(self, data: Any) -> int:
        """Append bytes."""
        self._file.write(data)
        self.size, self.checksum = self.size + len(data), google_crc32c.extend(self.checksum, data)
        return len(data)

    def tell(self) -> int:
        """Return the position."""
        return self.size

    def flush(self) -> None:
        """Leave it to who closes the file."""

    def close(self) -> None:
        """Leave it to who opened the file."""
        self.closed = True


@retried
def read_arrow(path: Path, checksum: str, remedy: str) -> Memory:
    """Return the bytes of a table after they are compared with their CRC-32C."""
    try:
        data = read_bytes(path)
    except FileNotFoundError:
        raise DamagedStore(f"{path} is missing; {remedy}", missing=path) from None
    if f"{google_crc32c.value(data):08x}" != checksum:
        raise DamagedStore(f"{path} is not what was written (checksum differs); {remedy}")
    return Memory(data)


def read_bytes(path: Path) -> np.ndarray:
    """Return the bytes of a file in memory that may be changed."""
    with open_to_read(path) as file:
        data = np.empty(file.seek(0, 2), np.uint8)
        file.seek(0)
        n = 0
        while n < len(data) and (n_read := file.readinto(data[n:].data)):
            n += n_read
    return data[:n]


def encode_lists(starts: np.ndarray, values: np.ndarray) -> pa.Array:
    """Return values that are cut into lists."""
    return _lists(starts, _values(values))


def decode_lists(column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return where lists begin and their values, which cannot be changed."""
    return column.offsets.to_numpy(), column.values.to_numpy()


def _lists(starts: np.ndarray, items: pa.Array) -> pa.Array:
    kind = pa.large_list(pa.field("item", items.type, nullable=False))
    return pa.Array.from_buffers(kind, len(starts) - 1, [None, _buffer(starts)], children=[items])


def _values(array: np.ndarray) -> pa.Array:
    return pa.Array.from_buffers(pa.from_numpy_dtype(array.dtype), len(array), [None, _buffer(array)])


def _buffer(array: np.ndarray) -> pa.Buffer:
    return pa.py_buffer(np.ascontiguousarray(array))
