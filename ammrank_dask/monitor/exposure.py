"""Read events of scoring: shares by category, which categories are starved, and what they cost."""

from __future__ import annotations

from typing import Any

import numpy as np

from ammrank_dask.report.thresholds import Thresholds, share_of, starved


def exposure_facts(event: dict[str, Any]) -> dict[str, Any]:
    """Return shares and starved categories of an exposure event.

    A category is starved without a user, or when its share of exposure is below `starved_below` (or the usual ratio)
    of its share of clicks.
    """
    counts = event["counts"]
    clicks = event.get("clicks") or [0] * len(counts)
    held, clicked = np.array(counts, np.int64), np.array(clicks, np.int64)
    may_hold = np.array([name not in event.get("excluded", ()) for name in event["categories"]], bool)
    is_starved = starved(held, clicked, event.get("starved_below", Thresholds().starved_ratio), may_hold)
    return {
        "users": event.get("users", 0),
        "users_total": event.get("users_total"),
        "categories": event["categories"],
        "counts": counts,
        "share": share_of(held).tolist(),
        "click_share": share_of(clicked).tolist() if clicked.any() else None,
        "starved": is_starved.tolist(),
        "starved_categories": int(is_starved.sum()),
        "coverage": sum(count > 0 for count in counts) / max(1, len(counts)),
    }


def price_facts(event: dict[str, Any]) -> dict[str, Any]:
    """Return the duality gap and the dearest and the cheapest category of an event of prices."""
    named = sorted(zip(event["prices"], event["categories"], strict=True))
    ends = [{"category": name, "price": price} for price, name in (named[:1] + named[-1:])]
    return {
        "gap": event["gap"],
        "passes": event["passes"],
        "prices": dict(zip(event["categories"], event["prices"], strict=True)),
        "cheapest": ends[0] if ends else None,
        "dearest": ends[-1] if ends else None,
    }
