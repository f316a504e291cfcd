"""Worker processes that must not take part in a night: without the package, of another version, with a wrong clock."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from wrong_clock import wrong_clock

_WITHOUT_PACKAGE = """
import sys


class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "ammrank_dask":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Missing())
"""
_OTHER_VERSION = """
import importlib.metadata

version = importlib.metadata.version
importlib.metadata.version = lambda name: "1.0" if name == "numpy" else version(name)
"""
_STARTUP = {"no package": _WITHOUT_PACKAGE, "other version": _OTHER_VERSION, "wrong clock": ""}
SENTENCES = {
    "no package": r"the worker at tcp://\S+ did not start; install ammrank-dask \S+ there and look at its log",
    "other version": r"the worker at tcp://\S+ has numpy 1\.0 instead of \S+; install the same versions everywhere",
    "wrong clock": r"the clock of the worker at tcp://\S+ is 3,600 s ahead of that of this machine; set both by NTP",
}
"""What is said of a worker of a kind when it joins."""


@contextlib.contextmanager
def odd_worker(kind: str, folder: Path, *where: str, nanny: bool = True) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker of a kind; `where` tells it how to find the scheduler."""
    place = folder / f"odd-{kind.replace(' ', '-')}"
    place.mkdir()
    (place / "sitecustomize.py").write_text(_STARTUP[kind], encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(place)}
    if kind == "wrong clock":
        environment |= wrong_clock(place, 3600)
    options = ["--nthreads", "1", "--no-dashboard", "--host", "127.0.0.1", "--local-directory", str(place)]
    command = [
        sys.executable,
        "-m",
        "distributed.cli.dask_worker",
        *where,
        *options,
        *([] if nanny else ["--no-nanny"]),
    ]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, env=environment, cwd=place, **quiet)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=20)
