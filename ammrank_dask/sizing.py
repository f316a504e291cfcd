"""Say what nights of any size take, from four small nights that were measured: time, disk, files and tasks.

A figure of a stage is fitted as a + c · partitions + b · users, the first users more. What grows with partitions or
users is shared by the workers; the rest is done one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ammrank_dask.scoring.learn_chances import count_users

SMALL, MORE_PARTITIONS, MORE_USERS, MANY_USERS = (3_000, 8), (3_000, 16), (60_000, 8), (240_000, 8)
"""Users and partitions of the nights that are measured."""
BY_CATEGORY = frozenset({"train", "gate", "chances", "score"})
"""Stages whose work on a user grows with the number of categories."""
BY_DAY = frozenset({"ingest"})
"""Stages of a first night that grow with the days of the history."""
SHARDED = "train"
SAMPLED = "chances"
"""The stage that looks at no more users than are enough to learn from."""
SECONDS_PER_TASK = 0.0025
"""What a task costs the scheduler, which does one after the other."""


@dataclass(frozen=True)
class SizeFit:
    """A figure as `fixed` + `per_partition` · partitions + `per_user` · users, none of them below 0.

    The first users, as many as `MORE_USERS` has, take `per_first_user` more each: samples grow with small sites only.
    """

    fixed: float
    per_partition: float
    per_user: float
    per_first_user: float = 0.0

    @classmethod
    def of(cls, measured: Sequence[float]) -> SizeFit:
        """Return the fit of what was measured at `SMALL`, `MORE_PARTITIONS`, `MORE_USERS` and `MANY_USERS`.

        Examples
        --------
        >>> SizeFit.of([3_018.0, 3_026.0, 60_018.0, 240_018.0])
        SizeFit(fixed=10.0, per_partition=1.0, per_user=1.0, per_first_user=0.0)
        >>> SizeFit.of([4.0, 4.0, 61.0, 79.0]).at(users=1_000_000, partitions=20)
        155.0
        """
        small, partitions, more, many = measured
        per_partition = max(0.0, (partitions - small) / (MORE_PARTITIONS[1] - SMALL[1]))
        rest = max(0.0, many - per_partition * MANY_USERS[1])
        per_user = min(max(0.0, (many - more) / (MANY_USERS[0] - MORE_USERS[0])), rest / MANY_USERS[0])
        beyond = many - small - per_user * (MANY_USERS[0] - SMALL[0])
        per_first_user = max(0.0, beyond / (MORE_USERS[0] - SMALL[0]))
        fixed = max(0.0, rest - per_user * MANY_USERS[0] - per_first_user * MORE_USERS[0])
        return cls(fixed, per_partition, per_user, per_first_user)

    def of_users(self, users: float) -> float:
        """Return what the users take."""
        return self.per_user * users + self.per_first_user * min(users, MORE_USERS[0])

    def at(self, users: float, partitions: float) -> float:
        """Return the figure of a size."""
        return self.fixed + self.per_partition * partitions + self.of_users(users)


@dataclass(frozen=True)
class NightFit:
    """A night as it was measured: seconds by stage, bytes and files that it adds to a site, and its tasks.

    `start` are the seconds more that new workers take: they load their kernels and have no memory yet.
    """

    seconds: Mapping[str, SizeFit]
    n_bytes: SizeFit
    files: SizeFit
    tasks: SizeFit
    start: float = 0.0


@dataclass(frozen=True)
class Workload:
    """What is planned for: users, partitions, categories, days of history, and events of a user and day."""

    users: int
    partitions: int
    categories: int
    days: int
    events: float


@dataclass(frozen=True)
class Calibration:
    """What was measured: a first night and one more, on how many workers, and of which workload besides its sizes."""

    workers: int
    shards: int
    workload: Workload
    first: NightFit
    further: NightFit

    def stage_seconds(self, night: NightFit, load: Workload, workers: int) -> dict[str, tuple[float, float]]:
        """Return of each stage the seconds that are done one after the other, and those that the workers share."""
        found = {}
        busy = 1.0 if load.events <= self.workload.events else load.events / self.workload.events
        for name, fit in night.seconds.items():
            width = min(workers, load.partitions, self.shards if name == SHARDED else workers)
            days = load.days / self.workload.days if name in BY_DAY and night is self.first else 1.0
            wide = load.categories / self.workload.categories if name in BY_CATEGORY else 1.0
            users = min(load.users, count_users(load.categories)) if name == SAMPLED else load.users
            work = (fit.per_partition * load.partitions + fit.of_users(users) * busy * wide) * days
            found[name] = (fit.fixed, work * self.workers / width)
        return found

    def seconds(self, night: NightFit, load: Workload, workers: int) -> float:
        """Return how long a night takes: never less than the scheduler needs for its tasks."""
        stages = self.stage_seconds(night, load, workers).values()
        shared = max(sum(work for _, work in stages), SECONDS_PER_TASK * self.tasks(night, load))
        return night.start + sum(fixed for fixed, _ in stages) + shared

    def tasks(self, night: NightFit, load: Workload) -> int:
        """Return the tasks of a night."""
        days = load.days / self.workload.days if night is self.first else 1.0
        return math.ceil(night.tasks.at(load.users, load.partitions) * max(1.0, days))

    def disk(self, night: NightFit, load: Workload) -> int:
        """Return the bytes that a night adds to the site."""
        days = load.days / self.workload.days if night is self.first else 1.0
        busy = max(1.0, load.events / self.workload.events)
        return math.ceil(night.n_bytes.at(load.users * busy, load.partitions) * max(1.0, days))

    def files(self, night: NightFit, load: Workload) -> int:
        """Return the files that a night adds to the site; each category has one of its own in every partition."""
        wide = load.categories / self.workload.categories
        return math.ceil(night.files.fixed + night.files.per_partition * load.partitions * max(1.0, wide))

    def workers_for(self, night: NightFit, load: Workload, deadline: float) -> int | None:
        """Return the fewest workers with which a night ends in time, None when no number does."""
        if self.seconds(night, load, load.partitions) > deadline:
            return None
        low, high = 1, load.partitions
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.seconds(night, load, middle) <= deadline else (middle + 1, high)
        return low

    def most_useful_workers(self, night: NightFit, load: Workload) -> int:
        """Return the number of workers beyond which the scheduler or the partitions set the pace."""
        work = sum(shared for _, shared in self.stage_seconds(night, load, 1).values())
        by_scheduler = work / max(1e-9, SECONDS_PER_TASK * self.tasks(night, load))
        return max(1, min(load.partitions, math.floor(by_scheduler)))
