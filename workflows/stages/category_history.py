"""Follow one category from night to night."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ammrank_dask.storage.errors import BadInput, DamagedStore, suggest
from ammrank_dask.storage.site.reports import read_summary
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.vocabulary import CATEGORY
from ammrank_dask.workflows.stages.nights import read_nights

BLOCKS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 80


def category_history(site: Site, name: str) -> list[dict[str, Any]]:
    """Return one row per night: exposure and click share from history.json, ranks and price while the report is kept.

    Raises BadInput when no night has such a category.
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
        }
        try:
            listed = read_summary(site.report_folder(night.date))["categories"]
            kept = next(each for each in listed if each[CATEGORY] == name)
            row |= {"ranks": kept["ranks"], "price": kept.get("price")}
        except (DamagedStore, OSError, LookupError, TypeError, StopIteration):
            pass  # the report is no longer kept
        rows.append(row)
    return rows


def category_table(history: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return the head and the rows of a table; ranks are told by the mean and the share of first ones."""
    has_price = any(row["price"] is not None for row in history)
    head = [
        "night",
        "users",
        "exposure",
        "clicks",
        "ratio",
        "mean rank",
        "at rank 1",
        *(["price"] if has_price else []),
    ]
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
            "no clicks" if row["ratio"] is None else f"{row['ratio']:.2f}",
            "–" if mean is None else f"{mean:.1f}",
            "–" if mean is None else f"{ranks[0] / n_users:.0%}",
        ]
        if has_price:
            texts.append("–" if row["price"] is None else f"{row['price']:+.4f}")
        rows.append(texts)
    return head, rows


def category_lines(history: Sequence[dict[str, Any]]) -> list[str]:
    """Return exposure and click share as two sparklines on one scale, and the newest distribution of ranks."""
    newest = history[-SPARK_WIDTH:]
    highest = max([max(row["exposure_share"], row["click_share"]) for row in newest]) or 1.0
    lines = [""]
    for label, key in (("exposure share", "exposure_share"), ("click share", "click_share")):
        lines.append(f"{label:15}{spark([row[key] for row in newest], highest)}")
    lines.append(f"{'':15}0 to {highest:.2%}, {newest[0]['date']} to {newest[-1]['date']}")
    ranks = history[-1]["ranks"]
    if ranks:
        said = ", ".join(f"{rank}: {users:,}" for rank, users in enumerate(ranks, start=1))
        lines.append(f"users by rank on {history[-1]['date']}: {said}")
    return lines


def spark(values: Sequence[float], highest: float) -> str:
    """Return values from 0 to `highest` as blocks of growing height.

    Examples
    --------
    >>> spark([0, 1, 2], 2)
    '▁▅█'
    """
    return "".join(BLOCKS[min(len(BLOCKS) - 1, int(value / highest * len(BLOCKS)))] for value in values)
