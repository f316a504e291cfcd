"""Dask collections give what arrays give, block by block, and nothing is collected on the way."""

import contextlib
import os
import signal

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from distributed import Client, LocalCluster

from ammrank_dask import (
    AMM,
    AMMRank,
    AMMRankPlus,
    Features,
    click_rankings,
    interest_features,
    open_features,
    open_qualifications,
    score,
    train,
    write_features,
)
from ammrank_dask.storage.errors import AmmrankError
from ammrank_dask.storage.site.site import Site

N_COLUMNS, N_CATEGORIES = 6, 4


@pytest.fixture(scope="module")
def rows():
    """Sparse rows and what they rank."""
    rng = np.random.default_rng(5)
    X = sp.random(2_500, N_COLUMNS, density=0.6, format="csr", dtype=np.float32, random_state=3)
    noise = rng.normal(size=(X.shape[0], N_CATEGORIES))
    best = np.argsort(-(X @ rng.normal(size=(N_COLUMNS, N_CATEGORIES)) + 0.3 * noise), axis=1)
    return X, best[:, :2].astype(np.int32)


def as_blocks(X, lengths, dtype=np.float32):
    """Return CSR rows as a Dask array of CSR blocks."""
    ends = np.cumsum(lengths)
    blocks = [X[end - length : end] for end, length in zip(ends, lengths, strict=True)]
    parts = [da.from_delayed(_delayed(block), block.shape, meta=sp.csr_matrix((0, 0), dtype=dtype)) for block in blocks]
    return da.concatenate(parts)


def _delayed(block):
    return dask.delayed(block, traverse=False)


LENGTHS = (1_000, 700, 800)


@pytest.mark.parametrize("kind", [AMM, AMMRank, AMMRankPlus])
def test_fit__of_blocks_is_that_of_the_same_blocks_in_memory(client, rows, kind):
    X, rankings = rows
    ends = np.cumsum(LENGTHS)
    blocks = [(X[e - n : e], rankings[e - n : e]) for e, n in zip(ends, LENGTHS, strict=True)]
    expected = kind(epochs=2, n_categories=N_CATEGORIES).fit_blocks(blocks)
    with client.as_current():
        found = kind(epochs=2).fit(as_blocks(X, LENGTHS), da.from_array(rankings, (LENGTHS, 2)), shards=1)
        np.testing.assert_array_equal(found.weights_, expected.weights_)
        assert found.popularity_.tolist() == expected.popularity_.tolist()
        assert found.n_categories is None


@pytest.mark.parametrize("kind", [AMMRank, AMMRankPlus])
def test_fit__gives_the_same_bits_on_more_workers_and_for_dense_blocks(client, elsewhere, rows, kind):
    X, rankings = rows
    sparse, dense = as_blocks(X, LENGTHS), da.from_array(X.toarray(), (LENGTHS, -1))
    first = kind(epochs=1).fit(sparse, rankings, client=client, shards=3)
    second = kind(epochs=1).fit(dense, rankings, client=elsewhere, shards=3)
    assert first.digest() == second.digest()


@pytest.mark.parametrize("kind", [AMMRank, AMMRankPlus])
def test_predictions__of_blocks_are_lazy_and_those_of_rows(client, rows, kind):
    X, rankings = rows
    model = kind(epochs=1).fit(X, rankings)
    blocks = as_blocks(X, LENGTHS)
    with client.as_current():
        codes, scores = model.predict_top_k(blocks, k=2)
        lazy = [model.predict(blocks), model.decision_function(blocks), codes, scores]
        assert all(isinstance(each, da.Array) for each in lazy)
        assert [each.dtype.str for each in lazy] == ["<i4", "<f4", "<i4", "<f4"]
        assert [each.chunks[0] for each in lazy] == [LENGTHS] * 4
        found = client.compute(lazy, sync=True)
        in_blocks = da.from_array(rankings, (LENGTHS, 2))
        assert model.score(blocks, in_blocks) == model.score(blocks, rankings) == model.score(X, rankings)
    expected = [model.predict(X), model.decision_function(X), *model.predict_top_k(X, k=2)]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("ids", ["int64", "string"])
def test_write_features__of_blocks_is_the_store_of_the_same_rows(client, rows, ids, tmp_path):
    X, rankings = rows
    users = pd.Series(np.arange(len(rankings)) * 7)
    users = users if ids == "int64" else "user-" + users.astype(str)
    columns, categories = list("abcdef"), list("wxyz")
    options = {"categories": categories, "n_partitions": 4}
    expected = write_features(tmp_path / "memory", X, users, columns, rankings, **options)
    series = dd.from_map(lambda part: part, [users[:1_000], users[1_000:1_700], users[1_700:]], meta=users[:0])
    given = da.from_array(rankings, (LENGTHS, 2))
    found = write_features(tmp_path / "blocks", as_blocks(X, LENGTHS), series, columns, given, client=client, **options)
    assert found.run.checksums == expected.run.checksums
    again_X, again_ids, names = found.to_dask()
    assert names == columns
    assert again_X.shape == X.shape
    with client.as_current():
        again = write_features(tmp_path / "again", again_X, again_ids, columns, categories=categories)
        assert again.to_pandas().equals(expected.to_pandas())


def test_score__without_a_path_is_lazy_and_gives_the_lists_of_a_store(client, features, tmp_path):
    model = train(features, client=client, model="amm-rank", shards=2, epochs=1)
    expected = score(model, features, tmp_path / "stored", client=client, k=2).to_pandas()
    with client.as_current():
        frame = score(model, features, k=2)
        assert isinstance(frame, dd.DataFrame)
        assert frame.npartitions == features.n_partitions
        lazy = frame.compute().sort_values(["user_id", "rank"], ignore_index=True)
        pd.testing.assert_frame_equal(lazy, expected[["user_id", "rank", "category", "score"]])
        quals = score(model, features, tmp_path / "stored", k=2)
        read = quals.to_dask().compute().sort_values(["user_id", "rank"], ignore_index=True)
        pd.testing.assert_frame_equal(read, expected)
        X, user_ids, _ = features.to_dask(normalize=True)
        blocks = score(model, X, tmp_path / "blocks", user_ids=user_ids, k=2, policy="category_top_n")
        assert blocks.policy == "category_top_n"
        pd.testing.assert_frame_equal(score(model, X, tmp_path / "b", user_ids=user_ids, k=2).to_pandas(), expected)
        names = pd.Series([f"user-{number}" for number in range(len(X))])
        assert score(model, X, user_ids=names, k=1).compute()["user_id"].tolist() == names.tolist()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "blocks", "stored"]


ROWS, CODES = np.eye(4, dtype=np.float32), np.array([[0], [1], [0], [1]])
BLOCKS, CODE_BLOCKS = da.from_array(ROWS, (2, 4)), da.from_array(CODES, (2, 1))
UNKNOWN = BLOCKS[da.from_array(ROWS[:, 0] >= 0, 2)]
LOG = pd.DataFrame(
    {"user_id": [7, 8], "group": ["pv", "adc"], "category": ["Hats", "Shoes"], "timestamp": pd.Timestamp("2026-01-03")}
)
NO_IDS = pd.Series(dtype="int64")
EVENTS = dd.from_pandas(LOG, npartitions=2)
MODEL = AMMRank(epochs=1).fit(ROWS, CODES)
TABLE = pd.DataFrame(ROWS, columns=list("abcd"))
WRONG = {
    "rows of several lengths": (
        lambda: AMMRank().fit([[1, 2], [3]], CODES[:2]), "X must have rows of one length, found several; pass an array"
    ),
    "rankings of several lengths": (
        lambda: AMMRank().fit(ROWS, [[0], [1, 0], [0], [1]]), "rankings must have rows of one length, found several"
    ),
    "a path for rows": (lambda: AMMRank().fit("rows", CODES), "X must be an array, a table or a Dask array, got str$"),
    "a path to score": (lambda: MODEL.predict("rows"), "X must be an array, a table or a Dask array, got str$"),
    "features for rows": (
        lambda: MODEL.predict(object.__new__(Features)),
        r"X must be an array, .*, got Features; pass train\(features\) or features\.to_dask\(\)$",
    ),
    "rows in memory beside blocks of rankings": (
        lambda: AMMRank().fit(ROWS, CODE_BLOCKS),
        r"rankings must be in memory, got .*; pass rankings\.compute\(\) if it fits, else call fit with Dask arr",
    ),
    "rows in memory to lists": (
        lambda: score(MODEL, ROWS, user_ids=[1, 2, 3, 4], k=1),
        r"features must be Features, got ndarray; pass open_features\(path\), or write_features\(path, X, user_ids",
    ),
    "a Dask table for rows to score": (
        lambda: MODEL.predict(dd.from_pandas(TABLE, npartitions=2)),
        r"X must be a Dask array, got dask\.\S+; pass its to_dask_array\(lengths=True\)$",
    ),
    "a Dask table for rows of lists": (
        lambda: score(MODEL, dd.from_pandas(TABLE, npartitions=2), user_ids=[1, 2, 3, 4], k=1),
        r"X must be a Dask array, got dask\.\S+; pass its to_dask_array\(lengths=True\)$",
    ),
    "a path for events": (
        lambda: interest_features("lake/events", "2026-01-04"),
        "events must be a DataFrame of pandas or Dask, got str; read files with pandas.read_parquet or dask.datafr",
    ),
    "a list of blocks for events": (
        lambda: interest_features([LOG, LOG], "2026-01-04"), "events must be a DataFrame of pandas or Dask, got list;"
    ),
    "text for times in blocks": (
        lambda: interest_features(EVENTS.assign(timestamp="2026-01-03"), "2026-01-04"),
        r"events: 'timestamp' must hold times, found .*string; convert it with pandas\.to_datetime",
    ),
    "floats for ids in blocks": (
        lambda: interest_features(EVENTS.assign(user_id=1.5), "2026-01-04"),
        r"user ids in 'user_id' must be int64 or string, found double; convert the column$",
    ),
    "text for rows": (
        lambda: MODEL.predict_top_k(da.full((4, 4), "a", chunks=(2, 4)), k=1)[0].compute(), "X must hold numbers, found"
    ),
    "complex rows": (lambda: MODEL.predict(BLOCKS * 1j).compute(), "X must hold numbers, found complex"),
    "columns without a name": (
        lambda: AMMRank().fit(ROWS, CODES, columns=["a"]), "X must have the 1 columns that are named, got 4$"
    ),
    "a name twice": (
        lambda: AMMRank().fit(BLOCKS, CODES, categories=["a", "a"]), "categories must be distinct names in a list"
    ),
    "more categories than names": (
        lambda: AMMRank().fit(ROWS, CODES, categories=["a"]), "rankings must hold codes from 0 to 0, or -1, got 1$"
    ),
    "k": (lambda: MODEL.predict_top_k(BLOCKS, k=9), r"k must be between 1 and n_categories \(2\), got 9$"),
    "ids that are too few": (
        lambda: score(MODEL, BLOCKS, user_ids=[1, 2], k=1), "user_ids must have the 4 rows of X, got 2$"
    ),
    "columns in blocks": (
        lambda: AMMRank().fit(BLOCKS.rechunk((2, 2)), CODE_BLOCKS),
        r"X must have one block along its columns, got 2; pass X\.rechunk\(\{1: -1\}\)$",
    ),
    "one dimension": (lambda: AMMRank().fit(BLOCKS[:, 0], CODE_BLOCKS), "X must have two dimensions, got 1$"),
    "frame for rows": (
        lambda: AMMRank().fit(EVENTS, CODE_BLOCKS),
        r"X must be a Dask array, got dask\.\S+; pass its to_dask_array\(lengths=True\)$",
    ),
    "array for blocks of rankings": (
        lambda: AMMRank().fit(UNKNOWN, CODES),
        r"rankings must be a Dask collection with the blocks of X, for their lengths are not known; pass"
        r" X\.compute_chunk_sizes\(\) for X$",
    ),
    "other blocks": (
        lambda: AMMRank().fit(BLOCKS, CODE_BLOCKS.rechunk((1, 1))),
        r"rankings must have the blocks of X \(2\), got 4 of other lengths; pass rankings\.rechunk\(\{0: X\.chunks",
    ),
    "fewer rankings": (lambda: AMMRank().fit(BLOCKS, CODES[:3]), "rankings must have the 4 rows of X, got 3$"),
    "ranks": (
        lambda: AMMRank().fit(BLOCKS, ranks=CODE_BLOCKS),
        "fit must be given rankings with a Dask array, not ranks; pass rankings$",
    ),
    "no labels": (lambda: AMMRank().fit(BLOCKS, CODES * 0 - 1), "rankings must hold at least one category"),
    "too many shards": (lambda: AMMRank().fit(BLOCKS, CODES, shards=5), "shards must be at most the number of"),
    "floats as rankings": (lambda: AMMRank().fit(BLOCKS, CODES / 2), r"rankings must be integers of shape \(2, m\)"),
    "values that are no numbers": (
        lambda: AMMRank().fit(da.full((4, 4), "a", chunks=(2, 4)), CODES),
        "X must be a matrix of numbers, found other values; fill, convert or drop them",
    ),
    "infinite values": (lambda: AMMRank().fit(BLOCKS * np.inf, CODES), "X must be finite, found NaN or infinity"),
    "width": (lambda: AMMRank().fit(ROWS, CODES).predict(BLOCKS[:, :3]), "X must have 4 features, got 3$"),
    "score without ids": (
        lambda: score(AMMRank().fit(ROWS, CODES), BLOCKS, k=1),
        "user_ids must be given with a Dask array; pass user_ids=…",
    ),
    "policy without a path": (
        lambda: score(AMMRank().fit(ROWS, CODES), BLOCKS, user_ids=[1, 2, 3, 4], k=1, policy="balanced"),
        "only k can be chosen without a path: the rest needs several passes; pass path=…, a folder$",
    ),
    "duplicate ids": (
        lambda: write_features("f", BLOCKS, [1, 2, 1, 3], list("abcd"), n_partitions=1),
        "user ids must be distinct, found 1 duplicates$",
    ),
    "duplicate ids of one block": (
        lambda: write_features("f", BLOCKS, [1, 1, 2, 3], list("abcd")), "user ids must be distinct, found 1 duplic"
    ),
    "ids of two kinds": (
        lambda: write_features("f", BLOCKS, dd.from_map(pd.Series, [[1, 2], ["a", "b"]], meta=NO_IDS), list("abcd")),
        "user ids must be of one type, found int64 and string; convert one of the two sources$",
    ),
    "fewer names": (
        lambda: write_features("f", BLOCKS, [1, 2, 3, 4], ["a"]), "X must have the 1 columns that are named, got 4$"
    ),
    "events without a column": (
        lambda: interest_features(EVENTS.drop(columns="group"), "2026-01-04"),
        r"events has no column 'group'; it has .*\. Rename them with events\.rename\(columns=\{…\}\)$",
    ),
    "an array for events": (
        lambda: interest_features(BLOCKS, "2026-01-04"),
        r"events must be a Dask DataFrame, got dask\.array\.core\.Array$",
    ),
    "an array for users": (
        lambda: interest_features(EVENTS, "2026-01-04", BLOCKS),
        "users must be a DataFrame of pandas or Dask, got Array$",
    ),
    "users twice": (
        lambda: interest_features(EVENTS, "2026-01-04", dd.from_map(pd.DataFrame, [{"user_id": [7]}] * 2)),
        "users must be distinct, found 1 duplicates; drop them$",
    ),
    "users of another kind": (
        lambda: interest_features(EVENTS, "2026-01-04", pd.DataFrame({"user_id": ["a"]})),
        "user ids must be of one type, found int64 and string; convert one of the two sources$",
    ),
    "ids in memory": (
        lambda: _click_rankings([7, 8]),
        "user_ids must be a Dask Series where events are a Dask DataFrame, got list; pass those that interest_features",
    ),
    "ids of other blocks": (
        lambda: _click_rankings(dd.from_pandas(pd.Series(range(100)), npartitions=2)),
        "user_ids must be placed by their hash; pass what interest_features or Features.to_dask returned$",
    ),
}  # fmt: skip


def _click_rankings(user_ids):
    return click_rankings(EVENTS, "2026-01-01", "2026-01-04", user_ids)


@pytest.mark.parametrize("call", WRONG)
def test_collections__are_refused_with_what_to_do_in_python(client, call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wrong, message = WRONG[call]
    with client.as_current(), pytest.raises((ValueError, TypeError), match=message) as refused:
        wrong()
    text = str(refused.value)
    assert "\n" not in text
    assert "ammrank.yaml" not in text
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == []


def test_open_features__of_blocks_knows_no_one_twice(client, rows, tmp_path):
    X, rankings = rows
    store = write_features(
        tmp_path / "f", as_blocks(X, LENGTHS), np.arange(2_500), list("abcdef"), rankings, client=client
    )
    assert open_features(store.path).n_users == 2_500


def test_open__finds_the_nights_of_a_site_by_date(published_world):
    night = published_world.scored_nights()[0].name.removeprefix("date=")
    quals, stored = open_qualifications(published_world.path, night), open_features(published_world.path, night)
    assert quals.path.name == f"date={night}"
    assert stored.n_users >= quals.to_pandas()["user_id"].nunique() > 0
    with pytest.raises(ValueError, match=r"qualifications has no run of 2031-01-01; it has \d{4}-\d\d-\d\d to \d{4}"):
        open_qualifications(published_world.path, "2031-01-01")
    with pytest.raises(ValueError, match="date must be a day as in 2026-05-06, got 'today'"):
        open_features(published_world.path, "today")


def test_open__refuses_two_runs_of_a_date_and_a_folder_without_any(tmp_path):
    with pytest.raises(ValueError, match=r"features has no run of 2026-01-05; it has none$"):
        open_features(tmp_path, "2026-01-05")
    runs = [tmp_path / "features" / f"date=2026-01-05-{digest}" for digest in "ab"]
    Site(tmp_path).begin(runs)
    for run in runs:
        write_features(run, ROWS, [1, 2, 3, 4], list("abcd"))
    message = r"features must have one run of 2026-01-05, found date=2026-01-05-a, date=2026-01-05-b; open one by"
    with pytest.raises(ValueError, match=message):
        open_features(tmp_path, "2026-01-05")


def die(frame):
    """Kill the worker process, whoever comes here."""
    if len(frame):
        os.kill(os.getpid(), signal.SIGKILL)
    return frame


def test_interest_features__say_that_blocks_are_too_large_for_the_workers():
    blocks = EVENTS.map_partitions(die, meta=LOG.iloc[:0])
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        LocalCluster(n_workers=1, threads_per_worker=1, host="127.0.0.1", dashboard_address=None) as cluster,
        Client(cluster) as own,
        pytest.raises(
            AmmrankError, match="a worker ran out of memory with one block; make blocks smaller with rechunk"
        ),
    ):
        interest_features(blocks, "2026-01-04", taxonomy={"Hats": "", "Shoes": ""}, level=1, client=own)


def test_interest_features__do_not_wait_for_workers_for_ever():
    with (
        dask.config.set({"distributed.scheduler.no-workers-timeout": "1s"}),
        LocalCluster(n_workers=0, processes=False, dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as own,
        pytest.raises(AmmrankError, match="stage write_event_slices has had no worker for 1 s"),
    ):
        interest_features(EVENTS, "2026-01-04", taxonomy={"Hats": "", "Shoes": ""}, level=1, client=own)


def die_once(frame, flag):
    """Kill the worker process that is the first to come here."""
    if len(frame):
        with contextlib.suppress(FileExistsError):
            flag.touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)
    return frame


def test_interest_features__survive_a_killed_worker(client, tmp_path):
    rng = np.random.default_rng(1)
    log = pd.concat([LOG] * 200, ignore_index=True).assign(user_id=rng.integers(0, 50, 400))
    expected, ids, _ = interest_features(log, "2026-01-04")
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as own,
    ):
        blocks = dd.from_pandas(log, npartitions=4).map_partitions(die_once, tmp_path / "flag", meta=LOG.iloc[:0])
        with own.as_current():
            X, user_ids, _ = interest_features(blocks, "2026-01-04", taxonomy={"Hats": "", "Shoes": ""}, level=1)
            assert (tmp_path / "flag").exists()
            os.kill(next(iter(cluster.workers.values())).pid, signal.SIGKILL)
            found = pd.DataFrame(X.compute().toarray(), index=user_ids.compute().to_numpy()).sort_index()
    np.testing.assert_array_equal(found.to_numpy(), expected.toarray())
    assert found.index.tolist() == ids.tolist()


def test_fit__survives_a_killed_worker(client, rows, tmp_path):
    X, rankings = rows
    expected = AMMRankPlus(epochs=1).fit(as_blocks(X, LENGTHS), rankings, client=client, shards=2)
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as own,
    ):
        blocks = as_blocks(X, LENGTHS).map_blocks(die_once_at_rows, tmp_path / "flag", meta=X[:0])
        found = AMMRankPlus(epochs=1).fit(blocks, rankings, client=own, shards=2)
    assert (tmp_path / "flag").exists()
    assert found.digest() == expected.digest()


def die_once_at_rows(rows, flag):
    """Kill the worker process that is the first to come here with rows."""
    if rows.shape[0]:
        die_once(LOG, flag)
    return rows


@pytest.mark.parametrize("kind", [AMMRank, AMMRankPlus])
def test_fit__of_named_columns_is_that_of_train(client, kind, tmp_path):
    events = pd.concat([LOG] * 300, ignore_index=True).assign(user_id=np.repeat(np.arange(100), 6))
    X, ids, columns = interest_features(events, "2026-01-04")
    rankings, categories = click_rankings(events, "2026-01-01", "2026-01-04", ids)
    blocks = da.from_array(X.toarray(), (50, -1))
    named = {"columns": columns, "categories": categories}
    here = kind(epochs=1, bias=0.5).fit(X, rankings, **named)
    there = kind(epochs=1, bias=0.5).fit(blocks, rankings, client=client, shards=1, **named)
    assert here.columns_ == there.columns_ == columns
    assert here.categories_ == there.categories_ == categories == ["Hats", "Shoes"]
    assert here.get_params() == kind(epochs=1, bias=0.5).get_params()
    if kind is AMMRankPlus:
        assert (here.basis_.own.columns >= 0).any()
        np.testing.assert_array_equal(here.basis_.own.columns, there.basis_.own.columns)
        own = AMMRankPlus(epochs=1).fit(X, rankings, columns=columns)
        assert not own.basis_.own.columns.size
    here.save(tmp_path / "model")
    again = kind.load(tmp_path / "model")
    np.testing.assert_array_equal(again.decision_function(X), here.decision_function(X))
    lists = score(here, blocks, user_ids=ids, k=1).compute()
    assert set(lists["category"]) <= {"Hats", "Shoes"}


@pytest.mark.long
@pytest.mark.parametrize("n_workers", [1, 2, 4])
def test_interest_features__give_the_same_bits_on_any_number_of_workers(n_workers):
    rng = np.random.default_rng(1)
    log = pd.concat([LOG] * 500, ignore_index=True).assign(user_id=rng.integers(0, 70, 1_000))
    log["timestamp"] += pd.to_timedelta(rng.integers(0, 20, 1_000), unit="h")
    expected, ids, names = interest_features(log, "2026-01-05")
    with Client(n_workers=n_workers, threads_per_worker=1, dashboard_address=None):
        events = dd.from_pandas(log.sample(frac=1, random_state=2), npartitions=5, sort=False)
        X, user_ids, columns = interest_features(events, "2026-01-05")
        rows, there = X.compute(), user_ids.compute().to_numpy()
        rankings, _ = click_rankings(events, "2026-01-01", "2026-01-05", user_ids)
        codes = rankings.compute()
    order = np.argsort(there)
    assert columns == names
    assert there[order].tolist() == ids.tolist()
    assert (rows[order] != expected).nnz == 0
    np.testing.assert_array_equal(codes[order], click_rankings(log, "2026-01-01", "2026-01-05", ids)[0])


@pytest.mark.long
@pytest.mark.parametrize("n_workers", [1, 2, 4])
def test_collections__give_the_same_bits_on_any_number_of_workers(rows, n_workers):
    X, rankings = rows
    here = AMMRankPlus(epochs=2)
    with Client(n_workers=1, processes=False, dashboard_address=None):
        here.fit(as_blocks(X, LENGTHS), rankings, shards=3)
    with Client(n_workers=n_workers, threads_per_worker=1, dashboard_address=None):
        there = AMMRankPlus(epochs=2).fit(as_blocks(X, LENGTHS), rankings, shards=3)
        scores = there.decision_function(as_blocks(X, LENGTHS)).compute()
    assert there.digest() == here.digest()
    np.testing.assert_array_equal(scores, here.decision_function(X))


def test_scratch__must_be_given_where_workers_are_on_several_hosts(client, monkeypatch):
    told = {"workers": {name: {"host": name, "local_directory": "/tmp/a"} for name in ("10.0.0.1", "10.0.0.2")}}
    monkeypatch.setattr(client, "scheduler_info", lambda n_workers=-1: told)
    with pytest.raises(ValueError, match="scratch must be given, a folder that all workers see: they are on 2 hosts"):
        AMMRank().fit(BLOCKS, CODES, client=client)
