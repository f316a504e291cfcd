"""Recognise a night that was run before and whose inputs are the same: there is nothing to do."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ammrank_dask.storage.errors import BadInput, DamagedStore
from ammrank_dask.storage.lake.listing import LakeDay, list_day_files, table_files
from ammrank_dask.storage.lake.paths import LakePath, exists, status_of
from ammrank_dask.storage.objects.atomic import bytes_below, digest_of
from ammrank_dask.storage.objects.retry import retried
from ammrank_dask.storage.site.forgotten import LIST_NAME
from ammrank_dask.storage.site.reports import PAGE, check_report
from ammrank_dask.storage.site.run_log import read_attempt
from ammrank_dask.storage.site.site import Published, Site
from ammrank_dask.storage.store.registry import FORMAT
from ammrank_dask.storage.store.runs import is_finished, open_run, version_of
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.session.settings import CATEGORIES_NAME, lake_days, lake_path

RESULTS = ("qualifications", "report")
"""What stays of a night after the next one is published."""


class InputDigests(NamedTuple):
    """Digests of what a night reads, as its record keeps them: of all of it, and without taxonomy and categories."""

    inputs: str
    inputs_but_categories: str


def digest_inputs(
    site: Site, config: Config, date: dt.date, in_lake: Mapping[dt.date, LakeDay] | None = None
) -> InputDigests:
    """Return digests of all that a night reads, by size and time of every file: cheap, nothing is opened.

    They cover the config, every file or folder that a setting names, the days of the lake up to the date, who is to be
    forgotten, and the version of this package. `in_lake` are all days of the lake where they are listed already.
    """
    in_lake = lake_days(site, config) if in_lake is None else in_lake
    lake = {day: of_day for day, of_day in in_lake.items() if day <= date}
    days = [[str(day), [_describe_file(*file) for file in files]] for day, files in list_day_files(lake).items()]
    # A night that is published does not depend on the partitions that its site was placed in since.
    settings = config.model_dump(mode="json", exclude={"partitions", "categories"})
    # Where results go is a setting, but nothing there is an input.
    texts = set(_all_texts(settings)) - {"", config.lake.events, config.lake.taxonomy, config.publish.to}
    named = {text: lake_path(site, text) for text in sorted(texts)}
    files = [[text, _describe_files(path)] for text, path in named.items() if exists(path)]
    forgotten = _describe_files(site.path / LIST_NAME)
    others = digest_of([FORMAT, version_of("ammrank-dask"), settings, days, files, forgotten])
    taxonomy = [] if config.lake.taxonomy is None else _describe_files(lake_path(site, config.lake.taxonomy))
    categories = [config.categories, taxonomy, _describe_files(site.path / CATEGORIES_NAME)]
    return InputDigests(digest_of([others, categories]), others)


def find_unchanged(site: Site, config: Config, date: dt.date) -> dict[str, Any] | None:
    """Return the results of the last run of a night, if it is published whole and nothing changed since.

    None means that the night has to be run: it is not whole, or nothing is recorded of it. A night before the newest is
    of the categories of then: it stays when only these changed, and that is said.
    """
    attempt = read_attempt(site.run_folder(date))
    if attempt is None or attempt.get("status") != "done" or "inputs" not in attempt:
        return None
    current = site.current()
    is_current = current is not None and current.date == date
    runs = {role: name for role, name in attempt["runs"].items() if is_current or role in RESULTS}
    if is_current and current is not None and dict(current.runs) != runs:
        return None
    if not is_current and not ("qualifications" in runs and site.is_published(date)):
        return None
    if not all(_is_whole_run(site.path / name, role, attempt["bytes"]) for role, name in runs.items()):
        return None
    if not _is_placed(site, current, config.partitions):
        return None
    unchanged = {**attempt["facts"], **result_paths(site, attempt), "published": is_current, "unchanged": True}
    now = digest_inputs(site, config, date)
    if attempt["inputs"] == now.inputs:
        return unchanged
    if is_current or attempt.get("inputs_but_categories") != now.inputs_but_categories:
        return None
    return {**unchanged, "categories": "those of then; --rebuild writes the night again with those of now"}


def result_paths(site: Site, attempt: Mapping[str, Any]) -> dict[str, str]:
    """Return where the results of an attempt are now: its facts name the place where the site was then."""
    pages = {"qualifications": "", "report": PAGE}
    return {
        role: str(site.path / attempt["runs"][role] / page)
        for role, page in pages.items()
        if role in attempt["facts"] and role in attempt["runs"]
    }


def _is_placed(site: Site, current: Published | None, n_partitions: int) -> bool:
    """Return whether the users of a site are in so many partitions: a config that only says so is not enough."""
    try:
        return current is not None and open_run(site.path / current.runs["head"]).n_parts == n_partitions
    except BadInput:  # damaged: the night will say so
        return False


def _is_whole_run(path: Path, role: str, sizes: Mapping[str, int]) -> bool:
    """Return whether a result has the bytes that were written, by their number."""
    if role != "report":
        return is_finished(path) and bytes_below(path) == sizes.get(role)
    try:
        check_report(path)
    except DamagedStore:
        return False
    return True


@retried
def _describe_files(path: LakePath) -> list[list[Any]]:
    """Return name, size and time of a file, or of all files of a day or table; nothing when there is none."""
    return [_describe_file(*file) for file in table_files(path)] if exists(path) else []


@retried
def _describe_file(path: LakePath, name: str, group: str | None) -> list[Any]:
    status = status_of(path)
    return [name, status.st_size, status.st_mtime_ns, *([] if group is None else [group])]


def _all_texts(settings: Any) -> Iterator[str]:
    if isinstance(settings, str):
        yield settings
    elif isinstance(settings, Mapping):
        for value in settings.values():
            yield from _all_texts(value)
    elif isinstance(settings, list):
        for value in settings:
            yield from _all_texts(value)
