"""Scale the recorded nights of a site to other numbers of users, events and workers."""

from __future__ import annotations

import bisect
import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ammrank_dask.monitor.texts import seconds_text
from ammrank_dask.runtime.memory import PartitionSize, estimate_memory
from ammrank_dask.scoring.learn_chances import count_users
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.objects.folders import list_paths
from ammrank_dask.storage.site.run_log import read_attempt
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.vocabulary import USERS_A_PARTITION
from ammrank_dask.workflows.cluster.memory_check import count_lake, largest_model
from ammrank_dask.workflows.operations.lake_init.guess import choose_partitions
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.session.settings import site_taxonomy

OLDEST, TRAINS, OTHER = "oldest night", "night that trains", "other night"
N_NIGHTS = 30
"""The newest nights are scaled, besides the oldest one."""
NOT_SHARED = "publish"
"""The stage that no worker takes part in."""


@dataclass(frozen=True)
class Workload:
    """What is planned for, or what was recorded: users, partitions, categories, days, and events of a user and day."""

    users: int
    partitions: int
    categories: int
    days: int
    events: float


def recorded_nights(site: Site) -> dict[str, list[dict[str, Any]]]:
    """Return the records of finished nights by kind: the oldest, which had the history to read, and later ones."""
    folders = list_paths(site.path / "runs", "date=*")
    records = [record for record in map(read_attempt, [*folders[:1], *folders[1:][-N_NIGHTS:]]) if record is not None]
    nights = [record for record in records if record.get("status") == "done" and record.get("workers")]
    if not nights:
        raise BadInput(
            f"a plan scales the recorded nights of a site, and {site.path} has none; run one with `ammrank nightly`,"
            " or see the table under `Time, disk and memory` in docs/sizing.md"
        )
    trains = [any(stage["name"] == "train" for stage in night["stages"]) for night in nights[1:]]
    kinds = {OLDEST: nights[:1]} | {
        kind: [night for night, is_kind in zip(nights[1:], trains, strict=True) if is_kind is (kind == TRAINS)]
        for kind in (TRAINS, OTHER)
    }
    return {kind: of_kind for kind, of_kind in kinds.items() if of_kind}


def read_load(site: Site, config: Config, scored: int) -> Workload:
    """Return what the lake of a site has; where nothing lists its users, those who were scored."""
    users, by_day = count_lake(site, config)
    users = users or scored
    categories, days = len(site_taxonomy(site, config).categories), max(1, len(by_day))
    return Workload(users, config.partitions, categories, days, sum(by_day) / days / max(1, users))


def choose_load(lake: Workload, users: int | None, events_per_day: float | None) -> Workload:
    """Return what is planned for: what was given, else as the lake has it; more users get more partitions."""
    users = lake.users if users is None else users
    events = lake.events if events_per_day is None else events_per_day / max(1, users)
    if users < 1 or events <= 0:
        raise BadInput(f"a plan needs at least 1 user and 1 event per day, got {users:,} and {events * users:,.0f}")
    partitions = lake.partitions if lake.partitions * USERS_A_PARTITION >= users else choose_partitions(users)
    return Workload(users, partitions, lake.categories, lake.days, events)


def scale_seconds(night: Mapping[str, Any], lake: Workload, load: Workload, workers: int, shards: int) -> float:
    """Return the seconds of a recorded night at another size and with other workers.

    Ingest grows with the events, other stages with the users, or with the events where a user has more of them. No
    stage is wider than its partitions, training no wider than its shards. What is between the stages stays.
    """
    n_users = night["facts"]["users"]
    busy = load.events / lake.events if lake.events else 1.0
    total = night["seconds"]
    for stage in night["stages"]:
        enough = count_users(load.categories) if stage["name"] == "chances" else math.inf
        growth = (
            min(load.users, enough) / min(n_users, enough) * (busy if stage["name"] == "ingest" else max(1.0, busy))
        )
        then, now = (
            min(width, partitions, shards if stage["name"] == "train" else width)
            for width, partitions in ((night["workers"], lake.partitions), (workers, load.partitions))
        )
        total += stage["seconds"] * (growth * (1.0 if stage["name"] == NOT_SHARED else then / now) - 1.0)
    return max(0.0, total)


def scale_bytes(night: Mapping[str, Any], load: Workload) -> float:
    """Return the bytes of the runs that a recorded night wrote, at another number of users."""
    own = sum(night["bytes"][role] for role, run in night["runs"].items() if f"date={night['date']}" in run)
    return float(own * load.users / night["facts"]["users"])


def describe_plan(
    site: Site,
    config: Config,
    *,
    users: int | None = None,
    events_per_day: float | None = None,
    workers: int | None = None,
    deadline: float | None = None,
) -> dict[str, Any]:
    """Return seconds and bytes of every kind of night, the median of its records, and the memory of a worker."""
    nights = recorded_nights(site)
    newest = max((night for of_kind in nights.values() for night in of_kind), key=lambda night: night["date"])
    lake = read_load(site, config, newest["facts"]["users"])
    load = choose_load(lake, users, events_per_day)

    def seconds_of(kind: str, workers: int) -> float:
        return statistics.median(
            scale_seconds(night, lake, load, workers, config.train.shards) for night in nights[kind]
        )

    if deadline is not None:
        later = [kind for kind in nights if kind != OLDEST] or [OLDEST]
        workers = choose_workers(lambda count: max(seconds_of(kind, count) for kind in later), load, deadline)
    workers = workers or newest["workers"]
    return {
        "users": load.users,
        "events_per_day": round(load.users * load.events),
        "workers": workers,
        "partitions": load.partitions,
        "nights": {
            kind: {
                "seconds": round(seconds_of(kind, workers), 1),
                "bytes": round(statistics.median(scale_bytes(night, load) for night in of_kind)),
                "records": len(of_kind),
            }
            for kind, of_kind in nights.items()
        },
        "worker_memory": worker_memory(load, config),
    }


def choose_workers(seconds_of: Callable[[int], float], load: Workload, deadline: float) -> int:
    """Return the fewest workers with which a night ends in time."""
    least = seconds_of(load.partitions)
    if least > deadline:
        raise BadInput(
            f"no cluster runs a night of {load.users:,} users within {deadline:,.0f} s: with a worker for each of"
            f" {load.partitions:,} partitions it still takes {least:,.1f} s; plan for more time or fewer users"
        )
    counts = range(1, load.partitions + 1)
    return counts[bisect.bisect_left(counts, True, key=lambda count: seconds_of(count) <= deadline)]


def worker_memory(load: Workload, config: Config) -> int:
    """Return the bytes of a worker of one thread, as the check before every night counts them."""
    groups = len(config.event_groups)
    cells = min(load.users * load.events * load.days * 0.5, load.users * groups * load.categories)
    size = PartitionSize(
        math.ceil(load.users / load.partitions),
        math.ceil(cells / load.partitions),
        math.ceil(load.users * load.events / load.partitions),
    )
    model = largest_model(config, load.categories, n_users=load.users, n_cells=math.ceil(cells))
    return estimate_memory(size, model, k=config.score.k, keeps_all_scores=True)


def plan_lines(plan: Mapping[str, Any]) -> dict[str, str]:
    """Return a plan as people read it."""
    lines = {name.replace("_", " "): f"{plan[name]:,}" for name in ("users", "events_per_day", "workers", "partitions")}
    for kind, night in plan["nights"].items():
        counted = f"{night['records']} recorded" if night["records"] > 1 else "one recorded"
        lines[kind] = f"{seconds_text(night['seconds'])}, {night['bytes'] / 2**30:,.2f} GiB ({counted})"
    return lines | {"memory of a worker": f"{plan['worker_memory'] / 2**20:,.0f} MiB"}
