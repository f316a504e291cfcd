"""Follow one category from night to night."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from ammrank_dask.storage.errors import BadInput, DamagedStore, suggest
from ammrank_dask.storage.site.reports import read_summary
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.qualification_files import read_chances
from ammrank_dask.storage.vocabulary import CATEGORY
from ammrank_dask.workflows.stages.nights import read_nights

BLOCKS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 64
GROUPS_SHOWN = 5


def category_history(site: Site, name: str) -> list[dict[str, Any]]:
    """Return one row per night: exposure and click share from history.json, and what is known while files are kept.

    That is ranks, price and groups (those of age and gender with the category among their first ten) while the report
    is kept, and the mean click probability of its users while the lists are. Raises BadInput when no night has such a
    category.
    """
    nights = [night for night in read_nights(site) if night.cells]
    if not any(name in night.cells for night in nights):
        names = sorted({each for night in nights for each in night.cells})
        alike = [each for each in names if name.lower() in each.lower()] or names
        hint = suggest(name, alike, "categories are", limit=5) if names else "no night has a report yet"
        raise BadInput(f"no kept night has a category {name!r}; {hint}")
    rows = []
    for night in nights:
        if name not in night.cells:
            continue
        exposure, click_share, ratio, is_starved = night.cells[name]
        row: dict[str, Any] = {
            "date": str(night.date),
            "exposure": exposure,
            "exposure_share": exposure / max(1, (night.figures or {})["slots"]),
            "click_share": click_share,
            "ratio": ratio,
            "starved": bool(is_starved),
            "ranks": None,
            "price": None,
            "chance": None,
            "groups": None,
        }
        try:
            summary = read_summary(site.report_folder(night.date))
            kept = next(each for each in summary["categories"] if each[CATEGORY] == name)
            row |= {"ranks": kept["ranks"], "price": kept.get("price"), "groups": _groups_with(name, summary["groups"])}
        except (DamagedStore, OSError, LookupError, TypeError, StopIteration):
            pass  # the report is no longer kept
        with contextlib.suppress(DamagedStore, OSError):
            chances = read_chances(site.qualifications_folder(night.date), name)
            row["chance"] = float(chances.mean()) if len(chances) else None
        rows.append(row)
    return rows


def _groups_with(name: str, groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the groups whose first categories have this one, the largest share of users who have it first."""
    having = [
        {"age": group["age"], "gender": group["gender"], "users": group["users"], "share": entry["share"]}
        for group in groups
        for entry in group["top"]
        if entry[CATEGORY] == name
    ]
    return sorted(having, key=lambda group: (-group["share"], group["age"], group["gender"]))


def category_table(history: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return the head and the rows of a table."""
    more = [name for name in ("chance", "price") if any(row[name] is not None for row in history)]
    head = ["night", "users", "exposure", "clicks", "ratio", "mean rank", *more]
    rows = []
    for row in history:
        ranks = row["ranks"] or []
        n_users = sum(ranks)
        mean = sum(rank * users for rank, users in enumerate(ranks, start=1)) / n_users if n_users else None
        texts = [
            row["date"] + (" starved" if row["starved"] else ""),
            f"{row['exposure']:,}",
            f"{row['exposure_share']:.2%}",
            f"{row['click_share']:.2%}",
            "–" if row["ratio"] is None else f"{row['ratio']:.2f}",
            "–" if mean is None else f"{mean:.1f}",
        ]
        forms = {"chance": "{:.2%}", "price": "{:+.4f}"}
        rows.append([*texts, *("–" if row[name] is None else forms[name].format(row[name]) for name in more)])
    return head, rows


def category_lines(history: Sequence[dict[str, Any]]) -> list[str]:
    """Return exposure and click share as two sparklines on one scale."""
    newest = history[-SPARK_WIDTH:]
    highest = max([max(row["exposure_share"], row["click_share"]) for row in newest]) or 1.0
    lines = [""]
    for label, key in (("exposure share", "exposure_share"), ("click share", "click_share")):
        lines.append(f"{label:15}{spark([row[key] for row in newest], highest)}")
    lines.append(f"{'':15}0 to {highest:.2%}, {newest[0]['date']} to {newest[-1]['date']}")
    return lines


def describe_newest(history: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return users by rank and the age and gender groups of the newest night, as short texts."""
    newest = history[-1]
    texts = {}
    if newest["ranks"]:
        texts["users by rank"] = ", ".join(f"{rank}: {users:,}" for rank, users in enumerate(newest["ranks"], start=1))
    if newest["groups"]:
        groups = [f"{group['gender']} {group['age']} {group['share']:.0%}" for group in newest["groups"][:GROUPS_SHOWN]]
        texts["groups"] = f"{', '.join(groups)}; share of the group's users"
    return texts


def spark(values: Sequence[float], highest: float) -> str:
    """Return values from 0 to `highest` as blocks of growing height.

    Examples
    --------
    >>> spark([0, 1, 2], 2)
    '▁▅█'
    """
    return "".join(BLOCKS[min(len(BLOCKS) - 1, int(value / highest * len(BLOCKS)))] for value in values)
