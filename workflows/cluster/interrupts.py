"""Let a signal end a command and nothing else: terminals and systemd send it to the workers it started, too."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing import resource_tracker
from typing import Any

from distributed import WorkerPlugin

from ammrank_dask.workflows.session.deadline import seconds_left

SECONDS_TO_START = 15.0
"""How long an interrupted command that has no deadline waits for a cluster that is starting, to close it."""


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
    # It tidies up after a command that a signal ends, and need not tell.
    sys.warnoptions.append("ignore:resource_tracker:UserWarning")
    resource_tracker.ensure_running()
    sys.warnoptions.pop()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        threading.Thread(target=run, name="start of the cluster", daemon=True).start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    try:
        return started.result()
    except (KeyboardInterrupt, SystemExit):
        with contextlib.suppress(Exception):  # it failed, or takes too long: the interrupt is what is told
            started.result(seconds_left(SECONDS_TO_START)).close()
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
            hush_cut_pages()


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


def hush_cut_pages() -> None:
    """Keep off the terminal the tracebacks of dashboard pages that are open when a command ends.

    The loop cancels what it still sends to them, and Tornado and Bokeh take that for an error (seen with 6.6 and 3.9).
    Bokeh writes a headline first, of which one cannot tell what follows; any other traceback does without it.
    """
    for name in ("asyncio", "tornado.application", "bokeh.util.tornado"):
        logger = logging.getLogger(name)
        if _is_no_cut_page not in logger.filters:
            logger.addFilter(_is_no_cut_page)
    warnings.filterwarnings("ignore", r"coroutine 'WSHandler\.", RuntimeWarning)  # what Bokeh had yet to send


def _is_no_lost_scheduler(record: logging.LogRecord) -> bool:
    return "Failed to communicate with scheduler" not in record.getMessage()


def _is_no_failed_task(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("Compute Failed")


def _is_no_cancelled_wait(record: logging.LogRecord) -> bool:
    return "sync.<locals>.cancel" not in record.getMessage()


def _is_no_cut_page(record: logging.LogRecord) -> bool:
    if record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError):
        return False
    text = record.getMessage().rstrip()
    return text != "Error thrown from periodic callback:" and not text.endswith("asyncio.exceptions.CancelledError")
