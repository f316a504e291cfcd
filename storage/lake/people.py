"""Turn a batch of the users table into ages and gender codes, and say what could not be understood."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake.events import integer_ids, is_nobody, not_utf8
from ammrank_dask.storage.store.ids import IntegerIds, StringIds, UserIds, is_string
from ammrank_dask.storage.vocabulary import MAX_AGE

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
