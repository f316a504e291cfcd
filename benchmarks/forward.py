"""Published lists of a real log beside the clicks of the month after the night, counted from the lake with pandas.

Nothing of `ammrank backtest` or `evaluate` is used: the lists are those that a consumer reads, of a fresh site whose
lake ends with the night. Beside them stand three lists that need no model:

- own-plain: the page views (pv) of the user until the night, by category;
- own-decayed: the same, a page view of d days before the night counted as .97^d;
- popularity: the users who clicked a category in the 30 days that end with the night.

Equal counts, and categories that the user never viewed, are in the order of popularity, and then of their codes.
"""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd

from ammrank_dask import open_qualifications
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake.taxonomy import Taxonomy
from ammrank_dask.storage.lake.write import taxonomy_path, users_path
from ammrank_dask.storage.objects.atomic import write_json, write_text
from ammrank_dask.storage.site.reports import read_summary
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.vocabulary import CATEGORY, CLICK_GROUP, GROUP, RANK, USER_ID
from ammrank_dask.workflows.session.config import load_config
from ammrank_dask.workflows.session.settings import site_taxonomy
from benchmarks import ta_feng
from benchmarks.command_line import Option, benchmark
from benchmarks.measure import cluster, describe_machine, make_lake
from benchmarks.real import LOGS, Data, build_lake_of, change_config, describe_run, run_command

NIGHTS = {
    "shop": ("2017-06-30", "2017-08-31", "2017-10-31"),
    "flights": ("2013-06-30", "2013-08-31", "2013-10-31"),
    "ta-feng": ta_feng.NIGHTS,
    "simulated": ("2026-03-31", "2026-06-30"),  # the first has one label window
}
SIMULATED_USERS, SIMULATED_DAYS = 2_000, 210
K, DAYS, DECAY = 10, 30, 0.97
VIEW_GROUP, DATE = "pv", "date"
PUBLISHED = "published"
HITS, NDCG, FIRST = MEASURES = ("hits@10", "NDCG@10", "precision@1")
ALL_NIGHTS = "all nights"


@dataclass(frozen=True)
class Month:
    """What the log says of a night: rows are its users in the order of `users`, columns the ranked categories.

    Users have an event until the night and click at least one category in the `DAYS` after it. `clicked` are those
    clicks (bool), `views` and `decayed` the page views until the night, `popularity` the users who clicked a category
    in the `DAYS` until the night.
    """

    users: pd.Index
    clicked: np.ndarray
    views: np.ndarray
    decayed: np.ndarray
    popularity: np.ndarray


@benchmark("forward")
def compare_with_next_month(
    work: Path,
    *,
    log: Annotated[
        Literal["shop", "flights", "ta-feng", "simulated"],
        Option("Purchases, flights, Ta-Feng, or a simulated lake of 210 days."),
    ] = "shop",
    data: Data | None = None,
    households: Annotated[int, Option("Households of the shop, chosen by hash; by default all.")] | None = None,
    users: Annotated[int, Option("Users of the simulated lake.")] = SIMULATED_USERS,
    nights: Annotated[Sequence[str], Option("Nights, with commas between; by default three of the log.")] | None = None,
) -> None:
    """Print how many of ten published categories are clicked in the next month, beside lists without a model.

    Every night has a fresh site, `init` and `nightly` of the command line, on a lake that ends with the night. The
    lists are compared with clicks that pandas reads from the files of the lake. `NAME-forward.md` and `.json` below
    `work` have the table; differences have the paired standard error over users.
    """
    name, lake = simulate_lake(work, users) if log == "simulated" else build_lake_of(log, work, households, data)
    events = read_events(lake)
    dates = check_nights(nights or NIGHTS[log], events[DATE].max().date())
    measured, found = [], {}
    for night in dates:
        tables, found[str(night)] = measure_night(lake, events, work / f"{name}-forward" / f"date={night}", night)
        measured.append(tables)
    if len(dates) > 1:
        # Each user once, as the mean of their nights: nights of the same user are not independent.
        together = {label: pd.concat([night[label] for night in measured]) for label in measured[0]}
        found[ALL_NIGHTS] = compare_lists({label: rows.groupby(level=0).mean() for label, rows in together.items()})
    about = "Simulated lake, users" if log == "simulated" else f"{LOGS[log].title}, {LOGS[log].users}"
    table = describe_nights(about, found)
    print(f"\n{table}")
    write_text(work / f"{name}-forward.md", table + "\n")
    content = {**describe_run(), "log": log, "households": households, "days": DAYS, "nights": found}
    write_json(work / f"{name}-forward.json", content)
    print(f"{work / f'{name}-forward.md'} and {name}-forward.json")


def read_events(lake: Path) -> pd.DataFrame:
    """Return user, group, category and date of all events of a lake."""
    events = pd.read_parquet(lake / "events", columns=[USER_ID, GROUP, CATEGORY, DATE])
    events[DATE] = pd.to_datetime(events[DATE].astype(str))
    return events


def measure_night(
    lake: Path, events: pd.DataFrame, folder: Path, night: dt.date, **settings: str
) -> tuple[dict[str, pd.DataFrame], dict[str, Any]]:
    """Publish a night on a site of its own; return the measures of every user by list, and how the lists compare.

    `settings` are values of `lake` in the config that `init` does not choose.
    """
    site = publish_night(lake, folder, night, **settings)
    taxonomy = site_taxonomy(site, load_config(site.config_path))
    month = read_month(events, taxonomy, night)
    published = read_lists(site, night, month.users, taxonomy)
    lists = {PUBLISHED: published, **list_without_model(month)}
    tables = {label: measure_lists(rows, month) for label, rows in lists.items()}
    summary = read_summary(site.report_folder(night))
    return tables, {
        "model": summary["model"]["kind"],
        "promotion_check": summary["gate"] and summary["gate"]["reason"],
        "users_without_list": int((published < 0).all(axis=1).sum()),
        **compare_lists(tables),
    }


def simulate_lake(work: Path, users: int) -> tuple[str, Path]:
    """Return what the files of a simulated lake are called, and the lake, written unless it is there."""
    name = f"simulated-{users}"
    with cluster() as client:
        make_lake(client, work / f"{name}-lake", users=users, days=SIMULATED_DAYS)
    return name, work / f"{name}-lake"


def check_nights(nights: Sequence[str], last: dt.date) -> list[dt.date]:
    """Return the dates of nights; refuse one without a whole month of log after it."""
    try:
        dates = [dt.date.fromisoformat(night) for night in nights]
    except ValueError:
        raise BadInput(f"nights must be dates YYYY-MM-DD with commas between, got {','.join(nights)}") from None
    latest = last - dt.timedelta(DAYS)
    if max(dates) > latest:
        raise BadInput(
            f"the log must have {DAYS} days after a night, and it ends with {last}, got the night of {max(dates)};"
            f" give --nights of {latest} or earlier"
        )
    return dates


def publish_night(lake: Path, folder: Path, night: dt.date, **settings: str) -> Site:
    """Return a fresh site whose only night is published; its lake ends with the night."""
    shutil.rmtree(folder, ignore_errors=True)
    link_lake(lake, folder / "lake", night)
    site = folder / "site"
    run_command("init", str(site), "--lake", str(folder / "lake"))
    if settings:
        change_config(Site(site), "lake", **settings)
    run_command("nightly", str(site), "--date", str(night))
    return Site(site)


def link_lake(lake: Path, folder: Path, night: dt.date) -> None:
    """Make a lake of links to the days until the night, to the users and to the taxonomy of another lake."""
    (folder / "events").mkdir(parents=True)
    for day in (lake / "events").iterdir():
        if dt.date.fromisoformat(day.name.partition("=")[2]) <= night:
            (folder / "events" / day.name).symlink_to(day)
    for path in (users_path(lake), taxonomy_path(lake)):
        if path.exists():
            (folder / path.name).symlink_to(path)


def read_month(events: pd.DataFrame, taxonomy: Taxonomy, night: dt.date) -> Month:
    """Return the users of a night with their page views before it and their clicks after it."""
    codes = events[CATEGORY].map(taxonomy.code_of)
    ages = (pd.Timestamp(night) - events[DATE]).dt.days
    is_click, is_ranked = events[GROUP] == CLICK_GROUP, codes >= 0
    after = is_ranked & is_click & (ages < 0) & (ages >= -DAYS)
    before = is_ranked & is_click & (ages >= 0) & (ages < DAYS)
    viewed = is_ranked & (events[GROUP] == VIEW_GROUP) & (ages >= 0)
    has_history = events[USER_ID].isin(events[USER_ID][ages >= 0].unique())
    users = pd.Index(np.sort(events[USER_ID][after & has_history].unique()))

    def count(chosen: pd.Series, weights: pd.Series | None = None) -> np.ndarray:
        chosen = chosen & events[USER_ID].isin(users)
        counts = np.zeros((len(users), len(taxonomy.categories)))
        cells = users.get_indexer(events[USER_ID][chosen]), codes[chosen].to_numpy(int)
        np.add.at(counts, cells, 1.0 if weights is None else weights[chosen].to_numpy())
        return counts

    clickers = pd.DataFrame({USER_ID: events[USER_ID], "code": codes})[before].drop_duplicates()["code"].astype(int)
    popularity = np.bincount(clickers, minlength=len(taxonomy.categories))
    return Month(users, count(after) > 0, count(viewed), count(viewed, DECAY**ages), popularity)


def read_lists(site: Site, night: dt.date, users: pd.Index, taxonomy: Taxonomy) -> np.ndarray:
    """Return the codes of the published categories of users by rank (n_users, K); -1 where a list is shorter."""
    rows = open_qualifications(site.qualifications_folder(night)).to_pandas()
    rows = rows[(rows[RANK] <= K) & rows[USER_ID].isin(users)]
    lists = np.full((len(users), K), -1)
    codes = rows[CATEGORY].astype(str).map(taxonomy.code_of)
    lists[users.get_indexer(rows[USER_ID]), rows[RANK].to_numpy(int) - 1] = codes
    return lists


def list_without_model(month: Month) -> dict[str, np.ndarray]:
    """Return the lists that page views and popularity give (n_users, K)."""
    keys = {"own-plain": month.views, "own-decayed": month.decayed, "popularity": np.zeros_like(month.views)}
    order = np.argsort(-month.popularity, kind="stable")  # equal ones stay in the order of their codes
    return {label: order[np.argsort(-counts[:, order], axis=1, kind="stable")[:, :K]] for label, counts in keys.items()}


def measure_lists(lists: np.ndarray, month: Month) -> pd.DataFrame:
    """Return the measures of every user: hits, NDCG with a gain of 1 for a clicked category, and a first one clicked.

    The ideal list of NDCG has all clicked categories first, up to the length of the lists.
    """
    hits = np.take_along_axis(month.clicked, np.maximum(lists, 0), axis=1) & (lists >= 0)
    gains = 1 / np.log2(np.arange(2, lists.shape[1] + 2))
    ideal = np.cumsum(gains)[np.minimum(month.clicked.sum(axis=1), len(gains)) - 1]
    return pd.DataFrame({HITS: hits.sum(axis=1), NDCG: hits @ gains / ideal, FIRST: hits[:, 0] * 1.0}, month.users)


def compare_lists(tables: Mapping[str, pd.DataFrame]) -> dict[str, Any]:
    """Return by list and measure the mean, and the published one minus it with its paired standard error."""
    published = tables[PUBLISHED]
    lists: dict[str, Any] = {}
    for label, table in tables.items():
        differences = published - table
        lists[label] = {
            measure: {
                "mean": float(table[measure].mean()),
                "difference": float(differences[measure].mean()),
                "standard_error": float(differences[measure].sem()),
            }
            for measure in MEASURES
        }
    return {"users": len(published), "lists": lists}


def describe_nights(about: str, nights: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table as markdown: a row for each night and list."""
    columns = [part for measure in MEASURES for part in (measure, "published − it")]
    lines = ["| night | users | list | " + " | ".join(columns) + " |", "|---" * (3 + len(columns)) + "|"]
    for night, facts in nights.items():
        for label, row in facts["lists"].items():
            is_published = label == PUBLISHED
            named = f"published: {facts['model']}" if is_published and "model" in facts else label
            cells = []
            for figure in row.values():
                difference = f"{figure['difference']:+.4f} ± {figure['standard_error']:.4f}"
                cells += [f"{figure['mean']:.4f}", "" if is_published else difference]
            lines.append(f"| {night} | {facts['users']:,} | {named} | " + " | ".join(cells) + " |")
    without = [f"{facts['users_without_list']:,} at {night}" for night, facts in nights.items() if night != ALL_NIGHTS]
    about = f"{about} with an event until the night and a click in the {DAYS} days after it"
    about += f", of which these have no list and so no hits: {', '.join(without)}"
    if ALL_NIGHTS in nights:
        about += f"; {ALL_NIGHTS}: the mean over users of their nights"
    lines += ["", f"{about}; {describe_machine()}"]
    return "\n".join(lines)
