"""What scheduler, client and merge tree cost with many workers: a night whose kernels sleep, all else being real.

Workers that sleep leave the cores to the scheduler and the client, so one machine can have more of them than cores.
"""

from __future__ import annotations

import datetime as dt
import functools
import json
import math
import re
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from distributed import Client, Security, get_task_stream
from markupsafe import Markup

from ammrank_dask.features.store import Features, open_features
from ammrank_dask.monitor.plugin import watch_cluster
from ammrank_dask.runtime import tasks
from ammrank_dask.scoring.learn_chances import count_users
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.vocabulary import USERS_A_PARTITION
from ammrank_dask.training import driver
from ammrank_dask.training.shards import MERGE_WIDTH
from ammrank_dask.training.train import train
from ammrank_dask.workflows.operations.plan import Workload, worker_memory
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.features import training_features
from ammrank_dask.workflows.stages.ingest import ingest
from ammrank_dask.workflows.stages.nightly import nightly
from benchmarks.command_line import Option, benchmark
from benchmarks.drawing import draw_curves
from benchmarks.measure import cluster, describe_machine, make_lake, site_of
from benchmarks.nights import warm_nights
from benchmarks.processes import ProcessCluster, start_processes
from benchmarks.worker_tasks import sleep_shard, sleep_task

MEASURED_PARTITIONS, HISTORY, CATEGORIES, EVENTS = 4, 45, 50, 1.66
"""Of the night whose tasks are measured: partitions, days before it, categories, and events of a user and day."""
FIRST = dt.date(2026, 1, 5)
ROUND = re.compile(r"train-e\d+-r\d+(-merge)?$")
ALONE = ("train-sample", "train-centres", "train-first", "sample", "balance")
"""Stages of as many tasks at any size: the report balances a sample of users."""
SAMPLED, SAMPLED_PARTITIONS = ("select", "category_top_n"), 14
"""Stages of a policy that the report only shows, and in how many partitions the users are whom it counts."""
ROUNDS, BLOCK_ROWS = 2, 32
"""Rounds of the training that sleeps, and rows of its blocks: small ones, so that every shard has some."""
PAYLOAD = bytes(1_000)
"""As large as the arguments and the result of a usual task."""
PARTS = ("scheduler", "client", "workers")
CURVES = (*((10**power, USERS_A_PARTITION) for power in (6, 7, 8, 9)), (10**9, 10 * USERS_A_PARTITION))
"""Users of the sites that are planned, and users of one of their partitions."""
SECONDS_PER_TASK = 0.0025
"""What a task costs the scheduler by the model, which does one after the other."""
CURVE_WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_000)


@dataclass(frozen=True)
class TaskKind:
    """The tasks of one name: how many a partition has of them, and the seconds that one takes."""

    name: str
    per_partition: float
    seconds: float

    def count(self, partitions: int) -> int:
        """Return the number of tasks of a site."""
        if self.name in ALONE:
            partitions = MEASURED_PARTITIONS
        return math.ceil(
            self.per_partition * (min(partitions, SAMPLED_PARTITIONS) if self.name in SAMPLED else partitions)
        )

    @property
    def grows(self) -> bool:
        """Whether a larger site has more of them."""
        return self.name not in (*ALONE, *SAMPLED)


@dataclass(frozen=True)
class MeasuredNight:
    """A real night: its kinds of tasks, its rounds of training, and CPU seconds of the driver with its scheduler."""

    kinds: tuple[TaskKind, ...]
    rounds: int
    round_seconds: float
    """Seconds of one round for the rows of one partition."""
    besides: float
    partition_users: int


@dataclass(frozen=True)
class NightModel:
    """What a night of any size takes: what is done one after the other, and what the workers share."""

    shards: int
    alone: float
    per_user: Mapping[str, float]
    """Seconds of one worker for a user, by stage."""
    tasks_alone: float
    tasks_per_partition: float

    def tasks(self, load: Workload) -> int:
        """Return the tasks of a night."""
        return math.ceil(self.tasks_alone + self.tasks_per_partition * load.partitions)

    def shared_seconds(self, load: Workload, workers: int) -> float:
        """Return the seconds of what is shared; training is no wider than its shards, chances look at a sample."""
        total = 0.0
        for stage, per_user in self.per_user.items():
            width = min(workers, load.partitions, self.shards if stage == "train" else workers)
            users = min(load.users, count_users(load.categories)) if stage == "chances" else load.users
            total += per_user * users / width
        return total

    def seconds(self, load: Workload, workers: int) -> float:
        """Return how long a night takes: never less than the scheduler needs for its tasks."""
        return self.alone + max(self.shared_seconds(load, workers), SECONDS_PER_TASK * self.tasks(load))

    def most_useful_workers(self, load: Workload) -> int:
        """Return the number of workers beyond which the scheduler or the partitions set the pace."""
        by_scheduler = self.shared_seconds(load, 1) / (SECONDS_PER_TASK * self.tasks(load))
        return max(1, min(load.partitions, math.floor(by_scheduler)))


@dataclass
class StageCost:
    """What a stage took: tasks, seconds they slept in all, seconds by the clock, and CPU seconds by part."""

    name: str
    tasks: int
    asleep: float
    seconds: float
    cpu: dict[str, float]


class Meter:
    """Runs tasks, and keeps what each run took."""

    def __init__(self, processes: ProcessCluster) -> None:
        self.processes = processes
        self.stages: list[StageCost] = []

    def run(
        self, run: Callable[..., list[Any]], client: Client, stage: str, *work: Any, asleep: float = 0.0, **options: Any
    ) -> list[Any]:
        """Run tasks, as many as the last of `work` lists, each of which sleeps `asleep` seconds."""
        before, started = self.processes.cpu(), time.perf_counter()
        results = run(client, stage, *work, **options)
        seconds, after = time.perf_counter() - started, self.processes.cpu()
        used = {part: after[part] - before[part] for part in PARTS}
        n_tasks = len(work[-1])
        self.stages.append(StageCost(stage, n_tasks, asleep * n_tasks, seconds, used))
        return results


@benchmark("scale")
def run_scale(
    work: Path,
    *,
    workers: Annotated[int, Option("Worker processes.")] = 64,
    partitions: Annotated[int, Option("Partitions of the site whose night is slept.")] = 10_000,
    shards: Annotated[int, Option("Shards of its training.")] = 1_000,
    partition_users: Annotated[int, Option("Users of a partition in the night that is measured.")] = USERS_A_PARTITION,
    stages: Annotated[Sequence[str], Option("Stages to sleep, with commas between; by default all.")] | None = None,
) -> None:
    """Print what scheduler, client and merges cost when many workers sleep the measured time of a night's tasks.

    A night with training is measured on two workers. Then its stages are run for a site of many partitions by workers
    whose tasks only sleep so long, and two rounds of training whose shards sleep, and whose merges are real. Beside it
    stands what a model of the night says. The night is kept below `work`, and taken from there the next time.
    Writes `scale.json` and `scale.svg`.
    """
    night, features = _kept_night(work, partition_users) or measure_night(work, partition_users)
    slept = replace(night, kinds=choose_kinds(night.kinds, stages))
    print(f"\na night asleep, {partitions:,} partitions, {shards:,} shards, {workers} processes; {describe_machine()}")
    print(f"  {'':22} {'tasks':>8} {'asleep':>8} {'clock':>8} {'ideal':>8}   CPU ms a task: scheduler, client, worker")
    meter, memory = sleep_night(work, slept, features, workers=workers, partitions=partitions, shards=shards)
    model = model_night(slept, shards, rounds=ROUNDS, besides=0.0)
    load = workload_of(partitions * partition_users, partitions)
    measured = sum(stage.seconds for stage in meter.stages)
    n_tasks = sum(stage.tasks for stage in meter.stages)
    whole = model_night(night, shards, rounds=night.rounds, besides=night.besides)
    results = {
        "machine": describe_machine(),
        "workers": workers,
        "partitions": partitions,
        "shards": shards,
        "memory": memory,
        "night": asdict(night),
        "stages": [asdict(stage) for stage in meter.stages],
        "tasks": n_tasks,
        "seconds": measured,
        "cpu": {part: sum(stage.cpu[part] for stage in meter.stages) for part in PARTS},
        "planned": model.seconds(load, workers),
        "curves": [plan_site(whole, users, per_partition) for users, per_partition in CURVES],
    }
    (work / "scale.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (work / "scale.svg").write_text(str(draw_scale(results)) + "\n", encoding="utf-8")
    _print(results)


def choose_kinds(kinds: Sequence[TaskKind], stages: Sequence[str] | None) -> tuple[TaskKind, ...]:
    """Return the kinds of tasks of some stages, or all."""
    strange = sorted(set(stages or ()) - {kind.name for kind in kinds})
    if strange:
        raise BadInput(f"the night has no stage {strange[0]}; it has {', '.join(kind.name for kind in kinds)}")
    return tuple(kind for kind in kinds if stages is None or kind.name in stages)


def workload_of(users: int, partitions: int) -> Workload:
    """Return a site of the world that was measured, with so many users and partitions."""
    return Workload(users, partitions, CATEGORIES, HISTORY, EVENTS)


def plan_site(model: NightModel, users: int, per_partition: int) -> dict[str, Any]:
    """Return what the model says about a site: seconds by workers, and where more gain nothing."""
    load = workload_of(users, math.ceil(users / per_partition))
    return {
        "users": users,
        "per_partition": per_partition,
        "tasks": model.tasks(load),
        "seconds": {count: model.seconds(load, count) for count in CURVE_WORKERS},
        "most_workers": model.most_useful_workers(load),
        "worker_bytes": worker_memory(load, Config()),
    }


def measure_night(work: Path, partition_users: int) -> tuple[MeasuredNight, Features]:
    """Run a night that trains, after one that filled in the history, and return its tasks and its labelled rows."""
    users = MEASURED_PARTITIONS * partition_users
    lake, folder = work / f"scale-lake-{users}", _site_folder(work, partition_users)
    shutil.rmtree(folder, ignore_errors=True)
    with cluster(2) as client:
        make_lake(client, lake, users=users, days=HISTORY + 1)
        warm_nights(client, work)
        site, config = site_of(folder, lake, users)
        every_night = config.train.model_copy(update={"every_nights": 1})
        config = config.model_copy(update={"partitions": MEASURED_PARTITIONS, "train": every_night})
        nightly(Night(client, site, config, FIRST + dt.timedelta(HISTORY - 1)))
        night = Night(client, site, config, FIRST + dt.timedelta(HISTORY))
        started = time.process_time()
        with get_task_stream(client) as stream:
            nightly(night)
        besides = time.process_time() - started
        labelled = training_features(night, ingest(night))
    measured = describe_night(stream.data, besides, partition_users)
    _night_file(work, partition_users).write_text(json.dumps(asdict(measured) | {"rows": labelled.path.name}) + "\n")
    return measured, open_features(labelled.path)


def _night_file(work: Path, partition_users: int) -> Path:
    return work / f"scale-night-{partition_users}.json"


def _site_folder(work: Path, partition_users: int) -> Path:
    return work / f"scale-site-{partition_users}"


def _kept_night(work: Path, partition_users: int) -> tuple[MeasuredNight, Features] | None:
    """Return the night that an earlier run has measured, if its site is there, too."""
    try:
        kept = json.loads(_night_file(work, partition_users).read_text())
        features = open_features(_site_folder(work, partition_users) / "features" / kept.pop("rows"))
    except (FileNotFoundError, BadInput):
        return None
    kinds = tuple(TaskKind(**kind) for kind in kept.pop("kinds"))
    return MeasuredNight(kinds=kinds, **kept), features


def describe_night(stream: Iterable[Mapping[str, Any]], besides: float, partition_users: int) -> MeasuredNight:
    """Return a night from what Dask says about its tasks, and the CPU seconds of its driver."""
    spent: dict[str, list[float]] = defaultdict(list)
    for task in stream:
        if isinstance(task["key"], tuple):  # else it asks a worker for its memory, and is none of a stage
            computed = [span["stop"] - span["start"] for span in task["startstops"] if span["action"] == "compute"]
            spent[task["key"][0]].append(sum(computed))
    rounds = {name: sum(times) for name, times in spent.items() if ROUND.match(name) and not name.endswith("-merge")}
    kinds = tuple(
        TaskKind(name, len(times) / MEASURED_PARTITIONS, sum(times) / len(times))
        for name, times in spent.items()
        if not ROUND.match(name)
    )
    per_round = sum(rounds.values()) / len(rounds) / MEASURED_PARTITIONS
    return MeasuredNight(kinds, len(rounds), per_round, besides, partition_users)


def sleep_night(
    work: Path, night: MeasuredNight, features: Features, *, workers: int, partitions: int, shards: int
) -> tuple[Meter, dict[str, int]]:
    """Run the stages of a night for so many partitions, and rounds of training, on workers that sleep.

    The scheduler has the plugin of the page and TLS, as a cluster that `ammrank` joins.
    """
    per_shard = night.round_seconds * partitions / shards
    with start_processes(workers, security=Security.temporary()) as processes:
        client, meter = processes.client, Meter(processes)
        watch_cluster(client)
        tasks.run_tasks(client, "warm", sleep_task, [(0.01, PAYLOAD)] * 2 * workers)
        for kind in night.kinds:
            arguments = [(kind.seconds, PAYLOAD)] * kind.count(partitions)
            meter.run(tasks.run_tasks, client, kind.name, sleep_task, arguments, asleep=kind.seconds)
            print(_row(meter.stages[-1], workers), flush=True)
        rounds = _train_asleep(work, processes, features, per_shard, shards)
        meter.stages += rounds.stages
        for stage in rounds.stages:
            print(_row(stage, workers), flush=True)
        return meter, processes.memory()


def _train_asleep(work: Path, processes: ProcessCluster, features: Features, per_shard: float, shards: int) -> Meter:
    """Train for one epoch with shards that sleep, and return what its rounds took, shards and merges apart."""
    meter = Meter(processes)

    asleep = functools.partial(sleep_shard, per_shard)
    before = driver.train_shard, driver.run_calls, driver.run_tasks
    driver.train_shard = asleep  # type: ignore[assignment]
    driver.run_calls = functools.partial(meter.run, tasks.run_calls, asleep=per_shard)  # rounds, and nothing else
    driver.run_tasks = functools.partial(meter.run, tasks.run_tasks)
    try:
        train(
            features, client=processes.client, shards=shards, rounds_per_epoch=ROUNDS, block_rows=BLOCK_ROWS, epochs=1,
            scratch=work,
        )  # fmt: skip
    finally:
        driver.train_shard, driver.run_calls, driver.run_tasks = before
    meter.stages = [stage for stage in meter.stages if ROUND.match(stage.name)]
    return meter


def model_night(night: MeasuredNight, shards: int, *, rounds: int, besides: float) -> NightModel:
    """Return the model of a night from what was measured of its tasks."""
    growing = [kind for kind in night.kinds if kind.grows]
    others = [kind for kind in night.kinds if not kind.grows]
    per_user = {kind.name: kind.per_partition * kind.seconds / night.partition_users for kind in growing}
    return NightModel(
        shards,
        besides + sum(kind.count(MEASURED_PARTITIONS) * kind.seconds for kind in others),
        {**per_user, "train": rounds * night.round_seconds / night.partition_users},
        sum(kind.count(SAMPLED_PARTITIONS) for kind in others) + rounds * (shards + count_merges(shards)),
        sum(kind.per_partition for kind in growing),
    )


def count_merges(shards: int) -> int:
    """Return the tasks of one merge: a tree, and the one that closes the round.

    Examples
    --------
    >>> count_merges(8), count_merges(9), count_merges(1_000)
    (1, 3, 144)
    """
    count, left = 1, shards
    while left > MERGE_WIDTH:
        left = math.ceil(left / MERGE_WIDTH)
        count += left
    return count


def draw_scale(results: dict[str, Any]) -> Markup:
    """Return the seconds of a night against workers by the model, and the night that was slept as a point."""
    curves = [
        (
            f"{site['users']:,} in {site['per_partition']:,}s",
            [(int(count), value) for count, value in site["seconds"].items()],
        )
        for site in results["curves"]
    ]
    slept = results["partitions"] * results["night"]["partition_users"]
    planned, measured = ([(results["workers"], results[key])] for key in ("planned", "seconds"))
    curves += [(f"{slept:,}, by the model", planned), (f"{slept:,}, asleep", measured)]
    return draw_curves(
        curves, title="A night that trains, against workers, by the model", x="workers", y="seconds",
        note=results["machine"],
    )  # fmt: skip


def _print(results: dict[str, Any]) -> None:
    n_tasks = results["tasks"]
    used = ", ".join(f"{part} {1e3 * results['cpu'][part] / n_tasks:.2f}" for part in PARTS)
    print(f"  {n_tasks:,} tasks, {results['seconds']:.1f} s; CPU ms a task: {used}")
    limit = n_tasks / max(results["cpu"]["scheduler"], results["cpu"]["client"])
    print(f"  scheduler and client can do {limit:,.0f} tasks a second (the model: {1 / SECONDS_PER_TASK:,.0f})")
    memory = ", ".join(f"{part} {size / 2**20:,.0f}" for part, size in results["memory"].items())
    print(f"  MiB at the end: {memory} of its own")
    ratio = results["planned"] / results["seconds"]
    print(f"  by the model {results['planned']:.1f} s, ratio {ratio:.2f}")
    print("  a night that trains, by the model: most workers that gain something, and seconds by the number of workers")
    print(f"  {'users':>13} {'a partition':>11} {'tasks':>9} {'MiB':>6} {'most':>6}", end=" ")
    print("".join(f"{count:>8,}" for count in CURVE_WORKERS))
    for site in results["curves"]:
        sizes = (
            f"{site['users']:13,} {site['per_partition']:11,} {site['tasks']:9,} {site['worker_bytes'] / 2**20:6,.0f}"
        )
        print(f"  {sizes} {site['most_workers']:6,} " + "".join(f"{value:8,.0f}" for value in site["seconds"].values()))


def _row(stage: StageCost, workers: int) -> str:
    used = " ".join(f"{1e3 * stage.cpu[part] / stage.tasks:6.2f}" for part in PARTS)
    asleep = f"{stage.asleep / stage.tasks:7.3f}s"
    return f"  {stage.name:22} {stage.tasks:8,} {asleep} {stage.seconds:7.1f}s {stage.asleep / workers:7.1f}s   {used}"
