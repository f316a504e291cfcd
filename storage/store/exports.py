"""Write the qualifications of a night as text, the whole list of a user on one line: JSON lines or CSV.

One file of the run is read at a time, and checked; users come by partition and id, so that a night always gives the
same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ammrank_dask.storage.objects.atomic import write_pieces
from ammrank_dask.storage.store.qualifications import QualificationPart, first_rows
from ammrank_dask.storage.vocabulary import CATEGORY, FORMULA_STARTS, HELD_BY, PROPENSITY, RANK, USER_ID

FORMS = JSON_LINES, CSV = "jsonl", "csv"
_PLURALS = {CATEGORY: "categories", PROPENSITY: "propensities", HELD_BY: HELD_BY}
_USERS_AT_ONCE = 20_000


def export_lists(
    parts: Iterable[QualificationPart], form: str, *, escape_formulas: bool = True
) -> Iterator[tuple[bytes, int]]:
    """Yield what to write for the users of some files, in their order, and how many users that is.

    A list is best first. What is the same in all rows of a user, as a flag is, stands once.

    Parameters
    ----------
    form
        One of `FORMS`. A score of -inf, of a category without planes, is null.
    escape_formulas
        In CSV, put a `'` before string ids that begin like a formula.
    """
    begins = True
    for part in parts:
        table = part.read_table()
        if begins and form == CSV:
            yield _csv_header(table), 0
        begins = False
        starts = np.append(first_rows(table[USER_ID]), len(table))
        for first in range(0, len(starts) - 1, _USERS_AT_ONCE):
            ends = starts[first : first + _USERS_AT_ONCE + 1]
            users = table.slice(ends[0], ends[-1] - ends[0])
            lines = _user_lines(users, ends - ends[0], form, escape_formulas=escape_formulas)
            yield "".join(f"{line}\n" for line in lines.to_pylist()).encode(), len(ends) - 1


def save_export(path: Path, chunks: Iterable[tuple[bytes, int]]) -> int:
    """Write chunks to a file, which is the old one or the whole new one; return the number of users."""
    counts: list[int] = []

    def pieces() -> Iterator[bytes]:
        for chunk, n in chunks:
            counts.append(n)
            yield chunk

    write_pieces(path, pieces())
    return sum(counts)


def _list_columns(table: pa.Table) -> list[str]:
    """Return the columns of a by_user file that a list has; ranks are the order of it."""
    return [name for name in table.column_names if name not in (USER_ID, RANK)]


def _plural_of(name: str) -> str:
    """Return what a list of the values of a column is called."""
    return _PLURALS.get(name, f"{name}s")


def _csv_header(table: pa.Table) -> bytes:
    """Return the line with the names of the columns."""
    names = [name if pa.types.is_boolean(table[name].type) else _plural_of(name) for name in _list_columns(table)]
    return ",".join([USER_ID, *names]).encode() + b"\n"


def _user_lines(table: pa.Table, ends: np.ndarray, form: str, *, escape_formulas: bool) -> pa.Array:
    """Return the lines of users, whose rows end at `ends`. In CSV a list is a JSON array in one cell.

    With `escape_formulas`, a string id in CSV that begins like a formula gets a `'` in front.
    """
    firsts = pa.array(ends[:-1])
    user_ids = table[USER_ID].combine_chunks().take(firsts)
    if form == CSV and escape_formulas and not pa.types.is_integer(user_ids.type):
        user_ids = _escape_formulas(user_ids)
    pieces: list[tuple[str, pa.Array]] = [(USER_ID, _id_texts(user_ids, form))]
    for name in _list_columns(table):
        column = table[name].combine_chunks()
        if pa.types.is_boolean(column.type):
            pieces.append((name, pc.cast(column.take(firsts), pa.string())))
            continue
        lists = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), _value_texts(column))
        listed = pc.binary_join(lists, ",")
        pieces.append((_plural_of(name), _in_brackets(listed, form)))
    if form == CSV:
        return pc.binary_join_element_wise(*(texts for _, texts in pieces), ",")
    labelled = [part for name, texts in pieces for part in (f',"{name}":', texts)]
    return pc.binary_join_element_wise("{" + labelled[0][1:], *labelled[1:], "}", "")


def _in_brackets(texts: pa.Array, form: str) -> pa.Array:
    if form == CSV:
        return pc.binary_join_element_wise('"[', pc.replace_substring(texts, '"', '""'), ']"', "")
    return pc.binary_join_element_wise("[", texts, "]", "")


def _escape_formulas(texts: pa.Array) -> pa.Array:
    texts = pc.cast(texts, pa.string())
    first = pc.utf8_slice_codeunits(texts, 0, 1)
    is_formula = pc.is_in(first, pa.array(FORMULA_STARTS))
    return pc.if_else(is_formula, pc.binary_join_element_wise("'", texts, ""), texts)


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
