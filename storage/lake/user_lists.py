"""Read a file of user ids: parquet, or text with one id per line."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa

from ammrank_dask.storage.errors import BadInput, cut
from ammrank_dask.storage.lake.paths import LakePath, read_table
from ammrank_dask.storage.store.ids import IntegerIds, StringIds, UserIds, ids_from_values
from ammrank_dask.storage.vocabulary import USER_ID


def read_user_list(path: LakePath, id_kind: str, *, may_be_empty: bool = False) -> UserIds:
    """Return the ids of a file, sorted and distinct, as the kind of id that a site has.

    Messages name lines, never ids.

    Parameters
    ----------
    path
        A parquet file with a column `user_id` or with one column only, or a text file with one id per line. A first
        line `user_id` and empty lines do not count.
    id_kind
        `int64` or `string`.
    may_be_empty
        Return no ids for a file without any, instead of refusing it.
    """
    if path.suffix == ".parquet":
        values = _read_parquet(path)
    else:
        try:
            lines = path.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"cannot read {path}: {error}; give a text file with one user id per line") from None
        values = [(number, line.strip()) for number, line in enumerate(lines, start=1) if line.strip()]
        if values and values[0][1] == USER_ID:
            values = values[1:]
    if not values and not may_be_empty:
        raise BadInput(f"{path} has no user ids; write one per line")
    if id_kind == "string":
        return StringIds(pa.array([text for _, text in values], pa.large_string())).sort_unique()
    numbers = np.empty(len(values), np.int64)
    for place, (number, text) in enumerate(values):
        value = parse_integer_id(text)
        if value is None:
            raise BadInput(f"{path}, line {number}: user ids of this site are 64-bit integers, found text")
        numbers[place] = value
    return IntegerIds(numbers).sort_unique()


def parse_integer_id(text: str) -> int | None:
    """Return the 64-bit integer that a text is, None when it is another text.

    Examples
    --------
    >>> parse_integer_id("-12"), parse_integer_id("1_2"), parse_integer_id("+1"), parse_integer_id("\u0661")
    (-12, None, None, None)
    """
    if not re.fullmatch(r"-?[0-9]{1,19}", text):
        return None
    value = int(text)
    return value if -(2**63) <= value < 2**63 else None


def _read_parquet(path: LakePath) -> list[tuple[int, str]]:
    try:
        table = read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise BadInput(f"cannot read {path}: {cut(str(error))}; give a parquet file of user ids") from None
    names = table.column_names
    name = USER_ID if USER_ID in names else names[0] if len(names) == 1 else None
    if name is None:
        raise BadInput(f"{path} must have a column {USER_ID}, found {', '.join(names)}")
    ids = ids_from_values(table.column(name))
    return list(enumerate(ids.to_arrow().cast(pa.string()).to_pylist(), start=1))
