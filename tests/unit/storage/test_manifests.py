"""Typed views of manifests, over manifests as they are written."""

import datetime as dt

import pytest

from ammrank_dask.storage.store.manifests import (
    DayManifest,
    ModelManifest,
    QualificationsManifest,
    StateManifest,
    VerdictManifest,
)
from ammrank_dask.storage.store.runs import finish_run


def make_run(path, kind, **content):
    path.mkdir()
    return finish_run(path, kind, "d", [], **{"config": {}, "inputs": {}, **content})


def test_day_manifest__clicks_and_events(tmp_path):
    facts = {"events": 9, "counts": {"kept": 7, "late": 2}, "clicks": [[0, 3], [4, 1]]}
    day = DayManifest.of(make_run(tmp_path / "day", "day", config={"id_kind": "int64"}, inputs=[], counts=facts))
    assert (day.id_kind, day.n_events, day.clicks) == ("int64", 9, [(0, 3), (4, 1)])
    assert day.events_by_outcome == {"kept": 7, "late": 2}


def test_state_manifest__days_with_their_digests(tmp_path):
    inputs = [["2026-03-01", "abc"], ["2026-03-02", None]]
    run = make_run(tmp_path / "state", "state", config={"date": "2026-03-02", "id_kind": "string"}, inputs=inputs)
    state = StateManifest.of(run)
    assert state.days == [(dt.date(2026, 3, 1), "abc"), (dt.date(2026, 3, 2), None)]
    assert (state.date, state.id_kind) == ("2026-03-02", "string")


def test_model_manifest__what_version_0_1_0_did_not_write_is_none(tmp_path):
    facts = {"users": 5, "planes": 3, "training": None}
    model = ModelManifest.of(make_run(tmp_path / "model", "model", config={"date": "2026-03-02"}, counts=facts))
    assert (model.date, model.n_users, model.n_planes) == ("2026-03-02", 5, 3)
    assert {model.method, model.simple, model.tuning, model.training, model.values_digest} == {None}


def test_qualifications_manifest__inputs_and_settings(tmp_path):
    config = {"date": "2026-03-02", "k": 4, "policy": "balanced", "partitions": 2, "categories": ["a", "b"]}
    run = make_run(tmp_path / "q", "qualifications", config=config, inputs={"model": "m", "previous": None})
    quals = QualificationsManifest.of(run)
    assert (quals.date, quals.k, quals.policy) == (dt.date(2026, 3, 2), 4, "balanced")
    assert (quals.n_partitions, quals.categories) == (2, ["a", "b"])
    assert (quals.model, quals.previous, quals.chances) == ("m", None, None)
    assert "ammrank-dask" in quals.versions
    with pytest.raises(KeyError, match="clicks"):
        _ = quals.clicks


def test_verdict_manifest__says_who_won(tmp_path):
    inputs = {"champion": None, "challenger": "new"}
    run = make_run(tmp_path / "v", "verdict", inputs=inputs, counts={"accepted": False})
    verdict = VerdictManifest.of(run)
    assert (verdict.champion, verdict.challenger, verdict.accepted) == (None, "new", False)
