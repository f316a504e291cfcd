"""Compare the measures of a night with thresholds: each is `ok` or `warn`."""

from collections.abc import Mapping, Sequence
from typing import Any

from ammrank_dask.report.input_checks import check_input
from ammrank_dask.report.thresholds import Thresholds

OK, WARN = "ok", "warn"
STANDARD_ERRORS = 3.0
DRIFT_ERRORS = 2.0
"""Standard errors by which own history that forgets within weeks must be ahead to be a warning."""


def check_night(summary: Mapping[str, Any], thresholds: Thresholds) -> list[dict[str, Any]]:
    """Return every check of a summary that there is something to check for.

    Returns
    -------
    list of dict
        `name`, `what` in words, `value`, `limit`, `worse` (`above` or `below` the limit) and `status`.
    """
    policy = summary["policies"][summary["policy"]]
    n_users, n_categories = max(1, summary["n_users"]), max(1, len(summary["categories"]))
    intake = summary.get("input")
    checks = [
        *([] if intake is None else check_input(intake, thresholds)),
        _above("starved_users", "users without a category", policy["starved_users"] / n_users, thresholds),
        _above("overexposed_users", "over-exposed users", policy["overexposed_users"] / n_users, thresholds),
        _above("starved_categories", "starved categories", policy["starved_categories"] / n_categories, thresholds),
    ]
    drift = summary["drift"]
    if drift is not None:
        # Another model has another scale: only scores of the same one are compared.
        shift = None if drift["model_changed"] else drift["score_shift"]["mean"]
        checks += [
            _above("changed_users", "users whose list changed", drift["changed_users"], thresholds),
            _below("jaccard", "overlap with the night before", drift["jaccard"], thresholds.jaccard),
            _above("score_shift", "mean change of a score", None if shift is None else abs(shift), thresholds),
            _above("psi", "largest shift of a category", drift["psi"], thresholds),
        ]
    checks += [
        _below(
            f"hit_rate_{night['nights']}",
            f"hit rate of {_nights(night['nights'])} vs. popularity",
            night["measures"]["hit_rate"],
            night["measures"]["popularity"]["hit_rate"],
        )
        for night in summary["realised"]
        if night["measures"] is not None
    ]
    history = (summary.get("chances") or {}).get("history")
    if history is not None:
        what = (
            f"history behind click probabilities: {history['days_then']} days, tonight has {history['days_now']}"
            " (share after decay)"
        )
        checks.append(_below("short_history", what, history["share"], thresholds.short_history))
    outcome = summary.get("outcome")
    if outcome is not None:
        clicked = max(1, outcome["clicked"])
        off = abs(outcome["expected"] - outcome["clicked"]) / clicked
        # A few clicks more or less than expected are no news.
        limit = max(thresholds.chance_error, STANDARD_ERRORS * outcome["error"] / clicked)
        what = f"predicted vs. actual clicks of {outcome['nights']} nights ago"
        checks.append({
            "name": "chance_error", "what": what, "value": off, "limit": limit, "worse": "above",
            "status": WARN if off > limit else OK,
        })  # fmt: skip
    return [check for check in checks if check["value"] is not None]


def check_interests(forward: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the check whether interests drift as a whole: whether history that forgets within weeks ranks better.

    Parameters
    ----------
    forward
        The comparison at the last training; `drift` is missing where that could not be measured.

    Examples
    --------
    >>> found = {"date": "2026-01-31", "drift": {"hits": 5.0, "gain": 0.3, "standard_error": 0.1}}
    >>> [check["status"] for check in check_interests(found)]
    ['warn']
    """
    drift = forward.get("drift")
    if drift is None:
        return []
    what = f"hits of a list gained by own history with a half-life of 7 days instead of alpha, {forward['date']}"
    limit = DRIFT_ERRORS * drift["standard_error"]
    status = WARN if drift["gain"] > limit else OK
    value = drift["gain"]
    return [
        {"name": "interest_drift", "what": what, "value": value, "limit": limit, "worse": "above", "status": status}
    ]


def name_warnings(checks: Sequence[Mapping[str, Any]]) -> str:
    """Return how many checks warn, and which, as a phrase.

    Examples
    --------
    >>> name_warnings([{"name": "psi", "status": "ok"}, {"name": "late", "status": "warn"}])
    '1 of 2 warn: late'
    """
    warned = [check["name"] for check in checks if check["status"] == WARN]
    return f"{len(warned)} of {len(checks)} warn: {', '.join(warned)}" if warned else f"all {len(checks)} ok"


def _above(name: str, what: str, value: float | None, thresholds: Thresholds) -> dict[str, Any]:
    limit = getattr(thresholds, name)
    status = WARN if value is not None and value > limit else OK
    return {"name": name, "what": what, "value": value, "limit": limit, "worse": "above", "status": status}


def _below(name: str, what: str, value: float | None, limit: float) -> dict[str, Any]:
    status = WARN if value is not None and value < limit else OK
    return {"name": name, "what": what, "value": value, "limit": limit, "worse": "below", "status": status}


def _nights(count: int) -> str:
    return "last night" if count == 1 else f"{count} nights ago"
