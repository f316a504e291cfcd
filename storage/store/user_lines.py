"""Write the lists of users as text, one line a user: JSON lines or CSV."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ammrank_dask.storage.vocabulary import CATEGORY, HELD_BY, PROPENSITY, RANK, USER_ID

JSON_LINES, CSV = "jsonl", "csv"
_PLURALS = {CATEGORY: "categories", PROPENSITY: "propensities", HELD_BY: HELD_BY}


def list_columns(table: pa.Table) -> list[str]:
    """Return the columns of a by_user file that a list has; ranks are the order of it."""
    return [name for name in table.column_names if name not in (USER_ID, RANK)]


def plural_of(name: str) -> str:
    """Return what a list of the values of a column is called."""
    return _PLURALS.get(name, f"{name}s")


def csv_header(table: pa.Table) -> bytes:
    """Return the line with the names of the columns."""
    names = [name if pa.types.is_boolean(table[name].type) else plural_of(name) for name in list_columns(table)]
    return ",".join([USER_ID, *names]).encode() + b"\n"


def user_lines(table: pa.Table, ends: np.ndarray, form: str) -> pa.Array:
    """Return the lines of users, whose rows end at `ends`. In CSV a list is a JSON array in one cell."""
    firsts = pa.array(ends[:-1])
    pieces: list[tuple[str, pa.Array]] = [(USER_ID, _id_texts(table[USER_ID].combine_chunks().take(firsts), form))]
    for name in list_columns(table):
        column = table[name].combine_chunks()
        if pa.types.is_boolean(column.type):
            pieces.append((name, pc.cast(column.take(firsts), pa.string())))
            continue
        lists = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), _value_texts(column))
        listed = pc.binary_join(lists, ",")
        pieces.append((plural_of(name), _in_brackets(listed, form)))
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
