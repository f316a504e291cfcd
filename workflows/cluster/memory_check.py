"""Refuse partitions that the workers have no memory for, before the first task."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

from ammrank_dask.features.columns import interest_columns
from ammrank_dask.model.amm_rank import AMMRank
from ammrank_dask.model.amm_rank_plus import AMMRankPlus
from ammrank_dask.model.memberships import count_centers
from ammrank_dask.model.plus_basis import sample_size
from ammrank_dask.runtime.memory import CELLS_PER_EVENT, ModelSize, PartitionSize, estimate_memory
from ammrank_dask.scoring.settings import ScoreSettings
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake.files import count_file_rows
from ammrank_dask.storage.lake.listing import list_day_files, table_files
from ammrank_dask.storage.lake.paths import LakePath, map_at_once, size_of
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.parts import PartFacts
from ammrank_dask.storage.store.runs import is_finished, open_run
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.session.settings import lake_days, lake_path

USABLE_SHARE = 0.9
"""Share of its memory up to which a worker takes tasks (distributed.worker.memory.pause)."""
FILES_OPENED = 50
VALUES_PER_CELL = 4
"""Values of a row that learns, for each cell of the average user: intensity and recency, and who clicks has more."""


def check_memory(client: Any, site: Site, config: Config, date: dt.date, n_categories: int) -> None:
    """Compare the largest partition with the smallest worker; workers without a limit are taken at their word."""
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    limited = [(worker["memory_limit"], worker["nthreads"]) for worker in workers if worker["memory_limit"]]
    if not limited:
        return
    size = largest_partition(site, config, date, n_categories)
    model = largest_model(
        config, n_categories, n_users=size.users * config.partitions, n_cells=size.cells * config.partitions
    )
    wanted = ScoreSettings(policy=config.score.policy, also=tuple(config.report.policies)).wanted
    score = config.score
    by_chance = score.min_chance is not None or score.explore > 0 or score.objective == "value"
    keeps_chances = by_chance or any(policy.needs_chances for policy in wanted)
    keeps_all = keeps_chances or score.opt_out is not None or any(policy.needs_all_scores for policy in wanted)
    for limit, threads in sorted(set(limited)):
        usable = USABLE_SHARE * limit
        needed = estimate_memory(
            size, model, k=score.k, keeps_all_scores=keeps_all, keeps_chances=keeps_chances, threads=threads
        )
        if needed <= usable:
            continue
        advice = f"set partitions above {config.partitions} in ammrank.yaml, or give the workers more memory"
        if estimate_memory(PartitionSize(0, 0, 0), model, k=config.score.k, threads=threads) > usable:
            advice = "more partitions would not help: give the workers more memory or fewer threads"
        raise BadInput(
            f"a worker needs about {_mib(needed)} for partitions of {size.users:,} users and {size.cells:,} cells and"
            f" {n_categories:,} categories ({threads} at a time), found one of {_mib(limit)}, of which"
            f" {USABLE_SHARE:.0%} can be used; {advice}"
        )


def largest_model(config: Config, n_categories: int, *, n_users: int, n_cells: int) -> ModelSize:
    """Return the size of a model that all users train, and whose categories have as many planes as the config lets."""
    columns = interest_columns(
        config.features.groups,
        [""] * n_categories,
        recency=config.features.recency == "decay",
        demographics=config.lake.users is not None,
    )
    n_planes, n_columns = n_categories * config.train.max_planes, len(columns.names)
    if config.train.model == AMMRank.method:
        return ModelSize(n_categories, n_planes, n_columns + 1)
    n_clusterings = AMMRankPlus.n_clusterings if config.train.clusterings is None else config.train.clusterings
    n_centers = n_clusterings * count_centers(n_users)
    values_per_user = min(n_columns, VALUES_PER_CELL * n_cells / max(1, n_users))
    n_values = math.ceil(values_per_user * n_users)
    sample_values = math.ceil(values_per_user * sample_size(max(1, n_users), None, n_values))
    return ModelSize(
        n_categories, n_planes, n_columns + n_centers + 1, n_centers, n_columns, sample_values, n_clusterings
    )


def largest_partition(site: Site, config: Config, date: dt.date, n_categories: int) -> PartitionSize:
    """Return the size of the largest partition: as the published state has it, or from the size of the lake.

    Where all users are scored, those of the users table count who have no events.
    """
    current, parts = site.current(), _published_parts(site)
    first = dt.date.min if current is None or not parts else min(current.date, date)
    days = lake_days(site, config)
    listed = list_day_files({day: of_day for day, of_day in days.items() if first <= day <= date})
    by_day = _count_events([[file.path for file in files] for files in listed.values()])
    events = max(by_day, default=0)
    if len(parts) == config.partitions:
        users, cells = max(part.rows for part in parts), max(part.nnz for part in parts)
        if config.score.users == "all":
            users = max(users, math.ceil(_count_people(site, config) / config.partitions))
    else:
        made = math.ceil(sum(by_day) * CELLS_PER_EVENT)
        everybody = _count_people(site, config) or made
        users = math.ceil(everybody / config.partitions)
        cells = math.ceil(min(made, everybody * len(config.event_groups) * n_categories) / config.partitions)
    return PartitionSize(users, cells, math.ceil(events / config.partitions))


def count_lake(site: Site, config: Config) -> tuple[int, list[int]]:
    """Return the users of the users table and of the published state, 0 without both, and the events of each day.

    Events are estimated by size.
    """
    listed = list_day_files(lake_days(site, config))
    users = max(_count_people(site, config), sum(part.rows for part in _published_parts(site)))
    return users, _count_events([[file.path for file in files] for files in listed.values()])


def _published_parts(site: Site) -> list[PartFacts]:
    """Return the parts of the published state, none if there is no whole one."""
    current = site.current()
    if current is None or not is_finished(site.path / current.runs["head"]):
        return []
    return open_run(site.path / current.runs["head"]).parts


def _count_events(days: list[list[LakePath]]) -> list[int]:
    """Return the events of each day: counted in some files, estimated by size for the others."""
    listed = [path for files in days for path in files]
    rows = size = 0
    chosen = listed[:: max(1, len(listed) // FILES_OPENED)]
    for path, counted in zip(chosen, map_at_once(count_file_rows, chosen), strict=True):
        if counted is not None:  # else ingest says what is wrong with the file
            rows += counted
            size += size_of(path)
    rate = rows / size if size else 0.0
    return [math.ceil(sum(map(size_of, files)) * rate) for files in days]


def _count_people(site: Site, config: Config) -> int:
    if config.lake.users is None:
        return 0
    files = table_files(lake_path(site, config.lake.users))
    counted = map_at_once(count_file_rows, (file.path for file in files))
    return 0 if None in counted else sum(rows for rows in counted if rows is not None)


def _mib(n_bytes: float) -> str:
    return f"{n_bytes / 2**20:,.0f} MiB"
