"""What only sites of millions of users reach, on a small one whose limits are as small.

The workers are threads of this process, so that limits that a test sets are theirs, too.
"""

import json

import pytest
from nights import config_of, copy_world, day

from ammrank_dask.features.store import open_features
from ammrank_dask.scoring.qualifications import open_qualifications
from ammrank_dask.storage.store.runs import open_run
from ammrank_dask.user_hash import SPLITS, split_of
from ammrank_dask.workflows.operations.forget import forget_users
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.nightly import nightly

pytestmark = pytest.mark.night

AT_ONCE = {
    "ammrank_dask.features.csr.VALUES_AT_ONCE": 500,
    "ammrank_dask.features.csr.ROWS_AT_ONCE": 7,
    "ammrank_dask.ingest.table_ingest.ROWS_AT_ONCE": 2_000,
    "ammrank_dask.ingest.table_ingest.ROWS_A_TASK": 100,
    "ammrank_dask.ingest.table_ingest.ROWS_READ_A_TASK": 100,
    "ammrank_dask.ingest.scan.BYTES_A_TASK": 1,
    "ammrank_dask.scoring.by_category.ROWS_OF_TASK": 10,
    "ammrank_dask.scoring.category_cutoffs._IDS_AT_ONCE": 5,
    "ammrank_dask.scoring.balanced._HESSIAN_BYTES": 1,
    "ammrank_dask.ingest.exchange._FIRST_VALUES": 4,
    "ammrank_dask.storage.store.ids._IDS_AT_ONCE": 10,
    "ammrank_dask.forget.BYTES_OF_TASK": 1 << 10,
}
"""How much is taken at a time, by where it is said: nothing that is written depends on it."""
SAMPLES = {
    "ammrank_dask.scoring.policy_sample.SAMPLE_CELLS": 100 * 50,
    "ammrank_dask.scoring.learn_chances.MAX_CELLS": 60 * 50,
    "ammrank_dask.scoring.recalibrate.MAX_CELLS": 60 * 50,
    "ammrank_dask.scoring.chance_table._SAMPLE_USERS": 40,
    "ammrank_dask.scoring.chance_table._SAMPLE_CELLS": 40,
    "ammrank_dask.training.driver.SAMPLE_ROWS": 20,
    "ammrank_dask.model.plus_basis.SAMPLE_ROWS": 30,
    "ammrank_dask.scoring.by_category.ROWS_OF_FILE": 20,
}
"""What of a large site is looked at, or kept in one file."""
FEW = {"min_users": 10}
ALL = {"policies": ["user_top_k", "category_top_n", "balanced"]}


def set_all(monkeypatch, limits):
    for name, limit in limits.items():
        assert isinstance(limit, int)
        monkeypatch.setattr(name, limit)


def test_nightly__what_is_written_does_not_depend_on_how_much_is_taken_at_a_time(
    client, small_world, tmp_path, monkeypatch
):
    listed = tmp_path / "list.txt"
    digests = []
    for limits in ({}, AT_ONCE):
        set_all(monkeypatch, limits)
        site = copy_world(small_world, tmp_path / f"limits-{len(limits)}")
        nightly(Night(client, site, config_of(gate=FEW, report=ALL), day(5)))
        held = open_qualifications(site.qualifications_folder(day(5))).to_pandas()
        listed.write_text("\n".join(map(str, sorted(set(held.user_id))[::50])), encoding="utf-8")
        digests.append(site.digest())
        forget_users(client, site, listed)
        digests.append(site.digest())
    assert digests[:2] == digests[2:]
    assert digests[0] != digests[1]


@pytest.mark.parametrize(
    ("score", "report"),
    [
        ({}, {"policies": ["user_top_k"]}),
        ({}, {}),
        ({}, ALL),
        ({"policy": "category_top_n"}, {"policies": ["category_top_n"]}),
        ({"policy": "balanced"}, {}),
        ({"explore": 0.1}, ALL),
        ({"min_chance": 0.001}, {}),
    ],
)
def test_nightly__policies_with_samples_of_a_large_site(client, site, monkeypatch, score, report):
    set_all(monkeypatch, SAMPLES)
    nightly(Night(client, site, config_of(gate=FEW, score={"k": 4} | score, report=report), day(7)))  # it trains
    held = open_qualifications(site.qualifications_folder(day(7))).to_pandas()
    summary = json.loads((site.report_folder(day(7)) / "summary.json").read_text())
    policy = score.get("policy", "user_top_k")
    assert summary["policies"][policy]["slots"] == len(held)
    if policy != "category_top_n" and "min_chance" not in score:
        assert set(held.groupby("user_id").size()) == {4}
    for measures in summary["policies"].values():
        assert measures["slots"] == pytest.approx(len(held), rel=0.05)


def test_nightly__chances_of_a_large_site_are_learnt_from_some_partitions(client, site, monkeypatch):
    features = open_features(site.path / site.current().runs["features"])
    gate_users = [
        int((split_of(features.partition(number).user_ids) == SPLITS.index("gate")).sum()) for number in range(2)
    ]
    assert features.n_partitions == 2
    assert min(gate_users) > 0
    half = int(0.05 * features.n_users * features.n_categories)  # a tenth of the users validate
    monkeypatch.setattr("ammrank_dask.scoring.learn_chances.MAX_CELLS", half)
    nightly(Night(client, site, config_of(gate=FEW), day(7)))
    facts = open_run(site.path / site.current().runs["chances"]).manifest["facts"]
    assert facts["gate_users"] == gate_users[0]
    assert facts["carried"]["users"] > 0
