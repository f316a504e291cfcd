"""The examples run as they are, and find what was put into their data."""

import subprocess
import sys

import numpy as np
import pytest
from distributed import Client, LocalCluster

from ammrank_dask.workflows.examples.fair_shares import share_fairly
from ammrank_dask.workflows.examples.own_cluster import CATEGORIES, NOW, make_log, run_example


def test_run_example__finds_the_favourites_of_most_users(tmp_path):
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        qualifications, exposure = run_example(client, tmp_path, n_users=800)
        assert client.status == "running"
    log = make_log(800)
    views = log[(log["group"] == "pv") & (log["timestamp"] <= NOW)]
    top = views.groupby(["user_id", "category"]).size().unstack(fill_value=0).reindex(columns=list(CATEGORIES))
    two_most_seen = np.argsort(-top.to_numpy(), axis=1, kind="stable")[:, :2]
    first = qualifications[qualifications["rank"] == 1].set_index("user_id")["category"].astype(str)
    assert len(qualifications) == 2 * qualifications["user_id"].nunique()
    # Both favourites of a user are seen equally often; one in three would be chance.
    favourites = dict(zip(top.index, np.array(CATEGORIES)[two_most_seen].tolist(), strict=True))
    assert np.mean([category in favourites[user] for user, category in first.items()]) > 0.9
    assert exposure["exposure"].sum() == len(qualifications)


@pytest.mark.night
def test_share_fairly__keeps_floors_and_opt_outs(client, tmp_path):
    qualifications, exposure = share_fairly(client, tmp_path, n_users=800)
    n_users = qualifications["user_id"].nunique()
    assert set(qualifications.groupby("user_id").size()) == {2}
    assert exposure["balanced"].sum() == exposure["user_top_k"].sum() == 2 * n_users
    assert exposure.loc["Hats", "balanced"] >= 0.25 * 2 * n_users > exposure.loc["Hats", "user_top_k"]
    first = qualifications[qualifications["user_id"] == qualifications["user_id"].min()]
    assert "Hats" not in set(first["category"])
    assert ((qualifications["chance"] > 0) & (qualifications["chance"] < 1)).all()


@pytest.mark.night
def test_own_cluster__runs_as_a_script():
    done = subprocess.run(
        [sys.executable, "-m", "ammrank_dask.workflows.examples.own_cluster"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("dashboard http://127.0.0.1:")
    assert "user_id" in done.stdout.splitlines()[0]
    assert "exposure" in done.stdout
