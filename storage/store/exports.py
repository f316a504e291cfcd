"""Write the qualifications of a night for other systems, the whole list of a user at once.

One file of the run is read at a time, and checked; users come by partition and id, so that a night always gives the
same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ammrank_dask.storage.store.atomic import temporary_beside
from ammrank_dask.storage.store.qualifications import QualificationPart, first_rows
from ammrank_dask.storage.store.user_commands import RedisKeys
from ammrank_dask.storage.store.user_lines import CSV, JSON_LINES, csv_header, user_lines
from ammrank_dask.storage.store.user_records import avro_block, avro_header
from ammrank_dask.storage.vocabulary import USER_ID

AVRO, REDIS = "avro", "redis"
FORMS = (JSON_LINES, CSV, AVRO, REDIS)
_USERS_AT_ONCE = 20_000


def export_lists(
    parts: Iterable[QualificationPart], form: str, *, keys: RedisKeys | None = None
) -> Iterator[tuple[bytes, int]]:
    """Yield what to write for the users of some files, in their order, and how many users that is.

    A list is best first. What is the same in all rows of a user, as a flag is, stands once.

    Parameters
    ----------
    form
        One of `FORMS`. In text a score of -inf, of a category without planes, is null.
    keys
        For Redis: how keys are named.
    """
    begins = True
    for part in parts:
        table = part.read_table()
        if begins and form == CSV:
            yield csv_header(table), 0
        elif begins and form == AVRO:
            yield avro_header(table), 0
        begins = False
        starts = np.append(first_rows(table[USER_ID]), len(table))
        for first in range(0, len(starts) - 1, _USERS_AT_ONCE):
            ends = starts[first : first + _USERS_AT_ONCE + 1]
            users = table.slice(ends[0], ends[-1] - ends[0])
            yield _encode(users, ends - ends[0], form, keys), len(ends) - 1
    if keys is not None:
        yield keys.last_command(), 0


def save_export(path: Path, chunks: Iterable[tuple[bytes, int]]) -> int:
    """Write chunks to a file, which is the old one or the whole new one; return the number of users."""
    temporary = temporary_beside(path)
    n_users = 0
    try:
        with open(temporary, "xb") as file:
            for chunk, n in chunks:
                file.write(chunk)
                n_users += n
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return n_users


def _encode(table: pa.Table, ends: np.ndarray, form: str, keys: RedisKeys | None) -> bytes:
    if form == AVRO:
        return avro_block(table, ends)
    if keys is not None:
        ids = pc.cast(table[USER_ID].combine_chunks().take(pa.array(ends[:-1])), pa.string())
        return _join(keys.commands(ids, user_lines(table, ends, JSON_LINES)), "")
    return _join(user_lines(table, ends, form), "\n") + b"\n"


def _join(texts: pa.Array, separator: str) -> bytes:
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts), separator)[0]
    data: bytes = joined.as_buffer().to_pybytes()
    return data
