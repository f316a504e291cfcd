"""Submit block functions to a Dask cluster: all that this package knows about scheduling is here."""

import itertools
import logging
import math
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from distributed import Client, KilledWorker, as_completed

from ammrank_dask.monitor.events import Throttle, publish
from ammrank_dask.storage.errors import AmmrankError

logger = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]
"""Called with (stage, tasks done, tasks in all) on the client after every finished task."""

# Not the process id: drivers in containers all have the same, and a shared scheduler would take their keys for one.
_process = uuid.uuid4().hex[:12]
_run_numbers = itertools.count()


@runtime_checkable
class UnitProgress(Protocol):
    """A progress callback that also counts users or rows: `count` is called before it for each finished task."""

    def count(self, stage: str, units: int, unit: str) -> None:
        """Take in what the task that is done stood for."""


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
    raised here. A task may run twice (a worker can die after its work is done), so `function` must write whole
    files under temporary names and rename them.

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
    try:
        for index, result in _run(client, stage, token, function, items, progress, in_flight_per_thread):
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
        if isinstance(error, Exception) and is_scheduler_gone(client):
            raise AmmrankError(f"the scheduler is gone since stage {stage}; run the command again to go on") from None
        raise
    publish(client, "tasks", **name, state="end")
    return results


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
    progress: Progress,
    in_flight_per_thread: int,
) -> Iterator[tuple[int, Any]]:
    """Yield the index and the result of every task as it finishes."""
    waiting = iter(enumerate(items))

    def submit_next() -> Any:
        index, args = next(waiting)
        # A tuple key groups the tasks of a stage on the dashboard; the token keeps two runs apart.
        return client.submit(function, *args, key=(stage, token, index), pure=False)

    width = _Width(client, in_flight_per_thread)
    finished = as_completed(loop=client.loop, with_results=True, raise_errors=False)
    n_submitted = 0
    while n_submitted < min(width.now(), len(items)):
        finished.add(submit_next())
        n_submitted += 1
    progress(stage, 0, len(items))
    for done, (future, result) in enumerate(finished, start=1):
        if future.status != "finished":
            client.cancel(list(finished.futures), reason="another task of the stage failed")
            if future.status == "cancelled":
                raise AmmrankError(f"a task of stage {stage} was cancelled; run the command again")
            _, exception, traceback = result
            if isinstance(exception, KilledWorker):
                raise AmmrankError(
                    f"workers died again and again at stage {stage}, probably for lack of memory;"
                    " give them more, or use more partitions"
                ) from None
            raise exception.with_traceback(traceback)
        yield future.key[2], result
        progress(stage, done, len(items))
        future.release()
        while n_submitted < min(done + width.now(), len(items)):
            finished.add(submit_next())
            n_submitted += 1


class _Width:
    """How many tasks may be in flight: so many per thread of the workers there are, asked once a second.

    A few more than the threads of one worker are always allowed, so that a cluster that grows on demand sees demand.
    """

    def __init__(self, client: Client, per_thread: int) -> None:
        self.client = client
        self.per_thread = per_thread
        self.asked = -math.inf
        self.width = 1

    def now(self) -> int:
        """Return the number of tasks that may be in flight."""
        if time.monotonic() - self.asked > 1:
            self.asked = time.monotonic()
            workers = self.client.scheduler_info(n_workers=-1)["workers"]
            n_threads = sum(worker["nthreads"] for worker in workers.values())
            self.width = self.per_thread * max(2, n_threads)
        return self.width
