"""Read what a lake says of users: ages and genders, who may not be shown what, and lists of ids."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ammrank_dask.storage.errors import BadInput, cut, suggest
from ammrank_dask.storage.lake.events import integer_ids, is_nobody, not_utf8
from ammrank_dask.storage.lake.paths import LakePath, read_table
from ammrank_dask.storage.store.ids import IntegerIds, StringIds, UserIds, ids_from_values, is_string
from ammrank_dask.storage.vocabulary import CATEGORY, MAX_AGE, USER_ID

NO_USER = "no_user_id"
AGE_OUT_OF_RANGE = "age_out_of_range"
UNKNOWN_GENDER = "unknown_gender"
DUPLICATE_USER = "duplicate_user"


@dataclass(frozen=True)
class PeopleMapping:
    """The names of the columns, None where the table has no such column, and how genders are spelled."""

    user_id: str
    age: str | None
    gender: str | None
    gender_of: Mapping[str, int]
    ignored_genders: frozenset[str]
    nobody: frozenset[str] = frozenset()

    @property
    def columns(self) -> list[str]:
        """The columns that are read."""
        return [name for name in (self.user_id, self.age, self.gender) if name is not None]


@dataclass(frozen=True)
class People:
    """Rows of the users table. Every problem is (reason, positions, values as text); such rows stay where they can."""

    ids: UserIds
    user: np.ndarray | None
    has_id: np.ndarray
    age: np.ndarray
    gender: np.ndarray
    id_text: pa.Array
    problems: list[tuple[str, np.ndarray, pa.Array]]


def decode_people(table: pa.Table, mapping: PeopleMapping, where: str) -> People:
    """Map one batch: an age that cannot be is unknown, and so is a gender that is not spelled as configured."""
    problems: list[tuple[str, np.ndarray, pa.Array]] = []
    n = table.num_rows
    column = table.column(mapping.user_id).combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    id_text = column.cast(pa.string())
    has_id = ~_nulls(column)
    user: np.ndarray | None = None
    ids: UserIds
    if pa.types.is_integer(column.type):
        found = integer_ids(column, mapping.user_id, where).fill_null(0)
        ids = IntegerIds(found.to_numpy(zero_copy_only=False))
    else:
        found = column.fill_null("")
        ids, user = StringIds(found), np.arange(n)
    has_id &= ~is_nobody(found, mapping.nobody, mapping.user_id, where)
    _note(problems, NO_USER, ~has_id, pa.nulls(n, pa.string()))

    age = np.full(n, -1, np.int16)
    if mapping.age is not None:
        found = table.column(mapping.age).combine_chunks()
        is_number = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_null)
        if not any(is_kind(found.type) for is_kind in is_number):
            raise BadInput(f"{where}: {mapping.age!r} must be a number of years, found {found.type}; convert it")
        years = found.cast(pa.float64(), safe=False).fill_null(np.nan).to_numpy(zero_copy_only=False)
        with np.errstate(invalid="ignore"):
            plausible = (years >= 0) & (years <= MAX_AGE)
        age[plausible] = years[plausible].astype(np.int16)
        _note(problems, AGE_OUT_OF_RANGE, ~plausible & ~np.isnan(years), found.cast(pa.string()))

    gender = np.full(n, -1, np.int8)
    if mapping.gender is not None:
        found = table.column(mapping.gender).combine_chunks()
        if pa.types.is_dictionary(found.type):
            found = found.cast(found.type.value_type)
        if not (is_string(found.type) or pa.types.is_null(found.type)):
            raise BadInput(f"{where}: {mapping.gender!r} must be a string, found {found.type}; convert it")
        encoded = found.cast(pa.string()).dictionary_encode()
        try:
            spelled = encoded.dictionary.to_pylist()
        except UnicodeDecodeError:
            raise not_utf8(mapping.gender, where) from None
        codes = np.array([*(mapping.gender_of.get(value, -1) for value in spelled), -1], np.int8)
        known = np.array([*(value in mapping.gender_of or value in mapping.ignored_genders for value in spelled), True])
        indices = encoded.indices.fill_null(len(spelled)).to_numpy(zero_copy_only=False)
        gender = codes[indices]
        _note(problems, UNKNOWN_GENDER, ~known[indices], found.cast(pa.string()))
    return People(ids, user, has_id, age, gender, id_text, problems)


def _note(problems: list[tuple[str, np.ndarray, pa.Array]], reason: str, mask: np.ndarray, values: pa.Array) -> None:
    positions = np.flatnonzero(mask)
    if len(positions):
        problems.append((reason, positions, values.take(pa.array(positions))))


def _nulls(column: pa.Array) -> np.ndarray:
    return np.asarray(column.is_null().to_numpy(zero_copy_only=False))


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
    listed = _read_listed(path) if path.suffix == ".parquet" else _read_text(path)
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


def _read_listed(path: LakePath) -> Iterator[tuple[str, str, str]]:
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
