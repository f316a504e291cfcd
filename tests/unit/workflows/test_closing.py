"""The end of a command: the site is free before the cluster closes, and a cluster that does not close is left."""

import threading
import time

import pytest
from lakes import write_lake, write_site
from odd_clusters import SlowToClose

import ammrank_dask.workflows.cluster.open as opening
from ammrank_dask.storage.errors import AmmrankError, SiteBusy
from ammrank_dask.workflows.session.session import open_session

SLOW = """
version: 1
class: odd_clusters.SlowToClose
kwargs: {n_workers: 1, threads_per_worker: 1, processes: false, dashboard_address: "127.0.0.1:0"}
"""


@pytest.fixture
def new_site(tmp_path):
    return write_site(tmp_path / "site", write_lake(tmp_path / "lake", n_days=1))


@pytest.fixture
def slow_cluster(tmp_path):
    path = tmp_path / "slow.yaml"
    path.write_text(SLOW, encoding="utf-8")
    return str(path)


def is_free(site):
    try:
        with site.exclusive():
            return True
    except SiteBusy:
        return False


@pytest.mark.parametrize("error", [None, AmmrankError("it broke")], ids=["done", "failed"])
def test_open_session__a_command_that_is_done_frees_the_site_before_its_cluster_closes(
    new_site, slow_cluster, monkeypatch, error
):
    """After an error the site stays locked: tasks may still write."""
    found = []
    monkeypatch.setattr(SlowToClose, "before_closing", lambda: found.append(is_free(new_site)))

    def work():
        with open_session(new_site.path, cluster=slow_cluster, as_json=False, quiet=True) as session:
            assert session.client.submit(abs, -1).result() == 1
            assert not is_free(new_site)
            if error is not None:
                raise error

    if error is None:
        work()
    else:
        with pytest.raises(AmmrankError, match="it broke"):
            work()
    assert found == [error is None]
    assert is_free(new_site)


def test_open_session__a_cluster_that_does_not_close_is_not_waited_for(new_site, slow_cluster, monkeypatch, caplog):
    may_close = threading.Event()
    closed = threading.Event()
    monkeypatch.setattr(SlowToClose, "before_closing", lambda: may_close.wait(120) and closed.set())
    monkeypatch.setattr(opening, "SECONDS_TO_CLOSE", 0.5)
    begin = time.monotonic()
    with open_session(new_site.path, cluster=slow_cluster, as_json=False, quiet=True) as session:
        session.client.submit(abs, -1).result()
    assert time.monotonic() - begin < 60
    assert not closed.is_set()
    assert "the cluster has not closed within 0.5 s; look if its workers are gone" in caplog.text
    may_close.set()
    assert closed.wait(60)
