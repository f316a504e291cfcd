"""Submit block functions to a Dask cluster; `stop_tasks` and `task_workers` know the rest of scheduling."""

import contextlib
import itertools
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from distributed import Client, Future, KilledWorker, Reschedule, as_completed, get_worker
from distributed.scheduler import NoWorkerError

from ammrank_dask.monitor.events import Throttle, publish
from ammrank_dask.runtime.malloc import hand_back_freed
from ammrank_dask.runtime.stop_tasks import SECONDS_TO_STOP, is_scheduler_gone, running_tasks, stop_tasks
from ammrank_dask.runtime.task_workers import TaskWorkers, say_no_workers
from ammrank_dask.runtime.thread_tasks import Progress, batches, silent
from ammrank_dask.storage.errors import AmmrankError, BadInput
from ammrank_dask.storage.objects.folders import is_there
from ammrank_dask.storage.objects.retry import tried_again

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


Call = tuple[Callable[..., Any], Sequence[Any]]
"""A function, and its arguments."""
Units = Sequence[int] | Callable[[Any], int]


def run_tasks(
    client: Client | None,
    stage: str,
    function: Callable[..., Any],
    arguments: Iterable[Sequence[Any]],
    *,
    progress: Progress = silent,
    in_flight_per_thread: int = 4,
    units: Units | None = None,
    unit: str = "users",
    on_result: Callable[[int, Any], None] | None = None,
) -> list[Any]:
    """Run `function(*args)` on the cluster for every item of `arguments` and return the results in order.

    See `run_calls`; here every call is a task of its own. `on_result` is called on the client with the index and the
    result of each task as it finishes, in any order, once for each. Without a client the calls are made here, one after
    the other, as a part of the task that makes them.
    """
    if client is None:
        return [function(*args) for args in arguments]
    tasks = [_Task((index,), [(function, args)]) for index, args in enumerate(arguments)]
    return _Flight(client, stage, tasks, in_flight_per_thread).run(progress, units, unit, on_result)


def run_calls(
    client: Client,
    stage: str,
    calls: Sequence[Sequence[Call]],
    *,
    progress: Progress = silent,
    in_flight_per_thread: int = 4,
    units: Units | None = None,
    unit: str = "users",
    on_result: Callable[[int, Any], None] | None = None,
    after: Sequence[int | None] | None = None,
    meanwhile: Callable[[], None] | None = None,
) -> list[Any]:
    """Run the calls on the cluster, those of a list one after the other in one task, and return the results in order.

    Only `in_flight_per_thread` tasks per worker thread are submitted at a time, so that neither the scheduler nor a
    worker's memory grows with the length of the list; some go together, for that is cheaper than one by one. The
    first exception cancels what is left and is raised here, once the workers have stopped executing all of it:
    whoever tries again shares no file with a task of this run. A call may run twice (a worker can die after its
    work is done), so functions must write whole files under temporary names and rename them. A call whose error may
    pass is made twice more before it counts.

    Parameters
    ----------
    units, unit
        How many users, or rows of another kind, each call stands for, so that the dashboard shows rates in them:
        a number per call where that is known before, else a function of its result.
    on_result
        Called on the client with the number and the result of each call as it is there, in any order, once for each.
    after
        By task the index of an earlier one that must have finished before it is submitted, None for none.
    meanwhile
        Called once, on the client, when the workers have tasks: for what need not be done before.
    """
    numbers = itertools.count()
    tasks = [_Task([next(numbers) for _ in of_task], of_task) for of_task in calls]
    return _Flight(client, stage, tasks, in_flight_per_thread, after).run(progress, units, unit, on_result, meanwhile)


def count_at_once(client: Client) -> int:
    """Return how many tasks the workers do at a time: one a thread."""
    return TaskWorkers(client, "count", 1).width()


def run_together(
    client: Client,
    stage: str,
    calls: Sequence[Call],
    *,
    weights: Sequence[float] | None = None,
    progress: Progress = silent,
    units: Units | None = None,
    unit: str = "users",
    on_result: Callable[[int, Any], None] | None = None,
) -> list[Any]:
    """Run calls as `run_calls` does, consecutive ones in one task: see `run_batches`.

    Without weights they are of a partition each, and go together where there are many for each thread of the workers.
    """
    weights = [1.0] * len(calls) if weights is None else weights
    together = batches(calls, weights, n_at_once=count_at_once(client)) if calls else []
    return run_calls(client, stage, together, progress=progress, units=units, unit=unit, on_result=on_result)


def run_side_by_side(
    client: Client, stage: str, lists: Sequence[Sequence[Call]], *, progress: Progress = silent
) -> list[list[Any]]:
    """Run lists of calls as `run_together` does, one call of each list in a task, and return the results by list."""
    order = sorted((place, number) for number, calls in enumerate(lists) for place in range(len(calls)))
    calls = [lists[number][place] for place, number in order]
    found = run_together(client, stage, calls, weights=[1 / max(1, len(lists))] * len(calls), progress=progress)
    results: list[list[Any]] = [[] for _ in lists]
    for (_, number), result in zip(order, found, strict=True):
        results[number].append(result)
    return results


def run_batches(
    client: Client,
    stage: str,
    function: Callable[[Sequence[Any]], Sequence[Any]],
    items: Sequence[Any],
    *,
    weights: Sequence[float],
    progress: Progress = silent,
    units: Units | None = None,
    unit: str = "users",
    on_result: Callable[[int, Any], None] | None = None,
) -> list[Any]:
    """Run a function that takes some consecutive items at a time and returns a result of each; return all of them.

    The weights of a task's items add up to 1 at most. Where there are many for each thread of the workers, more go into
    one task. A task costs Dask several milliseconds of CPU, here and on the worker, whatever it does. `units` is a
    number per item, or a function of its result; `on_result` is called on the client with the index and the result of
    each item as it is there, in any order.
    """
    if not items:
        return []
    together = batches(range(len(items)), weights, n_at_once=count_at_once(client))
    tasks = [_Task(batch, [(function, ([items[index] for index in batch],))], is_batch=True) for batch in together]
    return _Flight(client, stage, tasks).run(progress, units, unit, on_result)


class _Task(NamedTuple):
    """The calls of a task, and the numbers of the results that it returns: one of each call, or all of its batch."""

    numbers: Sequence[int]
    calls: Sequence[Call]
    is_batch: bool = False


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
    """A run of tasks: `futures` are those that are submitted and have not finished, `waiting` are not submitted."""

    def __init__(
        self,
        client: Client,
        stage: str,
        tasks: Sequence[_Task],
        in_flight_per_thread: int = 4,
        after: Sequence[int | None] | None = None,
    ) -> None:
        self.client, self.stage, self.tasks = client, stage, tasks
        self.token = f"{_process}-{next(_run_numbers):x}"
        self.per_thread = in_flight_per_thread
        self.after = after or [None] * len(tasks)
        self.waiting = dict.fromkeys(range(len(tasks)))
        self.done: set[int | None] = {None}
        self.futures: set[Future] = set()
        self.failed: list[tuple[Future, Any]] = []
        self.finished = as_completed(loop=client.loop, with_results=True, raise_errors=False)

    def run(
        self,
        progress: Progress,
        units: Units | None = None,
        unit: str = "users",
        on_result: Callable[[int, Any], None] | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> list[Any]:
        """Return the results of all calls in the order of their numbers."""
        client, stage, token = self.client, self.stage, self.token
        n_results = sum(len(task.numbers) for task in self.tasks)
        known = None if callable(units) else units
        if known is not None and len(known) != n_results:
            raise ValueError(f"units must have one number per call ({n_results}), got {len(known)}")
        results: list[Any] = [None] * n_results
        if not self.tasks:
            return results
        of_task = None if known is None else [sum(known[number] for number in task.numbers) for task in self.tasks]
        publish(
            client,
            "tasks",
            name=stage,
            token=token,
            state="begin",
            total=len(self.tasks),
            unit=unit,
            units=of_task,
            counted=callable(units) or None,
        )
        counts = _Counts(client, token)
        try:
            for done, (index, found) in enumerate(self._each_result(progress, meanwhile), start=1):
                numbers = self.tasks[index].numbers
                for number, result in zip(numbers, found, strict=True):
                    results[number] = result
                if callable(units):
                    n_units = sum(map(units, found))
                    counts.add(index, n_units)
                else:
                    n_units = 0 if of_task is None else of_task[index]
                if n_units and isinstance(progress, UnitProgress):
                    progress.count(stage, n_units, unit)
                if on_result is not None:
                    for number in numbers:
                        on_result(number, results[number])
                progress(stage, done, len(self.tasks))
            counts.flush()
        except BaseException as error:
            publish(client, "tasks", name=stage, token=token, state="failed")
            if on_result is not None and isinstance(error, Exception):
                with contextlib.suppress(Exception):  # the error that ended the run is the one to raise
                    self._take_in_running(on_result)
            stop_tasks(client, stage, token, self.futures, is_interrupted=not isinstance(error, Exception))
            if isinstance(error, Exception) and is_scheduler_gone(client):
                raise AmmrankError(
                    f"the scheduler is gone since stage {stage}; run the command again to go on"
                ) from None
            raise
        publish(client, "tasks", name=stage, token=token, state="end")
        return results

    def _each_result(
        self, progress: Progress, meanwhile: Callable[[], None] | None
    ) -> Iterator[tuple[int, Sequence[Any]]]:
        """Yield the index and the results of every task as it finishes.

        A task that is submitted while the scheduler dies is never reported, so the client is looked at while waiting.
        Nor is one that no worker is left for, or that waits at one that is paused.
        """
        workers = TaskWorkers(self.client, self.stage, self.per_thread)
        self._submit(self._take(workers.width()))
        progress(self.stage, 0, len(self.tasks))
        if meanwhile is not None:
            meanwhile()
        while self.futures:
            if self.finished.has_ready():
                workers.are_there()
                future, result = next(self.finished)
                if future not in self.futures:  # it was taken from a worker and cancelled
                    continue
                if future.status != "finished":
                    self.failed.append((future, result))
                    raise _error_of(self.stage, future, result)
                index = future.key[2]
                yield index, result
                self.futures.discard(future)
                future.release()
                self.done.add(index)
                room = workers.width() - len(self.futures)
                # While there is enough to do some tasks are waited for, which then go together.
                if room >= workers.spare() or len(self.waiting) <= room:
                    self._submit(self._take(room))
            elif is_scheduler_gone(self.client):
                raise AmmrankError("the scheduler is gone")
            else:
                workers.wait_for_some(self)
                with self.finished.thread_condition:
                    self.finished.thread_condition.wait(timeout=0.1)

    def _take_in_running(self, on_result: Callable[[int, Any], None]) -> None:
        """Wait for the tasks that workers are at after one has failed, and keep their results; cancel all others.

        What they wrote need not be written again. Of calls that failed those before them in their task count.
        """
        end = time.monotonic() + SECONDS_TO_STOP
        running = running_tasks(self.client, self.token)
        left = {future for future in self.futures if not future.done()}
        self.client.cancel([future for future in left if future.key not in running])
        while left and time.monotonic() < end and not is_scheduler_gone(self.client):
            time.sleep(0.02)
            left = {future for future in left if not future.done()}
        while self.finished.has_ready():
            self.failed.append(next(self.finished))
        for future, result in self.failed:
            if future in self.futures and future.status in ("finished", "error"):
                found = result if future.status == "finished" else getattr(result[1], "results", ())
                key: Any = future.key
                for number, one in zip(self.tasks[key[2]].numbers, found, strict=False):
                    on_result(number, one)

    def _take(self, n: int) -> list[int]:
        """Return so many tasks to submit, or all that may be."""
        taken = list(itertools.islice((index for index in self.waiting if self.after[index] in self.done), n))
        for index in taken:
            del self.waiting[index]
        return taken

    def _submit(self, indices: Sequence[int], n_moves: int = 0) -> None:
        """Submit tasks, for the first time or after they were taken from a worker."""
        for start in range(0, len(indices), SUBMITTED_TOGETHER):
            some = indices[start : start + SUBMITTED_TOGETHER]
            # A tuple key groups the tasks of a stage on the dashboard; the token keeps two runs apart.
            keys = [(self.stage, self.token, index, *([n_moves] if n_moves else [])) for index in some]
            arguments = [(_process, self.tasks[index].calls, self.tasks[index].is_batch) for index in some]
            futures = self.client.map(run_checked, *map(list, zip(*arguments, strict=True)), key=keys, pure=False)
            self.futures.update(futures)
            self.finished.update(futures)

    def leave(self, workers: Sequence[str]) -> None:
        """Take the tasks of the run from workers that do not begin them, and submit them anew.

        Dask steals only from workers that have more tasks than threads. What a worker has begun meanwhile it ends: two
        may be at a task, which writes the same file twice.
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
        for future in moved:
            key: Any = future.key
            self._submit([key[2]], (*key, 0)[3] + 1)

    def say(self, what: str) -> None:
        """Report a stage to people who watch it, on the terminal and on the dashboard."""
        logger.warning("stage %s: %s", self.stage, what)
        publish(self.client, "note", name="workers", text=f"stage {self.stage}: {what}")


def run_checked(owner: str, calls: Sequence[Call], is_batch: bool) -> Sequence[Any]:
    """Return the results of calls on a worker, of a batch those of its only one.

    Where the check of the driver `owner` found that the worker cannot be used the task goes back to the scheduler,
    until the driver has the worker leave. What it has freed is handed back where memory is short.
    """
    worker = get_worker()
    for plugin in worker.plugins.values():
        if getattr(plugin, "owner", None) == owner and plugin.refusal is not None:  # type: ignore[attr-defined]
            time.sleep(SECONDS_BEFORE_RETURN)
            raise Reschedule
    results: list[Any] = []
    try:
        for function, args in calls:
            results.append(tried_again(function)(*args))
    except Exception as error:
        _note_worker(error, worker.address, [] if is_batch else results)
        raise
    finally:
        hand_back_freed(worker.memory_manager.memory_limit)
    (found,) = results if is_batch else (results,)
    return found


def _note_worker(error: Any, address: str, results: Sequence[Any]) -> None:
    """Let an error say where it arose, and what calls before it returned: it keeps its attributes on its way."""
    error.worker, error.results = address, results


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
    is_here = missing is not None and hasattr(error, "worker") and is_there(Path(missing))
    return str(missing) if is_here else None
