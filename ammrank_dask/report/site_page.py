"""Draw the pages of a site: its nights, the figures that are kept of each, and its categories over time."""

from __future__ import annotations

import datetime as dt
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from ammrank_dask.report.charts import Values, check_strip, sparkline, trend_chart
from ammrank_dask.report.page import page_environment
from ammrank_dask.report.thresholds import CHECK_LABELS
from ammrank_dask.storage.vocabulary import CATEGORY

SERVED, PUBLISHED, ON_HOLD, FAILED, UNFINISHED = "served", "published", "on hold", "failed", "not finished"
NOT_PUBLISHED, NO_LISTS = "not published", "no lists"
"""What has become of a night: `published` ones were served until a later night took their place, those `not published`
were scored by hand, and there are `no lists` before the first model."""


NEWEST_SHOWN = 14
STAGES_SHOWN = 5
GOOD, BAD = "ok", "warn"
_RUN_AGAIN = "ammrank nightly SITE --date {}"
NEXT_STEPS = {
    ON_HOLD: (
        "Read its report. Correct the day and run the night again, or release the lists:",
        "ammrank publish SITE --date {} --anyway",
    ),
    FAILED: ("When the cause is gone, run the night again; it continues where it stopped:", _RUN_AGAIN),
    UNFINISHED: ("If it is not running, run it again; it continues where it stopped:", _RUN_AGAIN),
}
"""What to do about the newest night, by its status: a sentence and a command."""
PILLS = {SERVED: "ok", PUBLISHED: "off", ON_HOLD: "warn", FAILED: "warn"}


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


def render_site_page(nights: Sequence[SiteNight]) -> str:
    """Return the start page of a site: is tonight served, all nights, trends, checks; no clock, no script."""
    status, sentences = describe_site_state(nights)
    drawn = [night for night in nights if night.figures is not None]
    return _render(
        "site.html.j2",
        status=status,
        sentences=sentences,
        nights=_with_gaps(nights),
        n_shown=NEWEST_SHOWN,
        pills=PILLS,
        served=next((night for night in nights if night.status == SERVED), None),
        newest=nights[-1] if nights else None,
        next_step=NEXT_STEPS.get(nights[-1].status) if nights else None,
        problems=[(night.date, night.problem) for night in nights if night.problem],
        trends=draw_trends(nights),
        checks=_check_rows(drawn),
        n_drawn=len(drawn),
        first=nights[0].date if nights else None,
        last=nights[-1].date if nights else None,
    )


def render_categories_page(nights: Sequence[SiteNight]) -> str:
    """Return the page of all categories over time, those that are starved in the newest night first."""
    drawn = [night for night in nights if night.cells]
    rows = _category_rows(drawn)
    dates = [str(night.date) for night in drawn]
    return _render("categories.html.j2", rows=rows, dates=dates, n_starved=sum(row["starved"] for row in rows))


def render_category_page(name: str, history: Sequence[Mapping[str, Any]]) -> str:
    """Return the page of one category over time, from the rows of `category_history`."""
    dates = [dt.date.fromisoformat(row["date"]) for row in history]

    def column(key: str, factor: float = 1.0) -> list[float | None]:
        return [None if row[key] is None else factor * row[key] for row in history]

    def at_ranks(first: int, last: int) -> list[float | None]:
        return [100 * sum(row["ranks"][first - 1 : last]) / max(1, sum(row["ranks"])) if row["ranks"] else None
                for row in history]  # fmt: skip

    k = max((len(row["ranks"] or ()) for row in history), default=0)
    ranks = {"rank 1": at_ranks(1, 1), "ranks 2 and 3": at_ranks(2, 3), f"ranks 4 to {k}": at_ranks(4, k)}
    trends = [
        Trend("shares", "Exposure and clicks", "% of all slots, % of all clicks", " %", 0.01, {
            "exposure share": column("exposure_share", 100), "click share": column("click_share", 100)}),
        Trend("users", "Users who have it", "users", "", 3, {"users": column("exposure")}),
        Trend("ratio", "Exposure share ÷ click share", "ratio; 1 is as often as clicked", "", 1, {
            "ratio": column("ratio")}),
        Trend("ranks", "Its users by rank", "% of its users", " %", 1, ranks if k > 3 else {"rank 1": at_ranks(1, 1)}),
        Trend("chance", "Click probability", "%, mean of its users", " %", 0.01, {
            "click probability": column("chance", 100)}),
        Trend("price", "Price", "click probability of one more slot, policy balanced", "", None, {
            "price": column("price")}),
    ]  # fmt: skip
    charts = []
    for trend in trends:
        series = {label: values for label, values in trend.series.items() if any(one is not None for one in values)}
        if series:
            chart = trend_chart(trend.name, trend.title, dates, series, unit=trend.suffix, least=trend.least)
            charts.append((trend.title, trend.unit, chart))
    return _render("category.html.j2", name=name, history=history, trends=charts, newest=history[-1])


def _render(template: str, **shown: Any) -> str:
    return page_environment(Path(__file__).parent).get_template(template).render(**shown)


def describe_site_state(nights: Sequence[SiteNight]) -> tuple[str, list[str]]:
    """Return whether all is well (`ok` or `warn`), and in sentences what is served, what is wrong and since when."""
    if not nights:
        return BAD, ["No night has been run yet."]
    newest = nights[-1]
    served = next((night for night in nights if night.status == SERVED), None)
    if served is newest:
        return GOOD, [f"The lists of the night of {newest.date} are served.", *_warned(newest)]
    at = f", recorded at {newest.record['finished'][:16].replace('T', ' ')} UTC" if "finished" in newest.record else ""
    sentences = [f"The night of {newest.date} is {_said(newest)}{at}."]
    if newest.why:
        sentences.append(f"Reason: {newest.why.rstrip('.')}.")
    if served is None:
        return BAD, [*sentences, "Nothing is served yet."]
    late = (newest.date - served.date).days
    since = next(night for night in nights if night.date > served.date)
    number = "1 night" if late == 1 else f"{late:,} nights"
    sentences.append(f"The lists of the night of {served.date} are served: {number} behind, since {since.date}.")
    return BAD, sentences


def _said(night: SiteNight) -> str:
    return {FAILED: "not served: it failed", ON_HOLD: "on hold"}.get(night.status, f"not served: {night.status}")


def _warned(night: SiteNight) -> list[str]:
    checks = (night.figures or {}).get("checks", {})
    warned = [CHECK_LABELS.get(name, name) for name, (status, *_) in checks.items() if status != "ok"]
    if not checks:
        return []
    if not warned:
        return [f"All {len(checks)} checks are ok."]
    return [f"{len(warned)} of {len(checks)} checks warn: {', '.join(warned)}."]


def _with_gaps(nights: Sequence[SiteNight]) -> list[tuple[SiteNight | None, tuple[dt.date, dt.date, int] | None]]:
    """Return the nights, newest first, and between them (first, last, number) of those of which nothing is known."""
    rows: list[tuple[SiteNight | None, tuple[dt.date, dt.date, int] | None]] = []
    for place, night in enumerate(reversed(nights)):
        after = nights[len(nights) - place] if place else None
        n_missing = 0 if after is None else (after.date - night.date).days - 1
        if after is not None and n_missing:
            rows.append((None, (night.date + dt.timedelta(1), after.date - dt.timedelta(1), n_missing)))
        rows.append((night, None))
    return rows


NO_FIGURES: Mapping[str, Any] = {"hits": {}, "source": None, "hit_rate": {}, "events": {}}
"""Of a night without a report: a gap in every line."""


class Trend(NamedTuple):
    """A chart over nights: its unit in words, what stands after every number, where its axis ends at least."""

    name: str
    title: str
    unit: str
    suffix: str
    least: float | None
    series: Mapping[str, Values]


def draw_trends(nights: Sequence[SiteNight]) -> list[tuple[str, str, Markup]]:
    """Return title, unit and chart of every trend that a night has a value for."""
    dates = [night.date for night in nights]
    promoted = [night.date for night in nights if (night.figures or {}).get("accepted")]
    charts = []
    for trend in _trends_of([night.figures or NO_FIGURES for night in nights]):
        series = {label: values for label, values in trend.series.items() if any(one is not None for one in values)}
        if series:
            marked = promoted if trend.name == "model-age" else ()
            chart = trend_chart(
                trend.name, trend.title, dates, series, unit=trend.suffix, least=trend.least, marked=marked
            )
            charts.append((trend.title, trend.unit, chart))
    return [*charts, *_draw_stages(nights)]


def _trends_of(figures: Sequence[Mapping[str, Any]]) -> list[Trend]:
    """Return what is drawn of the figures of some nights."""
    k = next((night["k"] for night in reversed(figures) if "k" in night), 0)

    def column(*path: str, factor: float = 1.0) -> list[float | None]:
        values = []
        for night in figures:
            value: Any = night
            for key in path:
                value = None if value is None else value.get(key)
            values.append(None if value is None else factor * value)
        return values

    def hit_rate(nights: str, column_of: int) -> list[float | None]:
        rates = [(night["hit_rate"].get(nights) or (None, None))[column_of] for night in figures]
        return [None if rate is None else 100 * rate for rate in rates]

    hit_rates = {
        f"{who}, {nights} night{'s' if nights != '1' else ''}": hit_rate(nights, number)
        for nights in ("1", "7", "30")
        for number, who in enumerate(("lists", "popularity"))
    }
    lists = [night["hits"].get(night["source"]) for night in figures]
    currency = next((night["value"]["currency"] for night in reversed(figures) if "value" in night), "") or "value"
    groups = sorted({group for night in figures for group in night["events"]})
    return [
        Trend("hits", f"Clicked categories of a list of {k}", f"categories of {k}, at the last training", "", None, {
            "published lists": lists, "own history": column("hits", "own-history"),
            "popularity": column("hits", "popularity")}),
        Trend("error", "Ranking error ε_dis, lower is better", "share of pairs in the wrong order", "", None, {
            "model": column("error"), "popularity": column("popularity_error")}),
        Trend("hit-rate", "Hit rate of past nights", "% of users with a click", " %", 1, hit_rates),
        Trend("calibration", "Predicted ÷ actual clicks, 1 is exact", "ratio", "", None, {
            "published lists": column("calibration", "lists"), "held-out users": column("calibration", "held_out")}),
        Trend("value", "Value of the lists", f"{currency}; realised: in the label window that ends", "", None, {
            "expected": column("value", "expected"), "realised": column("value", "realised")}),
        Trend("starved-categories", "Starved categories", "categories", "", 3, {
            "starved": column("starved_categories")}),
        Trend("users", "Users without a category, and over-exposed", "users", "", 3, {
            "without a category": column("starved_users"), "over-exposed": column("overexposed_users")}),
        Trend("gini", "Gini of exposure, 0 is even", "index from 0 to 1", "", None, {"exposure": column("gini")}),
        Trend("events", "Events of the day by group", "events", "", 3, {
            group: column("events", group) for group in groups}),
        Trend("bad-rows", "Quarantined rows and late events", "% of the day", " %", 1, {
            "quarantined": column("quarantined", factor=100), "late": column("late", factor=100)}),
        Trend("model-age", "Age of the model", "nights; dotted: a new model is promoted", "", 3, {
            "model": column("model_age")}),
    ]  # fmt: skip


def _draw_stages(nights: Sequence[SiteNight]) -> list[tuple[str, str, Markup]]:
    """Return the charts of what nights take: wall-clock and CPU seconds by stage, the longest stages and the rest."""
    trends = []
    for name, title, unit, read in (
        ("seconds", "Seconds by stage", "s, wall clock", lambda night: night.stage_seconds),
        ("cpu", "CPU seconds by stage", "s, command and workers", lambda night: night.stage_cpu),
    ):
        found = [(night.date, read(night)) for night in nights if read(night)]
        if not found:
            continue
        stages = sorted({stage for _, of_night in found for stage in of_night})
        mean = {stage: statistics.fmean(of_night.get(stage, 0.0) for _, of_night in found) for stage in stages}
        longest = sorted(stages, key=lambda stage: -mean[stage])[:STAGES_SHOWN]
        series: dict[str, list[float | None]] = {"all": [sum(of_night.values()) for _, of_night in found]}
        series |= {stage.replace("_", " "): [of_night.get(stage, 0.0) for _, of_night in found] for stage in longest}
        trends.append((title, unit, trend_chart(name, title, [date for date, _ in found], series, unit=" s", least=1)))
    return trends


def _check_rows(drawn: Sequence[SiteNight]) -> list[tuple[str, int, int, Markup]]:
    """Return of every check its words, the nights that it warns, the nights that have it, and its strip."""
    all_checks = [(str(night.date), (night.figures or {})["checks"]) for night in drawn]
    rows = []
    for name, label in CHECK_LABELS.items():
        statuses = []
        for date, checks in all_checks:
            status, value, limit = checks.get(name, (None, None, None))
            words = "" if status is None else f"{label}: {value:.4g}, limit {limit:.4g}"
            statuses.append((date, status, words))
        n_nights = sum(status is not None for _, status, _ in statuses)
        if n_nights:
            n_warned = sum(status not in (None, "ok") for _, status, _ in statuses)
            rows.append((label, n_warned, n_nights, check_strip(label, statuses)))
    return rows


def _category_rows(drawn: Sequence[SiteNight]) -> list[dict[str, Any]]:
    """Return of every category of some nights its newest figures and its sparkline: starved ones first, by name."""
    names = sorted({name for night in drawn for name in night.cells})
    rows = []
    for name in names:
        shown: list[float | None] = []
        clicked: list[float | None] = []
        for night in drawn:
            cell = night.cells.get(name)
            shown.append(None if cell is None else cell[0] / max(1, (night.figures or {})["slots"]))
            clicked.append(None if cell is None else cell[1])
        newest = drawn[-1].cells.get(name)
        rows.append(
            {
                "category": name,
                "starved": bool(newest[3]) if newest is not None else False,
                "is_gone": newest is None,
                "shown": shown[-1],
                "clicked": clicked[-1],
                "ratio": None if newest is None else newest[2],
                "n_starved": sum(bool(night.cells[name][3]) for night in drawn if name in night.cells),
                "n_nights": sum(name in night.cells for night in drawn),
                "spark": sparkline(shown, clicked),
            }
        )
    return sorted(rows, key=lambda row: (not row["starved"], row["category"]))
