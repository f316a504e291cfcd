"""Pass rows from readers to partitions through scratch files of some batches, sliced by partition.

Unlike a shuffle inside the cluster, it can be rerun piece by piece: a reader writes whole files, a partition reads
its slices of all of them in file order.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ammrank_dask.storage.errors import DamagedStore
from ammrank_dask.storage.store.atomic import read_json, write_atomic, write_json
from ammrank_dask.storage.store.large_files import write_pieces
from ammrank_dask.storage.store.retried import is_passing, retried

SECTIONS = ("user", "cell", "time", "event", "row", "age", "gender", "id_lengths", "id_bytes")
_DTYPES = {code: np.dtype(name) for code, name in enumerate(("uint8", "uint16", "uint32", "int64", "int16", "int8"))}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
_HEAD = np.dtype([("size", "<i8"), ("arrays", "<i8")])
_ENTRY = np.dtype([("batch", "<i4"), ("section", "<i2"), ("dtype", "<i2"), ("start", "<i8"), ("n", "<i8")])
"""Where a slice of a partition is, and what of."""
_FIRST_VALUES = 1 << 20
"""Values for which there is room at first: the first file may be much longer than the others."""


@dataclass(frozen=True)
class ExchangeBlock:
    """The files of one block of rows in a scratch folder: slices, bad rows, and the facts, which are written last."""

    folder: Path
    number: int

    def slice_path(self, number: int) -> Path:
        """Return one file of the block."""
        # Another ending than in earlier versions, whose files are laid out otherwise.
        return self.folder / f"block-{self.number:05d}-{number:03d}.slices"

    @property
    def quarantine_path(self) -> Path:
        """The file of the block's bad rows."""
        return self.folder / f"quarantine-{self.number:05d}.parquet"

    @property
    def facts_path(self) -> Path:
        """The file that makes the block whole."""
        return self.folder / f"block-{self.number:05d}.json"

    def finish(self, n_files: int, counts: Mapping[str, Any]) -> None:
        """Make the block whole."""
        write_json(self.facts_path, {"files": n_files, "facts": counts}, durable=False)

    def read_facts(self) -> dict[str, Any]:
        """Return the facts of a whole block."""
        facts: dict[str, Any] = read_json(self.facts_path)["facts"]
        return facts

    def slice_paths(self) -> list[Path]:
        """Return the slices of a whole block in row order."""
        return [self.slice_path(number) for number in range(read_json(self.facts_path)["files"])]

    def is_whole(self) -> bool:
        """Tell whether all files of the block are there with their size: a power cut may lose what was not synced."""
        try:
            return all(_is_whole_file(path) for path in self.slice_paths())
        except (DamagedStore, OSError, KeyError, TypeError) as error:
            if is_passing(error):
                raise
            return False


Sections = Mapping[str, tuple[np.ndarray, np.ndarray]]
"""By name (one of SECTIONS): an array that is sorted by partition, and where each partition starts in it, with the end
of the last one behind."""


def write_slices(path: Path, n_partitions: int, batches: Sequence[Sections]) -> None:
    """Write batches of rows that are sorted by partition.

    In front are the size of the file and how many arrays there are; behind the arrays are, for each partition, where
    its slices are (`_ENTRY`): to read one partition takes two short reads, however many batches there are.
    """
    arrays = [
        (batch, section, *sections[name])
        for batch, sections in enumerate(batches)
        for section, name in enumerate(SECTIONS)
        if name in sections
    ]
    table = np.empty((n_partitions, len(arrays)), _ENTRY)
    at = _HEAD.itemsize
    for column, (batch, section, values, starts) in enumerate(arrays):
        entry = table[:, column]
        entry["batch"], entry["section"], entry["dtype"] = batch, section, _CODES[values.dtype]
        entry["start"], entry["n"] = at + starts[:-1] * values.itemsize, np.diff(starts)
        at += values.nbytes
    head = np.array((at + table.nbytes, len(arrays)), _HEAD)
    pieces = [head.tobytes(), *(np.ascontiguousarray(values) for _, _, values, _ in arrays), table.tobytes()]
    write_atomic(path, lambda temporary: write_pieces(temporary, pieces, cached=True), durable=False)


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
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            raise _not_whole(path) from None
        try:
            entries = _read_entries(descriptor, partition, n_partitions, path)
            found: list[dict[str, slice]] = [{} for _ in range(entries[-1][0] + 1)] if entries else []
            for batch, section, code, start, n in entries:
                name, dtype = SECTIONS[section], _DTYPES[code]
                if name not in joined:
                    joined[name] = _JoinedSection(dtype, min(n * len(paths) * 5 // 4, _FIRST_VALUES))
                found[batch][name] = joined[name].read(descriptor, dtype, n, start, path)
        finally:
            os.close(descriptor)
        batches += found
    arrays = {name: section.array() for name, section in joined.items()}
    return Slices([{name: arrays[name][where] for name, where in batch.items()} for batch in batches], arrays)


def _read_entries(descriptor: int, partition: int, n_partitions: int, path: Path) -> list[tuple[int, ...]]:
    """Return where the slices of a partition are in an open file, and what they are of."""
    head = os.pread(descriptor, _HEAD.itemsize, 0)
    size = os.fstat(descriptor).st_size
    if len(head) < _HEAD.itemsize:
        raise _not_whole(path)
    written_size, n_arrays = np.frombuffer(head, _HEAD)[0].item()
    if size != written_size:  # it was cut
        raise _not_whole(path)
    row_bytes = n_arrays * _ENTRY.itemsize
    row = os.pread(descriptor, row_bytes, size - (n_partitions - partition) * row_bytes)
    return np.frombuffer(row, _ENTRY).tolist()


class _JoinedSection:
    """A section of several files, read into one array: to join them afterwards would be to touch twice the memory."""

    def __init__(self, dtype: np.dtype, size: int) -> None:
        self._values = np.empty(size, dtype)
        self._n = 0

    def read(self, descriptor: int, dtype: np.dtype, n: int, start: int, path: Path) -> slice:
        """Read `n` values from `start` of an open file, and return where they are."""
        begin, end = self._n, self._n + n
        if end > len(self._values):
            longer = np.empty(2 * end, self._values.dtype)
            longer[:begin] = self._values[:begin]
            self._values = longer
        target = self._values[begin:end]
        if dtype != target.dtype or os.preadv(descriptor, [target.data], start) != target.nbytes:
            raise _not_whole(path)
        self._n = end
        return slice(begin, end)

    def array(self) -> np.ndarray:
        """Return all that was read."""
        return self._values[: self._n]


def _not_whole(path: Path) -> DamagedStore:
    return DamagedStore(f"{path} is not what was written; run the command again")


@retried
def _is_whole_file(path: Path) -> bool:
    """Tell whether a file is as long as its first number says."""
    try:
        with open(path, "rb") as file:
            first = file.read(8)
    except FileNotFoundError:
        return False
    return len(first) == 8 and int.from_bytes(first, "little") == path.stat().st_size
