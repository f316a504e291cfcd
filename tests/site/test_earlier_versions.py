"""A site that version 0.1.0 made runs its next night.

`tests/data/site-0.1.0.tar.xz` holds a lake of 150 simulated users over 16 days and a site with the published nights of
2026-01-17 and 2026-01-18, as version 0.1.0 left them (performance pages removed for size).
"""

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import zarr

from ammrank_dask import AMMRank
from ammrank_dask.storage.errors import BadInput, DamagedStore
from ammrank_dask.storage.store.models import read_model

ARCHIVE = Path(__file__).parent.parent / "data" / "site-0.1.0.tar.xz"
CLUSTER = """version: 1
class: distributed.LocalCluster
kwargs: {n_workers: 1, processes: false, threads_per_worker: 2, dashboard_address: "127.0.0.1:0"}
wait_for_workers: 1
"""


def run(*arguments):
    command = [sys.executable, "-m", "ammrank_dask.workflows.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def site(tmp_path):
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    (tmp_path / "site" / "cluster.yaml").write_text(CLUSTER)
    return tmp_path / "site"


def test_nightly__goes_on_with_a_site_of_version_0_1_0(site):
    done = run("nightly", site, "--date", "2026-01-19", "--quiet", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["users"] == 150
    before, after = (
        pq.read_table(site / "qualifications" / f"date=2026-01-{day}" / "by_user").to_pandas() for day in (18, 19)
    )
    assert set(after["user_id"]) == set(before["user_id"])
    assert (after.groupby("user_id").size() == 10).all()
    # The night before was scored by the same model: most users keep most of their categories.
    kept = before.merge(after, on=["user_id", "category"])
    assert len(kept) > 0.8 * len(before)


def test_verify__accepts_a_site_of_version_0_1_0(site):
    done = run("verify", site, "--json")
    assert done.returncode == 0, done.stderr + done.stdout


def model_of(site):
    return site / json.loads((site / "CURRENT").read_text())["runs"]["model"]


def test_load__a_model_of_version_0_1_0_has_what_zarr_reads(site):
    path = model_of(site)
    group = zarr.open_group(path / "model.zarr", mode="r")
    for folder in (path, path / "model.zarr"):  # in its run, and as `save` wrote it alone
        arrays, attributes = read_model(folder)
        assert sorted(arrays) == ["columns", "plane_category", "popularity", "weights"]
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, group[name][...])
        assert attributes["model"] == "amm-rank"
        model = AMMRank.load(folder)
        assert model.get_params()["epochs"] == attributes["parameters"]["epochs"]
        assert len(model.columns_) == model.n_features_in_
        np.testing.assert_array_equal(model.weights_, group["weights"][...])


def test_load__a_model_of_version_0_1_0_saved_again_is_equal(site, tmp_path):
    old = AMMRank.load(model_of(site))
    old.save(tmp_path / "new")
    assert [path.name for path in sorted((tmp_path / "new").iterdir())] == ["part-00000.json", "part-00000.zarr"]
    assert AMMRank.load(tmp_path / "new").digest() == old.digest()


@pytest.mark.parametrize("is_alone", [True, False])
@pytest.mark.parametrize("name", ["weights/c/0/0", "zarr.json", "popularity/c/0"])
def test_load__a_damaged_model_of_version_0_1_0_is_refused(site, name, is_alone):
    path = model_of(site)
    victim = path / "model.zarr" / name
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 0x10
    victim.write_bytes(data)
    remedy = "train it again with `ammrank train`" if is_alone else "make it again with `ammrank nightly SITE"
    with pytest.raises(DamagedStore, match=remedy):
        read_model(path / "model.zarr" if is_alone else path)
    victim.unlink()  # zarr would read zeros
    with pytest.raises(BadInput, match=f"{remedy}|there must be a model at"):
        read_model(path / "model.zarr" if is_alone else path)
