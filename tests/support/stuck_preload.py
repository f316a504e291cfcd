"""Loaded by the workers of a test: the first that begins a task of a stage, or starts or closes, is stuck from then on.

`AMMRANK_STUCK` is a JSON object of a test: `stage` is the beginning of a stage's name, or "start" or "close"; `kind`
says how it is stuck; the process writes its id to `mark`.
"""

import ctypes
import json
import os
import signal
import time
from pathlib import Path

from distributed import WorkerPlugin

SETTINGS = "AMMRANK_STUCK"


def _stick(kind: str, mark: Path) -> None:
    try:
        with open(f"{mark}.new", "x", encoding="utf-8") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return
    os.rename(file.name, mark)
    if kind == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "busy":  # in C, and never gives the interpreter to another thread
        ctypes.PyDLL(None).sleep(3600)
    else:  # the other threads go on
        time.sleep(3600)


class Stuck(WorkerPlugin):
    """Be stuck when a task of a stage begins, or when the worker closes."""

    def __init__(self, stage: str, kind: str, mark: Path) -> None:
        self.stage, self.kind, self.mark = stage, kind, mark

    def transition(self, key, start, finish, **kwargs):
        if finish == "executing" and isinstance(key, tuple) and key[0].startswith(self.stage):
            _stick(self.kind, self.mark)

    def teardown(self, worker):
        if self.stage == "close":
            _stick(self.kind, self.mark)


async def dask_setup(worker):
    """Called by Dask when a worker starts."""
    settings = json.loads(os.environ[SETTINGS])
    stage, kind, mark = settings["stage"], settings["kind"], Path(settings["mark"])
    if stage == "start":
        _stick(kind, mark)
    elif kind == "task":
        import ammrank_dask.runtime.tasks as tasks

        tasks.tried_again = lambda function: lambda *args: _stick(kind, mark)
    else:
        await worker.plugin_add(Stuck(stage, kind, mark), name="stuck")
