"""A log in Dask blocks gives what the same log gives in pandas, whoever works on it."""

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from ammrank_dask import click_rankings, interest_features

T0, T1 = "2026-01-20", "2026-02-20"


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def make_log(rng, n=3_000, ids="int64"):
    """Return events of 60 users, some of them equal in all columns."""
    user = rng.integers(0, 60, n)
    log = pd.DataFrame(
        {
            "user_id": user if ids == "int64" else [f"user-{one}" for one in user],
            "group": rng.choice(["pv", "sq", "adv", "adc"], n),
            "category": rng.choice(["Hats", "Shoes", "Bags", "Belts"], n),
            "timestamp": pd.Timestamp("2026-01-01") + pd.to_timedelta(rng.integers(0, 50 * 24, n), unit="h"),
        }
    )
    return pd.concat([log, log.sample(200, random_state=1)], ignore_index=True)


def make_users(log):
    """Return users, some of whom have no event."""
    ids = [*log["user_id"].unique()[:40], *(["a", "b"] if log["user_id"].dtype != "int64" else [1_000, 1_001])]
    return pd.DataFrame({"user_id": ids, "age": np.arange(len(ids)) + 14, "gender": ["female", "male"] * 21})


def by_user(X, ids, *others):
    """Return dense rows in the order of the users."""
    order = np.argsort(ids.to_numpy(), kind="stable")
    return [ids.to_numpy()[order].tolist(), *(np.asarray(rows)[order] for rows in (X.toarray(), *others))]


@pytest.mark.parametrize("ids", ["int64", "string"])
@pytest.mark.parametrize("npartitions", [1, 4])
def test_interest_features__of_blocks_are_those_of_pandas(client, rng, ids, npartitions, tmp_path):
    log = make_log(rng, ids=ids)
    users = make_users(log)
    X, user_ids, columns = interest_features(log, T0, users)
    expected = by_user(X, user_ids, click_rankings(log, T0, T1, user_ids)[0])
    blocks = dd.from_pandas(log.sample(frac=1, random_state=2), npartitions=npartitions, sort=False)
    with client.as_current():
        dask_X, dask_ids, dask_columns = interest_features(blocks, T0, users, scratch=tmp_path)
        rankings, categories = click_rankings(blocks, T0, T1, dask_ids)
        assert dask_columns == columns
        assert categories == ["Bags", "Belts", "Hats", "Shoes"]
        assert dask_X.numblocks == (npartitions, 1)
        assert dask_X.shape == X.shape
        assert rankings.chunks[0] == dask_X.chunks[0]
        found = by_user(dask_X.compute(), dask_ids.compute(), rankings.compute())
    assert found[0] == expected[0]
    np.testing.assert_array_equal(found[1].view(np.int64), expected[1].view(np.int64))
    np.testing.assert_array_equal(found[2], expected[2])


def test_interest_features__of_blocks_are_the_same_bits_on_more_workers(client, elsewhere, rng):
    blocks = dd.from_pandas(make_log(rng), npartitions=3)
    users = dd.from_pandas(make_users(make_log(rng)), npartitions=2)
    found = []
    for each in (client, elsewhere):
        with each.as_current():
            X, user_ids, _ = interest_features(blocks, T0, users)
            found.append((X.compute().toarray(), user_ids.compute().tolist()))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


def test_interest_features__of_a_log_without_users_in_some_blocks(client):
    log = pd.DataFrame(
        {"user_id": [7], "group": ["pv"], "category": ["Hats"], "timestamp": [pd.Timestamp("2026-01-03")]}
    )
    blocks = dd.from_pandas(pd.concat([log] * 4, ignore_index=True), npartitions=4)
    with client.as_current():
        assert interest_features(blocks, "2026-01-04", n_partitions=2)[0].numblocks == (2, 1)
        with pytest.raises(ValueError, match="n_partitions must be at least 1, got 0"):
            interest_features(blocks, "2026-01-04", n_partitions=0)
        X, user_ids, _ = interest_features(blocks, "2026-01-04", groups=["pv"], intensity="raw")
        rankings, _ = click_rankings(blocks, "2026-01-01", "2026-01-04", user_ids)
        assert sorted(X.chunks[0]) == [0, 0, 0, 1]
        np.testing.assert_allclose(X.compute().toarray(), [[4 * 0.995, 0.995]])
        assert rankings.compute().shape == (1, 0)
