"""Inspect a lake and guess its config, and what a person should know of it."""

from __future__ import annotations

import calendar
import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ammrank_dask.lake_survey import (
    INTEGER,
    NAIVE,
    Estimate,
    EventSurvey,
    UsersSurvey,
    survey_clicks,
    survey_events,
    survey_users,
)
from ammrank_dask.runtime.tasks import Progress, silent
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake.files import (
    EventColumns,
    open_parquet,
)
from ammrank_dask.storage.lake.listing import (
    LakeFile,
    list_day_files,
    list_days,
    table_files,
)
from ammrank_dask.storage.lake.paths import LakePath
from ammrank_dask.storage.lake.taxonomy import Taxonomy, flat_taxonomy, read_taxonomy
from ammrank_dask.storage.vocabulary import AGE, CLICK_GROUP, GENDER, GROUP, USER_ID
from ammrank_dask.workflows.operations.lake_init.findings import (
    Remarks,
    day_facts,
    estimate_users,
    event_facts,
    people_facts,
    remark_share,
    sum_by,
)
from ammrank_dask.workflows.operations.lake_init.guess import (
    EVENT_ROLES,
    USER_ROLES,
    Guessed,
    choose_partitions,
    choose_path,
    describe_columns,
    guess_closed_weekdays,
    guess_columns,
    guess_day_zone,
    guess_genders,
    guess_groups,
    guess_last_whole_day,
    guess_unit,
    guess_zone,
)
from ammrank_dask.workflows.operations.lake_init.places import Places
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.session.sections import Columns, FeaturesConfig, Lake, Score, TaxonomyConfig
from ammrank_dask.workflows.session.settings import CATEGORIES_NAME

DEFAULTS = Config()


@dataclass(frozen=True)
class Inspection:
    """A lake as it was understood: the config for it, the facts, and its categories if nobody lists them."""

    config: Config | None
    facts: dict[str, Any]
    categories: list[str] | None
    next_date: dt.date
    """The night to run first."""


def inspect_lake(
    client: Any,
    places: Places,
    site: Path,
    *,
    columns: Mapping[str, str],
    groups: Sequence[tuple[str, str]],
    progress: Progress = silent,
) -> Inspection:
    """Survey a lake on the cluster and guess its config.

    Parameters
    ----------
    columns, groups
        What a person has decided: columns by role, and (group, value) pairs.

    Returns
    -------
    Inspection
        Its config is None when no value of the log means ad clicks.
    """
    remarks = Remarks()
    days = _list_event_files(places, remarks)
    named = _event_columns(next(reversed(days.values()))[0], columns, remarks)
    people = _people_columns(places.users, named[USER_ID], columns, remarks)
    read = EventColumns(**named)
    leveled = None if places.taxonomy is None else _read_levels(places.taxonomy, remarks)

    late_days, count_users = DEFAULTS.late_days, people is None
    survey = survey_events(client, days, read, late_days=late_days, count_users=count_users, progress=progress)
    users = None
    if people is not None and places.users is not None:
        users = survey_users(client, table_files(places.users), named[USER_ID], people[GENDER], progress=progress)
        _remark_ids(survey, users, remarks)
    meant = _guess_groups(survey, groups, remarks)
    genders = _guess_genders(users, remarks)
    flat = None if leveled else sorted(value for value in sum_by(survey, 1) if value)
    level, taxonomy = leveled or (1, flat_taxonomy(flat) if flat else None)
    if flat:
        listed = f"with the {len(flat):,} categories found listed in {site / CATEGORIES_NAME}"
        remarks.guessed.append(f"lake.taxonomy: null, {listed}")
    guesses = _Guesses(
        named,
        people,
        meant,
        genders,
        *_guess_times(survey, remarks),
        level,
        taxonomy,
        _guess_day_zone(survey, remarks),
        _guess_closed_weekdays(survey, remarks),
    )
    config, enough, next_date = None, None, max(survey.events_by_day)
    if CLICK_GROUP in meant.names and taxonomy is not None:
        config = _make_config(places, site, guesses, estimate_users(users, survey).users, remarks)
        enough = _count_users_with_clicks(client, survey, read, config, taxonomy, progress)
        next_date = _guess_next_date(survey, meant, remarks)
    findings = {
        **_lake_findings(places, survey, users, guesses, remarks),
        "users_with_enough_clicks": enough.users if enough else None,
        "users_with_enough_clicks_estimated": bool(enough and enough.sampling > 1),
        "label": DEFAULTS.label.model_dump(),
        "partitions": config.partitions if config else None,
        "guessed": remarks.guessed,
        "to_set": remarks.to_set,
    }
    return Inspection(config, findings, flat, next_date)


@dataclass(frozen=True)
class _Guesses:
    """What the lake seems to mean: its columns and those of its users, its values, times and categories."""

    columns: dict[str, str]
    people: dict[str, str | None] | None
    groups: Guessed
    genders: Guessed
    zone: str | None
    unit: str | None
    level: int
    taxonomy: Taxonomy | None
    day_zone: str
    closed_weekdays: list[int]


def _make_config(places: Places, site: Path, guesses: _Guesses, n_users: int, remarks: Remarks) -> Config:
    assert guesses.taxonomy is not None
    return Config(
        lake=_lake_config(places, site, guesses),
        columns=Columns(**guesses.columns, **(guesses.people or {AGE: None, GENDER: None})),
        timezone=guesses.zone,
        timestamp_unit=guesses.unit,
        groups=guesses.groups.names,
        genders=guesses.genders.names,
        taxonomy=TaxonomyConfig(level=guesses.level),
        features=FeaturesConfig(groups=_feature_groups(guesses.groups, remarks)),
        partitions=choose_partitions(n_users),
        score=Score(k=min(DEFAULTS.score.k, len(guesses.taxonomy.categories))),
    )


def _lake_findings(
    places: Places, survey: EventSurvey, users: UsersSurvey | None, guesses: _Guesses, remarks: Remarks
) -> dict[str, Any]:
    """Return what was seen of the lake, as `ammrank init` prints it."""
    return {
        "lake": {
            "events": str(places.events),
            "date_key": places.date_key,
            "layout": places.layout,
            "users": str(places.users) if users else None,
            "taxonomy": str(places.taxonomy) if places.taxonomy else None,
        },
        "columns": {**guesses.columns, **(guesses.people or {})},
        "days": day_facts(survey, guesses.closed_weekdays, remarks),
        **event_facts(survey, guesses.groups, guesses.taxonomy, remarks),
        "categories": {
            "ranked": len(guesses.taxonomy.categories) if guesses.taxonomy else 0,
            "level": guesses.level,
            "found": sum(value is not None for value in sum_by(survey, 1)),
        },
        **people_facts(users, survey, guesses.genders),
    }


def _list_event_files(places: Places, remarks: Remarks) -> dict[dt.date, list[LakeFile]]:
    if places.date_key != DEFAULTS.lake.date_key:
        remarks.guessed.append(f"lake.date_key: {places.date_key}")
    if places.layout is not None:
        remarks.guessed.append(f"lake.layout: {places.layout}")
    listed = list_day_files(list_days(places.events, places.date_key, places.layout))
    days = {day: files for day, files in listed.items() if files}
    if not days:
        raise BadInput(f"the day folders in {places.events} have no parquet files; is it the right lake?")
    return days


def _lake_config(places: Places, site: Path, guesses: _Guesses) -> Lake:
    return Lake(
        events=choose_path(places.events, site),
        users=choose_path(places.users, site) if guesses.people is not None and places.users else None,
        taxonomy=choose_path(places.taxonomy, site) if places.taxonomy else None,
        date_key=places.date_key,
        layout=places.layout,
        day_zone=guesses.day_zone,
        missing_days="bridge" if guesses.closed_weekdays else DEFAULTS.lake.missing_days,
    )


def _event_columns(file: LakeFile, given: Mapping[str, str], remarks: Remarks) -> dict[str, str]:
    path, schema = file.path, _schema(file.path)
    in_folders = {} if file.group is None else {GROUP: DEFAULTS.columns.group}
    roles = [role for role in EVENT_ROLES if role not in in_folders]
    guessed = {**guess_columns(schema, roles, given, str(path)), **in_folders}
    missing = [role for role, name in guessed.items() if name is None]
    if missing:
        options = " ".join(f"--column {role}=NAME" for role in missing)
        raise BadInput(
            f"cannot tell which column is {', '.join(missing)}: {path} has {describe_columns(schema)};"
            f" name it with {options}"
        )
    named = {role: name for role, name in guessed.items() if name is not None}
    _remark_columns(named, given, remarks)
    return named


def _people_columns(
    users: LakePath | None, user_id: str, given: Mapping[str, str], remarks: Remarks
) -> dict[str, str | None] | None:
    """Return the columns of age and gender, None when there is no users table that can be used."""
    asked = [role for role in USER_ROLES if role in given]
    if users is None:
        if asked:
            raise BadInput(f"--column {asked[0]}={given[asked[0]]}: the lake has no users table with this column")
        remarks.guessed.append("lake.users: null, as there is no users.parquet and no folder users")
        return None
    paths = [file.path for file in table_files(users)]
    if not paths:
        raise BadInput(f"{users} has no parquet files; add them or remove the folder")
    schema = _schema(paths[0])
    if user_id not in schema.names:
        remarks.to_set.append(
            f"lake.users is null: {users} has no column {user_id!r}, the name of user ids in the events"
            f" (it has {', '.join(schema.names)}); rename it there, then set lake.users, columns.age, columns.gender"
        )
        return None
    found = guess_columns(schema, USER_ROLES, given, str(paths[0]))
    _remark_columns({role: name for role, name in found.items() if name is not None}, given, remarks)
    for role in (role for role, name in found.items() if name is None):
        remarks.to_set.append(
            f"columns.{role} is null: no column of {users} looks like it (it has {describe_columns(schema)})"
        )
    return found


def _schema(path: LakePath) -> pa.Schema:
    with open_parquet(path) as file:
        return file.schema_arrow


def _remark_columns(named: Mapping[str, str], given: Mapping[str, str], remarks: Remarks) -> None:
    for role, name in named.items():
        if name != role and role not in given:
            remarks.guessed.append(f"columns.{role}: {name}")


def _read_levels(path: LakePath, remarks: Remarks) -> tuple[int, Taxonomy]:
    """Return the level to rank and the taxonomy at it: 2 where there is one, otherwise 1."""
    roots = read_taxonomy(path, 1)
    if len(roots.code_of) > len(roots.categories):
        return 2, read_taxonomy(path, 2)
    remarks.guessed.append("taxonomy.level: 1, as no category has a parent")
    return 1, roots


def _remark_ids(survey: EventSurvey, users: UsersSurvey, remarks: Remarks) -> None:
    if users.rows and users.id_kind != survey.id_kind:
        remarks.to_set.append(
            f"user ids are {survey.id_kind} in the events and {users.id_kind} in the users table: convert one"
        )


def _guess_groups(survey: EventSurvey, given: Sequence[tuple[str, str]], remarks: Remarks) -> Guessed:
    counts = {value: count for value, count in sum_by(survey, 0).items() if value is not None}
    meant = guess_groups(counts, given)
    for group, values in meant.names.items():
        own = [value for value in values if value != group and (group, value) not in given]
        if own:
            remarks.guessed.append(f"groups.{group}: {', '.join(map(repr, own))}")
    return meant


def _guess_genders(users: UsersSurvey | None, remarks: Remarks) -> Guessed:
    counts = users.genders if users is not None else {}
    genders = guess_genders({value: count for value, count in counts.items() if value is not None})
    for name, values in genders.names.items():
        if values != [name]:
            remarks.guessed.append(f"genders.{name}: {', '.join(map(repr, values))}")
    if users is not None:
        bad = sum(users.genders[value] for value in genders.unmapped)
        remark_share(bad, users.rows, "users have a gender that is not mapped", remarks)
    return genders


def _guess_times(survey: EventSurvey, remarks: Remarks) -> tuple[str | None, str | None]:
    times = survey.times
    zone, unit = guess_zone(times), guess_unit(times)
    if times.sampled[NAIVE]:
        share = f"{times.inside / times.sampled[NAIVE]:.1%} of {times.sampled[NAIVE]:,} sampled times"
        if zone is not None:
            remarks.guessed.append(
                f"timezone: {zone}, as the times have no zone and {share} lie in the date of their folder in UTC"
            )
        else:
            remarks.to_set.append(
                f"timezone: the times have no zone, and only {share} lie in the date of their folder in UTC"
            )
    if times.sampled[INTEGER]:
        if unit is not None:
            remarks.guessed.append(f"timestamp_unit: {unit}, which brings the times near the date of their folder")
        else:
            remarks.to_set.append(
                "timestamp_unit: the times are integers, and neither s, ms, us nor ns brings them near the date of"
                " their folder"
            )
    return zone, unit


def _guess_day_zone(survey: EventSurvey, remarks: Remarks) -> str:
    zone = guess_day_zone(survey.times)
    if zone is None:
        return DEFAULTS.lake.day_zone
    remarks.guessed.append(
        f"lake.day_zone: {zone}, as the times lie in the date of their folder there and not in UTC; name your own zone,"
        " for example Europe/Berlin, where clocks change"
    )
    return zone


def _guess_closed_weekdays(survey: EventSurvey, remarks: Remarks) -> list[int]:
    closed = guess_closed_weekdays(survey.events_by_day)
    if closed:
        names = ", ".join(f"{calendar.day_name[weekday]}s" for weekday in closed)
        remarks.guessed.append(f"lake.missing_days: bridge, as most {names} have no events")
    return closed


def _guess_next_date(survey: EventSurvey, meant: Guessed, remarks: Remarks) -> dt.date:
    clicks = {
        day: sum(counts.get(value, 0) for value in meant.names[CLICK_GROUP])
        for day, counts in survey.events_by_day.items()
    }
    last, whole = max(clicks), guess_last_whole_day(clicks)
    if whole < last:
        remarks.guessed.append(
            f"the next night is that of {whole}, as {last} has {clicks[last]:,} clicks, less than a fifth of the days"
            " before: is it whole?"
        )
    return whole


def _feature_groups(meant: Guessed, remarks: Remarks) -> list[str]:
    groups = [group for group in DEFAULTS.features.groups if group in meant.names]
    if not groups:
        remarks.guessed.append(f"features.groups: [{CLICK_GROUP}], as the log has no other group")
        return [CLICK_GROUP]
    return groups


def _label_days(survey: EventSurvey, label_days: int) -> set[dt.date]:
    last = max(survey.events_by_day)
    return {day for day in survey.events_by_day if day > last - dt.timedelta(label_days)}


def _count_users_with_clicks(
    client: Any,
    survey: EventSurvey,
    columns: EventColumns,
    config: Config,
    taxonomy: Taxonomy,
    progress: Progress,
) -> Estimate:
    values = config.groups[CLICK_GROUP]
    window = _label_days(survey, config.label.days)
    return survey_clicks(
        client,
        [day for day in survey.days if day.date in window],
        columns,
        click_values=values,
        code_of=taxonomy.code_of,
        n_clicks=sum(survey.events_by_day[day][value] for day in window for value in values),
        min_categories=config.label.min_categories,
        progress=progress,
    )
