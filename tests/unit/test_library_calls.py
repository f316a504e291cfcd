"""What a caller of the library can get wrong is said at once, in one sentence, and leaves nothing behind."""

import asyncio
import datetime as dt
import importlib.metadata
import os
import re
import signal
from pathlib import Path

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from chance_world import make_features
from distributed import Client, LocalCluster

import ammrank_dask
from ammrank_dask import serve
from ammrank_dask.runtime.client import current_client
from ammrank_dask.storage.errors import BadInput

URLS = ["s3://bucket/folder", "gs://bucket/folder", "file:///tmp/folder", Path("s3://bucket/folder")]


def _write_features(client, model, features, url):
    ammrank_dask.write_features(url, np.eye(2), [1, 2], ["a", "b"])


def _simulate(client, model, features, url):
    ammrank_dask.simulate(url, client=client, truth=url, users=10, days=1, start=dt.date(2026, 1, 5))


CALLS = {
    "write_features": _write_features,
    "open_features": lambda client, model, features, url: ammrank_dask.open_features(url),
    "save": lambda client, model, features, url: model.save(url),
    "load": lambda client, model, features, url: ammrank_dask.AMMRank.load(url),
    "serve.load": lambda client, model, features, url: serve.load(url),
    "score": lambda client, model, features, url: ammrank_dask.score(model, features, url, client=client),
    "score model": lambda client, model, features, url: ammrank_dask.score(url, features, "quals", client=client),
    "open_qualifications": lambda client, model, features, url: ammrank_dask.open_qualifications(url),
    "train": lambda client, model, features, url: ammrank_dask.train(features, client=client, scratch=url),
    "tune": lambda client, model, features, url: ammrank_dask.tune(features, client=client, scratch=url),
    "learn_chances": lambda client, model, features, url: ammrank_dask.learn_chances(
        model, features, client=client, scratch=url
    ),
    "simulate": _simulate,
    "fit": lambda client, model, features, url: ammrank_dask.AMMRankPlus().fit(
        DASK_ROWS, DASK_CODES, client=client, scratch=url
    ),
    "interest_features": lambda client, model, features, url: ammrank_dask.interest_features(
        dd.from_pandas(LOG), "2026-01-04", client=client, scratch=url
    ),
}


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("call", CALLS)
def test_library__refuses_urls_where_it_reads_and_writes_folders(
    client, model, features, call, url, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"must be a folder of a file system .*, got a URL of (s3|gs|file)://; give"):
        CALLS[call](client, model, features, url)
    assert list(tmp_path.iterdir()) == []


WITH_CLIENT = {
    "train": lambda client, model, features, folder: ammrank_dask.train(features, client=client, epochs=1),
    "tune": lambda client, model, features, folder: ammrank_dask.tune(features, client=client, epochs=1),
    "score": lambda client, model, features, folder: ammrank_dask.score(
        model, features, folder / "quals", client=client
    ),
    "learn_chances": lambda client, model, features, folder: ammrank_dask.learn_chances(model, features, client=client),
    "exposure_report": lambda client, model, features, folder: ammrank_dask.exposure_report(None, client=client),
    "simulate": lambda client, model, features, folder: ammrank_dask.simulate(
        folder / "lake", client=client, truth=folder / "truth", users=10, days=1
    ),
    "fit of blocks": lambda client, model, features, folder: ammrank_dask.AMMRank().fit(
        DASK_ROWS, DASK_CODES, client=client, scratch=folder
    ),
    "interest_features of blocks": lambda client, model, features, folder: ammrank_dask.interest_features(
        dd.from_pandas(LOG), "2026-01-04", client=client, scratch=folder
    ),
    "click_rankings of blocks": lambda client, model, features, folder: ammrank_dask.click_rankings(
        dd.from_pandas(LOG), "2026-01-01", "2026-01-04", LOG["user_id"], client=client, scratch=folder
    ),
    "write_features of blocks": lambda client, model, features, folder: ammrank_dask.write_features(
        folder / "run", DASK_ROWS, [1, 2, 3, 4], list("abcd"), client=client, scratch=folder
    ),
}


@pytest.mark.parametrize("call", WITH_CLIENT)
def test_library__refuses_an_asynchronous_client(model, features, call, tmp_path):
    async def call_it():
        async with (
            LocalCluster(
                n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None, asynchronous=True
            ) as cluster,
            Client(cluster, asynchronous=True, set_as_default=False) as own,
        ):
            with pytest.raises(TypeError, match=r"client must be synchronous, got an asynchronous one; make it"):
                WITH_CLIENT[call](own, model, features, tmp_path)

    asyncio.run(call_it())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", WITH_CLIENT)
def test_library__refuses_what_is_no_client(model, features, call, tmp_path):
    with pytest.raises(TypeError, match=r"client must be a distributed.Client, got str; pass client=Client"):
        WITH_CLIENT[call]("tcp://127.0.0.1:8786", model, features, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", WITH_CLIENT)
def test_library__refuses_a_call_where_there_is_no_client(model, features, call, tmp_path):
    with pytest.raises(ValueError, match=r"there is no Dask client; make one with client = distributed\.Client\(\)$"):
        WITH_CLIENT[call](None, model, features, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", WITH_CLIENT)
def test_library__refuses_a_closed_client(model, features, call, tmp_path):
    with Client(n_workers=1, processes=False, dashboard_address=None, set_as_default=False) as own:
        pass
    with pytest.raises(ValueError, match=r"client must be connected, got one that is closed; make a new one$"):
        WITH_CLIENT[call](own, model, features, tmp_path)
    assert list(tmp_path.iterdir()) == []


def other_version(name):
    """Stand in the place of `importlib.metadata.version` of another installation."""
    return "0.1.0"


def missing_package(name):
    """Stand in the place of `importlib.metadata.version` where the package is not installed."""
    raise importlib.metadata.PackageNotFoundError(name)


def set_version(stand_in):
    """Let a worker say another version."""
    importlib.metadata.version = stand_in


@pytest.mark.parametrize(
    ("stand_in", "has"), [(other_version, r"ammrank-dask 0\.1\.0 instead of \S+"), (missing_package, "no ammrank-dask")]
)
def test_library__names_a_worker_of_another_version(features, stand_in, has):
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, host="127.0.0.1", dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as own,
    ):
        own.run(set_version, stand_in)
        message = rf"the worker at tcp://\S+ has {has}; install ammrank-dask==\S+ where workers start$"
        for _ in range(2):
            with pytest.raises(ValueError, match=message):
                ammrank_dask.train(features, client=own, epochs=1)


def test_library__does_not_wait_for_the_version_of_a_worker_that_is_stuck(monkeypatch):
    monkeypatch.setattr("ammrank_dask.runtime.client.PATIENCE", 0.2)
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, host="127.0.0.1", dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as own,
    ):
        [worker] = cluster.workers.values()
        os.kill(worker.pid, signal.SIGSTOP)
        try:
            assert current_client(own) is own
        finally:
            os.kill(worker.pid, signal.SIGCONT)


CLIENT_FIRST = {
    "train(features, client=client)": lambda client: ammrank_dask.train(client, "features", shards=2),
    "tune(features, client=client)": lambda client: ammrank_dask.tune(client, "features"),
    "score(model, features, client=client)": lambda client: ammrank_dask.score(client, "model", "features", "q"),
    "learn_chances(model, features, client=client)": lambda client: ammrank_dask.learn_chances(client, "m", "f"),
    "exposure_report(quals, client=client)": lambda client: ammrank_dask.exposure_report(client, "quals"),
    "simulate(lake, client=client)": lambda client: ammrank_dask.simulate(client, "lake", truth="truth"),
}


@pytest.mark.parametrize("call", CLIENT_FIRST)
def test_library__shows_the_call_to_who_gives_a_client_first(client, call):
    message = f"client must be given by name: {call}, or without it for the current client"
    with pytest.raises(TypeError, match=re.escape(message)):
        CLIENT_FIRST[call](client)


def test_library__takes_the_current_client_and_leaves_it_as_it_is(client, features, tmp_path):
    with client.as_current():
        before = client.scheduler_comm.interval
        model = ammrank_dask.train(features, shards=1, epochs=1)
        quals = ammrank_dask.score(model, features, tmp_path / "quals", k=2)
        assert ammrank_dask.exposure_report(quals)["exposure"].sum() == len(quals.to_pandas())
    assert (client.status, client.scheduler_comm.interval) == ("running", before)


def test_train__takes_settings_and_fields_by_name(client, features):
    settings = ammrank_dask.TrainSettings(model="amm-rank", epochs=1, shards=2, regularization=0.01)
    by_name = ammrank_dask.train(features, client=client, model="amm-rank", epochs=1, shards=2, regularization=0.01)
    assert ammrank_dask.train(features, client=client, settings=settings).digest() == by_name.digest()
    other = ammrank_dask.train(features, client=client, settings=settings, seed=1)
    assert (other.seed, other.regularization) == (1, 0.01)
    assert other.digest() != by_name.digest()


WRONG_SETTINGS = {
    "a name that is none": ({"epoch": 3}, r"train\(\) has no argument 'epoch'; did you mean epochs\?"),
    "a dictionary": (
        {"settings": {"epochs": 3}},
        r"settings must be TrainSettings, got dict; pass TrainSettings\(…\)$",
    ),
}


@pytest.mark.parametrize("call", WRONG_SETTINGS)
def test_train__refuses_settings_that_are_none(client, features, call):
    options, message = WRONG_SETTINGS[call]
    with pytest.raises(TypeError, match=message):
        ammrank_dask.train(features, client=client, **options)


def test_train__takes_an_asynchronous_client_in_another_thread(features):
    async def call_it():
        async with (
            LocalCluster(
                n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None, asynchronous=True
            ) as cluster,
            Client(cluster, asynchronous=True, set_as_default=False) as own,
        ):
            return await asyncio.to_thread(ammrank_dask.train, features, client=own, shards=1, epochs=1)

    assert asyncio.run(call_it()).n_categories_ == 6


WRONG_FEATURES = r"features must be Features, got (str|ndarray); pass open_features\(path\), or write_features\("
WRONG_MODEL = r"model must be an AMMRankPlus or AMMRank, got Features; pass what train or load returns"
WRONG_QUALS = r"quals must be Qualifications, got str; pass what score returns, or open_qualifications\(path\)"
WRONG_OBJECTS = {
    "train path": (lambda client, model, features: ammrank_dask.train("features", client=client), WRONG_FEATURES),
    "train matrix": (lambda client, model, features: ammrank_dask.train(np.eye(2), client=client), WRONG_FEATURES),
    "tune": (lambda client, model, features: ammrank_dask.tune("features", client=client), WRONG_FEATURES),
    "score features": (
        lambda client, model, features: ammrank_dask.score(model, "a", "b", client=client), WRONG_FEATURES
    ),
    "score model": (
        lambda client, model, features: ammrank_dask.score(features, features, "b", client=client), WRONG_MODEL
    ),
    "score previous": (
        lambda client, model, features: ammrank_dask.score(model, features, "b", client=client, previous="a"),
        WRONG_QUALS.replace("quals must", "previous must"),
    ),
    "learn_chances features": (
        lambda client, model, features: ammrank_dask.learn_chances(model, "features", client=client), WRONG_FEATURES
    ),
    "learn_chances model": (
        lambda client, model, features: ammrank_dask.learn_chances(features, features, client=client), WRONG_MODEL
    ),
    "exposure_report": (
        lambda client, model, features: ammrank_dask.exposure_report("quals", client=client), WRONG_QUALS
    ),
}  # fmt: skip


@pytest.mark.parametrize("call", WRONG_OBJECTS)
def test_library__says_what_to_pass_instead_of_a_wrong_object(client, model, features, call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wrong, message = WRONG_OBJECTS[call]
    with pytest.raises(TypeError, match=message):
        wrong(client, model, features)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def blind(tmp_path, monkeypatch):
    """A client whose worker, a process of its own, sees another folder than the client under `OWN_VIEW`."""
    (tmp_path / "client").mkdir()
    (tmp_path / "worker").mkdir()
    monkeypatch.chdir(tmp_path / "client")
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, host="127.0.0.1", dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        client.run(os.chdir, str(tmp_path / "worker"))
        yield client


OWN_VIEW = Path("/proc/self/cwd")
"""An absolute path that means something else in every process, as that of a folder which hosts do not share."""


def test_library__says_which_worker_does_not_see_a_folder(client, blind, model, features, tmp_path):
    hidden = make_features(OWN_VIEW / "features", model, 200)
    quals = ammrank_dask.score(model, hidden, OWN_VIEW / "earlier", client=client, k=2)
    calls = {
        "features/manifest.json": [
            lambda: ammrank_dask.train(hidden, client=blind, epochs=1),
            lambda: ammrank_dask.tune(hidden, client=blind, epochs=1, scratch=tmp_path),
            lambda: ammrank_dask.score(model, hidden, tmp_path / "quals", client=blind, k=2),
            lambda: ammrank_dask.learn_chances(model, hidden, client=blind),
        ],
        "earlier/by_user/part-00000.parquet": [
            lambda: ammrank_dask.exposure_report(quals, client=blind),
            lambda: ammrank_dask.score(model, features, tmp_path / "others", client=blind, k=2, previous=quals),
        ],
        r"\.building-quals-\w+/\.work/model/facts.json": [
            lambda: ammrank_dask.score(model, features, OWN_VIEW / "quals", client=blind, k=2),
        ],
        r"chances-\w+/facts.json": [
            lambda: ammrank_dask.learn_chances(model, features, client=blind, scratch=OWN_VIEW),
        ],
    }  # fmt: skip
    for name, of_name in calls.items():
        for call in of_name:
            with pytest.raises(
                BadInput,
                match=rf"the worker at tcp://127\.0\.0\.1:\d+ does not see {OWN_VIEW}/{name}, which is there for this"
                r" process; its folder must be in a file system that all workers share, under one path",
            ):
                call()
    # What is missing for the client too is missing.
    (OWN_VIEW / "earlier" / "by_user" / "part-00000.parquet").unlink()
    with pytest.raises(BadInput, match=r"part-00000\.parquet is missing; make it again with"):
        ammrank_dask.score(model, features, tmp_path / "others", client=blind, k=2, previous=quals)


def test_train__says_that_the_client_does_not_see_what_workers_wrote(blind, features, tmp_path):
    message = rf"this process does not see {OWN_VIEW}/\.training-\w+/rows-00000, which workers have written; its folder"
    with pytest.raises(BadInput, match=message):
        ammrank_dask.train(features, client=blind, epochs=1, scratch=OWN_VIEW)


def test_library__takes_relative_paths_where_workers_have_another_current_folder(blind, model):
    features = make_features("features", model, 200)
    trained = ammrank_dask.train(features, client=blind, shards=1, epochs=1, scratch="scratch")
    quals = ammrank_dask.score(trained, ammrank_dask.open_features("features"), "quals", client=blind, k=2)
    report = ammrank_dask.exposure_report(ammrank_dask.open_qualifications("quals"), client=blind)
    assert report["exposure"].sum() == len(quals.to_pandas()) == 400
    ammrank_dask.simulate("lake", client=blind, truth="truth", users=10, days=1)
    assert Path("lake", "users.parquet").is_file()


LOG = pd.DataFrame(
    {"user_id": [7, 8], "group": ["pv", "adc"], "category": ["Hats", "Shoes"], "timestamp": pd.Timestamp("2026-01-03")}
)
USERS = pd.DataFrame({"user_id": [7], "age": [30], "gender": ["female"]})
ROWS, CODES = np.eye(4), np.array([[0], [1], [0], [1]])
DASK_ROWS, DASK_CODES = da.from_array(ROWS), da.from_array(CODES)
SPARSE_ROWS = DASK_ROWS.map_blocks(sp.csr_matrix)
IN_DASK = {
    "fit rankings": ("rankings", lambda: ammrank_dask.AMMRankPlus().fit(ROWS, DASK_CODES)),
    "fit ranks": ("ranks", lambda: ammrank_dask.AMMRank().fit(ROWS, ranks=DASK_CODES)),
    "fit_blocks": ("rankings", lambda: ammrank_dask.AMMRank(n_categories=2).fit_blocks([(ROWS, DASK_CODES)])),
    "fit_blocks rows": ("X", lambda: ammrank_dask.AMMRankPlus(n_categories=2).fit_blocks([(DASK_ROWS, CODES)])),
    "write_features rankings": (
        "rankings", lambda: ammrank_dask.write_features("run", ROWS, [1, 2, 3, 4], list("abcd"), DASK_CODES)
    ),
    "write_features ids": (
        "user_ids", lambda: ammrank_dask.write_features("run", ROWS, da.arange(4), list("abcd"))
    ),
    "scores": ("scores", lambda: ammrank_dask.disagreement_error(DASK_ROWS, CODES)),
    "scores at k": ("scores", lambda: ammrank_dask.top_k_metrics(DASK_ROWS, CODES, k=1)),
    "rankings of a measure": ("rankings", lambda: ammrank_dask.disagreement_error(ROWS, DASK_CODES)),
    "users": ("users", lambda: ammrank_dask.interest_features(LOG, "2026-01-04", dd.from_pandas(USERS))),
    "taxonomy": ("taxonomy", lambda: ammrank_dask.interest_features(LOG, "2026-01-04", None, dd.from_pandas(USERS))),
}  # fmt: skip


@pytest.mark.parametrize("call", IN_DASK)
def test_library__refuses_dask_collections_where_it_works_in_memory(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name, collect = IN_DASK[call]
    message = rf"{name} must be in memory, got a Dask collection \(dask\.\S+\); pass {name}\.compute\(\) if it fits"
    with pytest.raises(ValueError, match=message):
        collect()
    assert list(tmp_path.iterdir()) == []


IN_PANDAS = {
    "events without a column": (
        lambda: ammrank_dask.interest_features(LOG.rename(columns={"group": "kind"}), "2026-01-04"),
        r"events has no column 'group'; it has 'user_id', 'kind', 'category', 'timestamp'\. Rename them with"
        r" events\.rename\(columns=\{…\}\)$",
    ),
    "users without ids": (
        lambda: ammrank_dask.interest_features(LOG, "2026-01-04", USERS.drop(columns="user_id")),
        r"users has no column 'user_id'; it has 'age', 'gender'\. Rename them with users\.rename\(columns=\{…\}\)$",
    ),
    "clicks without a column": (
        lambda: ammrank_dask.click_rankings(LOG.drop(columns="timestamp"), "2026-01-01", "2026-01-04", [7]),
        r"events has no column 'timestamp'; .*\. Rename them with events\.rename\(columns=\{…\}\)$",
    ),
    "times as integers": (
        lambda: ammrank_dask.interest_features(LOG.assign(timestamp=1_767_398_400), "2026-01-04"),
        r"events: 'timestamp' must hold times, found int64; convert it with pandas\.to_datetime\(events\['timestamp'\],"
        r" unit=…\)$",
    ),
    "times as text": (
        lambda: ammrank_dask.interest_features(LOG.assign(timestamp="2026-01-03"), "2026-01-04"),
        r"events: 'timestamp' must hold times, found .*string; convert it with"
        r" pandas\.to_datetime\(events\['timestamp'\]\)$",
    ),
    "level": (
        lambda: ammrank_dask.interest_features(LOG, "2026-01-04", taxonomy={"Hats": "", "Shoes": ""}),
        r"the taxonomy has no category at level 2 \(its depth is 1\); set level$",
    ),
}  # fmt: skip


@pytest.mark.parametrize("call", IN_PANDAS)
def test_library__says_of_pandas_tables_what_to_do_in_pandas(call):
    wrong, message = IN_PANDAS[call]
    with pytest.raises(ValueError, match=message):
        wrong()
