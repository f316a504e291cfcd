"""Submit block functions to a Dask cluster; `stop_tasks` and `task_workers` know the rest of scheduling."""

import collections
import functools
import itertools
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from distributed import Client, Future, KilledWorker, Reschedule, as_completed, get_worker
from distributed.scheduler import NoWorkerError

from ammrank_dask.monitor.events import Throttle, publish
from ammrank_dask.runtime.malloc import hand_back_freed
from ammrank_dask.runtime.stop_tasks import is_scheduler_gone, stop_tasks, wait_until_quiet
from ammrank_dask.runtime.task_workers import TaskWorkers, say_no_workers
from ammrank_dask.runtime.thread_tasks import Progress, batches, run_again, silent
from ammrank_dask.storage.errors import AmmrankError, BadInput

logger = logging.getLogger(__name__)

# Not the process id: drivers in containers all have the same, and a shared scheduler would take their keys for one.
_process = uuid.uuid4().hex[:12]
_run_numbers = itertools.count()

SECONDS_BEFORE_RETURN = 0.2
"""A task that a worker must not run may be given to the same worker again, and not at once."""
SUBMITTED_TOGETHER = 32
"""Tasks that go to the scheduler in one message, at most: Dask warns of messages above 10 MB."""


@runtime_checkable
class UnitProgress(Protocol):
    """A progress callback that also counts users or rows: `count` is called before it for each finished task."""

    def count(self, stage: str, units: int, unit: str) -> None:
        """Take in what the task that is done stood for."""


def driver_id() -> str:
    """Return what tells this process from all other drivers of a shared cluster."""
    return _process


def run_tasks(
    client: Client,
    stage: str,
    function: Callable[..., Any],
    arguments: Iterable[Sequence[Any]],
    *,
    progress: Progress = silent,
    in_flight_per_thread: int = 4,
    units: Sequence[int] | Callable[[Any], int] | None = None,
    unit: str = "users",
    on_result: Callable[[int, Any], None] | None = None,
    after: Sequence[int | None] | None = None,
    meanwhile: Callable[[], None] | None = None,
) -> list[Any]:
    """Run `function(*args)` on the cluster for every item of `arguments` and return the results in order.

    Only `in_flight_per_thread` tasks per worker thread are submitted at a time, so that neither the scheduler
    nor a worker's memory grows with the length of the list; some go together, for that is cheaper than one by one.
    The first exception cancels what is left and is raised here, once the workers have stopped executing all of it:
    whoever tries again shares no file with a task of this run. A task may run twice (a worker can die after its work
    is done), so `function` must write whole files under temporary names and rename them. A task whose error may pass
    is run twice more before it counts.

    Parameters
    ----------
    units, unit
        How many users, or rows of another kind, each task stands for, so that the dashboard shows rates in them:
        a number per task where that is known before, else a function of a task's result.
    on_result
        Called on the client with the index and the result of each task as it finishes, in any order, once for each.
    after
        By task the index of an earlier one that must have finished before it is submitted, None for none.
    meanwhile
        Called once, on the client, when the workers have tasks: for what need not be done before.
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
    flight = _Flight(client, stage, token, function, items)
    try:
        waiting = _Waiting(after or [None] * len(items))
        workers = TaskWorkers(client, stage, in_flight_per_thread)
        for index, result in _run(flight, workers, waiting, progress, meanwhile):
            results[index] = result
            n_units = units(result) if callable(units) else units[index] if units is not None else None
            if callable(units) and n_units is not None:
                counts.add(index, n_units)
            if n_units and isinstance(progress, UnitProgress):
                progress.count(stage, n_units, unit)
            if on_result is not None:
                on_result(index, result)
        counts.flush()
    except BaseException as error:
        publish(client, "tasks", **name, state="failed")
        stop_tasks(client, stage, token, flight.futures, is_interrupted=not isinstance(error, Exception))
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
    units: Sequence[int] | Callable[[Any], int] | None = None,
    unit: str = "users",
) -> list[Any]:
    """Run small pieces of work as `run_tasks` does, consecutive ones in one task: see `run_batches`."""
    each = functools.partial(run_each, function)
    return run_batches(client, stage, each, list(arguments), weights=weights, progress=progress, units=units, unit=unit)


def run_batches(
    client: Client,
    stage: str,
    function: Callable[[Sequence[Any]], Sequence[Any]],
    items: Sequence[Any],
    *,
    weights: Sequence[float],
    progress: Progress = silent,
    units: Sequence[int] | Callable[[Any], int] | None = None,
    unit: str = "users",
    on_result: Callable[[int, Any], None] | None = None,
) -> list[Any]:
    """Run a function that takes some consecutive items at a time and returns a result of each; return all of them.

    The weights of a task's items add up to 1 at most. Where there are many for each thread of the workers, more go into
    one task. A task costs Dask several milliseconds of CPU, here and on the worker, whatever it does. `units` is a
    number per item, or a function of its result; `on_result` is called with the index and the result of each item.
    """
    if not items:
        return []
    together = batches(range(len(items)), weights, n_at_once=TaskWorkers(client, stage, 1).width())

    def take(task: int, results: Sequence[Any]) -> None:
        if on_result is not None:
            for index, result in zip(together[task], results, strict=True):
                on_result(index, result)

    tasks = [([items[index] for index in batch],) for batch in together]
    of_tasks = _add_units(units, together)
    results = run_tasks(client, stage, function, tasks, progress=progress, units=of_tasks, unit=unit, on_result=take)
    return [result for of_task in results for result in of_task]


def _add_units(
    units: Sequence[int] | Callable[[Any], int] | None, together: Sequence[Sequence[int]]
) -> Sequence[int] | Callable[[Any], int] | None:
    """Return the units of tasks, given those of their pieces."""
    if units is None:
        return None
    if callable(units):
        return lambda results: sum(map(units, results))
    return [sum(units[index] for index in batch) for batch in together]


def run_each(function: Callable[..., Any], items: Sequence[Sequence[Any]]) -> list[Any]:
    """Run a function for every item, one after the other."""
    return [function(*item) for item in items]


def run_one(function: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Run a function: for stages whose tasks are not all of one kind."""
    return function(*args)


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


class _Flight:
    """The tasks of a run that are submitted and have not finished: `futures`, and `finished` tells which have."""

    def __init__(
        self,
        client: Client,
        stage: str,
        token: str,
        function: Callable[..., Any],
        items: list[Sequence[Any]],
    ) -> None:
        self.client, self.stage, self.token = client, stage, token
        self.function, self.items = function, items
        self.futures: set[Future] = set()
        self.finished = as_completed(loop=client.loop, with_results=True, raise_errors=False)

    def submit(self, indices: Sequence[int], n_moves: int = 0) -> None:
        """Submit tasks, for the first time or after they were taken from a worker."""
        for start in range(0, len(indices), SUBMITTED_TOGETHER):
            some = indices[start : start + SUBMITTED_TOGETHER]
            # A tuple key groups the tasks of a stage on the dashboard; the token keeps two runs apart.
            keys = [(self.stage, self.token, index, *([n_moves] if n_moves else [])) for index in some]
            arguments = [(_process, self.function, *self.items[index]) for index in some]
            futures = self.client.map(run_checked, *map(list, zip(*arguments, strict=True)), key=keys, pure=False)
            self.futures.update(futures)
            self.finished.update(futures)

    def drop(self, future: Future) -> None:
        """Forget a task that has finished."""
        self.futures.discard(future)
        future.release()

    def leave(self, workers: Sequence[str]) -> None:
        """Take the tasks of the run from workers that do not begin them, and submit them anew.

        Dask steals only from workers that have more tasks than threads. A worker that has begun one meanwhile is
        waited for: no two run a task at the same time.
        """
        # Asked for by name, a worker that has just left is an error.
        listed = [keys for address, keys in self.client.processing().items() if address in workers]
        # On its way from the scheduler a tuple may become a list.
        keys = {tuple(key) for of_worker in listed for key in of_worker if isinstance(key, tuple | list)}
        moved = [future for future in self.futures if future.key in keys]
        if not moved:
            return
        self.say(f"{len(moved)} of its tasks go from workers that are paused for lack of memory to others")
        self.futures.difference_update(moved)
        self.client.cancel(moved, reason="the worker is paused")
        wait_until_quiet(self.client, self.token, workers)
        for future in moved:
            key: Any = future.key
            self.submit([key[2]], (*key, 0)[3] + 1)

    def say(self, what: str) -> None:
        """Tell people who watch a stage, on the terminal and on the dashboard."""
        logger.warning("stage %s: %s", self.stage, what)
        publish(self.client, "note", name="workers", text=f"stage {self.stage}: {what}")


class _Waiting:
    """The tasks of a run that are not submitted: some may be, others wait for a task to finish."""

    def __init__(self, after: Sequence[int | None]) -> None:
        self.ready = collections.deque(index for index, before in enumerate(after) if before is None)
        self.blocked: dict[int, list[int]] = collections.defaultdict(list)
        for index, before in enumerate(after):
            if before is not None:
                self.blocked[before].append(index)

    def finish(self, index: int) -> None:
        """Note that a task has finished, and let those go that waited for it."""
        self.ready.extend(self.blocked.pop(index, ()))

    def take(self, n: int) -> list[int]:
        """Return so many tasks to submit, or all that may be."""
        return [self.ready.popleft() for _ in range(min(n, len(self.ready)))]


def _run(
    flight: _Flight,
    workers: TaskWorkers,
    waiting: _Waiting,
    progress: Progress,
    meanwhile: Callable[[], None] | None,
) -> Iterator[tuple[int, Any]]:
    """Yield the index and the result of every task as it finishes."""
    stage, n_items = flight.stage, len(flight.items)
    flight.submit(waiting.take(workers.width()))
    progress(stage, 0, n_items)
    if meanwhile is not None:
        meanwhile()
    for done, (future, result) in enumerate(_each_finished(flight, workers), start=1):
        if future.status != "finished":
            raise _error_of(stage, future, result)
        index = future.key[2]
        yield index, result
        progress(stage, done, n_items)
        flight.drop(future)
        waiting.finish(index)
        room = workers.width() - len(flight.futures)
        # While there is enough to do some tasks are waited for, which then go together.
        if room >= workers.spare() or len(waiting.ready) <= room:
            flight.submit(waiting.take(room))


def run_checked(owner: str, function: Callable[..., Any], *args: Any) -> Any:
    """Run a function on a worker, twice more if it ends with an error that may pass.

    Where the check of the driver `owner` found that the worker cannot be used it goes back to the scheduler, until the
    driver has the worker leave. What it has freed is handed back where memory is short.
    """
    worker = get_worker()
    for plugin in worker.plugins.values():
        if getattr(plugin, "owner", None) == owner and plugin.refusal is not None:  # type: ignore[attr-defined]
            time.sleep(SECONDS_BEFORE_RETURN)
            raise Reschedule
    try:
        return run_again(function, args)
    except (BadInput, FileNotFoundError) as error:
        _note_worker(error, worker.address)
        raise
    finally:
        hand_back_freed(worker.memory_manager.memory_limit)


def _note_worker(error: Any, address: str) -> None:
    """Let an error say where it arose: it keeps its attributes on its way to the client."""
    error.worker = address


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
        return AmmrankError(say_no_workers(stage, exception.timeout))
    if isinstance(exception, ImportError):
        return AmmrankError(
            f"a worker has not what stage {stage} needs ({exception}); install"
            " ammrank-dask in the same version everywhere"
        )
    unseen = _unseen_file(exception)
    if unseen is not None:
        return BadInput(
            f"the worker at {exception.worker} does not see {unseen}, which is there for this process;"
            " its folder must be in a file system that all workers share, under one path"
        )
    error: BaseException = exception.with_traceback(traceback)
    return error


def _unseen_file(error: Any) -> str | None:
    """Return the file or folder that a worker missed and that is there for the client, if it failed for that."""
    missing = getattr(error, "missing", None)
    if isinstance(error, FileNotFoundError):
        missing = error.filename or str(error)  # Arrow has the name in the message alone
    is_there = missing is not None and hasattr(error, "worker") and os.path.exists(missing)
    return str(missing) if is_there else None


def _each_finished(flight: _Flight, workers: TaskWorkers) -> Iterator[tuple[Any, Any]]:
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
