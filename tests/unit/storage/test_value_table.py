"""The table of what a click is worth: dates, groups of users, former names, and what is refused."""

import datetime as dt

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake.values import ValueTable, read_value_table

CATEGORIES = ["Hats", "Shoes, red", "Toys"]
GROUPS = ("18-20", "female")


def read(tmp_path, text, date=None, names_now=None):
    path = tmp_path / "values.csv"
    path.write_text(text, encoding="utf-8")
    return read_value_table(path, date, CATEGORIES, GROUPS, names_now)


TABLE = """category,value,from,group
Hats,0.5,,
Hats,0.75,2026-02-01,
Hats,2,2026-01-15,female

"Shoes, red",0.02,2026-03-01,
Toys,0,,
"""


@pytest.mark.parametrize(
    ("date", "values", "by_group"),
    [
        (dt.date(2026, 1, 14), {"Hats": 0.5, "Toys": 0.0}, {}),
        (dt.date(2026, 1, 15), {"Hats": 0.5, "Toys": 0.0}, {"female": {"Hats": 2.0}}),
        (dt.date(2026, 2, 28), {"Hats": 0.75, "Toys": 0.0}, {"female": {"Hats": 2.0}}),
        (None, {"Hats": 0.75, "Shoes, red": 0.02, "Toys": 0.0}, {"female": {"Hats": 2.0}}),
    ],
)
def test_read_values__takes_the_rows_of_the_date(tmp_path, date, values, by_group):
    assert read(tmp_path, TABLE, date) == ValueTable(values, by_group)


def test_read_values__parquet_has_the_same_columns(tmp_path):
    path = tmp_path / "values.parquet"
    table = {"category": ["Hats", "Toys"], "value": [0.5, 2.0], "from": [None, dt.date(2026, 1, 1)]}
    pq.write_table(pa.table(table), path)
    assert read_value_table(path, dt.date(2025, 1, 1), CATEGORIES, GROUPS).values == {"Hats": 0.5}
    assert read_value_table(path, dt.date(2026, 1, 1), CATEGORIES, GROUPS).values == {"Hats": 0.5, "Toys": 2.0}


def test_read_values__former_names_count_and_the_currency_is_a_word(tmp_path):
    found = read(tmp_path, "category,value (EUR)\nCaps,1.5\nOld,9\n", names_now={"Caps": "Hats", "Old": None})
    assert (found.values, found.currency) == ({"Hats": 1.5}, "EUR")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("category,value\nHat,1\n", r"values.csv, line 2: there is no ranked category 'Hat'; did you mean 'Hats'\?"),
        (
            "category,value\nHats,nan\n",
            "line 2: the value of a click must be a number .*, found 'nan'",
        ),
        ("category,value\nHats,-1\n", "must be a number from 0 to 1000000000, found '-1'"),
        ("category,value\nHats,1e12\n", "must be a number from 0 to 1000000000, found '1e12'"),
        ("category,value\nHats,\n", "must be a number from 0 to 1000000000, found ''"),
        ("category,value\nHats,0\nToys,0\n", "no category has a value above 0 on 2026-06-01; give at least one"),
        ("category,value\n", "no category has a value above 0 on 2026-06-01; give at least one"),
        ("category,value,from\nHats,1,2027-01-01\n", "no category has a value above 0 on 2026-06-01"),
        ("category,value,from\nHats,1,soon\n", "line 2: from must be a date like 2026-01-31, found 'soon'"),
        ("category,value,group\nHats,1,old\n", "line 2: there is no group of users 'old'"),
        ("category,value\nHats,1\nHats,2\n", "line 3: there is another value of 'Hats'; leave one"),
        ("category,value\nHats,1,2\n", "line 2: must have 2 fields, found more"),
        (
            "category,price\nHats,1\n",
            r"the columns category,value and may have from,group, found category,price",
        ),
        ("", "must have the columns category,value"),
    ],
)
def test_read_values__refuses_in_one_sentence(tmp_path, text, message):
    with pytest.raises(BadInput, match=message) as refused:
        read(tmp_path, text, dt.date(2026, 6, 1))
    assert "\n" not in str(refused.value)


def test_read_values__bytes_that_are_no_table(tmp_path):
    for name in ("values.csv", "values.parquet"):
        (tmp_path / name).write_bytes(b"\xff\xfe\x00PAR1")
        with pytest.raises(BadInput, match=r"cannot read .*; give a table with the columns category,value"):
            read_value_table(tmp_path / name, None, CATEGORIES, GROUPS)
