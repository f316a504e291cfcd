"""Workers come and go: an adaptive cluster of one to four, one of which is killed again and again; the same bytes."""

import subprocess
import time

import pytest
from nights import config_of, copy_world, day
from plug import ammrank, children_of, kill_quietly

from ammrank_dask.storage.site.site import Site
from ammrank_dask.workflows.session.config import write_config

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

SECONDS_BETWEEN_KILLS = 15
CLUSTER = """
version: 1
class: distributed.LocalCluster
kwargs: {n_workers: 1, threads_per_worker: 1, dashboard_address: "127.0.0.1:0"}
adapt: {minimum: 1, maximum: 4, interval: "500ms", target_duration: "1s"}
"""


def workers_of(pid):
    """Return the processes of workers, which are started by the multiprocessing of a nanny."""
    found = []
    for child in children_of(pid):
        try:
            with open(f"/proc/{child}/cmdline", encoding="utf-8", errors="replace") as file:
                if "spawn_main" in file.read():
                    found.append(child)
        except OSError:
            continue
    return found


def test_nightly__adaptive_workers_that_are_killed_again_and_again(small_world, published_world, tmp_path):
    site = copy_world(small_world, tmp_path)
    site.config_path.write_text(write_config(config_of()), encoding="utf-8")
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    command = ammrank("nightly", site.path, "--date", day(5), "--cluster", tmp_path / "cluster.yaml", "--quiet")
    n_killed = 0
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as night:
        while night.poll() is None and not (site.run_folder(day(5)) / "log.jsonl").is_file():
            time.sleep(0.1)
        next_kill = time.monotonic() + 1
        while night.poll() is None:
            time.sleep(0.1)
            workers = workers_of(night.pid) if time.monotonic() >= next_kill else []
            if workers:
                kill_quietly(workers[-1])
                n_killed += 1
                next_kill = time.monotonic() + SECONDS_BETWEEN_KILLS
        said = night.stderr.read()
    assert night.returncode == 0, said
    assert n_killed >= 1
    assert Site(site.path).digest() == published_world.digest()
