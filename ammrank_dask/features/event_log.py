"""Read events, users and a taxonomy from pandas tables, with sentences that say what to do in pandas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import scipy.sparse as sp

from ammrank_dask.features.build import FeatureSettings, build_rows, rank_users
from ammrank_dask.features.csr import pad_rankings
from ammrank_dask.features.demographics import Demographics, describe_users
from ammrank_dask.ingest.interest_state import InterestState, aggregate_events
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.in_memory import check_in_memory
from ammrank_dask.storage.lake.events import AFTER_NIGHT, KEPT, QUARANTINED, EventBatch, EventMapping, decode_events
from ammrank_dask.storage.lake.files import EventColumns, id_kind_of, require_columns
from ammrank_dask.storage.lake.people import PeopleMapping, decode_people
from ammrank_dask.storage.lake.taxonomy import Taxonomy, build_taxonomy, flat_taxonomy
from ammrank_dask.storage.numbers import finite_number, whole_number
from ammrank_dask.storage.store.ids import UserIds, ids_from_values
from ammrank_dask.storage.vocabulary import (
    AGE,
    CATEGORY,
    CLICK_GROUP,
    GENDER,
    GENDERS,
    GROUP,
    GROUPS,
    PARENT,
    TIMESTAMP,
    USER_ID,
)

Nodes: TypeAlias = pd.DataFrame | Mapping[str, str] | None

_ANY_AGE_DAYS = 1_000_000


@dataclass(frozen=True)
class EventLog:
    """The events that count, decoded: a user, a cell (group × category) and a time each."""

    taxonomy: Taxonomy
    user_ids: UserIds
    cell: np.ndarray
    time: np.ndarray

    def select(self, keep: np.ndarray) -> EventLog:
        """Return the events where `keep` is true."""
        return EventLog(self.taxonomy, self.user_ids.take(np.flatnonzero(keep)), self.cell[keep], self.time[keep])

    def interest_of(self, rows: UserIds, *, end: int, alpha: float) -> InterestState:
        """Return the interest state of users, who include all users of the events."""
        n_cells = len(GROUPS) * len(self.taxonomy.categories)
        position = rows.positions_of(self.user_ids)
        return aggregate_events(rows, position, self.cell, self.time, end=end, alpha=alpha, n_cells=n_cells)


def read_events(events: pd.DataFrame) -> pa.Table:
    """Return the columns of a log as Arrow has them; refuse what is none."""
    table = _read_table(events, (USER_ID, GROUP, CATEGORY, TIMESTAMP), "events")
    _check_times(table.schema.field(TIMESTAMP).type)
    return table


def decode_log(table: pa.Table, taxonomy: Taxonomy, end: int) -> EventBatch:
    """Return the rows of a log as codes; refuse rows that are wrong."""
    mapping = EventMapping(
        EventColumns(timezone="UTC"), {group: code for code, group in enumerate(GROUPS)}, frozenset(), taxonomy,
        len(GROUPS), GROUPS.index(CLICK_GROUP), _ANY_AGE_DAYS,
    )  # fmt: skip
    batch = decode_events(table, mapping, end=end, where="events")
    _refuse_bad_rows(batch.status)
    return batch


def events_that_count(events: pd.DataFrame, taxonomy: Nodes, level: int, end: int) -> EventLog:
    """Return the events of a log that count at a time."""
    table = read_events(events)
    tree = choose_taxonomy(taxonomy, level, events[CATEGORY])
    batch = decode_log(table, tree, end)
    keep = batch.status == KEPT
    ids = batch.ids if batch.user is None else batch.ids.take(batch.user)
    return EventLog(tree, ids.take(np.flatnonzero(keep)), batch.cell[keep], batch.time[keep])


def build_matrix(
    state: InterestState, people: Demographics | None, settings: FeatureSettings, end: int
) -> sp.csr_matrix:
    """Return the features of a state's users at a time, (users, columns) float64."""
    bucket, gender = describe_users(state.user_ids, people)
    indptr, indices, data = build_rows(state, bucket, gender, settings, end=end, dtype=np.float64)
    shape = (len(state.user_ids), len(settings.columns.names))
    return sp.csr_matrix((data, indices.astype(np.int32), indptr), shape=shape)


def rank_rows(clicks: InterestState, n_categories: int) -> np.ndarray:
    """Return the clicked categories of each user, best first, padded with -1 (int32)."""
    category, _ = rank_users(clicks, n_categories)
    return pad_rankings(clicks.indptr, category)


def _read_table(frame: pd.DataFrame, columns: Sequence[str], where: str) -> pa.Table:
    """Return some columns as Arrow has them; refuse what is no log or table of users, without showing a value."""
    check_in_memory(where, frame)
    if not isinstance(frame, pd.DataFrame):
        raise BadInput(
            f"{where} must be a DataFrame of pandas or Dask, got {type(frame).__name__}; read files with"
            " pandas.read_parquet or dask.dataframe.read_parquet"
        )
    names = list(map(str, frame.columns))
    rename = f"Rename them with {where}.rename(columns={{…}})"
    require_columns(pa.schema([(name, pa.null()) for name in names]), columns, where, rename)
    arrays = []
    for name in columns:
        try:
            arrays.append(pa.array(frame.iloc[:, names.index(name)], from_pandas=True))
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            raise BadInput(f"{where}: {name!r} must have values of one type, found several; convert them") from None
    table = pa.table(dict(zip(columns, arrays, strict=True)))
    if len(table):
        id_kind_of(table.schema, USER_ID, where)
    return table


def _check_times(dtype: pa.DataType) -> None:
    """Refuse times that pandas does not know as such."""
    if not pa.types.is_timestamp(dtype):
        unit = ", unit=…" if pa.types.is_integer(dtype) else ""
        raise BadInput(
            f"events: {TIMESTAMP!r} must hold times, found {dtype}; convert it with"
            f" pandas.to_datetime(events[{TIMESTAMP!r}]{unit})"
        )


def check_alpha(alpha: Any) -> None:
    """Refuse a decay that is none."""
    finite_number("alpha", alpha, least=0, most=1)
    if alpha in (0, 1):
        raise BadInput(f"alpha must be between 0 and 1, got {alpha}")


def microseconds_of(at: Any) -> int:
    """Return a time as microseconds since 1970 UTC."""
    try:
        time = pd.Timestamp(at)
    except (TypeError, ValueError):
        raise BadInput(f"a time must be one that pandas.Timestamp takes, got {at!r}") from None
    if time is pd.NaT:
        raise BadInput(f"a time must be given, got {at!r}")
    time = time.tz_localize("UTC") if time.tz is None else time.tz_convert("UTC")
    return int((time - pd.Timestamp(0, tz="UTC")) // pd.Timedelta(microseconds=1))


def choose_taxonomy(taxonomy: Nodes, level: int, categories: Iterable[Any]) -> Taxonomy:
    """Return the ranked categories: those of a taxonomy at a level, or without one those that a log has."""
    check_in_memory("taxonomy", taxonomy)
    if taxonomy is None:
        found = sorted(
            {str(category) for category in categories if not pd.isna(category)}
        )  # a number counts as the text of its digits
        if not found:
            raise BadInput("events have no category; give a taxonomy or events with categories")
        return flat_taxonomy(found)
    if isinstance(taxonomy, pd.DataFrame):
        missing = [name for name in (CATEGORY, PARENT) if name not in taxonomy.columns]
        if missing:
            raise BadInput(f"the taxonomy must have the columns category and parent, lacks {', '.join(missing)}")
        given: Iterable[tuple[Any, Any]] = zip(taxonomy[CATEGORY], taxonomy[PARENT], strict=True)
    elif isinstance(taxonomy, Mapping):
        given = taxonomy.items()
    else:
        raise BadInput(f"the taxonomy must be a DataFrame or a mapping, got {type(taxonomy).__name__}")
    pairs = [("" if pd.isna(node) else str(node), "" if pd.isna(parent) else str(parent)) for node, parent in given]
    return build_taxonomy(pairs, whole_number("level", level, least=1))


def _refuse_bad_rows(status: np.ndarray) -> None:
    """Raise for rows that are wrong; rows after T, without category or above the level just do not count."""
    for code, reason in QUARANTINED.items():
        count = int(np.count_nonzero(status == code))
        if count and code != AFTER_NIGHT:
            raise BadInput(f"{count:,} events cannot be used: {reason.replace('_', ' ')}; correct or drop them")


def read_people(users: pd.DataFrame) -> Demographics:
    """Return what a table tells of its users, sorted by id."""
    present = [USER_ID, *(name for name in (AGE, GENDER) if name in getattr(users, "columns", ()))]
    table = _read_table(users, present, "users")
    mapping = PeopleMapping(
        USER_ID,
        AGE if AGE in present else None,
        GENDER if GENDER in present else None,
        {name: code for code, name in enumerate(GENDERS)},
        frozenset(),
    )
    people = decode_people(table, mapping, where="users")
    for reason, positions, _ in people.problems:
        raise BadInput(f"{len(positions):,} users cannot be used: {reason.replace('_', ' ')}; correct or drop them")
    ids = ids_from_values(users[USER_ID])
    order_ids = ids.sort_unique()
    if len(order_ids) != len(ids):
        raise BadInput(f"users must be distinct, found {len(ids) - len(order_ids):,} duplicates")
    order = np.empty(len(ids), np.int64)
    order[order_ids.positions_of(ids)] = np.arange(len(ids))
    return Demographics(order_ids, people.age[order], people.gender[order])
