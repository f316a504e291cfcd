"""Cancel tasks, and wait until the workers, which are asked themselves, have none of them any more."""

import contextlib
import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from distributed import Client, Future, Worker

logger = logging.getLogger(__name__)

SECONDS_TO_STOP = 600.0
"""How long a failed run waits for its tasks that are still executing."""
SECONDS_TO_STOP_WHEN_INTERRUPTED = 1.5
"""The same after Ctrl-C or SIGTERM: whoever sent it waits, and a command ends a few seconds after it."""
SECONDS_TO_ANSWER = 30.0
"""How long workers may say nothing about their tasks before they are given up."""
SECONDS_BEFORE_WARNING = 5.0
_PAUSE = 0.1
_NOT_RUNNING = ("memory", "error", "released", "forgotten")


def is_scheduler_gone(client: Client) -> bool:
    """Return whether the client has given up on its scheduler: whatever fails then fails for that reason."""
    return client.status in ("closing", "closed")


def stop_tasks(client: Client, stage: str, token: str, futures: set[Future], *, is_interrupted: bool) -> None:
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
        n_tasks, is_answered = count_tasks(client, token, timeout=min(end, give_up) - time.monotonic())
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


def count_tasks(client: Client, token: str, *, timeout: float) -> tuple[int, bool]:
    """Return how many tasks of a run the workers have, and whether all of them answered in time."""
    try:
        answers = run_on_workers(client, count_worker_tasks, token, timeout=timeout)
    except Exception:  # of the client, the network or the scheduler: there is no answer
        return 0, False
    counts = [answer for answer in answers.values() if isinstance(answer, int)]
    return sum(counts), len(counts) == len(answers)


def running_tasks(client: Client, token: str) -> set[Any]:
    """Return the keys of the tasks of a run that workers are at."""
    answers = run_on_workers(client, list_running_tasks, token, timeout=SECONDS_TO_ANSWER)
    # On its way to the client a tuple may become a list.
    return {tuple(key) for answer in answers.values() if isinstance(answer, list) for key in answer}


def list_running_tasks(token: str, dask_worker: Worker) -> list[Any]:
    """Return the keys of the tasks of a run that the worker executes."""
    keys = [task.key for task in dask_worker.state.all_running_tasks]
    return [key for key in keys if isinstance(key, tuple) and key[1:2] == (token,)]


def run_on_workers(
    client: Client,
    function: Callable[..., Any],
    *args: Any,
    timeout: float,
    workers: Sequence[str] | None = None,
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
