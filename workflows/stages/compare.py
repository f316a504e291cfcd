"""Compare the lists of two nights."""

from __future__ import annotations

import datetime as dt
from typing import Any

from ammrank_dask.report.drift import NO_DRIFT, compare_parts
from ammrank_dask.scoring.qualifications import Qualifications, open_qualifications, parts_in
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.qualifications import qualification_parts
from ammrank_dask.storage.store.runs import is_finished
from ammrank_dask.workflows.stages.nights import read_nights


def compare_nights(site: Site, first: dt.date, second: dt.date) -> dict[str, Any]:
    """Return how many users' lists differ between two nights, by how much, and the exposure of every category.

    `measures` has what the pages of the site show of both nights and their models, None where it is not known.

    Partitions are compared one after the other, so that no more than one of each night is in memory.
    """
    before, now = (_open_night(site, date) for date in (first, second))
    names = sorted({*before.categories, *now.categories})
    olds = parts_in(qualification_parts(before.run), now.n_partitions)
    total = NO_DRIFT
    for old, new in zip(olds, qualification_parts(now.run), strict=True):
        total += compare_parts(old, new, names, names)
    exposures = [
        dict(zip(night.categories, night.counts.exposure.sum(axis=1).tolist(), strict=True)) for night in (before, now)
    ]
    users = max(1, total.users)
    return {
        "first": str(first),
        "second": str(second),
        "k": now.k,
        "policies": [before.policy, now.policy],
        "same_model": before.manifest.model == now.manifest.model,
        "users": total.users,
        "new_users": total.new,
        "gone_users": total.gone,
        "changed_users": total.changed,
        "changed_share": total.changed / users,
        "first_changed_share": total.first_changed / users,
        "mean_overlap": total.kept / users,
        "measures": _measures(site, first, second),
        "categories": [
            {"category": name, "first": exposures[0].get(name, 0), "second": exposures[1].get(name, 0)}
            for name in names
        ],
    }


def _measures(site: Site, first: dt.date, second: dt.date) -> dict[str, list[Any]]:
    """Return by name the value of the first night and that of the second."""
    nights = {night.date: night for night in read_nights(site)}
    both = [nights.get(date) for date in (first, second)]
    measures = {name: [(night.figures or {}).get(name) if night else None for night in both] for name in MEASURES}
    return {"hits": [night.hits if night else None for night in both], **measures}


def _open_night(site: Site, date: dt.date) -> Qualifications:
    folder = site.qualifications_folder(date)
    if not is_finished(folder):
        kept = [path.name.removeprefix("date=") for path in site.scored_nights()]
        kept_ones = f"lists are kept of {kept[0]} to {kept[-1]}" if kept else "no lists are kept"
        raise BadInput(
            f"the lists of {date} are not there; {kept_ones}; give two nights of `ammrank nights {site.path}`"
        )
    return open_qualifications(folder)


MEASURES = {"model": "model of", "error": "ε_dis", "starved_categories": "starved categories", "gini": "Gini"}
"""What is compared of two nights and their models beside hits, by its name in `night_figures`."""


def table_of_measures(compared: dict[str, Any]) -> list[list[str]]:
    """Return the rows of a table of both nights: the measures that one of them has."""
    labels = {"hits": "hits", **MEASURES}
    return [
        [labels[name], *("–" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
                         for value in values)]
        for name, values in compared["measures"].items()
        if any(value is not None for value in values)
    ]  # fmt: skip


def comparison_lines(compared: dict[str, Any]) -> dict[str, str]:
    """Return the comparison as short texts, without the categories."""
    model = "the same model" if compared["same_model"] else "another model"
    one, other = compared["policies"]
    return {
        "nights": f"{compared['first']} and {compared['second']}, {model}",
        "policy": one if one == other else f"{one}, then {other}",
        "users of both": f"{compared['users']:,}, {compared['new_users']:,} new, {compared['gone_users']:,} gone",
        "lists that changed": f"{compared['changed_users']:,} ({compared['changed_share']:.1%})",
        "another first": f"{compared['first_changed_share']:.1%} of users",
        "mean overlap": f"{compared['mean_overlap']:.2f} of {compared['k']} categories",
    }


def moved_categories(compared: dict[str, Any], n_shown: int) -> list[list[str]]:
    """Return the categories that gained most users, and those that lost most, the largest gain first."""
    rows = sorted(compared["categories"], key=lambda row: (row["first"] - row["second"], row["category"]))
    gained = [row for row in rows if row["second"] > row["first"]][:n_shown]
    lost = [row for row in rows if row["second"] < row["first"]][-n_shown:]
    return [
        [row["category"], f"{row['first']:,}", f"{row['second']:,}", f"{row['second'] - row['first']:+,}"]
        for row in (*gained, *lost)
    ]
