"""Start nights on a cluster of separate processes, kill one of them at a random moment, and go on until it is done."""

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.runs import MANIFEST, verify_run
from ammrank_dask.workflows.session.night import STAGES

VICTIMS = ("worker", "driver", "scheduler")
LONGEST_DELAY = {None: 0.0, "ingest": 1.0, "features": 0.3, "training_features": 0.3, "train": 2.5, "gate": 0.1,
                 "chances": 0.3, "score": 0.4, "report": 0.3, "publish": 0.02}  # fmt: skip
"""Seconds after the beginning of a stage up to which the plug is pulled; half as many each time the stage was over."""


def ammrank(*arguments):
    """Return the command line of a command."""
    return [sys.executable, "-m", "ammrank_dask.workflows.cli", *map(str, arguments)]


def children_of(pid):
    """Return the processes that a process started, and theirs."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", encoding="utf-8") as file:
                    parent = int(file.read().rpartition(")")[2].split()[1])
            except (OSError, ValueError):
                continue
            if parent == pid:
                found += [int(entry), *children_of(int(entry))]
    return found


def kill_quietly(pid):
    """Kill a process that may be gone already."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


class OutsideCluster:
    """A scheduler and a nanny with workers as processes of their own, found by a scheduler file."""

    def __init__(self, folder, n_workers=2):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.n_workers = n_workers
        self.processes = []

    @property
    def file(self):
        """The file by which clients and workers find the scheduler."""
        return self.folder / "scheduler.json"

    def start(self):
        """Start the scheduler, then the workers."""
        self.file.unlink(missing_ok=True)
        self._start("dask_scheduler", "--host", "127.0.0.1", "--port", 0, "--dashboard-address", "127.0.0.1:0")
        while not self.file.is_file():
            time.sleep(0.05)
        self._start("dask_worker", "--nworkers", self.n_workers, "--nthreads", 1, "--host", "127.0.0.1",
                    "--local-directory", self.folder, "--no-dashboard")  # fmt: skip
        return self

    def _start(self, module, *arguments):
        command = [sys.executable, "-m", f"distributed.cli.{module}", "--scheduler-file", str(self.file)]
        with open(self.folder / f"{module}.log", "ab") as log:
            self.processes.append(
                subprocess.Popen([*command, *map(str, arguments)], stdout=log, stderr=subprocess.STDOUT)
            )

    def pids(self, victim):
        """Return the processes of a kind."""
        if not self.processes:
            return []
        scheduler, nannies = self.processes
        return [scheduler.pid] if victim == "scheduler" else children_of(nannies.pid)[-self.n_workers :]

    def stop(self):
        """End all that was started."""
        for process in self.processes:
            for pid in [*children_of(process.pid), process.pid]:
                kill_quietly(pid)
            process.wait(timeout=60)
        self.processes = []

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.stop()


def check_published(path):
    """Check every byte of what is published, and return its date and one hash over it."""
    place = Site(path)
    while True:
        current = place.current()
        try:
            for name in current.runs.values():
                if (path / name / MANIFEST).is_file():
                    verify_run(path / name)
                else:
                    assert name.startswith("reports/"), f"{name} is published and has no manifest"
            digest = place.digest()
        except (BadInput, AssertionError, FileNotFoundError):
            if place.current() == current:
                raise
            continue  # a newer night was published meanwhile, and this one is no longer needed
        if place.current() == current:
            return str(current.date), digest


class Reader(threading.Thread):
    """Reads what is published, over and over, as those would who use it."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self.path = path
        self.seen = set()
        self.trouble = None
        self.ended = threading.Event()

    def run(self):
        """Read until it is stopped."""
        while not self.ended.wait(0.3):
            try:
                self.seen.add(check_published(self.path))
            except Exception as error:
                self.trouble = error
                return

    def stop(self):
        """Stop, and raise what went wrong."""
        self.ended.set()
        self.join()
        if self.trouble is not None:
            raise self.trouble


@dataclass
class Plug:
    """A site to disturb: `begun` is a copy with one published night, `date` the night that is to be disturbed."""

    begun: Path
    site: Path
    date: str
    cluster: OutsideCluster
    expected: dict
    chance: random.Random
    kills: list = field(default_factory=list)
    finished: int = 0
    missed: Counter = field(default_factory=Counter)

    def pull(self, plan):
        """Kill as `plan` says, a list of (stage, victim), and rerun until the night is done, until all are used."""
        waiting = list(plan)
        while waiting:
            shutil.rmtree(self.site, ignore_errors=True)
            shutil.copytree(self.begun, self.site, symlinks=True)
            reader = Reader(self.site)
            reader.start()
            done = False
            while not done:
                waiting, done = self._attempt(waiting)
                date, digest = check_published(self.site)
                assert digest == self.expected[date]
            reader.stop()
            assert all(digest == self.expected[date] for date, digest in reader.seen), reader.seen
            assert check_published(self.site) == (self.date, self.expected[self.date])
            assert subprocess.run(ammrank("verify", self.site), capture_output=True, check=False).returncode == 0
            self.finished += 1

    def _attempt(self, waiting):
        """Run the night once; return the kills still to do, and whether the night was finished."""
        log = self.site / "runs" / f"date={self.date}" / "log.jsonl"
        offset = log.stat().st_size if log.is_file() else 0
        if not self.cluster.processes:
            self.cluster.start()
        command = ammrank("nightly", self.site, "--date", self.date, "--quiet")
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as driver:
            began = entered = time.monotonic()
            stage, delay = None, 0.0
            while driver.poll() is None:
                found = stage_of(log, offset)
                if found != stage:
                    self.missed[stage] += any(kill[0] == stage for kill in waiting)
                    stage, entered = found, time.monotonic()
                    delay = self.chance.uniform(0.0, LONGEST_DELAY[stage] / 2 ** self.missed[stage])
                match = next((kill for kill in waiting if kill[0] == stage), None)
                if match is not None and time.monotonic() - entered >= delay:
                    pids = [driver.pid] if match[1] == "driver" else self.cluster.pids(match[1])
                    kill_quietly(self.chance.choice(pids))
                    self.kills.append(match)
                    waiting = [kill for i, kill in enumerate(waiting) if i != waiting.index(match)]
                    break
                assert time.monotonic() - began < 300, "the night hangs"
                time.sleep(0.005)  # the shortest stages take 20 ms
            message = driver.communicate(timeout=300)[1]
        if self.kills and self.kills[-1][1] == "scheduler" and driver.returncode != 0:
            self.cluster.stop()
        assert driver.returncode in (0, 1, -signal.SIGKILL), message
        if driver.returncode == 1:  # what went wrong is said in one sentence
            assert message.strip().splitlines()[-1].startswith("ammrank: "), message
        return waiting, driver.returncode == 0


def stage_of(log, offset):
    """Return the stage at which the attempt that began at `offset` of the log is, None before the first."""
    try:
        with open(log, encoding="utf-8") as file:
            file.seek(offset)
            lines = file.read().splitlines()
    except FileNotFoundError:
        return None
    done = [match[1] for match in (re.search(r'"message": "stage (\w+) took', line) for line in lines) if match]
    if not done:
        return STAGES[0] if any("began" in line for line in lines) else None
    return STAGES[STAGES.index(done[-1]) + 1] if done[-1] != STAGES[-1] else None
