"""Write the qualifications of a night as text, one line a user with the whole list: JSON lines or CSV.

One file of the run is read at a time, and checked; lines come by partition and user id, so that a night always gives
the same text.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ammrank_dask.storage.store.atomic import temporary_beside
from ammrank_dask.storage.store.qualifications import QualificationPart, first_rows
from ammrank_dask.storage.vocabulary import CATEGORY, HELD_BY, PROPENSITY, RANK, USER_ID

JSON_LINES, CSV = "jsonl", "csv"
_USERS_AT_ONCE = 20_000
_PLURALS = {CATEGORY: "categories", PROPENSITY: "propensities", HELD_BY: HELD_BY}


def write_user_lines(parts: Iterable[QualificationPart], form: str) -> Iterator[bytes]:
    """Return the lines of some files, users in their order; for CSV the names of the columns come first.

    A list is best first. What is the same in all rows of a user, as a flag is, stands once. In CSV a list is a JSON
    array in one cell. A score of -inf, of a category without planes, is null.
    """
    with_header = form == CSV
    for part in parts:
        table = part.read_table()
        if with_header:
            names = [name if pa.types.is_boolean(table[name].type) else _plural(name) for name in _listed(table)]
            yield ",".join([USER_ID, *names]).encode() + b"\n"
            with_header = False
        starts = np.append(first_rows(table[USER_ID]), len(table))
        for first in range(0, len(starts) - 1, _USERS_AT_ONCE):
            ends = starts[first : first + _USERS_AT_ONCE + 1]
            lines = _lines_of(table.slice(ends[0], ends[-1] - ends[0]), ends - ends[0], form)
            text = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines), "\n")[0]
            yield text.as_buffer().to_pybytes() + b"\n"


def save_lines(path: Path, chunks: Iterable[bytes]) -> int:
    """Write text to a file, which is the old one or the whole new one; return the number of lines."""
    temporary = temporary_beside(path)
    n_lines = 0
    try:
        with open(temporary, "xb") as file:
            for chunk in chunks:
                file.write(chunk)
                n_lines += chunk.count(b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return n_lines


def _listed(table: pa.Table) -> list[str]:
    return [name for name in table.column_names if name not in (USER_ID, RANK)]


def _plural(name: str) -> str:
    return _PLURALS.get(name, f"{name}s")


def _lines_of(table: pa.Table, ends: np.ndarray, form: str) -> pa.Array:
    """Return the lines of users, whose rows end at `ends`."""
    firsts = pa.array(ends[:-1])
    pieces: list[tuple[str, pa.Array]] = [(USER_ID, _id_texts(table[USER_ID].combine_chunks().take(firsts), form))]
    for name in _listed(table):
        column = table[name].combine_chunks()
        if pa.types.is_boolean(column.type):
            pieces.append((name, pc.cast(column.take(firsts), pa.string())))
            continue
        lists = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), _value_texts(column))
        listed = pc.binary_join(lists, ",")
        pieces.append((_plural(name), _in_brackets(listed, form)))
    if form == CSV:
        return pc.binary_join_element_wise(*(texts for _, texts in pieces), ",")
    labelled = [part for name, texts in pieces for part in (f',"{name}":', texts)]
    return pc.binary_join_element_wise("{" + labelled[0][1:], *labelled[1:], "}", "")


def _in_brackets(texts: pa.Array, form: str) -> pa.Array:
    if form == CSV:
        return pc.binary_join_element_wise('"[', pc.replace_substring(texts, '"', '""'), ']"', "")
    return pc.binary_join_element_wise("[", texts, "]", "")


def _id_texts(user_ids: pa.Array, form: str) -> pa.Array:
    if pa.types.is_integer(user_ids.type):
        return pc.cast(user_ids, pa.string())
    if form == CSV:
        quoted = pc.replace_substring(pc.cast(user_ids, pa.string()), '"', '""')
        return pc.binary_join_element_wise('"', quoted, '"', "")
    return pa.array([json.dumps(user_id, ensure_ascii=False) for user_id in user_ids.to_pylist()], pa.string())


def _value_texts(column: pa.Array) -> pa.Array:
    """Return every value as JSON writes it."""
    if pa.types.is_dictionary(column.type):
        names = [json.dumps(name, ensure_ascii=False) for name in column.dictionary.to_pylist()]
        return pa.array(names, pa.string()).take(column.indices)
    return pc.if_else(pc.is_finite(column), pc.cast(column, pa.string()), pa.scalar("null"))
