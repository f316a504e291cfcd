"""Measure small nights on this cluster, and say what nights of another size would take."""

from __future__ import annotations

import contextlib
import datetime as dt
import math
import os
import shutil
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from distributed import Client

from ammrank_dask.memory import PartitionSize, estimate_memory
from ammrank_dask.model.amm_rank_plus import AMMRankPlus
from ammrank_dask.model.held_out_fit import USUAL
from ammrank_dask.monitor.plugin import NightPlugin, watch_cluster
from ammrank_dask.monitor.texts import seconds_text
from ammrank_dask.simulation.simulate import simulate
from ammrank_dask.sizing import (
    MANY_USERS,
    MORE_PARTITIONS,
    MORE_USERS,
    SECONDS_PER_TASK,
    SMALL,
    Calibration,
    NightFit,
    SizeFit,
    Workload,
)
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.site.run_log import read_attempt
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.vocabulary import USERS_A_PARTITION
from ammrank_dask.tasks import Progress
from ammrank_dask.workflows.cluster.memory_check import USABLE_SHARE, count_lake, largest_model
from ammrank_dask.workflows.lake_init.guess import choose_partitions
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.session.lake_sections import Lake
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.session.scoring_sections import Score
from ammrank_dask.workflows.session.settings import site_taxonomy
from ammrank_dask.workflows.stages.nightly import nightly

FIRST_DAY = dt.date(2026, 1, 5)
CATEGORIES, USUAL_EVENTS, MOST_ACTIVITY = 50, 1.66, 2.0
"""Of the simulated world: categories, events of a user and day, and by how much these can be raised."""
FURTHER_NIGHTS = 3
"""Nights after the first one that are measured: one alone takes a second, and whatever else runs then counts."""
MOST_DAYS = 60
"""Days of history that are simulated at most: few enough to be quick, unless training needs more."""

OpenClient = Callable[[], AbstractContextManager[Client]]
"""Opens the cluster of a night."""


def choose_load(
    site: Site | None,
    config: Config,
    *,
    users: int | None,
    events: float | None,
    categories: int | None,
    days: int | None,
) -> Workload:
    """Return what is planned for: what was given, else as the lake of the site has it; refuse what no site can have."""
    if site is not None:
        n_users, by_day = count_lake(site, config)
        if users is None and not n_users:
            raise BadInput(f"{site.path} has no users table, and nothing published yet that says how many; add --users")
        users = n_users if users is None else users
        events = sum(by_day) / max(1, len(by_day)) * users / (n_users or users or 1) if events is None else events
        days = len(by_day) if days is None else days
        categories = len(site_taxonomy(site, config).categories) if categories is None else categories
    if users is None or events is None:
        raise BadInput("a plan needs a SITE, or --users and --events-per-day")
    categories, days = CATEGORIES if categories is None else categories, MOST_DAYS if days is None else days
    if users < 1 or events <= 0 or categories < 2 or days < 1:
        raise BadInput(
            "a plan needs at least 1 user, 1 event a day, 2 categories and 1 day,"
            f" got {users:,} users, {events:,.0f} events a day, {categories:,} categories and {days:,} days"
        )
    own = site is not None and config.partitions * USERS_A_PARTITION >= users
    return Workload(users, config.partitions if own else choose_partitions(users), categories, days, events / users)


def choose_workers(calibration: Calibration, load: Workload, deadline: float) -> int:
    """Return the fewest workers with which a further night ends in time."""
    workers = calibration.workers_for(calibration.further, load, deadline)
    if workers is None:
        least = calibration.seconds(calibration.further, load, load.partitions)
        raise BadInput(
            f"no cluster runs a further night of {load.users:,} users within {deadline:,.0f} s: with a worker for each"
            f" of its {load.partitions:,} partitions it still takes {least:,.1f} s; plan for more time or fewer users"
        )
    return workers


def world_config(config: Config) -> Config:
    """Return what decides the work of a night, without what only the lake and the categories of a site can mean.

    Shares of the balanced policy need more held-out users than a small night has: it is measured as user_top_k. Only
    small nights try how closely rows are followed, so those that are measured do not.
    """
    score = Score(
        users=config.score.users,
        k=min(config.score.k, CATEGORIES),
        policy="user_top_k" if config.score.policy == "balanced" else config.score.policy,
    )
    kept = ("alpha", "state", "label", "features", "report", "gate")
    is_plus = config.train.model == AMMRankPlus.method
    train = config.train.model_copy(update={"fit": config.train.fit or USUAL}) if is_plus else config.train
    return Config(score=score, train=train, **{name: getattr(config, name) for name in kept})


def calibrate(
    client: Client, folder: Path, load: Workload, config: Config, progress: Progress, open_client: OpenClient | None
) -> Calibration:
    """Run nights of four small sizes and return what they took; what they wrote is removed.

    Where a command starts workers of its own, which `open_client` does, they are new every night: how much longer they
    take, because they load their kernels and have no memory yet, is measured, too.
    """
    own = world_config(config)
    enough = own.label.days + own.features.min_days + 1  # to train
    days = min(max(MOST_DAYS, enough), max(enough, load.days))
    activity = min(MOST_ACTIVITY, max(0.1, load.events / USUAL_EVENTS))

    def measure_size(
        size: tuple[int, int], open_client: OpenClient = lambda: contextlib.nullcontext(client)
    ) -> list[dict[str, Any]]:
        users, partitions = size
        lake = folder / f"lake-{users}"
        simulate(
            client, lake, truth=folder / f"truth-{users}", users=users, days=days + FURTHER_NIGHTS, start=FIRST_DAY,
            activity=activity, progress=progress,
        )  # fmt: skip
        os.sync()  # a night would wait for the disk to have the lake
        return measure_nights(open_client, folder / "site", lake, partitions, own, days)

    measure_size(SMALL)  # compiles
    measured = [measure_size(size) for size in (SMALL, MORE_PARTITIONS, MORE_USERS, MANY_USERS)]
    fresh = measured[2] if open_client is None else measure_size(MORE_USERS, open_client)
    first, further = (
        _fit([nights[number] for nights in measured], _seconds_between(measured[2][number], fresh[number]))
        for number in range(2)
    )
    workers = max(1, sum(worker["nthreads"] for worker in workers_of(client)))
    calibrated = Workload(*SMALL, CATEGORIES, days, activity * USUAL_EVENTS)
    return Calibration(workers, config.train.shards, calibrated, first, further)


def describe_plan(
    calibration: Calibration, load: Workload, config: Config, *, workers: int, memory_limit: int | None, free: int
) -> dict[str, Any]:
    """Return the figures of the first night and of each further one, and what breaks first."""
    nights = {"first night": calibration.first, "further night": calibration.further}
    found: dict[str, Any] = {"workers": workers, "partitions": load.partitions}
    for name, night in nights.items():
        found[name] = {
            "seconds": round(calibration.seconds(night, load, workers), 1),
            "disk": calibration.disk(night, load),
            "files": calibration.files(night, load),
            "tasks": calibration.tasks(night, load),
        }
    found["memory"] = worker_memory(load, config)
    found["limits"] = _limits(calibration, load, found, memory_limit, free)
    return found


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


def plan_lines(plan: dict[str, Any]) -> dict[str, str]:
    """Return a plan as people read it."""
    lines = {"workers": f"{plan['workers']:,}", "partitions": f"{plan['partitions']:,}"}
    for name in ("first night", "further night"):
        night = plan[name]
        lines[name] = (
            f"{seconds_text(night['seconds'])}, {night['disk'] / 2**30:,.2f} GiB, {night['files']:,} files,"
            f" {night['tasks']:,} tasks"
        )
    lines["memory of a worker"] = f"{plan['memory'] / 2**20:,.0f} MiB"
    return lines | {f"limit: {name}": text for name, text in plan["limits"].items()}


def _limits(
    calibration: Calibration, load: Workload, plan: dict[str, Any], memory_limit: int | None, free: int
) -> dict[str, str]:
    """Return what ends growth, and where."""
    first = calibration.first
    most = calibration.most_useful_workers(first, load)
    per_user = max(1e-9, calibration.disk(first, load) / load.users)
    alone = first.start + sum(fixed for fixed, _ in calibration.stage_seconds(first, load, 1).values())
    limits = {
        "disk": f"{free / 2**30:,.0f} GiB are free: enough for {math.floor(free / per_user):,} users",
        "scheduler": (
            f"more than {most:,} workers gain nothing: partitions, and {1 / SECONDS_PER_TASK:,.0f} tasks a second, set"
            " the pace then"
        ),
        "one after the other": (
            f"{alone:.1f} s of the first night (start of the workers, driver, merges, publishing) stay whatever the"
            " workers"
        ),
    }
    if memory_limit is not None:
        fits = plan["memory"] <= USABLE_SHARE * memory_limit
        limits["memory"] = (
            f"a worker needs {plan['memory'] / 2**20:,.0f} MiB and has {memory_limit / 2**20:,.0f} MiB:"
            f" {'enough' if fits else 'too little; give workers more, or the site more partitions'}"
        )
    return limits


def measure_nights(
    open_client: OpenClient, folder: Path, lake: Path, partitions: int, config: Config, days: int
) -> list[dict[str, Any]]:
    """Run a first night and some more on a new site; return what the first took and added, and what one more does.

    `open_client` gives every night its cluster. Of the further nights each figure is the median.
    """
    folder.mkdir()
    site = Site(folder)
    names = Lake(events=str(lake / "events"), users=str(lake / "users.parquet"), taxonomy=str(lake / "taxonomy.csv"))
    own = config.model_copy(update={"lake": names, "partitions": partitions})
    nights, before = [], (0, 0)
    for number in range(1 + FURTHER_NIGHTS):
        date = FIRST_DAY + dt.timedelta(days - 1 + number)
        with open_client() as client:
            watch_cluster(client)
            n_tasks = _count_tasks(client)
            nightly(Night(client, site, own, date))
            n_tasks = _count_tasks(client) - n_tasks
        attempt = read_attempt(site.run_folder(date)) or {}
        after = _weigh(folder)
        seconds = {stage["name"]: stage["seconds"] for stage in attempt["stages"]}
        seconds["besides"] = max(0.0, attempt["seconds"] - sum(seconds.values()))
        added = {kind: now - then for kind, now, then in zip(("bytes", "files"), after, before, strict=True)}
        nights.append({"seconds": seconds, **added, "tasks": n_tasks})
        before = after
    shutil.rmtree(folder)
    return [nights[0], _median_night(nights[1:])]


def _median_night(nights: list[dict[str, Any]]) -> dict[str, Any]:
    seconds = {
        name: statistics.median(night["seconds"].get(name, 0.0) for night in nights) for name in nights[0]["seconds"]
    }
    return {"seconds": seconds} | {
        name: statistics.median(night[name] for night in nights) for name in ("bytes", "files", "tasks")
    }


def _seconds_between(night: dict[str, Any], longer: dict[str, Any]) -> float:
    return max(0.0, sum(longer["seconds"].values()) - sum(night["seconds"].values()))


def _fit(nights: list[dict[str, Any]], start: float) -> NightFit:
    stages = {name: SizeFit.of([night["seconds"].get(name, 0.0) for night in nights]) for name in nights[0]["seconds"]}
    n_bytes, files, tasks = (SizeFit.of([night[name] for night in nights]) for name in ("bytes", "files", "tasks"))
    return NightFit(stages, n_bytes, files, tasks, start)


def _weigh(folder: Path) -> tuple[int, int]:
    """Return the bytes and the number of all files below a folder."""
    sizes = [os.stat(Path(root) / name).st_size for root, _, names in os.walk(folder) for name in names]
    return sum(sizes), len(sizes)


def _count_tasks(client: Client) -> int:
    count: int = client.run_on_scheduler(_tasks_of_plugin)
    return count


def _tasks_of_plugin(dask_scheduler: Any = None) -> int:
    plugin = dask_scheduler.plugins.get(NightPlugin.name)
    return 0 if plugin is None else int(plugin.state.tasks_done)


def workers_of(client: Client) -> list[dict[str, Any]]:
    """Return what the scheduler knows of each worker."""
    return list(client.scheduler_info(n_workers=-1)["workers"].values())
