"""The logs of `python -m benchmarks unlike`: each is what its name says, and the same from the same seed."""

import datetime as dt

import numpy as np
import pandas as pd
import pytest

from ammrank_dask.storage.errors import BadInput
from benchmarks import unlike_logs
from benchmarks.forward import compare_lists
from benchmarks.unlike_logs import CLICKS, LOGS, build_lake, compare_on_unlike_logs, describe_logs


def log_of(name):
    events = LOGS[name](np.random.default_rng(7))
    day = (events["timestamp"].dt.normalize() - pd.Timestamp(unlike_logs.FIRST_DAY)).dt.days
    return events.assign(day=day, is_click=events["group"] == CLICKS)


@pytest.mark.parametrize("name", LOGS)
def test_logs__same_seed_same_events_within_the_days(name):
    one, other = log_of(name), log_of(name)
    pd.testing.assert_frame_equal(one, other)
    assert one["is_click"].any()
    assert (one["day"].min() >= 0, one["day"].max() < unlike_logs.N_DAYS) == (True, True)


def test_logs__have_the_shapes_that_they_are_for():
    novelty = log_of("novelty")
    views = novelty[novelty["group"] == "pv"].sort_values("timestamp")
    assert views.duplicated(["user_id", "node"]).mean() < 0.05
    assert log_of("few")["node"].nunique() == 8
    assert not set(log_of("gaps")["day"]) & set(range(70, 91))
    silent = log_of("silent")
    assert not silent["is_click"][silent["day"].between(60, 119)].any()
    assert (silent["day"].between(60, 119)).any()
    replaced = log_of("replaced")
    first_days = replaced.groupby("node")["day"].min()
    assert (first_days > 190).sum() == 10
    assert set(log_of("clicks_only")["group"]) == {CLICKS}
    visits = log_of("heavy").groupby("user_id").size()
    assert visits.max() > 100 * visits.median()


def test_build_lake__is_written_once(tmp_path):
    lake = build_lake(tmp_path / "lake", "few", 1)
    days = sorted((lake / "events").iterdir())
    assert len(days) == unlike_logs.N_DAYS
    before = days[0].stat().st_mtime_ns
    build_lake(tmp_path / "lake", "few", 1)
    assert days[0].stat().st_mtime_ns == before


def test_compare_on_unlike_logs__unknown_logs_are_refused(tmp_path):
    with pytest.raises(BadInput, match=r"logs must be of repeat, .*, got steady"):
        compare_on_unlike_logs(tmp_path, logs=["steady"])


def test_describe_logs__by_hand():
    hits = {"published": [2, 1, 0], "own-plain": [1, 1, 0], "popularity": [0, 0, 0]}
    columns = {"NDCG@10": 0.0, "precision@1": 0.0}
    tables = {label: pd.DataFrame({"hits@10": row, **columns}) for label, row in hits.items()}
    facts = {"model": "own-history", **compare_lists(tables)}
    assert describe_logs({("few", dt.date(2026, 2, 28)): facts}).splitlines() == [
        "| log | night | users | source | hits@10 | minus own-plain | minus popularity |",
        "|---|---|---|---|---|---|---|",
        "| few | 2026-02-28 | 3 | own-history | 1.000 | +0.333 ± 0.333 | +1.000 ± 0.577 |",
    ]
