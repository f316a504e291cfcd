"""Read a file of pairs of a user and a category that are never qualified: parquet, or text with one pair a line."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ammrank_dask.storage.errors import BadInput, cut, suggest
from ammrank_dask.storage.lake.paths import LakePath, read_table
from ammrank_dask.storage.lake.user_lists import parse_integer_id
from ammrank_dask.storage.store.ids import IntegerIds, StringIds, UserIds, ids_from_values, is_string
from ammrank_dask.storage.vocabulary import CATEGORY, USER_ID


@dataclass(frozen=True)
class OptOuts:
    """Pairs of a user and a category, each once: `user` are positions in `user_ids` (ascending), `code` categories."""

    user_ids: UserIds
    user: np.ndarray
    code: np.ndarray

    def of_users(self, positions: np.ndarray) -> OptOuts:
        """Return the pairs of some of the users, by ascending position."""
        place = np.full(len(self.user_ids), -1, np.int64)
        place[positions] = np.arange(len(positions))
        chosen = place[self.user] >= 0
        return OptOuts(self.user_ids.take(positions), place[self.user[chosen]], self.code[chosen])


def make_opt_outs(user_ids: UserIds, codes: np.ndarray, n_categories: int) -> OptOuts:
    """Return the pairs of users, in any order and any number of times, and category codes."""
    distinct = user_ids.sort_unique()
    pairs = np.unique(distinct.positions_of(user_ids) * n_categories + codes)
    return OptOuts(distinct, pairs // n_categories, pairs % n_categories)


def opt_outs_by_name(pairs: Iterable[tuple[object, str]], categories: Sequence[str]) -> OptOuts:
    """Return pairs of a user id and the name of a category, in any order; an unknown category is refused."""
    listed = list(pairs)
    for number, pair in enumerate(listed, start=1):
        if isinstance(pair, str) or not isinstance(pair, Sized) or len(pair) != 2:
            raise BadInput(f"opt_out, pair {number}: must be a user id and the name of a category")
    ids = ids_from_values([user for user, _ in listed])
    names = [(f"opt_out, pair {number}", name) for number, (_, name) in enumerate(listed, start=1)]
    return make_opt_outs(ids, _codes(names, categories), len(categories))


def read_opt_outs(
    path: LakePath, id_kind: str, categories: Sequence[str], names_now: Mapping[str, str | None] | None = None
) -> OptOuts:
    """Return the pairs of a file. Messages name lines, never ids.

    Parameters
    ----------
    path
        A parquet file with columns `user_id` and `category`, or a text file with lines `user_id,category`, names with a
        comma in quotes; a first line of these two words and empty lines do not count.
    id_kind
        `int64` or `string`.
    categories
        The ranked categories, by code; another one is refused.
    names_now
        By former name of a category the name it has now; None for one that nobody gets any more.
    """
    former = names_now or {}
    listed = _read_parquet(path) if path.suffix == ".parquet" else _read_text(path)
    renamed = [(where, user, name if name in categories else former.get(name, name)) for where, user, name in listed]
    rows = [(where, user, name) for where, user, name in renamed if name is not None]
    codes = _codes(((where, name) for where, _, name in rows), categories)
    if id_kind == "string":
        ids: UserIds = StringIds(pa.array([user for _, user, _ in rows], pa.large_string()))
    else:
        numbers = np.empty(len(rows), np.int64)
        for position, (where, user, _) in enumerate(rows):
            value = parse_integer_id(user)
            if value is None:
                raise BadInput(f"{where}: user ids of this site are 64-bit integers, found text")
            numbers[position] = value
        ids = IntegerIds(numbers)
    return make_opt_outs(ids, codes, len(categories))


def _codes(names: Iterable[tuple[str, str]], categories: Sequence[str]) -> np.ndarray:
    code_of = {name: code for code, name in enumerate(categories)}
    codes = []
    for where, name in names:
        if name not in code_of:
            meant = suggest(name, categories, show=repr, limit=5)
            raise BadInput(f"{where}: there is no ranked category {name!r}; {meant}")
        codes.append(code_of[name])
    return np.array(codes, np.int64)


def _read_text(path: LakePath) -> Iterator[tuple[str, str, str]]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read {path}: {error}; give lines of user_id,category") from None
    for number, line in enumerate(lines, start=1):
        fields = next(csv.reader([line]), [])
        if not line.strip() or (number == 1 and [field.strip() for field in fields] == [USER_ID, CATEGORY]):
            continue
        if len(fields) != 2:
            raise BadInput(f"{path}, line {number}: must be user_id,category, found {len(fields)} fields")
        yield f"{path}, line {number}", fields[0].strip(), fields[1].strip()


def _read_parquet(path: LakePath) -> Iterator[tuple[str, str, str]]:
    try:
        table = read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise BadInput(f"cannot read {path}: {cut(str(error))}; give user_id and category") from None
    if not {USER_ID, CATEGORY} <= set(table.column_names):
        found = ", ".join(table.column_names)
        raise BadInput(f"{path} must have the columns {USER_ID} and {CATEGORY}, found {found}")
    users = ids_from_values(table.column(USER_ID)).to_arrow().cast(pa.string()).to_pylist()
    column = table.column(CATEGORY)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not is_string(column.type):
        raise BadInput(f"{path}: categories must be strings, found {column.type}; convert the column")
    names = column.to_pylist()
    for number, (user, name) in enumerate(zip(users, names, strict=True), start=1):
        yield f"{path}, row {number}", user, name
