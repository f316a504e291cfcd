"""The AMM-rank page in a headless Chromium while a night runs. Run by `make test-system`."""

import json
import re
import subprocess
import sys
import time
import urllib.request
from itertools import chain

import pyarrow.parquet as pq
import pytest
from browser import Browser
from distributed import Client, LocalCluster

from ammrank_dask.monitor.plugin import watch_cluster
from ammrank_dask.simulation.simulate import simulate
from ammrank_dask.workflows.session.config import check_config, write_config

pytestmark = pytest.mark.system

SECTIONS = ("head", "stages", "notes", "failures")
SHOWN = "Array.from(document.querySelectorAll('main > section'), section => section.innerText)"


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0") as local:
        yield local


@pytest.fixture(scope="module")
def site(cluster, tmp_path_factory):
    """A site on a lake of users with long ids, that joins the cluster of the test."""
    folder = tmp_path_factory.mktemp("world")
    with Client(cluster, set_as_default=False) as client:
        simulate(
            folder / "lake", client=client, truth=folder / "truth", users=3_000, days=24, seed=3, user_ids="string"
        )
    names = {"events": "events", "users": "users.parquet", "taxonomy": "taxonomy.csv"}
    config = {
        "lake": {key: str(folder / "lake" / name) for key, name in names.items()},
        "label": {"days": 10, "min_categories": 1},
        "features": {"min_days": 7},
        "train": {"epochs": 4},
        "partitions": 12,
    }
    place = folder / "site"
    place.mkdir()
    (place / "ammrank.yaml").write_text(write_config(check_config(config, "test")))
    (place / "cluster.yaml").write_text(f"version: 1\naddress: {cluster.scheduler_address}\n")
    return place


@pytest.fixture
def browser(tmp_path):
    page = Browser(tmp_path / "profile")
    yield page
    page.close()


def read(address):
    with urllib.request.urlopen(address, timeout=20) as answer:
        return answer.read().decode()


def watch(browser, process, seconds=300):
    """Look at the page until the command is done; return all that each section showed."""
    seen = {name: [] for name in SECTIONS}
    deadline = time.monotonic() + seconds
    is_last_look = False
    while not is_last_look:
        assert time.monotonic() < deadline, "the night takes too long"
        is_last_look = process.poll() is not None
        if is_last_look:
            time.sleep(4.5)  # the page looks every two seconds
        shown = dict(zip(SECTIONS, browser.evaluate(SHOWN), strict=True))
        for name, text in shown.items():
            if not seen[name] or seen[name][-1] != text:
                seen[name].append(text)
        time.sleep(0.2)
    return seen


def test_page__shows_a_running_night_and_no_user(site, cluster, browser, tmp_path):
    base = f"http://127.0.0.1:{cluster.scheduler.http_server.port}"
    users = pq.read_table(site.parent / "lake" / "users.parquet")["user_id"].to_pylist()
    with Client(cluster, set_as_default=False) as client:
        assert watch_cluster(client)
    browser.open(f"{base}/ammrank")
    browser.wait_for("document.querySelectorAll('main > section').length == 4")
    seen, texts = {name: [] for name in SECTIONS}, []
    for date in ("2026-01-27", "2026-01-28"):
        command = [sys.executable, "-m", "ammrank_dask.workflows.cli", "nightly", str(site), "--date", date]
        with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            # Before it comes a warning: this scheduler is open to other accounts.
            said = next(line for line in iter(process.stderr.readline, "") if line.startswith("dashboard"))
            assert said.split()[1] == f"{base}/ammrank"
            for name, shown in watch(browser, process).items():
                seen[name] += shown
            assert process.wait() == 0, process.stderr.read()
        texts += [read(f"{base}/ammrank.json"), read(f"{base}/metrics"), browser.evaluate("document.body.innerText")]
    browser.screenshot(tmp_path / "page.png")

    # At every look, of which there is one in two seconds: small nights take few of them.
    for name, n_changes in (("head", 4), ("stages", 4), ("notes", 2)):
        assert len(set(seen[name])) > n_changes, name
    heads = " ".join(seen["head"])
    for word in ("2026-01-27", "2026-01-28", "running", "published", "users a second"):
        assert word in heads
    assert any(re.search(r"users/s", shown) for shown in seen["stages"])
    assert any("validation ε_dis" in shown for shown in seen["stages"])
    # The second night does not train, and says so before it is over; what it found is there, and that it is over.
    assert re.search(r"train\s+not due", seen["stages"][-1])
    states = [json.loads(text)["stages"] for text in texts if text.startswith("{")]
    assert [stage["state"] for stage in states[-1] if stage["name"] in ("train", "gate")] == ["skipped"] * 2
    assert "The night of 2026-01-28 is over" in seen["head"][-1]
    assert "memory, fullest of 2 workers" in seen["head"][-1]
    assert any("gate, ε_dis on gate users" in shown for shown in seen["notes"])
    assert "events of 2026-01-28: kept" in seen["notes"][-1]
    assert f"{site}/reports/date=2026-01-28/report.html" in seen["notes"][-1]

    # Nothing is wrong with it, nothing comes from another place, and no user is on it.
    assert browser.errors() == []
    assert all(re.match(rf"{base}/|data:|about:", request) for request in browser.requests), browser.requests
    text = " ".join([*texts, *chain.from_iterable(seen.values())])
    assert len(users) == 3_000
    assert not [user for user in users if user in text]
    assert (tmp_path / "page.png").stat().st_size > 20_000


ONE_NIGHT = """
import sys
from distributed import Client, LocalCluster
from ammrank_dask.monitor.events import publish
from ammrank_dask.monitor.plugin import watch_cluster

_, port, date = sys.argv
with (
    LocalCluster(n_workers=1, processes=False, dashboard_address=f"127.0.0.1:{port}") as cluster,
    Client(cluster) as client,
):
    watch_cluster(client)
    publish(client, "night", state="begin", date=date, stages=["ingest"])
    print(cluster.scheduler.http_server.port, flush=True)
    sys.stdin.readline()
    publish(client, "night", state="end")
"""


def test_page__says_that_the_connection_was_lost_and_comes_back(browser, tmp_path):
    port = 0
    for date in ("2026-02-01", "2026-02-02"):
        command = [sys.executable, "-c", ONE_NIGHT, str(port), date]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            is_first = not port
            port = int(process.stdout.readline())
            if is_first:
                browser.open(f"http://127.0.0.1:{port}/ammrank")
            # The second scheduler has the port of the first: the page comes back by itself.
            browser.wait_for(f"document.querySelector('main')?.innerText.includes('{date}')")
            browser.wait_for("document.querySelector('#lost').hidden")
            process.communicate("\n", timeout=60)
        browser.wait_for("!document.querySelector('#lost').hidden")
        assert "connection was lost" in browser.evaluate("document.querySelector('#lost').textContent")
        # What was told last is still there, the end of the night too, though the scheduler went at once.
        assert "is over" in browser.evaluate("document.querySelector('main').innerText")
    browser.screenshot(tmp_path / "lost.png")


def test_page__is_in_the_navigation_bar_of_every_dashboard_page(cluster, browser):
    base = f"http://127.0.0.1:{cluster.scheduler.http_server.port}"
    browser.open(f"{base}/status")
    browser.wait_for("document.querySelectorAll('.navbar a').length > 3")
    links = browser.evaluate("Array.from(document.querySelectorAll('.navbar > ul > li > a'), a => a.textContent)")
    assert "AMM-rank" in links
    browser.evaluate("document.querySelector(\".navbar a[href='ammrank']\").click()")
    browser.wait_for("location.pathname == '/ammrank' && !!document.querySelector('main > section')")
