"""Workers that join in the middle of a command and cannot be used: they are named and left out, and nobody waits."""

import contextlib
import logging
import re
import time

import pytest
from distributed import Client, LocalCluster
from odd_workers import SENTENCES, odd_worker

import ammrank_dask.monitor.performance as performance
from ammrank_dask.monitor.performance import PERFORMANCE_PAGE, record_performance
from ammrank_dask.runtime.tasks import run_tasks
from ammrank_dask.workflows.cluster.checks import PrivateFiles, checked_workers, private_workers


@contextlib.contextmanager
def one_worker():
    network = {"protocol": "tcp", "host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, processes=False, **network) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def wait_until(is_so, seconds=60):
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)


def nap(number):
    time.sleep(0.1)
    return number


@pytest.mark.parametrize(
    ("kind", "nanny"), [("no package", True), ("no package", False), ("other version", True), ("wrong clock", False)]
)
def test_checked_workers__one_that_joins_and_cannot_be_used_is_named_and_left_out(tmp_path, caplog, kind, nanny):
    caplog.set_level(logging.WARNING, logger="ammrank_dask")
    with one_worker() as client, checked_workers(client, tmp_path, timeout=60):
        good = set(client.scheduler_info(n_workers=-1)["workers"])

        end = time.monotonic() + 60
        with odd_worker(kind, tmp_path, client.scheduler.address, nanny=nanny):
            while not caplog.records:  # tasks are there all the time for a worker to take
                assert time.monotonic() < end
                assert run_tasks(client, "nap", nap, [(number,) for number in range(20)]) == list(range(20))
            wait_until(lambda: set(client.scheduler_info(n_workers=-1)["workers"]) == good)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert re.fullmatch(SENTENCES[kind] + "; the command goes on without this worker", told[0])


def test_record_performance__a_worker_that_never_answers_is_not_waited_for(tmp_path, caplog, monkeypatch):
    """One that failed to start: nobody looks at it here, so that it stays on the scheduler's list."""
    monkeypatch.setattr(performance, "SECONDS_TO_REPORT", 1.0)
    with one_worker() as client:
        with private_workers(client), odd_worker("no package", tmp_path, client.scheduler.address):
            workers = lambda: client.scheduler_info(n_workers=-1)["workers"].values()  # noqa: E731
            with record_performance(client, tmp_path):
                wait_until(lambda: any(worker["status"] == "closing" for worker in workers()))
                begin = time.monotonic()
            assert time.monotonic() - begin < 10
        assert PrivateFiles.name not in client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.worker_plugins)
    assert not (tmp_path / PERFORMANCE_PAGE).exists()
    assert "could not write the performance report: workers did not answer in 1 s" in caplog.text
