"""Pass rows from readers to partitions through scratch files, one a batch, sliced by partition.

Unlike a shuffle inside the cluster, it can be rerun piece by piece: a reader writes whole files, a partition reads
its slices of all of them in file order.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from storage.files import write_atomic

SECTIONS = ("user", "cell", "time", "row", "age", "gender", "id_lengths", "id_bytes")
_DTYPES = {code: np.dtype(name) for code, name in enumerate(("uint8", "uint16", "uint32", "int64", "int16", "int8"))}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}


def write_slices(path: Path, n_partitions: int, sections: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """Write arrays that are sorted by partition.

    Parameters
    ----------
    sections
        By name (one of SECTIONS): the array, and where each partition starts in it (`n_partitions` + 1 entries).
    """
    header = np.zeros((len(SECTIONS), n_partitions + 3), np.int64)
    at = header.nbytes
    for row, name in enumerate(SECTIONS):
        if name in sections:
            values, starts = sections[name]
            header[row, 0], header[row, 1], header[row, 2:] = at, _CODES[values.dtype], starts
            at += values.nbytes

    def write(temporary: Path) -> None:
        with open(temporary, "wb") as file:
            file.write(header.tobytes())
            for name in SECTIONS:
                if name in sections:
                    file.write(np.ascontiguousarray(sections[name][0]).data)

    write_atomic(path, write, durable=False)


def read_slices(paths: Sequence[Path], partition: int, n_partitions: int) -> list[dict[str, np.ndarray]]:
    """Return the slices of one partition of every file, in the order of the files."""
    slices = []
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            size = len(SECTIONS) * (n_partitions + 3) * 8
            header = np.frombuffer(os.pread(descriptor, size, 0), np.int64).reshape(len(SECTIONS), -1)
            found = {}
            for row, name in enumerate(SECTIONS):
                if not header[row, 0]:
                    continue
                dtype = _DTYPES[int(header[row, 1])]
                begin, end = int(header[row, 2 + partition]), int(header[row, 3 + partition])
                start = int(header[row, 0]) + begin * dtype.itemsize
                found[name] = np.frombuffer(os.pread(descriptor, (end - begin) * dtype.itemsize, start), dtype)
        finally:
            os.close(descriptor)
        slices.append(found)
    return slices
