"""Let a signal end a command and nothing else: terminals and systemd send it to the workers it started, too."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing import resource_tracker
from typing import Any

from distributed import WorkerPlugin

SECONDS_TO_CLOSE = 15.0
"""How long an interrupted command waits for a cluster that is starting, to close it in good order."""


def start_apart(start: Callable[[], Any]) -> Any:
    """Return the cluster that `start` makes; SIGINT and SIGTERM reach neither its threads nor the processes they start.

    A signal that a thread blocks is blocked in all threads and processes that come from it, from their first moment
    on: workers that are told so later have by then written tracebacks of their imports, or are missed by a scheduler
    that is still at work. They end with the command that started them, however it ends. Interrupted, the command waits
    for the cluster to be there, because Dask cannot close half of one.
    """
    started: Future[Any] = Future()

    def run() -> None:
        try:
            started.set_result(start())
        except BaseException as error:
            started.set_exception(error)

    # The thread that needs this helper of `multiprocessing` first starts it, and has both signals unblocked after that.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        threading.Thread(target=run, name="start of the cluster", daemon=True).start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    try:
        return started.result()
    except (KeyboardInterrupt, SystemExit):
        with contextlib.suppress(Exception):  # it failed, or takes too long: the interrupt is what is told
            started.result(SECONDS_TO_CLOSE).close()
        raise


class LeaveInterrupts(WorkerPlugin):
    """Make the processes of workers ignore Ctrl-C; the command that started them ends them in good order.

    Not all are started by threads of this process, which leave them signals blocked. Without it every worker process
    ends with a traceback of its own on the terminal, and with a warning about the task it was at. A worker that
    outlives its scheduler is not told either: whoever started both says so in one sentence. It also silences
    `distributed.sizeof`: the profile in the performance report is nested too deeply to be measured.
    """

    name = "ammrank-interrupts"
    idempotent = True

    def setup(self, worker: Any) -> None:
        """Ignore SIGINT from now on, in processes that are the worker's own."""
        with contextlib.suppress(ValueError):  # a worker in a thread: the process is not its own
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            for name in ("distributed.worker.state_machine", "distributed.sizeof"):
                logging.getLogger(name).setLevel(logging.ERROR)
            logging.getLogger("distributed.worker").addFilter(_is_no_lost_scheduler)
            hush_failed_tasks()


def hush_failed_tasks() -> None:
    """Keep tracebacks of tasks off the terminal: the command says in one sentence what failed, and without ids."""
    logger = logging.getLogger("distributed.worker")
    if _is_no_failed_task not in logger.filters:
        logger.addFilter(_is_no_failed_task)


def hush_cancelled_waits() -> None:
    """Keep one traceback off the terminal: that of a wait which Ctrl-C ended before it had begun.

    `distributed.utils.sync` then asks the loop to cancel a future that is not there yet (seen with 2026.8).
    """
    logger = logging.getLogger("tornado.application")
    if _is_no_cancelled_wait not in logger.filters:
        logger.addFilter(_is_no_cancelled_wait)


def _is_no_lost_scheduler(record: logging.LogRecord) -> bool:
    return "Failed to communicate with scheduler" not in record.getMessage()


def _is_no_failed_task(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("Compute Failed")


def _is_no_cancelled_wait(record: logging.LogRecord) -> bool:
    return "sync.<locals>.cancel" not in record.getMessage()
