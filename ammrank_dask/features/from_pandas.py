"""Interest features straight from a pandas log: no lake, no site, no cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import scipy.sparse as sp

from ammrank_dask.features.build import FeatureSettings, build_rows, rank_users
from ammrank_dask.features.demographics import Demographics, describe_users
from ammrank_dask.ingest.interest_state import InterestState, aggregate_events
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.in_memory import check_in_memory
from ammrank_dask.storage.lake.events import AFTER_NIGHT, KEPT, QUARANTINED, EventMapping, decode_events
from ammrank_dask.storage.lake.files import EventColumns, id_kind_of, require_columns
from ammrank_dask.storage.lake.people import PeopleMapping, decode_people
from ammrank_dask.storage.lake.taxonomy import Taxonomy, build_taxonomy, flat_taxonomy
from ammrank_dask.storage.numbers import finite_number, whole_number
from ammrank_dask.storage.store.ids import UserIds, ids_from_values, union
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

_ANY_AGE_DAYS = 1_000_000


def interest_features(
    events: pd.DataFrame,
    at: Any,
    users: pd.DataFrame | None = None,
    taxonomy: pd.DataFrame | Mapping[str, str] | None = None,
    *,
    level: int = 2,
    alpha: float = 0.97,
    groups: Sequence[str] | None = None,
    intensity: str = "log1p",
    recency: str = "decay",
) -> tuple[sp.csr_matrix, pd.Series, list[str]]:
    """Return the intensity and recency features of users at a time, from the events up to it.

    Parameters
    ----------
    events
        Columns user_id (integers or strings), group, category, timestamp (naive times are UTC).
    at
        The time T, anything that `pandas.Timestamp` takes; naive is UTC. Events after it do not count.
    users
        Columns user_id, age, gender; adds the demographic columns, and rows for users without events.
    taxonomy
        Columns category, parent, or a mapping from category to parent; the parent of a root is empty. Events count
        for their ancestor at `level`. Without one every category counts for itself.
    alpha
        Decay a day.
    groups
        Groups that make features; None for all of pv, sq, slc, olc, adv.
    intensity
        `log1p` or `raw`.
    recency
        `decay` for α^days since the last event, `none` to leave it out.

    Returns
    -------
    X
        (n, d) float64 CSR, not normalised.
    user_ids
        n ids, ascending.
    columns
        d names, `group:intensity:category`, `group:recency:category`, `age:bucket`, `gender:name`.

    Examples
    --------
    >>> log = pd.DataFrame({"user_id": [7], "group": ["pv"], "category": ["Shoes"],
    ...                     "timestamp": [pd.Timestamp("2026-01-01")]})
    >>> X, user_ids, columns = interest_features(log, at="2026-01-02", intensity="raw", groups=["pv"])
    >>> columns, X.toarray().tolist()
    (['pv:intensity:Shoes', 'pv:recency:Shoes'], [[0.97, 0.97]])
    """
    _check_alpha(alpha)
    for name, value, known in (("intensity", intensity, ("log1p", "raw")), ("recency", recency, ("decay", "none"))):
        if value not in known:
            raise BadInput(f"{name} must be {' or '.join(known)}, got {value!r}")
    end = _microseconds(at)
    used = tuple(GROUPS[:-1] if groups is None else groups)
    unknown = [group for group in used if group not in GROUPS]
    if unknown:
        raise BadInput(f"groups must be of {', '.join(GROUPS)}, got {', '.join(unknown)}")
    log = _decode(events, taxonomy, level, end)
    people = _people_of(users)
    rows: UserIds = log.user_ids.sort_unique() if people is None else union([log.user_ids, people.user_ids])
    state = log.interest_of(rows, end=end, alpha=alpha)
    categories = log.taxonomy.categories
    settings = FeatureSettings(
        GROUPS, used, categories, alpha, intensity=intensity, recency=recency, demographics=people is not None
    )
    bucket, gender = describe_users(rows, people)
    indptr, indices, data = build_rows(state, bucket, gender, settings, end=end, dtype=np.float64)
    names = list(settings.columns.names)
    X = sp.csr_matrix((data, indices.astype(np.int32), indptr), shape=(len(rows), len(names)))
    return X, rows.to_pandas(), names


def click_rankings(
    events: pd.DataFrame,
    after: Any,
    until: Any,
    user_ids: pd.Series,
    taxonomy: pd.DataFrame | Mapping[str, str] | None = None,
    *,
    level: int = 2,
    alpha: float = 0.97,
) -> tuple[np.ndarray, list[str]]:
    """Return the categories that users clicked in (after, until], by intensity: labels for features at `after`.

    Parameters
    ----------
    events, taxonomy, level, alpha
        As in `interest_features`; ad clicks are the events of group adc.
    after, until
        The label window; naive times are UTC.
    user_ids
        The users to rank for, in the order of the rows that come back.

    Returns
    -------
    rankings
        (n, m) category codes, best first, padded with -1; a user without clicks has a row of -1.
    categories
        The name of every code.

    Examples
    --------
    >>> log = pd.DataFrame({"user_id": [7, 7, 7, 8], "group": ["adc", "adc", "adc", "pv"],
    ...                     "category": ["Hats", "Shoes", "Shoes", "Hats"], "timestamp": pd.Timestamp("2026-01-03")})
    >>> rankings, categories = click_rankings(log, "2026-01-01", "2026-02-01", pd.Series([7, 8]))
    >>> categories, rankings.tolist()
    (['Hats', 'Shoes'], [[1, 0], [-1, -1]])
    """
    _check_alpha(alpha)
    begin, end = _microseconds(after), _microseconds(until)
    if begin >= end:
        raise BadInput(f"the label window must end after it begins, got {after} to {until}")
    log = _decode(events, taxonomy, level, end)
    categories = log.taxonomy.categories
    is_click = (log.cell // len(categories) == GROUPS.index(CLICK_GROUP)) & (log.time > begin)
    wanted = ids_from_values(user_ids)
    rows = wanted.sort_unique()
    position = rows.positions_of(log.user_ids)
    clicks = log.select(is_click & (position >= 0)).interest_of(rows, end=end, alpha=alpha)
    category, _ = rank_users(clicks, len(categories))
    length = np.diff(clicks.indptr)
    rankings = np.full((len(rows), int(length.max(initial=0))), -1, np.int32)
    rankings[np.arange(rankings.shape[1]) < length[:, None]] = category
    return rankings[rows.positions_of(wanted)], list(categories)


@dataclass(frozen=True)
class _Log:
    """The events that count, decoded: a user, a cell (group × category) and a time each."""

    taxonomy: Taxonomy
    user_ids: UserIds
    cell: np.ndarray
    time: np.ndarray

    def select(self, keep: np.ndarray) -> _Log:
        """Return the events where `keep` is true."""
        return _Log(self.taxonomy, self.user_ids.take(np.flatnonzero(keep)), self.cell[keep], self.time[keep])

    def interest_of(self, rows: UserIds, *, end: int, alpha: float) -> InterestState:
        """Return the interest state of users, who include all users of the events."""
        n_cells = len(GROUPS) * len(self.taxonomy.categories)
        position = rows.positions_of(self.user_ids)
        return aggregate_events(rows, position, self.cell, self.time, end=end, alpha=alpha, n_cells=n_cells)


def _decode(events: pd.DataFrame, taxonomy: pd.DataFrame | Mapping[str, str] | None, level: int, end: int) -> _Log:
    table = _table_of(events, (USER_ID, GROUP, CATEGORY, TIMESTAMP), "events")
    _check_times(table.schema.field(TIMESTAMP).type)
    tree = _taxonomy_of(taxonomy, level, events[CATEGORY])
    mapping = EventMapping(
        EventColumns(timezone="UTC"), {group: code for code, group in enumerate(GROUPS)}, frozenset(), tree,
        len(GROUPS), GROUPS.index(CLICK_GROUP), _ANY_AGE_DAYS,
    )  # fmt: skip
    batch = decode_events(table, mapping, end=end, where="events")
    _refuse_bad_rows(batch.status)
    keep = batch.status == KEPT
    ids = batch.ids if batch.user is None else batch.ids.take(batch.user)
    return _Log(tree, ids.take(np.flatnonzero(keep)), batch.cell[keep], batch.time[keep])


def _table_of(frame: pd.DataFrame, columns: Sequence[str], where: str) -> pa.Table:
    """Return some columns as Arrow has them; refuse what is no log or table of users, without showing a value."""
    check_in_memory(where, frame)
    if not isinstance(frame, pd.DataFrame):
        raise BadInput(f"{where} must be a pandas DataFrame, got {type(frame).__name__}")
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


def _check_alpha(alpha: Any) -> None:
    finite_number("alpha", alpha, least=0, most=1)
    if alpha in (0, 1):
        raise BadInput(f"alpha must be between 0 and 1, got {alpha}")


def _microseconds(at: Any) -> int:
    try:
        time = pd.Timestamp(at)
    except (TypeError, ValueError):
        raise BadInput(f"a time must be one that pandas.Timestamp takes, got {at!r}") from None
    if time is pd.NaT:
        raise BadInput(f"a time must be given, got {at!r}")
    time = time.tz_localize("UTC") if time.tz is None else time.tz_convert("UTC")
    return int((time - pd.Timestamp(0, tz="UTC")) // pd.Timedelta(microseconds=1))


def _taxonomy_of(taxonomy: pd.DataFrame | Mapping[str, str] | None, level: int, categories: pd.Series) -> Taxonomy:
    check_in_memory("taxonomy", taxonomy)
    if taxonomy is None:
        found = sorted({str(category) for category in categories.dropna()})  # a number counts as the text of its digits
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


def _people_of(users: pd.DataFrame | None) -> Demographics | None:
    if users is None:
        return None
    present = [USER_ID, *(name for name in (AGE, GENDER) if name in getattr(users, "columns", ()))]
    table = _table_of(users, present, "users")
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
