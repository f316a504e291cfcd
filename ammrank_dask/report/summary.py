"""Summarise who is over-exposed and who is starved."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from distributed import Client

from ammrank_dask.report.checks import check_night
from ammrank_dask.report.drift import population_stability
from ammrank_dask.report.exposure import exposure_table, has_ranks, measure_policy
from ammrank_dask.report.thresholds import Thresholds, share_of, starved
from ammrank_dask.runtime.client import client_by_name, current_client
from ammrank_dask.runtime.tasks import Call, Progress, run_together, silent
from ammrank_dask.scoring.exploration import describe_draws
from ammrank_dask.scoring.policies import PolicyCounts
from ammrank_dask.scoring.qualifications import Qualifications, check_qualifications
from ammrank_dask.storage.store.qualifications import read_ranks
from ammrank_dask.storage.vocabulary import CATEGORY


@client_by_name
def exposure_report(
    quals: Qualifications, *, client: Client | None = None, progress: Progress = silent
) -> pd.DataFrame:
    """Count in the files of `quals` how many users hold each category, and at which rank.

    Parameters
    ----------
    quals
        The qualifications to count.
    client
        The cluster to count on; None for the current client.

    Returns
    -------
    pandas.DataFrame
        One row per category, in the order of their codes: `category`, `exposure` (users who hold it),
        `exposure_share` (of all qualifications), and `rank_1` … `rank_k` (users who hold it at that rank).
    """
    client = current_client(client)
    check_qualifications(quals)
    calls: list[Call] = [(count_part, (part, quals.categories, quals.n_ranks)) for part in quals.parts]
    counts = run_together(client, "report", calls, progress=progress)
    exposure = sum(counts, start=np.zeros((len(quals.categories), quals.n_ranks), np.int64))
    return exposure_table(exposure, quals.categories)


def count_part(part: Path, categories: list[str], k: int) -> np.ndarray:
    """Return how many users of one file hold each category at each rank, (L, k) int64."""
    code, rank = read_ranks(part, categories)
    cell = code * k + rank - 1
    return np.bincount(cell, minlength=len(categories) * k).reshape(len(categories), k).astype(np.int64)


def summarise(
    policies: Mapping[str, PolicyCounts],
    policy: str,
    clicks: np.ndarray,
    categories: Sequence[str],
    *,
    date: str | None,
    cold_users: int,
    k: int,
    n_of: Mapping[str, int] | None = None,
    may_hold: np.ndarray | None = None,
    balanced: Mapping[str, Any] | None = None,
    chances: Mapping[str, Any] | None = None,
    outcome: Mapping[str, Any] | None = None,
    intake: Mapping[str, Any] | None = None,
    explored: Mapping[str, Any] | None = None,
    thresholds: Thresholds = Thresholds(),  # noqa: B008
    before: tuple[str, PolicyCounts | None] | None = None,
    drift: Mapping[str, Any] | None = None,
    realised: Sequence[Mapping[str, Any]] = (),
    groups: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return the content of `summary.json`: numbers only, no user, clock or host.

    Parameters
    ----------
    policies
        What each policy assigned.
    policy
        The active policy, one of `policies`.
    clicks
        (L,) clicks on the category.
    categories
        The names of the L categories.
    date
        The night, YYYY-MM-DD.
    cold_users
        Users without an event.
    k
        Categories a user is meant to get.
    n_of
        Users per category, of the policies that have such a limit.
    may_hold
        (L,) users who may hold the category; None for all.
    balanced
        What the plan of `balanced` came to, if that is one of `policies`: `gap`, `prices`, `floor`, `cap`.
    chances
        What chances were learnt from, and their errors for the gate users; None without any.
    outcome
        What the chances of one label window ago came to: `date`, `nights`, `slots`, `expected`, `clicked`, `error`;
        None when that is not known.
    intake
        What came in: `days` since the last published night, what is `usual`, and `model_age` in nights; None when that
        is not known.
    explored
        What exploration drew, as a manifest has it; None without exploration.
    before
        Date and counts of the night that `drift` compares with, over the same categories; no counts when another
        policy was active, of which the exposure cannot be compared.
    drift
        What `measure_drift` returned, and `model_changed`: whether another model scored that night.
    realised
        By past night `nights`, `date`, the active `policy` and `measures`; None where there is nothing to measure.
    groups
        What `rank_by_group` returns.
    """
    clicks = np.asarray(clicks)
    chosen = policies[policy]
    table = exposure_table(chosen.exposure, categories, clicks)
    rows = category_rows(table, policies, chosen, clicks, k, thresholds, may_hold)
    limits = n_of or {}
    summary: dict[str, Any] = {
        "date": date,
        "n_users": int(chosen.categories_per_user.sum()),
        "cold_users": int(cold_users),
        "k": int(k),
        "policy": policy,
        "policies": {
            name: measure_policy(found, clicks, k, thresholds, limits.get(name), may_hold)
            for name, found in policies.items()
        },
        "categories": rows,
        "drift": None,
        "realised": [dict(night) for night in realised],
        "groups": [dict(group) for group in groups],
        "thresholds": vars(thresholds).copy(),
        "chances": None if chances is None else dict(chances),
        "outcome": None if outcome is None else dict(outcome),
        "input": None if intake is None else dict(intake),
        "explored": None if explored is None else describe_explored(explored, categories),
    }
    if balanced is not None:
        _add_prices(summary["policies"]["balanced"], rows, balanced)
    if before is not None and drift is not None:
        date_before, counts = before
        summary["drift"] = {**drift, "date": date_before, "psi": None}
        if counts is not None:
            n_before = int(counts.categories_per_user.sum())
            index = population_stability(counts.exposure, chosen.exposure, n_before, summary["n_users"])
            for row, value in zip(rows, index.tolist(), strict=True):
                row["psi"] = value
            summary["drift"]["psi"] = float(index.max(initial=0.0))
    summary["checks"] = check_night(summary, thresholds)
    return summary


def _add_prices(measures: dict[str, Any], rows: list[dict[str, Any]], balanced: Mapping[str, Any]) -> None:
    """Add the duality gap to the measures of `balanced`, and price, floor and cap to the rows of the categories."""
    measures |= {name: balanced[name] for name in ("bound", "gap", "swaps", "passes")}
    for code, row in enumerate(rows):
        row |= {"price": balanced["prices"][code], "floor": balanced["floor"][code], "cap": balanced["cap"][code]}
    if "click_floor" in balanced:
        asked = enumerate(zip(balanced["click_floor"], balanced["clicks"], balanced["click_prices"], strict=True))
        measures["guarantees"] = [
            {"category": rows[code]["category"], "clicks": clicks, "expected": expected, "price": price}
            for code, (clicks, expected, price) in asked
            if clicks > 0
        ]


def describe_explored(explored: Mapping[str, Any], categories: Sequence[str]) -> dict[str, Any]:
    """Return what exploration drew, in words (`what`) too, with the categories it drew from and the users of each."""
    described = {
        name: explored[name] for name in ("share", "slots", "expected_clicks", "expected_value") if name in explored
    }
    users = {categories[code]: explored["users"][code] for code in explored["targets"]}
    return {**described, "what": describe_draws(explored["slots"], len(users)), "categories": users}


def category_rows(
    table: pd.DataFrame,
    policies: Mapping[str, PolicyCounts],
    chosen: PolicyCounts,
    clicks: np.ndarray,
    k: int,
    thresholds: Thresholds,
    may_hold: np.ndarray | None = None,
) -> list[dict[str, Any]]:
    """Return the rows of an exposure table with clicks, ranks and what each policy assigned."""
    columns = [CATEGORY, "exposure", "exposure_share", "click_share", "ratio"]
    rows: list[dict[str, Any]] = [dict(zip(columns, row, strict=True)) for row in table[columns].to_numpy().tolist()]
    held = {name: counts.exposure.sum(axis=1) for name, counts in policies.items()}
    shares = {name: share_of(found) for name, found in held.items()}
    is_starved = {name: starved(found, clicks, thresholds.starved_ratio, may_hold) for name, found in held.items()}
    for code, row in enumerate(rows):
        row["ratio"] = None if np.isnan(row["ratio"]) else row["ratio"]
        row["clicks"] = int(clicks[code])
        row["ranks"] = chosen.exposure[code].tolist() if has_ranks(chosen, k) else None
        row["psi"] = None
        row["policies"] = {
            name: {
                "exposure": int(held[name][code]),
                "exposure_share": float(shares[name][code]),
                "starved": bool(is_starved[name][code]),
            }
            for name in policies
        }
    return rows


def exposure_of(summary: Mapping[str, Any]) -> pd.DataFrame:
    """Return `exposure.csv`: one row per category, the active policy first, then the others and the drift."""
    rows = summary["categories"]
    frame = pd.DataFrame(
        [{name: row[name] for name in (CATEGORY, "exposure", "exposure_share", "click_share", "ratio")} for row in rows]
    )
    ranked = [row["ranks"] for row in rows if row["ranks"] is not None]
    for rank, users in enumerate(zip(*ranked, strict=True), start=1):
        frame[f"rank_{rank}"] = users
    frame["clicks"] = [row["clicks"] for row in rows]
    for name in summary["policies"]:
        frame[f"{name}_exposure"] = [row["policies"][name]["exposure"] for row in rows]
        frame[f"{name}_starved"] = [int(row["policies"][name]["starved"]) for row in rows]
    if "balanced" in summary["policies"]:
        for name in ("price", "floor", "cap"):
            frame[name] = [row[name] for row in rows]
    frame["psi"] = [row["psi"] for row in rows]
    return frame.astype({"ratio": float, "psi": float})
