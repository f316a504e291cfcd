"""Let Ctrl-C end a command and nothing else: a terminal sends it to the workers of the embedded cluster too."""

from __future__ import annotations

import contextlib
import logging
import signal
from typing import Any

from distributed import WorkerPlugin


class LeaveInterrupts(WorkerPlugin):
    """Make the processes of workers ignore Ctrl-C; the command that started them ends them in good order.

    Without it every worker process ends with a traceback of its own on the terminal, and with a warning about the task
    it was at. A worker that outlives its scheduler is not told either: whoever started both says so in one sentence. It
    also silences `distributed.sizeof`: the profile in the performance report is nested too deeply to be measured.
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
