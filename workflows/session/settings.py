"""Turn the config of a site into what the stages need: paths, mappings and the settings that identify runs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake.events import EventMapping
from ammrank_dask.storage.lake.files import EventColumns
from ammrank_dask.storage.lake.listing import LakeDay, list_days
from ammrank_dask.storage.lake.paths import LakePath, is_url, parse_path
from ammrank_dask.storage.lake.people import PeopleMapping
from ammrank_dask.storage.lake.taxonomy import Taxonomy, read_taxonomy
from ammrank_dask.storage.objects.folders import is_file, is_folder, is_there, require_regular
from ammrank_dask.storage.objects.objects import Objects
from ammrank_dask.storage.objects.posix import open_objects
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.registry import FORMAT
from ammrank_dask.storage.vocabulary import CLICK_GROUP, GENDERS, IGNORE_GROUP
from ammrank_dask.workflows.session.config import Config

if TYPE_CHECKING:  # what builds features imports Dask and numba, and many commands need neither
    from ammrank_dask.features.build import FeatureSettings

CATEGORIES_NAME = "categories.csv"
_LEFT_OUT = {"lake.day_zone": "UTC"}
"""Settings that are not written down at this value: earlier versions had no other."""


def lake_path(site: Site, given: str) -> LakePath:
    """Return a path of the config: a URL, or a path of this machine; relative ones start at the site."""
    if is_url(given):
        return parse_path(given)
    if "\0" in given:
        raise BadInput(f"a path must not have the character NUL, got {given!r}; correct {site.config_path}")
    path = site.path / given
    require_regular(path)  # by the name that a person knows it by
    return path if Path(given).is_absolute() else path.resolve()


def copies_target(site: Site, config: Config) -> Objects | None:
    """Return where published nights are copied to, None when they are not; refuse a folder of the site or the lake."""
    to, lake = config.publish.to, config.lake
    if to is None:
        return None
    target = lake_path(site, to)
    sources = {"lake.events": lake.events, "lake.users": lake.users, "lake.taxonomy": lake.taxonomy}
    folders = {"the site": site.path} | {
        name: lake_path(site, given) for name, given in sources.items() if given is not None
    }
    for name, folder in folders.items():
        if _is_inside(target, folder):
            raise BadInput(f"publish.to must not be inside {name}, got {to}; name another folder or a URL")
    if isinstance(target, Path) and is_there(target) and not is_folder(target):
        raise BadInput(f"publish.to must be a folder or a URL, got the file {to}; name another")
    return open_objects(target if isinstance(target, Path) else str(target))


def _is_inside(path: LakePath, folder: LakePath) -> bool:
    if isinstance(path, Path) or isinstance(folder, Path):
        both = isinstance(path, Path) and isinstance(folder, Path)
        return both and Path(str(path)).resolve().is_relative_to(Path(str(folder)).resolve())
    is_same_store = (path.store, path.options) == (folder.store, folder.options)
    return is_same_store and PurePosixPath(path.key).is_relative_to(folder.key)


def lake_days(site: Site, config: Config) -> dict[dt.date, LakeDay]:
    """Return the days of the lake of a site."""
    lake = config.lake
    return list_days(lake_path(site, lake.events), lake.date_key, lake.layout, config.columns.group)


def site_taxonomy(site: Site, config: Config) -> Taxonomy:
    """Read the taxonomy of the lake, or the flat list of categories that `init` wrote for a lake without one."""
    if config.lake.taxonomy is not None:
        return read_taxonomy(lake_path(site, config.lake.taxonomy), config.taxonomy.level, config.categories)
    listed = site.path / CATEGORIES_NAME
    if not is_file(listed):
        raise BadInput(
            f"lake.taxonomy is null and there is no list of categories at {listed};"
            " write one with the header category,parent and a row for each, or name a taxonomy"
        )
    return read_taxonomy(listed, level=1, renames=config.categories)


def event_columns(config: Config) -> EventColumns:
    """Return the names of the event columns."""
    columns = config.columns
    return EventColumns(
        columns.user_id,
        columns.group,
        columns.category,
        columns.timestamp,
        config.timezone,
        config.timestamp_unit,
    )


def event_mapping(config: Config, taxonomy: Taxonomy) -> EventMapping:
    """Return how the values of the log are understood."""
    groups = config.event_groups
    return EventMapping(
        event_columns(config),
        {value: code for code, group in enumerate(groups) for value in config.groups[group]},
        frozenset(config.groups.get(IGNORE_GROUP, [])),
        taxonomy,
        len(groups),
        groups.index(CLICK_GROUP),
        config.late_days,
        frozenset(config.unknown_user_ids),
        config.lake.day_zone,
    )


def people_mapping(config: Config) -> PeopleMapping:
    """Return how the users table is understood."""
    return PeopleMapping(
        config.columns.user_id,
        config.columns.age,
        config.columns.gender,
        {value: GENDERS.index(name) for name in GENDERS for value in config.genders.get(name, [])},
        frozenset(config.genders.get(IGNORE_GROUP, [])),
        frozenset(config.unknown_user_ids),
    )


def state_settings(config: Config, taxonomy: Taxonomy) -> dict[str, Any]:
    """Return the settings on which partials and states depend: another value needs a rebuild."""
    return {
        "format": FORMAT,
        "alpha": config.alpha,
        "groups": {group: sorted(config.groups[group]) for group in config.event_groups},
        "group_order": config.event_groups,
        "columns": config.columns.model_dump(include={"user_id", "group", "category", "timestamp"}),
        "timezone": config.timezone,
        "timestamp_unit": config.timestamp_unit,
        "unknown_user_ids": sorted(config.unknown_user_ids),
        "late_days": config.late_days,
        "taxonomy": taxonomy.digest,
        "state.max_age_days": config.state.max_age_days,
        "partitions": config.partitions,
        **({} if config.lake.day_zone == _LEFT_OUT["lake.day_zone"] else {"lake.day_zone": config.lake.day_zone}),
    }


def first_change(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Return which setting differs, as a phrase, None when all are equal."""
    for key, value in {**_LEFT_OUT, **now}.items():
        earlier = before.get(key, _LEFT_OUT.get(key))
        if earlier != value:
            if key == "taxonomy":
                return "the taxonomy was another one"
            return f"{key} was {earlier!r} and is now {value!r}"
    return None


def feature_settings(config: Config, taxonomy: Taxonomy) -> FeatureSettings:
    """Return what features are made of."""
    from ammrank_dask.features.build import FeatureSettings

    return FeatureSettings(
        tuple(config.event_groups),
        tuple(config.features.groups),
        taxonomy.categories,
        config.alpha,
        config.features.intensity,
        config.features.recency,
        config.lake.users is not None,
        config.features.normalize,
        config.label.days,
        config.label.alpha,
    )
