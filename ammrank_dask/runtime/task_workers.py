"""The workers that a run of tasks has: how many tasks they may be given, whether there are any, or all are paused."""

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import dask
from dask.utils import parse_timedelta
from distributed import Client

from ammrank_dask.runtime.malloc import give_back_memory
from ammrank_dask.runtime.stop_tasks import SECONDS_BEFORE_WARNING, SECONDS_TO_ANSWER, run_on_workers
from ammrank_dask.storage.errors import AmmrankError

SECONDS_WITHOUT_WORKERS = 600.0
"""How long tasks wait when there is no worker to run them, unless `PATIENCE` of Dask's configuration says it."""
SECONDS_PAUSED = 60.0
"""The same when there are workers and all are paused for lack of memory: idle ones hardly ever free more of it."""
PATIENCE = "distributed.scheduler.no-workers-timeout"
TIME_TO_LIVE = "distributed.scheduler.worker-ttl"


class TasksInFlight(Protocol):
    """The tasks of a run that have not finished."""

    def leave(self, workers: Sequence[str]) -> None:
        """Take them from workers that do not begin them."""

    def say(self, what: str) -> None:
        """Report to people who watch."""


def say_no_workers(stage: str, seconds: float, n_paused: int = 0) -> str:
    """Return the sentence of a stage that had no worker, or only paused ones, for so long."""
    if n_paused:
        who = "its worker has" if n_paused == 1 else f"all of its {n_paused:,} workers have"
        return (
            f"stage {stage} does not go on: {who} been paused for lack of memory for {seconds:g} s; give them more, or"
            f" use more partitions, and run the command again ({PATIENCE} in the cluster file says how long to wait)"
        )
    return (
        f"stage {stage} has had no worker for {seconds:g} s: they are gone, or paused for lack of memory; start some"
        f" and run the command again ({PATIENCE} in the cluster file says how long to wait)"
    )


class TaskWorkers:
    """The workers that a run of tasks has: how many tasks they may be given, and whether there are any.

    In flight are so many tasks per thread of the workers there are, asked once a second. A cluster that grows on demand
    sees the demand for as many workers as it may have; one that does not say how many that are sees a few more than the
    threads of one worker.
    """

    def __init__(self, client: Client, stage: str, per_thread: int) -> None:
        self.client, self.stage, self.per_thread = client, stage, per_thread
        self.asked = -math.inf
        self.workers: dict[str, Mapping[str, Any]] = {}
        self.n_unseen = 0
        configured = parse_timedelta(dask.config.get(PATIENCE, None))
        self.patience = SECONDS_WITHOUT_WORKERS if configured is None else float(configured)
        self.patience_paused = SECONDS_PAUSED if configured is None else float(configured)
        self.looked = self.seen = time.monotonic()
        self.is_warned = False
        self.silent: set[str] = set()

    def width(self) -> int:
        """Return the number of tasks that may be in flight."""
        if time.monotonic() - self.asked > 1:
            self._ask()
        threads = [worker["nthreads"] for worker in self.workers.values()]
        at_most = _most_workers(self.client) * max(threads, default=1)
        return self.per_thread * max(2, sum(threads), at_most)

    def spare(self) -> int:
        """Return how many tasks more may be missing before workers run out of them: each thread keeps two."""
        return max(1, self.width() * (self.per_thread - 2) // self.per_thread)

    def _ask(self) -> None:
        self.asked = time.monotonic()
        known = self.client.scheduler_info(n_workers=-1)
        self.workers = dict(known["workers"])
        # A scheduler too busy to answer leaves what the client heard last: the number of workers, and none of them.
        self.n_unseen = known.get("n_workers", 0) - len(self.workers)

    def are_there(self) -> None:
        """Note that a task has just finished: there was a worker."""
        self.seen = time.monotonic()

    def wait_for_some(self, flight: TasksInFlight) -> None:
        """Check now and then for a worker, and raise when there was none for too long.

        Paused ones give back what they have freed, and leave tasks that they do not begin to those who do.
        """
        now = time.monotonic()
        if now - self.looked < min(SECONDS_BEFORE_WARNING, self.patience / 4):
            return
        self.looked = now
        self._ask()
        self._name_silent(flight)
        paused = [address for address, worker in self.workers.items() if _is_stuck(worker)]
        if paused:
            with contextlib.suppress(Exception):  # who does not answer stays paused
                run_on_workers(self.client, give_back_memory, timeout=SECONDS_BEFORE_WARNING, workers=paused)
        patience = self.patience_paused if paused else self.patience
        if self.n_unseen > 0 or any(map(_takes_tasks, self.workers.values())):
            self.seen, self.is_warned = now, False
            if paused:
                flight.leave(paused)
        elif not self.is_warned:  # first of all, however late it is that this is looked at
            self.is_warned = True
            state = "all of its workers are paused for lack of memory" if paused else "there is no worker now"
            flight.say(f"{state}; it waits {patience:g} s for one")
        elif now - self.seen >= patience:
            raise AmmrankError(say_no_workers(self.stage, patience, len(paused)))

    def _name_silent(self, flight: TasksInFlight) -> None:
        """Name once each worker that the scheduler has long not heard of, while it has heard of others.

        It has no thread for anything, or its host is gone. After `TIME_TO_LIVE` the scheduler gives its tasks to others
        and has its nanny kill it and start another.
        """
        heard = {address: worker["last_seen"] for address, worker in self.workers.items()}
        newest = max(heard.values(), default=0.0)
        silent = {address for address, when in heard.items() if newest - when > SECONDS_TO_ANSWER}
        for address in sorted(silent - self.silent):
            flight.say(
                f"nothing was heard of the worker at {address} for {newest - heard[address]:.0f} s; if that stays so,"
                f" its tasks go to others ({TIME_TO_LIVE} of the scheduler says when)"
            )
        self.silent = silent


def _is_stuck(worker: Mapping[str, Any]) -> bool:
    """Return whether a worker, as the scheduler describes it, is paused and is at no task."""
    return worker["status"] == "paused" and not _takes_tasks(worker)


def _takes_tasks(worker: Mapping[str, Any]) -> bool:
    """Return whether a worker, as the scheduler describes it, is at a task or would begin one."""
    return worker["status"] == "running" or bool(worker["metrics"].get("task_counts", {}).get("executing"))


def _most_workers(client: Client) -> int:
    """Return how many workers the client's cluster may grow to, 0 when it does not grow or has no limit."""
    adaptive = getattr(client.cluster, "_adaptive", None)
    maximum = getattr(adaptive, "maximum", None)
    return int(maximum) if maximum is not None and math.isfinite(maximum) else 0
