"""Pass rows from readers to partitions through scratch files of some batches, sliced by partition.

Unlike a shuffle inside the cluster, it can be rerun piece by piece: a reader writes whole files, a partition reads
its slices of all of them in file order. A file is an Arrow IPC file with one record batch a partition; the index beside
it says where each is and what its CRC-32C is, so that a partition reads no more than its own.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa

from ammrank_dask.storage.errors import DamagedStore
from ammrank_dask.storage.objects.atomic import read_json, write_atomic, write_file, write_json
from ammrank_dask.storage.objects.folders import create_file, open_to_read, read_file
from ammrank_dask.storage.objects.retry import is_passing, retried
from ammrank_dask.storage.store.tables import CountedFile, decode_lists, encode_lists

_PLACE = np.dtype([("start", "<i8"), ("size", "<i8"), ("checksum", "<i8")])
"""Where the record batch of a partition is."""
_FIRST_VALUES = 1 << 20
"""Values for which there is room at first: the first file may be much longer than the others."""


@dataclass(frozen=True)
class ExchangeBlock:
    """The files of one block of rows in a scratch folder: slices, bad rows, and the facts, which are written last."""

    folder: Path
    number: int

    def slice_path(self, number: int) -> Path:
        """Return one file of the block."""
        return self.folder / f"block-{self.number:05d}-{number:03d}.arrow"

    @property
    def quarantine_path(self) -> Path:
        """The file of the block's bad rows."""
        return self.folder / f"quarantine-{self.number:05d}.parquet"

    @property
    def facts_path(self) -> Path:
        """The file that makes the block whole."""
        return self.folder / f"block-{self.number:05d}.json"

    def finish(self, checksums: Sequence[int], counts: Mapping[str, Any]) -> None:
        """Make the block whole; `checksums` are what `write_slices` returned for each file."""
        write_json(self.facts_path, {"files": checksums, "facts": counts}, durable=False)

    def read_facts(self) -> dict[str, Any]:
        """Return the facts of a whole block."""
        facts: dict[str, Any] = read_json(self.facts_path)["facts"]
        return facts

    def slice_paths(self) -> list[Path]:
        """Return the slices of a whole block in row order."""
        return [self.slice_path(number) for number in range(len(read_json(self.facts_path)["files"]))]

    def is_whole(self, n_partitions: int) -> bool:
        """Return whether all files of the block are what was written: a power cut may lose what was not synced."""
        try:
            checksums = read_json(self.facts_path)["files"]
            return all(_is_whole_file(self.slice_path(i), n_partitions, one) for i, one in enumerate(checksums))
        except (ValueError, OSError, KeyError, TypeError) as error:
            if is_passing(error):
                raise
            return False


Sections = Mapping[str, tuple[np.ndarray, np.ndarray]]
"""By name: an array that is sorted by partition, and where each partition starts in it, with the end of the last one
behind."""


def write_slices(path: Path, n_partitions: int, batches: Sequence[Sections]) -> int:
    """Write batches of rows that are sorted by partition, all with the same sections; return the CRC-32C of the index.

    The record batch of a partition has one row a batch, and one column a section: a list of values.
    """
    first = _encode_slice(batches, 0)
    index = np.empty(n_partitions + 1, _PLACE)

    def write(temporary: Path) -> None:
        with create_file(temporary) as file:
            counted = CountedFile(file)
            with pa.PythonFile(counted, "w") as sink, pa.ipc.new_file(sink, first.schema) as writer:
                for partition in range(n_partitions):
                    start, counted.checksum = counted.size, 0
                    writer.write_batch(_encode_slice(batches, partition) if partition else first)
                    index[partition] = start, counted.size - start, counted.checksum

    write_atomic(path, write, durable=False)
    schema = first.schema.serialize().to_pybytes()
    index[n_partitions] = index.nbytes, len(schema), google_crc32c.value(schema)
    data = index.tobytes() + schema
    write_file(_index_of(path), data, durable=False)
    return google_crc32c.value(data)


def _encode_slice(batches: Sequence[Sections], partition: int) -> pa.RecordBatch:
    columns = {}
    for name in batches[0] if batches else ():
        slices = [
            values[starts[partition] : starts[partition + 1]] for values, starts in (one[name] for one in batches)
        ]
        starts = np.concatenate([[0], np.cumsum([len(one) for one in slices])])
        columns[name] = encode_lists(starts, slices[0] if len(slices) == 1 else np.concatenate(slices))
    return pa.RecordBatch.from_pydict(columns)


class Slices(list[dict[str, np.ndarray]]):
    """The slices of one partition, of every batch its arrays by section; `joined` has those of all batches as one."""

    def __init__(self, batches: Iterable[dict[str, np.ndarray]], joined: Mapping[str, np.ndarray]) -> None:
        super().__init__(batches)
        self.joined = joined


@retried
def read_slices(paths: Sequence[Path], partition: int, n_partitions: int) -> Slices:
    """Return the slices of one partition of every batch, in the order of the files."""
    joined: dict[str, _JoinedSection] = {}
    batches: list[dict[str, slice]] = []
    for path in paths:
        batch = _read_batch(path, partition, n_partitions)
        read: list[dict[str, slice]] = [{} for _ in range(batch.num_rows)]
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            starts, values = decode_lists(column)
            if name not in joined:
                joined[name] = _JoinedSection(values.dtype, min(len(values) * len(paths) * 5 // 4, _FIRST_VALUES))
            first = joined[name].append(values)
            for row, part in enumerate(read):
                part[name] = slice(first + int(starts[row]), first + int(starts[row + 1]))
        batches += read
    arrays = {name: section.array() for name, section in joined.items()}
    return Slices([{name: arrays[name][where] for name, where in batch.items()} for batch in batches], arrays)


def _read_batch(path: Path, partition: int, n_partitions: int) -> pa.RecordBatch:
    """Read the record batch of a partition, and compare it with its checksum before Arrow sees it."""
    try:
        with open_to_read(_index_of(path)) as index:
            place = _read_place(index, partition)
            schema = _read_checked(index, *_read_place(index, n_partitions))
        with open_to_read(path) as file:
            data = _read_checked(file, *place)
    except (FileNotFoundError, ValueError):
        raise DamagedStore(f"{path} is not what was written; run the command again") from None
    # Arrow writes the schema with the first batch.
    start = 0 if partition else len(b"ARROW1\0\0") + len(schema)
    return pa.ipc.read_record_batch(pa.py_buffer(data)[start:], _decode_schema(schema))


def _read_place(file: io.FileIO, number: int) -> list[int]:
    file.seek(number * _PLACE.itemsize)
    return list(np.frombuffer(file.read(_PLACE.itemsize), _PLACE, 1)[0].item())


def _read_checked(file: io.FileIO, start: int, size: int, checksum: int) -> bytes:
    """Return some bytes of a file; raises ValueError when they are not what was written."""
    if not 0 <= start <= start + size <= file.seek(0, io.SEEK_END):
        raise ValueError("it was cut")
    file.seek(start)
    data = file.read(size)
    if google_crc32c.value(data) != checksum:
        raise ValueError("its checksum differs")
    return data


@functools.lru_cache(maxsize=8)
def _decode_schema(data: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(data))


class _JoinedSection:
    """A section of several files in one array: to join them afterwards would be to touch twice the memory."""

    def __init__(self, dtype: np.dtype, size: int) -> None:
        self._values = np.empty(size, dtype)
        self._n = 0

    def append(self, values: np.ndarray) -> int:
        """Append values, and return where they begin."""
        begin, end = self._n, self._n + len(values)
        if end > len(self._values):
            longer = np.empty(2 * end, self._values.dtype)
            longer[:begin] = self._values[:begin]
            self._values = longer
        self._values[begin:end] = values
        self._n = end
        return begin

    def array(self) -> np.ndarray:
        """Return all that was appended."""
        return self._values[: self._n]


@retried
def _is_whole_file(path: Path, n_partitions: int, checksum: int) -> bool:
    """Return whether a file and its index are what was written."""
    data = read_file(_index_of(path))
    if google_crc32c.value(data) != checksum:
        return False
    with open_to_read(path) as file:
        for place in np.frombuffer(data, _PLACE, n_partitions).tolist():
            _read_checked(file, *place)
    return True


def _index_of(path: Path) -> Path:
    return path.with_suffix(".index")
