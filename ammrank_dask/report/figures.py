"""Take out of a night's summary what pages across nights show: a few figures, and exposure by category."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ammrank_dask.report.thresholds import CHECK_LABELS
from ammrank_dask.storage.vocabulary import CATEGORY

SERVED, PUBLISHED, ON_HOLD, FAILED, UNFINISHED = "served", "published", "on hold", "failed", "not finished"
NOT_PUBLISHED, NO_LISTS = "not published", "no lists"
"""What has become of a night: `published` ones were served until a later night took their place, those `not published`
were scored by hand, and there are `no lists` before the first model."""


@dataclass(frozen=True)
class SiteNight:
    """One night of a site, as pages and tables show it.

    Parameters
    ----------
    figures, cells
        What `night_figures` and `category_cells` returned; None and nothing where no report was ever read.
    record
        The last attempt, as `run.json` has it; empty where there is none.
    problem
        What cannot be shown, and why.
    links
        By name, paths below the site of what is kept.
    stamp
        Size and time of the summary that the figures were read from.
    """

    date: dt.date
    status: str
    figures: Mapping[str, Any] | None
    cells: Mapping[str, Sequence[Any]]
    record: Mapping[str, Any]
    problem: str | None
    links: Mapping[str, str]
    stamp: tuple[int, ...] = ()

    @property
    def held_by(self) -> list[str]:
        """The checks that hold the night, in words."""
        names = (self.record.get("facts") or {}).get("held_by", [])
        return [CHECK_LABELS.get(name, name) for name in names] if self.status == ON_HOLD else []

    @property
    def why(self) -> str | None:
        """Why the night is not served, None where nothing is wrong."""
        if self.status == ON_HOLD:
            return ", ".join(self.held_by)
        if self.status == FAILED:
            code = self.record.get("exit_code")
            said = (self.record.get("error") or {}).get("message", "no record was written")
            return f"{said} (exit code {code})"
        if self.status == NO_LISTS:
            training = (self.record.get("facts") or {}).get("training")
            return None if training is None else f"training: {training}"
        return None

    @property
    def hits(self) -> float | None:
        """Clicked categories of a list, of the source that made the lists, measured at the last training."""
        figures = self.figures or {}
        found: float | None = figures.get("hits", {}).get(figures.get("source"))
        return found

    @property
    def stage_seconds(self) -> dict[str, float]:
        """The seconds of each stage."""
        return {stage["name"]: stage["seconds"] for stage in self.record.get("stages", ())}

    @property
    def stage_cpu(self) -> dict[str, float]:
        """The CPU seconds of each stage, as far as they are recorded."""
        return {stage["name"]: stage["cpu"] for stage in self.record.get("stages", ()) if stage.get("cpu") is not None}


def night_figures(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of one night; what the summary does not have is None or left out.

    Parameters
    ----------
    summary
        The content of `summary.json`.
    """
    measures = summary["policies"][summary["policy"]]
    model, gate, forward = (summary.get(name) or {} for name in ("model", "gate", "forward"))
    intake = summary.get("input") or {}
    day: Mapping[str, Any] = next((day for day in intake.get("days", ()) if day["date"] == summary["date"]), {})
    return {
        "users": summary["n_users"],
        "lists": summary["n_users"] - measures["starved_users"],
        "k": summary["k"],
        "policy": summary["policy"],
        "slots": measures["slots"],
        "categories": len(summary["categories"]),
        **{name: measures[name] for name in ("starved_users", "overexposed_users", "starved_categories", "gini")},
        "source": forward.get("source"),
        "hits": {name: _short(found["hits"]) for name, found in forward.get("sources", {}).items()},
        "error": _short(model.get("validation_error")),
        "popularity_error": _short(model.get("popularity_error")),
        "model": model.get("date"),
        "model_age": intake.get("model_age"),
        "accepted": gate.get("accepted"),
        "hit_rate": {str(night["nights"]): _hit_rates(night["measures"]) for night in summary["realised"]},
        "calibration": _calibration(summary),
        **_values(summary),
        "events": day.get("groups", {}),
        "quarantined": _short(day.get("quarantined_share")),
        "late": _short(day.get("late_share")),
        "checks": {
            check["name"]: [check["status"], _short(check["value"]), _short(check["limit"])]
            for check in summary["checks"]
        },
    }


def category_cells(summary: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return by category its exposure (users), click share, ratio of the two shares (None without clicks), starved."""
    policy = summary["policy"]
    return {
        row[CATEGORY]: [
            row["exposure"],
            _short(row["click_share"]),
            _short(row["ratio"]),
            int(row["policies"][policy]["starved"]),
        ]
        for row in summary["categories"]
    }


def _hit_rates(measures: Mapping[str, Any] | None) -> list[float | None] | None:
    """Return the hit rate of the lists and that of popularity."""
    if measures is None:
        return None
    return [_short(measures["hit_rate"]), _short(measures["popularity"]["hit_rate"])]


def _calibration(summary: Mapping[str, Any]) -> dict[str, float | None]:
    """Return predicted ÷ actual clicks: of the lists one label window ago, and of users who never train."""
    outcome = summary.get("outcome") or {}
    bins = (summary.get("chances") or {}).get("reliability", [])
    predicted = sum(row["chance"] * row["cells"] for row in bins)
    clicked = sum(row["clicked"] * row["cells"] for row in bins)
    return {
        "lists": _short(outcome["expected"] / outcome["clicked"]) if outcome.get("clicked") else None,
        "held_out": _short(predicted / clicked) if clicked else None,
    }


def _values(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the lists are expected to be worth, and what those one label window ago were; nothing without."""
    if "value" not in summary:
        return {}
    expected = summary["policies"][summary["policy"]].get("expected_value")
    realised = (summary.get("outcome") or {}).get("value")
    currency = summary["value"]["currency"]
    return {"value": {"expected": _short(expected), "realised": _short(realised), "currency": currency}}


def _short(value: float | None) -> float | None:
    """Return a number with six digits that count: pages show fewer."""
    return None if value is None else float(f"{value:.6g}")
