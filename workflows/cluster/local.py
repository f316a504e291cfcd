"""Keep a cluster that is started here to its owner: its files, its pages, and the signals that end a command."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import socket
import stat
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import dask
from distributed import LocalCluster, WorkerPlugin
from distributed.comm.addressing import unparse_host_port

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.objects.account import is_private_group
from ammrank_dask.workflows.cluster.cluster_file import LOCAL_HOSTS
from ammrank_dask.workflows.session.deadline import seconds_left

_SETTING = "temporary-directory"

SETTING = "distributed.scheduler.dashboard.bokeh-application.allow_websocket_origin"


SECONDS_TO_START = 15.0
"""How long an interrupted command that has no deadline waits for a cluster that is starting, to close it."""


@contextlib.contextmanager
def private_scratch(class_: Any, kwargs: dict[str, Any], path: Path) -> Iterator[None]:
    """Let the cluster put its files into new folders of mode 0700, which are removed at the end; changes `kwargs`.

    Dask takes `dask-scratch-space` of the temporary folder whoever made it, and all its processes, this one too, import
    from there first.
    """
    with contextlib.ExitStack() as stack:
        configured = dask.config.get(_SETTING)
        setting = f"{_SETTING} of Dask's settings" if configured else "the folder for temporary files (TMPDIR)"
        folder = stack.enter_context(_private_folder(configured or tempfile.gettempdir(), setting))
        stack.enter_context(dask.config.set({_SETTING: folder}))
        given = kwargs.get("local_directory")
        if given is not None and isinstance(class_, type) and issubclass(class_, LocalCluster):
            # Clusters of other kinds mean a folder of other machines.
            setting = f"{path}: kwargs.local_directory"
            kwargs["local_directory"] = stack.enter_context(_private_folder(given, setting))
        yield


@contextlib.contextmanager
def _private_folder(parent: Any, setting: str) -> Iterator[str]:
    """Make a folder of our own in `parent`, and leave nothing of it: no files, and nowhere to import from."""
    try:
        base = Path(parent).resolve()
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        _refuse_shared(base, setting)
        folder = tempfile.mkdtemp(prefix="ammrank-", dir=base)
    except BadInput:
        raise
    except (OSError, TypeError, ValueError) as error:
        raise BadInput(f"{setting} must be a folder that you can write, got {parent} ({error}); correct it") from None
    try:
        yield folder
    finally:
        sys.path[:] = [entry for entry in sys.path if not entry.startswith(folder + os.sep)]
        shutil.rmtree(folder, ignore_errors=True)


def _refuse_shared(base: Path, setting: str) -> None:
    """Refuse a folder in which, or above which, another account can put another folder where ours is."""
    for folder in (base, *base.parents):
        found = folder.stat()
        if found.st_uid not in (0, os.geteuid()):
            raise BadInput(
                f"{setting}: {folder} must belong to you or to root, found user id {found.st_uid}; name another folder"
            )
        is_open = found.st_mode & 0o002 or (found.st_mode & 0o020 and not is_private_group(found.st_gid, os.geteuid()))
        if is_open and not found.st_mode & stat.S_ISVTX:
            mode = stat.filemode(found.st_mode)
            raise BadInput(
                f"{setting}: nobody but you may write {folder}, found {mode}; run `chmod go-w {folder}` or name another"
                " folder"
            )


def own_origins() -> dict[str, Any]:
    """Return the setting that makes a server of pages take localhost with its port only, in the place of Dask's `*`."""
    return {SETTING: []} if dask.config.get(SETTING, None) == ["*"] else {}


def name_origins(dask_scheduler: Any) -> None:
    """Add the other names of a scheduler or worker to those that its pages may have: the port is known only now."""
    if dask.config.get(SETTING, None) != []:
        return
    server = dask_scheduler.http_server
    is_everywhere = server.address in ("0.0.0.0", "::")
    names = (socket.gethostname(), dask_scheduler.ip) if is_everywhere else (server.address,)
    origins = {unparse_host_port(name.lower(), server.port) for name in (*LOCAL_HOSTS, *names)}
    for application in dask_scheduler.http_application.applications:
        if hasattr(application, "websocket_origins"):
            application.websocket_origins.update(origins)


class NameOrigins(WorkerPlugin):
    """Does it for the pages of every worker."""

    name = "ammrank-origins"
    idempotent = True

    def setup(self, worker: Any) -> None:
        """Add the names of a worker."""
        name_origins(worker)


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
