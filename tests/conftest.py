"""What tests share: a cluster for each process; a small lake and nights of it for all, made when first asked for."""

import contextlib
import fcntl
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from begun import World, begin_world
from chance_world import make_features, make_model
from distributed import Client, LocalCluster
from examples import PROFILE
from hypothesis import settings
from nights import config_of, copy_world, day, simulate_world

from ammrank_dask.features.store import Features
from ammrank_dask.model.amm_rank import AMMRank
from ammrank_dask.monitor.performance import record_performance
from ammrank_dask.scoring.chances import Chances
from ammrank_dask.scoring.learn_chances import learn_chances
from ammrank_dask.storage.site.site import Site
from ammrank_dask.workflows.session import night as night_session
from ammrank_dask.workflows.session.config import Config, write_config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.nightly import nightly

settings.load_profile(PROFILE)

collect_ignore = ["support"]
"""What tests import has no examples to run, and may be imported under one name only."""


def pytest_report_header() -> str:
    """Say which examples are tried."""
    return f"hypothesis: {PROFILE} examples"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the CPU seconds of this process and all that have ended: test processes, workers, compiled kernels."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    seconds = sum(each.ru_utime + each.ru_stime for each in used)
    terminalreporter.write_line(f"{seconds:.0f} CPU seconds, kernels that were compiled included")


@pytest.fixture(scope="session", autouse=True)
def undrawn_performance() -> Iterator[None]:
    """Leave out of every night Dask's own page of it, which is a third of a small night's work."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(night_session, "record_performance", lambda client, folder: contextlib.nullcontext())
        yield


@pytest.fixture
def drawn_performance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw Dask's own page of a night, as every night does outside of tests."""
    monkeypatch.setattr(night_session, "record_performance", record_performance)


@pytest.fixture(scope="session")
def client() -> Iterator[Client]:
    """A client of a cluster of two threads in this process."""
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=2, processes=False, dashboard_address="127.0.0.1:0", silence_logs=50
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture(scope="session")
def cluster_file(client: Client, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file by which commands join the cluster of `client` instead of starting one each."""
    path = tmp_path_factory.mktemp("cluster") / "cluster.yaml"
    path.write_text(f"version: 1\naddress: {client.scheduler.address}\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def two_processes() -> Iterator[Client]:
    """A client of a cluster of two processes, for tests that nobody kills them in."""
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture(scope="session")
def model() -> AMMRank:
    """A model of six categories, one of them without planes."""
    return make_model()


@pytest.fixture(scope="session")
def features(tmp_path_factory: pytest.TempPathFactory, model: AMMRank) -> Features:
    """Features of 6,000 users who click the more the higher they score."""
    return make_features(tmp_path_factory.mktemp("features") / "run", model, 6000)


@pytest.fixture(scope="session")
def chances(client: Client, model: AMMRank, features: Features) -> Chances:
    """What the scores of `model` are worth to the users of `features`."""
    return learn_chances(model, features, client=client)


def make_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder that the first test process to ask for it makes for all of them."""
    own = factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / f"{name}-of-all"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            unfinished = factory.mktemp(name)
            make(unfinished)
            unfinished.rename(folder)
    return folder


@pytest.fixture(scope="session")
def small_world(client: Client, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """An empty site beside a lake of 300 users and nine days; nobody changes it."""
    return Site(make_once(tmp_path_factory, "world", lambda folder: simulate_world(client, folder)) / "site")


@pytest.fixture(scope="session")
def published_world(client: Client, small_world: Site, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """The small world after night 5, which trained its first model; nobody changes it."""

    def make(folder: Path) -> None:
        run_nights(client, copy_world(small_world, folder), config_of(), 5)

    return Site(make_once(tmp_path_factory, "published", make) / "site")


@pytest.fixture(scope="session")
def compared_world(client: Client, small_world: Site, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """The small world after night 7, which trained and compared sources of lists, and night 8; nobody changes it."""
    label, gate = {"days": 2, "min_categories": 1}, {"forward": True, "min_users": 10}

    def make(folder: Path) -> None:
        run_nights(client, copy_world(small_world, folder), config_of(label=label, gate=gate), 7, 8)

    return Site(make_once(tmp_path_factory, "compared", make) / "site")


def run_nights(client: Client, site: Site, config: Config, *numbers: int) -> None:
    """Write the config of a site, and run nights."""
    site.config_path.write_text(write_config(config), encoding="utf-8")
    for number in numbers:
        nightly(Night(client, site, config, day(number)))


@pytest.fixture(scope="session")
def begun_world(cluster_file: Path, tmp_path_factory: pytest.TempPathFactory) -> World:
    """A lake of 30 users and seven days whose nights but the last are published; nobody changes it."""
    return World(make_once(tmp_path_factory, "begun", lambda folder: begin_world(folder, cluster_file)), cluster_file)


@pytest.fixture
def world(begun_world: World, tmp_path: Path) -> World:
    """A copy of that world, which a test may change."""
    return begun_world.copy(tmp_path / "world")


@pytest.fixture
def empty_site(small_world: Site, tmp_path: Path) -> Site:
    """A site before its first night, beside a lake that a test may change."""
    return copy_world(small_world, tmp_path)


@pytest.fixture
def site(published_world: Site, tmp_path: Path) -> Site:
    """A site after night 5, beside a lake that a test may change."""
    return copy_world(published_world, tmp_path)


@pytest.fixture(scope="session")
def three_workers() -> Iterator[Client]:
    """A client of a cluster of three workers in this process, one thread each."""
    with (
        LocalCluster(n_workers=3, threads_per_worker=1, processes=False, dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture(params=["two_processes", "three_workers"])
def elsewhere(request: pytest.FixtureRequest) -> Client:
    """A cluster of another number of workers than `client` has, and of another kind."""
    return request.getfixturevalue(request.param)
