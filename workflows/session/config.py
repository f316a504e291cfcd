"""Read, check and write `ammrank.yaml`: every key has a default and a comment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from ammrank_dask.report import thresholds as report_thresholds
from ammrank_dask.storage.errors import BadInput, suggest
from ammrank_dask.storage.lake.layout import Layout
from ammrank_dask.storage.store.retried import retried
from ammrank_dask.storage.vocabulary import AD_VIEW_GROUP, AGE, CLICK_GROUP, GENDER, GROUPS, IGNORE_GROUP


class Section(BaseModel):
    """A part of the config: frozen, and closed against unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _empty_is_default(cls, content: Any) -> Any:
        # YAML reads a section whose keys are all commented out as null.
        return {} if content is None else content


def _existing_zone(value: str) -> str:
    try:
        ZoneInfo(value)
    except Exception:
        raise ValueError(f"{value!r} is not a time zone, for example UTC or Europe/Berlin") from None
    return value


class Lake(Section):
    events: str = Field(
        "events",
        description="folder of events, one folder a day, or a table of Delta Lake or Iceberg; a path relative to this"
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
    duplicates: Literal["refuse", "keep"] = Field("refuse", description="a file that is there twice: refuse or keep")
    past: Literal["refuse", "keep"] = Field(
        "refuse", description="other rows in a day before the label window: refuse, or keep the day as it was folded"
    )

    @field_validator("day_zone")
    @classmethod
    def _day_zone_exists(cls, value: str) -> str:
        return _existing_zone(value)

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


def _texts(values: Any) -> Any:
    """Take one value for a list of one, and a number, which YAML makes of 0, for its digits."""
    listed = values if isinstance(values, list) else [values] if isinstance(values, str | int) else values
    if not isinstance(listed, list):
        return values
    return [str(value) if isinstance(value, int) and not isinstance(value, bool) else value for value in listed]


Texts = Annotated[list[str], BeforeValidator(_texts)]
Spellings = dict[str, Texts]


class TaxonomyConfig(Section):
    level: int = Field(2, ge=1, description="level of the ranked categories; a root is 1")


class State(Section):
    max_age_days: int = Field(180, ge=1, description="cells without an event for longer are dropped")


class Label(Section):
    days: int = Field(30, ge=1, description="length of the label window")
    min_categories: int = Field(3, ge=1, description="users with fewer clicked categories do not train")


class FeaturesConfig(Section):
    groups: list[str] = Field(["pv", "sq", "slc", "olc", "adv"], description="groups that make features")
    intensity: Literal["log1p", "raw"] = Field("log1p", description="log1p or raw")
    recency: Literal["decay", "none"] = Field(
        "decay", description="decay: alpha^days since the last event; none: leave out"
    )
    normalize: bool = Field(True, description="divide rows by their norm when read")
    min_days: int = Field(7, ge=0, description="days of history before the label window that training needs")


OPTIONS_OF = {
    "amm-rank": ("regularization", "rank_weight"),
    "amm-rank-plus": ("kappa", "clickers_per_plane", "clusterings"),
}
"""Keys of `train` that only one model has."""


class Train(Section):
    model: Literal["amm-rank-plus", "amm-rank"] = Field(
        "amm-rank-plus", description="amm-rank-plus: prior, own term, memberships, planes; amm-rank: the paper's planes"
    )
    variant: str = Field(
        "adv", description="adv: all columns, those of ad views if there are any; no-adv: without them"
    )
    shards: int = Field(8, ge=1, description="logical shards; part of the result, unlike the number of workers")
    rounds_per_epoch: int = Field(2, ge=1, description="merges of the shards an epoch")
    block_rows: int = Field(1024, ge=1, description="training users that are dealt to a shard together")
    epochs: int = Field(5, ge=1, description="passes over the training users")
    patience: int | None = Field(
        None, ge=1, description="stop after so many epochs without a better error of held-out users; null: never"
    )
    kappa: float | None = Field(
        None, gt=0, description="amm-rank-plus: lambda is kappa / training users; null: as chosen, or 0.005"
    )
    clickers_per_plane: int | None = Field(
        None,
        ge=1,
        description="amm-rank-plus: a category has a plane for so many users who clicked it; null: as chosen, or 300",
    )
    auto_tune: bool = Field(
        True,
        description="amm-rank-plus: choose kappa and clickers_per_plane on held-out users, if there are 200 of them,"
        " and keep the choice until `ammrank train --tune` or until the gate turns a model down",
    )
    clusterings: int | None = Field(
        None, ge=0, description="amm-rank-plus: clusterings of the training users; null: 3, 0: no memberships"
    )
    regularization: float | None = Field(None, gt=0, description="amm-rank: lambda; null: 1e-3")
    max_planes: int = Field(5, ge=1, description="limit of planes a category")
    rank_weight: Literal["uniform", "reciprocal"] | None = Field(
        None, description="amm-rank: weight of a rank in the loss; null: uniform"
    )
    average: bool | None = Field(
        None, description="publish the average of the last epochs; null: if held-out users prefer it to the last model"
    )
    warm_start: bool = Field(True, description="begin with the planes of the model before")
    every_nights: int = Field(7, ge=1, description="nights between two trainings")
    seed: int = Field(0, ge=0, description="same seed, same model")

    @model_validator(mode="before")
    @classmethod
    def _as_before(cls, values: Any) -> Any:
        """Take a section without `model` but with a key of amm-rank, as version 0.1.0 wrote it, for amm-rank."""
        is_old = isinstance(values, dict) and any(values.get(name) is not None for name in OPTIONS_OF["amm-rank"])
        return {"model": "amm-rank", **values} if is_old else values

    @model_validator(mode="after")
    def _options_are_of_the_model(self) -> Train:
        for model, names in OPTIONS_OF.items():
            given = [name for name in names if getattr(self, name) is not None]
            if model != self.model and given:
                raise ValueError(f"{given[0]} is a key of {model}; remove it, or set model: {model}")
        return self

    def parameters(self) -> dict[str, Any]:
        """Return the keywords of `ammrank_dask.train`."""
        names = {"clusterings": "n_clusterings"}
        values = self.model_dump(exclude={"every_nights", "warm_start", "auto_tune"})
        optional = {name for options in OPTIONS_OF.values() for name in options}
        return {names.get(key, key): value for key, value in values.items() if value is not None or key not in optional}


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
    min_score: float | None = Field(None, allow_inf_nan=False, description="lowest score that qualifies; null: any")
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
        "parquet, or text with one a line; null: none",
    )
    opt_out: str | None = Field(
        None,
        description="file of pairs that are never qualified: parquet with user_id and category, or lines "
        "user_id,category; null: none",
    )


_USUAL = report_thresholds.Thresholds()


class ThresholdsConfig(Section):
    starved_ratio: float = Field(
        _USUAL.starved_ratio,
        ge=0.0,
        description="a category is starved below this share of its click share, or without a user",
    )
    overexposed_factor: float = Field(
        _USUAL.overexposed_factor, gt=0.0, description="a user is over-exposed with more than this times k"
    )
    starved_users: float = Field(
        _USUAL.starved_users, ge=0.0, le=1.0, description="share of users without a category that warns"
    )
    overexposed_users: float = Field(
        _USUAL.overexposed_users, ge=0.0, le=1.0, description="share of over-exposed users that warns"
    )
    starved_categories: float = Field(
        _USUAL.starved_categories, ge=0.0, le=1.0, description="share of starved categories that warns"
    )
    changed_users: float = Field(
        _USUAL.changed_users, ge=0.0, le=1.0, description="share of users with another top K that warns"
    )
    jaccard: float = Field(
        _USUAL.jaccard, ge=0.0, le=1.0, description="mean overlap with the night before, warns when lower"
    )
    score_shift: float = Field(
        _USUAL.score_shift, ge=0.0, description="mean change of a score by the same model, up or down, that warns"
    )
    psi: float = Field(_USUAL.psi, ge=0.0, description="population stability index of a category that warns")
    short_history: float = Field(
        _USUAL.short_history,
        ge=0.0,
        le=1.0,
        description="share of tonight's history, as it decays, that chances are learnt with, warns when lower",
    )
    chance_error: float = Field(
        _USUAL.chance_error, ge=0.0, description="share by which clicks may miss what chances said a label window ago"
    )
    events_by_group: float = Field(
        _USUAL.events_by_group,
        ge=1.0,
        description="events of a group so many times the median of the last 7 published nights, or that part, warn",
    )
    active_users: float = Field(
        _USUAL.active_users, ge=1.0, description="users with events so many times that median, or that part of it, warn"
    )
    quarantined: float = Field(
        _USUAL.quarantined, ge=0.0, le=1.0, description="share of quarantined rows that warns, or 3 times that median"
    )
    late: float = Field(
        _USUAL.late,
        ge=0.0,
        le=1.0,
        description="share of events from before their day that warns, or 3 times that median",
    )
    heaviest_ids: float = Field(
        _USUAL.heaviest_ids,
        ge=0.0,
        le=1.0,
        description="share of all events by the 10 heaviest ids that warns, or 3 times that median",
    )
    click_shares: float = Field(
        _USUAL.click_shares, ge=0.0, le=1.0, description="share of clicks on other categories than usual that warns"
    )


class ReportConfig(Section):
    policies: list[Literal["user_top_k", "category_top_n", "balanced"]] = Field(
        ["user_top_k", "category_top_n"],
        description="shown side by side with the policy in force; balanced only where there are chances",
    )
    thresholds: ThresholdsConfig = Field(ThresholdsConfig(), description="what counts as starved, and what warns")


class Quarantine(Section):
    max_share: float = Field(0.01, ge=0.0, le=1.0, description="a larger share of bad rows stops the run")


class Ingest(Section):
    max_events_per_user: int | None = Field(
        None,
        ge=1,
        description="most events of a user, group and day that count, the first ones; null: all; "
        "for days that are not published yet, and for all with --rebuild",
    )


class Publish(Section):
    hold: Texts = Field(
        [], description="checks of the report that keep a night from being published when they warn; exit code 66"
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


class Gate(Section):
    tolerance: float = Field(
        0.01, ge=0.0, le=1.0, description="a new model scores unless it is worse by more than this share"
    )
    min_users: int = Field(
        100, ge=0, description="fewer held-out users than this decide nothing: the new model scores, without chances"
    )


class Retention(Section):
    qualifications: int = Field(
        40, ge=2, description="nights whose qualifications are kept; the one before the last is input of its rerun"
    )
    reports: int = Field(400, ge=1, description="nights whose reports are kept")
    runs: int = Field(400, ge=1, description="nights whose run.json and log.jsonl are kept")
    models: int = Field(40, ge=1, description="nights for which a model that scores no kept night is kept")


class Notify(Section):
    on_success: str | None = Field(None, description="command to run after a night; it reads a JSON object from stdin")
    on_failure: str | None = Field(None, description="command to run after a night that failed")


class Config(Section):
    lake: Lake = Lake()
    columns: Columns = Columns()
    timezone: str | None = Field(None, description="zone of timestamps that have none, for example UTC")
    timestamp_unit: Literal["s", "ms", "us", "ns"] | None = Field(None, description="unit of integer timestamps")
    unknown_user_ids: Texts = Field([], description="ids that stand for nobody, for example 0 or unknown")
    groups: Spellings = Field(
        {group: [group] for group in GROUPS},
        description="event groups and the values that mean them; adc (ad clicks) is needed; ignore: counted, not used",
    )
    genders: Spellings = Field(
        {"female": ["female"], "male": ["male"]}, description="spellings of genders; ignore: taken as unknown"
    )
    taxonomy: TaxonomyConfig = TaxonomyConfig()
    categories: dict[str, str | None] = Field(
        {},
        description="former names of categories and their names now, to rename or merge them; null: counted no more",
    )
    alpha: float = Field(0.97, gt=0.0, lt=1.0, description="decay a day")
    late_days: int = Field(7, ge=0, description="events older than this against their folder are quarantined")
    keep_days: int = Field(45, ge=1, description="days whose partials are kept")
    state: State = State()
    label: Label = Label()
    features: FeaturesConfig = FeaturesConfig()
    partitions: int = Field(
        8, ge=1, le=65536, description="user partitions, 50,000 users or more each; `ammrank repartition` changes them"
    )
    train: Train = Train()
    score: Score = Score()
    report: ReportConfig = ReportConfig()
    ingest: Ingest = Ingest()
    quarantine: Quarantine = Quarantine()
    gate: Gate = Gate()
    publish: Publish = Publish()
    retention: Retention = Retention()
    notify: Notify = Notify()

    @field_validator("timezone")
    @classmethod
    def _zone_exists(cls, value: str | None) -> str | None:
        return None if value is None else _existing_zone(value)

    @field_validator("groups")
    @classmethod
    def _groups_make_sense(cls, groups: dict[str, list[str]]) -> dict[str, list[str]]:
        if CLICK_GROUP not in groups:
            raise ValueError(f"a group {CLICK_GROUP} (ad clicks) is needed: rankings are made of it")
        seen: dict[str, str] = {}
        for group, values in groups.items():
            if not group.isidentifier():
                raise ValueError(f"{group!r} is not a plain name")
            for value in values:
                if seen.setdefault(value, group) != group:
                    raise ValueError(f"the value {value!r} is listed under {seen[value]} and {group}")
        return groups

    @field_validator("genders")
    @classmethod
    def _genders_are_known(cls, genders: dict[str, list[str]]) -> dict[str, list[str]]:
        strange = sorted(set(genders) - {"female", "male", IGNORE_GROUP})
        if strange:
            raise ValueError(f"keys are female, male and ignore, got {', '.join(strange)}")
        return genders

    @model_validator(mode="after")
    def _parts_agree(self) -> Config:
        unknown = [group for group in self.features.groups if group not in self.event_groups]
        if unknown:
            raise ValueError(f"features.groups has {', '.join(unknown)}, which `groups` does not define")
        left_out = self.train.variant.removeprefix("no-")
        if left_out not in (AD_VIEW_GROUP, *self.event_groups, AGE, GENDER):
            raise ValueError(f"train.variant must be adv, or no- and a group to leave out, got {self.train.variant!r}")
        if self.keep_days < self.label.days:
            raise ValueError(f"keep_days ({self.keep_days}) must be at least label.days ({self.label.days})")
        return self

    @property
    def event_groups(self) -> list[str]:
        """The groups that are counted, in the order of their codes."""
        return [group for group in self.groups if group != IGNORE_GROUP]


@retried
def load_config(path: Path) -> Config:
    """Read a config; what is wrong with it is said in one sentence."""
    if not path.is_file():
        raise BadInput(f"there is no config at {path}; make one with `ammrank init {path.parent} --lake LAKE`")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is not readable YAML: {' '.join(str(error).split())}") from None
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise BadInput(f"{path} must be a mapping of keys, found a {type(content).__name__}")
    return check_config(content, str(path))


def check_config(content: dict[str, Any], where: str) -> Config:
    """Return the config of a mapping, or say what to change."""
    try:
        return Config.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            raise BadInput(f"{where}: there is no key {key}; {_suggest(key)}") from None
        reason = first["msg"].removeprefix("Value error, ")
        if first["type"] == "model_type":
            reason = "must be a section of keys"
        at = f"{key}: " if key else ""
        got = "" if first["type"] == "value_error" else f", got {first['input']!r}"
        # YAML reads yes, no, on and off as booleans.
        quote = "; put it in quotes" if first["type"] == "string_type" and isinstance(first["input"], bool) else ""
        raise BadInput(f"{where}: {at}{reason}{got}{quote}") from None


def write_config(config: Config) -> str:
    """Return the config as YAML with the description of every key beside it."""
    lines = ["# The config of this site. Every key is optional; the values below are in force.", ""]
    _write_section(config, 0, lines)
    return "\n".join(lines) + "\n"


def _write_section(section: BaseModel, depth: int, lines: list[str]) -> None:
    pad = "  " * depth
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        comment = f"  # {field.description}" if field.description else ""
        if isinstance(value, Section):
            lines.append(f"{pad}{name}:{comment}")
            _write_section(value, depth + 1, lines)
        elif isinstance(value, dict) and value:
            lines.append(f"{pad}{name}:{comment}")
            lines.extend(f"{pad}  {as_flow(key)}: {as_flow(found)}" for key, found in value.items())
        else:
            lines.append(f"{pad}{name}: {as_flow(value)}{comment}")


def as_flow(value: Any) -> str:
    """Return a value as YAML on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...")


def _keys(section: BaseModel, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name in type(section).model_fields:
        value = getattr(section, name)
        yield prefix + name, value
        if isinstance(value, Section):
            yield from _keys(value, f"{prefix}{name}.")


def _suggest(key: str) -> str:
    """Say which key was meant: the same name in another section, or one of this section that is spelled alike."""
    section, _, name = key.rpartition(".")
    known = {path: path.rpartition(".") for path, _ in _keys(Config())}
    siblings = {last: path for path, (parent, _, last) in known.items() if parent == section}
    elsewhere = [path for path, (_, _, last) in known.items() if last == name]
    if elsewhere:
        return f"did you mean {elsewhere[0]}?"
    return suggest(name, siblings, "known keys are", show=siblings.__getitem__)
