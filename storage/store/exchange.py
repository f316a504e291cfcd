"""Pass rows from readers to partitions through scratch files, one a batch, sliced by partition.

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
from ammrank_dask.storage.store.retried import is_passing, retried

SECTIONS = ("user", "cell", "time", "event", "row", "age", "gender", "id_lengths", "id_bytes")
_DTYPES = {code: np.dtype(name) for code, name in enumerate(("uint8", "uint16", "uint32", "int64", "int16", "int8"))}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
_FIRST_VALUES = 1 << 20
"""Values for which there is room at first: the first file may be much longer than the others."""


@dataclass(frozen=True)
class ExchangeBlock:
    """The files of one block of rows in a scratch folder: slices, bad rows, and the facts, which are written last."""

    folder: Path
    number: int

    def slice_path(self, batch: int) -> Path:
        """Return the file of one batch of the block."""
        # Another ending than in earlier versions, whose files have other sections.
        return self.folder / f"block-{self.number:05d}-{batch:03d}.sections"

    @property
    def quarantine_path(self) -> Path:
        """The file of the block's bad rows."""
        return self.folder / f"quarantine-{self.number:05d}.parquet"

    @property
    def facts_path(self) -> Path:
        """The file that makes the block whole."""
        return self.folder / f"block-{self.number:05d}.json"

    def finish(self, n_batches: int, counts: Mapping[str, Any]) -> None:
        """Make the block whole."""
        write_json(self.facts_path, {"batches": n_batches, "facts": counts}, durable=False)

    def read_facts(self) -> dict[str, Any]:
        """Return the facts of a whole block."""
        facts: dict[str, Any] = read_json(self.facts_path)["facts"]
        return facts

    def slice_paths(self) -> list[Path]:
        """Return the slices of a whole block in row order."""
        return [self.slice_path(batch) for batch in range(read_json(self.facts_path)["batches"])]

    def is_whole(self) -> bool:
        """Tell whether all files of the block are there with their size: a power cut may lose what was not synced."""
        try:
            return all(_is_whole_file(path) for path in self.slice_paths())
        except (DamagedStore, OSError, KeyError, TypeError) as error:
            if is_passing(error):
                raise
            return False


def write_slices(path: Path, n_partitions: int, sections: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """Write arrays that are sorted by partition.

    Parameters
    ----------
    sections
        By name (one of SECTIONS): the array, and where each partition starts in it (`n_partitions` + 1 entries).
    """
    header = np.zeros((len(SECTIONS) + 1, n_partitions + 3), np.int64)
    at = header.nbytes
    for row, name in enumerate(SECTIONS, start=1):
        if name in sections:
            values, starts = sections[name]
            header[row, 0], header[row, 1], header[row, 2:] = at, _CODES[values.dtype], starts
            at += values.nbytes
    header[0, 0] = at

    def write(temporary: Path) -> None:
        with open(temporary, "wb") as file:
            file.write(header.tobytes())
            for name in SECTIONS:
                if name in sections:
                    file.write(np.ascontiguousarray(sections[name][0]).data)

    write_atomic(path, write, durable=False)


class Slices(list[dict[str, np.ndarray]]):
    """The slices of one partition, of every file its arrays by section; `joined` has those of all files as one."""

    def __init__(self, files: Iterable[dict[str, np.ndarray]], joined: Mapping[str, np.ndarray]) -> None:
        super().__init__(files)
        self.joined = joined


@retried
def read_slices(paths: Sequence[Path], partition: int, n_partitions: int) -> Slices:
    """Return the slices of one partition of every file, in the order of the files."""
    shape = (len(SECTIONS) + 1, n_partitions + 3)
    joined: dict[str, _JoinedSection] = {}
    files: list[dict[str, slice]] = []
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            raise _not_whole(path) from None
        try:
            head = os.pread(descriptor, shape[0] * shape[1] * 8, 0)
            # A file that was cut is shorter than its first number says.
            if len(head) < shape[0] * shape[1] * 8 or os.fstat(descriptor).st_size != int.from_bytes(
                head[:8], "little"
            ):
                raise _not_whole(path)
            header = np.frombuffer(head, np.int64).reshape(shape)
            found: dict[str, slice] = {}
            for row, name in enumerate(SECTIONS, start=1):
                if not header[row, 0]:
                    continue
                dtype = _DTYPES[int(header[row, 1])]
                begin, end = int(header[row, 2 + partition]), int(header[row, 3 + partition])
                if name not in joined:
                    joined[name] = _JoinedSection(dtype, min((end - begin) * len(paths) * 5 // 4, _FIRST_VALUES))
                start = int(header[row, 0]) + begin * dtype.itemsize
                found[name] = joined[name].read(descriptor, dtype, end - begin, start, path)
        finally:
            os.close(descriptor)
        files.append(found)
    arrays = {name: section.array() for name, section in joined.items()}
    return Slices([{name: arrays[name][where] for name, where in found.items()} for found in files], arrays)


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
