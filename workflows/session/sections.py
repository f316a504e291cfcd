"""The sections of the config: what is read of the lake, what is learnt from it, and what becomes of lists."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, get_args, get_origin
from zoneinfo import ZoneInfo

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from ammrank_dask.report import thresholds as report_thresholds
from ammrank_dask.scoring.exposure_bounds import parse_floor
from ammrank_dask.storage.errors import BadInput, suggest
from ammrank_dask.storage.lake.listing import Layout

LONGEST_DAYS = 3650
"""Days of the longest window: ten years. Dates so far apart can still be counted."""
FOREVER_DAYS = 36500
"""Most days or nights that something is kept: a hundred years, for those who keep all."""

ANY = math.inf


def refuse_boolean(cls: type[BaseModel], value: Any, info: ValidationInfo) -> Any:
    """Refuse a boolean for a number: YAML reads yes, no, on and off as booleans, and pydantic those as 1 and 0."""
    kind = cls.model_fields[str(info.field_name)].annotation
    kinds = {kind, *get_args(kind)}
    kinds |= {inner for one in kinds for inner in get_args(one)}  # numbers or text, by name
    if bool in kinds or not any(one in (int, float) or isinstance(one, int) for one in kinds):
        return value
    named = value if get_origin(kind) is dict and isinstance(value, dict) else {"": value}
    for name, number in named.items():
        if isinstance(number, bool):
            of_key = f"{name!r} " if name else ""
            raise ValueError(f"{of_key}must be a number, got {number}, which YAML also makes of yes, no, on and off")
    return value


class Section(BaseModel):
    """A part of the config: frozen, closed against unknown keys, and without numbers that JSON cannot keep."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _empty_is_default(cls, content: Any) -> Any:
        # YAML reads a section whose keys are all commented out as null.
        return {} if content is None else content

    _booleans_are_no_numbers = field_validator("*", mode="before")(classmethod(refuse_boolean))


def existing_zone(value: str) -> str:
    """Return the name of a time zone, refusing one that there is not."""
    try:
        ZoneInfo(value)
    except Exception:
        raise ValueError(f"{value!r} is not a time zone, for example UTC or Europe/Berlin") from None
    return value


def _texts(values: Any) -> Any:
    """Take one value for a list of one, and a number, which YAML makes of 0, for its digits."""
    listed = values if isinstance(values, list) else [values] if isinstance(values, str | int) else values
    if not isinstance(listed, list):
        return values
    return [str(value) if isinstance(value, int) and not isinstance(value, bool) else value for value in listed]


Texts = Annotated[list[str], BeforeValidator(_texts)]
Spellings = dict[str, Texts]


class Lake(Section):
    events: str = Field(
        "events",
        description="folder of events, one folder per day, or a table of Delta Lake or Iceberg; a path relative to this"
        " file or a URL (s3://, gs://)",
    )
    users: str | None = Field("users.parquet", description="file or folder of users; null: no demographics")
    taxonomy: str | None = Field("taxonomy.csv", description="category,parent; null: flat, as listed in categories.csv")
    date_key: str = Field("date", description="day folders are named KEY=YYYY-MM-DD or KEY=YYYYMMDD")
    layout: str | None = Field(
        None,
        description="layout of the day folders if it is another: YYYY/MM/DD, GROUP/date=YYYY-MM-DD (GROUP stands for"
        " the event group); null: by date_key",
    )
    day_zone: str = Field(
        "UTC", description="time zone of the day folders, for example Asia/Tokyo; a night ends at midnight there"
    )
    missing_days: Literal["refuse", "bridge"] = Field("refuse", description="a day without files: refuse or bridge")
    duplicates: Literal["refuse", "keep"] = Field(
        "refuse", description="a file that a day has twice, or whose rows its other files have: refuse or keep"
    )
    past: Literal["refuse", "keep"] = Field(
        "refuse", description="a day before the label window whose rows have changed: refuse, or keep what was counted"
    )

    @field_validator("day_zone")
    @classmethod
    def _day_zone_exists(cls, value: str) -> str:
        return existing_zone(value)

    @field_validator("layout")
    @classmethod
    def _layout_has_a_day(cls, value: str | None) -> str | None:
        if value is not None:
            Layout.parse(value)
        return value


class Columns(Section):
    user_id: str = Field("user_id", description="int64 or string")
    group: str = Field("group", description="string; its values are mapped under `groups`")
    category: str = Field("category", description="string, a node of the taxonomy")
    timestamp: str = Field("timestamp", description="timestamp, or integer with timestamp_unit")
    age: str | None = Field("age", description="years, in the users table; null: none")
    gender: str | None = Field("gender", description="string, in the users table; null: none")

    @model_validator(mode="after")
    def _user_ids_stand_alone(self) -> Columns:
        # Unknown groups, categories and genders are shown in messages and reports; user ids never are.
        others = {role: name for role, name in self.model_dump().items() if role != "user_id"}
        shared = [role for role, name in others.items() if name == self.user_id]
        if shared:
            raise ValueError(f"user_id and {shared[0]} are both {self.user_id!r}; name two columns")
        return self


class TaxonomyConfig(Section):
    level: int = Field(2, ge=1, description="level of the ranked categories; a root is 1")


class Quarantine(Section):
    max_share: float = Field(0.01, ge=0.0, le=1.0, description="a larger share of bad rows stops the night")


class Ingest(Section):
    max_events_per_user: int | None = Field(
        None,
        ge=1,
        description="events that count per user, group and day, the first ones; null: all; applies to days that are not"
        " published yet, and to all with --rebuild",
    )


class State(Section):
    max_age_days: int = Field(
        730, ge=1, le=FOREVER_DAYS, description="interests without an event for more days are dropped"
    )


class Label(Section):
    days: int = Field(30, ge=1, le=LONGEST_DAYS, description="length of the label window")
    alpha: float = Field(0.97, gt=0, lt=1, description="decay per day of the clicks that order a user's ranking")
    min_categories: int = Field(1, ge=1, description="users with fewer clicked categories do not train")


class FeaturesConfig(Section):
    groups: list[str] = Field(["pv", "sq", "slc", "olc", "adv"], description="groups that make features")
    intensity: Literal["log1p", "raw"] = Field("log1p", description="log1p or raw")
    recency: Literal["decay", "none"] = Field(
        "decay", description="decay: alpha^days since the last event; none: leave out"
    )
    normalize: bool = Field(True, description="divide rows by their norm when read")
    min_days: int = Field(
        7, ge=0, le=LONGEST_DAYS, description="days of history before the label window that training needs"
    )


OPTIONS_OF = {
    "amm-rank": ("regularization",),
    "amm-rank-plus": ("kappa", "clickers_per_plane", "clusterings", "windows"),
}
"""Keys of `train` that only one model has."""
WINDOWS = 12
"""Label windows whose users train unless the config says how many."""
EPOCHS = 5
"""What earlier versions wrote as `epochs` into every config."""
EARLIER = {"auto_tune", "fit"}
"""Keys of earlier versions, in which nights chose parameters themselves."""


class Train(Section):
    model: Literal["amm-rank-plus", "amm-rank"] = Field(
        "amm-rank-plus", description="amm-rank-plus, or amm-rank: the method of the paper"
    )
    variant: str = Field(
        "adv", description="adv: all columns, those of ad views if there are any; no-adv: without them"
    )
    windows: int | None = Field(
        None,
        ge=1,
        description="amm-rank-plus: number of label windows to train on, the newest and those before it; null: 12",
    )
    shards: int = Field(8, ge=1, description="logical shards; part of the result, unlike the number of workers")
    rounds_per_epoch: int = Field(2, ge=1, description="merges of the shards per epoch")
    epochs: int | None = Field(
        None, ge=1, description="passes over the rows; null: 5, or 2 of amm-rank-plus from 10,000 rows on"
    )
    kappa: float | None = Field(None, gt=0, description="amm-rank-plus: lambda is kappa / training users; null: 0.005")
    clickers_per_plane: int | None = Field(
        None, ge=1, description="amm-rank-plus: users who clicked a category per plane of it; null: 300"
    )
    clusterings: int | None = Field(
        None, ge=0, description="amm-rank-plus: clusterings of the training users; null: 3, 0: no memberships"
    )
    regularization: float | None = Field(None, gt=0, description="amm-rank: lambda; null: 1e-3")
    max_planes: int = Field(5, ge=1, description="limit of planes per category")
    warm_start: bool = Field(False, description="start from the planes of the previous model")
    every_nights: int = Field(7, ge=1, le=LONGEST_DAYS, description="nights between two trainings")
    seed: int = Field(0, ge=0, description="same seed, same model")

    @model_validator(mode="before")
    @classmethod
    def _as_before(cls, values: Any) -> Any:
        """Read a section as an earlier version wrote it.

        One without `model` but with a key of amm-rank is of 0.1.0 and for amm-rank. Without `windows`, 5 epochs are
        what `init` wrote into every config: nobody set them. Keys of what nights no longer do are left out.
        """
        if not isinstance(values, dict):
            return values
        is_old = any(values.get(name) is not None for name in OPTIONS_OF["amm-rank"])
        values = {name: value for name, value in values.items() if name not in EARLIER}
        values = {"model": "amm-rank", **values} if is_old else values
        return {**values, "epochs": None} if "windows" not in values and values.get("epochs") == EPOCHS else values

    @model_validator(mode="after")
    def _options_are_of_the_model(self) -> Train:
        for model, names in OPTIONS_OF.items():
            given = [name for name in names if getattr(self, name) is not None]
            if model != self.model and given:
                raise ValueError(f"{given[0]} is a key of {model}; remove it, or set model: {model}")
        return self

    @property
    def n_windows(self) -> int:
        """Label windows whose users train; the paper's model has one."""
        if self.model == "amm-rank":
            return 1
        return WINDOWS if self.windows is None else self.windows

    def parameters(self) -> dict[str, Any]:
        """Return the keywords of `ammrank_dask.train`."""
        names = {"clusterings": "n_clusterings"}
        values = self.model_dump(exclude={"every_nights", "warm_start", "windows"})
        optional = {"epochs", *(name for options in OPTIONS_OF.values() for name in options)}
        return {names.get(key, key): value for key, value in values.items() if value is not None or key not in optional}


class Gate(Section):
    forward: bool = Field(
        True,
        description="amm-rank-plus: own history or popularity makes the lists until those of a model without the last"
        " label window have more hits in it; false: a model always makes them",
    )
    tolerance: float = Field(
        0.01, ge=0.0, le=1.0, description="share by which a new model may be worse than the active one"
    )
    min_users: int = Field(
        100,
        ge=0,
        description="with fewer held-out users the promotion check is skipped, and there are no click probabilities",
    )


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
    floors: dict[str, float | str] = Field(
        {},
        description="guarantees by name of the category: a number of users, a share of all slots below 1, or a text"
        " like '1000 clicks from 2026-01-01 to 2026-01-31' (users or expected clicks, on these days alone)",
    )
    caps: dict[str, float] = Field({}, description="most users by name of the category, in the same way")

    @field_validator("floors")
    @classmethod
    def _floors_are_clear(cls, floors: dict[str, float | str]) -> dict[str, float | str]:
        for name, given in floors.items():
            try:
                parse_floor(name, given)
            except BadInput as error:
                raise ValueError(str(error)) from None
        return floors


class Score(Section):
    users: Literal["all", "active"] = Field("all", description="all: users table and events; active: events only")
    k: int = Field(10, ge=1, description="length of a user's list")
    policy: Literal["user_top_k", "category_top_n", "balanced"] = Field(
        "user_top_k",
        description="user_top_k: the k best categories of each user; category_top_n: the n best users of each category;"
        " balanced: k categories per user, each category between floor and cap, with the most expected clicks",
    )
    balanced: BalancedConfig = Field(BalancedConfig(), description="for policy balanced")
    objective: Literal["clicks", "value"] = Field(
        "clicks",
        description="what lists are made for, under every policy: the most expected clicks, or the most expected value,"
        " click probability times score.values",
    )
    values: str | None = Field(
        None,
        description="table of what a click is worth, CSV or parquet: category, value or value (EUR), and if needed from"
        " (a date) and group (of users, as in exclude_by_group); null: none",
    )
    n: int | None = Field(
        None, ge=1, description="users of a category under category_top_n; null: as many slots as user_top_k"
    )
    min_score: float | None = Field(None, description="lowest score that qualifies; null: any")
    min_chance: float | None = Field(
        None,
        ge=0.0,
        le=1.0,
        description="lowest click probability that qualifies; null: any",
    )
    min_audience: int | None = Field(
        None,
        ge=2,
        description="a category that fewer users have is published to nobody; their next best comes instead",
    )
    explore: float = Field(
        0.0,
        ge=0.0,
        le=0.5,
        description="share of slots drawn at random each night, from categories that users' own best leave below their "
        "floor; at the last ranks, with the column propensity",
    )
    exclude: Texts = Field([], description="categories that nobody gets")
    exclude_by_group: Spellings = Field(
        {},
        description="categories that a group of users does not get, by age (13-17, …, unknown-age) or gender (female, "
        "male, …)",
    )
    suppress: str | None = Field(
        None,
        description="file of user ids to leave out of training, scores and reports (clicks still count them): "
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
    "short_history": (
        0, 1, "history behind the click probabilities as a share of tonight's, after decay, warns when lower"
    ),
    "chance_error": (0, ANY, "relative error of the clicks predicted one label window ago that warns"),
    "used_share": (
        0, 1,
        "share of used rows, as a part of the median of the last 7 published nights, warns when lower; so do a day"
        " without used rows and a first night without clicks",
    ),
    "events_by_group": (
        1, ANY,
        "factor, up or down, between the events of a group and their median of the last 7 published nights, that warns",
    ),
    "active_users": (1, ANY, "the same factor for users with events"),
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
        {}, description="thresholds that differ from the defaults in docs/config.md, by name"
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
        description="nights whose lists are kept, and models that make none; a rerun of the newest night needs the one"
        " before it",
    )
    reports: int = Field(
        400, ge=1, le=FOREVER_DAYS, description="nights whose reports, run.json and log.jsonl are kept"
    )


class Notify(Section):
    on_success: str | None = Field(None, description="command to run after a night; it reads a JSON object from stdin")
    on_failure: str | None = Field(None, description="command to run after a night that failed")
