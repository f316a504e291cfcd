"""A cluster of lean processes: they do tasks, and end without leaving anything behind."""

import os
import subprocess
import sys
from pathlib import Path

import benchmarks

SCRIPT = """
import multiprocessing
from benchmarks.processes import start_processes

def take_lock(dask_worker):
    dask_worker.lock = multiprocessing.Lock()

if __name__ == "__main__":
    with start_processes(2) as cluster:
        cluster.client.run(take_lock)
        assert cluster.client.submit(pow, 2, 5).result() == 32
        processes = [cluster.scheduler, *cluster.workers]
    assert not any(process.is_running() for process in processes)
"""


def test_start_processes__give_semaphores_back_when_they_end(tmp_path):
    script = tmp_path / "locks.py"
    script.write_text(SCRIPT)
    environment = os.environ | {"PYTHONPATH": str(Path(benchmarks.__file__).parents[1])}
    command = [sys.executable, script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
