"""The mapping of Complete Journey to a lake, by hand on a few made-up purchases."""

import csv

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from benchmarks import complete_journey
from benchmarks.complete_journey import choose_households, list_parents, list_purchases, list_views, name_nodes


@pytest.fixture
def tables():
    """Two baskets of household 7 and one of 9; product 13 has no category, 14 is only in a coupon, 15 in nothing."""
    day = pd.Timestamp("2017-03-01 10:00")
    rows = [
        (7, 1, 11, 0.0, 0.0, day),
        (7, 1, 12, 0.5, 0.0, day),
        (7, 1, 13, 0.0, 0.0, day),
        (7, 2, 11, 0.0, 1.0, day + pd.Timedelta(days=1)),
        (9, 3, 12, 0.0, 0.0, day + pd.Timedelta(hours=1)),
    ]
    names = ["household_id", "basket_id", "product_id", "retail_disc", "coupon_disc", "transaction_timestamp"]
    products = [(11, "FOOD", "BREAD", "RYE"), (12, "FOOD", "BREAD", None), (13, "MISC", None, None)]
    products += [(14, "DRUG", "SOAP/BAR", "HAND"), (15, "TOYS", "DOLLS", None)]
    return {
        "transactions": pd.DataFrame(rows, columns=names),
        "products": pd.DataFrame(products, columns=["product_id", "department", "product_category", "product_type"]),
        "coupons": pd.DataFrame({"product_id": [14, 14, 11, 11], "campaign_id": [1, 1, 1, 2]}),
        "campaigns": pd.DataFrame({"campaign_id": [1, 2], "household_id": [7, 7]}),
        "campaign_descriptions": pd.DataFrame(
            {"campaign_id": [1, 2], "start_date": pd.to_datetime(["2017-03-02", "2016-12-01"])}
        ),
        "demographics": pd.DataFrame({"household_id": [9], "age": ["25-34"]}),
    }


def nodes_of(tables):
    return name_nodes(tables["products"], tables["transactions"], tables["coupons"])


def test_list_parents__has_the_products_that_are_bought_or_in_coupons(tables):
    assert list_parents(nodes_of(tables)) == {
        "DRUG": "", "DRUG/SOAP/BAR": "DRUG", "DRUG/SOAP/BAR/HAND": "DRUG/SOAP/BAR",
        "FOOD": "", "FOOD/BREAD": "FOOD", "FOOD/BREAD/RYE": "FOOD/BREAD",
    }  # fmt: skip


def test_list_purchases__clicks_once_a_basket_and_category(tables):
    found = list_purchases(tables, nodes_of(tables))
    days = found["timestamp"].dt.day
    assert sorted(zip(found["household_id"], found["group"], found["node"], days, strict=True)) == [
        (7, "adc", "FOOD/BREAD", 1), (7, "adc", "FOOD/BREAD/RYE", 2), (7, "olc", "FOOD/BREAD/RYE", 2),
        (7, "pv", "FOOD/BREAD", 1), (7, "pv", "FOOD/BREAD/RYE", 1), (7, "pv", "FOOD/BREAD/RYE", 2),
        (7, "slc", "FOOD/BREAD", 1), (9, "adc", "FOOD/BREAD", 1), (9, "pv", "FOOD/BREAD", 1),
    ]  # fmt: skip


def test_list_views__once_a_category_and_not_before_the_first_purchase(tables):
    found = list_views(tables, nodes_of(tables))
    assert set(found["group"]) == {"adv"}
    assert sorted(found["node"]) == ["DRUG/SOAP/BAR", "FOOD/BREAD"]
    assert set(found["household_id"]) == {7}
    assert set(found["timestamp"]) == {pd.Timestamp("2017-03-02")}


def test_choose_households__is_nested_and_does_not_depend_on_order():
    everyone = np.arange(1, 201)
    few, more = choose_households(everyone, 20), choose_households(everyone[::-1], 60)
    assert len(few) == 20
    assert len(more) == 60
    assert set(few) < set(more)
    assert (np.diff(more) > 0).all()
    assert set(few) != set(range(1, 21))
    np.testing.assert_array_equal(choose_households(everyone, None), everyone)
    with pytest.raises(SystemExit, match="households must be between 1 and 200, got 201"):
        choose_households(everyone, 201)


def test_build_lake__writes_days_households_and_taxonomy(tables, tmp_path, monkeypatch):
    monkeypatch.setattr(complete_journey, "load_tables", lambda: tables)
    lake = complete_journey.build_lake(tmp_path / "lake")
    assert sorted(path.name for path in (lake / "events").iterdir()) == ["date=2017-03-01", "date=2017-03-02"]
    second = pq.read_table(lake / "events" / "date=2017-03-02" / "part-00000.parquet").to_pylist()
    assert [(row["user_id"], row["group"], row["category"]) for row in second] == [
        ("7", "adv", "DRUG/SOAP/BAR"), ("7", "adv", "FOOD/BREAD"),
        ("7", "adc", "FOOD/BREAD/RYE"), ("7", "olc", "FOOD/BREAD/RYE"), ("7", "pv", "FOOD/BREAD/RYE"),
    ]  # fmt: skip
    assert str(second[2]["timestamp"]) == "2017-03-02 10:00:00+00:00"
    assert pq.read_table(lake / "users.parquet").to_pylist() == [
        {"user_id": "7", "age": None, "gender": None}, {"user_id": "9", "age": 30, "gender": None},
    ]  # fmt: skip
    with open(lake / "taxonomy.csv", newline="") as file:
        assert {row["category"]: row["parent"] for row in csv.DictReader(file)} == list_parents(nodes_of(tables))
    assert [path.name for path in tmp_path.iterdir()] == ["lake"]
    monkeypatch.setattr(complete_journey, "load_tables", lambda: pytest.fail("the lake is there already"))
    assert complete_journey.build_lake(tmp_path / "lake") == lake
