"""The sections of the config about lists, reports, and what becomes of them."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import Field, field_validator

from ammrank_dask.report import thresholds as report_thresholds
from ammrank_dask.storage.errors import suggest
from ammrank_dask.workflows.session.config_section import FOREVER_DAYS, Section, Spellings, Texts

ANY = math.inf


class BalancedConfig(Section):
    floor: float | None = Field(
        None,
        ge=0.0,
        description="fewest users of a category, as a multiple of its click share; "
        "null: report.thresholds.starved_ratio, so that none is starved",
    )
    cap: float | None = Field(
        None, gt=0.0, description="most users, as a multiple of its click share; null: 4, or more if slots need it"
    )
    floors: dict[str, float] = Field(
        {}, description="fewest users by name of the category: a number, or a share of all slots below 1"
    )
    caps: dict[str, float] = Field({}, description="most users by name of the category, in the same way")


class Score(Section):
    users: Literal["all", "active"] = Field("all", description="all: users table and events; active: events only")
    k: int = Field(10, ge=1, description="categories a user qualifies for")
    policy: Literal["user_top_k", "category_top_n", "balanced"] = Field(
        "user_top_k",
        description="user_top_k: each user the k best; category_top_n: each category its n best users; "
        "balanced: each user k, each category between floor and cap, at the most expected clicks",
    )
    balanced: BalancedConfig = Field(BalancedConfig(), description="for policy balanced")
    n: int | None = Field(
        None, ge=1, description="users of a category under category_top_n; null: as many slots as user_top_k"
    )
    min_score: float | None = Field(None, description="lowest score that qualifies; null: any")
    min_chance: float | None = Field(
        None,
        ge=0.0,
        le=1.0,
        description="lowest chance of a click that qualifies; null: any; means the same every night",
    )
    explore: float = Field(
        0.0,
        ge=0.0,
        le=0.5,
        description="share of slots that is drawn, each night anew, from categories that users' own best leave below "
        "their floor; at the last ranks, with the column propensity",
    )
    exclude: Texts = Field([], description="categories that nobody gets")
    exclude_by_group: Spellings = Field(
        {}, description="categories some do not get, by age (13-17, …, unknown-age) or gender (female, male, …)"
    )
    suppress: str | None = Field(
        None,
        description="file of user ids to leave out of training, scores and reports (counts of clicks have them): "
        "parquet, or text with one id per line; null: none",
    )
    opt_out: str | None = Field(
        None,
        description="file of pairs that are never qualified: parquet with user_id and category, or lines "
        "user_id,category; null: none",
    )


THRESHOLDS: dict[str, tuple[float, float, str]] = {
    "starved_ratio": (0, ANY, "a category is starved below this share of its click share, or without a user"),
    "overexposed_factor": (0, ANY, "a user is over-exposed with more than this times k"),
    "starved_users": (0, 1, "share of users without a category that warns"),
    "overexposed_users": (0, 1, "share of over-exposed users that warns"),
    "starved_categories": (0, 1, "share of starved categories that warns"),
    "changed_users": (0, 1, "share of users with another top K that warns"),
    "jaccard": (0, 1, "mean overlap with the night before, warns when lower"),
    "score_shift": (0, ANY, "mean change of a score by the same model, up or down, that warns"),
    "psi": (0, ANY, "population stability index of a category that warns"),
    "short_history": (0, 1, "share of tonight's history, as it decays, that chances are learnt with, warns when lower"),
    "chance_error": (0, ANY, "share by which clicks may miss what chances said a label window ago"),
    "used_share": (
        0, 1,
        "part of the median share of used rows of the last 7 published nights, warns when lower; so does a day without"
        " any, or a first night without a click",
    ),
    "events_by_group": (
        1, ANY, "events of a group so many times the median of the last 7 published nights, or that part, warn"
    ),
    "active_users": (1, ANY, "users with events so many times that median, or that part of it, warn"),
    "quarantined": (0, 1, "share of quarantined rows that warns, or 3 times that median"),
    "late": (0, 1, "share of events from before their day that warns, or 3 times that median"),
    "heaviest_ids": (0, 1, "share of all events by the 10 heaviest ids that warns, or 3 times that median"),
    "click_shares": (0, 1, "share of clicks on other categories than usual that warns"),
}  # fmt: skip
"""Least and greatest value of each threshold of the report, and its meaning."""


class ReportConfig(Section):
    policies: list[Literal["user_top_k", "category_top_n", "balanced"]] = Field(
        ["user_top_k", "category_top_n"],
        description="shown side by side with the active policy; balanced only where there are click probabilities",
    )
    thresholds: dict[str, float] = Field(
        {}, description="what counts as starved and what warns, by name, where it is not to be as docs/config.md has it"
    )

    @field_validator("thresholds", mode="before")
    @classmethod
    def _none_are_set(cls, values: Any) -> Any:
        return {} if values is None else values

    @field_validator("thresholds")
    @classmethod
    def _thresholds_exist(cls, values: dict[str, float]) -> dict[str, float]:
        for name, value in values.items():
            if name not in THRESHOLDS:
                raise ValueError(f"there is no threshold {name!r}; {suggest(name, THRESHOLDS, 'thresholds are')}")
            least, most, _ = THRESHOLDS[name]
            if not least <= value <= most:
                limits = f"at least {least}" if most == ANY else f"between {least} and {most}"
                raise ValueError(f"{name} must be {limits}, got {value:g}")
        return values

    @property
    def limits(self) -> report_thresholds.Thresholds:
        """All thresholds: those that are set, and the usual ones."""
        return report_thresholds.Thresholds(**self.thresholds)


class Publish(Section):
    hold: Texts = Field(
        ["used_share"],
        description="checks of the report that keep a night from being published when they warn; exit code 66",
    )
    to: str | None = Field(
        None,
        description="URL (s3://bucket/path) or folder that every published night is copied to; its object CURRENT names"
        " the newest whole copy; null: none",
    )

    @field_validator("hold")
    @classmethod
    def _checks_exist(cls, names: list[str]) -> list[str]:
        for name in names:
            if name not in report_thresholds.CHECKS:
                raise ValueError(f"there is no check {name!r}; {suggest(name, report_thresholds.CHECKS, 'checks are')}")
        return names


class Retention(Section):
    qualifications: int = Field(
        40,
        ge=2,
        le=FOREVER_DAYS,
        description="nights whose qualifications are kept, and models that score none; the one before the last is input"
        " of its rerun",
    )
    reports: int = Field(
        400, ge=1, le=FOREVER_DAYS, description="nights whose reports, run.json and log.jsonl are kept"
    )


class Notify(Section):
    on_success: str | None = Field(None, description="command to run after a night; it reads a JSON object from stdin")
    on_failure: str | None = Field(None, description="command to run after a night that failed")
