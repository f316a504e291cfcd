"""Keep arrays that only a running job needs: values as they are, in a folder that is whole as soon as it has its name.

Unlike the runs of a site they are read or mapped as they are, not decoded, and go when the job is done. Arrays that are
saved together share one file, for making and removing files is what small ones cost; one that grows by rows is a
`.npy` file of its own.
"""

from __future__ import annotations

import errno
import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.objects.atomic import begin_folder, read_json, rename_folder, write_json
from ammrank_dask.storage.objects.folders import is_folder, map_values, open_to_read, open_to_write, remove, stat_of
from ammrank_dask.storage.objects.retry import is_passing, retried

FACTS = "facts.json"
PACKED = "arrays.bin"
_ALIGNMENT = 64
Place = tuple[str, list[int], int, str]
"""Where an array is: type, shape, where its values begin, and in which file."""


@retried
def save_arrays(folder: Path, arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> None:
    """Write arrays, and what JSON keeps `about` them, under a temporary name and rename the folder."""
    with ArrayWriter(folder) as writer:
        writer.pack(arrays)
        writer.finish(about)


class ArrayWriter:
    """Write arrays that need not be in memory as a whole: rows are appended to each, under a temporary name."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._temporary = folder, begin_folder(folder)
        self._arrays: dict[str, Place] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        remove(self._temporary)

    @retried
    def pack(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Write whole arrays one behind the other into one file."""
        with open_to_write(self._temporary / PACKED) as file:
            for name, array in arrays.items():
                file.write(bytes(-file.tell() % _ALIGNMENT))
                self._arrays[name] = (array.dtype.str, list(array.shape), file.tell(), PACKED)
                file.write(np.ascontiguousarray(array).data)

    @retried
    def append(self, name: str, rows: np.ndarray) -> None:
        """Append rows to an array: the first ones say what type it has, and how long a row is."""
        path = self._temporary / _own_file(name)
        if name not in self._arrays:
            self._arrays[name] = _write_array(path, rows)
            return
        dtype, shape, offset, file_name = self._arrays[name]
        if [rows.dtype.str, *rows.shape[1:]] != [dtype, *shape[1:]]:
            raise ValueError(f"rows of {name} must be {dtype} {shape[1:]}, got {rows.dtype.str} {rows.shape[1:]}")
        grown = [shape[0] + len(rows), *shape[1:]]
        with open_to_write(path, anew=False) as file:
            # Numpy leaves room for any length in the header.
            _write_header(file, np.empty((0, *grown[1:]), rows.dtype), tuple(grown))
            if file.tell() != offset:
                raise ValueError(f"the header of {name} must end at {offset}, got {file.tell()}")
            # Behind the rows that are known to be there, not at the end: an attempt before this one may have left some.
            file.seek(offset + math.prod(shape) * rows.dtype.itemsize)
            file.write(np.ascontiguousarray(rows).data)
        self._arrays[name] = (dtype, grown, offset, file_name)

    def finish(self, about: Mapping[str, Any]) -> None:
        """Write what JSON keeps about the arrays, and give the folder its name."""
        folder = self._folder
        if is_folder(folder) and not (
            is_saved(folder) and read_json(folder / FACTS)["arrays"].keys() == self._arrays.keys()
        ):
            remove(folder)  # cut short, or of a version that kept other arrays
        write_json(self._temporary / FACTS, {"facts": dict(about), "arrays": self._arrays}, durable=False)
        rename_folder(self._temporary, folder)


@retried
def is_saved(folder: Path) -> bool:
    """Return whether a folder was written whole: a power cut can leave files that have a name and no content."""
    try:
        places: dict[str, Place] = read_json(folder / FACTS)["arrays"]
        ends: dict[str, int] = {}
        for dtype, shape, offset, file in places.values():
            ends[file] = max(ends.get(file, 0), offset + math.prod(shape) * np.dtype(dtype).itemsize)
        return all(stat_of(folder / file).st_size == end for file, end in ends.items())
    except (OSError, BadInput) as error:
        if is_passing(error):
            raise
        return False


def _own_file(name: str) -> str:
    return f"{name}.npy"


def load_facts(folder: Path) -> dict[str, Any]:
    """Return the facts of a folder."""
    facts: dict[str, Any] = read_json(folder / FACTS)["facts"]
    return facts


@retried
def load_array(folder: Path, name: str, *, mapped: bool = False) -> np.ndarray:
    """Return one array: a copy of its own, or mapped and read only."""
    # Not with np.load, which reads the header as Python: that fails now and then when threads of one process do it at
    # the same time (CPython issue 106905, mended in 3.12).
    place: Place = read_json(folder / FACTS)["arrays"][name]
    dtype, shape, offset, file = place
    if mapped and 0 not in shape:
        return map_values(folder / file, np.dtype(dtype), offset, shape)
    return _read_array(folder, *place)


def load_arrays(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return all arrays of a folder, and its facts."""
    content = read_json(folder / FACTS)
    read = retried(_read_array)
    return {name: read(folder, *place) for name, place in content["arrays"].items()}, content["facts"]


class RowReader:
    """Read stretches of the arrays of a folder, any number of them; where they lie is looked up once.

    Nothing is mapped: pages of a map count as memory of the process for as long as it is open, also when they were only
    looked at.
    """

    def __init__(self, folder: Path) -> None:
        content = read_json(folder / FACTS)
        self.facts: dict[str, Any] = content["facts"]
        self._places: dict[str, Place] = content["arrays"]
        self._folder = folder

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one array."""
        return tuple(self._places[name][1])

    @retried
    def read(self, name: str, start: int, stop: int) -> np.ndarray:
        """Return the rows from `start` to `stop` of one array."""
        dtype, shape, offset, file = self._places[name]
        kind, row = np.dtype(dtype), math.prod(shape[1:])
        begin = offset + start * row * kind.itemsize
        found = read_values(self._folder / file, kind, (stop - start) * row, begin)
        return found.reshape(stop - start, *shape[1:])

    @retried
    def read_stretches(self, name: str, starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
        """Return the rows of many stretches of one array, one behind the other, and read nothing between them."""
        dtype, shape, offset, file = self._places[name]
        kind, row = np.dtype(dtype), math.prod(shape[1:])
        lengths = (stops - starts) * row
        values, ends = np.empty(int(lengths.sum()), kind), np.cumsum(lengths)
        with open_to_read(self._folder / file) as source:
            for start, begin, end in zip(starts.tolist(), (ends - lengths).tolist(), ends.tolist(), strict=True):
                _fill(values[begin:end], source, offset + start * row * kind.itemsize)
        return values.reshape(-1, *shape[1:])


def _read_array(folder: Path, dtype: str, shape: list[int], offset: int, file: str) -> np.ndarray:
    return read_values(folder / file, np.dtype(dtype), math.prod(shape), offset).reshape(shape)


def read_values(path: Path, dtype: np.dtype, count: int, offset: int) -> np.ndarray:
    """Return so many values that begin at an offset of a file.

    Not with np.fromfile, which takes an error of the disk for the end of the file.
    """
    values = np.empty(count, dtype)
    with open_to_read(path) as file:
        _fill(values, file, offset)
    return values


def _fill(values: np.ndarray, file: io.FileIO, offset: int) -> None:
    """Read values from where they begin in a file."""
    if not len(values):
        return
    file.seek(offset)
    view = values.view(np.uint8).data
    while len(view):
        n_read = file.readinto(view)
        if not n_read:
            raise OSError(errno.EIO, "the file is shorter than it was", str(file.name))
        view = view[n_read:]


def _write_array(path: Path, array: np.ndarray) -> Place:
    """Write a `.npy` file and return where the array is."""
    array = np.ascontiguousarray(array)
    # Not with np.save, which does not say that a disk is full.
    with open_to_write(path) as file:
        _write_header(file, array, array.shape)
        offset = file.tell()
        file.write(array.data)
    return array.dtype.str, list(array.shape), offset, path.name


def _write_header(file: BinaryIO, array: np.ndarray, shape: tuple[int, ...]) -> None:
    """Write the header of a `.npy` file of the array's type and another shape."""
    header = {**np.lib.format.header_data_from_array_1_0(array), "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
