"""One night of a site as its stages see it, and its record: times of its stages, bytes, memory, and what went wrong."""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import os
import platform
import resource
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from distributed import Client, LocalCluster, wait

from ammrank_dask.monitor.events import publish, watch_night, watch_stage
from ammrank_dask.monitor.performance import record_performance
from ammrank_dask.runtime.stop_tasks import is_scheduler_gone
from ammrank_dask.runtime.tasks import Progress, silent
from ammrank_dask.storage.errors import AmmrankError, HeldBack, name_night
from ammrank_dask.storage.objects.atomic import bytes_below
from ammrank_dask.storage.objects.folders import list_paths
from ammrank_dask.storage.objects.retry import retried
from ammrank_dask.storage.site.run_log import HELD, LOG, JsonLines, read_attempt, utc_now, write_attempt
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.runs import VERSIONED, version_of
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.session.options import exit_code_of, message_of
from ammrank_dask.workflows.session.progress import StageProgress

logger = logging.getLogger(__name__)

STAGES = ("ingest", "features", "training_features", "train", "gate", "chances", "score", "report", "publish")
PACKAGE = "ammrank_dask"
SECONDS_TO_ANSWER = 20
"""How long a worker may take to say how much memory it used; one that hangs is left out."""


@dataclass(frozen=True)
class Night:
    """What every stage needs: the cluster, the site and its config, the date, and whom to tell how far it is."""

    client: Client
    site: Site
    config: Config
    date: dt.date
    progress: Progress = silent


@dataclass
class StageSummary:
    """What a stage did, in a few words for the terminal; None names what its tasks counted."""

    text: str | None = None


class NightRecord:
    """One attempt at a night. What is known so far is on the disk after every stage."""

    def __init__(self, client: Client, site: Site, date: dt.date, progress: Progress = silent) -> None:
        self.client = client
        self.progress = progress if isinstance(progress, StageProgress) else None
        self.site = site
        self.folder = site.run_folder(date)
        self.began = time.monotonic()
        self.stages: list[dict[str, Any]] = []
        self.attempt: dict[str, Any] = {
            "date": str(date),
            "status": "running",
            "started": utc_now(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "versions": {
                "python": platform.python_version(),
                **{name: version_of(name) for name in VERSIONED},
            },
            "stages": self.stages,
        }

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[StageSummary]:
        """Time a stage, and show it on the terminal and the dashboard; yield where it says what it did."""
        started, cpu = time.monotonic(), _cpu_seconds(self.client)
        if self.progress is not None:
            self.progress.begin_stage(name)
        summary = StageSummary()
        with watch_stage(self.client, name):
            yield summary
        if self.progress is not None:
            self.progress.end_stage(summary.text)
        seconds = round(time.monotonic() - started, 3)
        stage = {"name": name, "seconds": seconds}
        if cpu is not None:  # a worker that was started anew has lost its count
            stage["cpu"] = round(max(0.0, (_cpu_seconds(self.client) or 0.0) - cpu), 3)
        self.stages.append(stage)
        logger.info("stage %s took %.1f s", name, seconds)
        self._write()

    def skip(self, *names: str) -> None:
        """Show on the dashboard that stages are not due tonight."""
        for name in names:
            publish(self.client, "stage", name=name, state="skipped")
            if self.progress is not None:
                self.progress.skip_stage(name)

    def note(self, name: str, text: str) -> None:
        """Show a sentence on the dashboard."""
        publish(self.client, "note", name=name, text=text)

    def keep(self, outcome: Mapping[str, Any], roles: Mapping[str, Path], inputs: Mapping[str, str]) -> None:
        """Record the results of the night so far, the runs it wrote, and the digests of its inputs by their names."""
        self.attempt |= {
            "facts": dict(outcome),
            **inputs,
            "runs": {role: self.site.published_key(path) for role, path in sorted(roles.items())},
            "bytes": {role: bytes_below(path) for role, path in sorted(roles.items())},
        }

    def finish(self, outcome: Mapping[str, Any]) -> None:
        """Record what the night came to in the end."""
        memory = {"driver": _peak_memory()[1], "workers": self._worker_memory()}
        workers = self.client.scheduler_info(n_workers=-1).get("workers", {}).values()
        threads = sum(worker["nthreads"] for worker in workers)
        self.attempt |= {"facts": dict(outcome), "peak_memory": memory, "workers": threads}
        self._end("done", 0)

    def fail(self, error: BaseException) -> None:
        """Report what ended the night."""
        code = exit_code_of(error)
        is_gone = is_scheduler_gone(self.client)
        message = name_night(message_of(error), self.site.path, self.attempt["date"])
        if is_gone and not isinstance(error, AmmrankError):
            message = "the scheduler is gone"
        self.attempt["error"] = {"type": type(error).__name__, "message": message}
        if isinstance(error, HeldBack):
            self.attempt["facts"] = dict(error.outcome)
        expected = is_gone or isinstance(error, AmmrankError | OSError | SystemExit | KeyboardInterrupt)
        ended = "is on hold" if isinstance(error, HeldBack) else "failed"
        logger.error("night %s: %s", ended, message, exc_info=None if expected else error)
        with contextlib.suppress(OSError):  # a full disk is told by the command
            self._end(HELD if isinstance(error, HeldBack) else "failed", code)

    def _end(self, status: str, code: int) -> None:
        seconds = round(time.monotonic() - self.began, 3)
        self.attempt |= {"status": status, "finished": utc_now(), "seconds": seconds, "exit_code": code}
        self._write()

    def _write(self) -> None:
        write_attempt(self.folder, self.attempt)

    def _worker_memory(self) -> dict[str, int]:
        """Return the most memory a process of each host used, in bytes."""
        workers = self.client.scheduler_info(n_workers=-1).get("workers", {})
        futures = [self.client.submit(_peak_memory, workers=[address], pure=False) for address in workers]
        # `wait` looks for the client of the process, which ours need not be.
        with contextlib.suppress(TimeoutError), self.client.as_current():
            wait(futures, timeout=SECONDS_TO_ANSWER)
        peaks: dict[str, int] = {}
        for host, peak in [future.result() for future in futures if future.status == "finished"]:
            peaks[host] = max(peak, peaks.get(host, 0))
        return peaks


@contextlib.contextmanager
def record_night(client: Client, site: Site, date: dt.date, progress: Progress = silent) -> Iterator[NightRecord]:
    """Keep `run.json` and `log.jsonl` of a night, and show its stages on the terminal and the dashboard."""
    record = NightRecord(client, site, date, progress)
    record._write()
    handler = JsonLines(record.folder / LOG)
    package = logging.getLogger(PACKAGE)
    level = package.level
    package.addHandler(handler)
    package.setLevel(logging.INFO)
    try:
        logger.info("night of %s began", date)
        if record.progress is not None:
            record.progress.begin_night(str(date), STAGES)
        with (
            watch_night(client, date, STAGES, usual=usual_seconds(site, date)),
            record_performance(client, site.report_folder(date)),
        ):
            yield record
        if record.progress is not None:
            record.progress.end_night()
    except BaseException as error:
        record.fail(error)
        raise
    finally:
        package.removeHandler(handler)
        package.setLevel(level)
        handler.close()


def _cpu_seconds(client: Client) -> float | None:
    """Return the CPU time of this process and its workers, None when these run elsewhere."""
    if not isinstance(client.cluster, LocalCluster):
        return None
    total = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with contextlib.suppress(psutil.Error):  # it has just ended
            times = process.cpu_times()
            total += times.user + times.system
    return total


def _peak_memory() -> tuple[str, int]:
    """Return the host and the most memory that this process ever used, in bytes."""
    return socket.gethostname(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@retried
def usual_seconds(site: Site, date: dt.date, n_nights: int = 30) -> dict[str, float]:
    """Return how long each stage took in the last night before a date that had it."""
    folders = [path for path in list_paths(site.path / "runs", "date=*") if path.name < f"date={date}"]
    attempts = filter(None, map(read_attempt, folders[-n_nights:]))
    return {stage["name"]: stage["seconds"] for attempt in attempts for stage in attempt.get("stages", [])}
