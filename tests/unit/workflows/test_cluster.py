"""What is checked before the first task, who may talk to a cluster, and what listens where."""

import asyncio
import contextlib
import datetime as dt
import errno
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import dask
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from certificates import write_certificates
from distributed import Client, LocalCluster

from ammrank_dask.features.columns import interest_columns
from ammrank_dask.features.write import write_features
from ammrank_dask.model.amm_rank import AMMRank
from ammrank_dask.model.amm_rank_plus import AMMRankPlus
from ammrank_dask.model.plane_panels import panel_arrays
from ammrank_dask.runtime.memory import PROCESS_BYTES, REQUEST_BYTES, ModelSize, PartitionSize, estimate_memory
from ammrank_dask.scoring.score_passes import write_qualifications
from ammrank_dask.scoring.settings import ScoreSettings
from ammrank_dask.simulation.simulate import simulate
from ammrank_dask.storage.errors import AmmrankError, BadInput
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.runs import version_of
from ammrank_dask.workflows.cluster import checks
from ammrank_dask.workflows.cluster.checks import (
    PrivateFiles,
    _compare_versions,
    check_scheduler,
    check_workers,
    package_versions,
)
from ammrank_dask.workflows.cluster.memory_check import check_memory, largest_model, largest_partition
from ammrank_dask.workflows.cluster.open import open_cluster
from ammrank_dask.workflows.session.config import check_config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.ingest import ingest

FIRST = dt.date(2026, 1, 5)
IDLE_BYTES = PROCESS_BYTES + REQUEST_BYTES
"""What a worker of one thread takes without data."""
CONFIG = {
    "lake": {"events": "../lake/events", "users": "../lake/users.parquet", "taxonomy": "../lake/taxonomy.csv"},
    "label": {"days": 3, "min_categories": 1},
    "partitions": 2,
}


def threads(n_workers, memory_limit):
    """A cluster in this process."""
    return LocalCluster(
        n_workers=n_workers, threads_per_worker=1, processes=False, dashboard_address=None, memory_limit=memory_limit
    )


@pytest.fixture(scope="module")
def client():
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None, memory_limit="2GiB"
        ) as cluster,
        Client(cluster) as c,
    ):
        yield c


@pytest.fixture(scope="module")
def place(client, tmp_path_factory):
    lake = tmp_path_factory.mktemp("world") / "lake"
    simulate(lake, client=client, truth=lake.with_name("truth"), users=400, days=4, seed=3, start=FIRST)
    (lake.parent / "site").mkdir()
    return Site(lake.parent / "site")


def test_open_cluster__the_client_of_a_command_sends_without_a_pause(client, tmp_path):
    (tmp_path / "cluster.yaml").write_text(f"version: 1\naddress: {client.scheduler.address}\n")
    with open_cluster(str(tmp_path / "cluster.yaml"), None, quiet=True) as own:
        assert own.scheduler_comm.interval == 0.001
    assert client.scheduler_comm.interval > 0.001


def test_check_workers__a_sound_cluster_leaves_nothing_behind(client, tmp_path):
    check_workers(client, tmp_path, timeout=120)
    assert list(tmp_path.iterdir()) == []


def test_compare_versions__names_each_that_differs():
    own = {"python": "3.11.7", "numpy": "2.4.6", "zarr": "3.1.6"}
    _compare_versions("the worker", dict(own), own)
    with pytest.raises(
        BadInput,
        match=r"the worker has numpy 2\.3\.0 instead of 2\.4\.6, zarr None instead of 3\.1\.6; install the same",
    ):
        _compare_versions("the worker", {"python": "3.11.7", "numpy": "2.3.0"}, own)


def test_check_scheduler__of_another_version(client, monkeypatch):
    check_scheduler(client)
    answer = client.get_versions(check=False)
    answer["scheduler"]["packages"] |= {"distributed": "2020.1.0"}
    monkeypatch.setattr(client, "get_versions", lambda check: answer)
    with pytest.raises(
        BadInput, match=r"the scheduler has distributed 2020\.1\.0 instead of \d+\.\S+; install the same versions"
    ):
        check_scheduler(client)


@contextlib.contextmanager
def own_event_loop():
    """Give this thread an event loop; afterwards it has what it had before."""
    before = asyncio.get_event_loop_policy()
    asyncio.set_event_loop_policy(asyncio.DefaultEventLoopPolicy())
    try:
        with contextlib.closing(asyncio.new_event_loop()) as loop:
            asyncio.set_event_loop(loop)
            yield loop
    finally:
        asyncio.set_event_loop_policy(before)


def test_open_cluster__a_scheduler_of_another_dask_is_not_joined(tmp_path, monkeypatch):
    """A client that joins one may fail in any way, and waits for a long time when it ends."""

    def other_versions(packages=None):
        return {"host": {}, "packages": {"dask": version_of("dask"), "distributed": "2020.1.0"}}

    path = tmp_path / "cluster.yaml"
    kinds = {"protocol": "tcp", "host": "127.0.0.1", "processes": False, "dashboard_address": None}
    with own_event_loop() as loop, LocalCluster(n_workers=0, **kinds) as cluster:
        path.write_text(f"version: 1\naddress: {cluster.scheduler_address}\n", encoding="utf-8")
        monkeypatch.setattr("distributed.node.get_versions", other_versions)
        with (
            pytest.raises(BadInput, match=r"^the scheduler has distributed 2020\.1\.0 instead of \d+\.\S+; install"),
            open_cluster(str(path), None, quiet=True),
        ):
            pytest.fail("joined")
        assert asyncio.get_event_loop() is loop  # that of the caller stays


def test_package_versions__ours_are_known():
    versions = package_versions()
    assert versions["python"] == ".".join(map(str, sys.version_info[:3]))
    assert "not installed" not in versions.values()


def start(*arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-m", *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options
    )


@contextlib.contextmanager
def outside_cluster(folder, *extra, protocol="tcp", workers=({},)):
    """Run a scheduler and workers as processes of their own; yield the scheduler's address."""
    file = folder / "scheduler.json"
    common = ("--protocol", protocol, *extra)
    processes = [
        start("distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", 0, "--no-dashboard",
              "--scheduler-file", file, *common)
    ]  # fmt: skip
    for options in workers:
        processes.append(
            start("distributed.cli.dask_worker", "--scheduler-file", file, "--nthreads", 1, "--no-dashboard",
                  "--host", "127.0.0.1", *common, **options)
        )  # fmt: skip
    try:
        end = time.monotonic() + 300
        while not file.is_file():
            assert time.monotonic() < end
            time.sleep(0.1)
        yield file
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(timeout=120)


def test_check_workers__a_worker_that_cannot_write(client, tmp_path):
    # The client's file just fits into the longest path there can be; the longer name of the worker's answer does not.
    site = tmp_path
    room = os.pathconf(tmp_path, "PC_PATH_MAX") - 1 - len("/.view-") - 32
    while (left := room - len(str(site)) - 1) > 0:
        site /= "x" * (left if left <= 200 else min(200, left - 2))
        site.mkdir()
    with pytest.raises(
        BadInput, match=r"cannot read and write in /.*x \(OSError: File name too long\); the site must be"
    ):
        check_workers(client, site, timeout=120)
    assert list(site.iterdir()) == []


def test_check_workers__a_worker_without_room_is_no_bad_input(client, tmp_path, monkeypatch):
    write = checks._write_mark

    def write_mark(path):
        if "-answer-" in path.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path)

    monkeypatch.setattr(checks, "_write_mark", write_mark)
    with pytest.raises(AmmrankError, match=r"cannot write in \S+ \(No space left on device\); make room") as raised:
        check_workers(client, tmp_path, timeout=120)
    assert not isinstance(raised.value, BadInput)


def test_check_workers__a_worker_that_is_paused_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "_SECONDS_TO_PAUSE", 0.5)
    with (
        dask.config.set({"distributed.worker.memory.pause": 1e-6}),
        threads(1, "2GiB") as cluster,
        Client(cluster, set_as_default=False) as paused,
    ):
        while not checks._paused_workers(paused):
            time.sleep(0.02)
        with pytest.raises(AmmrankError, match=r"the worker at inproc://\S+ is paused for lack of memory before its"):
            check_workers(paused, tmp_path, timeout=3600)


@pytest.mark.system
@pytest.mark.parametrize(
    ("mount", "sentence"),
    [
        ("mount -t tmpfs none {0}", "does not see the files of {0}; the site must be a folder that"),
        (
            "mount --bind {0} {0} && mount -o remount,ro,bind {0}",
            r"cannot read and write in {0} \(OSError: Read-only file system\); the site must be a folder that",
        ),
    ],
    ids=["hidden", "read-only"],
)
def test_check_workers__a_worker_with_another_view_of_the_site(tmp_path, mount, sentence):
    site = tmp_path / "site"
    site.mkdir()
    (tmp_path / "cluster.yaml").write_text(f"version: 1\nscheduler_file: {tmp_path / 'scheduler.json'}\ntimeout: 60\n")
    hidden = ["unshare", "--mount", "sh", "-c", f'{mount.format(site)} && exec "$0" "$@"', sys.executable]
    with outside_cluster(tmp_path, workers=()) as file:
        command = [*hidden, "-m", "distributed.cli.dask_worker", "--scheduler-file", str(file), "--nthreads", "1"]
        command += ["--no-dashboard", "--host", "127.0.0.1"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as worker:
            try:
                with (
                    pytest.raises(BadInput, match=sentence.format(site)),
                    open_cluster(str(tmp_path / "cluster.yaml"), site, quiet=True),
                ):
                    pass
            finally:
                worker.terminate()
    assert list(site.iterdir()) == []


def test_private_files__a_worker_takes_the_umask_and_gives_it_back(tmp_path):
    before = os.umask(0o022)
    try:
        plugin = PrivateFiles()
        plugin.setup(None)
        (tmp_path / "mine").touch()
        assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o640
        plugin.teardown(None)
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)


def listening():
    """Return the addresses and ports on which this process and its children wait for others."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    found = [connection for process in processes for connection in process.net_connections("inet")]
    return {tuple(connection.laddr) for connection in found if connection.status == psutil.CONN_LISTEN}


@pytest.mark.parametrize("dashboard", ["", ", dashboard_address: null", ", processes: false"])
def test_open_cluster__listens_on_loopback_only(tmp_path, dashboard):
    path = tmp_path / "cluster.yaml"
    kwargs = f"{{n_workers: 1, threads_per_worker: 1{dashboard}}}"
    path.write_text(f"version: 1\nclass: distributed.LocalCluster\nkwargs: {kwargs}\n")
    before = listening()
    with open_cluster(str(path), tmp_path, quiet=True) as client:
        assert {ip for ip, _ in listening() - before} == {"127.0.0.1"}
        made = client.submit(os.umask, 0o077).result()
        assert made & 0o007 == 0o007


def test_estimate_memory__the_hungriest_stage_counts():
    million = 1_000_000
    none = ModelSize(0, 0, 0)
    assert estimate_memory(PartitionSize(0, 0, 0), none, k=10) == IDLE_BYTES
    assert estimate_memory(PartitionSize(0, 10 * million, 0), none, k=10) == IDLE_BYTES + 640 * million
    assert estimate_memory(PartitionSize(0, 0, 10 * million), none, k=10) == IDLE_BYTES + 1100 * million
    two = estimate_memory(PartitionSize(million, 0, 0), none, k=10, threads=2)
    assert two == PROCESS_BYTES + 2 * (REQUEST_BYTES + 600 * million)


def test_estimate_memory__scores_of_all_categories_and_the_model():
    size, model = PartitionSize(1_000_000, 0, 0), ModelSize(categories=300, planes=1_500, weights=3_001)
    chosen, planes, everything = 600_000_000, 4 * 1_500 * 3_001, 4 * 300 * 1_000_000
    assert estimate_memory(size, model, k=10) == IDLE_BYTES + chosen + planes
    with_chances = estimate_memory(size, model, k=10, keeps_all_scores=True, keeps_chances=True)
    without = estimate_memory(size, model, k=10, keeps_all_scores=True)
    assert with_chances - without == 6 * size.users * model.categories
    found = estimate_memory(size, model, k=10, keeps_all_scores=True, threads=2)
    assert found == PROCESS_BYTES + 2 * (REQUEST_BYTES + chosen + planes + everything)


def test_estimate_memory__clusterings_and_own_columns():
    model = ModelSize(categories=300, planes=1_500, weights=3_000 + 2_400 + 1, centers=2_400, columns=3_000)
    planes, centers, own = 4 * 1_500 * 5_401, 2 * 2_400 * 3_001, 20 * 3_000
    assert model.n_bytes == planes + centers + own
    rows = PartitionSize(1_000_000, 0, 0)
    assert estimate_memory(rows, model, k=10) == IDLE_BYTES + 600_000_000 + planes + centers + own


def test_estimate_memory__training_where_it_takes_more_than_scoring():
    nobody, many = PartitionSize(0, 0, 0), ModelSize(300, 1_500, 5_401, centers=2_400, columns=3_000, clusterings=3)
    rounds = 16 * 1_500 * 5_401 + 4 * 2_400 * 3_000
    assert estimate_memory(nobody, many, k=10, threads=2) == IDLE_BYTES + REQUEST_BYTES + 2 * rounds
    wide = ModelSize(50, 50, 2_912, centers=2_400, columns=511, sample_values=8_000_000, clusterings=3)
    assert estimate_memory(nobody, wide, k=10) == IDLE_BYTES + 37 * 800 * 511 + 12 * 8_000_000
    used = ModelSize(1, 1, 10_000, centers=2_400, columns=9_999, clusterings=3)
    assert estimate_memory(nobody, used, k=10) == IDLE_BYTES + 13 * 2_400 * 9_999


def test_model_size__is_what_the_scored_arrays_take():
    rng = np.random.default_rng(0)
    n_categories, n_columns = 40, 400
    X = sp.random(900, n_columns, 0.2, format="csr", dtype=np.float32, rng=rng)
    own = np.arange(n_columns).reshape(-1, n_categories)
    model = AMMRankPlus(n_categories=n_categories, own_columns=own, max_planes=1, epochs=1, n_clusterings=2)
    model.fit(X, rng.permuted(np.tile(np.arange(n_categories), (900, 1)), axis=1)[:, :5])
    arrays, _ = panel_arrays(model.panels())
    expected = sum(array.nbytes for array in arrays.values())
    size = ModelSize(n_categories, 40, n_columns + 90 + 1, 90, n_columns)  # 900 rows: 45 centres a clustering
    assert expected == pytest.approx(size.n_bytes, rel=0.2)


@pytest.mark.parametrize(
    ("train", "clusterings"),
    [({}, 3), ({"clusterings": 1}, 1), ({"clusterings": 0}, 0), ({"model": "amm-rank"}, None)],
)
def test_largest_model__counts_clusterings(train, clusterings):
    config = check_config({**CONFIG, "train": {**train, "max_planes": 2}}, "test")
    size = largest_model(config, 50, n_users=100_000, n_cells=2_000_000)
    n_columns = len(interest_columns(config.features.groups, [""] * 50, recency=True, demographics=True).names)
    if clusterings is None:
        assert size == ModelSize(50, 100, n_columns + 1)
        return
    values = 20_000 * 4 * 20  # four for each of 20 cells, of 20,000 users
    centers = 800 * clusterings
    assert size == ModelSize(50, 100, n_columns + 1 + centers, centers, n_columns, values, clusterings)


def test_largest_model__a_sample_has_no_more_than_its_room():
    config = check_config(CONFIG, "test")
    model = largest_model(config, 1_000, n_users=100_000, n_cells=10**9)
    assert model.sample_values == pytest.approx(1 << 23, rel=0.01)
    assert largest_model(config, 50, n_users=0, n_cells=0).sample_values == 0


def test_score_partition__workers_load_no_estimators():
    modules = ("features.build", "scoring.learn_chances", "scoring.recalibrate", "scoring.score_partition")
    stages = (*modules, "scoring.score_passes")
    imports = ", ".join(f"ammrank_dask.{stage}" for stage in stages)
    command = [sys.executable, "-c", f"import sys, {imports}; sys.exit('sklearn' in sys.modules)"]
    assert subprocess.run(command, check=False).returncode == 0


def peak_of_scoring(folder, n_users, n_categories, also):
    """Return the most memory that a worker of one thread had while it scored one partition, and the estimate of it."""
    rng = np.random.default_rng(0)
    columns = [f"pv:{column}" for column in range(1_000)]
    names = [f"c{code}" for code in range(n_categories)]
    X = rng.random((n_users, 5), np.float32)
    at = np.sort(rng.integers(0, len(columns) // 5, (n_users, 5)) + np.arange(5) * (len(columns) // 5), axis=1)
    rows = sp.csr_matrix((X.ravel(), at.ravel(), np.arange(n_users + 1) * 5), shape=(n_users, len(columns)))
    features = write_features(folder / "features", rows, np.arange(n_users), columns, categories=names, n_partitions=1)
    model = AMMRank()
    weights = rng.standard_normal((len(columns) + 1, 2 * n_categories), np.float32)
    model.set_planes(weights, np.repeat(np.arange(n_categories), 2).astype(np.int32), np.ones(n_categories), n_steps=1)
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None, memory_limit=0) as cluster,
        Client(cluster) as client,
    ):
        write_qualifications(client, model, features, folder / "run", ScoreSettings(k=5, also=also))
        (status,) = client.run(Path("/proc/self/status").read_text).values()
    peak = 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1))
    size = ModelSize(n_categories, 2 * n_categories, len(columns) + 1)
    return peak, estimate_memory(PartitionSize(n_users, 0, 0), size, k=5, keeps_all_scores=bool(also))


@pytest.mark.system
def test_estimate_memory__is_near_what_a_worker_takes(tmp_path):
    peak, estimate = peak_of_scoring(tmp_path, 100_000, 400, also=("category_top_n",))
    assert 0.75 * estimate < peak < 1.2 * estimate  # above it while kernels are compiled


def test_largest_partition__from_the_lake_and_then_from_the_state(client, place):
    config = check_config(CONFIG, "test")
    first = largest_partition(place, config, FIRST + dt.timedelta(2), n_categories=50)
    assert first.users == 200
    known = ingest(Night(client, place, config, FIRST + dt.timedelta(2)))
    events = [run.manifest["facts"]["events"] for run in known.days.values()]
    assert first.events == pytest.approx(max(events) / 2, rel=0.3)
    assert first.cells == pytest.approx(0.75 * sum(events) / 2, rel=0.1)
    place.publish(FIRST + dt.timedelta(2), known.roles)
    then = largest_partition(place, config, FIRST + dt.timedelta(3), n_categories=50)
    parts = known.head.manifest["parts"]
    rows, cells = (max(part[name] for part in parts) for name in ("rows", "nnz"))
    assert (then.users, then.cells) == (max(rows, 200), cells)
    # The users table has grown since: who is in it is scored, unless only active users are.
    pq.write_table(pa.table({"user_id": np.arange(3_001)}), place.path / "people.parquet")
    grown = CONFIG | {"lake": CONFIG["lake"] | {"users": "people.parquet"}}
    for users, expected in (("all", 1_501), ("active", rows)):
        config = check_config(grown | {"score": {"users": users}}, "test")
        then = largest_partition(place, config, FIRST + dt.timedelta(3), n_categories=50)
        assert (then.users, then.cells) == (expected, cells)
    (place.path / "ROOT").unlink()
    shutil.rmtree(place.path / "roots")


def test_check_memory__both_numbers(place):
    config = check_config(CONFIG, "test")
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None, memory_limit="300MiB"
        ) as small,
        Client(small) as client,
    ):
        with pytest.raises(
            BadInput, match=r"needs about 36\d MiB for partitions of 200 users .* found one of 300 MiB, of which 90%"
        ):
            ingest(Night(client, place, config, FIRST))
        assert not small.scheduler.tasks


def test_check_memory__scores_of_all_categories_and_the_model(place):
    pq.write_table(pa.table({"user_id": np.arange(200_000)}), place.path / "people.parquet")
    content = CONFIG | {"lake": CONFIG["lake"] | {"users": "people.parquet"}, "score": {"k": 1}}
    chosen_only = content | {"report": {"policies": ["user_top_k"]}}
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None, memory_limit="508MiB"
        ) as small,
        Client(small) as client,
    ):
        # 100,000 users a partition: 6 MiB of slots, 17 of 1,000 planes of 2,011 columns and 2,400 centres, 9 of the
        # centres, 76 of all scores, beside 360. Training takes 86.
        check_memory(client, place, check_config(chosen_only, "test"), FIRST, 200)
        with pytest.raises(
            BadInput, match=r"about 468 MiB .* 200 categories \(1 at a time\).*; set partitions above 2 in"
        ):
            check_memory(client, place, check_config(content, "test"), FIRST, 200)
        with pytest.raises(
            BadInput, match=r"about 1,399 MiB .*; more partitions would not help: give the workers more"
        ):
            check_memory(client, place, check_config(chosen_only, "test"), FIRST, 1_000)


def test_check_memory__workers_without_a_limit(place):
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None, memory_limit=0
        ) as cluster,
        Client(cluster) as client,
    ):
        check_memory(client, place, check_config(CONFIG, "test"), FIRST, 50)


@pytest.mark.system
def test_open_cluster__tls_takes_only_who_has_the_certificate(tmp_path):
    good, bad = write_certificates(tmp_path / "good"), write_certificates(tmp_path / "bad")
    tls = ("--tls-ca-file", good.ca, "--tls-cert", good.cert, "--tls-key", good.key)
    with outside_cluster(tmp_path, *tls, protocol="tls") as file:
        address = re.search(r"tls://127\.0\.0\.1:\d+", file.read_text()).group()
        path = tmp_path / "cluster.yaml"

        def try_with(address, security, seconds=3):
            path.write_text(f"version: 1\naddress: {address}\n{security}timeout: {seconds}\n")
            with open_cluster(str(path), tmp_path, quiet=True) as client:
                return client.submit(sum, [1, 2]).result()

        def named(paths):
            return f"security: {{ca_file: {paths.ca}, cert: {paths.cert}, key: {paths.key}}}\n"

        assert try_with(address, named(good), seconds=60) == 3
        with pytest.raises(
            BadInput, match=r"do not accept each other's TLS certificates \(certificate signature failure"
        ):
            try_with(address, named(bad))
        with pytest.raises(BadInput, match="speaks TLS and there is no `security`; name its TLS certificates"):
            try_with(address, "")
        with pytest.raises(AmmrankError, match="the cluster did not come up within 3 s"):
            try_with(address.replace("tls", "tcp"), "")
