"""The measures of `python -m benchmarks forward`, by hand on a log of four users and three categories."""

import datetime as dt

import numpy as np
import pandas as pd
import pytest
from nights import config_of, day

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake.taxonomy import build_taxonomy
from ammrank_dask.workflows.session.settings import site_taxonomy
from benchmarks.forward import (
    Month,
    check_nights,
    compare_lists,
    describe_nights,
    link_lake,
    list_without_model,
    measure_lists,
    read_lists,
    read_month,
)

NIGHT = dt.date(2026, 3, 31)
TAXONOMY = build_taxonomy(
    [("r", ""), ("r/a", "r"), ("r/b", "r"), ("r/c", "r"), ("r/c/deep", "r/c")], level=2
)  # codes: a 0, b 1, c 2


@pytest.fixture
def events():
    rows = [
        ("ann", "pv", "r/a", "2026-03-01"), ("ann", "pv", "r/a", "2026-03-01"), ("ann", "pv", "r/b", "2026-03-31"),
        ("ann", "pv", "r", "2026-03-31"),  # above the ranked level
        ("ann", "pv", "r/c", "2026-04-01"),  # after the night
        ("bob", "sq", "r/b", "2026-01-01"), ("bob", "adc", "r/b", "2026-03-01"),  # 30 days before: the window is over
        ("cat", "adc", "r/c/deep", "2026-03-02"), ("cat", "adc", "r/c", "2026-03-31"),  # one user, one category
        ("ann", "adc", "r/c/deep", "2026-04-01"), ("ann", "adc", "r/b", "2026-04-30"),
        ("ann", "adc", "r/a", "2026-05-01"),  # the 31st day
        ("bob", "adc", "r/a", "2026-04-02"), ("bob", "adc", "r/a", "2026-04-03"),
        ("cat", "adc", "r", "2026-04-02"),  # clicked, but no ranked category
        ("dan", "adc", "r/a", "2026-04-02"),  # no history
    ]  # fmt: skip
    found = pd.DataFrame(rows, columns=["user_id", "group", "category", "date"])
    return found.assign(date=pd.to_datetime(found["date"]))


def test_read_month__takes_days_users_and_categories_as_the_night_does(events):
    month = read_month(events, TAXONOMY, NIGHT)
    assert list(month.users) == ["ann", "bob"]
    assert month.clicked.tolist() == [[False, True, True], [True, False, False]]
    assert month.views.tolist() == [[2, 1, 0], [0, 0, 0]]
    np.testing.assert_allclose(month.decayed, [[2 * 0.97**30, 1, 0], [0, 0, 0]])
    assert month.popularity.tolist() == [0, 0, 1]


def test_list_without_model__fills_up_by_popularity_and_then_by_code(events):
    lists = list_without_model(read_month(events, TAXONOMY, NIGHT))
    assert {name: rows.tolist() for name, rows in lists.items()} == {
        "own-plain": [[0, 1, 2], [2, 0, 1]],
        "own-decayed": [[1, 0, 2], [2, 0, 1]],  # 2 · .97³⁰ = .80, less than one of the night itself
        "popularity": [[2, 0, 1], [2, 0, 1]],
    }


def test_measure_lists__by_hand():
    clicked = np.zeros((3, 12), bool)
    clicked[0, [4, 7]] = clicked[1, 11] = clicked[2, :11] = True
    month = Month(pd.Index(["u", "v", "w"]), clicked, clicked, clicked, clicked[0])
    lists = np.array([[4, 0, 7, 1, 2, 3, 5, 6, 8, 9], [0, 11, *[-1] * 8], range(10)])
    found = measure_lists(lists, month)
    assert found["hits@10"].tolist() == [2, 1, 10]
    assert found["precision@1"].tolist() == [1, 0, 1]
    # 1 + 1/log2(4) of 1 + 1/log2(3); 1/log2(3) of 1; ten of the eleven clicked ones fill the list
    assert found["NDCG@10"].tolist() == pytest.approx([1.5 / 1.6309298, 0.6309298, 1.0])


def test_measure_lists__a_user_without_a_list_has_no_hits():
    month = Month(pd.Index(["u"]), np.ones((1, 3), bool), np.zeros((1, 3)), np.zeros((1, 3)), np.zeros(3))
    assert measure_lists(np.full((1, 10), -1), month).to_numpy().tolist() == [[0, 0, 0]]


def test_compare_lists__has_the_paired_standard_error():
    published = pd.DataFrame({"hits@10": [3, 5, 1, 3], "NDCG@10": [0.5] * 4, "precision@1": [1.0, 1.0, 0.0, 1.0]})
    other = pd.DataFrame({"hits@10": [2, 2, 1, 3], "NDCG@10": [0.25] * 4, "precision@1": [1.0, 0.0, 1.0, 1.0]})
    found = compare_lists({"published": published, "popularity": other})
    assert found["users"] == 4
    row = found["lists"]["popularity"]
    # Differences 1, 3, 0, 0: mean 1, variance (0 + 4 + 1 + 1) / 3 = 2, divided by four users √.5
    assert row["hits@10"] == pytest.approx({"mean": 2.0, "difference": 1.0, "standard_error": 0.5**0.5})
    assert row["NDCG@10"] == pytest.approx({"mean": 0.25, "difference": 0.25, "standard_error": 0.0})
    night = {"model": "amm-rank-plus", "users_without_list": 1, **found}
    table = describe_nights("a log", {"2026-03-31": night, "all nights": found})
    lines = table.splitlines()
    assert lines[2] == "| 2026-03-31 | 4 | published: amm-rank-plus | 3.0000 |  | 0.5000 |  | 0.7500 |  |"
    assert lines[3].startswith(
        "| 2026-03-31 | 4 | popularity | 2.0000 | +1.0000 ± 0.7071 | 0.2500 | +0.2500 ± 0.0000 |"
    )
    assert lines[4].startswith("| all nights | 4 | published | 3.0000 |  |")
    assert "of which these have no list and so no hits: 1 at 2026-03-31; all nights" in lines[-1]


def test_link_lake__has_no_day_after_the_night(tmp_path):
    for date in ("2026-03-30", "2026-03-31", "2026-04-01"):
        (tmp_path / "lake" / "events" / f"date={date}").mkdir(parents=True)
    (tmp_path / "lake" / "taxonomy.csv").write_text("category,parent\n", encoding="utf-8")
    link_lake(tmp_path / "lake", tmp_path / "known", NIGHT)
    assert sorted(path.name for path in (tmp_path / "known").rglob("*")) == [
        "date=2026-03-30", "date=2026-03-31", "events", "taxonomy.csv",
    ]  # fmt: skip


def test_read_lists__are_those_of_the_files(published_world):
    taxonomy = site_taxonomy(published_world, config_of())
    rows = pd.read_parquet(published_world.qualifications_folder(day(5)) / "by_user").astype({"category": str})
    user = rows["user_id"].iloc[-1]
    of_user = rows[rows["user_id"] == user].sort_values("rank")["category"].tolist()
    lists = read_lists(published_world, day(5), pd.Index([user, -5]), taxonomy)
    assert [taxonomy.categories[code] for code in lists[0] if code >= 0] == of_user[:10]
    assert (lists[1] == -1).all()


def test_check_nights__needs_a_month_of_log_after_every_night():
    last = dt.date(2026, 4, 30)
    assert check_nights(["2026-03-31", "2026-01-31"], last) == [NIGHT, dt.date(2026, 1, 31)]
    with pytest.raises(BadInput, match=r"must have 30 days after a night, and it ends with 2026-04-30, got .*04-01;"):
        check_nights(["2026-04-01"], last)
    with pytest.raises(BadInput, match="nights must be dates YYYY-MM-DD with commas between, got 2026-02-30"):
        check_nights(["2026-02-30"], last)
