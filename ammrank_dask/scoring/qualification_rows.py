"""Read back which categories the users of a partition hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ammrank_dask.storage.store.ids import UserIds, ids_from_values
from ammrank_dask.storage.store.parts import CheckedReader
from ammrank_dask.storage.store.qualifications import BY_USER
from ammrank_dask.storage.store.runs import Run
from ammrank_dask.storage.vocabulary import CATEGORY, RANK, SCORE, USER_ID


@dataclass(frozen=True)
class HeldPart:
    """The by_user file of one partition with its size and checksum: small enough to travel with a task."""

    run: Path
    name: str
    listed: tuple[int, int]

    def read(self, categories: Sequence[str]) -> Held:
        """Read the file, checked; codes are places in `categories`, names that are not there come after the last."""
        data = CheckedReader(self.run, {self.name: list(self.listed)})(self.name)
        return held_from_table(pq.read_table(pa.BufferReader(data)), categories)


@dataclass(frozen=True)
class Held:
    """The qualifications of some users, in CSR form, users ascending by id; only users who hold a category."""

    user_ids: UserIds
    indptr: np.ndarray
    category: np.ndarray
    rank: np.ndarray
    score: np.ndarray

    @property
    def user(self) -> np.ndarray:
        """Position of the user of every qualification."""
        return np.repeat(np.arange(len(self.user_ids)), np.diff(self.indptr))


def held_parts(qualifications: Run) -> list[HeldPart]:
    """Return the by_user files of a night, in the order of the partitions."""
    files = qualifications.manifest["files"]
    names = sorted(name for name in files if name.startswith(f"{BY_USER}/part-"))
    return [HeldPart(qualifications.path, name, (files[name][0], files[name][1])) for name in names]


def held_from_table(table: pa.Table, categories: Sequence[str]) -> Held:
    """Return the rows of a by_user file, which are by user and rank; a score that is missing is NaN."""
    user_ids = table[USER_ID].combine_chunks()
    n = len(user_ids)
    is_first = np.ones(n, bool)
    if n > 1:
        is_first[1:] = pc.not_equal(user_ids[1:], user_ids[:-1]).to_numpy(zero_copy_only=False)
    starts = np.flatnonzero(is_first)
    names = table[CATEGORY].unify_dictionaries().combine_chunks()
    code_of = {name: code for code, name in enumerate(categories)}
    codes = [code_of.get(name, len(categories) + i) for i, name in enumerate(names.dictionary.to_pylist())]
    return Held(
        ids_from_values(user_ids.take(pa.array(starts))),
        np.append(starts, n),
        np.array(codes, np.int64)[names.indices.to_numpy()],
        table[RANK].to_numpy().astype(np.int64),
        table[SCORE].to_numpy().astype(np.float64),
    )
