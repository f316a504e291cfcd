"""Keep the files by category of a night: while it is written, the rows of each partition by category.

What partitions leave in the work folder is one file each of plain arrays, of which a category is a stretch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.objects.atomic import read_json, write_text
from ammrank_dask.storage.objects.retry import retried
from ammrank_dask.storage.store.ids import ID_ARRAYS, UserIds, ids_from_arrays
from ammrank_dask.storage.store.parts import check_files
from ammrank_dask.storage.store.qualification_files import (
    batch_path,
    category_folder,
    category_layout,
    category_starts,
    scratch_path,
)
from ammrank_dask.storage.store.qualifications import BY_CATEGORY
from ammrank_dask.storage.store.scratch_arrays import read_values

POSITION = "user"
"""The column of rows that has the position of the user among the ids."""


@dataclass(frozen=True)
class CategoryFile:
    """A file of one category: its rows are those of the partitions from `first` to `last`."""

    category: str
    code: int
    first: int
    last: int
    n_rows: int

    @property
    def name(self) -> str:
        """Its name below the run."""
        last = "" if self.first == self.last else f"-{self.last:05d}"
        return f"{BY_CATEGORY}/{category_folder(self.category)}/part-{self.first:05d}{last}.parquet"


def partitions_of(name: str) -> range:
    """Return the partitions of the rows in a file, by its name.

    Examples
    --------
    >>> partitions_of("by_category/category=Hats/part-00004-00006.parquet")
    range(4, 7)
    >>> partitions_of("by_user/part-00003.parquet")
    range(3, 4)
    """
    found = re.search(r"part-(\d+)(?:-(\d+))?\.parquet$", name)
    if found is None:
        raise BadInput(f"{name} is not the name of a file of qualifications")
    first = int(found[1])
    return range(first, int(found[2] or first) + 1)


class PartitionRows:
    """The rows of one partition by category, those of each by user, as they wait in the work folder.

    Nothing is mapped: pages of a map count as memory of the process, and the rows of all partitions together do not
    fit into it.
    """

    def __init__(self, run: Path, partition: int) -> None:
        self._path = scratch_path(run, partition)
        self._starts = category_starts(run, partition)
        self._layout = category_layout(run, partition)

    def user_ids(self) -> UserIds:
        """Return the ids of all users."""
        return ids_from_arrays({name: self._read(name, 0, self._layout[name][1]) for name in self._ids})

    def of_categories(self, first: int, last: int) -> tuple[np.ndarray, dict[str, np.ndarray], list[int]]:
        """Return the rows of the categories from `first` to `last`, and where each of these begins and the last ends.

        Of the rows these are the positions of the users, and the other columns by name.
        """
        starts = self._starts[first : last + 2]
        columns = {name: self._read(name, starts[0], starts[-1]) for name in self._layout if name not in self._ids}
        return columns.pop(POSITION), columns, [start - starts[0] for start in starts]

    @property
    def _ids(self) -> list[str]:
        return [name for name in ID_ARRAYS if name in self._layout]

    @retried
    def _read(self, name: str, start: int, stop: int) -> np.ndarray:
        kind, _, at = self._layout[name]
        return read_values(self._path, kind, stop - start, at + start * kind.itemsize)


def write_batch_list(run: Path, number: int, files: Mapping[str, list[int]]) -> None:
    """List the files of a batch, which makes it whole."""
    write_text(batch_path(run, number), json.dumps({"files": dict(files)}), durable=False)


def is_batch_written(run: Path, number: int) -> bool:
    """Return whether a batch of files is whole and still what was written."""
    try:
        check_files(run, read_json(batch_path(run, number))["files"])
    except (BadInput, FileNotFoundError, KeyError, TypeError):
        return False
    return True
