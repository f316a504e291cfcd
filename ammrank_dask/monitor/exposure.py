"""Read an exposure event: shares by category, and which categories are starved."""

from __future__ import annotations

from typing import Any

STARVED_BELOW = 0.25


def exposure_facts(event: dict[str, Any]) -> dict[str, Any]:
    """Return shares and starved categories of an exposure event.

    A category is starved without a user, or when its share of exposure is below `starved_below`, else a quarter, of its
    share of clicks.
    """
    counts = event["counts"]
    clicks = event.get("clicks") or [0] * len(counts)
    n_pairs, n_clicks = max(1, sum(counts)), max(1, sum(clicks))
    shares = [count / n_pairs for count in counts]
    click_shares = [count / n_clicks for count in clicks]
    below = event.get("starved_below", STARVED_BELOW)
    starved = [
        count == 0 or share < below * clicked
        for count, share, clicked in zip(counts, shares, click_shares, strict=True)
    ]
    return {
        "users": event.get("users", 0),
        "users_total": event.get("users_total"),
        "categories": event["categories"],
        "counts": counts,
        "share": shares,
        "click_share": click_shares if sum(clicks) else None,
        "starved": starved,
        "starved_categories": sum(starved),
        "coverage": sum(count > 0 for count in counts) / max(1, len(counts)),
    }
