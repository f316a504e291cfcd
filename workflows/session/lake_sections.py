"""The sections of the config about what is read: where the lake is, its columns and categories, and what is refused."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from ammrank_dask.storage.lake.layout import Layout
from ammrank_dask.workflows.session.config_section import Section, existing_zone


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
        description="where the files of a day are if elsewhere: YYYY/MM/DD, GROUP/date=YYYY-MM-DD (GROUP: the folder"
        " says the event group); null: by date_key",
    )
    day_zone: str = Field(
        "UTC", description="zone whose days the day folders are, for example Asia/Tokyo; a night ends at its midnight"
    )
    missing_days: Literal["refuse", "bridge"] = Field("refuse", description="a day without files: refuse or bridge")
    duplicates: Literal["refuse", "keep"] = Field(
        "refuse", description="a file, or its rows in other files of its day, that is there twice: refuse or keep"
    )
    past: Literal["refuse", "keep"] = Field(
        "refuse", description="other rows in a day before the label window: refuse, or keep the day as it was folded"
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
    max_share: float = Field(0.01, ge=0.0, le=1.0, description="a larger share of bad rows stops the run")


class Ingest(Section):
    max_events_per_user: int | None = Field(
        None,
        ge=1,
        description="most events of a user, group and day that count, the first ones; null: all; "
        "for days that are not published yet, and for all with --rebuild",
    )
