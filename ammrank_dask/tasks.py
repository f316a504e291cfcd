"""Submit block functions to a Dask cluster: all that this package knows about scheduling is here."""

import contextlib
import ctypes
import gc
import itertools
import logging
import math
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import dask
import pyarrow as pa
from dask.utils import parse_timedelta
from distributed import Client, Future, KilledWorker, Worker, as_completed, get_worker
from distributed.scheduler import NoWorkerError

from ammrank_dask.monitor.events import Throttle, publish
from ammrank_dask.storage.errors import AmmrankError, BadInput
from ammrank_dask.storage.store.retried import is_passing

logger = logging.getLogger(__name__)

Item = TypeVar("Item")

Progress = Callable[[str, int, int], None]
"""Called with (stage, tasks done, tasks in all) on the client after every finished task."""

# Not the process id: drivers in containers all have the same, and a shared scheduler would take their keys for one.
_process = uuid.uuid4().hex[:12]
_run_numbers = itertools.count()

SECONDS_BEFORE_TRIES = (0.1, 1.0)
"""A task whose error `is_passing` is run again after so long: single operations on files were tried again before."""
SECONDS_TO_STOP = 600.0
"""How long a failed run waits for its tasks that are still executing."""
SECONDS_TO_STOP_WHEN_INTERRUPTED = 5.0
"""The same after Ctrl-C or SIGTERM: whoever sent it waits, and the command may be killed soon."""
SECONDS_TO_ANSWER = 30.0
"""How long workers may say nothing about their tasks before they are given up."""
SECONDS_WITHOUT_WORKERS = 600.0
"""How long tasks wait when there is no worker to run them, unless `PATIENCE` of Dask's configuration says it."""
SECONDS_PAUSED = 60.0
"""The same when there are workers and all are paused for lack of memory: idle ones hardly ever free more of it."""
PATIENCE = "distributed.scheduler.no-workers-timeout"
SECONDS_BEFORE_WARNING = 5.0
_PAUSE = 0.1
_NOT_RUNNING = ("memory", "error", "released", "forgotten")


@runtime_checkable
class UnitProgress(Protocol):
    """A progress callback that also counts users or rows: `count` is called before it for each finished task."""

    def count(self, stage: str, units: int, unit: str) -> None:
        """Take in what the task that is done stood for."""


def driver_id() -> str:
    """Return what tells this process from all other drivers of a shared cluster."""
    return _process


def is_scheduler_gone(client: Client) -> bool:
    """Tell whether the client has given up on its scheduler: whatever fails then fails for that reason."""
    return client.status in ("closing", "closed")


def silent(stage: str, done: int, total: int) -> None:
    """Report no progress."""


def run_tasks(
    client: Client,
    stage: str,
    function: Callable[..., Any],
    arguments: Iterable[Sequence[Any]],
    *,
    progress: Progress = silent,
    in_flight_per_thread: int = 2,
    units: Sequence[int] | Callable[[Any], int] | None = None,
    unit: str = "users",
    on_result: Callable[[int, Any], None] | None = None,
) -> list[Any]:
    """Run `function(*args)` on the cluster for every item of `arguments` and return the results in order.

    Only `in_flight_per_thread` tasks per worker thread are submitted at a time, so that neither the scheduler
    nor a worker's memory grows with the length of the list. The first exception cancels what is left and is
    raised here, once the workers have stopped executing all of it: whoever tries again shares no file with a task
    of this run. A task may run twice (a worker can die after its work is done), so `function` must write whole
    files under temporary names and rename them. A task whose error may pass is run twice more before it counts.

    Parameters
    ----------
    units, unit
        How many users, or rows of another kind, each task stands for, so that the dashboard shows rates in them:
        a number per task where that is known before, else a function of a task's result.
    on_result
        Called on the client with the index and the result of each task as it finishes, in any order, once for each.
    """
    items = list(arguments)
    known = None if callable(units) else units
    if known is not None and len(known) != len(items):
        raise ValueError(f"units must have one number per task ({len(items)}), got {len(known)}")
    results: list[Any] = [None] * len(items)
    if not items:
        return results
    token = f"{_process}-{next(_run_numbers):x}"
    name = {"name": stage, "token": token}
    publish(
        client,
        "tasks",
        **name,
        state="begin",
        total=len(items),
        unit=unit,
        units=known,
        counted=callable(units) or None,
    )
    counts = _Counts(client, token)
    futures: set[Future] = set()
    try:
        for index, result in _run(client, stage, token, function, items, futures, progress, in_flight_per_thread):
            results[index] = result
            n_units = units(result) if callable(units) else units[index] if units is not None else None
            if callable(units) and n_units is not None:
                counts.add(index, n_units)
            if n_units is not None and isinstance(progress, UnitProgress):
                progress.count(stage, n_units, unit)
            if on_result is not None:
                on_result(index, result)
        counts.flush()
    except BaseException as error:
        publish(client, "tasks", **name, state="failed")
        _stop(client, stage, token, futures, is_interrupted=not isinstance(error, Exception))
        if isinstance(error, Exception) and is_scheduler_gone(client):
            raise AmmrankError(f"the scheduler is gone since stage {stage}; run the command again to go on") from None
        raise
    publish(client, "tasks", **name, state="end")
    return results


def run_together(
    client: Client,
    stage: str,
    function: Callable[..., Any],
    arguments: Iterable[Sequence[Any]],
    *,
    weights: Sequence[float],
    progress: Progress = silent,
    units: Callable[[Any], int] | None = None,
    unit: str = "users",
) -> list[Any]:
    """Run small pieces of work as `run_tasks` does, consecutive ones in one task until their weights add up to 1.

    A task costs Dask several milliseconds of CPU, whatever it does. `units` is a function of one piece's result.
    """
    count = None if units is None else (lambda results: sum(map(units, results)))
    tasks = [(function, batch) for batch in batches(list(arguments), weights)]
    results = run_tasks(client, stage, run_each, tasks, progress=progress, units=count, unit=unit)
    return [result for of_task in results for result in of_task]


def batches(items: Sequence[Item], weights: Sequence[float]) -> list[list[Item]]:
    """Return consecutive items in batches whose weights add up to at most 1, or of one item.

    Examples
    --------
    >>> batches("abcd", [0.5, 0.5, 0.2, 3])
    [['a', 'b'], ['c'], ['d']]
    """
    found: list[list[Item]] = []
    room = 0.0
    for item, weight in zip(items, weights, strict=True):
        if weight > room or not found:
            found.append([])
            room = 1.0
        found[-1].append(item)
        room -= weight
    return found


def run_each(function: Callable[..., Any], items: Sequence[Sequence[Any]]) -> list[Any]:
    """Run a function for every item, one after the other."""
    return [function(*item) for item in items]


def _stop(client: Client, stage: str, token: str, futures: set[Future], *, is_interrupted: bool) -> None:
    """Cancel the tasks of a run, and wait until no worker executes one of them or has one waiting.

    What a thread of a worker is at goes on after it was cancelled. The workers themselves are asked, for the scheduler
    forgets cancelled tasks at once. They are asked twice, because the message that cancels is sent on its own way: the
    first answer shows that the scheduler has got it, and soon after the workers have got it too.
    """
    if is_scheduler_gone(client):
        return
    with contextlib.suppress(Exception):  # the error that ended the run is the one to raise
        client.cancel(list(futures), reason="the run of the stage has ended early")
    end = time.monotonic() + (SECONDS_TO_STOP_WHEN_INTERRUPTED if is_interrupted else SECONDS_TO_STOP)
    warning = time.monotonic() + SECONDS_BEFORE_WARNING
    give_up = time.monotonic() + SECONDS_TO_ANSWER
    n_quiet = 0
    while n_quiet < 2 and not is_scheduler_gone(client):
        n_tasks, is_answered = _count_tasks(client, token, timeout=min(end, give_up) - time.monotonic())
        now = time.monotonic()
        if is_answered:
            give_up = now + SECONDS_TO_ANSWER
        n_quiet = n_quiet + 1 if is_answered and not n_tasks else 0
        is_over = now >= min(end, give_up)
        if not n_quiet and (is_over or now >= warning):
            state = f"{n_tasks} of its tasks still run" if n_tasks else "workers do not say whether its tasks still run"
            does = "does not wait for them any longer" if is_over else "waits until they have stopped"
            # Who interrupts a command knows that it ends early, and most often the workers end with it.
            level = logging.INFO if is_interrupted else logging.WARNING
            logger.log(level, "stage %s ended early and %s; it %s", stage, state, does)
            warning = math.inf
        if is_over:
            return
        time.sleep(10 * _PAUSE if n_tasks and warning == math.inf else _PAUSE)


def _count_tasks(
    client: Client, token: str, *, timeout: float, workers: Sequence[str] | None = None
) -> tuple[int, bool]:
    """Return how many tasks of a run the workers, or some of them, have, and whether all of them answered in time."""
    try:
        answers = _ask_all(client, count_worker_tasks, token, timeout=timeout, workers=workers)
    except Exception:  # of the client, the network or the scheduler: there is no answer
        return 0, False
    counts = [answer for answer in answers.values() if isinstance(answer, int)]
    return sum(counts), len(counts) == len(answers)


def _ask_all(
    client: Client, function: Callable[..., Any], *args: Any, timeout: float, workers: Sequence[str] | None
) -> dict[str, Any]:
    """Return what a function returns on each worker, or the error there."""
    # Called on the loop of the client, `run` returns an awaitable, for which there can be a time limit.
    answers: dict[str, Any] = client.sync(
        client.run,
        function,
        *args,
        workers=None if workers is None else list(workers),
        on_error="return",
        callback_timeout=max(timeout, _PAUSE),
    )
    return answers


def count_worker_tasks(token: str, dask_worker: Worker) -> int:
    """Return how many tasks of a run the worker executes, cancelled or not, or is about to."""
    state = dask_worker.state
    running = state.all_running_tasks
    return sum(
        task in running or task.state not in _NOT_RUNNING
        for key, task in state.tasks.items()
        if isinstance(key, tuple) and key[1:2] == (token,)
    )


class _Counts:
    """Units of finished tasks on their way to the dashboard, one message a second."""

    def __init__(self, client: Client, token: str) -> None:
        self.client = client
        self.token = token
        self.found: list[tuple[int, int]] = []
        self.throttle = Throttle()

    def add(self, index: int, count: int) -> None:
        """Keep the count of a task, and send all that are kept when it is time."""
        self.found.append((index, int(count)))
        if self.throttle.is_open():
            self.flush()

    def flush(self) -> None:
        """Send what is kept."""
        if self.found:
            publish(self.client, "units", token=self.token, counts=self.found)
            self.found = []


def _run(
    client: Client,
    stage: str,
    token: str,
    function: Callable[..., Any],
    items: list[Sequence[Any]],
    futures: set[Future],
    progress: Progress,
    in_flight_per_thread: int,
) -> Iterator[tuple[int, Any]]:
    """Yield the index and the result of every task as it finishes; `futures` are those that have not yet."""
    waiting = iter(range(len(items)))
    flight = _Flight(client, stage, token, function, items, futures)
    workers = _Workers(client, stage, in_flight_per_thread)
    n_submitted = 0
    while n_submitted < min(workers.width(), len(items)):
        flight.submit(next(waiting))
        n_submitted += 1
    progress(stage, 0, len(items))
    for done, (future, result) in enumerate(_each_finished(flight, workers), start=1):
        if future.status != "finished":
            raise _error_of(stage, future, result)
        yield future.key[2], result
        progress(stage, done, len(items))
        flight.drop(future)
        while n_submitted < min(done + workers.width(), len(items)):
            flight.submit(next(waiting))
            n_submitted += 1


class _Flight:
    """The tasks of a run that are submitted and have not finished: `futures`, and `finished` tells which have."""

    def __init__(
        self,
        client: Client,
        stage: str,
        token: str,
        function: Callable[..., Any],
        items: list[Sequence[Any]],
        futures: set[Future],
    ) -> None:
        self.client, self.stage, self.token = client, stage, token
        self.function, self.items, self.futures = function, items, futures
        self.finished = as_completed(loop=client.loop, with_results=True, raise_errors=False)

    def submit(self, index: int, n_moves: int = 0) -> None:
        """Submit a task, for the first time or after it was taken from a worker."""
        # A tuple key groups the tasks of a stage on the dashboard; the token keeps two runs apart.
        key = (self.stage, self.token, index, *([n_moves] if n_moves else []))
        future = self.client.submit(run_checked, _process, self.function, *self.items[index], key=key, pure=False)
        self.futures.add(future)
        self.finished.add(future)

    def drop(self, future: Future) -> None:
        """Forget a task that has finished."""
        self.futures.discard(future)
        future.release()

    def leave(self, workers: Sequence[str]) -> None:
        """Take the tasks of the run from workers that do not begin them, and submit them anew.

        Dask steals only from workers that have more tasks than threads. A worker that has begun one meanwhile is
        waited for: no two run a task at the same time.
        """
        listed = self.client.processing(workers=list(workers))
        keys = {tuple(key) for of_worker in listed.values() for key in of_worker if isinstance(key, tuple | list)}
        moved = [future for future in self.futures if future.key in keys]
        if not moved:
            return
        self.say(f"{len(moved)} of its tasks go from workers that are paused for lack of memory to others")
        self.futures.difference_update(moved)
        self.client.cancel(moved, reason="the worker is paused")
        _wait_until_quiet(self.client, self.token, workers)
        for future in moved:
            key: Any = future.key
            self.submit(key[2], (*key, 0)[3] + 1)

    def say(self, what: str) -> None:
        """Tell people who watch a stage, on the terminal and on the dashboard."""
        logger.warning("stage %s: %s", self.stage, what)
        publish(self.client, "note", name="workers", text=f"stage {self.stage}: {what}")


def _wait_until_quiet(client: Client, token: str, workers: Sequence[str]) -> None:
    """Wait until some workers have no task of a run, or do not answer any more."""
    give_up = time.monotonic() + SECONDS_TO_ANSWER
    n_quiet = 0
    while n_quiet < 2 and time.monotonic() < give_up and not is_scheduler_gone(client):
        n_tasks, is_answered = _count_tasks(client, token, timeout=SECONDS_TO_ANSWER, workers=workers)
        if is_answered:
            give_up = time.monotonic() + SECONDS_TO_ANSWER
        n_quiet = n_quiet + 1 if is_answered and not n_tasks else 0
        time.sleep(_PAUSE)


def run_checked(owner: str, function: Callable[..., Any], *args: Any) -> Any:
    """Run a function on a worker, twice more if it ends with an error that may pass.

    It does not run where the check of the driver `owner` found that the worker cannot be used.
    """
    for plugin in get_worker().plugins.values():
        if getattr(plugin, "owner", None) == owner and plugin.refusal is not None:  # type: ignore[attr-defined]
            raise BadInput(plugin.refusal)  # type: ignore[attr-defined]
    for pause in SECONDS_BEFORE_TRIES:
        try:
            return function(*args)
        except Exception as error:
            if not is_passing(error):
                raise
            logger.warning("a task failed with %s and is run again", type(error).__name__)
        time.sleep(pause)
    return function(*args)


def _error_of(stage: str, future: Future, result: Any) -> BaseException:
    """Return what to raise for a task that failed."""
    if future.status == "cancelled":
        return AmmrankError(f"a task of stage {stage} was cancelled; run the command again")
    _, exception, traceback = result
    if isinstance(exception, KilledWorker):
        return AmmrankError(
            f"workers died again and again at stage {stage}, probably for lack of memory;"
            " give them more, or use more partitions"
        )
    if isinstance(exception, NoWorkerError):  # the scheduler has the same patience
        return AmmrankError(_say_no_workers(stage, exception.timeout))
    if isinstance(exception, ImportError):
        return AmmrankError(
            f"a worker has not what stage {stage} needs ({exception}); install"
            " ammrank-dask in the same version everywhere"
        )
    error: BaseException = exception.with_traceback(traceback)
    return error


def _say_no_workers(stage: str, seconds: float, n_paused: int = 0) -> str:
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


def _each_finished(flight: _Flight, workers: "_Workers") -> Iterator[tuple[Any, Any]]:
    """Yield futures with their results as they finish.

    A task that is submitted while the scheduler dies is never reported, so the client is looked at while waiting. Nor
    is one that no worker is left for, or that waits at one that is paused.
    """
    finished = flight.finished
    while flight.futures:
        if finished.has_ready():
            workers.are_there()
            future, result = next(finished)
            if future in flight.futures:  # else it was taken from a worker and cancelled
                yield future, result
        elif is_scheduler_gone(flight.client):
            raise AmmrankError("the scheduler is gone")
        else:
            workers.wait_for_some(flight)
            with finished.thread_condition:
                finished.thread_condition.wait(timeout=0.1)


class _Workers:
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

    def width(self) -> int:
        """Return the number of tasks that may be in flight."""
        if time.monotonic() - self.asked > 1:
            self._ask()
        threads = [worker["nthreads"] for worker in self.workers.values()]
        at_most = _most_workers(self.client) * max(threads, default=1)
        return self.per_thread * max(2, sum(threads), at_most)

    def _ask(self) -> None:
        self.asked = time.monotonic()
        known = self.client.scheduler_info(n_workers=-1)
        self.workers = dict(known["workers"])
        # A scheduler too busy to answer leaves what the client heard last: the number of workers, and none of them.
        self.n_unseen = known.get("n_workers", 0) - len(self.workers)

    def are_there(self) -> None:
        """Note that a task has just finished: there was a worker."""
        self.seen = time.monotonic()

    def wait_for_some(self, flight: _Flight) -> None:
        """Look now and then whether there is a worker, and raise when there was none for too long.

        Paused ones give back what they have freed, and leave tasks that they do not begin to those who do.
        """
        now = time.monotonic()
        if now - self.looked < min(SECONDS_BEFORE_WARNING, self.patience / 4):
            return
        self.looked = now
        self._ask()
        paused = [address for address, worker in self.workers.items() if _is_stuck(worker)]
        if paused:
            with contextlib.suppress(Exception):  # who does not answer stays paused
                _ask_all(self.client, give_back_memory, timeout=SECONDS_BEFORE_WARNING, workers=paused)
        patience = self.patience_paused if paused else self.patience
        if self.n_unseen > 0 or any(map(_takes_tasks, self.workers.values())):
            self.seen, self.is_warned = now, False
            if paused:
                flight.leave(paused)
        elif now - self.seen >= patience:
            raise AmmrankError(_say_no_workers(self.stage, patience, len(paused)))
        elif not self.is_warned:
            self.is_warned = True
            state = "all of its workers are paused for lack of memory" if paused else "there is no worker now"
            flight.say(f"{state}; it waits {patience:g} s for one")


def give_back_memory() -> None:
    """Return what the process has freed to the system, so that a worker that was paused may go on."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    with contextlib.suppress(OSError, AttributeError):  # another C library than GNU's
        ctypes.CDLL(None).malloc_trim(0)


def _is_stuck(worker: Mapping[str, Any]) -> bool:
    """Tell whether a worker, as the scheduler describes it, is paused and is at no task."""
    return worker["status"] == "paused" and not _takes_tasks(worker)


def _takes_tasks(worker: Mapping[str, Any]) -> bool:
    """Tell whether a worker, as the scheduler describes it, is at a task or would begin one."""
    return worker["status"] == "running" or bool(worker["metrics"].get("task_counts", {}).get("executing"))


def _most_workers(client: Client) -> int:
    """Return how many workers the client's cluster may grow to, 0 when it does not grow or has no limit."""
    adaptive = getattr(client.cluster, "_adaptive", None)
    maximum = getattr(adaptive, "maximum", None)
    return int(maximum) if maximum is not None and math.isfinite(maximum) else 0
