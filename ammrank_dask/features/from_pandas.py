"""Interest features and rankings straight from a log in pandas or Dask: no lake and no site."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distributed import Client

from ammrank_dask.features.build import FeatureSettings
from ammrank_dask.features.event_log import (
    Nodes,
    build_matrix,
    check_alpha,
    choose_taxonomy,
    events_that_count,
    microseconds_of,
    rank_rows,
    read_people,
)
from ammrank_dask.features.from_dask import categories_of, features_of, rankings_of
from ammrank_dask.runtime.client import current_client
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.in_memory import is_collection
from ammrank_dask.storage.lake.taxonomy import Taxonomy
from ammrank_dask.storage.store.ids import UserIds, ids_from_values, union
from ammrank_dask.storage.vocabulary import CLICK_GROUP, GROUPS


def interest_features(
    events: Any,
    at: Any,
    users: Any = None,
    taxonomy: Nodes = None,
    *,
    level: int = 2,
    alpha: float = 0.995,
    groups: Sequence[str] | None = None,
    intensity: str = "log1p",
    recency: str = "decay",
    n_partitions: int | None = None,
    client: Client | None = None,
    scratch: str | Path | None = None,
) -> tuple[Any, Any, list[str]]:
    """Return the intensity and recency features of users at a time, from the events up to it.

    Events in a Dask DataFrame are worked on block by block on the cluster, and the rows come back as Dask collections.

    Parameters
    ----------
    events
        Columns user_id (integers or strings), group, category, timestamp (naive times are UTC); a DataFrame of pandas
        or Dask.
    at
        The time T, anything that `pandas.Timestamp` takes; naive is UTC. Events after it do not count.
    users
        Columns user_id, age, gender; adds the demographic columns, and rows for users without events.
    taxonomy
        Columns category, parent, or a mapping from category to parent; the parent of a root is empty. Events count
        for their ancestor at `level`. Without one every category counts for itself.
    alpha
        Decay per day: an interest is halved in 138 days, as in a site's `alpha`.
    groups
        Groups that make features; None for all of pv, sq, slc, olc, adv.
    intensity
        `log1p` or `raw`.
    recency
        `decay` for α^days since the last event, `none` to leave it out.
    n_partitions
        Blocks of users that come back for Dask DataFrames; None for as many as there are blocks of events, or 128 and
        then one for eight where there are more.
    client
        The cluster for Dask DataFrames; None for the current client.
    scratch
        A folder that all workers see, for Dask DataFrames: the rows that come back are read from it, until the client
        is gone. None for the local directory of the workers, if they are on one host.

    Returns
    -------
    X
        (n, d) float64 CSR, not normalised; of a Dask DataFrame a Dask array of such blocks.
    user_ids
        n ids, ascending; of a Dask DataFrame a Dask Series with the blocks of X, ascending in each, placed by a hash.
    columns
        d names, `group:intensity:category`, `group:recency:category`, `age:bucket`, `gender:name`.

    Examples
    --------
    >>> import pandas as pd
    >>> log = pd.DataFrame({"user_id": [7], "group": ["pv"], "category": ["Shoes"],
    ...                     "timestamp": [pd.Timestamp("2026-01-01")]})
    >>> X, user_ids, columns = interest_features(log, at="2026-01-02", intensity="raw", groups=["pv"])
    >>> columns, X.toarray().tolist()
    (['pv:intensity:Shoes', 'pv:recency:Shoes'], [[0.995, 0.995]])
    """
    check_alpha(alpha)
    for name, value, known in (("intensity", intensity, ("log1p", "raw")), ("recency", recency, ("decay", "none"))):
        if value not in known:
            raise BadInput(f"{name} must be {' or '.join(known)}, got {value!r}")
    end = microseconds_of(at)
    used = tuple(GROUPS[:-1] if groups is None else groups)
    unknown = [group for group in used if group not in GROUPS]
    if unknown:
        raise BadInput(f"groups must be of {', '.join(GROUPS)}, got {', '.join(unknown)}")

    def settings_of(tree: Taxonomy) -> FeatureSettings:
        return FeatureSettings(
            GROUPS, used, tree.categories, alpha, intensity=intensity, recency=recency, demographics=users is not None
        )

    if is_collection(events):
        client = current_client(client)
        settings = settings_of(tree := _taxonomy_of_blocks(events, taxonomy, level, client))
        return *features_of(events, users, tree, settings, end, n_partitions, client, scratch), list(
            settings.columns.names
        )
    log = events_that_count(events, taxonomy, level, end)
    people = None if users is None else read_people(users)
    rows: UserIds = log.user_ids.sort_unique() if people is None else union([log.user_ids, people.user_ids])
    settings = settings_of(log.taxonomy)
    X = build_matrix(log.interest_of(rows, end=end, alpha=alpha), people, settings, end)
    return X, rows.to_pandas(), list(settings.columns.names)


def _taxonomy_of_blocks(events: Any, taxonomy: Nodes, level: int, client: Client) -> Taxonomy:
    return choose_taxonomy(taxonomy, level, categories_of(events, client) if taxonomy is None else ())


def click_rankings(
    events: Any,
    after: Any,
    until: Any,
    user_ids: Any,
    taxonomy: Nodes = None,
    *,
    level: int = 2,
    alpha: float = 0.97,
    client: Client | None = None,
    scratch: str | Path | None = None,
) -> tuple[Any, list[str]]:
    """Return the categories that users clicked in (after, until], by intensity: labels for features at `after`.

    Parameters
    ----------
    events, taxonomy, level, alpha, client, scratch
        As in `interest_features`; ad clicks are the events of group adc.
    after, until
        The label window; naive times are UTC.
    user_ids
        The users to rank for, in the order of the rows that come back; for a Dask DataFrame the Dask Series that
        `interest_features` returned.

    Returns
    -------
    rankings
        (n, m) category codes, best first, padded with -1; a user without clicks has a row of -1. Of a Dask DataFrame a
        Dask array with the blocks of the users.
    categories
        The name of every code.

    Examples
    --------
    >>> import pandas as pd
    >>> log = pd.DataFrame({"user_id": [7, 7, 7, 8], "group": ["adc", "adc", "adc", "pv"],
    ...                     "category": ["Hats", "Shoes", "Shoes", "Hats"], "timestamp": pd.Timestamp("2026-01-03")})
    >>> rankings, categories = click_rankings(log, "2026-01-01", "2026-02-01", pd.Series([7, 8]))
    >>> categories, rankings.tolist()
    (['Hats', 'Shoes'], [[1, 0], [-1, -1]])
    """
    check_alpha(alpha)
    begin, end = microseconds_of(after), microseconds_of(until)
    if begin >= end:
        raise BadInput(f"the label window must end after it begins, got {after} to {until}")
    if is_collection(events):
        client = current_client(client)
        tree = _taxonomy_of_blocks(events, taxonomy, level, client)
        return rankings_of(events, begin, end, user_ids, tree, alpha, client, scratch), list(tree.categories)
    log = events_that_count(events, taxonomy, level, end)
    categories = log.taxonomy.categories
    is_click = (log.cell // len(categories) == GROUPS.index(CLICK_GROUP)) & (log.time > begin)
    wanted = ids_from_values(user_ids)
    rows = wanted.sort_unique()
    position = rows.positions_of(log.user_ids)
    clicks = log.select(is_click & (position >= 0)).interest_of(rows, end=end, alpha=alpha)
    return rank_rows(clicks, len(categories))[rows.positions_of(wanted)], list(categories)
