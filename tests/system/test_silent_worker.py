"""A worker that is stopped in the middle of a stage: the night does not wait until it is given up."""

import os
import signal
from pathlib import Path

import dask
import psutil
import pytest
from distributed import Client, LocalCluster, WorkerPlugin
from nights import config_of, copy_world, day

import ammrank_dask.runtime.task_workers as task_workers
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.nightly import nightly

pytestmark = pytest.mark.system


PRELOAD = {"distributed.worker.preload": [nightly.__module__]}
"""On a busy machine an import silences a worker for longer than it is waited for, but not before it joins."""


class StopOnce(WorkerPlugin):
    """Stop the process of the first worker that begins a task of a stage."""

    def __init__(self, stage: str, mark: Path) -> None:
        self.stage, self.mark = stage, mark

    def transition(self, key, start, finish, **kwargs):
        if finish == "executing" and isinstance(key, tuple) and key[0] == self.stage:
            try:
                with open(self.mark, "x", encoding="utf-8") as file:
                    file.write(str(os.getpid()))
            except FileExistsError:
                return
            os.kill(os.getpid(), signal.SIGSTOP)


@pytest.fixture(scope="module")
def expected(client, published_world, tmp_path_factory):
    """What the next night is when nobody is stopped."""
    site = copy_world(published_world, tmp_path_factory.mktemp("quiet"))
    nightly(Night(client, site, config_of(), day(6)))
    return site.digest()


@pytest.mark.parametrize("stage", ["fold", "score"])
def test_nightly__a_worker_that_is_stopped_is_not_waited_for(site, expected, tmp_path, monkeypatch, stage):
    monkeypatch.setattr(task_workers, "SECONDS_BEFORE_WARNING", 0.3)
    monkeypatch.setattr(task_workers, "SECONDS_TO_ANSWER", 5.0)
    with (
        dask.config.set({task_workers.TIME_TO_LIVE: "20s", **PRELOAD}),
        LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        client.register_plugin(StopOnce(stage, tmp_path / "stopped"))
        nightly(Night(client, site, config_of(), day(6)))
        assert not psutil.pid_exists(int((tmp_path / "stopped").read_text(encoding="utf-8")))
    assert site.digest() == expected
